"""Rule bundled_world: seed -> corpus.jsonl, train.jsonl, heldout.jsonl and their manifest."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.bundled.world import write_world

write_world(
    Path(snakemake.output[0]),
    seed=snakemake.params.seed,
    train=snakemake.params.train,
    heldout=snakemake.params.heldout,
)
