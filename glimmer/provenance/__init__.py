"""Provenance: what code a stage runs (for staleness), and what made a result (for its record)."""

from __future__ import annotations

from glimmer.provenance.code import code_parts, fingerprint, prepare_children
from glimmer.provenance.record import collect, git_state, machine

__all__ = ["code_parts", "collect", "fingerprint", "git_state", "machine", "prepare_children"]
