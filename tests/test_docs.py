"""Pages that are made are what would be made now; the rest says what is true."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from glimmer.config import load, read_yaml
from glimmer.errors import GlimmerError
from tests import messages

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import generate  # noqa: E402


@pytest.mark.parametrize("name", generate.PAGES)
def test_a_made_page_is_up_to_date(name):
    assert (ROOT / name).read_text() == generate.PAGES[name](), "run `make docs`"


def test_check_says_which_page_differs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generate, "PAGES", {"docs/none.md": lambda: "x"})
    assert generate.main(["--check"]) == 1
    assert "docs/none.md" in capsys.readouterr().err
    assert not (ROOT / "docs/none.md").exists()


def test_every_key_of_the_config_is_described():
    page = (ROOT / "docs/configuration.md").read_text()
    for section, keys in yaml.safe_load((ROOT / "config/config.yaml").read_text()).items():
        if isinstance(keys, dict):
            part = page.split(f"\n## {section}\n")[1].split("\n## ")[0]
            assert all(f"| `{key}` |" in part for key in keys), section
        else:
            assert f"| `{section}` |" in page.split("\n## ")[0]


def test_every_error_class_is_among_those_whose_messages_are_listed():
    for path in (ROOT / "glimmer").rglob("errors.py"):
        importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))

    def below(kind):
        for child in kind.__subclasses__():
            yield child
            yield from below(child)

    own = {kind.__name__ for kind in below(GlimmerError) if kind.__module__.startswith("glimmer.")}
    assert own <= generate.OWN


def test_an_error_can_be_found_by_its_text(tmp_path):
    """A message as it comes out, with its values. Every other test is held to this by conftest."""
    with pytest.raises(GlimmerError) as caught:
        read_yaml(tmp_path / "absent.yaml")
    assert str(caught.value) in messages.said and messages.is_listed(str(caught.value))
    assert not messages.is_listed(str(caught.value) + " And more.")
    assert not messages.is_listed("the moon is not where it should be")
    assert sum(map(len, generate.messages().values())) > 300


def markdown():
    files = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    return [ROOT / name for name in files]


def test_links_lead_somewhere():
    for page in markdown():
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_settings_in_the_pages_exist():
    """`section.key` in backticks, of a section that exists, names a key."""
    schema = yaml.safe_load((ROOT / "config/config.schema.yaml").read_text())["properties"]
    for page in markdown():
        for section, key in re.findall(r"`([a-z]+)\.([a-z_A-Z]+)`", page.read_text()):
            if "properties" in schema.get(section, {}) and key not in (
                "jsonl",
                "json",
                "md",
                "py",
                "yaml",
                "tsv",
                "html",
            ):
                assert key in schema[section]["properties"], f"{page.name}: {section}.{key}"


def test_make_targets_in_the_pages_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in markdown():
        written = page.read_text().partition(generate.MESSAGES)[0]
        for target in re.findall(r"`make ([a-z-]+)`", written):
            assert target in targets, f"{page.name}: make {target}"


def test_commands_of_glimmer_in_the_pages_exist():
    tree = ast.parse((ROOT / "glimmer/cli.py").read_text())
    known = {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_parser"
    }
    for page in markdown():
        for command in re.findall(r"`glimmer ([a-z]+)", page.read_text()):
            assert command in known, f"{page.name}: glimmer {command}"


def test_the_citation_fits_the_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    from glimmer import __version__

    assert citation["version"] == __version__ and citation["license"] == "Apache-2.0"


PROGRAMS = ("make", "snakemake", "glimmer", "python", "printf", "export", "exec", "apt-get", "for")


def shell_lines(page):
    """(line before the block, command with its comment) of every command in a fenced block."""
    text = page.read_text()
    for found in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.M | re.S):
        if found[1] not in ("", "sh", "bash", "console"):
            continue
        before = text[: found.start()].rstrip().rsplit("\n\n", 1)[-1]
        for line in found[2].replace("\\\n", " ").splitlines():
            command = line.removeprefix("$ ")
            if not line.startswith(" ") and command.split(" ")[0] in (*PROGRAMS, ".ci/run"):
                yield before, command


def inline_commands(page):
    """Every command between backticks in a sentence."""
    text = page.read_text().partition(generate.MESSAGES)[0]
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    for command in re.findall(r"`([^`]+)`", text):
        words = command.split()
        if len(words) > 1 and words[0] in (*PROGRAMS, "pytest", "pip", "pip-audit"):
            yield " ".join(words)


def test_every_command_in_a_sentence_is_run_or_its_needs_are_known():
    """By the same table; a `pytest` command is itself a test. The changelog tells what was."""
    table = yaml.safe_load((ROOT / "tests/commands.yaml").read_text())
    unknown = []
    for page in markdown():
        if page.name != "CHANGELOG.md":
            for command in inline_commands(page):
                paths = re.findall(r"\S+\.py\b", command)
                known = command in table or ("pytest" in command and paths)
                if not known or not all((ROOT / path).exists() for path in paths):
                    unknown.append(f"{page.name}: {command}")
    assert unknown == []


def test_tests_named_in_the_pages_exist():
    for page in markdown():
        for path, name in re.findall(r"(tests/[\w/]+\.py)::(\w+)", page.read_text()):
            assert runs(f"{path}::{name}"), f"{page.name}: {path}::{name}"
        for path in re.findall(r"tests/[\w/]+\.py\b", page.read_text()):
            assert (ROOT / path).exists(), f"{page.name}: {path}"


def runs(where):
    """Whether `where` is what it says: .ci/run, a test that exists, or what it needs."""
    if where == ".ci/run":
        return (ROOT / where).exists()
    if where.startswith("needs "):
        return True
    path, _, name = where.partition("::")
    return re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.M) is not None


def test_every_command_of_the_pages_is_run_or_says_what_it_needs():
    table = yaml.safe_load((ROOT / "tests/commands.yaml").read_text())
    found = set()
    for page in markdown():
        for before, line in shell_lines(page):
            command, _, comment = line.partition("  #")
            command = " ".join(command.split())
            found.add(command)
            assert command in table or re.search(r"\bneeds\b", f"{before} {comment}"), (
                f"{page.name}: {command!r} is in no line of tests/commands.yaml and does not say "
                "what it needs"
            )
        found |= set(inline_commands(page))
    assert set(table) <= found, "no page has these any more"
    assert [where for where in table.values() if not runs(where)] == []
    ci = (ROOT / ".ci/run").read_text()
    for command in (command for command, where in table.items() if where == ".ci/run"):
        assert command == ".ci/run" or command in ci, f"{command} is not in .ci/run"


def test_the_settings_that_the_readme_prints(tmp_path):
    """The shell's own printf, and what the config makes of the files."""
    lines = [c for _, c in shell_lines(ROOT / "README.md") if c.startswith("printf")]
    for line in lines:
        subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True)
    made = {path.name: yaml.safe_load(path.read_text()) for path in tmp_path.iterdir()}
    assert made == {
        "mine.yaml": {"run": "lr1e-4", "training": {"learning_rate": 0.0001}},
        "stack.yaml": {"titan": {"python": ".venv-train/bin/python"}},
    }
    defaults = ROOT / "config/config.yaml"
    assert load(defaults, tmp_path / "mine.yaml")["training"]["learning_rate"] == 0.0001
    gpu = load(defaults, ROOT / "config/h200x1.yaml", tmp_path / "stack.yaml")
    assert gpu["titan"]["python"] == ".venv-train/bin/python"
