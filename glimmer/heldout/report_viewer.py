"""The transcript viewer's frame, which the page's script fills from its data block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glimmer.heldout.report_tables import Html, esc


def viewer(viewed: Mapping[str, Any]) -> Html:
    """The viewer's frame; the script fills it from the data block."""
    totals, shown = viewed["totals"], viewed["shown"]
    whole = all(shown[kind] == totals[kind] for kind in ("gained", "lost"))
    changed = (
        f"All {totals['gained']} questions gained and all {totals['lost']} lost are here"
        if whole
        else f"Of {totals['gained']} questions gained {shown['gained']} are here, of "
        f"{totals['lost']} lost {shown['lost']}"
    )
    others = sum(totals[kind] for kind in ("both_right", "both_wrong"))
    listed = sum(shown[kind] for kind in ("both_right", "both_wrong"))
    buttons = "".join(
        f'<button type="button" data-kind="{kind}" aria-pressed="{str(kind == "all").lower()}">'
        f"{kind.replace('_', ' ')} <span>{count}</span></button>"
        for kind, count in {**shown, "all": sum(shown.values())}.items()
    )
    return Html(
        f"<p>{changed}, and {listed} of the {others} others. Full records: "
        "<code>heldout/before.jsonl</code>, <code>heldout/after.jsonl</code>.</p>"
        "<noscript><p>The viewer needs JavaScript; the record files above do not.</p></noscript>"
        '<div id="viewer" class="js"><div class="controls"><div role="group" '
        f'aria-label="Which questions">{buttons}</div>'
        + _selects(viewed["questions"])
        + '<label>Search <input id="search" type="search" autocomplete="off" '
        'placeholder="question, answer, query or passage"></label>'
        '<span id="count" role="status"></span></div>'
        '<div class="panes"><ul id="list" aria-label="Questions; the arrow keys move"></ul>'
        '<div id="transcript" tabindex="-1" aria-label="Transcript" role="region"></div>'
        "</div></div>"
    )


def _selects(questions: Sequence[Mapping[str, Any]]) -> str:
    """Choices of outcome before, outcome after and type, of those that occur."""
    values = {
        "before": {q["before"]["outcome"] for q in questions},
        "after": {q["after"]["outcome"] for q in questions},
        "type": {q["type"] for q in questions if q["type"]},
    }
    return "".join(
        f'<label class="choice">{name.capitalize()} <select data-field="{name}">'
        '<option value="">any</option>'
        + "".join(
            f'<option value="{esc(value)}">'
            f"{esc(value if name == 'type' else value.replace('_', ' '))}</option>"
            for value in sorted(found)
        )
        + "</select></label>"
        for name, found in values.items()
    )
