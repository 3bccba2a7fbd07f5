"""Rule questions: source -> train.jsonl and heldout.jsonl, verified and disjoint."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.assets import fetch_questions
from glimmer.seal import seal

chosen = snakemake.params.settings["questions"]
fetch_questions(
    chosen["source"],
    Path(snakemake.output.train).parent,
    train=chosen["train"],
    heldout=chosen["heldout"],
    revision=chosen["revision"],
    sha256=chosen["sha256"],
    overlap=chosen["overlap"],
)
seal(snakemake.output.train, snakemake.output.heldout)
