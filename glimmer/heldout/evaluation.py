"""Held-out evaluation: one record a question, whatever became of it, and repeated passes.

In: a checkpoint and the run's chosen questions. Out: `<when>.jsonl`, one record a question (fields:
`glimmer.heldout.records`), and `<when>.repeats.jsonl`, what further passes over the same questions
gave (`glimmer.heldout.noise`). Batches have a fixed composition, so a record does not depend on
what ran beside it or on where an interrupted run went on; the repeated passes have another order
and smaller batches, so that they show what composition does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glimmer.assets import Question, read_questions
from glimmer.errors import DataError
from glimmer.files import read_jsonl, sha256_file, sha256_files, sha256_json
from glimmer.heldout.samplers import VLLM_DECISIVE, Sampler, open_sampler
from glimmer.logs import get_logger
from glimmer.operational import decisive
from glimmer.progress import Progress

logger = get_logger(__name__)


@dataclass(frozen=True)
class Batch:
    """Questions that are answered together.

    Attributes:
        number: of the pass; 0 is the one that is compared.
        group: TitanRL's group id of the first question; the others follow.
        questions: at least one.
        samples: rollouts of each question.
        seed: of the sampling.
    """

    number: int
    group: int
    questions: list[Question]
    samples: int
    seed: int


def first_pass(questions: Sequence[Question], settings: Mapping[str, Any]) -> list[Batch]:
    """The pass that is compared: all questions in their order, `evaluation.samples` of each."""
    return _batches(
        questions, settings["batch"], number=0, samples=settings["samples"], seed=settings["seed"]
    )


def repeated_passes(questions: Sequence[Question], settings: Mapping[str, Any]) -> list[Batch]:
    """The further passes of `evaluation.repeats`, each over the same seeded subset of
    `evaluation.repeat_questions` in an order and with batches of its own, one sample a question."""
    count = settings["repeat_questions"]
    subset = list(questions)
    if count is not None and count < len(subset):
        places = random.Random(f"{settings['seed']}/repeats").sample(range(len(subset)), count)
        subset = [subset[place] for place in sorted(places)]
    batches: list[Batch] = []
    for number in range(1, settings["repeats"]):
        order = subset[:]
        random.Random(f"{settings['seed']}/repeats/{number}").shuffle(order)
        size = max(1, min(settings["batch"], len(order)) // (number + 1))
        seed = settings["seed"] + settings["samples"] * number
        batches += _batches(order, size, number=number, samples=1, seed=seed)
    return batches


def _batches(
    questions: Sequence[Question], size: int, *, number: int, samples: int, seed: int
) -> list[Batch]:
    return [
        Batch(number, start, list(questions[start : start + size]), samples, seed)
        for start in range(0, len(questions), size)
    ]


def evaluate(
    *,
    checkpoint: Path,
    questions: Path,
    index: Path,
    corpus: Path,
    out: Path,
    repeats: Path,
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
    """Write `out`, one JSON line a question, and `repeats`, one a question and further pass.

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
    kept = _Kept(out, identity, first_pass(chosen, settings))
    again = _Kept(repeats, identity, repeated_passes(chosen, settings))

    def whole(question: Question, rollouts: Sequence[Any]) -> tuple[dict, int, int]:
        row = record(question, rollouts, native, settings_hash=settings_hash)
        samples = [row, *row.get("samples", [])]
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

        async def answer(batch: Batch) -> list[Any]:
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

            def short(question: Question, rollouts: Sequence[Any]) -> tuple[dict, int, int]:
                row = record(question, rollouts[:1], native, settings_hash=settings_hash)
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
    again.finish()
    kept.finish()


async def answer_batch(
    rollouter: Any, sampler: Sampler, batch: Batch, sampling: Any, renderer: Any
) -> list[list[Any]]:
    """The rollouts of each question of a batch, all of them at the same time. A rollout that
    raises comes back as one that crashed."""
    sampler.begin(len(batch.questions) * batch.samples)
    groups = await asyncio.gather(
        *(
            rollouter.run_group_rollouts(
                generate_fn=sampler.generate,
                sample=question,
                group_id=batch.group + place,
                group_size=batch.samples,
                sampling=sampling,
                renderer=renderer,
            )
            for place, question in enumerate(batch.questions)
        )
    )
    return [group.rollouts for group in groups]


class _Kept:
    """An output that grows batch by batch in a hidden file beside it and survives a kill."""

    def __init__(self, out: Path, identity: str, batches: Sequence[Batch]) -> None:
        self.out = out
        self.part = out.with_name(f".{out.name}.part")
        self.batches = list(batches)
        sizes = [len(batch.questions) for batch in self.batches]
        self.rows = finished(self.part, identity, sizes=sizes)
        self._total = sum(sizes)

    @property
    def missing(self) -> bool:
        return len(self.rows) < self._total

    def waiting(self) -> Iterator[Batch]:
        """The batches that are not there yet."""
        done = 0
        for batch in self.batches:
            done += len(batch.questions)
            if done > len(self.rows):
                yield batch

    async def fill(
        self,
        answer: Callable[[Batch], Any],
        to_row: Callable[[Question, Sequence[Any]], tuple[dict, int, int]],
        allowed: float,
        *,
        what: str,
    ) -> None:
        """Answer the batches that are missing; `to_row` gives a question's line, its failed
        searches and its searches.

        Raises:
            GlimmerError: more failed searches in a batch than `allowed`.
        """
        from glimmer.search_r1.outcome import check_failed_searches

        if not self.missing:
            return
        with (
            open(self.part, "a", encoding="utf-8") as handle,
            Progress(self._total, what, unit="q", done=len(self.rows)) as progress,
        ):
            for batch in list(self.waiting()):
                rollouts = await answer(batch)
                fresh = [to_row(q, r) for q, r in zip(batch.questions, rollouts, strict=True)]
                check_failed_searches(
                    sum(failed for _, failed, _ in fresh),
                    sum(searches for _, _, searches in fresh),
                    allowed=allowed,
                    where=f"questions {batch.group + 1} to {batch.group + len(fresh)}"
                    + (f" of repeated pass {batch.number}" if batch.number else ""),
                )
                rows = [row | {"pass": batch.number} if batch.number else row for row, *_ in fresh]
                handle.write("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows))
                handle.flush()
                os.fsync(handle.fileno())
                self.rows += rows
                progress.update(len(rows))

    def finish(self) -> None:
        """Put the whole output in its place."""
        final = self.out.with_name(f".{self.out.name}.whole")
        final.write_bytes(self.part.read_bytes().split(b"\n", 1)[1])
        os.replace(final, self.out)
        self.part.unlink()


def finished(part: Path, identity: str, *, sizes: Sequence[int]) -> list[Any]:
    """Records of the whole batches (of these sizes, in this order) that an interrupted run with
    this identity left; cuts the file back to them, or starts it anew."""
    header = json.dumps({"identity": identity}) + "\n"
    rows: list[Any] = []
    if part.exists():
        text = part.read_bytes()
        part.write_bytes(text[: text.rfind(b"\n") + 1])
        lines: list[Any] = []
        with contextlib.suppress(DataError):  # what stands before a damaged line counts
            lines.extend(value for _, value in read_jsonl(part))
        if lines and lines[0] == {"identity": identity}:
            whole = 0
            for size in sizes:
                if whole + size > len(lines) - 1:
                    break
                whole += size
            rows = lines[1 : 1 + whole]
    part.parent.mkdir(parents=True, exist_ok=True)
    body = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    part.write_text(header + body, encoding="utf-8")
    return rows


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
