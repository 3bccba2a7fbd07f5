from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from glimmer.errors import DataError, GlimmerError
from glimmer.provenance import (
    code_parts,
    collect,
    fingerprint,
    imported_packages,
    locked_versions,
    prepare_children,
)
from glimmer.provenance.changes import changes
from glimmer.provenance.packages import IMMATERIAL

# stage -> helper -> deep, and a package that resolves its names on first use.
SOURCES = {
    "__init__.py": '"""Package."""\n__version__ = "1"\n',
    "stage.py": """
        '''Stage.'''
        import json
        from pkg.helper import compute

        def run(x):
            '''Run.'''
            # a comment
            return compute(x) + 1
        """,
    "helper.py": """
        def compute(x):
            from pkg.deep import table
            return table[x]
        """,
    "deep.py": "table = {0: 1}\n",
    "alone.py": "x = 1\n",
    "lazy/__init__.py": """
        from glimmer.lazy import lazy

        __all__, __getattr__, __dir__ = lazy(
            __name__, {"Client": "pkg.lazy.client", "Index": "pkg.lazy.index"}
        )
        """,
    "lazy/client.py": "from . import errors\nclass Client: pass\n",
    "lazy/errors.py": "class Lost(Exception): pass\n",
    "lazy/index.py": "class Index: pass\n",
    "render/__init__.py": "from .write import write\n",
    "render/write.py": "from ..deep import table\ndef write(): return table\n",
    "render/chat.jinja": "{{ x }}\n",
    "render/parts/tail.jinja": "{{ y }}\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = tmp_path / "pkg"
    for name, text in SOURCES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(textwrap.dedent(text))
    return root


@pytest.fixture
def seen(package: Path) -> Callable[..., set[str]]:
    def names(*modules: str, **more: object) -> set[str]:
        found = code_parts(*modules, root=package, **more)
        return {name.removeprefix("pkg/") for name in found}

    return names


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_follows_imports_inside_functions(seen: Callable[..., set[str]]) -> None:
    assert seen("pkg.stage") == {"__init__.py", "stage.py", "helper.py", "deep.py"}


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("stage.py", "# a comment", "# another\n    # comment"),
        ("stage.py", "'''Run.'''", "'''Run it, twice\n    as long.'''"),
        ("stage.py", "'''Stage.'''", ""),
        ("stage.py", "compute(x) + 1", "(compute( x )\n        + 1)"),
        ("__init__.py", '"""Package."""', '"""Other words."""'),
        ("helper.py", "return", "'a bare string'\n    return"),
        ("deep.py", "{0: 1}", "{0x0: 1}"),
        ("alone.py", "1", "2"),
        ("render/chat.jinja", "x", "z"),
    ],
)
def test_what_is_no_change(package: Path, file: str, old: str, new: str) -> None:
    before = fingerprint("pkg.stage", root=package)
    edit(package / file, old, new)
    assert fingerprint("pkg.stage", root=package) == before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("stage.py", "+ 1", "+ 2"),
        ("stage.py", "import json", "import math"),
        ("helper.py", "table[x]", "table[x] * 2"),
        ("deep.py", "1", "2"),
        ("deep.py", "{0: 1}", "{0: '1'}"),
        ("deep.py", "{0: 1}", "{0: 1.0}"),
        ("deep.py", "{0: 1}", "{0: True}"),
        ("__init__.py", '"1"', '"2"'),
    ],
)
def test_what_is_a_change(package: Path, file: str, old: str, new: str) -> None:
    before = code_parts("pkg.stage", root=package)
    edit(package / file, old, new)
    after = code_parts("pkg.stage", root=package)
    assert [name for name in after if after[name] != before[name]] == [f"pkg/{file}"]
    assert fingerprint("pkg.stage", root=package) != before


def test_a_quick_edit_of_the_same_length_is_seen(package: Path) -> None:
    before = fingerprint("pkg.deep", root=package)
    edit(package / "deep.py", "1", "2")
    os.utime(package / "deep.py", ns=(1, (package / "deep.py").stat().st_mtime_ns + 1))
    assert fingerprint("pkg.deep", root=package) != before


