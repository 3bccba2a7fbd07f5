"""The GPU engine's controller: real Monarch, torchstore and router, actors without a GPU."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("monarch", reason="the GPU stack (envs/train) is not installed here")
pytest.importorskip("vllm", reason="the GPU stack (envs/train) is not installed here")

from glimmer.config import read_yaml  # noqa: E402
from glimmer.errors import GlimmerError  # noqa: E402
from glimmer.training.job import Job  # noqa: E402

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
STEPS, PROMPTS, SAMPLES = 5, 2, 4
TITAN = {
    "python": None,
    "trainer_fsdp": 1,
    "trainer_tp": 1,
    "generator_tp": 1,
    "share_gpu": True,
    "activation_checkpoint": "none",
    "attention": "varlen",
    "context": 2048,
    "rows_per_batch": 2,
    "generator_memory_fraction": 0.3,
    "generator_tokens_per_step": 2048,
    "cudagraph": "off",
    "batch_invariant": True,
    "offpolicy_steps": 0,
    "loss_chunks": 4,
    "adam_on_host": False,
    "setup_timeout_s": 120,
    "step_timeout_s": 60,
}


def make_job(folder: Path, **titan) -> Path:
    config = read_yaml(ROOT / "config" / "config.yaml")
    questions = folder / "questions.jsonl"
    rows = [
        {"id": str(i), "question": f"Who directed film {i}?", "golden_answers": ["right"]}
        for i in range(7)
    ]
    questions.write_text("".join(json.dumps(r) + "\n" for r in rows))
    training = dict(config["training"], engine="titan", steps=STEPS, checkpoint_every=2)
    training |= {"prompts_per_step": PROMPTS, "samples_per_prompt": SAMPLES}
    work = folder / "work"
    work.mkdir()
    job = Job(
        checkpoint=str(ROOT / "resources" / "tiny_glimmer"),
        work=str(work),
        tensorboard=str(folder / "tensorboard"),
        train_questions=str(questions),
        heldout_questions=str(questions),
        search_url="",
        training=training,
        search=dict(config["search"]),
        renderer=dict(config["renderer"]),
        titan=TITAN | titan,
    )
    job.write(folder / "job.json")
    return folder / "job.json"


def run(job: Path, **env: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(ROOT), str(HERE)])
    return subprocess.run(
        [sys.executable, str(HERE / "titan_fake_run.py"), str(job)],
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def rows(folder: Path) -> list[dict]:
    return [json.loads(x) for x in (folder / "work" / "metrics.jsonl").read_text().splitlines()]


def requests(folder: Path) -> dict[str, list]:
    lines = (folder / "work" / "requests.jsonl").read_text().splitlines()
    return {r[1]: r for r in map(json.loads, lines)}


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("titan")
    done = run(make_job(folder))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return folder


def test_one_row_a_step_under_the_local_engines_names(undisturbed):
    found = rows(undisturbed)
    assert [r["step"] for r in found] == list(range(1, STEPS + 1))
    for row in found:
        assert row["searches"] == 1.0 and row["turns"] == 2.0
        assert 0.0 < row["reward"] < 1.0  # by the requests' seeds
        assert row["entropy"] == pytest.approx(0.5)
        assert row["grad_norm"] == 1.0 and row["failed_searches"] == 0
        # That of the step before: the first sync is made before the first step and not timed.
        assert (row["seconds_sync"] > 0) == (row["step"] > 1)
        assert (row["trainer_peak_gib"], row["trainer_allocated_gib"]) == (0.5, 0.25)


def test_every_request_has_a_seed_of_its_own(undisturbed):
    seeds = [r[2] for r in requests(undisturbed).values()]
    assert len(set(seeds)) == len(seeds)


def test_on_policy_rollouts_come_from_the_weights_of_their_step(undisturbed):
    for name, (version, *_) in requests(undisturbed).items():
        group = int(name.split("/")[0].removeprefix("group="))
        if group < STEPS * PROMPTS:  # the buffer has begun on the next ones
            assert version == group // PROMPTS


def test_off_policy_rollouts_are_at_most_as_old_as_allowed(tmp_path):
    """Every step is made, from rollouts of the weights of one or two steps before."""
    done = run(make_job(tmp_path, offpolicy_steps=2))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert [r["step"] for r in rows(tmp_path)] == list(range(1, STEPS + 1))
    ages = [
        group // PROMPTS - version
        for name, (version, *_) in requests(tmp_path).items()
        if (group := int(name.split("/")[0].removeprefix("group="))) < STEPS * PROMPTS
    ]
    assert 0 < max(ages) <= 2


@pytest.mark.parametrize(
    ("titan", "stops"),
    [
        ({"batch_invariant": True, "offpolicy_steps": 0}, True),
        ({"batch_invariant": True, "offpolicy_steps": 1}, False),
        ({"batch_invariant": False, "offpolicy_steps": 0}, False),
    ],
)
def test_any_difference_of_a_logprob_stops_a_run_that_should_have_none(titan, stops):
    from glimmer.training.titan.controller import check_agreement

    check_agreement({"step": 3.0, "logprob_diff_max": 0.0}, titan)
    expected = (
        pytest.raises(GlimmerError, match="step 3: trainer and generator differ by 1e-07")
        if stops
        else contextlib.nullcontext()
    )
    with expected:
        check_agreement({"step": 3.0, "logprob_diff_max": 1e-7}, titan)


def test_a_step_with_equal_rewards_alone_may_leave_the_weights(tmp_path):
    """The first steps of a model that knows little: no gradient, and Adam has no momentum yet."""
    done = run(make_job(tmp_path), FAKE_TRAINER_NORMS="0,0")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert [r["grad_norm"] for r in rows(tmp_path)[:3]] == [0.0, 0.0, 1.0]


def test_a_gradient_that_is_not_a_number_is_named(tmp_path):
    """TitanRL leaves such a metric out."""
    done = run(make_job(tmp_path), FAKE_TRAINER_NORMS="1,nan")
    assert done.returncode != 0
    told = json.loads((tmp_path / "work" / "failure.json").read_text())
    assert told["message"].startswith("step 2: the gradient norm is nan. Lower training.")


def test_both_sides_hold_the_same_weights_after_each_sync(undisturbed):
    for version in range(STEPS + 1):
        sides = [
            json.loads((undisturbed / "work" / "sync" / f"{role}-{version}.json").read_text())
            for role in ("trainer", "generator")
        ]
        assert sides[0]["digest"] == sides[1]["digest"]


def test_a_killed_run_goes_on_with_the_same_questions_and_seeds(undisturbed, tmp_path):
    job = make_job(tmp_path)
    first = run(job, FAKE_TRAINER_DIES_AT_STEP="4")
    assert first.returncode != 0
    assert [r["step"] for r in rows(tmp_path)] == [1, 2, 3]
    second = run(job)
    assert second.returncode == 0, second.stdout[-3000:] + second.stderr[-6000:]
    timeless = [
        {k: v for k, v in r.items() if "seconds" not in k and k not in ("time", "tokens_per_s")}
        for r in rows(tmp_path)
    ]
    assert timeless == [
        {k: v for k, v in r.items() if "seconds" not in k and k not in ("time", "tokens_per_s")}
        for r in rows(undisturbed)
    ]
    wanted, found = requests(undisturbed), requests(tmp_path)
    for group in range(STEPS * PROMPTS):
        for name in (n for n in wanted if n.startswith(f"group={group}/")):
            assert found[name][1:] == wanted[name][1:]


def test_a_run_killed_off_policy_asks_each_question_once(tmp_path):
    """Group 0 takes until step 2 is done, others are trained on before it; then the run is killed,
    and goes on with group 0 and without those others."""
    job = make_job(tmp_path, offpolicy_steps=8)  # a window of 5 groups
    first = run(job, FAKE_TRAINER_DIES_AT_STEP="4", FAKE_GENERATOR_HOLDS_GROUP="0")
    assert first.returncode != 0
    second = run(job)
    assert second.returncode == 0, second.stdout[-3000:] + second.stderr[-6000:]
    lines = (tmp_path / "work" / "groups.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    assert sorted(steps[0]["groups"] + steps[1]["groups"]) == [1, 2, 3, 4]
    trained = [group for row in steps for group in row["groups"]]
    assert 0 in trained and len(set(trained)) == len(trained) == STEPS * PROMPTS
    assert max(trained) < STEPS * PROMPTS + 5
    assert [r["groups_consumed"] for r in rows(tmp_path)] == [
        PROMPTS * (step + 1) for step in range(STEPS)
    ]


def test_export_carries_over_what_the_text_model_does_not_own(undisturbed, tmp_path):
    from safetensors.torch import load_file

    from glimmer.training.titan.export import export

    source = ROOT / "resources" / "tiny_glimmer"
    out = tmp_path / "final"
    export(undisturbed / "work" / "checkpoint" / f"step-{STEPS}", source, out)
    old, new = (load_file(p / "model.safetensors") for p in (source, out))
    assert set(old) == set(new)
    assert all((old[k] == new[k]).all() for k in old)
    assert (out / "chat_template.jinja").read_bytes() == (
        source / "chat_template.jinja"
    ).read_bytes()
    shutil.rmtree(out)
