"""The released tokenizer, where the optional package `llama-models` has its vocabulary."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import pytest

from glimmer.errors import ConfigError
from glimmer.renderer import check_parity, released_tokenizer
from glimmer.renderer.cases import builtin_cases, pipeline_cases
from glimmer.renderer.codec import Decoder, Encoder
from glimmer.renderer.released import SPECIALS
from glimmer.renderer.template import CHAT_TEMPLATE
from glimmer.search_r1.prompt import SEARCH_TOOL

from .helpers import GOLDEN, KNOBS, SETTINGS, make_renderer, same
from .test_codec import OTHERS, PARTS
from .test_codec import SPECIALS as SPELLED

INSTALLED = importlib.util.find_spec("llama_models") is not None
needs_package = pytest.mark.skipif(not INSTALLED, reason="`llama-models` is optional")


@pytest.fixture(scope="module")
def released():
    tokenizer = released_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


@pytest.mark.skipif(INSTALLED, reason="`llama-models` is installed")
def test_without_the_package_the_error_names_it():
    with pytest.raises(ConfigError, match="pip install --no-deps llama-models"):
        released_tokenizer()


@needs_package
def test_special_tokens(released):
    assert {name: released.convert_tokens_to_ids(name) for name in SPECIALS} == SPECIALS


@needs_package
@pytest.mark.parametrize("case", GOLDEN, ids=[case["name"] for case in GOLDEN])
def test_ids_are_the_released_ones(case, released):
    kwargs = case["kwargs"]
    knobs = {key: kwargs[key] for key in KNOBS if key in kwargs}
    renderer = make_renderer(released, **knobs)
    arguments = {
        "tools": kwargs.get("tools"),
        "add_generation_prompt": kwargs.get("add_generation_prompt", False),
    }
    assert renderer.render_ids(kwargs["messages"], **arguments) == case["ids"]
    assert renderer.render(kwargs["messages"], **arguments).token_ids == case["ids"]


@needs_package
def test_every_case_over_the_released_tokenizer(released):
    for case in (*builtin_cases(), *pipeline_cases([SEARCH_TOOL])):
        same(case, released)


@needs_package
def test_the_gate_knows_the_released_tokenizer(released, tmp_path):
    """Without a template: the released ids, recorded, and none of this tokenizer's own."""
    folder = tmp_path / "checkpoint"
    released.save_pretrained(folder)
    (folder / "chat_template.jinja").unlink()
    verdict = check_parity(folder, {**SETTINGS, "without_template": "golden"})
    assert verdict["passed"] and verdict["measured"] == {"cases": 24, "differing": 0}
    assert verdict["measured_on"]["golden_ids"] == "recorded"


@needs_package
def test_ids_by_words_are_the_released_tokenizers(released):
    """The codec over the released vocabulary: some thousand texts, and the project's own files."""
    encode, decode, core = Encoder(released), Decoder(released), released.backend_tokenizer
    assert encode.by_words and decode.by_bytes
    draw = random.Random(0)
    parts = [*PARTS, *OTHERS, *SPELLED]
    texts = ["".join(draw.choices(parts, k=draw.randrange(20))) for _ in range(5000)]
    texts += [path.read_text("utf-8") for path in Path(__file__).parent.glob("*.py")]
    for text in texts:
        ids = core.encode(text, add_special_tokens=False).ids
        assert encode(text) == ids
        assert decode(ids) == core.decode(ids, skip_special_tokens=False)
    for _ in range(5000):
        ids = [draw.randrange(len(released) + 50) for _ in range(draw.randrange(12))]
        assert decode(ids) == core.decode(ids, skip_special_tokens=False)
