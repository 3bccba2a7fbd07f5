"""The evaluation with a sampler of the test's own: every question counts, passes, resumption."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

import pytest

from glimmer.errors import DataError
from glimmer.files import read_jsonl, write_jsonl
from glimmer.heldout import compare
from glimmer.heldout import evaluation as stage
from glimmer.heldout.evaluation import evaluate
from glimmer.heldout.timings import read_timings, summary
from glimmer.renderer import load_renderer
from glimmer.search_r1.prompt import SEARCH_TOOL
from glimmer.titanrl import ensure_importable

ensure_importable()

from torchtitan.experiments.rl.types import Completion  # noqa: E402

CHECKPOINT = Path(__file__).parents[2] / "resources/tiny_glimmer"
RENDERER = {
    "implementation": "glimmer",
    "current_date": "2026-08-14",
    "knowledge_cutoff": "2026-01-04",
    "reasoning_strength": "high",
}
SEARCH = {
    "topk": 3,
    "timeout_s": 1,
    "max_retries": 0,
    "max_failed_fraction": 0.2,
    "max_turns": 3,
    "max_new_tokens": 16,
    "max_rollout_tokens": 1200,
}
SETTINGS = {
    "engine": "local",
    "questions": 12,
    "datasets": None,
    "ids": None,
    "seed": 3,
    "temperature": 0.0,
    "samples": 1,
    "batch": 4,
    "repeats": 3,
    "repeat_questions": 6,
}


@dataclass(frozen=True)
class Sampling:
    temperature: float
    max_tokens: int
    seed: int
    stop_token_ids: tuple


class Scripted:
    """A sampler that answers by a function of (question, rollouts of the batch, seed)."""

    def __init__(self, answer):
        self.answer, self.rollouts, self.left, self.begun = answer, 0, 0, []
        self.tokenizer = load_renderer(CHECKPOINT, RENDERER, tools=[SEARCH_TOOL]).tokenizer

    def sampling(self, **settings):
        return Sampling(**settings)

    def begin(self, rollouts):
        assert self.left == self.rollouts  # the batch before has ended
        self.rollouts, self.left = rollouts, 0
        self.begun.append(rollouts)

    def leave(self):
        self.left += 1

    async def close(self):
        pass

    async def generate(self, prompt_token_ids, *, sampling_config, request_id, **_):
        text = self.tokenizer.decode(prompt_token_ids, skip_special_tokens=False)
        question = text.rsplit("Question: ")[-1].split("?")[0]
        said = self.answer(question.split()[-1], self.rollouts, sampling_config.seed)
        ids = self.tokenizer.encode(f" to=user<|message|>{said}<|eot|>", add_special_tokens=False)
        return Completion(
            min_policy_version=0,
            max_policy_version=0,
            request_id=request_id,
            token_ids=ids,
            token_logprobs=[-0.5] * len(ids),
            finish_reason="stop",
        )


@pytest.fixture
def asked(tmp_path):
    path = tmp_path / "questions.jsonl"
    rows = [
        {"id": f"q{i}", "question": f"Who wrote {i}?", "golden_answers": [f"yes {i}"], "hops": 1}
        for i in range(12)
    ]
    write_jsonl(path, rows)
    return path


@pytest.fixture
def run(tmp_path, asked, monkeypatch):
    """Evaluate with an answer function; the records and the repeats."""
    (tmp_path / "index").mkdir()
    (tmp_path / "index/index.json").write_text("{}")

    def start(answer, *, when="before", **settings):
        sampler = Scripted(answer)
        monkeypatch.setattr(stage, "open_sampler", lambda *_, **__: contextlib.nullcontext(sampler))
        monkeypatch.setattr(
            "glimmer.retrieval.launch.retrieval_service",
            lambda *_, **__: contextlib.nullcontext("http://127.0.0.1:9/retrieve"),
        )
        out, repeats = tmp_path / f"{when}.jsonl", tmp_path / f"{when}.repeats.jsonl"
        evaluate(
            checkpoint=CHECKPOINT,
            questions=asked,
            index=tmp_path / "index",
            corpus=tmp_path / "corpus.jsonl",
            out=out,
            repeats=repeats,
            timings=tmp_path / f"{when}.timings.jsonl",
            settings=SETTINGS | settings,
            search=SEARCH,
            retrieval={},
            renderer=RENDERER,
            titan={},
            threads=1,
            code="c",
            service_log=tmp_path / "log",
            engine_log=tmp_path / "log",
        )
        rows = [[row for _, row in read_jsonl(path)] for path in (out, repeats)]
        assert not any("timing" in row for row in rows[0])
        assert not list(tmp_path.glob(".*.part"))
        return *rows, sampler

    return start


def right(number, *_):
    return f"yes {number}"


def test_every_question_has_a_record_and_one_outcome(run, tmp_path):
    """Fault 27: a rollout that raises is a question answered wrong, not one left out."""

    def answer(number, *_):
        if int(number) % 4 == 0:
            raise RuntimeError("the engine is gone")
        return f"yes {number}" if int(number) % 4 == 1 else "no"

    rows, _, _ = run(answer, repeats=1)
    assert [row["id"] for row in rows] == [f"q{i}" for i in range(12)]
    assert [row["outcome"] for row in rows] == ["crashed", "correct", "wrong", "wrong"] * 3
    run(right, when="after", repeats=1)
    found = compare(tmp_path / "before.jsonl", tmp_path / "after.jsonl", seed=0, resamples=100)
    assert found["measured"]["questions"] == 12
    assert found["measured"]["before"]["exact_match"] == 3 / 12
    assert found["measured"]["outcomes"]["crashed"] == {"correct": 3}


def test_a_service_killed_after_the_last_batch_leaves_nothing(run, tmp_path, monkeypatch):
    """All is answered, so no service comes that would remove what the killed one left."""
    monkeypatch.setattr(stage.Kept, "finish", lambda self: (_ for _ in ()).throw(RuntimeError))
    with pytest.raises(RuntimeError):
        run(right, repeats=1)
    monkeypatch.undo()
    left = tmp_path / "t/glimmer-metrics-dead"
    left.mkdir(parents=True)
    (left / ".lock").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    _, _, sampler = run(lambda *_: "never asked", repeats=1)
    assert sampler.begun == [] and not left.exists()


def test_both_evaluations_ask_the_same_questions(run):
    """Fault 26: nothing is an iterator that the second evaluation continues."""
    first, _, _ = run(right)
    again, _, _ = run(lambda *_: "no", when="after")
    assert [r["id"] for r in first] == [r["id"] for r in again]
    assert [r["hashes"] for r in first] == [r["hashes"] for r in again]
    assert {r["hops"] for r in first} == {1}


def test_answers_that_depend_on_the_batch_show_in_the_noise_floor(run, tmp_path):
    """Fault 28: temperature 0 that varies with the batch's size is measured, not believed."""

    def answer(number, rollouts, _):
        return f"yes {number}" if rollouts == 4 or int(number) % 2 else "no"

    for when in ("before", "after"):
        _, repeats, sampler = run(answer, when=when)
        assert len(repeats) == 12 and {row["pass"] for row in repeats} == {1, 2}
        assert sampler.begun == [4, 4, 4, 2, 2, 2, 1, 1, 1, 1, 1, 1]
    paths = [tmp_path / f"{when}.jsonl" for when in ("before", "after")]
    files = tuple(tmp_path / f"{when}.repeats.jsonl" for when in ("before", "after"))
    noise = compare(*paths, seed=0, resamples=100, repeats=files)["measured"]["noise"]
    even = sum(int(row["id"][1:]) % 2 == 0 for row in repeats) // 2
    assert even and noise["before"]["changed"] == even == noise["before"]["other_tokens"]
    assert noise["before"]["correct"] == [6, 6 - even, 6 - even]
    assert noise["questions"] > 0 and not noise["above"]


