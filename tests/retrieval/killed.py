"""What tests/retrieval/test_kills.py kills: `embed` with the bundled model, or `build`.

    python -m tests.retrieval.killed embed|build FOLDER

Prints a line once the libraries are loaded, so that a kill meets the work.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(what: str, folder: Path) -> None:
    from glimmer.retrieval.build import build_index
    from glimmer.retrieval.embed import embed_shard

    corpus = folder / "corpus.jsonl"
    if what == "build":
        print("ready", flush=True)
        vectors = sorted((folder / "vectors").glob("*.npy"))
        build_index(vectors, corpus, folder / "index", M=16, ef_construction=80)
        return
    from glimmer.retrieval.encoder import Encoder
    from tests.retrieval.conftest import MODEL

    encoder = Encoder(MODEL)
    print("ready", flush=True)
    for shard in range(2):
        out = folder / f"vectors/shard-{shard:05d}-of-00002.npy"
        if not out.with_suffix(".json").exists():
            embed_shard(corpus, out, shard=shard, num_shards=2, model=MODEL, batch_size=4,
                        encoder=encoder)  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
