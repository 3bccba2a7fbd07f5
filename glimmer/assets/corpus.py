r"""The corpus: JSONL in the layout of wiki-18, one passage a line.

    {"id": "0", "contents": "\"Title\"\nText of the passage ..."}

The title stands in quotes on the first line of `contents`; the text is the rest. An id is text and
occurs once in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from glimmer.assets.lines import read_objects, text_field
from glimmer.errors import DataError

LAYOUT = '{"id": "0", "contents": "\\"Title\\"\\nText"}.'


@dataclass(frozen=True, slots=True)
class Passage:
    """One passage of the corpus.

    Attributes:
        id: as in the file.
        title: first line of `contents`, without its quotes.
        text: `contents` without the first line.
        contents: the whole, as it is embedded.
    """

    id: str
    title: str
    text: str
    contents: str


@dataclass(frozen=True, slots=True)
class CorpusStats:
    """What a corpus file holds.

    Attributes:
        passages: number of lines.
        characters: sum of the lengths of `contents`.
        longest: characters of the longest `contents`.
        untitled: passages whose first line has no quoted title.
    """

    passages: int
    characters: int
    longest: int
    untitled: int


def split_contents(contents: str) -> tuple[str, str]:
    """(title without its pair of quotes, text) of a passage's `contents`."""
    title, _, text = contents.partition("\n")
    title = title.strip()
    if len(title) >= 2 and title[0] == title[-1] == '"':
        title = title[1:-1]
    return title, text


def read_corpus(path: Path | str, *, label: str | None = None) -> Iterator[Passage]:
    """Yield the passages of a corpus file, in its order.

    Args:
        path: a JSONL file.
        label: how messages name the file; its path if None.

    Raises:
        DataError: the file is missing or empty, or a line is not JSON, lacks `id` or `contents`,
            has blank contents, or repeats an id. The message names file and line.
    """
    label = label or str(path)
    seen = _Ids()
    for number, value in read_objects(Path(path), label):
        where = f"{label}, line {number}"
        identity = text_field(value, "id", where, LAYOUT)
        contents = text_field(value, "contents", where, LAYOUT)
        if not seen.add(identity):
            raise DataError(
                f"{where}: found the id {identity!r} a second time, expected each id once. "
                f"Rename or remove one of the two passages."
            )
        yield Passage(identity, *split_contents(contents), contents)


def validate_corpus(path: Path | str, *, label: str | None = None) -> CorpusStats:
    """Read a corpus file to its end and count.

    Raises:
        DataError: as `read_corpus`.
    """
    passages = characters = longest = untitled = 0
    for passage in read_corpus(path, label=label):
        passages += 1
        characters += len(passage.contents)
        longest = max(longest, len(passage.contents))
        untitled += not passage.contents.lstrip().startswith('"')
    return CorpusStats(passages, characters, longest, untitled)


class _Ids:
    """Ids seen so far. Those that count up from "0" cost no memory, as in wiki-18's 21 million."""

    def __init__(self) -> None:
        self._counted = 0
        self._others: set[str] = set()

    def add(self, identity: str) -> bool:
        """True if the id is new."""
        if not self._others and identity == str(self._counted):
            self._counted += 1
            return True
        counted = (
            identity.isascii()
            and identity.isdigit()
            and str(int(identity)) == identity
            and int(identity) < self._counted
            if len(identity) < 20
            else False
        )
        if counted or identity in self._others:
            return False
        self._others.add(identity)
        return True
