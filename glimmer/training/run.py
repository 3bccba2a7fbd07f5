"""The training stage's entry: starts the retrieval service, builds the recipe, runs the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glimmer.errors import ConfigError
from glimmer.files import sha256_file, sha256_json
from glimmer.operational import decisive


def train(
    *,
    checkpoint: Path,
    train_questions: Path,
    heldout_questions: Path,
    index: Path,
    corpus: Path,
    out: Path,
    settings: Mapping[str, Any],
    search: Mapping[str, Any],
    retrieval: Mapping[str, Any],
    renderer: Mapping[str, Any],
    threads: int,
    code: str,
    service_log: Path,
) -> None:
    """Train and write `out/metrics.jsonl` and `out/final/`.

    What a run needs to go on stands in `out/checkpoints/<key>/`, its TensorBoard events in
    `out/tensorboard/<key>/`; the key is of settings, code, data and start. So a run resumes its own
    checkpoints only, and those of other settings stay.

    Args:
        settings, search, retrieval, renderer: config sections.
        threads: of torch.
        code: fingerprint of the code that trains.

    Raises:
        ConfigError: unknown engine.
        GlimmerError: unreadable input, a service that does not start, or a guard that stopped
            the run.
    """
    if settings["engine"] != "local":
        raise ConfigError(
            f"training.engine: found {settings['engine']!r}; this version has 'local' only. The "
            "GPU engine is not there yet (README, 'What is not there')."
        )
    from glimmer.renderer import load_renderer
    from glimmer.retrieval import retrieval_service
    from glimmer.search_r1.prompt import SEARCH_TOOL
    from glimmer.search_r1.recipe import rollouter_config
    from glimmer.training.local.determinism import use_threads
    from glimmer.training.local.engine import LocalEngine

    use_threads(threads)
    settings_hash = sha256_json(
        {
            "training": decisive(settings),
            "search": decisive(search),
            "renderer": dict(renderer),
            "threads": threads,
            "code": code,
            "checkpoint": sha256_file(checkpoint / "model.safetensors"),
            "questions": sha256_file(train_questions),
            "index": sha256_file(index / "index.json"),
        }
    )

    async def run(url: str) -> None:
        rollouter = rollouter_config(
            search=search,
            search_url=url,
            train_questions=train_questions,
            heldout_questions=heldout_questions,
            seed=settings["seed"],
            std_normalize=settings["std_normalize"],
            advantage_scale=0.0 if settings["control"] == "zero_advantages" else 1.0,
        ).build()
        try:
            await LocalEngine(
                checkpoint=checkpoint,
                out=out,
                settings=settings,
                search=search,
                rollouter=rollouter,
                renderer=load_renderer(checkpoint, renderer, tools=[SEARCH_TOOL]),
                settings_hash=settings_hash,
            ).run()
        finally:
            await rollouter.close()

    with retrieval_service(
        retrieval, index=index, corpus=corpus, topk=search["topk"], log=service_log
    ) as url:
        asyncio.run(run(url))
