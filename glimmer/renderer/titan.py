"""The renderer for TitanRL: a config of torchtitan whose `build` finds it by name.

torchtitan's own `RendererConfig` knows no renderer outside the library `renderers` and forwards no
fields; this one goes through the library's path for custom renderers. It can be pickled: a worker
that unpickles it imports this module and nothing of a recipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from renderers import CustomRendererConfig, create_renderer

from glimmer.renderer.config import MuseGlimmerRendererConfig
from glimmer.renderer.load import load_tokenizer
from glimmer.titanrl import ensure_importable

ensure_importable()

from torchtitan.experiments.rl.renderer import RendererConfig  # noqa: E402

IMPORT_PATH = "glimmer.renderer.MuseGlimmerRenderer"


@dataclass(kw_only=True, slots=True)
class GlimmerRendererConfig(RendererConfig):
    """`RendererConfig` of the Muse Glimmer renderer.

    Args:
        fields: settings of `MuseGlimmerRendererConfig`, as plain values.
    """

    name: str | None = "custom"
    fields: dict[str, Any]

    def build(self, *, tokenizer_path: str) -> Any:
        """The renderer over the tokenizer in a folder."""
        config = CustomRendererConfig(import_path=IMPORT_PATH, **self.fields)
        return create_renderer(load_tokenizer(tokenizer_path), config)


def titan_config(config: MuseGlimmerRendererConfig) -> GlimmerRendererConfig:
    """torchtitan's config for a renderer with these settings."""
    return GlimmerRendererConfig(fields=config.model_dump(exclude={"name"}, exclude_defaults=True))
