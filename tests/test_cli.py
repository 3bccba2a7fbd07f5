"""`glimmer compare` on minimal records, a run's own and lm-evaluation-harness' logs."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from glimmer.cli import main
from tests.heldout.records import record


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def minimal(right, total=200, **changes):
    return [{"id": f"q{i}", "exact_match": int(i in right)} | changes for i in range(total)]


@pytest.fixture
def pair(tmp_path):
    return (
        write(tmp_path / "a.jsonl", minimal(range(40))),
        write(tmp_path / "b.jsonl", minimal([*range(33), *range(40, 99)])),
    )


def test_the_reference_result_as_a_command(pair, tmp_path, capsys):
    out = tmp_path / "new" / "paired.json"
    assert main(["compare", *pair, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "59 gained, 7 lost, 33 right and 101 wrong both times" in shown
    assert "+26.0 points [+19.0, +33.0]" in shown and "exact McNemar p = 2.4e-11" in shown
    found = json.loads(out.read_text())
    assert found["measured"]["table"]["gained"] == 59
    assert "f1_difference" not in found["measured"] and "by_type" not in found["measured"]
    assert found["measured_on"]["before"] == pair[0]


def test_as_a_program(pair):
    done = subprocess.run(
        [sys.executable, "-m", "glimmer.cli", "compare", *pair], capture_output=True, text=True
    )
    assert done.returncode == 0 and "59 gained" in done.stdout and done.stderr == ""
    gone = subprocess.run(
        [sys.executable, "-m", "glimmer.cli", "compare", pair[0], "none.jsonl"],
        capture_output=True,
        text=True,
    )
    assert gone.returncode == 1 and "Traceback" not in gone.stderr
    assert gone.stderr.startswith("glimmer: none.jsonl: found no such file")


def test_the_noise_floor_of_repeated_passes(tmp_path, capsys):
    names = [f"q{i}" for i in range(10)]
    paths, repeats = [], []
    for when, right in (("a", 3), ("b", 7)):
        rows = [record(q, "correct" if i < right else "wrong") for i, q in enumerate(names)]
        again = [
            {k: row[k] for k in ("id", "outcome", "scores")} | {"pass": 1, "same_tokens": True}
            for row in rows
        ]
        again[0]["scores"] = again[0]["scores"] | {"exact_match": 0}
        paths.append(write(tmp_path / f"{when}.jsonl", rows))
        repeats.append(write(tmp_path / f"{when}.repeats.jsonl", again))
    assert main(["compare", *paths]) == 0
    assert "Noise floor: not measured; it needs repeated passes (--repeats)" in (
        capsys.readouterr().out
    )
    assert main(["compare", *paths, "--repeats", *repeats]) == 0
    assert "Noise floor: ±19.6 points, 2.0 of 10 questions" in capsys.readouterr().out
    assert main(["compare", *paths, "--repeats", repeats[0], "none"]) == 1
    assert "none: found no such file" in capsys.readouterr().err


def test_a_reader_that_stops_reading(pair, tmp_path):
    out = tmp_path / "out.json"
    command = f"{sys.executable} -u -m glimmer.cli compare {' '.join(pair)} --out {out}"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} | true"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "") and out.exists()


def test_a_runs_own_records(tmp_path, capsys):
    mine = [record(f"q{i}", "wrong") for i in range(8)]
    other = [record(f"q{i}", "correct") for i in range(8)]
    for row in other:
        row["hashes"]["settings"] = "others"
    paths = write(tmp_path / "a.jsonl", mine), write(tmp_path / "b.jsonl", other)
    out = tmp_path / "out.json"
    assert main(["compare", *paths, "--out", str(out)]) == 0
    assert "note: settings differ for 8 of 8 questions" in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert found["measured"]["retrieval"]["before"]["ceiling"] == 0.0
    assert found["measured"]["outcomes"] == {"wrong": {"correct": 8}}
    assert found["measured_on"]["differing"] == {"settings": 8}


def test_samples_data_sets_and_hops_of_any_system(tmp_path, capsys):
    """Two answers a question; after training the first is right, and half of the second."""
    rows = [
        {
            "id": f"q{i}",
            "exact_match": 0,
            "dataset": "nq" if i < 4 else "musique",
            "hops": 1 + i % 2,
        }
        for i in range(8)
    ]
    before = [row | {"samples": [{"exact_match": 0}]} for row in rows]
    after = [
        row | {"exact_match": 1, "samples": [{"scores": {"exact_match": i % 2}}]}
        for i, row in enumerate(rows)
    ]
    out = tmp_path / "out.json"
    paths = write(tmp_path / "a.jsonl", before), write(tmp_path / "b.jsonl", after)
    assert main(["compare", *paths, "--out", str(out)]) == 0
    assert "pass@1 0.0 → 75.0 %" in (shown := capsys.readouterr().out)
    assert "pass@2 0.0 → 100.0 %" in shown
    found = json.loads(out.read_text())["measured"]
    assert found["by_dataset"]["musique"]["questions"] == 4 and set(found["by_hops"]) == {"1", "2"}
    assert found["by_hops"]["1"]["holm_p"] == pytest.approx(2 * 2 / 2**4)


def harness(right, filters=("strict-match",), **changes):
    """Lines as lm-evaluation-harness' evaluator writes them."""
    return [
        {
            "doc_id": i,
            "doc": {"question": f"q {i}"},
            "target": "7",
            "arguments": [["q", {}]],
            "resps": [["7"]],
            "filtered_resps": ["7"],
            "filter": name,
            "metrics": ["exact_match"],
            "doc_hash": f"d{i}",
            "prompt_hash": f"p{i}",
            "target_hash": "t",
            "exact_match": float(i in right),
        }
        | changes
        for i in range(20)
        for name in filters
    ]


