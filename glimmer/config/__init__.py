"""The config: YAML files -> one merged mapping, held against config/config.schema.yaml.

Public: `load`, `validate`, `section`, `merge`, `read_yaml`, `schema`.
"""

from __future__ import annotations

from glimmer.config.load import load, merge, read_yaml, section
from glimmer.config.validate import schema, validate

__all__ = ["load", "merge", "read_yaml", "schema", "section", "validate"]
