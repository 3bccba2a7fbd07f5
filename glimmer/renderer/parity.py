"""The renderer gate: the native renderer against the checkpoint's own chat template.

Both render the same conversations; text is compared byte by byte, ids against the tokenizer's ids
of the template's whole text. Where the template raises, the renderer must raise too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glimmer.files import sha256_json
from glimmer.renderer.cases import Case, builtin_cases, pipeline_cases, refused_cases
from glimmer.renderer.load import load_renderer, load_tokenizer

_KNOBS = ("current_date", "knowledge_cutoff", "reasoning_strength")
_SHOWN = 60  # characters on each side of a difference


def check_parity(
    checkpoint: Path,
    settings: Mapping[str, Any],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """The verdict (see `glimmer.verdict`); `details` has every case that differs.

    Args:
        checkpoint: folder with tokenizer and chat template.
        settings: config section `renderer`; decides which renderer is judged.
        tools: schemas of the pipeline's own tools.
    """
    tokenizer = load_tokenizer(checkpoint)
    cases = [*builtin_cases(), *pipeline_cases(tools or [])]
    refused = list(refused_cases())
    renderers = _Renderers(checkpoint, settings)
    if not tokenizer.chat_template:
        details = [{"case": "template", "problem": f"{checkpoint} has no chat template"}]
    else:
        details = [
            problem
            for case in cases
            if (problem := _compare(case, renderers, tokenizer, settings)) is not None
        ]
        details += [
            {"case": case.name, "problem": problem}
            for case in refused
            if (problem := _refusal(case, renderers, tokenizer, settings)) is not None
        ]
    return {
        "gate": "renderer_parity",
        "passed": not details,
        "measured": {
            "cases": len(cases) + len(refused),
            "differing": len({d["case"] for d in details}),
        },
        "threshold": {"differing": 0},
        "measured_on": {
            "checkpoint": checkpoint.name,
            "implementation": settings["implementation"],
            "template_sha256": sha256_json(tokenizer.chat_template),
        },
        "details": details,
    }


def _by_template(case: Case, tokenizer: Any, settings: Mapping[str, Any]) -> str:
    knobs = {key: settings[key] for key in _KNOBS} | dict(case.knobs)
    return tokenizer.apply_chat_template(
        case.messages,
        tools=case.tools,
        add_generation_prompt=case.generation,
        tokenize=False,
        **knobs,
    )


class _Renderers:
    """The renderers of a checkpoint, one for each distinct set of knobs."""

    def __init__(self, checkpoint: Path, settings: Mapping[str, Any]) -> None:
        self._checkpoint, self._settings = checkpoint, settings
        self._made: dict[tuple, Any] = {}

    def of(self, case: Case) -> Any:
        key = tuple(sorted(case.knobs.items()))
        if key not in self._made:
            self._made[key] = load_renderer(
                self._checkpoint, {**self._settings, **case.knobs}, text_only=False
            )
        return self._made[key]


def _compare(
    case: Case, renderers: _Renderers, tokenizer: Any, settings: Mapping[str, Any]
) -> dict[str, Any] | None:
    """What differs in one case, or None."""
    try:
        expected = _by_template(case, tokenizer, settings)
    except Exception as error:
        problem = f"the template raises {type(error).__name__}: {error}"
        return {"case": case.name, "problem": problem}
    renderer = renderers.of(case)
    arguments = {"tools": case.tools, "add_generation_prompt": case.generation}
    try:
        ids = renderer.render_ids(case.messages, **arguments)
        text = getattr(renderer, "render_text", None)
        text = text(case.messages, **arguments) if text is not None else None
    except Exception as error:
        return {"case": case.name, "problem": f"raises {type(error).__name__}: {error}"}
    if text is not None and text != expected:
        return {"case": case.name, "problem": "text differs"} | difference(text, expected)
    wanted = tokenizer.encode(expected, add_special_tokens=False)
    if ids != wanted:
        shown = difference(tokenizer.decode(ids), tokenizer.decode(wanted))
        at = next((i for i, (a, b) in enumerate(zip(ids, wanted, strict=False)) if a != b), None)
        return {"case": case.name, "problem": f"ids differ from token {at} on"} | shown
    return None


def _refusal(
    case: Case, renderers: _Renderers, tokenizer: Any, settings: Mapping[str, Any]
) -> str | None:
    """Why a conversation that must be refused was not, or None."""
    try:
        _by_template(case, tokenizer, settings)
    except Exception:  # noqa: S110 - jinja's, transformers' or the template's own
        pass
    else:
        return "the template renders it"
    try:
        renderers.of(case).render_ids(case.messages, tools=case.tools)
    except (ValueError, TypeError):
        return None
    return "the template raises, the renderer does not"


def difference(found: str, expected: str) -> dict[str, Any]:
    """Position of the first difference of two texts, and both around it."""
    limit = min(len(found), len(expected))
    at = next((i for i in range(limit) if found[i] != expected[i]), limit)
    around = slice(max(at - _SHOWN, 0), at + _SHOWN)
    return {"position": at, "renderer": found[around], "template": expected[around]}
