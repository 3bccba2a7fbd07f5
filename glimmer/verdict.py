"""Verdicts of the gates: written whole, then the rule fails if the gate did.

Of a failed gate there is a copy in NAME.failed.json, since the workflow engine removes the outputs
of a failed job; it goes when the gate passes.

A verdict is {"gate", "passed", "measured", "threshold", "measured_on", "details"}: what was
measured, what was allowed, on which data, and the single cases worth reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glimmer.errors import GateFailed
from glimmer.files import write_json
from glimmer.logs import get_logger

logger = get_logger(__name__)


def settle(verdict: Mapping[str, Any], out: Path, *, meaning: str) -> None:
    """Write `verdict` to `out`; `meaning` says what a failure would do to the run.

    Raises:
        GateFailed: `verdict["passed"]` is false.
    """
    write_json(out, verdict)
    gate, measured = verdict["gate"], verdict["measured"]
    failed = out.with_suffix(".failed.json")
    if not verdict["passed"]:
        write_json(failed, verdict)
        raise GateFailed(
            f"{gate} (verdict in {failed}): measured {measured}, allowed {verdict['threshold']}. "
            f"{meaning}"
        )
    failed.unlink(missing_ok=True)
    logger.info("%s passed: %s", gate, measured)
