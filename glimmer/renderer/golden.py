"""Conversations that the released checkpoint's own template rendered, with its token ids.

`golden.json` holds the arguments of each rendering, the sha256 of the text and the ids. The ids are
those of one tokenizer, which `tokenizer_sha256` identifies by what it does, not by its files: the
same tokenizer is written to disk in several ways.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glimmer.files import sha256_json
from glimmer.renderer.cases import Case

SPECIALS = ("begin_of_text", "end_of_text", "start", "message", "eot", "eom", "patch", "video")
_FILE = Path(__file__).parent / "golden.json"
# What the template takes where a rendering names no other.
_DEFAULTS = {"knowledge_cutoff": "2026-01-04", "reasoning_strength": "high"}
_KNOBS = ("current_date", *_DEFAULTS)


@dataclass(frozen=True)
class GoldenCase:
    """One released rendering.

    Attributes:
        sha256: of the text, UTF-8.
        ids: the released tokenizer's.
    """

    case: Case
    sha256: str
    ids: list[int]


@dataclass(frozen=True)
class Golden:
    """All released renderings, and which tokenizer their ids belong to."""

    tokenizer_sha256: str
    cases: list[GoldenCase]


def golden_cases() -> Golden:
    """The renderings that ship with the project."""
    found = json.loads(_FILE.read_text("utf-8"))
    cases = []
    for each in found["cases"]:
        kwargs = each["kwargs"]
        case = Case(
            f"golden_{each['name']}",
            kwargs["messages"],
            kwargs.get("tools"),
            kwargs.get("add_generation_prompt", False),
            {**_DEFAULTS, **{key: kwargs[key] for key in _KNOBS if key in kwargs}},
        )
        cases.append(GoldenCase(case, each["sha256"], each["ids"]))
    return Golden(found["tokenizer_sha256"], cases)


def tokenizer_sha256(tokenizer: Any) -> str:
    """Hex sha256 of the ordinary vocabulary (token -> id) and of the format's special ids.

    What differs between files of one tokenizer is left out: names of reserved special tokens, order
    of merges, spelling of the split pattern. The recorded ids tell if one of those matters.
    """
    core = tokenizer.backend_tokenizer
    added = {token.content for token in core.get_added_tokens_decoder().values()}
    words = core.get_vocab(with_added_tokens=False)
    return sha256_json(
        {
            "vocabulary": {token: i for token, i in words.items() if token not in added},
            "specials": {name: core.token_to_id(f"<|{name}|>") for name in SPECIALS},
        }
    )
