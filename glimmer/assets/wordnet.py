r"""WordNet's data files -> corpus: one passage a synset; nouns, verbs, adjectives, adverbs.

A line of data.noun, data.verb, data.adj or data.adv is, by the manual page wndb(5),

    02084071 05 n 03 dog 0 domestic_dog 0 Canis_familiaris 0 023 @ 02083346 n 0000 … | a member of …
    offset  file type w_cnt (word lex_id) x w_cnt      p_cnt (pointer) x p_cnt      [frames] | gloss

where the offset is the line's own place in its file, w_cnt has two hexadecimal digits, p_cnt three
decimal ones, and a pointer is four fields. Verbs have frames: their number, then `+ number word`
each. Lines that begin with two spaces are the licence. The gloss is a definition and, in quotes,
examples. Debian's package wordnet-base puts the files into /usr/share/wordnet; they hold 117,659
synsets, Princeton's numbering of WordNet 3.0.

    {"id": "n02084071", "contents": "\"dog\"\na member of the genus Canis …; \"the dog barked all
     night\" Also: domestic dog, Canis familiaris."}
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from glimmer.errors import DataError
from glimmer.files import write_jsonl

# File -> its part of speech; an adjective that is a satellite says "s" in its line.
_FILES = {"data.noun": "n", "data.verb": "v", "data.adj": "a", "data.adv": "r"}
DATA_FILES = tuple(_FILES)
_EXAMPLE = re.compile(r'"([^"]+)"')
# Where an adjective may stand: "galore(ip)".
_MARKER = re.compile(r"\((?:a|p|ip)\)$")
_LEAST_WORDS = 3


@dataclass(frozen=True, slots=True)
class Synset:
    """Words of one meaning.

    Attributes:
        id: part of speech and offset, such as n02084071.
        words: at least one; spaces as spaces, without an adjective's marker.
        gloss: definition and examples, as they stand in the file.
    """

    id: str
    words: tuple[str, ...]
    gloss: str

    @property
    def contents(self) -> str:
        """As a passage: the first word as title, the gloss as text, further words at its end."""
        also = f" Also: {', '.join(self.words[1:])}." if len(self.words) > 1 else ""
        return f'"{self.words[0]}"\n{self.gloss}{also}'

    @property
    def examples(self) -> tuple[str, ...]:
        """What the gloss has in quotes."""
        return tuple(text.strip() for text in _EXAMPLE.findall(self.gloss) if text.strip())


def read_synsets(path: Path) -> Iterator[Synset]:
    """The synsets of one data file, in its order.

    Raises:
        DataError: the file is missing or empty, or a line is not of the format; the message names
            file, line, what was found and what was expected.
    """
    path = Path(path)
    kind = _FILES[path.name]
    place, found = 0, False
    try:
        with open(path, "rb") as handle:
            for number, line in enumerate(handle, start=1):
                if not line.startswith(b"  "):
                    found = True
                    yield _parse(line, kind, place, f"{path}, line {number}")
                place += len(line)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); expected a data file of WordNet. Install "
            f"Debian's package wordnet-base, or correct corpus.source."
        ) from error
    if not found:
        raise DataError(
            f"{path}: found no synset, expected one a line. Install wordnet-base again."
        )


def write_corpus(folder: Path, out: Path) -> int:
    """Write all four data files of a folder as one corpus; the number of passages.

    Raises:
        DataError: as `read_synsets`.
    """
    count = 0

    def rows() -> Iterator[dict[str, str]]:
        nonlocal count
        for name in DATA_FILES:
            for synset in read_synsets(Path(folder) / name):
                count += 1
                yield {"id": synset.id, "contents": synset.contents}

    write_jsonl(out, rows())
    return count


def example_queries(folder: Path) -> Iterator[tuple[str, str]]:
    """(example of at least three words, id of its passage), each text once, in the files' order.

    Raises:
        DataError: as `read_synsets`.
    """
    seen: set[str] = set()
    for name in DATA_FILES:
        for synset in read_synsets(Path(folder) / name):
            for example in synset.examples:
                if len(example.split()) >= _LEAST_WORDS and example not in seen:
                    seen.add(example)
                    yield example, synset.id


def _parse(line: bytes, kind: str, place: int, where: str) -> Synset:
    def refuse(problem: str) -> DataError:
        return DataError(
            f"{where}: found {problem} in {line[:60]!r}, expected 'offset file type words "
            f"pointers | gloss' as in wndb(5). The file is cut or changed: install wordnet-base "
            f"again."
        )

    if not line.endswith(b"\n"):
        raise refuse("no end of the line")
    try:
        head, bar, gloss = line.decode("utf-8").rstrip("\r\n").partition("| ")
    except UnicodeDecodeError as error:
        raise refuse(f"bytes that are not UTF-8 ({error.reason})") from error
    gloss = gloss.strip()
    if not bar or not gloss:
        raise refuse("no gloss")
    fields = head.split()
    if len(fields) < 6 or fields[2] not in ("n", "v", "a", "s", "r"):
        raise refuse("no synset")
    if fields[2].replace("s", "a") != kind:
        raise refuse(f"the type {fields[2]!r} in a file of type {kind!r}")
    if fields[0] != f"{place:08d}":
        raise refuse(f"the offset {fields[0]} at byte {place}")
    counted = _number(fields[3], 16) or 0
    end = 4 + 2 * counted  # of the words, where the number of pointers stands
    pointers = _number(fields[end], 10) if counted and end < len(fields) else None
    if pointers is None:
        raise refuse(f"not the {fields[3]!r} words that it counts")
    frames = fields[end + 1 + 4 * pointers :]
    # Only a verb has frames, and it may have none.
    expected = 1 + 3 * (_number(frames[0], 10) or 0) if kind == "v" and frames else 0
    if end + 1 + 4 * pointers > len(fields) or len(frames) != expected:
        raise refuse(f"{len(fields)} fields, not as many as it counts,")
    words = tuple(
        (_MARKER.sub("", word) if kind == "a" else word).replace("_", " ")
        for word in fields[4:end:2]
    )
    if not all(word.strip() for word in words):
        raise refuse("an empty word")
    return Synset(f"{kind}{fields[0]}", words, gloss)


def _number(text: str, base: int) -> int | None:
    """A whole number of plain digits; None for anything else."""
    digits = "0123456789abcdef"[:base]
    return int(text, base) if text and all(c in digits for c in text.lower()) else None
