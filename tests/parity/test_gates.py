"""The two numerical gates: they pass on what ships, and each kind of fault makes them fail."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, MuseGlimmerForConditionalGeneration

import glimmer.parity.logprobs as logprobs
import glimmer.parity.model as model_gate
from glimmer.config import load
from glimmer.errors import GateFailed

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "resources/tiny_glimmer"
CONFIG = load(ROOT / "config/config.yaml")
SETTINGS = {**CONFIG["parity"], "prompts": 4}
INPUTS = {
    "questions": ROOT / "resources/toy_world/train.jsonl",
    "corpus": ROOT / "resources/toy_world/corpus.jsonl",
    "renderer": CONFIG["renderer"],
    "threads": 1,
}


def check_logprobs(out, checkpoint=SHIPPED, **changes):
    search = {**CONFIG["search"], "max_new_tokens": 24}
    return logprobs.check_logprobs(
        checkpoint=checkpoint, out=out, settings={**SETTINGS, **changes}, search=search, **INPUTS
    )


def check_model(out, checkpoint=SHIPPED, **changes):
    return model_gate.check_model(
        checkpoint=checkpoint, out=out, settings={**SETTINGS, **changes}, **INPUTS
    )


def test_trainer_and_sampler_agree_on_what_ships(tmp_path):
    verdict = check_logprobs(tmp_path / "v.json")
    assert verdict == json.loads((tmp_path / "v.json").read_text())
    found = verdict["measured"]
    assert found["trainer_vs_sampler"] < 1e-4 < found["control_trainer_vs_sampler"]
    assert 0 < found["entropy"] < 0.5 * found["max_entropy"]
    assert verdict["measured_on"]["tokens"] > 4


def test_torchtitan_and_transformers_agree_on_what_ships(tmp_path):
    verdict = check_model(tmp_path / "v.json")
    assert verdict["passed"]
    assert verdict["measured"]["transformers_vs_torchtitan"] < 1e-4
    assert verdict["measured"]["tensors_changed_in_round_trip"] == 0
    assert verdict["measured"]["logit_std"] > 0.5


def without_weights(folder: Path) -> dict:
    """The shipped checkpoint's other files in a new folder; its config."""
    folder.mkdir()
    for path in SHIPPED.iterdir():
        if path.suffix != ".safetensors":
            shutil.copyfile(path, folder / path.name)
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(("width", "heads", "head"), [(416, 8, 64), (832, 32, 128)])
def test_they_agree_at_other_widths(tmp_path, width, heads, head):
    """Random weights; heads that are wider together than the model, as the 30B's are not."""
    folder = tmp_path / "wide"
    config = without_weights(folder)
    text = config["text_config"]
    text |= {"hidden_size": width, "intermediate_size": 3 * width, "qk_scale_factor": 3.87}
    text |= {"num_attention_heads": heads, "head_dim": head}
    text["output_multiplier"] = (256 / width) ** 0.5
    (folder / "config.json").write_text(json.dumps(config))
    settings = AutoConfig.from_pretrained(folder)
    weights = MuseGlimmerForConditionalGeneration(settings).state_dict()
    draw = torch.Generator().manual_seed(1)
    for name, value in weights.items():
        if value.dim() > 1:
            value.copy_(torch.randn(value.shape, generator=draw) * value.shape[-1] ** -0.5)
        else:
            value.fill_(1.0 if name.endswith("language_model.norm.weight") else 0.1)
    assert weights.keys() == load_file(SHIPPED / "model.safetensors").keys()
    save_file(weights, folder / "model.safetensors")
    verdict = check_model(tmp_path / "v.json", folder, prompts=2)
    assert verdict["passed"] and verdict["measured"]["logit_std"] > 0.5


def test_a_model_that_knows_nothing_fails_by_its_entropy(tmp_path):
    """A fresh Muse Glimmer has a final norm of 0: all logits are 0 and every difference too."""
    fresh = tmp_path / "fresh"
    shutil.copytree(SHIPPED, fresh)
    tensors = load_file(fresh / "model.safetensors")
    norms = [k for k in tensors if k.endswith("language_model.norm.weight")]
    assert len(norms) == 1
    tensors[norms[0]] = torch.full_like(tensors[norms[0]], 0.0)
    save_file(tensors, fresh / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(GateFailed, match="logprob_parity.*entropy"):
        check_logprobs(tmp_path / "v.json", checkpoint=fresh)
    verdict = json.loads((tmp_path / "v.json").read_text())
    assert verdict["passed"] is False
    assert verdict["measured"]["entropy"] > 0.99 * verdict["measured"]["max_entropy"]


def test_a_trainer_with_other_weights_fails_and_the_verdict_is_written(tmp_path, monkeypatch):
    real = logprobs.trainer_logprobs

    def other(model, prompts, completions):
        weight = model.layers["0"].feed_forward.w2.weight
        with torch.no_grad():
            weight[0, 0] += 0.5
            found = real(model, prompts, completions)
            weight[0, 0] -= 0.5
        return found

    monkeypatch.setattr(logprobs, "trainer_logprobs", other)
    with pytest.raises(GateFailed, match="trainer_vs_sampler"):
        check_logprobs(tmp_path / "v.json")
    assert json.loads((tmp_path / "v.json").read_text())["passed"] is False


def test_a_model_loaded_wrongly_fails(tmp_path, monkeypatch):
    real = model_gate.load_model

    def wrong(folder):
        model = real(folder)
        with torch.no_grad():
            model.layers["1"].attention.wo.weight[0] *= 2  # a norm would undo one factor on all
        return model

    monkeypatch.setattr(model_gate, "load_model", wrong)
    with pytest.raises(GateFailed, match="model_parity"):
        check_model(tmp_path / "v.json")
    verdict = json.loads((tmp_path / "v.json").read_text())
    assert verdict["measured"]["transformers_vs_torchtitan"] > 1e-4
    assert verdict["measured"]["tensors_changed_in_round_trip"] >= 1


def test_rows_of_unequal_length_are_no_agreement():
    assert logprobs.largest_difference([[0.1, 0.2]], [[0.1]]) > 1e6
    assert logprobs.largest_difference([[0.1], []], [[0.3], []]) == pytest.approx(0.2)
