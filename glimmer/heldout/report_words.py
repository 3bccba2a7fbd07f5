"""The result in words: the sentence, the noise floor, what a control run is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glimmer.heldout.report_tables import points

_ALPHA = 0.05
_CONTROLS = {
    "shuffled_rewards": "rewards were shuffled before they were learned from",
    "zero_advantages": "every advantage was set to zero",
}


def result_sentence(
    paired: Mapping[str, Any], config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> str:
    """The result in one sentence, after one that says so if the run is a control.

    A difference is claimed only if the interval excludes 0 and the exact test is below 0.05.

    Args:
        paired: verdict of `glimmer.heldout.paired.compare`.
        config: the run's whole config.
        rows: training metrics; the last one's step is the number of steps.
    """
    measured = paired["measured"]
    questions = measured["questions"]
    old, new = measured["before"]["correct"], measured["after"]["correct"]
    low, high = measured["difference"]["ci95"]
    p = measured["mcnemar_p"]
    change = points(measured["difference"]["mean"])
    interval = f"[{points(low)}, {points(high)}]"
    steps = int(rows[-1]["step"]) if rows else None
    when = (
        "After a training of which no step is recorded"
        if steps is None
        else f"After {steps} GRPO step{'' if steps == 1 else 's'}"
    )
    answers = f"{new} of {questions} held-out questions"
    if p >= _ALPHA or low <= 0 <= high:
        text = (
            f"{when} the model answers {answers}, {old} before: no difference that this many "
            f"questions can show ({change} points {interval}, 95 % paired bootstrap; exact "
            f"McNemar {_p(p)})."
        )
    else:
        fewer = "fewer questions than before, " if new < old else ""
        text = (
            f"{when} the model answers {fewer}{answers}, {old} before: {change} points "
            f"{interval} (95 % paired bootstrap), exact McNemar {_p(p)}."
        )
    return _control(config) + text


def pooled_sentence(names: Sequence[str], pool: Mapping[str, Any]) -> str:
    """The result of several training seeds in one sentence; a difference is claimed only if the
    interval over questions and seeds excludes 0.

    Args:
        names: of the runs.
        pool: of `glimmer.heldout.pooled.pool_seeds`.
    """
    found = pool["difference"]
    low, high = found["ci95"]
    shown = ""
    if low <= 0 <= high:
        shown = f"no difference that {len(names)} seeds and this many questions can show, "
    return (
        f"Over {pool['seeds']} training seeds ({', '.join(names)}) the model answers on average "
        f"{pool['after']:.1f} of {pool['questions']} held-out questions, {pool['before']:.1f} "
        f"before: {shown}{points(found['mean'])} points [{points(low)}, {points(high)}] (95 % "
        f"interval over questions and seeds, {found['degrees_of_freedom']:.3g} degrees of "
        f"freedom), {_p(found['p'])}."
    )


def pooled_noise(pool: Mapping[str, Any]) -> str:
    """The noise floor of a pooled difference in a sentence."""
    floor = pool["floor"]
    if floor is None:
        return "Noise floor: not measured in every run; it needs repeated passes."
    against = "exceeds" if abs(pool["difference"]["mean"]) > floor else "does not exceed"
    return (
        f"Noise floor: evaluating the same weights again moves this mean by ±{100 * floor:.1f} "
        f"points in 95 % of cases (at most ±{100 * pool['floor_at_most']:.1f} by the intervals of "
        f"what was found); the difference {against} it."
    )


def tests_sentence(measured: Mapping[str, Any]) -> str:
    """Both p of gained against lost, and which of them decides."""
    return (
        f"Gained against lost: {_p(measured['mcnemar_p'])} by the exact McNemar test, which "
        "decides and is conservative (without an effect it is significant in fewer than 5 % of "
        f"cases); mid-p, nearer to 5 %: {_p(measured['mcnemar_midp'])}."
    )


def _control(config: Mapping[str, Any]) -> str:
    control = (config.get("training") or {}).get("control") or "none"
    if control == "none":
        return ""
    meaning = _CONTROLS.get(control, "training was altered")
    return (
        f"This is a control run: {meaning} (training.control: {control}), so a gain here would "
        "not be learning from the reward. "
    )


def _p(value: float) -> str:
    """ "p = ..." with two digits; a p that is 0 in floating point is only known to be small."""
    return f"p = {value:.2g}" if value >= 1e-300 else "p < 1e-300"


def p_value(value: float) -> str:
    """Two digits; a p that is 0 in floating point is only known to be small."""
    return f"{value:.2g}" if value >= 1e-300 else "< 1e-300"


def noise_sentence(measured: Mapping[str, Any], *, setting: str = "evaluation.repeats") -> str:
    """The noise floor in a sentence, and what the difference is against it; where it was not
    measured, the setting that has it measured."""
    noise = measured.get("noise")
    if noise is None:
        return f"Noise floor: not measured; it needs repeated passes ({setting})."
    sides = noise["before"], noise["after"]
    what = (
        f"Of {sides[0]['questions']} questions asked {sides[0]['passes']} times of the same "
        f"weights, in other orders and batches, {sides[0]['changed']} changed between right and "
        f"wrong before training, {sides[1]['changed']} after it."
    )
    most = f"at most ±{100 * noise['at_most']:.1f} by the 95 % interval of what was found"
    if not noise["questions"]:
        return f"Noise floor: 0 points ({most}). {what}"
    if noise["above"]:
        against = f"the difference is {noise['ratio']:.3g} times that"
    else:
        against = "the difference does not exceed it"
    return (
        f"Noise floor: ±{100 * noise['difference']:.1f} points, {noise['questions']:.1f} of "
        f"{measured['questions']} questions ({most}); {against}. {what}"
    )


_WITHOUT_ANSWER = ("no_answer", "truncated", "turn_limit", "tool_error", "crashed")


def gain_sentence(outcomes: Mapping[str, Mapping[str, int]]) -> str:
    """Where the gain is from, in words: questions that had no answer before, or a wrong one; and
    how many of those that were right are lost.

    Args:
        outcomes: questions by outcome before, then by outcome after.
    """
    right = outcomes.get("correct", {})
    kept, known = right.get("correct", 0), sum(right.values())
    gained = {was: row["correct"] for was, row in outcomes.items() if row.get("correct")}
    gained.pop("correct", None)
    missing = {name: gained[name] for name in _WITHOUT_ANSWER if name in gained}
    total = sum(gained.values())
    if not total:
        text = "No question was gained."
    else:
        listed = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in missing.items())
        text = (
            f"Of the {total} questions gained, {sum(missing.values())} had ended without an answer "
            f"before training{f' ({listed})' if listed else ''} and {gained.get('wrong', 0)} with "
            "a wrong one."
        )
    return f"{text} Of the {known} that were right before, {known - kept} were lost."


def floor_points(measured: Mapping[str, Any], questions: int | None = None) -> str:
    """The noise floor beside a difference of so many of the questions (None: all), in points."""
    noise = measured.get("noise")
    if noise is None:
        return "not measured"
    # The variance of a share falls with the number of questions.
    scale = 1.0 if questions is None else (measured["questions"] / questions) ** 0.5
    return f"±{100 * noise['difference'] * scale:.1f}"


def power_sentence(found: Mapping[str, Any], questions: int) -> str:
    """What this many questions could show.

    Args:
        found: of `glimmer.heldout.statistics.power`.
    """
    start = f"With {100 * found['discordant_rate']:.1f} % of {questions} questions changed, "
    detectable, least = found["detectable_difference"], found["significant_difference"]
    if detectable is None:
        return (
            f"{start}no true difference would be found by the exact test with a probability of "
            f"{found['power']:.0%}."
        )
    end = "."
    if least is not None:
        end = (
            f"; {100 * least:.1f} points are the smallest that could be significant at "
            f"{found['alpha']:g}."
        )
    return (
        f"{start}a true difference of {100 * detectable:.1f} points would be found with a "
        f"probability of {found['power']:.0%} (exact power of the McNemar test, Duffy 1984){end}"
    )
