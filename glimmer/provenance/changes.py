"""What changed between two records of a job's parameters, as short texts.

A record is a list of Python literals, in any order and without names, as the workflow engine keeps
it: mappings of config sections, of source files, of packages; a fingerprint of code; single values.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_CODE = re.compile(r"(?:\S+:[0-9a-f]{16} ?)+")
_LONGEST = 60


def changes(recorded: Sequence[str], present: Mapping[str, Any]) -> list[str]:
    """One text for each difference: a setting with both values, a file of code, a package.

    Args:
        recorded: `repr` of each parameter when the job ran.
        present: name -> value of each parameter now.
    """
    old = [value for text in recorded if (value := _literal(text)) is not _UNREADABLE]
    new = dict(present)
    for name, value in present.items():
        if value in old:
            old.remove(value)
            del new[name]
    found: list[str] = []
    for name, value in new.items():
        before = _counterpart(value, old)
        if before is not _UNREADABLE:
            old.remove(before)
        found += _differences(name, before, value)
    return found or (["parameters"] if old else [])


_UNREADABLE = object()


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return _UNREADABLE


def _is_code(value: Any) -> bool:
    return isinstance(value, str) and _CODE.fullmatch(value) is not None


def _counterpart(value: Any, old: Sequence[Any]) -> Any:
    """The recorded value that stands for the same parameter: of the same form, the likest."""

    def likeness(other: Any) -> int:
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            return 1 + len(set(value) & set(other))
        if isinstance(value, Mapping) or isinstance(other, Mapping):
            return 0
        return int(type(value) is type(other) and _is_code(value) == _is_code(other))

    best = max(old, key=likeness, default=_UNREADABLE)
    return best if best is not _UNREADABLE and likeness(best) else _UNREADABLE


def _differences(name: str, old: Any, new: Any) -> Iterator[str]:
    if _is_code(new):
        yield from _files(old if _is_code(old) else "", new)
    elif name == "source" and isinstance(new, Mapping):
        old = old if isinstance(old, Mapping) else {}
        yield from (f"source file {key}" for key in _unequal(old, new))
    elif isinstance(new, Mapping):
        # Sections and packages name themselves; a parameter `settings` adds nothing.
        prefix = "" if name in ("settings", "packages") else name
        yield from _keys(prefix, old if isinstance(old, Mapping) else {}, new)
    else:
        yield f"{name} {_shown(old)} \u2192 {_shown(new)}"


def _files(old: str, new: str) -> Iterator[str]:
    """Paths of the code that was edited, added or removed."""
    before, after = (dict(part.rsplit(":", 1) for part in text.split()) for text in (old, new))
    yield from _unequal(before, after)


def _keys(prefix: str, old: Mapping, new: Mapping) -> Iterator[str]:
    for key in _unequal(old, new):
        path = f"{prefix}.{key}" if prefix else str(key)
        before, after = old.get(key, _UNREADABLE), new.get(key, _UNREADABLE)
        if isinstance(after, Mapping) and isinstance(before, Mapping):
            yield from _keys(path, before, after)
        else:
            start = "" if path.startswith("packages.") else "config."
            yield f"{start}{path} {_shown(before)} \u2192 {_shown(after)}"


def _unequal(old: Mapping, new: Mapping) -> list[str]:
    gone = [key for key in old if key not in new]
    return [key for key in new if key not in old or old[key] != new[key]] + gone


def _shown(value: Any) -> str:
    if value is _UNREADABLE:
        return "(none)"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "\u2026"
