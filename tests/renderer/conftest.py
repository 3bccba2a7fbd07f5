"""A small tokenizer with Muse Glimmer's special tokens, made anew from a few texts."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from glimmer.bundled.tokenizer import save_tokenizer, train_tokenizer
from glimmer.renderer import CHAT_TEMPLATE
from glimmer.search_r1.prompt import SEARCH_TOOL

from .helpers import a_tool, make_renderer


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A checkpoint folder without weights: tokenizer and chat template."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = train_tokenizer([CHAT_TEMPLATE, "assistant to=search hello world"], vocab_size=700)
    save_tokenizer(tokenizer, folder, chat_template=CHAT_TEMPLATE, max_length=4096)
    return folder


@pytest.fixture(scope="session")
def tokenizer(checkpoint):
    return AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)


@pytest.fixture(scope="session")
def renderer(tokenizer):
    """Parses with the pipeline's search tool and two more, without arguments and in a namespace."""
    return make_renderer(tokenizer, [SEARCH_TOOL, a_tool("now"), a_tool("web.open")])


@pytest.fixture(scope="session")
def parse(renderer, tokenizer):
    def of(text):
        return renderer.parse_response(tokenizer.encode(text, add_special_tokens=False))

    return of
