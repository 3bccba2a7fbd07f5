"""Rule checkpoint: source -> verified folder."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.assets import fetch_checkpoint

chosen = snakemake.params.settings["checkpoint"]
fetch_checkpoint(
    chosen["source"],
    Path(snakemake.output.manifest).parent,
    revision=chosen["revision"],
    sha256=chosen["sha256"],
)
