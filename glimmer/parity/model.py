"""The model gate: torchtitan's Muse Glimmer against transformers' own class, weights and logits.

Compared on the same sequences: transformers, torchtitan's module, and the engine's prefix pass. The
weights must survive Hugging Face -> torchtitan -> Hugging Face unchanged. Two controls must be
seen: query and key rows without their permutation (the released layout has split halves, torchtitan
interleaved pairs), and rotary embedding on the layers that have none. Of a checkpoint of more than
2 billion parameters the first four layers are compared, with its embedding and head.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torchtitan.models.muse_glimmer.state_dict_adapter import MuseGlimmerStateDictAdapter

from glimmer.files import sha256_files
from glimmer.parity.conversations import gate_prompts
from glimmer.parity.first_layers import first_layers
from glimmer.parity.large import LARGEST
from glimmer.renderer import load_renderer
from glimmer.search_r1.prompt import SEARCH_TOOL
from glimmer.training.local.determinism import use_threads
from glimmer.training.local.forward import PrefixForward, common_prefix
from glimmer.training.local.model import (
    is_text,
    load_model,
    load_tensors,
    parameter_count,
    read_text_config,
    to_hf,
)
from glimmer.verdict import settle


def check_model(
    *,
    checkpoint: Path,
    questions: Path,
    corpus: Path,
    out: Path,
    settings: Mapping[str, Any],
    renderer: Mapping[str, Any],
    threads: int,
) -> dict[str, Any]:
    """Measure, write the verdict to `out`, and return it.

    Args:
        settings: config section `parity` (`prompts`, `max_logit_diff`).
        renderer: config section `renderer`.

    Raises:
        GateFailed: logits differ more than allowed, a tensor changed on the way, or a control was
            not seen; the verdict has been written.
    """
    use_threads(threads)
    whole = checkpoint
    if parameter_count(read_text_config(checkpoint)) > LARGEST:
        checkpoint = first_layers(checkpoint, out.with_name("first_layers"))
    native = load_renderer(checkpoint, renderer, tools=[SEARCH_TOOL])
    prompts = gate_prompts(native, questions, corpus, count=settings["prompts"])
    model = load_model(checkpoint)
    reference = _transformers_logits(checkpoint, prompts)
    with torch.no_grad():
        titan = [model(torch.tensor([p]))[0] for p in prompts]
        ours = _prefix_logits(model, prompts)
        shared = [r[-len(o) :] for r, o in zip(reference, ours, strict=True)]
        measured = {
            "transformers_vs_torchtitan": _largest(reference, titan),
            "transformers_vs_engine": _largest(shared, ours),
            "tensors_changed_in_round_trip": _changed_tensors(checkpoint, model),
            "control_unpermuted_qk": _largest(reference, _unpermuted(checkpoint, prompts)),
            "control_rope_everywhere": _largest(reference, _rope_everywhere(model, prompts)),
            "logit_std": float(torch.cat(reference).std()),
        }
    limit = settings["max_logit_diff"]
    passed = (
        measured["transformers_vs_torchtitan"] <= limit
        and measured["transformers_vs_engine"] <= limit
        and measured["tensors_changed_in_round_trip"] == 0
        and measured["control_unpermuted_qk"] > 100 * limit
        and measured["control_rope_everywhere"] > 100 * limit
    )
    verdict = {
        "gate": "model_parity",
        "passed": passed,
        "measured": measured,
        "threshold": {
            "max_logit_diff": limit,
            "tensors_changed_in_round_trip": 0,
            "controls_at_least": 100 * limit,
        },
        "measured_on": {
            "sequences": len(prompts),
            "tokens": sum(map(len, prompts)),
            "dtype": "float32",
            "checkpoint_sha256": sha256_files(whole, "*.safetensors"),
            "layers": len(model.layers),
        },
        "details": [],
    }
    if checkpoint is not whole:
        shutil.rmtree(checkpoint)
    settle(
        verdict,
        out,
        meaning="torchtitan's model is not transformers' model: a trained checkpoint would not be "
        "what is loaded elsewhere.",
    )
    return verdict


def _largest(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


@torch.no_grad()
def _transformers_logits(checkpoint: Path, prompts: list[list[int]]) -> list[torch.Tensor]:
    """float32 logits [T, V] of each prompt by transformers' class, eager attention."""
    from transformers import MuseGlimmerForConditionalGeneration

    reference = MuseGlimmerForConditionalGeneration.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    ).eval()
    return [reference(input_ids=torch.tensor([p])).logits[0].float() for p in prompts]


def _prefix_logits(model, prompts: list[list[int]]) -> list[torch.Tensor]:
    """The engine's pass: logits of what follows the prompts' common prefix."""
    forward = PrefixForward(model)
    shared = common_prefix(prompts)
    prefix = forward.prefix(prompts[0][:shared])
    return [forward.logits(forward.hidden(prefix, torch.tensor([p[shared:]])))[0] for p in prompts]


def _changed_tensors(checkpoint: Path, model) -> int:
    """Text tensors that differ after Hugging Face -> torchtitan -> Hugging Face."""
    stored = load_tensors(checkpoint)
    back = to_hf(model, torch.float32)
    return sum(
        k not in back or not torch.equal(stored[k].float(), back[k]) for k in stored if is_text(k)
    )


def _unpermuted(checkpoint: Path, prompts: list[list[int]]) -> list[torch.Tensor]:
    """torchtitan's logits with query and key rows left in the released order."""
    model = load_model(checkpoint)
    config = model.config.layers[0].attention
    adapter = MuseGlimmerStateDictAdapter(model.config, None)
    for layer in model.layers.values():
        linear = layer.attention.qkv_linear
        linear.wq.weight.copy_(adapter._permute(linear.wq.weight, config.n_heads))
        rows = config.n_kv_heads
        width = linear.wk.weight.shape
        linear.wk.weight.copy_(adapter._permute(linear.wk.weight, rows, *width))
    return [model(torch.tensor([p]))[0] for p in prompts]


def _rope_everywhere(model, prompts: list[list[int]]) -> list[torch.Tensor]:
    """torchtitan's logits with rotary embedding on all layers; the flags are put back."""
    flags = [layer.attention.use_rope for layer in model.layers.values()]
    for layer in model.layers.values():
        layer.attention.use_rope = True
    logits = [model(torch.tensor([p]))[0] for p in prompts]
    for layer, flag in zip(model.layers.values(), flags, strict=True):
        layer.attention.use_rope = flag
    return logits
