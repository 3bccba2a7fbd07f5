"""The first layers of a checkpoint too large to be compared whole, as a checkpoint of its own.

Windows and rotary embedding repeat every four layers, counted from the last, so the first four of
a model whose number of layers is a multiple of four are a model of the same architecture: real
weights in each kind of layer, embedding and head included.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from safetensors import safe_open

from glimmer.assets.checkpoint import WEIGHTS, WEIGHTS_INDEX
from glimmer.errors import DataError
from glimmer.files import read_json, write_json
from glimmer.parity.large import LAYERS
from glimmer.training.checkpoint import save_tensors
from glimmer.training.local.model import TOKENIZER_FILES

_LAYER = re.compile(r"model\.language_model\.layers\.(\d+)\.")
_BY_LAYER = ("layer_types", "layer_rope_theta")


def first_layers(checkpoint: Path, out: Path, *, layers: int = LAYERS) -> Path:
    """Write the checkpoint's first layers to the folder `out`, which is replaced; returns it.

    One weight file is opened at a time; only what is kept is read. The vision tower comes along.

    Raises:
        DataError: the model has fewer layers, or the pattern of its layers would change.
    """
    config = read_json(checkpoint / "config.json")
    text = config["text_config"]
    found = text["num_hidden_layers"]
    if found < layers or (found - layers) % 4:
        raise DataError(
            f"{checkpoint / 'config.json'}: text_config.num_hidden_layers is {found}, expected at "
            f"least {layers}, and a multiple of 4 more: windows and rope repeat every four layers."
        )
    text["num_hidden_layers"] = layers
    for key in _BY_LAYER:
        if text.get(key) is not None:
            text[key] = text[key][:layers]
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    write_json(out / "config.json", config)
    for name in TOKENIZER_FILES:
        if (checkpoint / name).exists():
            shutil.copyfile(checkpoint / name, out / name)
    place: dict[str, str] = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(path, framework="pt") as handle:
            kept = {name: handle.get_tensor(name) for name in handle.keys() if _kept(name, layers)}
        if kept:
            save_tensors(kept, out / path.name)
            place |= dict.fromkeys(kept, path.name)
    if set(place.values()) != {WEIGHTS}:
        write_json(out / WEIGHTS_INDEX, {"metadata": {}, "weight_map": place})
    return out


def _kept(name: str, layers: int) -> bool:
    layer = _LAYER.match(name)
    return layer is None or int(layer[1]) < layers
