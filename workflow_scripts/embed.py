"""Rule embed: one shard of the corpus -> normalised vectors."""

from pathlib import Path

from glimmer.logs import setup

setup(snakemake.log[0])

from glimmer.assets import verified_folder
from glimmer.retrieval import embed_shard

chosen = snakemake.params.settings["embedding"]
embed_shard(
    verified_folder(snakemake.input.corpus_manifest) / "corpus.jsonl",
    Path(snakemake.output.vectors),
    shard=int(snakemake.wildcards.i),
    num_shards=int(snakemake.wildcards.n),
    model=chosen["model"],
    revision=chosen["revision"],
    batch_size=chosen["batch_size"],
    max_length=chosen["max_length"],
    device=chosen["device"],
    threads=snakemake.threads,
    code=snakemake.params.code,
)
