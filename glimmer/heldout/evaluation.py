"""Held-out evaluation by the local engine: one record a question, whatever became of it.

Questions are decoded greedily in batches of fixed composition, so a record does not depend on what
ran beside it or on where an interrupted run went on. A record's fields are those of
`glimmer.heldout.records`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glimmer.assets import Question, read_questions
from glimmer.errors import ConfigError, DataError
from glimmer.files import read_jsonl, sha256_file, sha256_json
from glimmer.logs import get_logger
from glimmer.operational import decisive
from glimmer.progress import Progress

logger = get_logger(__name__)


def choose_questions(path: Path, *, count: int, seed: int) -> list[Question]:
    """`count` questions of a file by a seeded draw, in the file's order.

    Raises:
        ConfigError: the file has fewer.
    """
    questions = read_questions(path)
    if count > len(questions):
        raise ConfigError(
            f"evaluation.questions: {count} asked for, {path} has {len(questions)}. Lower it."
        )
    chosen = sorted(random.Random(seed).sample(range(len(questions)), count))
    return [questions[i] for i in chosen]


def evaluate(
    *,
    checkpoint: Path,
    questions: Path,
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
    """Write `out`, one JSON line a question.

    Finished batches are kept beside `out` and not done again after a kill, as long as checkpoint,
    questions, settings and code are the same.

    Raises:
        GlimmerError: more failed searches in a batch than `search.max_failed_fraction`; the batches
            before it are kept.

    Args:
        settings, search, retrieval, renderer: config sections (`settings` is `evaluation`).
        threads: of torch.
        code: fingerprint of the code that evaluates.
    """
    from glimmer.renderer import load_renderer
    from glimmer.retrieval import retrieval_service
    from glimmer.search_r1.outcome import check_failed_searches
    from glimmer.search_r1.prompt import SEARCH_TOOL
    from glimmer.search_r1.recipe import rollouter_config
    from glimmer.training.local.determinism import use_threads
    from glimmer.training.local.model import load_model
    from glimmer.training.local.sampler import BatchedSampler, SamplingConfig

    use_threads(threads)
    chosen = choose_questions(questions, count=settings["questions"], seed=settings["seed"])
    shared = {  # what both evaluations have in common; `compare` refuses unequal hashes
        "evaluation": dict(settings),
        "search": decisive(search),
        "renderer": dict(renderer),
        "index": sha256_file(index / "index.json"),
    }
    settings_hash = sha256_json(shared)
    identity = sha256_json(
        {**shared, "threads": threads, "code": code}
        | {"checkpoint": sha256_file(checkpoint / "model.safetensors")}
        | {"questions": [q.id for q in chosen], "file": sha256_file(questions)}
    )
    part = out.with_name(f".{out.name}.part")
    rows = _finished(part, identity, batch=settings["batch"])
    native = load_renderer(checkpoint, renderer, tools=[SEARCH_TOOL])
    sampler = BatchedSampler(load_model(checkpoint))
    sampling = SamplingConfig(
        temperature=settings["temperature"],
        max_tokens=search["max_new_tokens"],
        seed=settings["seed"],
        stop_token_ids=tuple(native.get_stop_token_ids()),
    )

    async def run(url: str) -> None:
        rollouter = rollouter_config(
            search=search,
            search_url=url,
            train_questions=questions,
            heldout_questions=questions,
        ).build()
        rollouter.on_rollout_end = sampler.leave
        try:
            with (
                open(part, "a", encoding="utf-8") as handle,
                Progress(len(chosen), f"evaluate {out.stem}", unit="q", done=len(rows)) as progress,
            ):
                for start in range(len(rows), len(chosen), settings["batch"]):
                    batch = chosen[start : start + settings["batch"]]
                    sampler.reset()
                    sampler.expect(len(batch))
                    groups = await asyncio.gather(
                        *(
                            rollouter.run_group_rollouts(
                                generate_fn=sampler.generate,
                                sample=question,
                                group_id=start + i,
                                group_size=1,
                                sampling=sampling,
                                renderer=native,
                            )
                            for i, question in enumerate(batch)
                        )
                    )
                    fresh = [
                        record(q, g.rollouts[0], native, settings_hash=settings_hash)
                        for q, g in zip(batch, groups, strict=True)
                    ]
                    check_failed_searches(
                        sum(r["failed_searches"] for r in fresh),
                        sum(r["searches"] for r in fresh),
                        allowed=search["max_failed_fraction"],
                        where=f"questions {start + 1} to {start + len(batch)}",
                    )
                    handle.write("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in fresh))
                    handle.flush()
                    os.fsync(handle.fileno())
                    progress.update(len(batch))
        finally:
            await rollouter.close()

    if len(rows) < len(chosen):
        with retrieval_service(
            retrieval, index=index, corpus=corpus, topk=search["topk"], log=service_log
        ) as url:
            asyncio.run(run(url))
    lines = part.read_bytes().split(b"\n", 1)[1]
    final = out.with_name(f".{out.name}.whole")
    final.write_bytes(lines)
    os.replace(final, out)
    part.unlink()


def _finished(part: Path, identity: str, *, batch: int) -> list[Any]:
    """Records of the whole batches that an interrupted run with this identity left; cuts the file
    back to them, or starts it anew."""
    header = json.dumps({"identity": identity}) + "\n"
    rows: list[Any] = []
    if part.exists():
        text = part.read_bytes()
        part.write_bytes(text[: text.rfind(b"\n") + 1])
        lines: list[Any] = []
        with contextlib.suppress(DataError):  # what stands before a damaged line counts
            lines.extend(value for _, value in read_jsonl(part))
        if lines and lines[0] == {"identity": identity}:
            rows = lines[1 : 1 + (len(lines) - 1) // batch * batch]
    part.parent.mkdir(parents=True, exist_ok=True)
    body = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    part.write_text(header + body, encoding="utf-8")
    return rows


def record(question: Question, rollout: Any, renderer: Any, *, settings_hash: str) -> dict:
    """The record of one rollout (see `glimmer.heldout.records` for the schema)."""
    from glimmer.search_r1.outcome import judge

    result = judge(rollout, question.golden_answers)
    turns, seen = [], 0
    for turn in rollout.turns:
        message = turn.completion_message or {}
        turns.append(
            {
                "prompt_ids": list(turn.prompt_token_ids[seen:]),
                "completion_ids": list(turn.completion_token_ids),
                "logprobs": [round(x, 6) for x in turn.completion_logprobs],
                "text": renderer.tokenizer.decode(
                    turn.completion_token_ids, skip_special_tokens=False
                ),
                "reasoning": message.get("reasoning_content"),
                "content": message.get("content"),
                "tool_calls": [
                    {
                        "name": call.name,
                        "arguments": call.arguments,
                        "status": str(call.status.value),
                    }
                    for call in message.get("tool_calls") or []
                ],
                "tool_results": [_tool_result(m) for m in turn.env_messages],
            }
        )
        seen = len(turn.prompt_token_ids) + len(turn.completion_token_ids)
    prompt = turns[0]["prompt_ids"] if turns else []
    return {
        "id": question.id,
        "question": question.question,
        "golden_answers": list(question.golden_answers),
        "type": question.type,
        "outcome": result.outcome,
        "prediction": result.prediction,
        "scores": {
            "exact_match": int(result.exact_match),
            "f1": round(result.f1, 6),
            "contains": int(result.contains),
        },
        "searches": result.searches,
        "failed_searches": result.failed_searches,
        "status": str(rollout.status.value),
        "turns": turns,
        "hashes": {
            "question": sha256_json([question.question, list(question.golden_answers)]),
            "settings": settings_hash,
            "prompt": sha256_json(prompt),
        },
    }


def _tool_result(message: Mapping[str, Any]) -> dict[str, Any]:
    """A tool message's part of the record. Times are left out: records are reproducible."""
    search = message.get("search")
    if search is None:
        return {"query": None, "passages": [], "error": message["content"]}
    passages = [{**p, "score": round(float(p["score"]), 6)} for p in search["passages"]]
    return {"query": search["query"], "passages": passages, "error": search["error"]}
