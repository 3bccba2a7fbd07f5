"""Makes the tiny checkpoint's folder: tokenizer, warm start, weights in the released layout."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from glimmer.assets import write_manifest
from glimmer.bundled.demonstrations import SHORT_SYSTEM, Spoiling, WorldSearch, demonstrate
from glimmer.bundled.recipe import Recipe, Render, hf_config, warm_start
from glimmer.bundled.tokenizer import save_tokenizer, train_tokenizer
from glimmer.bundled.world import make_world
from glimmer.files import atomic_path, write_json
from glimmer.renderer import CHAT_TEMPLATE, MuseGlimmerRenderer, MuseGlimmerRendererConfig
from glimmer.training.local.model import to_hf

_TOKENIZER_WORLDS = range(4)


def make_checkpoint(out: Path, *, recipe: Recipe, work: Path, renderer: Mapping[str, Any]) -> None:
    """Write the checkpoint folder `out`; resumes stage by stage from `work`.

    Args:
        renderer: config section `renderer`; its date and strength stand in every demonstration.
    """
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(_texts(recipe), vocab_size=recipe.vocab_size)
    save_tokenizer(tokenizer, out, chat_template=CHAT_TEMPLATE, max_length=recipe.sliding_window)
    render = renderer_for(out, renderer)
    prefix, _ = render(
        [
            {"role": "system", "content": SHORT_SYSTEM},
            {"role": "user", "content": "Question: "},
        ],
        None,
    )
    model = warm_start(recipe, render=render, prefix=prefix, work=work)
    config = hf_config(recipe)
    write_json(out / "config.json", config.to_diff_dict() | {"dtype": "bfloat16"})
    with atomic_path(out / "model.safetensors") as temporary:
        save_file(
            to_hf(model, torch.bfloat16) | vision_tensors(config),
            temporary,
            metadata={"format": "pt"},
        )
    write_manifest(out, kind="checkpoint", source=f"rule bundled_checkpoint, seed {recipe.seed}")


def renderer_for(tokenizer_folder: Path, settings: Mapping[str, Any]) -> Render:
    """Conversation -> (ids, assistant mask) by the project's renderer over a tokenizer folder."""
    from transformers import AutoTokenizer

    native = MuseGlimmerRenderer(
        AutoTokenizer.from_pretrained(tokenizer_folder, local_files_only=True),
        MuseGlimmerRendererConfig(
            current_date=settings["current_date"],
            knowledge_cutoff=settings["knowledge_cutoff"],
            reasoning_strength=settings["reasoning_strength"],
            attribution="sampled",
        ),
    )

    def render(messages: list[dict], tools: list | None) -> tuple[list[int], list[bool]]:
        rendered = native.render(messages, tools=tools)
        return rendered.token_ids, rendered.sampled_mask

    return render


def vision_tensors(config) -> dict[str, torch.Tensor]:
    """Seeded random weights of the vision tower: never run, but part of the released layout."""
    from transformers import MuseGlimmerForConditionalGeneration

    torch.manual_seed(0)
    model = MuseGlimmerForConditionalGeneration(config)
    return {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if "vision" in name
    }


def _texts(recipe: Recipe) -> Iterator[str]:
    """What the tokenizer is trained on: four worlds, and the prompts around them."""
    for seed in _TOKENIZER_WORLDS:
        world = make_world(seed)
        for entity in world.entities:
            title, text = entity.contents.split("\n", 1)
            yield f"Doc 1(Title: {title}) {text}\n"
        for question in world.questions:
            yield question.text
        for entity in world.entities:
            yield f'query"> {entity.title}</'
    world, draw = make_world(1), random.Random(recipe.seed)
    search = WorldSearch(world)
    for question in world.questions[:1500:5]:
        for short in (True, False):
            messages, tools = demonstrate(
                world,
                search,
                question,
                draw,
                topk=recipe.topk,
                spoiling=Spoiling(),
                short=short,
            )
            yield from re.split(r"<\|\w+\|>", template_text(messages, tools))


def template_text(messages: list[dict], tools: list | None) -> str:
    """A conversation as text by the chat template itself; needs no tokenizer."""
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template(
        [messages],
        tools=tools,
        chat_template=CHAT_TEMPLATE,
        add_generation_prompt=False,
        current_date="2026-08-14",
        bos_token="<|begin_of_text|>",  # noqa: S106 - a special token, no secret
    )
    return rendered[0]
