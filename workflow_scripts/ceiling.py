"""Rule ceiling: index and questions -> for how many the answer is in the first k passages."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.assets import read_questions
from glimmer.files import write_json
from glimmer.heldout.ceiling import measure_ceiling
from glimmer.seal import check_seals, seal

check_seals(snakemake.input)
chosen = snakemake.params.settings["ceiling"]
found = measure_ceiling(
    Path(snakemake.input.index[0]).parent,
    Path(snakemake.input.corpus),
    train=list(read_questions(Path(snakemake.input.train))),
    heldout=list(read_questions(Path(snakemake.input.heldout))),
    questions=chosen["questions"],
    k=chosen["k"],
    topk=snakemake.params.topk,
    ef_search=snakemake.params.ef_search,
    threads=snakemake.threads,
)
write_json(snakemake.output.ceiling, found)
seal(snakemake.output.ceiling)
