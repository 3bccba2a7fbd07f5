"""WordNet's data files: lines of the real format by hand, every broken field by name, the whole."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimmer.assets import fetch_corpus, fetch_questions, read_corpus, source_state
from glimmer.assets.wordnet import DATA_FILES, example_queries, read_synsets
from glimmer.errors import ConfigError, DataError, IntegrityError

LICENCE = "  1 This software and database is being provided to you, the LICENSEE, by  \n"
# Without their offsets, which `placed` sets.
NOUN = (
    "03 n 01 entity 0 003 ~ 00001930 n 0000 ~ 00002137 n 0000 ~ 04424418 n 0000 | that which is "
    "perceived to have its own existence (living or nonliving)  ",
    "05 n 03 dog 0 domestic_dog 0 Canis_familiaris 0 001 @ 02083346 n 0000 | a member of the genus "
    'Canis; "the dog barked all night"  ',
    "21 n 10 a 0 b 0 c 0 d 0 e 0 f 0 g 0 h 0 i 0 j 0 k 0 l 0 m 0 n 0 o 0 p 0 000 | sixteen words  ",
)
VERB = (
    '43 v 02 char 0 coal 0 001 @ 02762468 v 0000 01 + 08 00 | burn to charcoal; "Without rain, the '
    'fire will char everything"; "twice told"  ',
    "29 v 01 breathe 0 000 02 + 02 00 + 08 01 | draw air into, and expel it out of, the lungs  ",
    "29 v 01 rest 0 000 | be still  ",
)
ADJ = ('00 s 01 galore(ip) 0 000 | in great numbers; (Irish) "whisky galore for everybody"  ',)
ADV = ('02 r 01 a_cappella 0 000 | without musical accompaniment; "they performed a cappella"  ',)


def placed(lines: tuple[str, ...]) -> bytes:
    """A data file: the licence, and each line led by its own place."""
    data = LICENCE.encode()
    for line in lines:
        data += f"{len(data):08d} {line}\n".encode()
    return data


@pytest.fixture
def wordnet(tmp_path: Path) -> Path:
    folder = tmp_path / "wordnet"
    folder.mkdir()
    for name, lines in zip(DATA_FILES, (NOUN, VERB, ADJ, ADV), strict=True):
        (folder / name).write_bytes(placed(lines))
    return folder


def test_a_corpus_of_passages(wordnet: Path, tmp_path: Path) -> None:
    manifest = fetch_corpus(f"wordnet:{wordnet}", tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == ["corpus.jsonl", "manifest.json"]
    assert manifest["source"] == f"wordnet:{wordnet}"
    assert manifest["files"]["corpus.jsonl"]["source_file"] == ", ".join(DATA_FILES)
    passages = list(read_corpus(tmp_path / "out/corpus.jsonl"))
    assert [p.title for p in passages] == [
        *("entity", "dog", "a", "char", "breathe", "rest", "galore", "a cappella")
    ]
    dog, char, galore = passages[1], passages[3], passages[6]
    assert dog.text == (
        'a member of the genus Canis; "the dog barked all night" Also: domestic dog, Canis '
        "familiaris."
    )
    assert dog.id == f"n{placed(NOUN).index(b'05 n 03 dog') - 9:08d}"
    assert char.text.endswith('"twice told" Also: coal.')
    assert galore.id.startswith("a") and galore.text.startswith("in great numbers; (Irish)")
    assert passages[2].text.endswith("n, o, p.")  # the number of words is hexadecimal


def test_queries_are_the_examples(wordnet: Path) -> None:
    with open(wordnet / "data.adv", "ab") as handle:
        again = f"{handle.tell():08d} {ADV[0].replace('a_cappella', 'twin')}\n"
        handle.write(again.encode())
    found = dict(example_queries(wordnet))
    assert list(found) == [
        "the dog barked all night",
        "Without rain, the fire will char everything",
        "whisky galore for everybody",
        "they performed a cappella",
    ]  # "twice told" has two words; an example that stands twice is its first synset's
    assert found["they performed a cappella"] == f"r{len(LICENCE):08d}"


def line_of(old: str, new: str) -> bytes:
    assert old in NOUN[1]
    return placed((NOUN[0], NOUN[1].replace(old, new)))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (line_of("n 03 dog", "n 04 dog"), r"not the '04' words|not as many as it counts"),
        (line_of("n 03 dog", "n 00 dog"), "not the '00' words"),
        (line_of("n 03 dog", "n ff dog"), "not the 'ff' words"),
        (line_of("n 03 dog", "n -3 dog"), "not the '-3' words"),
        (line_of(" 001 @", " 002 @"), "fields, not as many as it counts"),
        (line_of(" 001 @", " 0x1 @"), "not the '03' words"),
        (line_of("n 0000 |", "n 0000 01 + 02 00 |"), "fields, not as many as it counts"),
        (line_of("05 n", "05 v"), "the type 'v' in a file of type 'n'"),
        (line_of("05 n", "05 q"), "no synset"),
        (line_of("dog 0", "_ 0"), "an empty word"),
        (line_of(' | a member of the genus Canis; "the dog barked all night"', ""), "no gloss"),
        (line_of("Canis;", "Canis;").partition(b" barked")[0], "no end of the line"),
        (placed(NOUN).replace(b"perceived", b"seen"), "the offset 0"),
        (placed(NOUN).replace(b" | sixteen", b" sixteen"), "no gloss"),
        (placed(NOUN).replace(b"genus", b"g\xffnus"), "not UTF-8"),
        (LICENCE.encode(), "found no synset"),
        (b"", "found no synset"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "data.noun"
    path.write_bytes(data)
    with pytest.raises(DataError, match=says) as caught:
        list(read_synsets(path))
    assert str(path) in str(caught.value)


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_line_is_a_synset_or_refused(tmp_path_factory, line: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "data.verb"
    path.write_bytes(line)
    try:
        for synset in read_synsets(path):
            assert synset.words and synset.gloss
    except DataError as error:
        assert str(path) in str(error)


_WORD = st.from_regex(r"[a-zA-Z0-9'.-]{1,8}(_[a-zA-Z0-9'.-]{1,8}){0,2}", fullmatch=True)
_POINTER = st.tuples(
    st.sampled_from(["@", "~", "+", "!", "&", ";c", "%p"]),
    st.from_regex(r"[0-9]{8}", fullmatch=True),
    st.sampled_from("nvasr"),
    st.from_regex(r"[0-9a-f]{4}", fullmatch=True),
)
_GLOSS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=40)


@given(
    st.lists(_WORD, min_size=1, max_size=40),
    st.lists(_POINTER, max_size=20),
    st.none() | st.lists(st.integers(1, 35), max_size=4),
    _GLOSS,
)
def test_what_is_written_is_read(tmp_path_factory, words, pointers, frames, gloss) -> None:
    head = f"29 v {len(words):02x} " + " ".join(f"{word} 0" for word in words)
    head += f" {len(pointers):03d}" + "".join(" " + " ".join(pointer) for pointer in pointers)
    if frames is not None:
        head += f" {len(frames):02d}" + "".join(f" + {frame:02d} 00" for frame in frames)
    path = tmp_path_factory.mktemp("written") / "data.verb"
    path.write_bytes(placed((f"{head} | {gloss}  ", VERB[2])))
    first, second = read_synsets(path)
    assert first.words == tuple(word.replace("_", " ") for word in words)
    assert first.gloss == gloss and second.words == ("rest",)
    assert first.id == f"v{len(LICENCE):08d}"


def test_where_it_comes_from_is_checked(wordnet: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="wordnet-base and set it to wordnet:/usr/share/wordnet"):
        fetch_corpus("wordnet:/no/such/folder", tmp_path / "out")
    with pytest.raises(ConfigError, match="WordNet is a corpus only"):
        fetch_questions(f"wordnet:{wordnet}", tmp_path / "out")
    with pytest.raises(IntegrityError, match=r"corpus\.sha256"):
        fetch_corpus(f"wordnet:{wordnet}", tmp_path / "out", sha256={"data.noun": "0" * 64})
    (wordnet / "data.adj").unlink()
    with pytest.raises(DataError, match=r"data\.adj: found no such file"):
        fetch_corpus(f"wordnet:{wordnet}", tmp_path / "out")
    assert not (tmp_path / "out/manifest.json").exists()


def test_a_changed_file_is_another_state(wordnet: Path) -> None:
    before = source_state(f"wordnet:{wordnet}", ["corpus.jsonl"])
    assert set(before) == set(DATA_FILES)
    assert source_state(f"wordnet:{wordnet}", ["other.jsonl"]) == before
    (wordnet / "data.verb").write_bytes(placed(VERB[:2]))
    assert source_state(f"wordnet:{wordnet}", ["corpus.jsonl"]) != before


@pytest.mark.skipif(
    not Path("/usr/share/wordnet/data.noun").exists(),
    reason="Debian's package wordnet-base is not installed",
)
def test_all_of_it(tmp_path: Path) -> None:
    fetch_corpus("wordnet:/usr/share/wordnet", tmp_path / "out")
    with open(tmp_path / "out/corpus.jsonl", encoding="utf-8") as handle:
        rows = [json.loads(line) for line in handle]
    assert len(rows) == 117_659
    assert len({row["id"] for row in rows}) == 117_659
    assert sum(1 for _ in example_queries(Path("/usr/share/wordnet"))) > 40_000
