"""The config: YAML files -> one merged mapping, held against config/config.schema.yaml.

Public: `load`, `validate`, `section`, `merge`, `read_yaml`, `schema`, `curve_steps`.
"""

from __future__ import annotations

from glimmer.config.load import load, merge, read_yaml, section
from glimmer.config.steps import curve_steps
from glimmer.config.validate import schema, validate

__all__ = ["curve_steps", "load", "merge", "read_yaml", "schema", "section", "validate"]
