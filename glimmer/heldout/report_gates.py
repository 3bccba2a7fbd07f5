"""The report's gates: each one's verdict, its figure in words, everything that was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from glimmer.heldout.report_tables import Html, esc, number, percent, table

_DETAILS = 10  # cases of a gate shown
_DETAIL_LENGTH = 400


def gate_figure(verdict: Mapping[str, Any]) -> str:
    """What a gate measured against what it allows, in a few words; "" for a gate that is not known
    here."""
    measured, allowed = verdict.get("measured", {}), verdict.get("threshold", {})
    if "recall" in measured and "min_recall" in allowed:
        return (
            f"{percent(measured['recall'])} of what exact search finds, at least "
            f"{percent(allowed['min_recall'])}"
        )
    if "cases" in measured and "differing" in measured:
        return f"{measured['differing']} of {number(measured['cases'])} conversations differ"
    if "max_logprob_diff" in allowed and "trainer_vs_sampler" in measured:
        return (
            f"trainer and sampler at most {measured['trainer_vs_sampler']:.2g} nats apart, "
            f"allowed {number(allowed['max_logprob_diff'])}"
        )
    if isinstance(measured.get("max_delta"), Mapping) and "max_delta" in allowed:
        runs = measured["max_delta"].values()
        largest = max((delta for run in runs for delta in run.values()), default=0.0)
        return (
            f"trainer and generator at most {largest:.2g} nats apart, allowed "
            f"{number(allowed['max_delta'])}"
        )
    if "max_logit_diff" in allowed and (
        known := [v for k, v in measured.items() if k.startswith("transformers_vs_")]
    ):
        return f"logits at most {max(known):.2g} apart, allowed {number(allowed['max_logit_diff'])}"
    return ""


def gates(verdicts: Mapping[str, Mapping[str, Any]]) -> Html:
    """One row a gate: verdict, figures, thresholds, data; the cases worth reading folded below."""
    rows, folded = [], []
    for name, verdict in verdicts.items():
        state = "passed" if verdict["passed"] else "failed"
        rows.append(
            [
                _words(verdict.get("gate", name)),
                Html(f'<span class="state {state}">{state}</span>'),
                verdict["measured"],
                verdict["threshold"],
                verdict["measured_on"],
            ]
        )
        if cases := verdict.get("details"):
            folded.append(_cases(_words(name), cases))
    if not rows:
        return Html("<p>No gate has been measured.</p>")
    head = ["gate", "verdict", "measured", "allowed", "measured on"]
    return Html(table("Verdict of each gate", head, rows, kind="gates") + "".join(folded))


def _cases(name: str, cases: Any) -> Html:
    listed = list(cases.items()) if isinstance(cases, Mapping) else list(cases)
    lines = "".join(
        f"<li><code>{esc(_cut(json.dumps(case, ensure_ascii=False)))}</code></li>"
        for case in listed[:_DETAILS]
    )
    count = f"{min(len(listed), _DETAILS)} of {len(listed)}"
    return Html(
        f"<details><summary>{esc(name)}: single cases, {count}</summary>"
        f'<ul class="cases">{lines}</ul></details>'
    )


def _cut(text: str) -> str:
    return text if len(text) <= _DETAIL_LENGTH else text[:_DETAIL_LENGTH] + "…"


def _words(name: Any) -> str:
    return str(name).replace("_", " ")
