"""A package's names, resolved on first use."""

import sys

import pytest

import glimmer.retrieval
from glimmer.lazy import lazy


def test_a_module_is_imported_with_its_first_name(tmp_path, monkeypatch):
    (tmp_path / "late_module.py").write_text("thing = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    names, resolve, listed = lazy("pkg", {"thing": "late_module", "gone": "no_such_module"})
    assert names == listed() == ["gone", "thing"]
    assert "late_module" not in sys.modules
    assert resolve("thing") == 7 and sys.modules.pop("late_module")
    with pytest.raises(AttributeError, match="module 'pkg' has no attribute 'other'"):
        resolve("other")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        resolve("gone")


def test_every_name_of_a_package_is_there():
    assert set(glimmer.retrieval.__all__) == set(dir(glimmer.retrieval))
    for name in glimmer.retrieval.__all__:
        assert getattr(glimmer.retrieval, name).__name__ == name
    with pytest.raises(ImportError, match="cannot import name 'nothing' from 'glimmer.retrieval'"):
        from glimmer.retrieval import nothing  # noqa: F401