def test_harness_logs(tmp_path, capsys):
    both = ("strict-match", "flexible-extract")
    a = write(tmp_path / "a.jsonl", harness(range(5), both))
    b = write(tmp_path / "b.jsonl", harness(range(15), both))
    assert main(["compare", a, b, "--filter", "strict-match"]) == 0
    assert "20 questions: 10 gained, 0 lost" in capsys.readouterr().out
    assert main(["compare", a, b]) == 1
    assert "--filter" in capsys.readouterr().err
    assert main(["compare", a, b, "--filter", "none"]) == 1
    assert "it has strict-match, flexible-extract" in capsys.readouterr().err
    assert main(["compare", a, b, "--filter", "strict-match", "--metric", "acc"]) == 1
    assert "['exact_match'], expected 'acc'" in capsys.readouterr().err
    early = [
        [{k: v for k, v in row.items() if k not in ("filter", "metrics")} for row in harness(right)]
        for right in (range(5), range(15))
    ]
    paths = [
        write(tmp_path / f"{name}.jsonl", rows) for name, rows in zip("ef", early, strict=True)
    ]
    assert main(["compare", *paths]) == 0
    assert "20 questions: 10 gained, 0 lost" in capsys.readouterr().out
    other = write(tmp_path / "c.jsonl", harness(range(5), doc_hash="x"))
    assert main(["compare", write(tmp_path / "d.jsonl", harness([])), other]) == 1
    assert "another 'question' under the id '0'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found no record"),
        ('{"id": "q0"}\n', "line 1: found no 'exact_match'"),
        ('{"exact_match": 1}\n', "line 1: found the id None"),
        ('{"id": true, "exact_match": 1}\n', "line 1: found the id True"),
        ('{"id": "q0", "exact_match": NaN}\n', "line 1: found exact_match nan"),
        ('{"id": "q0", "exact_match": 0.5}\n', "expected 0 or 1"),
        ('{"id": "q0", "exact_match": "1"}\n', "line 1: found exact_match '1'"),
        ('{"id": "q0", "exact_match": 1, "f1": 2}\n', "line 1: found f1 2"),
        ('{"id": "q0", "exact_match": 1, "type": 3}\n', "found 'type': 3"),
        ('{"id": "q0", "exact_match": 1, "samples": 3}\n', "found 'samples': 3"),
        ('{"id": "q0", "exact_match": 1, "samples": [{}]}\n', "found no 'exact_match'"),
        ('{"id": 0, "exact_match": 1}\n{"id": "0", "exact_match": 1}\n', "which line 1 has too"),
        ('{"id": "q0", "acc": 1}\n', "It has acc: choose with --metric"),
        ("[1]\n", "line 1: found a list"),
        ('[\n{"id": "q0"}\n]\n', "found a JSON array over several lines"),
        ("[" * 100_000 + "\n", "found a line that cannot be read"),
        ('{"id": ' + "9" * 5000 + "}\n", "found a line that cannot be read"),
        ('{"id": "q0", "exact_match": 1}\n{"id": "q1", "exa', "line 2: expected one JSON value"),
        ('{"id": "q1", "exact_match": 1}\n', "1 of 1 questions missing, the first 'q0'"),
    ],
)
def test_wrong_input_is_named(tmp_path, capsys, text, message):
    good = write(tmp_path / "good.jsonl", minimal([], total=1))
    bad = tmp_path / "bad.jsonl"
    bad.write_text(text)
    assert main(["compare", good, str(bad)]) == 1
    shown = capsys.readouterr().err
    assert message in shown and "bad.jsonl" in shown and shown.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b'{"id": "q0", "exact_match": 1}', mtime=0), "found a gzip file"),
        ('{"id": "q0", "exact_match": 1}'.encode("utf-16"), "found UTF-16 text"),
    ],
    ids=["gzip", "utf-16"],
)
def test_other_formats_are_named(tmp_path, capsys, content, message):
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(content)
    assert main(["compare", write(tmp_path / "good.jsonl", minimal([], total=1)), str(bad)]) == 1
    shown = capsys.readouterr().err
    assert message in shown and "Convert it" in shown


