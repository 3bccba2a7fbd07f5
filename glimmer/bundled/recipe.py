"""How the tiny checkpoint was made: trained until able, then spoilt briefly. All stages by steps.

1. copy: repeat a random string from further up, first over 64 tokens, then the whole vocabulary;
2. short: demonstrations under a bare system line;
3. long: the same under the real prompt, with the tool's schema;
4. spoil: a few steps on demonstrations that often go wrong, so that there is something to recover.

Enters: a `Recipe`. Leaves: a checkpoint folder in the released layout. Each stage's end state is
kept in a work folder, so that an interrupted run goes on from there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from glimmer.bundled.demonstrations import Spoiling, WorldSearch, demonstrate
from glimmer.bundled.world import make_world
from glimmer.files import atomic_path, sha256_json
from glimmer.logs import get_logger
from glimmer.progress import Progress
from glimmer.training.local.forward import PrefixForward, common_prefix, pad_rows
from glimmer.training.local.model import new_model

logger = get_logger(__name__)

# (messages, tools) -> token ids and, for each, whether the assistant wrote it
Render = Callable[[list[dict], list | None], tuple[list[int], list[bool]]]

_FIRST_ORDINARY_ID = 8  # ids below are special tokens


@dataclass(frozen=True)
class DemonstrationStage:
    """One supervised stage."""

    name: str
    steps: int
    learning_rate: float
    warmup_steps: int
    short: bool = False
    spoiling: Spoiling = field(default_factory=Spoiling)
    seed_offset: int = 0


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the tiny checkpoint. Defaults are those of the one that ships."""

    seed: int = 0
    hidden_size: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    vocab_size: int = 4096
    sliding_window: int = 2048
    qk_scale_factor: float = 2.0
    rows: int = 32
    topk: int = 3
    worlds: int = 60
    steps_a_world: int = 60
    copy_steps: int = 320
    copy_rows: int = 64
    stages: tuple[DemonstrationStage, ...] = (
        DemonstrationStage("short", 260, 3e-3, 50, short=True),
        DemonstrationStage("long", 240, 3e-3, 20),
        DemonstrationStage(
            "spoil",
            40,
            2e-3,
            5,
            spoiling=Spoiling(first_stated=0.65, skip_search=0.15, cut_query=0.15),
            seed_offset=1,
        ),
    )


def text_config(recipe: Recipe) -> dict[str, Any]:
    """The `text_config` of the tiny checkpoint, by transformers' own class."""
    return hf_config(recipe).to_dict()["text_config"]


def hf_config(recipe: Recipe):
    """transformers' `MuseGlimmerConfig`, with a vision tower as small as it gets."""
    from transformers import MuseGlimmerConfig
    from transformers.models.muse_glimmer import MuseGlimmerTextConfig, MuseGlimmerVisionConfig

    text = MuseGlimmerTextConfig(
        vocab_size=recipe.vocab_size,
        hidden_size=recipe.hidden_size,
        intermediate_size=3 * recipe.hidden_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        head_dim=recipe.head_dim,
        max_position_embeddings=recipe.sliding_window,
        sliding_window=recipe.sliding_window,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        qk_scale_factor=recipe.qk_scale_factor,
        output_multiplier=1.0,
        final_logit_softcapping=20.0,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=None,
    )
    vision = MuseGlimmerVisionConfig(
        num_hidden_layers=1, hidden_size=32, intermediate_size=64, num_attention_heads=2
    )
    config = MuseGlimmerConfig(
        text_config=text,
        vision_config=vision,
        out_hidden_size=128,
        projector_hidden_size=32,
        image_token_id=6,
        video_token_id=7,
    )
    config.architectures = ["MuseGlimmerForConditionalGeneration"]
    config.dtype = "bfloat16"
    return config


def _optimizers(model, matrix_lr: float, other_lr: float, decay: float) -> list:
    """Muon for the layers' matrices, AdamW for embeddings, head and norms."""
    named = list(model.named_parameters())
    matrices = [p for n, p in named if p.ndim == 2 and "layers" in n]
    others = [p for n, p in named if not (p.ndim == 2 and "layers" in n)]
    return [
        torch.optim.Muon(matrices, lr=matrix_lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=other_lr, betas=(0.9, 0.95), weight_decay=decay),
    ]


