"""From TitanRL's last save to a checkpoint folder in the released layout.

TitanRL's own Hugging Face save holds the text model's tensors. The folder written here has every
file of the start: weights under the same file names, what the text model does not own (the vision
tower) carried over, tokenizer, template and configs as they were. One weight file is in memory at
a time.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from glimmer.assets import write_manifest
from glimmer.errors import DataError
from glimmer.training.checkpoint import save_tensors
from glimmer.training.local.model import is_text

WEIGHTS = "*.safetensors"
_AGAIN = "The last save is damaged or incomplete; run again to make it from the checkpoint before."


class UnreadableSave(DataError):
    """The last save is damaged or incomplete: training has to make it again."""


def save_text_only(adapter: Any) -> None:
    """Let a save in the released layout name the text model's tensors alone.

    torchtitan's adapter plans the files by the start's `model.safetensors.index.json`, which names
    the vision tower too. torch then writes headers with tensors of no type for what nobody saved
    (`_consolidate_hf_safetensors`), and nothing can read such a file.

    Args:
        adapter: of the trainer's checkpoints; `fqn_to_index_mapping` is None without an index.
    """
    if adapter.fqn_to_index_mapping:
        text = {name: i for name, i in adapter.fqn_to_index_mapping.items() if is_text(name)}
        places = {i: place for place, i in enumerate(sorted(set(text.values())), start=1)}
        adapter.fqn_to_index_mapping = {name: places[i] for name, i in text.items()}


def export(saved: Path, source: Path, out: Path) -> None:
    """Write `out` from the tensors in `saved` and the files of `source`; `out` is replaced whole.

    Args:
        saved: folder with TitanRL's Hugging Face save (`*.safetensors` under released names).
        source: the checkpoint that training started from.

    Raises:
        UnreadableSave: a file cannot be read, or a tensor of the text model is missing.
        DataError: a tensor has another shape, or is not of this model.
    """
    place = _where(saved)
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    used: set[str] = set()
    for path in sorted(source.iterdir()):
        if path.suffix == ".safetensors":
            tensors = load_file(path)
            merged = {}
            for name, old in tensors.items():
                if name in place:
                    merged[name] = _load(place[name], name, old)
                    used.add(name)
                elif is_text(name):
                    raise UnreadableSave(
                        f"{saved}: has no tensor {name}, which {path} has. {_AGAIN}"
                    )
                else:
                    merged[name] = old
            save_tensors(merged, part / path.name)
        elif path.is_file() and path.name != "manifest.json":
            shutil.copyfile(path, part / path.name)
    if unknown := sorted(set(place) - used):
        raise DataError(
            f"{saved}: has tensors that {source} has not, such as {unknown[0]}. It is not a save "
            "of this model."
        )
    write_manifest(part, kind="checkpoint", source="trained")
    shutil.rmtree(out, ignore_errors=True)
    os.replace(part, out)


def _where(saved: Path) -> dict[str, Path]:
    """The file of each saved tensor."""
    place: dict[str, Path] = {}
    for path in sorted(saved.glob(WEIGHTS)):
        try:
            with safe_open(path, framework="pt") as handle:
                place |= dict.fromkeys(handle.keys(), path)
        except SafetensorError as error:
            raise UnreadableSave(f"{path}: cannot be read ({error}). {_AGAIN}") from error
    if not place:
        raise UnreadableSave(f"{saved}: holds no {WEIGHTS}. {_AGAIN}")
    return place


def _load(path: Path, name: str, old: torch.Tensor) -> torch.Tensor:
    with safe_open(path, framework="pt") as handle:
        new = handle.get_tensor(name)
    if new.shape != old.shape:
        raise DataError(
            f"{path}: {name} has shape {tuple(new.shape)}, expected {tuple(old.shape)}."
        )
    return new.to(old.dtype)
