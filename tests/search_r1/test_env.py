"""The search environment with a client of the test's own: no service, no model."""

import asyncio

import pytest
from renderers.base import ParsedToolCall, ToolCallParseStatus

from glimmer.assets import Question
from glimmer.retrieval import SearchTimeout
from glimmer.search_r1.env import SearchEnv
from glimmer.search_r1.prompt import INSTRUCTION, SEARCH_TOOL, passages_to_text

QUESTION = Question(id="q", question="Who?", golden_answers=["Her"], type=None)


class Passage:
    id, title, text, score = "7", "A Title", "Its text.", 0.5
    contents = '"A Title"\nIts text.'


class Client:
    """Answers every query with one passage, or fails on those it is told to fail on."""

    def __init__(self, fail=()):
        self.queries, self.fail = [], fail

    async def search(self, query):
        self.queries.append(query)
        if query in self.fail:
            raise SearchTimeout("too slow", query=query, url="http://x/retrieve")
        return [Passage()]


def call(query="x", name="search", status=ToolCallParseStatus.OK, **arguments):
    arguments = arguments or {"query": query}
    return ParsedToolCall(raw="", name=name, arguments=arguments, status=status)


def step(calls, client=None):
    env = SearchEnv.Config().build(env_input=QUESTION, client=client or Client())
    message = {"role": "assistant", "content": "", "tool_calls": calls}
    return asyncio.run(env.step(message))


def test_opening_has_the_question_and_the_tool():
    env = SearchEnv.Config().build(env_input=QUESTION, client=Client())
    opening = asyncio.run(env.init())
    assert opening.init_prompt_messages == [{"role": "user", "content": INSTRUCTION + "Who?"}]
    assert opening.tools == [SEARCH_TOOL]


def test_an_answer_without_calls_ends_the_rollout():
    assert step([]).done


def test_each_call_gets_a_named_tool_message_in_order():
    client = Client()
    found = step([call("a"), call("b")], client)
    assert client.queries == ["a", "b"] and not found.done
    assert [m["name"] for m in found.env_messages] == ["search", "search"]
    assert found.env_messages[0]["content"] == 'Doc 1(Title: "A Title") Its text.\n'
    assert found.env_messages[1]["search"]["query"] == "b"
    assert found.env_rewards == {"searches": 2.0, "failed_searches": 0.0, "invalid_calls": 0.0}


@pytest.mark.parametrize("query", ["1984", "true", "null", '["a","b"]', "  spaced  "])
def test_query_text_reaches_the_tool_as_it_is(query):
    """Fault 10."""
    client = Client()
    step([call(query)], client)
    assert client.queries == [query]


def test_a_failed_search_ends_the_rollout_and_is_counted():
    """Faults 2 and 38: its text is no passage, and the model never reads it."""
    found = step([call("good"), call("bad")], Client(fail={"bad"}))
    assert found.done
    assert found.env_rewards["failed_searches"] == 1.0
    failed = found.env_messages[1]
    assert failed["content"] == "" and "SearchTimeout" in failed["search"]["error"]


@pytest.mark.parametrize(
    "bad",
    [
        call(name="browse"),
        call(status=ToolCallParseStatus.UNCLOSED_BLOCK),
        call(other="x"),
        call(query="   "),
        ParsedToolCall(raw="", name=None, arguments=None),
        ParsedToolCall(raw="", name="search", arguments="text"),
    ],
)
def test_an_unusable_call_is_answered_and_counted_without_a_search(bad):
    client = Client()
    found = step([bad], client)
    assert client.queries == [] and not found.done
    assert found.env_messages[0]["content"].startswith("Error: ")
    assert found.env_rewards == {"searches": 0.0, "failed_searches": 0.0, "invalid_calls": 1.0}


def test_passages_are_laid_out_as_in_search_r1():
    assert passages_to_text([Passage(), Passage()]) == (
        'Doc 1(Title: "A Title") Its text.\nDoc 2(Title: "A Title") Its text.\n'
    )
