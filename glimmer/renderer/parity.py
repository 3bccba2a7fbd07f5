"""The renderer gate: the native renderer against the checkpoint's own chat template.

Both render the same conversations; text is compared byte by byte, ids against the tokenizer's ids
of the template's whole text. Where the template raises, the renderer must raise too. A checkpoint
without a template is judged by `glimmer.renderer.golden`, or fails, as the config says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glimmer.files import sha256_json
from glimmer.renderer.cases import Case, builtin_cases, pipeline_cases, refused_cases
from glimmer.renderer.golden import Golden, golden_cases, tokenizer_sha256
from glimmer.renderer.load import load_renderer, load_tokenizer, template_knobs
from glimmer.renderer.template import CHAT_TEMPLATE

_SHOWN = 60  # characters on each side of a difference


def check_parity(
    checkpoint: Path,
    settings: Mapping[str, Any],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """The verdict (see `glimmer.verdict`). `cases` has every case, `details` those that fail.

    A case is {"case", "verdict", "problem", "position", "token", "renderer", "template"}: `verdict`
    is "same", "refused" (by both, as it must be) or "differs"; `position` is the first differing
    character, `token` the first differing id, and the last two the texts around it. What does not
    apply is null.

    Args:
        checkpoint: folder with tokenizer and chat template.
        settings: config section `renderer`; decides which renderer is judged.
        tools: schemas of the pipeline's own tools.
    """
    tokenizer = load_tokenizer(checkpoint)
    template = tokenizer.chat_template
    measured_on = {
        "checkpoint": checkpoint.name,
        "implementation": settings["implementation"],
        **template_knobs(settings),
        "template_sha256": sha256_json(template) if template else None,
        "tokenizer_sha256": tokenizer_sha256(tokenizer),
    }
    renderers = _Renderers(checkpoint, settings)
    if template:
        cases = [*builtin_cases(), *pipeline_cases(tools or [])]
        outcomes = [_compare(case, renderers, tokenizer, settings) for case in cases]
        outcomes += [_refusal(case, renderers, tokenizer, settings) for case in refused_cases()]
    elif settings["without_template"] == "golden":
        golden = golden_cases()
        known = golden.tokenizer_sha256 == measured_on["tokenizer_sha256"]
        measured_on["golden_ids"] = "recorded" if known else "of this tokenizer"
        outcomes = _by_golden(golden, known, renderers, tokenizer, settings)
    else:
        outcomes = [
            _outcome(
                "template",
                f"{checkpoint} has no chat template, neither chat_template.jinja nor in the "
                "tokenizer's config, and renderer.without_template is 'fail'. Fetch the "
                "checkpoint with its template, or set 'golden' to compare with the released "
                "renderings that the project ships",
            )
        ]
    failed = [outcome for outcome in outcomes if outcome["verdict"] == "differs"]
    return {
        "gate": "renderer_parity",
        "passed": not failed,
        "measured": {"cases": len(outcomes), "differing": len(failed)},
        "threshold": {"differing": 0},
        "measured_on": measured_on,
        "details": [{k: v for k, v in each.items() if v is not None} for each in failed],
        "cases": outcomes,
    }


def _outcome(case: str, problem: str | None, verdict: str = "same", **shown: Any) -> dict[str, Any]:
    empty = {"position": None, "token": None, "renderer": None, "template": None}
    verdict = verdict if problem is None else "differs"
    return {"case": case, "verdict": verdict, "problem": problem, **empty, **shown}


def _by_template(case: Case, tokenizer: Any, settings: Mapping[str, Any]) -> str:
    return tokenizer.apply_chat_template(
        case.messages,
        tools=case.tools,
        add_generation_prompt=case.generation,
        tokenize=False,
        **{**template_knobs(settings), **case.knobs},
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
    case: Case,
    renderers: _Renderers,
    tokenizer: Any,
    settings: Mapping[str, Any],
    *,
    text_sha256: str | None = None,
    recorded: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Outcome of one case; `text_sha256` and `recorded` ids bind the template's side further."""
    try:
        expected = _by_template(case, tokenizer, settings)
    except Exception as error:
        return _outcome(case.name, f"the template raises {type(error).__name__}: {error}")
    if text_sha256 is not None and hashlib.sha256(expected.encode()).hexdigest() != text_sha256:
        return _outcome(case.name, "the project's own template does not give the released text")
    wanted = tokenizer.encode(expected, add_special_tokens=False)
    if recorded is not None and wanted != list(recorded):
        at = _first_difference(wanted, recorded)
        return _outcome(case.name, f"the tokenizer's ids differ from the released, token {at} on")
    renderer = renderers.of(case)
    arguments = {"tools": case.tools, "add_generation_prompt": case.generation}
    try:
        ids = renderer.render_ids(case.messages, **arguments)
        text = getattr(renderer, "render_text", None)
        text = text(case.messages, **arguments) if text is not None else None
    except Exception as error:
        return _outcome(case.name, f"raises {type(error).__name__}: {error}")
    at = _first_difference(ids, wanted) if ids != wanted else None
    if text is not None and text != expected:
        return _outcome(case.name, "text differs", token=at, **difference(text, expected))
    if at is not None:
        shown = difference(tokenizer.decode(ids), tokenizer.decode(wanted))
        return _outcome(case.name, f"ids differ from token {at} on", token=at, **shown)
    return _outcome(case.name, None)


def _by_golden(
    golden: Golden,
    known: bool,
    renderers: _Renderers,
    tokenizer: Any,
    settings: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Outcomes over the released renderings: texts by hash, ids as recorded if the tokenizer is
    the one of the recording, else as this tokenizer has the whole text."""
    tokenizer.chat_template = CHAT_TEMPLATE
    return [
        _compare(
            each.case,
            renderers,
            tokenizer,
            settings,
            text_sha256=each.sha256,
            recorded=each.ids if known else None,
        )
        for each in golden.cases
    ]


def _refusal(
    case: Case, renderers: _Renderers, tokenizer: Any, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Outcome of a conversation that must be refused."""
    try:
        _by_template(case, tokenizer, settings)
    except Exception:  # noqa: S110 - jinja's, transformers' or the template's own
        pass
    else:
        return _outcome(case.name, "the template renders it")
    try:
        renderers.of(case).render_ids(case.messages, tools=case.tools)
    except (ValueError, TypeError):
        return _outcome(case.name, None, "refused")
    return _outcome(case.name, "the template raises, the renderer does not")


def _first_difference(found: Sequence[Any], expected: Sequence[Any]) -> int:
    """First index at which two sequences differ; the shorter one's length if it is a prefix."""
    limit = min(len(found), len(expected))
    return next((i for i in range(limit) if found[i] != expected[i]), limit)


def difference(found: str, expected: str) -> dict[str, Any]:
    """Position of the first difference of two texts, and both around it."""
    at = _first_difference(found, expected)
    around = slice(max(at - _SHOWN, 0), at + _SHOWN)
    return {"position": at, "renderer": found[around], "template": expected[around]}
