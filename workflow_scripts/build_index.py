"""Rule index: vectors -> HNSW index with its record."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.cache import cached
from glimmer.retrieval import build_index
from glimmer.seal import check_seals, seal

check_seals(snakemake.input)
chosen = snakemake.params.settings["index"]
out = Path(snakemake.output[0])
cached(
    snakemake.config["cache"],
    lambda: build_index(
        [Path(path) for path in snakemake.input.vectors],
        Path(snakemake.input.corpus),
        out.parent,
        **chosen,
    ),
    stage=snakemake.rule,
    params=dict(snakemake.params.items()),
    inputs=[snakemake.input.corpus_manifest, *snakemake.input.meta],
    out=out,
    beside=lambda: ["offsets.npy", "index.faiss"],
)
seal(snakemake.output[0])
