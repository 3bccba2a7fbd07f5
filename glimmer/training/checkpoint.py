"""Training checkpoints: weights and Adam moments in safetensors, and a state file written last.

A checkpoint is a folder `step-000010/` with `tensors.safetensors` (float32; `model/NAME`,
`exp_avg/NAME`, `exp_avg_sq/NAME`) and `state.json` (step, settings hash, sha256 of the tensors). A
folder without a matching `state.json` was not finished and is not used.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from glimmer.errors import ConfigError, DataError, GlimmerError
from glimmer.files import read_json, sha256_file, write_json
from glimmer.logs import get_logger

logger = get_logger(__name__)

TENSORS, STATE = "tensors.safetensors", "state.json"


def save(
    folder: Path,
    *,
    step: int,
    model,
    optimizer: torch.optim.AdamW,
    settings_hash: str,
    keep: int,
    best: int | None = None,
) -> Path:
    """Write the checkpoint of `step`; returns its folder. Of the older ones stay the newest `keep`
    and the newest that is not after step `best`."""
    names = {id(p): n for n, p in model.named_parameters()}
    tensors = {f"model/{n}": p.detach() for n, p in model.named_parameters()}
    for parameter, state in optimizer.state.items():
        for moment in ("exp_avg", "exp_avg_sq"):
            tensors[f"{moment}/{names[id(parameter)]}"] = state[moment]
    final = folder / f"step-{step:06d}"
    temporary = folder / f".{final.name}.part"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save_tensors(tensors, temporary / TENSORS)
    state = {
        "step": step,
        "settings": settings_hash,
        "sha256": sha256_file(temporary / TENSORS),
    }
    write_json(temporary / STATE, state)
    shutil.rmtree(final, ignore_errors=True)
    os.replace(temporary, final)
    found = sorted(folder.glob("step-*"))
    of_best = [p for p in found if best is not None and p.name <= f"step-{best:06d}"][-1:]
    for old in found[:-keep]:
        if old not in of_best:
            shutil.rmtree(old)
    return final


def save_tensors(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write a safetensors file.

    Raises:
        DataError: the file could not be written, such as on a full disk.
    """
    try:
        save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata={"format": "pt"})
    except SafetensorError as error:  # wraps the system's error as text only
        raise DataError(
            f"{path}: could not be written ({error}). Free some space and run again; what is "
            "finished is kept."
        ) from error


def latest(folder: Path, *, settings_hash: str) -> tuple[int, Path] | None:
    """(step, folder) of the newest whole checkpoint, or None.

    Damaged checkpoints are passed over with a warning.

    Raises:
        ConfigError: the newest whole checkpoint was made under other settings.
    """
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            state: Mapping[str, Any] = read_json(path / STATE)
            whole = sha256_file(path / TENSORS) == state["sha256"]
        except (OSError, KeyError, GlimmerError):
            whole = False
        if not whole:
            logger.warning("%s is damaged or incomplete; using an older one", path)
            continue
        if state["settings"] != settings_hash:
            raise ConfigError(
                f"{path} was made under other settings (hash {state['settings'][:12]}, now "
                f"{settings_hash[:12]}). Give this run another name (`run:`), or delete {folder}."
            )
        return int(state["step"]), path
    return None


def restore(path: Path, *, step: int, model, optimizer: torch.optim.AdamW) -> None:
    """Put weights and moments of a checkpoint back, in place."""
    try:
        tensors = load_file(path / TENSORS)
    except SafetensorError as error:
        raise ConfigError(f"{path}: unreadable ({error}). Delete it and run again.") from error
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[f"model/{name}"])
            if f"exp_avg/{name}" in tensors:
                optimizer.state[parameter] = {
                    "step": torch.tensor(float(step)),
                    "exp_avg": tensors[f"exp_avg/{name}"].clone(),
                    "exp_avg_sq": tensors[f"exp_avg_sq/{name}"].clone(),
                }
