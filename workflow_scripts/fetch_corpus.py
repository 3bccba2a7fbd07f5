"""Rule corpus: source -> corpus.jsonl in the layout of wiki-18, verified."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.assets import fetch_corpus

chosen = snakemake.params.settings["corpus"]
fetch_corpus(
    chosen["source"],
    Path(snakemake.output.corpus).parent,
    filename=chosen["filename"],
    revision=chosen["revision"],
    sha256=chosen["sha256"],
)
