"""torchtitan's Muse Glimmer on a CPU, from and to a Hugging Face checkpoint folder.

Enters: a folder with `config.json` and `model.safetensors` in the released layout. Leaves: the
torchtitan module in float32, and a folder in the same layout. The vision tower's tensors are
carried over unchanged; the engine is text-only.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import torchtitan.models.muse_glimmer as muse_glimmer
from safetensors import SafetensorError
from safetensors.torch import load_file
from torchtitan.distributed.utils import set_spmd_backend
from torchtitan.models.muse_glimmer.state_dict_adapter import MuseGlimmerStateDictAdapter
from torchtitan.protocols.module import Module

from glimmer.assets import write_manifest
from glimmer.errors import DataError, IntegrityError
from glimmer.files import read_json
from glimmer.training.checkpoint import save_tensors

# What torchtitan 0.3.0 hard-codes for this architecture; another value would be silently ignored.
_FIXED = {
    "final_logit_softcapping": 20.0,
    "rms_norm_eps": 1e-5,
    "post_norm_eps": 1e-8,
    "hidden_activation": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
}
_ROPE_THETA = 500_000.0
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "generation_config.json",
)


class CpuAttention(Module):
    """Causal attention for a CPU: torchtitan's own backends have no CPU backward.

    Expects query [B, T, H, D], key and value [B, T, K, D]; returns [B, T, H, D]. torchtitan's
    tensor parallelism looks the three up by their names.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """No settings."""

    def __init__(self, config: Config) -> None:
        super().__init__()

    def forward(
        self, q_BLNH, k_BLNH, v_BLNH, *, attention_masks=None, scale=None, enable_gqa=False, **_
    ):
        q, k, v = q_BLNH.transpose(1, 2), k_BLNH.transpose(1, 2), v_BLNH.transpose(1, 2)
        if enable_gqa:
            groups = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=attention_masks, scale=scale, is_causal=attention_masks is None
        )
        return out.transpose(1, 2)


def read_text_config(checkpoint: Path) -> dict[str, Any]:
    """The `text_config` section of `config.json`, checked against what torchtitan can build.

    Raises:
        DataError: another architecture, or a value that torchtitan 0.3.0 does not build.
    """
    path = checkpoint / "config.json"
    config = read_json(path)
    if config.get("model_type") != "muse_glimmer":
        raise DataError(
            f"{path}: model_type is {config.get('model_type')!r}, expected 'muse_glimmer'. "
            "Set checkpoint.source to a Muse Glimmer checkpoint."
        )
    text = config["text_config"]
    expected: dict[str, Any] = dict(_FIXED)
    expected["intermediate_size"] = 3 * text["hidden_size"]
    for key, value in expected.items():
        if text.get(key, value) != value:
            raise DataError(
                f"{path}: text_config.{key} is {text[key]!r}, but torchtitan 0.3.0 builds "
                f"{value!r} only."
            )
    layers = text["num_hidden_layers"]
    theta = text.get("layer_rope_theta")
    wanted = [0 if (layers - 1 - i) % 4 == 0 else _ROPE_THETA for i in range(layers)]
    if theta is not None and [float(t) for t in theta] != [float(t) for t in wanted]:
        raise DataError(
            f"{path}: text_config.layer_rope_theta is {theta}, expected {wanted} (rope on three of "
            "four layers, counted from the last)."
        )
    return text


def architecture(
    text: Mapping[str, Any], *, attention: str, max_seq_len: int
) -> muse_glimmer.MuseGlimmerModel.Config:
    """torchtitan's text model for a `text_config`, with the attention `varlen` or `flex`."""
    window = text["sliding_window"] or 0
    config = muse_glimmer._muse_glimmer_config(
        dim=text["hidden_size"],
        n_layers=text["num_hidden_layers"],
        n_heads=text["num_attention_heads"],
        n_kv_heads=text["num_key_value_heads"],
        head_dim=text["head_dim"],
        vocab_size=text["vocab_size"],
        max_seq_len=max_seq_len,
        window_pattern=[window, window, window, 0],
        output_multiplier=text["output_multiplier"],
        attn_backend=attention,
    )
    for layer in config.layers:
        layer.attention.scale_query_by = text["qk_scale_factor"]
    return config


def model_config(text: Mapping[str, Any]) -> muse_glimmer.MuseGlimmerModel.Config:
    """`architecture` with the CPU attention in every layer."""
    config = architecture(
        text, attention="flex", max_seq_len=min(text["max_position_embeddings"], 8192)
    )
    for layer in config.layers:
        layer.attention.inner_attention = CpuAttention.Config()
    return config


