"""Which files make a checkpoint, and whether they are whole. Weights are safetensors, nothing else.

A safetensors file is 8 bytes (length n of the header, little endian), n bytes of JSON that give
each tensor's dtype, shape and place, then the tensors' bytes without a gap. So a cut file is found
from its size, without loading it.
"""

from __future__ import annotations

import json
import operator
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from glimmer.errors import DataError, IntegrityError
from glimmer.files import read_json

MODEL_TYPE = "muse_glimmer"
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
REQUIRED = ("config.json", "tokenizer.json", "tokenizer_config.json")
OPTIONAL = (
    "chat_template.jinja",
    "generation_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "preprocessor_config.json",
    "processor_config.json",
)
# Formats that run code when they are loaded.
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_MAX_HEADER = 100_000_000
_BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F16": 16,
    "BF16": 16,
    "U16": 16,
    "I16": 16,
    "F32": 32,
    "U32": 32,
    "I32": 32,
    "F64": 64,
    "U64": 64,
    "I64": 64,
    "C64": 64,
}


def select_files(available: Iterable[str], where: str) -> list[str]:
    """The files of a checkpoint that are taken from a listing; the rest (README, code) stays.

    Args:
        available: file names in the source.
        where: the source, for messages.

    Raises:
        DataError: no safetensors weights (a pickle is refused by its name), or a required file is
            missing.
    """
    names = sorted(name for name in available if "/" not in name)
    weights = [name for name in names if name.endswith(".safetensors")]
    if not weights:
        pickles = [name for name in names if name.lower().endswith(_PICKLES)]
        if pickles:
            raise DataError(
                f"{where}: found {', '.join(pickles)}, expected {WEIGHTS}: such a file runs code "
                f"when it is loaded, so it is refused. Convert the weights to safetensors."
            )
        raise DataError(
            f"{where}: found no weights, expected {WEIGHTS} or {WEIGHTS_INDEX} with its parts. "
            f"Name a folder in Hugging Face layout."
        )
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise DataError(
            f"{where}: found no {', '.join(missing)}, expected them beside {weights[0]}. "
            f"Name a folder in Hugging Face layout."
        )
    if WEIGHTS_INDEX in names:
        # Other safetensors beside the index (adapters, consolidated copies) are not the model.
        parts = [name for name in weights if name.startswith("model-")] or weights
        weights = [WEIGHTS_INDEX, *parts]
    elif WEIGHTS in names:
        weights = [WEIGHTS]
    else:
        raise DataError(
            f"{where}: found {', '.join(weights)}, expected {WEIGHTS}, or {WEIGHTS_INDEX} with its "
            f"parts. Rename the file, or add the index."
        )
    return sorted({*weights, *REQUIRED, *(name for name in OPTIONAL if name in names)})


def check_checkpoint(folder: Path | str, *, label: str | None = None) -> dict[str, Any]:
    """Make sure that a folder holds a whole Muse Glimmer checkpoint, without loading a tensor.

    Args:
        folder: in Hugging Face layout.
        label: how messages name the folder; its path if None.

    Returns:
        {"tensors": number, "parameters": number, "weights": [file names]}.

    Raises:
        DataError: a file is missing or not JSON, or `model_type` is another.
        IntegrityError: a weight file is cut or its header is damaged, or parts of the index are
            missing.
    """
    folder = Path(folder)
    label = label or str(folder)
    select_files((path.name for path in folder.iterdir() if path.is_file()), label)
    config = _json_object(folder / "config.json", f"{label}/config.json")
    if config.get("model_type") != MODEL_TYPE:
        raise DataError(
            f"{label}/config.json: found model_type {config.get('model_type')!r}, expected "
            f"{MODEL_TYPE!r}. Set checkpoint.source to a Muse Glimmer checkpoint."
        )
    for name in REQUIRED:
        _json_object(folder / name, f"{label}/{name}")
    tensors = _tensors(folder, label)
    sizes = [shape for header in tensors.values() for shape in header.values()]
    return {
        "tensors": len(sizes),
        "parameters": sum(_product(shape) for shape in sizes),
        "weights": sorted(tensors),
    }


