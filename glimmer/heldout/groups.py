"""The paired comparison within groups of questions, corrected for the number of groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from glimmer.heldout.statistics import holm, mcnemar_p


def grouped(
    old: Mapping[str, Any], new: Mapping[str, Any], ids: Sequence[str], key: Callable[[str], str]
) -> dict[str, dict[str, Any]]:
    """Exact match before and after within each group.

    Args:
        old, new: records by id.
        ids: of the questions.
        key: a question's group, by its id.

    Returns:
        Group -> {"questions", "before", "after": rates, "gained", "lost", "mcnemar_p", "holm_p"}.
    """
    members: dict[str, list[str]] = {}
    for i in ids:
        members.setdefault(key(i), []).append(i)
    groups = {}
    for name, ids_of in sorted(members.items()):
        pairs = Counter(tuple(r[i]["scores"]["exact_match"] for r in (old, new)) for i in ids_of)
        gained, lost = pairs[0, 1], pairs[1, 0]
        groups[name] = {
            "questions": len(ids_of),
            "before": (pairs[1, 1] + lost) / len(ids_of),
            "after": (pairs[1, 1] + gained) / len(ids_of),
            "gained": gained,
            "lost": lost,
            "mcnemar_p": mcnemar_p(gained, lost),
        }
    return corrected(groups)


def by_outcome(
    old: Mapping[str, Any], new: Mapping[str, Any], ids: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Outcome -> questions that ended so {"before", "after"}, and the exact McNemar p of ending so
    or not, with its "holm_p"."""
    names = sorted({rows[i]["outcome"] for rows in (old, new) for i in ids})
    groups = {}
    for name in names:
        pairs = Counter(tuple(r[i]["outcome"] == name for r in (old, new)) for i in ids)
        groups[name] = {
            "before": pairs[True, True] + pairs[True, False],
            "after": pairs[True, True] + pairs[False, True],
            "mcnemar_p": mcnemar_p(pairs[False, True], pairs[True, False]),
        }
    return corrected(groups)


def transitions(
    old: Mapping[str, Any], new: Mapping[str, Any], ids: Iterable[str]
) -> dict[str, dict[str, int]]:
    """Questions by outcome before and outcome after."""
    table: dict[str, dict[str, int]] = {}
    counts = Counter((old[i]["outcome"], new[i]["outcome"]) for i in ids)
    for (was, became), count in sorted(counts.items()):
        table.setdefault(was, {})[became] = count
    return table


def corrected(groups: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The groups with `holm_p`, their p corrected for the number of groups."""
    values = holm([group["mcnemar_p"] for group in groups.values()])
    for group, p in zip(groups.values(), values, strict=True):
        group["holm_p"] = p
    return groups
