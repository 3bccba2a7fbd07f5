"""Rule bundled_checkpoint: seed -> the tiny checkpoint, from a random initialisation."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.bundled.checkpoint import make_checkpoint
from glimmer.bundled.recipe import Recipe
from glimmer.training.local.determinism import use_threads

use_threads(snakemake.threads)
make_checkpoint(
    Path(snakemake.output[0]),
    recipe=Recipe(seed=snakemake.params.seed),
    work=Path(snakemake.params.work),
    renderer=snakemake.params.renderer["renderer"],
)
