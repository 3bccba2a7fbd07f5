"""Settings of the Muse Glimmer renderer, as a config of the library `renderers` (0.1.12)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from renderers.configs import BaseRendererConfig


class MuseGlimmerRendererConfig(BaseRendererConfig):
    """Knobs of the template, then of this renderer. Frozen and hashable.

    Mappings are kept as JSON text (`tool_namespace_descriptions_json`, `parse_tools_json`), since a
    config of the library must be hashable; `with_tools` writes the latter.
    """

    name: Literal["muse-glimmer-native"] = "muse-glimmer-native"
    current_date: str
    """Stands in the default system message, YYYY-MM-DD. No default: a prompt must not change at
    midnight."""
    knowledge_cutoff: str = "2026-01-04"
    reasoning_strength: str = "high"
    tool_namespace_descriptions_json: str = "{}"
    """JSON object, namespace -> description in the `// Tool metadata` lines."""
    attribution: Literal["body", "sampled"] = "body"
    """"body": an assistant block's header is not sampled. "sampled": exactly what the model emits
    after the generation prompt is."""
    parse_tools_json: str = "[]"
    """JSON list of tool schemas for parsing; TitanRL's token environment passes none."""

    _template_fields = frozenset({"current_date", "knowledge_cutoff", "reasoning_strength"})
    _internal_fields = frozenset(
        {"tool_namespace_descriptions_json", "attribution", "parse_tools_json"}
    )

    def with_tools(self, tools: Sequence[Mapping[str, Any]] | None) -> MuseGlimmerRendererConfig:
        """The same config with the schemas by which `parse_response` types arguments."""
        text = json.dumps(list(tools or []), sort_keys=True)
        return self.model_copy(update={"parse_tools_json": text})
