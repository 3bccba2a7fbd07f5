"""Rule checkpoint: source -> verified folder."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.assets import fetch_checkpoint, manifest_names
from glimmer.cache import cached

chosen = snakemake.params.settings["checkpoint"]
out = Path(snakemake.output.manifest)
cached(
    snakemake.config["cache"],
    lambda: fetch_checkpoint(
        chosen["source"],
        out.parent,
        revision=chosen["revision"],
        sha256=chosen["sha256"],
    ),
    stage=snakemake.rule,
    params=dict(snakemake.params.items()),
    out=out,
    beside=lambda: manifest_names(out.parent),
)
