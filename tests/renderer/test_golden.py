"""The released checkpoint's own renderings: 24 conversations, with its token ids."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

import pytest

from .helpers import GOLDEN, KNOBS, make_renderer, template_text

RELEASED_SPECIALS = {
    "<|begin_of_text|>": 200000,
    "<|end_of_text|>": 200001,
    "<|eom|>": 200007,
    "<|eot|>": 200008,
    "<|start|>": 200022,
    "<|message|>": 200023,
    "<|video|>": 200091,
    "<|patch|>": 200092,
}
every_case = pytest.mark.parametrize("case", GOLDEN, ids=[case["name"] for case in GOLDEN])


def native_text(case, tokenizer):
    kwargs = case["kwargs"]
    knobs = {key: kwargs[key] for key in KNOBS if key in kwargs}
    return make_renderer(tokenizer, **knobs).render_text(
        kwargs["messages"],
        tools=kwargs.get("tools"),
        add_generation_prompt=kwargs.get("add_generation_prompt", False),
    )


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def test_there_are_24():
    assert len({case["name"] for case in GOLDEN}) == 24


@every_case
def test_native_text_is_the_released_one(case, tokenizer):
    assert sha256(native_text(case, tokenizer)) == case["sha256"]


@every_case
def test_template_text_is_the_released_one(case, tokenizer):
    """The project's template, which stands in for the released one elsewhere in the tests."""
    kwargs = dict(case["kwargs"])
    text = template_text(
        tokenizer,
        kwargs.pop("messages"),
        kwargs.pop("tools", None),
        kwargs.pop("add_generation_prompt", False),
        **kwargs,
    )
    assert sha256(text) == case["sha256"]
    assert text == native_text(case, tokenizer)


@every_case
def test_special_tokens_stand_where_the_released_ids_have_them(case, tokenizer):
    names = {tokenizer.convert_tokens_to_ids(name): name for name in RELEASED_SPECIALS}
    ids = tokenizer.encode(native_text(case, tokenizer), add_special_tokens=False)
    found = [RELEASED_SPECIALS[names[token]] for token in ids if token in names]
    assert found == [token for token in case["ids"] if token >= 200000]


class ReleasedTokenizer:
    """Llama 4's vocabulary under Muse Glimmer's names for the special tokens."""

    def __init__(self, path: Path) -> None:
        import tiktoken
        from tiktoken.load import load_tiktoken_bpe

        from glimmer.renderer.codec import O200K_SPLIT

        self._encoding = tiktoken.Encoding(
            name="muse-glimmer",
            pat_str=O200K_SPLIT,
            mergeable_ranks=load_tiktoken_bpe(str(path)),
            special_tokens=RELEASED_SPECIALS,
        )

    def encode(self, text, add_special_tokens=False):
        return self._encoding.encode(text, allowed_special="all")

    def convert_tokens_to_ids(self, token):
        return RELEASED_SPECIALS[token]

    def convert_ids_to_tokens(self, found):
        return {number: name for name, number in RELEASED_SPECIALS.items()}[found]


@pytest.fixture(scope="module")
def released_tokenizer():
    spec = importlib.util.find_spec("llama_models")
    folder = Path(spec.submodule_search_locations[0]) if spec else None
    path = next(folder.rglob("llama4/tokenizer.model"), None) if folder else None
    if path is None:
        pytest.skip("the released ids need the vocabulary in `llama-models`: no dependency")
    return ReleasedTokenizer(path)


def test_native_ids_are_the_released_ones(released_tokenizer):
    for case in GOLDEN:
        kwargs = case["kwargs"]
        knobs = {key: kwargs[key] for key in KNOBS if key in kwargs}
        ids = make_renderer(released_tokenizer, **knobs).render_ids(
            kwargs["messages"],
            tools=kwargs.get("tools"),
            add_generation_prompt=kwargs.get("add_generation_prompt", False),
        )
        assert ids == case["ids"], case["name"]
