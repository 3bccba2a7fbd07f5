"""Rule index: vectors -> HNSW index with its record."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.retrieval import build_index

chosen = snakemake.params.settings["index"]
build_index(
    [Path(path) for path in snakemake.input.vectors],
    Path(snakemake.input.corpus),
    Path(snakemake.output[0]).parent,
    M=chosen["M"],
    ef_construction=chosen["ef_construction"],
    ef_search=chosen["ef_search"],
    threads=chosen["threads"],
)
