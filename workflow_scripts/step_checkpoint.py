"""Rule step_checkpoint: a checkpoint that training kept -> a folder in the released layout."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.assets import verified_folder
from glimmer.seal import check_seals
from glimmer.training.local.kept import export_step

check_seals(snakemake.input)
export_step(
    Path(snakemake.input.metrics).parent,
    source=verified_folder(snakemake.input.checkpoint[0]),
    step=int(snakemake.wildcards.step),
    out=Path(snakemake.output.manifest).parent,
)
