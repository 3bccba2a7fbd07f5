"""Search-R1 by GRPO on TitanRL's parts, for both engines.

Deviations from the named algorithms:
- Search-R1 puts its search tags into the text; here the model's native tool calls are used.
- GRPO's KL term is left out (beta = 0), as in DAPO; the clip is DAPO's, 0.2 below and 0.28 above.
- The loss is the mean over all sampled tokens of the step, not over sequences.
- A rollout whose search failed counts for nothing: it is left out of its group's mean and spread,
  and its advantage is 0. A failing service must not teach.
- Groups with equal rewards are kept (advantage 0), so that a step always has the same number of
  prompts.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glimmer.assets import Question, read_questions
from glimmer.errors import ConfigError
from glimmer.retrieval import SearchClient
from glimmer.retrieval.settings import bearer_token
from glimmer.search_r1.env import SearchEnv
from glimmer.search_r1.outcome import judge

from torchtitan.config import Configurable  # isort: skip
from torchtitan.experiments.rl.environment import TokenEnv  # isort: skip
from torchtitan.experiments.rl.rollout.advantage import AdvantageEstimator  # isort: skip
from torchtitan.experiments.rl.rollout.rollouter import Rollouter  # isort: skip
from torchtitan.experiments.rl.rollout.types import Rollout, RolloutGroup  # isort: skip
from torchtitan.experiments.rl.rubrics import RewardFn, Rubric  # isort: skip

CONTROLS = ("none", "shuffled_rewards", "zero_advantages")


class QuestionDataset(Configurable):
    """An endless iterator over a question file: a fresh seeded order each epoch."""

    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        path: str
        """JSONL file of questions."""
        seed: int = 0
        """Decides the order; question k is the same for every run with this seed."""
        datasets: list[str] | None = None
        """Only questions of these data sets, of a file that holds several; None takes all."""

    def __init__(self, config: Config) -> None:
        self.questions = read_questions(Path(config.path))
        if config.datasets is not None:
            found = sorted({str(q.dataset) for q in self.questions})
            if missing := sorted(set(config.datasets) - set(found)):
                raise ConfigError(
                    f"training.datasets: found {', '.join(missing)}, expected among those of "
                    f"{config.path}: {', '.join(found)}. Correct the names, or set it to null."
                )
            self.questions = [q for q in self.questions if q.dataset in config.datasets]
        self._seed = config.seed
        self._position = 0
        self._epoch: tuple[int, list[Question]] | None = None

    def seek(self, position: int) -> None:
        """Continue at the given number of questions from the start of the first epoch."""
        self._position = position

    def __next__(self) -> Question:
        epoch, index = divmod(self._position, len(self.questions))
        if self._epoch is None or self._epoch[0] != epoch:
            order = self.questions[:]
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
            self._epoch = (epoch, order)
        self._position += 1
        return self._epoch[1][index]


class ExactMatchReward(RewardFn):
    """1 if the answer equals a golden answer after SQuAD normalisation, else 0."""

    @dataclass(kw_only=True, slots=True)
    class Config(RewardFn.Config):
        """Only the weight."""

    async def __call__(self, rollout: Rollout, env_input: Question) -> float:
        return judge(rollout, env_input.golden_answers).exact_match


class SearchAdvantage(AdvantageEstimator):
    """GRPO's group-relative advantage over the rollouts whose searches all worked."""

    @dataclass(kw_only=True, slots=True)
    class Config(AdvantageEstimator.Config):
        scale: float = 1.0
        """Factor on every advantage; 0 is the control that learns nothing."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.scale = config.scale

    def __call__(self, group: RolloutGroup) -> list[float]:
        """(r - mean) / (std + 1e-6), or without the division; in group order."""
        valid = [not failed_search(r) for r in group.rollouts]
        rewards = [r.reward for r, ok in zip(group.rollouts, valid, strict=True) if ok]
        if not rewards:
            return [0.0] * len(group.rollouts)
        mean = statistics.fmean(rewards)
        spread = statistics.pstdev(rewards) + 1e-6 if self.should_std_normalize else 1.0
        return [
            self.scale * (r.reward - mean) / spread if ok else 0.0
            for r, ok in zip(group.rollouts, valid, strict=True)
        ]


def failed_search(rollout: Rollout) -> bool:
    """Whether any search of the rollout ended in an error."""
    return any(turn.env_rewards.get("failed_searches") for turn in rollout.turns)


class SearchRollouter(Rollouter):
    """TitanRL's rollouter with one shared search client, telling when each rollout has ended."""

    @dataclass(kw_only=True, slots=True)
    class Config(Rollouter.Config):
        search_url: str
        """Retrieval service, up to and including `/retrieve`."""
        topk: int = 3
        """Passages a search."""
        timeout_s: float = 30.0
        """Seconds until a search has failed."""
        max_retries: int = 2
        """Further tries after a refused connection or a 5xx."""
        search_token_env: str | None = None
        """Environment variable that holds the service's token; never the token itself."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.client = SearchClient(
            config.search_url,
            topk=config.topk,
            timeout_s=config.timeout_s,
            max_retries=config.max_retries,
            token=bearer_token(config.search_token_env),
        )
        self.on_rollout_end: Callable[[], None] | None = None

    @property
    def train_dataset(self) -> QuestionDataset:
        """The training questions, to seek in on resume."""
        return self._train_dataset

    def make_env_group(self, *, sample: Question, group_size: int, renderer) -> list[TokenEnv]:
        return [
            self._token_env_config.build(
                message_env=self._message_env_config.build(env_input=sample, client=self.client),
                renderer=renderer,
            )
            for _ in range(group_size)
        ]

    async def _run_single_rollout(self, **kwargs) -> Rollout:
        try:
            return await super()._run_single_rollout(**kwargs)
        finally:
            if self.on_rollout_end is not None:
                self.on_rollout_end()

    async def close(self) -> None:
        """Close the HTTP session."""
        await self.client.close()


def rollouter_config(
    *,
    search: Mapping[str, Any],
    search_url: str,
    train_questions: Path,
    heldout_questions: Path,
    seed: int = 0,
    std_normalize: bool = True,
    advantage_scale: float = 1.0,
    datasets: list[str] | None = None,
    search_token_env: str | None = None,
) -> SearchRollouter.Config:
    """The rollouter of either engine, from the config section `search`."""
    return SearchRollouter.Config(
        train_dataset=QuestionDataset.Config(
            path=str(train_questions), seed=seed, datasets=datasets
        ),
        validation_dataset=QuestionDataset.Config(path=str(heldout_questions), seed=seed),
        rubric=Rubric.Config(reward_fns=[ExactMatchReward.Config()]),
        message_env=SearchEnv.Config(),
        token_env=TokenEnv.Config(
            max_rollout_tokens=search["max_rollout_tokens"],
            max_num_turns=search["max_turns"],
            # The client has its own timeout; this one only guards against a bug there.
            step_timeout_s=(search["max_retries"] + 2) * search["timeout_s"] + 60,
        ),
        advantage=SearchAdvantage.Config(should_std_normalize=std_normalize, scale=advantage_scale),
        search_url=search_url,
        topk=search["topk"],
        timeout_s=search["timeout_s"],
        max_retries=search["max_retries"],
        search_token_env=search_token_env,
    )


def job_rollouter(job: Any) -> SearchRollouter.Config:
    """The rollouter of a `glimmer.training.job.Job`."""
    return rollouter_config(
        search=job.search,
        search_url=job.search_url,
        train_questions=Path(job.train_questions),
        heldout_questions=Path(job.heldout_questions),
        seed=job.training["seed"],
        std_normalize=job.training["std_normalize"],
        datasets=job.training["datasets"],
        advantage_scale=0.0 if job.training["control"] == "zero_advantages" else 1.0,
        search_token_env=job.search_token_env,
    )
