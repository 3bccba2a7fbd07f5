"""Hold a config against its schema, and against what no schema can say.

All problems are reported at once, one a line: dotted key, value found, value expected, and for a
misspelt key the nearest valid one.
"""

from __future__ import annotations

import copy
import datetime
import difflib
import functools
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import ValidationError

from glimmer.config.crosschecks import cross_checks
from glimmer.errors import ConfigError

SCHEMA = Path(__file__).resolve().parents[2] / "config" / "config.schema.yaml"
_TYPE_NAMES = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a text",
    "boolean": "true or false",
    "object": "a section with keys",
    "array": "a list",
    "null": "null",
}


@functools.cache
def _schema() -> dict[str, Any]:
    loaded = yaml.safe_load(SCHEMA.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(loaded)
    return loaded


def schema() -> dict[str, Any]:
    """The JSON schema of the config (Draft 2020-12), a copy."""
    return copy.deepcopy(_schema())


def validate(config: Mapping[str, Any], *, where: str = "config") -> None:
    """Check a whole config.

    Args:
        config: nested mappings, as `load` returns them or as a workflow engine hands them over.
        where: the file or files that it comes from, for the message.

    Raises:
        ConfigError: naming every problem: the key, the value found, the value expected, and the
            nearest valid name of an unknown key.
    """
    problems: list[str] = []
    for error in sorted(_validator().iter_errors(config), key=lambda e: _path(e.absolute_path)):
        problems += _explain(error)
    problems += _not_finite(config, "")
    if not problems:
        problems = list(cross_checks(config))
    if problems:
        unique = list(dict.fromkeys(problems))
        raise ConfigError(f"{where}:\n" + "\n".join(f"  {problem}" for problem in unique))


def close(name: str, known: list[str]) -> str:
    """' Did you mean …?' with the nearest known name, or the list of all."""
    folded = {key.lower(): key for key in known}
    near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    if near:
        return f" Did you mean {folded[near[0]]!r}?"
    return f" Known here: {', '.join(sorted(known))}."


@functools.cache
def _validator() -> Any:
    # JSON Schema takes 1.0 for an integer; a loop over range(1.0) does not.
    checker = Draft202012Validator.TYPE_CHECKER.redefine_many(
        {
            "integer": lambda _, value: isinstance(value, int) and not isinstance(value, bool),
            "object": lambda _, value: isinstance(value, Mapping),
        }
    )

    def pattern(_: Any, expression: str, value: Any, schema: Any) -> Iterator[ValidationError]:
        # For Python, "$" also matches before a last line break.
        if isinstance(value, str) and (value[-1:] == "\n" or not re.search(expression, value)):
            yield ValidationError(f"{value!r} does not match {expression!r}")

    extended = validators.extend(Draft202012Validator, {"pattern": pattern}, type_checker=checker)
    return extended(_schema(), format_checker=Draft202012Validator.FORMAT_CHECKER)


def _path(parts: Any) -> str:
    return ".".join(str(part) for part in parts)


def _explain(error: ValidationError) -> Iterator[str]:
    """One line a problem."""
    key = _path(error.absolute_path)
    rule, limit = error.validator, error.validator_value
    if rule == "additionalProperties":
        known = list(error.schema.get("properties", {}))
        prefix = f"{key}." if key else ""
        for name in error.instance:
            if name not in known:
                elsewhere = _elsewhere(str(name))
                hint = close(str(name), known) if known else ""
                if elsewhere:
                    hint = f" Did you mean {elsewhere}?"
                yield (
                    f"{prefix}{name}: found {_shown(error.instance[name])}, but there is no such "
                    f"key.{hint}"
                )
        return
    if rule == "required":
        prefix = f"{key}." if key else ""
        for name in limit:
            if name not in error.instance:
                wanted = error.schema["properties"][name]
                # A misspelt key is reported as such, and not once more as missing.
                unknown = [k for k in error.instance if k not in error.schema["properties"]]
                if difflib.get_close_matches(name, [str(k) for k in unknown], n=1, cutoff=0.5):
                    continue
                yield f"{prefix}{name}: missing, expected {_expected(wanted)}. Add it."
        return
    yield (
        f"{key or 'config'}: found {_shown(error.instance)}, expected {_expected(error.schema)}."
        f"{_hint(error)}"
    )


def _elsewhere(name: str) -> str | None:
    """`section.key` of a key that exists, but in another section."""
    for part, body in _schema()["properties"].items():
        if name in body.get("properties", {}):
            return f"{part}.{name}"
    return None


def _expected(schema: Mapping[str, Any]) -> str:
    """What a schema allows, in words."""
    if "const" in schema:
        return repr(schema["const"])
    if "enum" in schema:
        return "one of " + ", ".join("null" if v is None else str(v) for v in schema["enum"])
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    words = " or ".join(_TYPE_NAMES[kind] for kind in kinds) or "another value"
    limits = []
    for rule, text in (
        ("minimum", "at least"),
        ("exclusiveMinimum", "above"),
        ("maximum", "at most"),
        ("exclusiveMaximum", "below"),
    ):
        if rule in schema:
            limits.append(f"{text} {schema[rule]}")
    if "pattern" in schema:
        limits.append(f"that matches {schema['pattern']}")
    if schema.get("minLength"):
        limits.append("that is not empty")
    return " ".join([words, " and ".join(limits)]).strip()


def _hint(error: ValidationError) -> str:
    """What probably happened, for the usual traps of YAML."""
    value = error.instance
    kinds = error.schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(value, str) and {"number", "integer"} & set(kinds):
        if re.fullmatch(r"[+-]?\d+[eE][+-]?\d+", value):
            mantissa, exponent = re.split("[eE]", value)
            return f" YAML takes {value} for text: write {mantissa}.0e{int(exponent):+d}."
        if re.fullmatch(r"[+-]?[\d.]+([eE][+-]?\d+)?", value):
            return " Write it without quotes."
    if "string" in kinds and isinstance(value, datetime.date | bool | int | float):
        return " Write it in quotes."
    if value is None and "null" not in kinds:
        return " Give it a value."
    return ""


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, datetime.date):
        return f"the date {value}"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def _not_finite(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _not_finite(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{key}: found {value}, expected a finite number."
