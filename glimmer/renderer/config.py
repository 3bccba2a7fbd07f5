"""Settings of the Muse Glimmer renderer, as a config of the library `renderers` (0.1.12)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import model_validator
from renderers.configs import BaseRendererConfig


class MuseGlimmerRendererConfig(BaseRendererConfig):
    """Knobs of the template, then of this renderer. Frozen and hashable.

    Mappings are kept as JSON text (`tool_namespace_descriptions_json`, `parse_tools_json`), since a
    config of the library must be hashable. `tool_namespace_descriptions={...}` is taken too, and
    `with_tools` writes the schemas.
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

    retain_reasoning_in_history: bool = True
    """False: assistant messages before the last user message render without their reasoning, and
    no bridge leads over a user message. The template always keeps it."""
    answer_from_reasoning_fallback: bool = False
    """True: a turn that is nothing but finished reasoning is parsed with that text as its answer
    also."""
    media: Literal["placeholder", "refused"] = "placeholder"
    """Image and video parts: the template's placeholder tokens, or an error that names the part."""

    _template_fields = frozenset({"current_date", "knowledge_cutoff", "reasoning_strength"})
    _internal_fields = frozenset(
        {
            "tool_namespace_descriptions_json",
            "attribution",
            "parse_tools_json",
            "retain_reasoning_in_history",
            "answer_from_reasoning_fallback",
            "media",
        }
    )

    @model_validator(mode="before")
    @classmethod
    def _descriptions_as_text(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or "tool_namespace_descriptions" not in values:
            return values
        values = dict(values)
        descriptions = values.pop("tool_namespace_descriptions") or {}
        if not isinstance(descriptions, Mapping) or not all(
            isinstance(text, str) for pair in descriptions.items() for text in pair
        ):
            raise ValueError(
                f"tool_namespace_descriptions: found {descriptions!r}, expected a mapping from "
                "namespaces to texts"
            )
        if values.get("tool_namespace_descriptions_json", "{}") != "{}":
            raise ValueError("tool_namespace_descriptions: given twice, as mapping and as JSON")
        text = json.dumps(dict(descriptions), sort_keys=True, ensure_ascii=False)
        return {**values, "tool_namespace_descriptions_json": text}

    @model_validator(mode="after")
    def _one_retention(self) -> MuseGlimmerRendererConfig:
        if not self.retain_reasoning_in_history and self.thinking_retention == "all":
            raise ValueError(
                "thinking_retention: found 'all', but retain_reasoning_in_history is false, which "
                "forgets reasoning at each user message. Leave one of them out."
            )
        return self

    @property
    def retention(self) -> Literal["all", "tool_cycle"]:
        """Over which messages a bridge may lead: the library's `thinking_retention`, or else what
        `retain_reasoning_in_history` implies."""
        implied = "all" if self.retain_reasoning_in_history else "tool_cycle"
        return self.thinking_retention or implied

    def with_tools(self, tools: Sequence[Mapping[str, Any]] | None) -> MuseGlimmerRendererConfig:
        """The same config with the schemas by which `parse_response` types arguments."""
        text = json.dumps(list(tools or []), sort_keys=True)
        return self.model_copy(update={"parse_tools_json": text})
