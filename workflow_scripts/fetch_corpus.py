"""Rule corpus: source -> corpus.jsonl in the layout of wiki-18, verified."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.assets import fetch_corpus, manifest_names
from glimmer.cache import cached

chosen = snakemake.params.settings["corpus"]
out = Path(snakemake.output.manifest)
cached(
    snakemake.config["cache"],
    lambda: fetch_corpus(
        chosen["source"],
        out.parent,
        filename=chosen["filename"],
        revision=chosen["revision"],
        sha256=chosen["sha256"],
    ),
    stage=snakemake.rule,
    params=dict(snakemake.params.items()),
    out=out,
    beside=lambda: manifest_names(out.parent),
)
