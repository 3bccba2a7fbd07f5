"""Rule embed: one shard of the corpus -> normalised vectors."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.assets import verified_folder
from glimmer.cache import cached
from glimmer.retrieval import embed_shard
from glimmer.seal import check_seals, seal

check_seals(snakemake.input)
chosen = snakemake.params.settings["embedding"]
out = Path(snakemake.output.vectors)
cached(
    snakemake.config["cache"],
    lambda: embed_shard(
        verified_folder(snakemake.input.corpus_manifest) / "corpus.jsonl",
        out,
        shard=int(snakemake.wildcards.i),
        num_shards=int(snakemake.wildcards.n),
        model=chosen["model"],
        revision=chosen["revision"],
        batch_size=chosen["batch_size"],
        max_length=chosen["max_length"],
        device=chosen["device"],
        dtype=chosen["dtype"],
        threads=snakemake.threads,
        code=snakemake.params.code,
    ),
    stage=f"{snakemake.rule} {out.stem}",
    params=dict(snakemake.params.items()),
    inputs=[snakemake.input.corpus_manifest],
    out=out.with_suffix(".json"),
    beside=lambda: [out.name],
)
seal(snakemake.output.meta)
