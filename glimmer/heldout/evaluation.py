"""Held-out evaluation: one record a question, whatever became of it, and repeated passes.

In: a checkpoint and the run's chosen questions. Out: `<when>.jsonl`, one record a question (fields:
`glimmer.heldout.records`), and `<when>.repeats.jsonl`, what further passes over the same questions
gave (`glimmer.heldout.noise`). Both grow batch by batch (`glimmer.heldout.batches`). What a clock
said of the first pass is in `<when>.timings.jsonl` (`glimmer.heldout.timings`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glimmer.assets import Question, read_questions
from glimmer.files import sha256_file, sha256_files, sha256_json
from glimmer.heldout.batches import Answered, Batch, Kept, first_pass, repeated_passes
from glimmer.heldout.samplers import VLLM_DECISIVE, Sampler, open_sampler
from glimmer.operational import decisive


def evaluate(
    *,
    checkpoint: Path,
    questions: Path,
    index: Path,
    corpus: Path,
    out: Path,
    repeats: Path,
    timings: Path,
    settings: Mapping[str, Any],
    search: Mapping[str, Any],
    retrieval: Mapping[str, Any],
    renderer: Mapping[str, Any],
    titan: Mapping[str, Any],
    threads: int,
    code: str,
    service_log: Path,
    engine_log: Path,
) -> None:
    """Write `out`, one JSON line a question, `repeats`, one a question and further pass, and
    `timings`, one a question.

    Finished batches are kept beside both and not done again after a kill, as long as checkpoint,
    questions, settings and code are the same.

    Raises:
        GlimmerError: more failed searches in a batch than `search.max_failed_fraction`; the batches
            before it are kept.

    Args:
        questions: the run's chosen ones (`glimmer.heldout.questions`).
        settings, search, retrieval, renderer, titan: config sections (`settings` is `evaluation`;
            `titan` counts with its engine `vllm` only).
        threads: of torch.
        code: fingerprint of the code that evaluates.
        service_log, engine_log: files for what the service and the engine's process print.
    """
    from glimmer.renderer import load_renderer
    from glimmer.retrieval import retrieval_service
    from glimmer.retrieval.index import served_ef_search
    from glimmer.retrieval.leftovers import remove_leftovers
    from glimmer.search_r1.prompt import SEARCH_TOOL
    from glimmer.search_r1.recipe import rollouter_config

    chosen = read_questions(questions)
    shared = {  # what both evaluations have in common; `compare` refuses unequal hashes
        "evaluation": dict(settings),
        "search": decisive(search),
        "renderer": dict(renderer),
        "index": sha256_file(index / "index.json"),
        "ef_search": served_ef_search(index, retrieval.get("ef_search")),
    }
    if settings["engine"] == "vllm":
        shared["titan"] = {key: titan[key] for key in VLLM_DECISIVE}
    settings_hash = sha256_json(shared)
    identity = sha256_json(
        {**shared, "threads": threads, "code": code}
        | {"checkpoint": sha256_files(checkpoint, "*.safetensors")}
        | {"questions": sha256_file(questions)}
    )
    native = load_renderer(checkpoint, renderer, tools=[SEARCH_TOOL])
    kept = Kept(out, identity, first_pass(chosen, settings), timings=timings)
    again = Kept(repeats, identity, repeated_passes(chosen, settings))

    def whole(question: Question, answered: Answered) -> tuple[dict, int, int]:
        row = record(question, answered.rollouts, native, settings_hash=settings_hash)
        samples = [row, *row.get("samples", [])]
        row["timing"] = timing(answered.rollouts, answered.seconds)
        return row, *(sum(s[k] for s in samples) for k in ("failed_searches", "searches"))

    async def run(url: str, sampler: Sampler) -> None:
        rollouter = rollouter_config(
            search=search,
            search_url=url,
            train_questions=questions,
            heldout_questions=questions,
            search_token_env=retrieval.get("token_env"),
        ).build()
        rollouter.on_rollout_end = sampler.leave

        async def answer(batch: Batch) -> list[Answered]:
            sampling = sampler.sampling(
                temperature=settings["temperature"],
                max_tokens=search["max_new_tokens"],
                seed=batch.seed,
                stop_token_ids=tuple(native.get_stop_token_ids()),
            )
            return await answer_batch(rollouter, sampler, batch, sampling, native)

        allowed = search["max_failed_fraction"]
        try:
            await kept.fill(answer, whole, allowed, what=f"evaluate {out.stem}")
            first = {row["id"]: row for row in kept.rows}

            def short(question: Question, answered: Answered) -> tuple[dict, int, int]:
                row = record(question, answered.rollouts[:1], native, settings_hash=settings_hash)
                return repeat_row(row, first[question.id]), row["failed_searches"], row["searches"]

            await again.fill(answer, short, allowed, what=f"repeat {out.stem}")
        finally:
            await rollouter.close()
            await sampler.close()

    if kept.missing or again.missing:
        with (
            retrieval_service(
                retrieval, index=index, corpus=corpus, topk=search["topk"], log=service_log
            ) as url,
            open_sampler(
                settings["engine"], checkpoint, threads=threads, titan=titan, log=engine_log
            ) as sampler,
        ):
            asyncio.run(run(url, sampler))
    else:
        remove_leftovers()  # killed after its last batch: no service comes that would
    again.finish()
    kept.finish()


async def answer_batch(
    rollouter: Any, sampler: Sampler, batch: Batch, sampling: Any, renderer: Any
) -> list[Answered]:
    """The rollouts of each question of a batch, all of them at the same time. A rollout that
    raises comes back as one that crashed."""
    sampler.begin(len(batch.questions) * batch.samples)
    start = time.monotonic()

    async def ask(place: int, question: Question) -> Answered:
        group = await rollouter.run_group_rollouts(
            generate_fn=sampler.generate,
            sample=question,
            group_id=batch.group + place,
            group_size=batch.samples,
            sampling=sampling,
            renderer=renderer,
        )
        return Answered(group.rollouts, time.monotonic() - start)

    return await asyncio.gather(*(ask(k, question) for k, question in enumerate(batch.questions)))


def record(
    question: Question, rollouts: Sequence[Any], renderer: Any, *, settings_hash: str
) -> dict:
    """The record of a question's rollouts (see `glimmer.heldout.records` for the schema).

    Args:
        rollouts: TitanRL's, at least one; the first is the one that is compared, the others stand
            under `samples`.
        renderer: its tokenizer turns token ids into text.
        settings_hash: of what both evaluations share.
    """
    first, *others = (_sample(question, rollout, renderer) for rollout in rollouts)
    turns = first["turns"]
    row = {
        "id": question.id,
        "question": question.question,
        "golden_answers": list(question.golden_answers),
        "type": question.type,
        "dataset": question.dataset,
        "hops": question.hops,
        **first,
        "hashes": {
            "question": sha256_json([question.question, list(question.golden_answers)]),
            "settings": settings_hash,
            # A rollout that crashed in its first turn has none; `compare` passes over it.
            "prompt": sha256_json(turns[0]["prompt_ids"]) if turns else None,
        },
    }
    return row | {"samples": others} if others else row


def timing(rollouts: Sequence[Any], seconds: float) -> dict[str, Any]:
    """What the clock said of a question's rollouts (see `glimmer.heldout.timings`)."""
    searches = [
        message["search"]["seconds"]
        for rollout in rollouts
        for turn in rollout.turns
        for message in turn.env_messages
        if "search" in message
    ]
    tokens = (len(t.completion_token_ids) for r in rollouts for t in r.turns)
    return {
        "seconds": round(seconds, 4),
        "search_seconds": round(sum(searches), 4),
        "tokens": sum(tokens),
    }


def repeat_row(row: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """What a further pass keeps of a record; `same_tokens`: every turn sampled the tokens of the
    first pass."""
    tokens = [[turn["completion_ids"] for turn in r["turns"]] for r in (row, first)]
    return {
        "id": row["id"],
        "outcome": row["outcome"],
        "prediction": row["prediction"],
        "scores": row["scores"],
        "same_tokens": tokens[0] == tokens[1],
    }


def _sample(question: Question, rollout: Any, renderer: Any) -> dict[str, Any]:
    """One rollout: how it ended, its scores and its turns."""
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
    return {
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
    }


def _tool_result(message: Mapping[str, Any]) -> dict[str, Any]:
    """A tool message's part of the record. Times are left out: records are reproducible."""
    search = message.get("search")
    if search is None:
        return {"query": None, "passages": [], "error": message["content"]}
    passages = [{**p, "score": round(float(p["score"]), 6)} for p in search["passages"]]
    return {"query": search["query"], "passages": passages, "error": search["error"]}