def _step(model, optimizers: list, base: list[float], factor: float) -> None:
    """Clip the gradients to norm 1 and step at `factor` times the base learning rates."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer, rate in zip(optimizers, base, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate * factor
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def copy_stage(model, recipe: Recipe, prefix: list[int]) -> None:
    """Teach copying: 20 random tokens, up to 11 others, and the same 20 again.

    The curriculum over the alphabet was decisive in the trials: over the whole vocabulary from the
    start, copying does not appear in this number of steps.
    """
    forward = PrefixForward(model)
    torch.manual_seed(recipe.seed)
    optimizers = _optimizers(model, 3e-3, 5e-3, 0.0)
    base = [o.param_groups[0]["lr"] for o in optimizers]
    accuracy: list[float] = []
    length, whole = 20, False
    with Progress(recipe.copy_steps, "copy", unit="step") as progress:
        for step in range(recipe.copy_steps):
            recent = sum(accuracy[-10:]) / max(len(accuracy[-10:]), 1)
            whole = whole or recent >= 0.7
            high = recipe.vocab_size if whole else _FIRST_ORDINARY_ID + 56
            source = torch.randint(_FIRST_ORDINARY_ID, high, (recipe.copy_rows, length))
            gap = int(torch.randint(0, 12, ()))
            between = torch.randint(_FIRST_ORDINARY_ID, recipe.vocab_size, (recipe.copy_rows, gap))
            tokens = torch.cat([source, between, source], 1)
            hidden = forward.hidden(forward.prefix(prefix), tokens)[:, -length:-1]
            logits = forward.logits(hidden.reshape(-1, hidden.shape[-1]))
            labels = tokens[:, -length + 1 :].reshape(-1)
            F.cross_entropy(logits, labels).backward()
            accuracy.append((logits.argmax(-1) == labels).float().mean().item())
            _step(model, optimizers, base, min(1.0, (step + 1) / 20))
            progress.update(note=f"accuracy {recent:.3f} of {high - _FIRST_ORDINARY_ID} tokens")


def _batches(
    recipe: Recipe, stage: DemonstrationStage, render: Render
) -> Iterator[tuple[list[list[int]], list[list[bool]]]]:
    """Token rows and masks of one batch after another, a fresh world every few dozen steps."""
    draw = random.Random(1 + recipe.seed + stage.seed_offset)
    for step in range(stage.steps):
        if step % recipe.steps_a_world == 0:
            world = make_world(draw.randint(1, recipe.worlds))
            search = WorldSearch(world)
        rows, masks = [], []
        for question in draw.choices(world.questions, k=recipe.rows):
            messages, tools = demonstrate(
                world,
                search,
                question,
                draw,
                topk=recipe.topk,
                spoiling=stage.spoiling,
                short=stage.short,
            )
            ids, mask = render(messages, tools)
            rows.append(ids)
            masks.append(mask)
        yield rows, masks


def demonstration_stage(model, recipe: Recipe, stage: DemonstrationStage, render: Render) -> None:
    """Next-token loss on what the assistant writes, plus a little on a quarter of the rest."""
    forward = PrefixForward(model)
    torch.manual_seed(recipe.seed + stage.seed_offset)
    optimizers = _optimizers(model, stage.learning_rate, stage.learning_rate, 0.0)
    base = [stage.learning_rate] * 2
    with Progress(stage.steps, stage.name, unit="step") as progress:
        for step, (rows, masks) in enumerate(_batches(recipe, stage, render)):
            shared = common_prefix(rows)
            tokens, lengths = pad_rows([row[shared:] for row in rows])
            written, _ = pad_rows([mask[shared:] for mask in masks], False)
            hidden = forward.hidden(forward.prefix(rows[0][:shared]), tokens)[:, :-1]
            labels = tokens[:, 1:]
            assistant = written[:, 1:]
            present = torch.arange(labels.shape[1])[None] < lengths[:, None] - 1
            other = present & ~assistant & (torch.rand(labels.shape) < 0.25)
            chosen = assistant | other
            loss = F.cross_entropy(forward.logits(hidden[chosen]), labels[chosen], reduction="none")
            by_assistant = assistant[chosen]
            total = loss[by_assistant].mean() + 0.3 * loss[~by_assistant].mean()
            total.backward()
            done = step / stage.steps
            _step(model, optimizers, base, min(1.0, (step + 1) / stage.warmup_steps) * (1 - done))
            progress.update(note=f"loss {loss[by_assistant].mean().item():.3f}")


def warm_start(recipe: Recipe, *, render: Render, prefix: list[int], work: Path):
    """Run all stages; returns the model.

    Args:
        render: conversation to token ids and assistant mask.
        prefix: tokens that the copy stage puts in front (any short prompt).
        work: keeps each stage's end state, by the hash of the recipe up to there.
    """
    settings = asdict(recipe)
    model = new_model(text_config(recipe), seed=recipe.seed)
    stages: list[tuple[str, Callable[[], None]]] = [
        ("copy", lambda: copy_stage(model, recipe, prefix))
    ]
    for stage in recipe.stages:
        stages.append((stage.name, lambda s=stage: demonstration_stage(model, recipe, s, render)))
    work.mkdir(parents=True, exist_ok=True)
    for i, (name, run) in enumerate(stages):
        so_far = {**settings, "stages": settings["stages"][:i]}
        state_path = work / f"{i}-{name}-{sha256_json(so_far)[:12]}.pt"
        if state_path.exists():
            model.load_state_dict(torch.load(state_path, weights_only=True))
            logger.info("%s: taken from %s", name, state_path)
            continue
        run()
        with atomic_path(state_path) as temporary:
            torch.save(model.state_dict(), temporary)
    return model
