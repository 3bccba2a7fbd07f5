"""Keeps the checkpoint of a run's best step, whatever TitanRL purges.

`best/step-N/` in the run's folder holds hard links to the files of `checkpoint/step-N/`: no bytes
more while the original stands, and the files themselves once it is purged.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from glimmer.training.titan import CHECKPOINT_FOLDER

BEST = "best"


def _whole(folder: Path) -> dict[int, Path]:
    """Finished checkpoints of a folder, by step."""
    found = {}
    for path in folder.glob("step-*"):
        match = re.fullmatch(r"step-(\d+)", path.name)
        if match and (path / ".metadata").is_file():
            found[int(match[1])] = path
    return found


def keep_best(work: Path, step: int) -> Path | None:
    """Keep the newest finished checkpoint at or before `step`; returns its folder, if there is one.

    Called with the best step so far, after every step. The one kept before is dropped.
    """
    steps = _whole(work / CHECKPOINT_FOLDER)
    kept = _whole(work / BEST)
    newest = max((s for s in {*steps, *kept} if s <= step), default=None)
    if newest is None:
        return None
    final = work / BEST / f"step-{newest}"
    if newest not in kept:
        part = work / BEST / f".step-{newest}.part"
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(steps[newest], part, copy_function=_link)
        os.replace(part, final)
    for other, path in kept.items():
        if other != newest:
            shutil.rmtree(path)
    return final


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)
