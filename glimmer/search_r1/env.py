"""The multi-turn search environment: a question in, tool calls answered over HTTP, an answer out.

A turn is one generation by the model. A turn with tool calls is answered by one `tool` message a
call; a turn without ends the rollout. `search.max_turns` counts turns, the answer included: 3
leaves room for two rounds of searches.

Each tool message carries, beside the text that the model reads, a `search` entry with what
happened: query, passages with scores, error, seconds. A failed search ends the rollout: its text
never reaches the model as if it were a passage, and nothing is learnt from it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from renderers.base import ParsedToolCall, ToolCallParseStatus

from glimmer.assets import Question
from glimmer.logs import get_logger
from glimmer.retrieval import SearchClient, SearchError
from glimmer.search_r1.prompt import SEARCH_TOOL, opening_messages, passages_to_text

from torchtitan.experiments.rl.environment import (  # isort: skip  (importable after prompt)
    MessageEnv,
    MessageEnvInitOutput,
    MessageEnvStepOutput,
)

logger = get_logger(__name__)


class SearchEnv(MessageEnv):
    """One rollout of one question."""

    @dataclass(kw_only=True, slots=True)
    class Config(MessageEnv.Config):
        """No settings: topk, timeout and URL belong to the client."""

    def __init__(self, config: Config, *, env_input: Question, client: SearchClient) -> None:
        self._question = env_input
        self._client = client

    async def init(self) -> MessageEnvInitOutput:
        return MessageEnvInitOutput(
            init_prompt_messages=opening_messages(self._question.question), tools=[SEARCH_TOOL]
        )

    async def step(self, completion_message: dict[str, Any]) -> MessageEnvStepOutput:
        calls: list[ParsedToolCall] = completion_message.get("tool_calls") or []
        if not calls:
            return MessageEnvStepOutput(done=True)
        messages = list(await asyncio.gather(*(self._answer(call) for call in calls)))
        failed = sum(m["search"]["error"] is not None for m in messages if "search" in m)
        invalid = sum("search" not in m for m in messages)
        return MessageEnvStepOutput(
            env_messages=messages,
            done=failed > 0,
            env_rewards={
                "searches": float(len(messages) - invalid),
                "failed_searches": float(failed),
                "invalid_calls": float(invalid),
            },
        )

    async def _answer(self, call: ParsedToolCall) -> dict[str, Any]:
        """The tool message for one call."""
        problem = _problem(call)
        if problem is not None:
            return {"role": "tool", "name": call.name or "search", "content": f"Error: {problem}"}
        query = call.arguments["query"]
        start = time.monotonic()
        try:
            passages, error = await self._client.search(query), None
            text = passages_to_text(passages)
        except SearchError as failure:
            logger.warning("search for %r failed: %s", query, failure)
            passages, error, text = [], f"{type(failure).__name__}: {failure}", ""
        found = [{"id": p.id, "title": p.title, "text": p.text, "score": p.score} for p in passages]
        return {
            "role": "tool",
            "name": "search",
            "content": text,
            "search": {
                "query": query,
                "passages": found,
                "error": error,
                "seconds": time.monotonic() - start,
            },
        }


def _problem(call: ParsedToolCall) -> str | None:
    """Why a call cannot be executed, in words for the model; None if it can."""
    if call.status not in (ToolCallParseStatus.OK, ToolCallParseStatus.UNKNOWN_TOOL):
        return f"the tool call could not be read ({call.status.value})."
    if call.name != SEARCH_TOOL["name"]:
        return f"there is no tool {call.name!r}; the only tool is 'search'."
    arguments = call.arguments if isinstance(call.arguments, dict) else {}
    query = arguments.get("query")
    if not isinstance(query, str) or not query.strip():
        return "search needs a parameter 'query' with text."
    return None
