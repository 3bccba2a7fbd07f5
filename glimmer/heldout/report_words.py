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


def noise_sentence(measured: Mapping[str, Any]) -> str:
    """The noise floor in a sentence, and what the difference is against it."""
    noise = measured.get("noise")
    if noise is None:
        return "Noise floor: not measured; it needs repeated passes (evaluation.repeats)."
    sides = noise["before"], noise["after"]
    what = (
        f"in {sides[0]['passes']} passes over {sides[0]['questions']} questions, the further ones "
        "in another order and other batches, the verdict changed for "
        f"{sides[0]['changed']} before training and {sides[1]['changed']} after it"
    )
    most = f"at most ±{100 * noise['at_most']:.1f} points by the 95 % interval of that count"
    if not noise["questions"]:
        return f"Noise floor: 0 points ({most}): {what}."
    if noise["above"]:
        against = f"the difference is {noise['ratio']:.3g} times that"
    else:
        against = "the difference does not exceed it"
    return (
        f"Noise floor: ±{100 * noise['difference']:.1f} points, {noise['questions']:.1f} of "
        f"{measured['questions']} questions ({most}); {against}: {what}."
    )


def floor_points(measured: Mapping[str, Any], questions: int | None = None) -> str:
    """The noise floor beside a difference of so many of the questions (None: all), in points."""
    noise = measured.get("noise")
    if noise is None:
        return "not measured"
    # The variance of a share falls with the number of questions.
    scale = 1.0 if questions is None else (measured["questions"] / questions) ** 0.5
    return f"±{100 * noise['difference'] * scale:.1f}"
