"""Read config files (safe YAML, no key twice), merge them, hand out sections."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from glimmer.config.validate import close, validate
from glimmer.errors import ConfigError


def load(*paths: Path | str) -> dict[str, Any]:
    """Read, merge and validate config files; a later file's values win, key by key.

    Args:
        paths: YAML files, at least one; the first is usually config/config.yaml.

    Returns:
        The whole config, a new nested dict.

    Raises:
        ConfigError: a file is missing, is no YAML mapping or has a key twice, or the merged config
            is not valid; the message names file or key, value found, value expected, way out.
    """
    if not paths:
        raise ConfigError("config: found no file to load, expected at least config/config.yaml.")
    merged: dict[str, Any] = {}
    for path in paths:
        merged = merge(merged, read_yaml(path))
    validate(merged, where=", ".join(str(path) for path in paths))
    return merged


def read_yaml(path: Path | str) -> dict[str, Any]:
    """One YAML file as a mapping; an empty file is an empty one.

    Raises:
        ConfigError: missing, unreadable, not YAML, a tag that would make objects, a key twice, or
            no mapping at the top.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{path}: cannot be read ({reason}), expected a YAML file. Correct the path."
        ) from error
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506  (a subclass of SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: an impossible date, such as 2026-13-40 without quotes.
        raise ConfigError(f"{path}: expected YAML, found {error}. Correct the file.") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(
            f"{path}: found {type(value).__name__} at the top, expected keys with values."
        )
    return value


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """A new mapping: `override` over `base`, mappings merged key by key, all else replaced."""
    merged = {key: _plain(value) for key, value in base.items()}
    for key, value in override.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else _plain(value)
    return merged


def section(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A copy of one section, as plain nested dicts: what a rule puts into its `params`.

    Raises:
        ConfigError: there is no such section; the nearest name is given.
    """
    if name not in config:
        raise ConfigError(
            f"{name}: found no such section in the config.{close(name, list(config))}"
        )
    value = config[name]
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name}: found {value!r}, expected a section with keys.")
    return merge({}, value)


def _plain(value: Any) -> Any:
    """A copy in which every mapping is a dict."""
    return merge({}, value) if isinstance(value, Mapping) else copy.deepcopy(value)


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, but a key that stands twice in one mapping is refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r}, which is no text", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"the key {key!r} in line {line}, which line {seen[key]} has too",
                    key_node.start_mark,
                )
            seen[key] = line
        return super().construct_mapping(node, deep)