def test_a_sampler_that_keeps_its_word_has_no_noise(run, tmp_path):
    for when in ("before", "after"):
        _, repeats, _ = run(right, when=when)
        assert all(row["same_tokens"] for row in repeats)
    paths = [tmp_path / f"{when}.jsonl" for when in ("before", "after")]
    files = tuple(tmp_path / f"{when}.repeats.jsonl" for when in ("before", "after"))
    noise = compare(*paths, seed=0, resamples=100, repeats=files)["measured"]["noise"]
    assert noise["questions"] == 0 and noise["before"]["changed"] == 0
    assert 0 < noise["at_most"] < 1 and noise["ratio"] is None


def test_several_samples_a_question(run, tmp_path):
    def answer(number, _, seed):
        return f"yes {number}" if seed == 3 or int(number) < 6 else "no"

    for when in ("before", "after"):
        rows, repeats, _ = run(answer, when=when, samples=3, temperature=1.0)
        assert all(len(row["samples"]) == 2 for row in rows)
        assert [s["outcome"] for s in rows[11]["samples"]] == ["wrong", "wrong"]
        assert rows[11]["outcome"] == "correct"
    paths = [tmp_path / f"{when}.jsonl" for when in ("before", "after")]
    found = compare(*paths, seed=0, resamples=100)["measured"]["samples"]
    assert found["samples"] == 3 and list(found["pass_at"]) == ["1", "2", "3"]
    assert found["pass_at"]["1"]["before"] == pytest.approx((6 * 3 + 6) / 36)
    assert found["pass_at"]["3"]["before"] == 1.0
    assert {row["pass"] for row in repeats} == {1, 2}


def test_an_interrupted_evaluation_goes_on(run, tmp_path):
    """Finished batches are not asked again, in the first pass and in the repeated ones."""
    whole = run(right)[:2]
    for path in tmp_path.glob("before*.jsonl"):
        path.unlink()
    left = {"n": 15}

    class Gone(BaseException):
        pass

    def dying(number, *_):
        left["n"] -= 1
        if not left["n"]:
            raise Gone
        return f"yes {number}"

    with pytest.raises(Gone):
        run(dying)
    seen = []

    def counting(number, *_):
        seen.append(number)
        return f"yes {number}"

    again = run(counting)[:2]
    assert again == whole and len(seen) == 12 - 2  # 12 of the first pass and one batch are there
    timed = read_timings(tmp_path / "before.timings.jsonl")
    assert list(timed) == [row["id"] for row in whole[0]]


def test_what_the_clock_said_stands_beside_the_records(run, tmp_path):
    rows, _, _ = run(right, repeats=1)
    timed = read_timings(tmp_path / "before.timings.jsonl")
    assert list(timed) == [row["id"] for row in rows]
    for row in rows:
        mine = timed[row["id"]]
        assert mine["tokens"] == sum(len(turn["completion_ids"]) for turn in row["turns"]) > 0
        assert mine["seconds"] > 0 and mine["search_seconds"] == 0
    found = summary(timed)
    assert found["questions"] == 12 and found["seconds"]["median"] <= found["seconds"]["largest"]
    path = tmp_path / "before.timings.jsonl"
    path.write_text(path.read_text() + '{"id": "x", "seconds": "long"}\n')
    with pytest.raises(DataError, match=r"timings\.jsonl, line 13: expected a question's id"):
        read_timings(path)
