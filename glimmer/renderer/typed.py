"""Texts of parameters -> values, typed by the JSON schema of a tool's parameters.

A value is text unless its schema excludes strings; then it is JSON, and of a type that the schema
allows. What is not stays text, and the caller is told.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_MOST_REFERENCES = 16  # a schema that refers to itself has no end
_IS = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}


class ParameterTypes(dict[str, list[str]]):
    """Parameter -> the types that it may have, read off the schema when first asked for; none where
    the schema does not say.

    Args:
        schema: of an object with the parameters as its properties; any other value types nothing.
    """

    def __init__(self, schema: Any) -> None:
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        self._properties = properties if isinstance(properties, Mapping) else {}
        self._schema = schema

    def __missing__(self, name: str) -> list[str]:
        if name not in self._properties:
            return []  # not kept: a model makes up any number of names
        kinds = self[name] = _kinds(self._properties[name], self._schema)
        return kinds


def types_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, ParameterTypes]:
    """Name of each tool -> the types of its parameters.

    Args:
        tools: with their schemas, bare or under `function`.
    """
    functions = [tool.get("function") or tool for tool in tools]
    return {f["name"]: ParameterTypes(f.get("parameters")) for f in functions if f.get("name")}


def typed(values: Mapping[str, str], types: ParameterTypes | None) -> tuple[dict[str, Any], bool]:
    """Arguments with their types; False if one could not be read as its type.

    Args:
        types: None types nothing.
    """
    arguments: dict[str, Any] = dict(values)
    good = True
    for key, text in values.items() if types is not None else ():
        kinds = types[key]
        if not kinds or "string" in kinds:
            continue
        try:
            arguments[key] = _read(text, kinds)
        except (ValueError, RecursionError):
            good = False
    return arguments, good


def _read(text: str, kinds: list[str]) -> Any:
    """JSON of one of the kinds; ValueError if it is none, or is nothing that can be written."""
    value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()  # raises where half a character is escaped
    if isinstance(value, float) and "number" not in kinds and value.is_integer():
        value = int(value)  # 3.0 is an integer to JSON Schema
    if not any(_IS[kind](value) for kind in kinds if kind in _IS):
        raise ValueError(f"{text!r} is none of {kinds}")
    return value


def _kinds(schema: Any, root: Mapping[str, Any], left: int = _MOST_REFERENCES) -> list[str]:
    """The types that a schema allows; none if it does not say."""
    if not isinstance(schema, Mapping) or not left:
        return []
    if isinstance(schema.get("$ref"), str):
        return _kinds(_referred(schema["$ref"], root), root, left - 1)
    declared = schema.get("type")
    named = declared if isinstance(declared, list) else [declared]
    kinds = [kind for kind in named if isinstance(kind, str)]
    if not kinds:
        kinds = [kind for v in _list(schema, "enum") for kind, holds in _IS.items() if holds(v)]
    for word in ("anyOf", "oneOf"):
        for choice in _list(schema, word):
            inner = _kinds(choice, root, left - 1)
            if not inner:
                return []
            kinds = [*kinds, *inner]
    if not kinds:  # pydantic wraps a reference so, to write a description beside it
        found = [_kinds(part, root, left - 1) for part in _list(schema, "allOf")]
        kinds = next((inner for inner in found if inner), [])
    return kinds


def _list(schema: Mapping[str, Any], word: str) -> list[Any]:
    found = schema.get(word)
    return found if isinstance(found, list) else []


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    """What `#/$defs/NAME` points to in the schema; None if nothing is there."""
    found: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        found = found.get(step) if isinstance(found, Mapping) else None
    return found if reference.startswith("#") else None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is out of range")
    return value