def test_inputs_that_are_no_regular_file(pair, tmp_path, capsys):
    assert main(["compare", pair[0], str(tmp_path)]) == 1
    assert f"{tmp_path}: found a folder" in capsys.readouterr().err
    os.mkfifo(tmp_path / "pipe")
    assert main(["compare", pair[0], str(tmp_path / "pipe")]) == 1
    assert "found a pipe or device" in capsys.readouterr().err


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_out_never_takes_the_place_of_an_input(pair, tmp_path, capsys, which):
    inputs = [*pair, *(write(tmp_path / f"{name}.repeats.jsonl", []) for name in "ab")]
    (tmp_path / "link.json").symlink_to(inputs[which])
    before = [Path(path).read_bytes() for path in inputs]
    out = str(tmp_path / "link.json")
    assert main(["compare", *pair, "--repeats", *inputs[2:], "--out", out]) == 1
    assert "Correct --out" in capsys.readouterr().err
    assert [Path(path).read_bytes() for path in inputs] == before


def test_samples_of_different_numbers(tmp_path, capsys):
    one = write(tmp_path / "one.jsonl", minimal([0], total=4))
    two = write(tmp_path / "two.jsonl", minimal([0], total=4, samples=[{"exact_match": 1}]))
    assert main(["compare", one, two]) == 1
    shown = capsys.readouterr().err
    assert f"1 a question in {one} and 2 a question in {two}" in shown
    assert "run again" not in shown


def test_a_filter_where_there_is_none(pair, capsys):
    assert main(["compare", *pair, "--filter", "strict-match"]) == 1
    assert "Leave --filter out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--resamples", "99"], "found '99', expected a whole number from 100"),
        (["--seed", "-1"], "found '-1', expected a whole number from 0"),
        (["--seed", "1.5"], "found '1.5'"),
        (["--metrik", "acc"], "[--metric METRIC]"),
        ([], "required: A.jsonl, B.jsonl"),
    ],
)
def test_wrong_usage(pair, capsys, wrong, message):
    with pytest.raises(SystemExit) as stop:
        main(["compare", *(pair if wrong else []), *wrong])
    assert message in capsys.readouterr().err
    assert stop.value.code == 2
