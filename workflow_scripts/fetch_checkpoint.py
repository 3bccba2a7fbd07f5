"""Rule checkpoint: source -> verified folder."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.assets import fetch_checkpoint, manifest_names
from glimmer.cache import cached

chosen = snakemake.params.settings["checkpoint"]
folder = Path(snakemake.output.manifest).parent
cached(
    snakemake.config["cache"],
    lambda: fetch_checkpoint(
        chosen["source"],
        folder,
        revision=chosen["revision"],
        sha256=chosen["sha256"],
    ),
    stage=snakemake.rule,
    params=dict(snakemake.params.items()),
    folder=folder,
    names=lambda: manifest_names(folder),
    record="manifest.json",
)
