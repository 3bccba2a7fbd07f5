from __future__ import annotations

import copy
import datetime
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from glimmer import config
from glimmer.errors import ConfigError
from glimmer.retrieval.settings import SERVICE_DEFAULTS

FOLDER = Path(__file__).parents[2] / "config"
DEFAULT = FOLDER / "config.yaml"


@pytest.fixture
def good() -> dict[str, Any]:
    return config.load(DEFAULT)


def problem(changed: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        config.validate(changed)
    return str(caught.value)


def put(good: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The config with one dotted key set."""
    *parts, last = key.split(".")
    inner = good
    for part in parts:
        inner = inner[part]
    inner[last] = value
    return good


@pytest.mark.parametrize(
    "path", sorted(p for p in FOLDER.glob("*.yaml") if p.name != "config.schema.yaml")
)
def test_shipped_configs_are_valid_over_the_default(path: Path) -> None:
    config.load(DEFAULT, path)


def leaves(schema: dict[str, Any], key: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, body in schema.get("properties", {}).items():
        path = f"{key}.{name}" if key else name
        if "properties" in body:
            yield from leaves(body, path)
        else:
            yield path, body


def test_every_key_is_described_and_every_section_closed() -> None:
    schema = config.schema()
    sections = [schema, *(b for b in schema["properties"].values() if "properties" in b)]
    assert all(section["additionalProperties"] is False for section in sections)
    for key, body in leaves(schema):
        body = schema["$defs"][body["$ref"].rpartition("/")[2]] if "$ref" in body else body
        assert body["description"].endswith("."), key


def test_every_key_of_the_default_can_be_misspelt(good: dict[str, Any]) -> None:
    """Each key of the default config, with two letters swapped: refused, the right one offered."""
    for part, body in good.items():
        for key in body if isinstance(body, dict) else ():
            swapped = key[:-2] + key[-1] + key[-2:-1]
            wrong = swapped if swapped != key else f"{key}x"
            changed = copy.deepcopy(good)
            changed[part][wrong] = changed[part].pop(key)
            text = problem(changed)
            assert f"{part}.{wrong}: found" in text, text
            assert f"Did you mean {key!r}?" in text, text


def test_service_settings_agree_with_the_service() -> None:
    assert set(config.schema()["properties"]["retrieval"]["properties"]) <= set(SERVICE_DEFAULTS)


def test_misspelt_section(good: dict[str, Any]) -> None:
    good["trainig"] = good.pop("training")
    text = problem(good)
    assert "trainig: found" in text and "Did you mean 'training'?" in text
    assert "training: missing" not in text


def test_a_key_of_another_section_is_told_from_a_misspelt_one(good: dict[str, Any]) -> None:
    text = problem(put(good, "index.topk", 3))
    assert "index.topk: found 3, but there is no such key. Did you mean search.topk?" in text


def test_missing_keys_are_all_named(good: dict[str, Any]) -> None:
    del good["training"]["steps"], good["index"]["M"], good["run"]
    text = problem(good)
    assert "training.steps: missing, expected a whole number at least 1. Add it." in text
    assert "index.M: missing" in text and "run: missing, expected a text" in text


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("training.steps", 0, "found 0, expected a whole number at least 1"),
        ("training.steps", -5, "found -5, expected a whole number at least 1"),
        ("training.steps", "50", "found '50', expected a whole number.*Write it without quotes"),
        ("training.steps", 50.0, "found 50.0, expected a whole number"),
        ("training.steps", True, "found true, expected a whole number"),
        ("training.steps", None, "found null, expected a whole number.*Give it a value"),
        ("training.steps", [1], r"found \[1\]"),
        ("training.learning_rate", "2e-4", r"YAML takes 2e-4 for text: write 2\.0e-4\."),
        ("training.learning_rate", float("nan"), "found nan, expected a finite number"),
        ("training.max_grad_norm", float("inf"), "found inf, expected a finite number"),
        ("training.samples_per_prompt", 1, "at least 2"),
        ("training.checkpoint_every", 0, "at least 1"),
        ("training.engine", "gpu", "found 'gpu', expected one of local, titan"),
        ("recall.min_recall", 0, "found 0, expected a number above 0"),
        ("training.control", "shuffled", "one of none, shuffled_rewards, zero_advantages"),
        ("training.adam_beta2", 1, "at least 0 and below 1"),
        ("training", None, "found null, expected a section with keys"),
        ("training", [], "expected a section with keys"),
        ("evaluation.questions", 0, "at least 1"),
        ("renderer.current_date", None, "found null, expected a text"),
        ("renderer.current_date", "14.8.2026", "found '14.8.2026', expected a text that matches"),
        ("renderer.current_date", "2026-02-30", "expected a date of the calendar"),
        ("renderer.current_date", datetime.date(2026, 8, 14), "the date 2026-08-14.*in quotes"),
        ("renderer.implementation", "hf", "one of glimmer, library"),
        ("renderer.without_template", "skip", "one of golden, fail"),
        ("run", "a/b", "found 'a/b'"),
        ("run", "..", "found '..'"),
        ("run", ".hidden", "found"),
        ("run", "; touch x", "found"),
        ("run", "$(touch x)", "expected a text that matches"),
        ("run", "a\n", "found"),
        ("run", "", "found"),
        ("run", 1, "found 1, expected a text.*Write it in quotes"),
        ("results", "", "found"),
        ("results", "o {x}", "found 'o {x}', expected a text that matches"),
        ("threads", 0, "at least 1"),
        ("checkpoint.revision", "main", "found 'main'"),
        ("checkpoint.sha256", {"config.json": "abc"}, r"config\.json: found 'abc'"),
        ("checkpoint.sha256", None, "found null, expected a section"),
        ("embedding.device", "gpu", "found 'gpu'"),
        ("retrieval.port", 65536, "at most 65535"),
        ("retrieval.url", "localhost:8000", "found"),
        ("recall.min_recall", 98, "above 0 and at most 1"),
        ("search.topk", 0, "at least 1"),
        ("parity.max_entropy_fraction", 1, "above 0 and below 1"),
    ],
)
def test_a_wrong_value_is_explained(good: dict[str, Any], key: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        config.validate(put(good, key, value))
    assert f"  {key}" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"search.topk": 200}, r"search\.topk: found 200, expected at most index\.ef_search"),
        ({"run": "cache"}, r"run: found 'cache', expected another name"),
        ({"run": "Logs"}, r"run: found 'Logs', expected another name"),
        ({"run": "compare_runs.json"}, r"run: found 'compare_runs.json'"),
        ({"recall.k": 200}, r"recall\.k: found 200, expected at most index\.ef_search"),
        (
            {"retrieval.ef_search": 2, "search.topk": 3},
            r"search\.topk: found 3, expected at most retrieval\.ef_search, which is 2",
        ),
        (
            {"search.max_new_tokens": 5000},
            r"search\.max_new_tokens: found 5000, expected at most search\.max_rollout_tokens",
        ),
        ({"checkpoint.source": "hub:a/b"}, r"checkpoint\.revision: found None.*40 hex"),
        ({"embedding.model": "hub:a/b"}, r"embedding\.revision: found null.*40 hex"),
        ({"corpus.revision": "0" * 40}, r"corpus\.revision: .*expected null"),
        ({"questions.heldout": "train.jsonl"}, "the same file as questions.train"),
        (
            {"report.heldout_curve": True, "training.engine": "titan"},
            r"report\.heldout_curve: found true with training\.engine 'titan', expected false",
        ),
        (
            {"renderer.implementation": "library", "training.engine": "titan"},
            r"renderer\.implementation: found 'library', expected 'glimmer' with the engine titan",
        ),
        (
            {"report.heldout_curve": True, "training.keep_checkpoints": 1},
            r"report\.heldout_curve: found true with training\.keep_checkpoints 1.*Raise keep",
        ),
    ],
)
def test_settings_that_do_not_fit_together(
    good: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    for key, value in changes.items():
        put(good, key, value)
    with pytest.raises(ConfigError, match=words):
        config.validate(good)


def test_all_problems_at_once(good: dict[str, Any]) -> None:
    put(good, "training.steps", 0)
    put(good, "index.M", "x")
    put(good, "seeed", 1)
    assert len(problem(good).splitlines()) == 4


def test_what_is_valid(good: dict[str, Any]) -> None:
    for key, value in [
        ("retrieval.url", "http://10.0.0.1:8000/retrieve"),
        ("training.learning_rate", 0.0),
        ("training.learning_rate", 1),
        ("renderer.knowledge_cutoff", None),
        ("report.title", None),
        ("embedding.device", "cuda:1"),
        ("results", "a folder; $(touch x) 'q' \"d\""),
        ("checkpoint.sha256", {"config.json": "AB" * 32}),
    ]:
        config.validate(put(good, key, value))
    put(good, "corpus.source", "hub:a/b")
    config.validate(put(good, "corpus.revision", "0" * 40))


def test_ordered_dicts_as_a_workflow_engine_has_them(good: dict[str, Any]) -> None:
    config.validate(
        OrderedDict((k, OrderedDict(v) if isinstance(v, dict) else v) for k, v in good.items())
    )


def write(tmp_path: Path, text: str, name: str = "more.yaml") -> Path:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path / name


def test_later_files_win_key_by_key(tmp_path: Path, good: dict[str, Any]) -> None:
    first = write(tmp_path, "training: {steps: 3, seed: 1}", "a.yaml")
    second = write(tmp_path, "training: {seed: 2}\nrun: other", "b.yaml")
    loaded = config.load(DEFAULT, first, second)
    assert (loaded["training"]["steps"], loaded["training"]["seed"]) == (3, 2)
    assert loaded["run"] == "other"
    del loaded["training"], good["training"], loaded["run"], good["run"]
    assert loaded == good


def test_merging_copies() -> None:
    base, over = {"a": {"b": [1]}}, {"a": {"c": [2]}}
    merged = config.merge(base, over)
    merged["a"]["b"].append(9)
    merged["a"]["c"].append(9)
    assert base == {"a": {"b": [1]}} and over == {"a": {"c": [2]}}
    assert config.merge({"a": {"b": 1}}, {"a": None}) == {"a": None}


def test_a_problem_names_the_files(tmp_path: Path) -> None:
    path = write(tmp_path, "training: {steps: 0}")
    with pytest.raises(ConfigError, match=str(path)):
        config.load(DEFAULT, path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2\n", "the key 'a' in line 2, which line 1 has too"),
        ("training:\n  steps: 1\n  seed: 2\n  steps: 3\n", "'steps' in line 4, which line 2"),
        ("a: [\n", "expected YAML"),
        ("a:\n\tb: 1", "expected YAML"),
        ("- a\n", "found list at the top"),
        ("text", "found str at the top"),
        ("1: a\n", "the key 1, which is no text"),
        ("on: a\n", "the key True, which is no text"),
        ("? [a, b]\n: c\n", "no text"),
        ("run: !!python/object/apply:os.system ['true']\n", "expected YAML"),
        ("run: 2026-13-40\n", "expected YAML"),
    ],
)
def test_bad_yaml(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=words) as caught:
        config.load(DEFAULT, path)
    assert str(path) in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read \(No such file"):
        config.load(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        config.load(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"run: \xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.yaml: cannot be read"):
        config.load(tmp_path / "latin.yaml")
    with pytest.raises(ConfigError, match="no file to load"):
        config.load()


def test_an_empty_file_changes_nothing(tmp_path: Path, good: dict[str, Any]) -> None:
    assert config.load(DEFAULT, write(tmp_path, "# nothing\n")) == good


def test_anchors_and_merge_keys_of_yaml(tmp_path: Path) -> None:
    path = write(tmp_path, "training: &t {seed: 5}\nevaluation: {<<: *t, batch: 7}\n")
    loaded = config.load(DEFAULT, path)
    assert (loaded["training"]["seed"], loaded["evaluation"]["seed"]) == (5, 5)


def test_sections(good: dict[str, Any]) -> None:
    part = config.section(good, "training")
    part["steps"] = 1
    assert good["training"]["steps"] != 1
    assert type(config.section({"a": OrderedDict(b=OrderedDict(c=1))}, "a")["b"]) is dict
    with pytest.raises(ConfigError, match="Did you mean 'training'"):
        config.section(good, "trainng")
    with pytest.raises(ConfigError, match="expected a section"):
        config.section(good, "run")


def test_the_schema_file_has_no_key_twice() -> None:
    from glimmer.config.load import read_yaml

    assert read_yaml(FOLDER / "config.schema.yaml") == yaml.safe_load(
        (FOLDER / "config.schema.yaml").read_text()
    )


@pytest.mark.parametrize("key", ["partition", "gpu_partition", "account", "gpu_model"])
@pytest.mark.parametrize("text", ["; touch x", "$(touch x)", "a b", "'", '"', "a\nb", "`x`", ""])
def test_names_that_a_cluster_gets_hold_nothing_for_a_shell(good, key: str, text: str) -> None:
    good["cluster"][key] = text
    assert f"cluster.{key}: found {text!r}" in problem(good)


@pytest.mark.parametrize("text", ["; touch x", "$(touch x)", "a b", "a/b", "..", "-x", "a\nb", ""])
def test_the_name_of_a_run_is_one_plain_word(good, text: str) -> None:
    good["run"] = text
    assert f"run: found {text!r}" in problem(good)


@pytest.mark.parametrize(
    ("steps", "every", "keep", "expected"),
    [
        (50, 10, 2, [40]),
        (50, 10, 5, [10, 20, 30, 40]),
        (50, 10, 9, [10, 20, 30, 40]),
        (7, 3, 3, [3, 6]),  # the last step is saved too
        (5, 9, 3, []),
        (50, 10, 1, []),
    ],
)
def test_steps_on_the_way(good, steps, every, keep, expected) -> None:
    good["training"] |= {"steps": steps, "checkpoint_every": every, "keep_checkpoints": keep}
    assert config.curve_steps(good) == []  # nobody asked
    good["report"]["heldout_curve"] = True
    assert config.curve_steps(good) == expected
