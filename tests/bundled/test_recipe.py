"""The rule of the tiny checkpoint, a few steps a stage: resumable, repeatable, released layout."""

import json
import random
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open

import glimmer.bundled.recipe as recipe_module
from glimmer.assets import verify_manifest
from glimmer.bundled.checkpoint import make_checkpoint, renderer_for
from glimmer.bundled.demonstrations import Spoiling, WorldSearch, demonstrate
from glimmer.bundled.recipe import DemonstrationStage, Recipe
from glimmer.bundled.world import make_world
from glimmer.files import sha256_file

RENDERER = {
    "current_date": "2026-08-14",
    "knowledge_cutoff": "2026-01-04",
    "reasoning_strength": "high",
}
BRIEF = Recipe(
    hidden_size=32,
    heads=2,
    kv_heads=1,
    head_dim=16,
    vocab_size=1024,
    rows=2,
    copy_steps=2,
    copy_rows=2,
    stages=(
        DemonstrationStage("short", 1, 1e-3, 1, short=True),
        DemonstrationStage("long", 2, 1e-3, 1),
    ),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(checkpoint folder, work folder) of the brief recipe."""
    folder = tmp_path_factory.mktemp("bundled")
    torch.set_num_threads(1)
    make_checkpoint(folder / "out", recipe=BRIEF, work=folder / "work", renderer=RENDERER)
    return folder / "out", folder / "work"


def test_the_folder_has_the_released_layout(made):
    out, _ = made
    verify_manifest(out)
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["MuseGlimmerForConditionalGeneration"]
    with safe_open(out / "model.safetensors", "pt") as tensors:
        names = set(tensors.keys())
        assert {tensors.get_slice(n).get_dtype() for n in names} == {"BF16"}
    from transformers import MuseGlimmerForConditionalGeneration

    reference, info = MuseGlimmerForConditionalGeneration.from_pretrained(
        out, output_loading_info=True, local_files_only=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]


def test_a_kill_between_stages_changes_nothing(made, tmp_path, monkeypatch):
    out, _ = made

    class Killed(Exception):
        pass

    real = recipe_module.demonstration_stage

    def dies_in_long(model, recipe, stage, render):
        if stage.name == "long":
            raise Killed
        real(model, recipe, stage, render)

    monkeypatch.setattr(recipe_module, "demonstration_stage", dies_in_long)
    arguments = {"recipe": BRIEF, "work": tmp_path / "work", "renderer": RENDERER}
    with pytest.raises(Killed):
        make_checkpoint(tmp_path / "out", **arguments)
    monkeypatch.setattr(recipe_module, "demonstration_stage", real)
    done = sorted(p.name for p in (tmp_path / "work").iterdir())
    assert [name.split("-")[1] for name in done] == ["copy", "short"]
    make_checkpoint(tmp_path / "out", **arguments)
    assert sha256_file(tmp_path / "out/model.safetensors") == sha256_file(out / "model.safetensors")


def test_a_changed_stage_keeps_what_came_before_it(made, tmp_path, monkeypatch):
    _, work = made
    ran = []
    monkeypatch.setattr(
        recipe_module, "demonstration_stage", lambda m, r, stage, f: ran.append(stage.name)
    )
    monkeypatch.setattr(recipe_module, "copy_stage", lambda *a: ran.append("copy"))
    short, long = BRIEF.stages
    recipe_module.warm_start(
        replace(BRIEF, stages=(short, replace(long, steps=3))),
        render=None,
        prefix=[0],
        work=work,
    )
    assert ran == ["long"]


def test_masks_mark_what_the_assistant_writes(made):
    out, _ = made
    render = renderer_for(out, RENDERER)
    world = make_world(1)
    messages, tools = demonstrate(
        world,
        WorldSearch(world),
        world.questions[0],
        random.Random(0),
        topk=3,
        spoiling=Spoiling(),
        short=False,
    )
    ids, mask = render(messages, tools)
    from transformers import AutoTokenizer

    written = AutoTokenizer.from_pretrained(out).decode(
        [i for i, by_assistant in zip(ids, mask, strict=True) if by_assistant]
    )
    assert "<atem:invoke" in written
    assert world.questions[0].answer in written
    assert "Doc 1" not in written
    assert written.count("<|eot|>") == 2
