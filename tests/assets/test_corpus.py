from __future__ import annotations

import json
from pathlib import Path

import pytest

from glimmer.assets import read_corpus, validate_corpus
from glimmer.assets.corpus import split_contents
from glimmer.errors import DataError

GOOD = b'{"id": "0", "contents": "\\"A\\"\\nb"}\n'


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(data)
    return path


def test_passages_as_in_wiki18(tmp_path: Path) -> None:
    row = {"id": "7", "contents": '"Evan Morris"\nEvan L. Morris was\na lobbyist.'}
    (passage,) = read_corpus(write(tmp_path, json.dumps(row).encode()))
    assert passage.id == "7"
    assert passage.title == "Evan Morris"
    assert passage.text == "Evan L. Morris was\na lobbyist."
    assert passage.contents == row["contents"]


def test_a_title_keeps_quotes_of_its_own() -> None:
    assert split_contents('""Heroes" (album)"\nx') == ('"Heroes" (album)', "x")
    assert split_contents("no quotes\nx") == ("no quotes", "x")
    assert split_contents('"\nx') == ('"', "x")
    assert split_contents('"Only a title"') == ("Only a title", "")


def test_counts(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + b'{"id": "x", "contents": "plain text"}\n')
    stats = validate_corpus(path)
    assert (stats.passages, stats.characters, stats.longest, stats.untitled) == (2, 15, 10, 1)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"id": "1", "conte', ["expected one JSON object"]),
        (b"[1, 2]\n", ["expected a JSON object"]),
        (b"\n", ["empty line"]),
        (b'{"id": "1"}\n', ["'contents'", "['id']"]),
        (b'{"id": "1", "text": "x"}\n', ["'contents'", "'text'"]),
        (b'{"id": "1", "contents": "  \\n"}\n', ["'contents'", "not blank"]),
        (b'{"id": "1", "contents": ["x"]}\n', ["'contents'", "['x']"]),
        (b'{"contents": "x"}\n', ["'id'", "'contents'"]),
        (b'{"id": 1, "contents": "x"}\n', ["'id'", "found 'id': 1"]),
        (b'{"id": "0", "contents": "x"}\n', ["id '0' a second time"]),
        (b'{"id": "1", "contents": "\xff"}\n', ["expected one JSON object"]),
        (b'{"id": "1", "contents": "\\ud800"}\n', ["surrogate"]),
        (b"[" * 200_000 + b"\n", ["expected one JSON object"]),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, words: list[str]) -> None:
    path = write(tmp_path, GOOD + line)
    with pytest.raises(DataError) as caught:
        list(read_corpus(path))
    for word in [f"{path}, line 2", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "ids", [("5", "a", "5"), ("0", "1", "x", "1"), ("0", "1", "0"), ("a", "a")]
)
def test_duplicate_ids_wherever_they_stand(tmp_path: Path, ids: tuple[str, ...]) -> None:
    rows = (json.dumps({"id": i, "contents": "x"}) for i in ids)
    path = write(tmp_path, "\n".join(rows).encode())
    with pytest.raises(DataError, match=f"line {len(ids)}.*{ids[-1]!r}"):
        validate_corpus(path)


def test_ids_that_only_look_alike_are_different(tmp_path: Path) -> None:
    ids = ["0", "1", "01", "1.0", "²", "-1", "1" * 30, "2"]
    rows = (json.dumps({"id": i, "contents": "x"}) for i in ids)
    assert validate_corpus(write(tmp_path, "\n".join(rows).encode())).passages == len(ids)


def test_empty_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"corpus\.jsonl.*empty"):
        validate_corpus(write(tmp_path, b""))
    with pytest.raises(DataError, match=r"absent\.jsonl.*no such file"):
        validate_corpus(tmp_path / "absent.jsonl")
    with pytest.raises(DataError, match="cannot be read"):
        validate_corpus(tmp_path)
