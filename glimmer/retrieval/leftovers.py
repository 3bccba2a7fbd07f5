"""What a killed service leaves in the temporary folder, and who removes it: the next service, or an
evaluation that needs none."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

from glimmer.errors import GlimmerError
from glimmer.files import sole_writer

METRICS = "glimmer-metrics-"  # folders of the replicas' figures
LOCK = ".lock"  # held by the service that a folder belongs to


def remove_leftovers() -> None:
    """Remove the folders of services that are no more; those of living ones stay."""
    for left in Path(tempfile.gettempdir()).glob(f"{METRICS}*"):
        with contextlib.suppress(GlimmerError, OSError):  # its service lives, or another user's
            if (left / LOCK).exists():
                with sole_writer(left / LOCK):
                    shutil.rmtree(left)