def test_neither_order_nor_place_count(package: Path, tmp_path: Path) -> None:
    first = fingerprint("pkg.stage", "pkg.render", root=package)
    assert fingerprint("pkg.render", "pkg.stage", "pkg.stage", root=package) == first
    moved = tmp_path / "elsewhere" / "pkg"
    moved.parent.mkdir()
    package.rename(moved)
    (moved / "__pycache__").mkdir()
    (moved / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert fingerprint("pkg.stage", "pkg.render", root=moved) == first


def test_relative_imports_and_data_files(package: Path, seen: Callable[..., set[str]]) -> None:
    expected = {"__init__.py", "deep.py"} | {n for n in SOURCES if n.startswith("render/")}
    assert seen("pkg.render") == seen("pkg.render.write") == expected
    before = fingerprint("pkg.render", root=package)
    edit(package / "render" / "parts" / "tail.jinja", "y", "z")
    assert fingerprint("pkg.render", root=package) != before


@pytest.mark.parametrize(
    ("line", "more"),
    [
        ("from pkg.lazy import Client", {"lazy/client.py", "lazy/errors.py"}),
        ("from pkg.lazy import Index as Other", {"lazy/index.py"}),
        ("from pkg.lazy.errors import Lost", {"lazy/errors.py"}),
        ("import pkg.lazy", {"lazy/client.py", "lazy/errors.py", "lazy/index.py"}),
        ("from pkg import lazy", {"lazy/client.py", "lazy/errors.py", "lazy/index.py"}),
        ("from pkg.lazy import *", {"lazy/client.py", "lazy/errors.py", "lazy/index.py"}),
        ("import subprocess; c = ['-m', 'pkg.lazy.index']", {"lazy/index.py"}),
        ("import importlib; m = importlib.import_module('pkg.lazy.errors')", {"lazy/errors.py"}),
    ],
)
def test_lazy_packages_count_by_name(
    package: Path, seen: Callable[..., set[str]], line: str, more: set[str]
) -> None:
    (package / "user.py").write_text(line + "\n")
    assert seen("pkg.user") == {"__init__.py", "user.py", "lazy/__init__.py"} | more


def test_type_checking_imports_do_not_run(package: Path, seen: Callable[..., set[str]]) -> None:
    (package / "user.py").write_text(
        "import typing\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from pkg.deep import table\n"
        "if typing.TYPE_CHECKING:\n    import pkg.stage\nelse:\n    import pkg.alone\n"
    )
    assert seen("pkg.user") == {"__init__.py", "user.py", "alone.py"}


def test_a_circle_ends(package: Path, seen: Callable[..., set[str]]) -> None:
    (package / "a.py").write_text("import pkg.b\n")
    (package / "b.py").write_text("import pkg.a\n")
    assert seen("pkg.a") == {"__init__.py", "a.py", "b.py"}


def test_scripts(package: Path, tmp_path: Path, seen: Callable[..., set[str]]) -> None:
    script = tmp_path / "scripts" / "embed.py"
    script.parent.mkdir()
    script.write_text('"""Rule."""\nfrom pkg.helper import compute\nsnakemake.params\n')
    names = seen(scripts=[script])
    assert names == {"scripts/embed.py", "__init__.py", "helper.py", "deep.py"}
    before = fingerprint(scripts=[script], root=package)
    edit(script, '"""Rule."""', "# nothing")
    assert fingerprint(scripts=[script], root=package) == before
    edit(script, "params", "config")
    assert fingerprint(scripts=[script], root=package) != before


def test_what_cannot_be_read_is_named(package: Path, tmp_path: Path) -> None:
    with pytest.raises(GlimmerError, match=r"no module 'pkg\.absent'"):
        fingerprint("pkg.absent", root=package)
    with pytest.raises(GlimmerError, match="no module 'os'"):
        fingerprint("os", root=package)
    with pytest.raises(GlimmerError, match=r"absent\.py cannot be read"):
        fingerprint(scripts=[tmp_path / "absent.py"], root=package)
    (package / "deep.py").write_text("def (")
    with pytest.raises(GlimmerError, match=r"deep\.py is not Python"):
        fingerprint("pkg.stage", root=package)


def test_the_real_package_is_parsed_and_not_imported() -> None:
    code = (
        "import sys; from glimmer.provenance import code_parts\n"
        "print('glimmer/retrieval/embed.py' in code_parts('glimmer.retrieval.embed'),\n"
        "'glimmer.retrieval.embed' in sys.modules, 'torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "False", "False"]


def test_the_loaded_modules_of_glimmer_are_a_part_of_what_is_followed() -> None:
    """Against Python itself: whatever an import really loads is in the fingerprint."""
    for module in ("glimmer.assets.fetch", "glimmer.retrieval.client", "glimmer.config"):
        code = (
            f"import sys, {module}\n"
            "print(*(m for m in sys.modules if m.split('.')[0] == 'glimmer'))"
        )
        found = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        parts = code_parts(module)
        for loaded in found.stdout.split():
            path = loaded.replace(".", "/")
            assert {f"{path}.py", f"{path}/__init__.py"} & set(parts), (module, loaded)


def git(folder: Path, *command: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *command], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_record_of_a_clean_and_a_changed_checkout(tmp_path: Path) -> None:
    repository = tmp_path / "a folder"
    repository.mkdir()
    git(repository, "init", "-q")
    (repository / "lock.txt").write_text("abc")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "x")
    record = collect(
        repository=repository,
        lock=repository / "lock.txt",
        seeds={"training": 1, "evaluation": 0},
        files={"corpus": repository / "lock.txt"},
        packages=("numpy", "no-such-package"),
    )
    assert record["commit"] == git(repository, "rev-parse", "HEAD")
    assert (record["dirty"], record["changed"]) == (False, 0)
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert record["lock"] == {"name": "lock.txt", "sha256": abc}
    assert record["files"] == {"corpus": {"sha256": abc, "bytes": 3}}
    assert list(record["seeds"]) == ["evaluation", "training"]
    assert re.match(r"\d+\.\d+", record["packages"]["numpy"])
    assert record["packages"]["no-such-package"] is None
    json.dumps(record, allow_nan=False)

    (repository / "lock.txt").write_text("abd")
    record = collect(repository=repository, packages=())
    assert (record["dirty"], record["changed"], record["lock"]) == (True, 1, None)


def test_record_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (os.environ["PATH"], ""):
        monkeypatch.setenv("PATH", path)
        record = collect(repository=tmp_path, packages=())
        assert (record["commit"], record["dirty"], record["changed"]) == (None, None, None)
        assert record["machine"]["gpus"] == [] or path


def test_machine() -> None:
    machine = collect(repository=".", packages=())["machine"]
    assert machine["cores"] >= 1 and machine["memory_bytes"] > 2**28
    assert machine["platform"].startswith(os.uname().sysname)


def test_no_secret_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret_value")
    monkeypatch.setenv("USER", "someone-private")
    text = json.dumps(collect(repository="."))
    assert "hf_secret_value" not in text and "someone-private" not in text
    assert os.uname().nodename not in text or len(os.uname().nodename) < 4
    assert str(Path.home()) not in text


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent: cannot be read.*'index'"):
        collect(repository=tmp_path, files={"index": tmp_path / "absent"})
    with pytest.raises(DataError, match=r"absent: cannot be read.*'lock'"):
        collect(repository=tmp_path, lock=tmp_path / "absent")


def test_children_import_from_the_checkout_first(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("PYTHONPATH", f"/elsewhere:{tmp_path}")
    for _ in range(2):
        prepare_children(tmp_path)
        assert os.environ["PYTHONPATH"] == f"{tmp_path}:/elsewhere"
    monkeypatch.delenv("PYTHONPATH")
    prepare_children(tmp_path)
    assert os.environ["PYTHONPATH"] == str(tmp_path)


def test_a_fingerprint_names_the_files(package: Path) -> None:
    parts = dict(part.rsplit(":", 1) for part in fingerprint("pkg.stage", root=package).split())
    whole = code_parts("pkg.stage", root=package)
    assert parts == {name: digest[:16] for name, digest in whole.items()}


def test_packages_that_code_imports(package: Path) -> None:
    (package / "deep.py").write_text("import numpy as np\nfrom faiss.x import y\nfrom . import z\n")
    assert imported_packages("pkg.stage", root=package) == {"json", "numpy", "faiss"}
    assert imported_packages("pkg.alone", root=package) == set()


def test_locked_versions(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(
        "# a lock\nfaiss-cpu==1\nnumpy==2\nJinja2==3\ntqdm==4\nsentence-transformers==5\n"
        "tokenizers==6\ntransformers==7\n"
    )
    assert locked_versions(lock, {"json", "faiss", "tqdm"}) == {"faiss-cpu": "1"}
    found = locked_versions(lock, {"sentence_transformers"})  # and what that computes with
    assert found == {
        "jinja2": "3",
        "sentence-transformers": "5",
        "tokenizers": "6",
        "transformers": "7",
    }
    lock.write_text(lock.read_text().replace("numpy==2", "numpy==3"))
    assert locked_versions(lock, ["numpy"]) == {"numpy": "3"}
    with pytest.raises(DataError, match="absent.txt: cannot be read"):
        locked_versions(tmp_path / "absent.txt", ["numpy"])


def test_every_third_party_import_is_in_the_lock_or_left_out_on_purpose() -> None:
    root = Path(__file__).parents[1]
    stages = {
        "glimmer.retrieval.embed": {"torch", "transformers", "sentence-transformers", "numpy"},
        "glimmer.retrieval.index": {"faiss-cpu", "numpy"},
        "glimmer.renderer.parity": {"renderers", "transformers"},
        "glimmer.training.run": {"torch", "torchtitan", "renderers", "faiss-cpu"},
        "glimmer.heldout.evaluation": {"torch", "faiss-cpu", "tokenizers"},
        "glimmer.heldout.paired": {"numpy", "scipy"},
    }
    for stage, expected in stages.items():
        found = locked_versions(root / "envs/workflow.txt", imported_packages(stage))
        assert expected <= set(found), stage
        assert not IMMATERIAL & set(found)


A, B, C = (c * 16 for c in "abc")


@pytest.mark.parametrize(
    ("recorded", "present", "expected"),
    [
        ({"threads": 2}, {"threads": 2}, []),
        ({"threads": 2}, {"threads": 3}, ["threads 2 → 3"]),
        (
            {"settings": {"embedding": {"model": "a", "batch": 1}}},
            {"settings": {"embedding": {"model": "b", "batch": 1}}},
            ["config.embedding.model a → b"],
        ),
        (
            {"settings": {"a": {"x": 1}}},
            {"settings": {"a": {"y": None}}},
            ["config.a.y (none) → None", "config.a.x 1 → (none)"],
        ),
        (
            {"code": f"x/a.py:{A} x/b.py:{B} x/c.py:{C}", "threads": 2},
            {"code": f"x/a.py:{A} x/b.py:{C} x/d.py:{C}", "threads": 2},
            ["x/b.py", "x/d.py", "x/c.py"],
        ),
        (
            {"packages": {"packages": {"torch": "1"}}, "source": {}},
            {"packages": {"packages": {"torch": "2"}}, "source": {"c.jsonl": {"found": "ab"}}},
            ["packages.torch 1 → 2", "source file c.jsonl"],
        ),
        ({"gone": "x"}, {}, ["parameters"]),
        ({}, {"code": f"x/a.py:{A}"}, ["x/a.py"]),
        (
            {"lock": "0" * 64, "settings": {"run": "a"}},
            {"lock": "1" * 64, "settings": {"run": "b"}},
            [f"lock {'0' * 59}… → {'1' * 59}…", "config.run a → b"],
        ),
    ],
)
def test_what_changed(recorded: dict, present: dict, expected: list[str]) -> None:
    """Records have neither names nor order."""
    kept = sorted(repr(value) for value in recorded.values())
    assert sorted(changes(kept, present)) == sorted(expected)
    assert sorted(changes(kept[::-1], present)) == sorted(expected)
