"""A checkpoint that the engine `local` kept on its way, as a folder in the released layout.

In: the training folder of a finished run. Out: a folder like `training/final/`, of an earlier step.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from glimmer.errors import DataError, GlimmerError
from glimmer.files import read_json, read_jsonl, sha256_file
from glimmer.training.checkpoint import STATE, TENSORS
from glimmer.training.local.model import load_model, save_model


def export_step(training: Path, *, source: Path, step: int, out: Path) -> None:
    """Write the weights of one step to the folder `out`, which is replaced whole.

    Args:
        training: holds metrics.jsonl and checkpoints/<key>/ of the finished run; the key whose
            metrics are those of the run is its own, the others are of other settings.
        source: the checkpoint that training started from.
        step: one of those kept.

    Raises:
        DataError: the step was not kept, or its checkpoint is damaged.
    """
    path = _own(training) / f"step-{step:06d}"
    try:
        whole = sha256_file(path / TENSORS) == read_json(path / STATE)["sha256"]
    except (OSError, KeyError, GlimmerError):
        whole = False
    if not whole:
        kept = sorted(p.name for p in path.parent.glob("step-*"))
        raise DataError(
            f"{path}: found no whole checkpoint of this step, only {', '.join(kept) or 'none'}; "
            "expected what training.keep_checkpoints says. That setting counts while training "
            "runs: set it to what it was, report.heldout_curve to false, or train again."
        )
    tensors = load_file(path / TENSORS)
    model = load_model(source)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[f"model/{name}"])
    out.parent.mkdir(parents=True, exist_ok=True)
    save_model(model, source, out)


def _own(training: Path) -> Path:
    """The folder of checkpoints/ that made this run's metrics."""
    rows = [row for _, row in read_jsonl(training / "metrics.jsonl")]
    for metrics in sorted((training / "checkpoints").glob("*/metrics.jsonl")):
        if [row for _, row in read_jsonl(metrics)] == rows:
            return metrics.parent
    raise DataError(
        f"{training}/checkpoints: found no folder whose metrics are those of "
        f"{training}/metrics.jsonl, expected the one that training left. Set report.heldout_curve "
        "to false, or train again."
    )
