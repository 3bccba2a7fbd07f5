"""The training stage's entry: starts the retrieval service, builds the recipe, runs the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from glimmer.files import sha256_file, sha256_files, sha256_json
from glimmer.operational import decisive
from glimmer.training.job import Job


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
    titan: Mapping[str, Any],
    threads: int,
    code: str,
    service_log: Path,
) -> None:
    """Train and write `out/metrics.jsonl` and `out/final/`.

    What a run needs to go on stands in `out/checkpoints/<key>/`, its TensorBoard events in
    `out/tensorboard/<key>/`; the key is of settings, code, data and start. So a run resumes its own
    checkpoints only, and those of other settings stay.

    Args:
        settings, search, retrieval, renderer, titan: config sections; `titan` counts for the engine
            of that name only.
        threads: of torch, for the engine `local`.
        code: fingerprint of the code that trains.

    Raises:
        ConfigError: a setting that the engine cannot honour.
        GlimmerError: unreadable input, a service that does not start, or a guard that stopped
            the run.
    """
    from glimmer.retrieval import retrieval_service
    from glimmer.retrieval.index import served_ef_search

    settings_hash = sha256_json(
        {
            "training": decisive(settings),
            "search": decisive(search),
            "renderer": dict(renderer),
            "engine": engine_settings(settings["engine"], titan=titan, threads=threads),
            "code": code,
            "checkpoint": sha256_files(checkpoint, "*.safetensors"),
            "questions": sha256_file(train_questions),
            "index": sha256_file(index / "index.json"),
            "ef_search": served_ef_search(index, retrieval.get("ef_search")),
        }
    )
    key = settings_hash[:12]
    with retrieval_service(
        retrieval, index=index, corpus=corpus, topk=search["topk"], log=service_log
    ) as url:
        job = Job(
            checkpoint=str(checkpoint),
            work=str(out / "checkpoints" / key),
            tensorboard=str(out / "tensorboard" / key),
            train_questions=str(train_questions),
            heldout_questions=str(heldout_questions),
            search_url=url,
            training=dict(settings),
            search=dict(search),
            renderer=dict(renderer),
            titan=dict(titan),
            search_token_env=retrieval.get("token_env"),
        )
        ENGINES[settings["engine"]](job, out, threads, settings_hash, service_log)


def engine_settings(engine: str, *, titan: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """What of an engine's own settings a result depends on."""
    return decisive(titan) if engine == "titan" else {"threads": threads}


def _on_gpus(job: Job, out: Path, _threads: int, _hash: str, service_log: Path) -> None:
    from glimmer.training.titan import launch

    launch.train(job, out=out, log=service_log.with_name("titan.log"))


def _locally(job: Job, out: Path, threads: int, settings_hash: str, _log: Path) -> None:
    asyncio.run(_train_locally(job, out, threads, settings_hash))


# By the name in `training.engine`. Called with the job, the training folder, threads of torch, the
# hash of all that the result depends on, and the path of the service's log.
ENGINES: dict[str, Callable[[Job, Path, int, str, Path], None]] = {
    "local": _locally,
    "titan": _on_gpus,
}


async def _train_locally(job: Job, out: Path, threads: int, settings_hash: str) -> None:
    from glimmer.renderer import load_renderer
    from glimmer.search_r1.prompt import SEARCH_TOOL
    from glimmer.search_r1.recipe import job_rollouter
    from glimmer.training.local.determinism import use_threads
    from glimmer.training.local.engine import LocalEngine

    use_threads(threads)
    checkpoint = Path(job.checkpoint)
    rollouter = job_rollouter(job).build()
    try:
        await LocalEngine(
            checkpoint=checkpoint,
            out=out,
            settings=job.training,
            search=job.search,
            rollouter=rollouter,
            renderer=load_renderer(checkpoint, job.renderer, tools=[SEARCH_TOOL]),
            settings_hash=settings_hash,
        ).run()
    finally:
        await rollouter.close()