def safetensors_shapes(path: Path, *, label: str | None = None) -> dict[str, list[int]]:
    """Shape of every tensor in a safetensors file, its length checked against its header.

    Raises:
        IntegrityError: the file is cut, longer than its header says, or its header is damaged.
    """
    label = label or str(path)
    size = path.stat().st_size
    way_out = "The file is cut or damaged: fetch or copy it again."
    with open(path, "rb") as handle:
        prefix = handle.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(_MAX_HEADER, size - 8):
            raise IntegrityError(
                f"{label}: found {size} bytes with a header of {length}, expected a safetensors "
                f"file. {way_out}"
            )
        try:
            header = json.loads(handle.read(length))
        except (ValueError, RecursionError) as error:
            raise IntegrityError(
                f"{label}: found a header that is not JSON ({error}), expected safetensors. "
                f"{way_out}"
            ) from error
    if not isinstance(header, dict):
        raise IntegrityError(f"{label}: found a header that is no object. {way_out}")
    shapes: dict[str, list[int]] = {}
    spans = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            start, end = map(operator.index, entry["data_offsets"])
            shape = [operator.index(n) for n in entry["shape"]]
            bits = _BITS[entry["dtype"]]
        except (KeyError, TypeError, ValueError) as error:
            raise IntegrityError(
                f"{label}: found {str(entry)[:80]!r} for the tensor {name!r}, expected dtype, "
                f"shape and data_offsets ({error!r}). {way_out}"
            ) from error
        if (end - start) * 8 != _product(shape) * bits or min([0, start, *shape]) < 0:
            raise IntegrityError(
                f"{label}: found bytes {start} to {end} for the tensor {name!r} of shape {shape} "
                f"and type {entry['dtype']}, expected {_product(shape) * bits // 8} of them. "
                f"{way_out}"
            )
        shapes[name] = shape
        spans.append((start, end))
    position = 0
    for start, end in sorted(spans):
        if start != position:
            raise IntegrityError(
                f"{label}: found a tensor at byte {start}, expected {position}. {way_out}"
            )
        position = end
    if 8 + length + position != size:
        raise IntegrityError(
            f"{label}: found {size} bytes, expected {8 + length + position} as its header says. "
            f"{way_out}"
        )
    return shapes


def _tensors(folder: Path, label: str) -> dict[str, Mapping[str, list[int]]]:
    """Weight file -> its tensors' shapes; of the index's parts if there is one."""
    index_path = folder / WEIGHTS_INDEX
    if not index_path.is_file():
        return {WEIGHTS: safetensors_shapes(folder / WEIGHTS, label=f"{label}/{WEIGHTS}")}
    weight_map = _json_object(index_path, f"{label}/{WEIGHTS_INDEX}").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise DataError(
            f"{label}/{WEIGHTS_INDEX}: found no 'weight_map', expected tensor -> file. "
            f"Fetch or copy it again."
        )
    tensors = {}
    for part in sorted(set(weight_map.values())):
        if "/" in str(part) or not (folder / str(part)).is_file():
            raise IntegrityError(
                f"{label}: found no {part}, which {WEIGHTS_INDEX} names; expected "
                f"{len(set(weight_map.values()))} parts. Fetch or copy the missing part."
            )
        tensors[part] = safetensors_shapes(folder / part, label=f"{label}/{part}")
    for name, part in weight_map.items():
        if name not in tensors[part]:
            raise IntegrityError(
                f"{label}/{part}: found no tensor {name!r}, which {WEIGHTS_INDEX} expects in it. "
                f"Fetch or copy both files again."
            )
    return tensors


def _json_object(path: Path, label: str) -> dict[str, Any]:
    try:
        value = read_json(path)
    except DataError as error:
        raise DataError(
            f"{label}: expected JSON, found {error.__cause__}. Fetch or copy the file again."
        ) from error
    if not isinstance(value, dict):
        raise DataError(
            f"{label}: expected a JSON object, found {type(value).__name__}. "
            f"Fetch or copy the file again."
        )
    return value


def _product(shape: Iterable[int]) -> int:
    product = 1
    for n in shape:
        product *= n
    return product
