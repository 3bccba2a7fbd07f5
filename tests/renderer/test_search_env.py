"""TitanRL's TokenEnv around the project's own search environment: which text is searched for."""

from __future__ import annotations

import asyncio

import pytest

from glimmer.assets import Question
from glimmer.search_r1.env import SearchEnv
from glimmer.search_r1.prompt import SEARCH_TOOL

from .helpers import TO_SEARCH, block, make_renderer
from .test_token_env import TokenEnv, completion

QUERIES = ["1984", "true", "null", '["a","b"]', "NaN", "1e999", "  two\n spaces ", '{"q": 1}']


class Client:
    def __init__(self):
        self.queries = []

    async def search(self, query):
        self.queries.append(query)
        return []


def step(renderer, text):
    """(what was searched for, the step's output) after one completion."""

    async def run():
        question = Question(id="q", question="Who?", golden_answers=["A"])
        client = Client()
        messages = SearchEnv.Config().build(env_input=question, client=client)
        env = TokenEnv.Config().build(message_env=messages, renderer=renderer)
        await env.init()
        output = await env.step(completion(renderer.tokenizer.encode(text)))
        await env.close()
        return client.queries, output

    return asyncio.run(run())


@pytest.mark.parametrize("query", QUERIES)
def test_queries_reach_the_search_as_they_were_written(query, tokenizer):
    """Fault 10, all the way: TokenEnv passes the parser no tools, the config has them."""
    renderer = make_renderer(tokenizer, [SEARCH_TOOL])
    assert step(renderer, f"{TO_SEARCH}{block(query)}<|eot|>")[0] == [query]


def test_values_are_typed_by_the_schema_that_the_config_carries(tokenizer):
    properties = SEARCH_TOOL["parameters"]["properties"]
    parameters = {
        **SEARCH_TOOL["parameters"],
        "properties": {**properties, "k": {"type": "integer"}},
    }
    renderer = make_renderer(tokenizer, [{**SEARCH_TOOL, "parameters": parameters}])
    more = '</atem:parameter>\n<atem:parameter name="k">7'
    queries, output = step(renderer, f"{TO_SEARCH}{block('1984' + more)}<|eot|>")
    (call,) = output.completion_message["tool_calls"]
    assert queries == ["1984"] and call.arguments == {"query": "1984", "k": 7}
