"""Provenance: what code a stage runs (for staleness), and what made a result (for its record)."""

from __future__ import annotations

from glimmer.provenance.code import (
    code_parts,
    fingerprint,
    imported_packages,
    prepare_children,
)
from glimmer.provenance.packages import locked_versions
from glimmer.provenance.record import collect, git_state, machine

__all__ = [
    "code_parts",
    "collect",
    "fingerprint",
    "git_state",
    "imported_packages",
    "locked_versions",
    "machine",
    "prepare_children",
]
