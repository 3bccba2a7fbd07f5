"""Rule heldout_questions: heldout.jsonl -> the questions of this run, chosen by seed or id list."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.heldout.questions import write_chosen
from glimmer.seal import check_seals, seal

check_seals(snakemake.input)
chosen = snakemake.params.settings
write_chosen(
    Path(snakemake.input.questions),
    Path(snakemake.output.chosen),
    count=chosen["questions"],
    seed=chosen["seed"],
    ids=None if chosen["ids"] is None else Path(chosen["ids"]),
    datasets=chosen["datasets"],
)
seal(snakemake.output.chosen)
