"""Text <-> token ids, equal to the tokenizer's own and several times as fast.

A byte-level tokenizer with o200k's split cuts a text into words and encodes each word by itself.
`Encoder` therefore cuts ASCII texts by the same pattern, written for ASCII, and asks the
tokenizer's model for each word once. Every other text goes to the tokenizer: another split, a
normalizer, a special token spelled out, and each line with a character beyond ASCII. Lines are cut
only in front of a character that no word can have behind a line break.

`Decoder` keeps the bytes of each token; a text is the bytes of its tokens, read as UTF-8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

O200K_SPLIT = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
"""The released tokenizer's split, as the library `tokenizers` takes it."""

# The same for ASCII, where letters are A-Z (Lu) and a-z (Ll) alone and numbers are 0-9.
_ASCII_SPLIT = re.compile(
    r"[^\r\nA-Za-z0-9]?[A-Z]*[a-z]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\nA-Za-z0-9]?[A-Z]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[0-9]{1,3}| ?[^\sA-Za-z0-9]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    re.ASCII,
)
_LINES = re.compile(r"(?<=\n)(?=[^\s/])")  # behind a line break a word can go on with these only
_KNOWN_WORDS = 1 << 16
_LONGEST_WORD = 64  # longer ones are encoded each time, so that memory stays bounded


def _letters() -> dict[int, str]:
    """Byte -> the character by which byte-level tokenizers write it (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {byte: chr(byte) for byte in printable}
    return table | {byte: chr(256 + rank) for rank, byte in enumerate(others)}


_LETTERS = _letters()
_BYTES = {letter: byte for byte, letter in _LETTERS.items()}


class Encoder:
    """Text -> ids, the tokenizer's own. One instance remembers up to 65,536 words.

    Args:
        tokenizer: transformers' fast tokenizer; of any other only `encode` is used.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        core = getattr(tokenizer, "backend_tokenizer", None)
        usable = core is not None and core.truncation is None and core.padding is None
        self._core = core if usable else None
        self.by_words = usable and _splits_as_o200k(core)
        self._model = core.model if self.by_words else None
        self._words: dict[str, list[int]] = {}

    def forget(self) -> None:
        """Empty the memory of words."""
        self._words.clear()

    def __call__(self, text: str) -> list[int]:
        """Ids of a text, special tokens spelled out in it included."""
        if not self.by_words or "<|" in text:
            return self._whole(text)
        if text.isascii():
            return self._ascii(text)
        ids: list[int] = []
        for line in _LINES.split(text):
            ids += self._ascii(line) if line.isascii() else self._whole(line)
        return ids

    def _whole(self, text: str) -> list[int]:
        """By the tokenizer's core: what transformers adds on top costs more than the text."""
        if self._core is None:
            return self._tokenizer.encode(text, add_special_tokens=False)
        return self._core.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def _ascii(self, text: str) -> list[int]:
        known = self._words
        ids: list[int] = []
        for word in _ASCII_SPLIT.findall(text):
            found = known.get(word)
            ids += self._word(word) if found is None else found
        return ids

    def _word(self, word: str) -> list[int]:
        found = [token.id for token in self._model.tokenize(word.translate(_LETTERS))]
        if len(word) <= _LONGEST_WORD:
            if len(self._words) >= _KNOWN_WORDS:
                self._words.clear()
            self._words[word] = found
        return found


def _splits_as_o200k(core: Any) -> bool:
    """Whether words, cut by o200k's pattern and in bytes, are all that the ids depend on."""
    if core.normalizer is not None or core.pre_tokenizer is None:
        return False
    if type(core.model).__name__ != "BPE" or core.model.dropout:
        return False
    steps = json.loads(core.pre_tokenizer.__getstate__()).get("pretokenizers", [])
    added = core.get_added_tokens_decoder().values()
    return (
        len(steps) == 2
        and steps[0]["type"] == "Split"
        and steps[0]["pattern"] == {"Regex": O200K_SPLIT}
        and steps[0]["behavior"] == "Isolated"
        and steps[0]["invert"] is False
        and steps[1]["type"] == "ByteLevel"
        and steps[1]["add_prefix_space"] is False
        and steps[1]["use_regex"] is False
        and all(token.content.startswith("<|") for token in added)
    )


class Decoder:
    """Ids -> text, special tokens spelled out; ids that the vocabulary lacks give nothing.

    Args:
        tokenizer: as of `Encoder`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._core = getattr(tokenizer, "backend_tokenizer", None)
        self.by_bytes = self._core is not None and _is_byte_level(self._core.decoder)
        self._bytes = _TokenBytes(self._core)
        self._piece = self._bytes.__getitem__

    def __call__(self, ids: Sequence[int]) -> str:
        """The text exactly, whatever the tokenizer is set to tidy up. Bytes that are no UTF-8
        become U+FFFD."""
        if self.by_bytes:
            return b"".join(map(self._piece, ids)).decode("utf-8", "replace")
        if self._core is not None:
            return self._core.decode(list(ids), skip_special_tokens=False)
        return self._tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def sizes(self, ids: Sequence[int]) -> list[int] | None:
        """Bytes of UTF-8 that each token stands for; None if the tokenizer is not byte-level."""
        return list(map(len, map(self._piece, ids))) if self.by_bytes else None

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        """Bytes of each token; of one that is not of a byte-level tokenizer, what it says alone."""
        if self.by_bytes:
            return list(map(self._piece, ids))
        return [self([token]).encode() for token in ids]


def _is_byte_level(decoder: Any) -> bool:
    return decoder is not None and json.loads(decoder.__getstate__())["type"] == "ByteLevel"


class _TokenBytes(dict[int, bytes]):
    """Bytes of each token, filled on first use: no more than the vocabulary has."""

    def __init__(self, core: Any) -> None:
        self._core = core

    def __missing__(self, token: int) -> bytes:
        text = self._core.id_to_token(token)
        if text is None:
            return b""  # not kept: there is no end of such ids
        try:
            found = bytes(_BYTES[letter] for letter in text)
        except KeyError:
            found = text.encode()  # a special token with other characters is spelled as it is
        self[token] = found
        return found
