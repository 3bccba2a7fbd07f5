"""No exception of a lower layer leaves the client unmapped."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys

import aiohttp
import pytest

from glimmer.errors import GlimmerError
from glimmer.retrieval import SearchClient, errors
from glimmer.retrieval.errors import SearchError, SearchRefused, SearchTimeout

CLIENT_ERRORS = [
    kind
    for _, kind in inspect.getmembers(aiohttp, inspect.isclass)
    if issubclass(kind, aiohttp.ClientError)
]


@pytest.mark.parametrize(
    "kind", [*CLIENT_ERRORS, ConnectionResetError, BrokenPipeError, TimeoutError]
)
def test_lower_layer_exceptions_are_mapped(kind, monkeypatch):
    # Some want arguments that only aiohttp can give; what matters is their type.
    raised = kind.__new__(kind)
    monkeypatch.setattr(kind, "__str__", lambda self: "lower layer", raising=False) if (
        kind in CLIENT_ERRORS
    ) else None

    def post(*_, **__):
        raise raised

    async def main():
        async with SearchClient("http://127.0.0.1:1/retrieve", topk=1, max_retries=0) as client:
            monkeypatch.setattr(client, "_opened", lambda: type("S", (), {"post": post})())
            with pytest.raises(SearchError) as caught:
                await client.search("a")
            return caught.value, client.counts["failed"]

    error, failed = asyncio.run(main())
    expected = SearchTimeout if kind is TimeoutError else SearchRefused
    assert type(error) is expected and failed == 1 and error.__cause__ is raised


def test_tree():
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    assert all(issubclass(kind, GlimmerError) for kind in kinds)
    leaves = {kind.__name__ for kind in kinds if issubclass(kind, SearchError)} - {"SearchError"}
    assert leaves == {"SearchTimeout", "SearchRefused", "SearchHTTPError", "SearchProtocolError"}


def test_client_needs_neither_torch_nor_faiss():
    code = (
        "import sys; from glimmer.retrieval import SearchClient, retrieval_service;"
        "assert not {'torch', 'faiss', 'transformers'} & set(sys.modules), sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