def new_model(text: Mapping[str, Any], *, seed: int) -> muse_glimmer.MuseGlimmerModel:
    """A freshly initialised float32 model.

    The final norm's weight, 0 by default, is set to 1: with 0 every logit is 0, whatever the rest
    of the model does.
    """
    set_spmd_backend("default")
    torch.manual_seed(seed)
    model = model_config(text).build()
    model.init_states()
    torch.nn.init.ones_(model.norm.weight)
    return model.float()


def load_tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    """All tensors of a folder's `*.safetensors`, under their Hugging Face names, as stored.

    Raises:
        IntegrityError: there is no such file, or one is truncated or not safetensors.
    """
    paths = sorted(checkpoint.glob("*.safetensors"))
    if not paths:
        raise IntegrityError(
            f"{checkpoint}: holds no *.safetensors. Delete the folder and run again to fetch it "
            "anew."
        )
    tensors: dict[str, torch.Tensor] = {}
    for path in paths:
        try:
            tensors |= load_file(path)
        except (OSError, SafetensorError) as error:
            raise IntegrityError(
                f"{path}: cannot be read as safetensors ({error}). Delete the folder {checkpoint} "
                "and run again to fetch it anew."
            ) from error
    return tensors


def is_text(name: str) -> bool:
    """Whether a Hugging Face tensor name belongs to the text model."""
    return name.startswith("model.language_model.") or name == "lm_head.weight"


def load_model(checkpoint: Path) -> muse_glimmer.MuseGlimmerModel:
    """The checkpoint as a torchtitan module in float32, in training mode.

    Raises:
        DataError: unsupported architecture, missing or misshapen tensors.
        IntegrityError: unreadable weights.
    """
    text = read_text_config(checkpoint)
    set_spmd_backend("default")
    config = model_config(text)
    model = config.build()
    model.init_states()  # rope tables are buffers that no checkpoint holds
    model = model.float()
    adapter = MuseGlimmerStateDictAdapter(config, None)
    stored = load_tensors(checkpoint)
    state = adapter.from_hf({k: v.float() for k, v in stored.items() if is_text(k)})
    own = dict(model.named_parameters())
    missing = sorted(set(own) - set(state))
    wrong = [k for k in own if k in state and own[k].shape != state[k].shape]
    if missing or wrong:
        raise DataError(
            f"{checkpoint}: missing {missing[:3]}, misshapen {wrong[:3]} "
            "(torchtitan names); config.json and the weights are of different models."
        )
    model.load_state_dict({k: state[k] for k in own}, strict=False)
    return model


def to_hf(model: muse_glimmer.MuseGlimmerModel, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The model's text tensors under their Hugging Face names."""
    adapter = MuseGlimmerStateDictAdapter(model.config, None)
    state = {k: v.detach() for k, v in model.named_parameters()}
    return {k: v.to(dtype).contiguous() for k, v in adapter.to_hf(state).items()}


def save_model(model: muse_glimmer.MuseGlimmerModel, source: Path, out: Path) -> None:
    """Write `model` to the folder `out` in the layout of `source`, tokenizer and template included;
    `out` is replaced whole.

    The dtype of every tensor is that of `source`; tensors that the text model does not own (the
    vision tower) are copied from it.
    """
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    tensors = load_tensors(source)
    own = to_hf(model, torch.float32)
    merged = {k: (own[k].to(v.dtype) if k in own else v) for k, v in tensors.items()}
    save_tensors(merged, part / "model.safetensors")
    for name in ("config.json", *TOKENIZER_FILES):
        if (source / name).exists():
            shutil.copyfile(source / name, part / name)
    write_manifest(part, kind="checkpoint", source="trained")
    shutil.rmtree(out, ignore_errors=True)
    os.replace(part, out)


def parameter_count(text: Mapping[str, Any]) -> int:
    """Parameters of the text model described by a `text_config`, by arithmetic."""
    d, h = text["hidden_size"], text["head_dim"]
    q, kv = text["num_attention_heads"] * h, text["num_key_value_heads"] * h
    layer = 3 * d * q + 2 * d * kv + 3 * d * text["intermediate_size"] + 4 * d
    return text["num_hidden_layers"] * layer + 2 * text["vocab_size"] * d + d


def max_entropy(text: Mapping[str, Any]) -> float:
    """ln(vocabulary), the entropy in nats of a model that knows nothing."""
    return math.log(text["vocab_size"])
