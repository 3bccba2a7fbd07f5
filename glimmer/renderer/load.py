"""From a checkpoint folder and the config section `renderer` to a renderer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glimmer.errors import ConfigError, IntegrityError
from glimmer.renderer.config import MuseGlimmerRendererConfig
from glimmer.renderer.muse_glimmer import MuseGlimmerRenderer

KNOBS = ("current_date", "knowledge_cutoff", "reasoning_strength")


def template_knobs(settings: Mapping[str, Any]) -> dict[str, str]:
    """The template's own variables from config section `renderer`; what is null there takes the
    template's default, which is the renderer's too."""
    return {key: settings[key] for key in KNOBS if settings[key] is not None}


def load_tokenizer(checkpoint: Path) -> Any:
    """transformers' tokenizer of a checkpoint folder, never from the network.

    Raises:
        IntegrityError: it cannot be read.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
    except (OSError, ValueError) as error:
        raise IntegrityError(
            f"{checkpoint}: its tokenizer cannot be read ({error}). Fetch the checkpoint anew."
        ) from error


def load_renderer(
    checkpoint: Path,
    settings: Mapping[str, Any],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    text_only: bool = True,
) -> Any:
    """The renderer that the config names, over the checkpoint's tokenizer.

    Args:
        settings: config section `renderer`; `implementation` chooses between this project's
            renderer and the one of the library `renderers`, if that has one for this model.
        tools: schemas by which arguments of parsed calls are typed.
        text_only: refuse image and video parts; otherwise they become the template's placeholders.

    Raises:
        ConfigError: the library has no renderer for this model.
    """
    tokenizer = load_tokenizer(checkpoint)
    if settings["implementation"] == "library":
        return _library_renderer(tokenizer, settings)
    config = MuseGlimmerRendererConfig(
        **template_knobs(settings),
        media="refused" if text_only else "placeholder",
    )
    return MuseGlimmerRenderer(tokenizer, config.with_tools(tools))


def _library_renderer(tokenizer: Any, settings: Mapping[str, Any]) -> Any:
    from renderers import config_from_name, create_renderer

    try:
        config = config_from_name("muse-glimmer")
    except (KeyError, ValueError) as error:
        raise ConfigError(
            "renderer.implementation: found 'library', but the installed library `renderers` has "
            "no renderer 'muse-glimmer'. Set it to 'glimmer'."
        ) from error
    known = type(config).model_fields
    kept = {key: value for key, value in template_knobs(settings).items() if key in known}
    return create_renderer(tokenizer, type(config)(**kept))
