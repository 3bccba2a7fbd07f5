"""Text <-> ids by words and bytes: what the tokenizer itself gives, always."""

from __future__ import annotations

import copy
import itertools

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Regex, decoders, normalizers, pre_tokenizers

from glimmer.renderer import codec
from glimmer.renderer.codec import O200K_SPLIT, Decoder, Encoder

from .helpers import property_of

ascii_characters = st.characters(max_codepoint=127)
# What the split treats in its own way, so that every alternative of the pattern meets every other.
PARTS = [
    " ", "  ", "\n", "\n\n", "\r\n", "\t", "/", "'s", "'LL", "'", "a", "Hello", "HTMLparse", "ABC",
    "1", "1984", ".", "...", ">\n", "</atem:parameter>\n", "\x00", "\x0b", "\x1c", "\x7f", "_", "<",
]  # fmt: skip
OTHERS = ["é", "東京", "🙂", "\u2028", "\x85", "\u00a0", "e\u0301", "ſ", "ǅ", "²", "١", "\u200b"]
SPECIALS = ["<|eot|>", "<|start|>", "<|", "|>", "<|nothing|>"]


def texts(*more):
    parts = st.one_of(st.text(ascii_characters, max_size=6), st.sampled_from([*PARTS, *more]))
    return st.lists(parts, max_size=12).map("".join)


def by_tokenizer(tokenizer, text):
    return tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def encode(tokenizer):
    return Encoder(tokenizer)


@property_of(600)
@given(text=texts())
def test_the_split_for_ascii_is_o200ks(text):
    assert codec._ASCII_SPLIT.findall(text) == regex.findall(O200K_SPLIT, text)


def test_every_pair_of_ascii_characters_is_split_alike():
    """Between letters and behind a space, where the pattern looks to both sides."""
    characters = [chr(code) for code in range(128)]
    text = "".join(f"a{x}{y}A {x}{y} 1" for x, y in itertools.product(characters, repeat=2))
    assert codec._ASCII_SPLIT.findall(text) == regex.findall(O200K_SPLIT, text)


@property_of(600)
@given(text=texts())
@example("x\n/y").via("a slash belongs to what stands before it")
def test_ascii_texts(encode, tokenizer, text):
    assert encode.by_words
    assert encode(text) == by_tokenizer(tokenizer, text)


@property_of(600)
@given(text=texts(*OTHERS, *SPECIALS))
@example("é.\n/a").via("no cut in front of a slash")
@example("é\n\u2028\nb").via("no cut in front of white space of any kind")
@example("é\n\x1ca").via("\\x1c is space for Python and none for the split")
def test_any_texts(encode, tokenizer, text):
    assert encode(text) == by_tokenizer(tokenizer, text)


@property_of(600)
@given(text=texts(*OTHERS))
@example("é.\n/a").via("a slash belongs to the word before it")
@example("é\n\u2028\nb").via("white space of any kind")
def test_lines_are_cut_between_words(text):
    """Whatever the vocabulary joins within a word."""
    lines = codec._LINES.split(text)
    assert "".join(lines) == text
    words = [word for line in lines for word in regex.findall(O200K_SPLIT, line)]
    assert words == regex.findall(O200K_SPLIT, text)


def other(tokenizer, **parts):
    changed = copy.deepcopy(tokenizer)
    for name, value in parts.items():
        setattr(changed.backend_tokenizer, name, value)
    return changed


def byte_level(**more):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False, **more)


def split(pattern=O200K_SPLIT, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": normalizers.Lowercase()},
        {"pre_tokenizer": byte_level()},
        {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)},
        {"pre_tokenizer": pre_tokenizers.Sequence([split(r"\s+"), byte_level()])},
        {
            "pre_tokenizer": pre_tokenizers.Sequence(
                [split(behavior="merged_with_previous"), byte_level()]
            )
        },
        {
            "pre_tokenizer": pre_tokenizers.Sequence(
                [split(), pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)]
            )
        },
        {
            "pre_tokenizer": pre_tokenizers.Sequence(
                [split(), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
            )
        },
    ],
)
def test_another_kind_of_tokenizer_encodes_by_itself(parts, tokenizer):
    changed = other(tokenizer, **parts)
    encode = Encoder(changed)
    assert not encode.by_words
    for text in ("Hello  World it's 1984\n\n x", "é\nA"):
        assert encode(text) == by_tokenizer(changed, text)


def test_a_special_token_of_another_form_is_left_to_the_tokenizer(tokenizer):
    changed = copy.deepcopy(tokenizer)
    changed.add_special_tokens({"additional_special_tokens": ["[THINK]"]})
    encode = Encoder(changed)
    assert not encode.by_words
    assert encode("a [THINK] b") == by_tokenizer(changed, "a [THINK] b")


def test_truncation_set_on_the_tokenizer_does_not_cut(tokenizer):
    changed = copy.deepcopy(tokenizer)
    changed.backend_tokenizer.enable_truncation(3)
    text = "one two three four five six"
    assert Encoder(changed)(text) == by_tokenizer(tokenizer, text)


def test_words_are_remembered_up_to_a_limit(tokenizer, monkeypatch):
    monkeypatch.setattr(codec, "_KNOWN_WORDS", 8)
    encode = Encoder(tokenizer)
    for _ in range(2):
        for number in range(50):
            text = f"word{'abcdefghij'[number % 10]} {'x' * 200} {number}"
            assert encode(text) == by_tokenizer(tokenizer, text)
            assert len(encode._words) <= 8
            assert max(map(len, encode._words)) <= codec._LONGEST_WORD
    encode.forget()
    assert not encode._words


# ---- back ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def decode(tokenizer):
    return Decoder(tokenizer)


@property_of(600)
@given(ids=st.lists(st.integers(0, 720), max_size=30))
def test_any_ids(decode, tokenizer, ids):
    """Half characters and ids that no token has, too."""
    expected = tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False)
    assert decode.by_bytes and decode(ids) == expected
    sizes = decode.sizes(ids)
    assert len(sizes) == len(ids)
    assert sum(sizes) == len(expected.encode()) or "\ufffd" in expected


@property_of(600)
@given(data=st.binary(max_size=12))
def test_any_bytes(decode, tokenizer, data):
    """Bytes that are no UTF-8 show as the tokenizer shows them."""
    ids = [tokenizer.convert_tokens_to_ids(codec._LETTERS[byte]) for byte in data]
    assert decode(ids) == tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False)


def test_every_two_bytes(decode, tokenizer):
    ids = [tokenizer.convert_tokens_to_ids(codec._LETTERS[byte]) for byte in range(256)]
    core = tokenizer.backend_tokenizer
    for pair in itertools.product(ids[0x7F:], repeat=2):
        assert decode(pair) == core.decode(list(pair), skip_special_tokens=False)


def test_another_decoder_is_left_to_the_tokenizer(tokenizer):
    changed = other(tokenizer, decoder=decoders.Metaspace())
    decode = Decoder(changed)
    ids = tokenizer.encode("one two")
    assert not decode.by_bytes and decode.sizes(ids) is None
    assert decode(ids) == changed.backend_tokenizer.decode(ids, skip_special_tokens=False)


def test_ids_that_no_token_has_are_not_kept(decode):
    before = len(decode._bytes)
    assert decode(range(10_000, 20_000)) == "" and len(decode._bytes) == before
