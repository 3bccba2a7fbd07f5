import copy

import pytest

from glimmer.parity.bitwise import COMPARISONS, judge

SETTINGS = {"max_entropy_fraction": 0.5, "max_logprob_diff": 1e-4}


def run(delta=0.0, changed=0.01, entropy=1.0):
    return {
        "max_delta": dict.fromkeys(COMPARISONS, delta),
        "tokens_differing": 0,
        "one_weight_changed": changed,
        "entropy": entropy,
        "max_entropy": 8.0,
        "measured_on": {},
    }


def verdict(change=lambda found, loose: None, *, batch_invariant=True):
    found, loose = {"checkpoint": run(), "wide": run()}, run(delta=0.2)
    change(found, loose)
    before = copy.deepcopy(found)
    judged = judge(found, loose, settings=SETTINGS, batch_invariant=batch_invariant)
    assert found == before
    return judged


def test_equal_sides_and_controls_that_differ_pass():
    judged = verdict()
    assert judged["passed"]
    assert judged["measured"]["controls_that_differ"] == 3
    assert judged["threshold"]["max_delta"] == 0.0


@pytest.mark.parametrize("model", ["checkpoint", "wide"])
@pytest.mark.parametrize("comparison", COMPARISONS)
def test_the_smallest_difference_fails(model, comparison):
    def change(found, loose):
        found[model]["max_delta"][comparison] = 1e-7

    assert not verdict(change)["passed"]


def test_without_batch_invariant_mode_the_configured_difference_is_allowed():
    def change(found, loose):
        found["wide"]["max_delta"]["trainer_vs_decode"] = 9e-5

    assert verdict(change, batch_invariant=False)["passed"]
    assert not verdict(change)["passed"]


@pytest.mark.parametrize("blind", [1, 2, 3])
def test_a_gate_that_cannot_see_fails_itself(blind):
    def change(found, loose):
        found["checkpoint"]["one_weight_changed"] = 0.0
        if blind > 1:
            found["wide"]["one_weight_changed"] = 0.0
        if blind > 2:
            loose["max_delta"] = dict.fromkeys(COMPARISONS, 0.0)

    judged = verdict(change)
    assert judged["passed"] is (blind == 1)
    assert judged["measured"]["controls_that_differ"] == 3 - blind


def test_a_model_that_knows_nothing_fails():
    def change(found, loose):
        found["checkpoint"]["entropy"] = 7.9

    assert not verdict(change)["passed"]


def test_other_tokens_fail():
    def change(found, loose):
        found["wide"]["tokens_differing"] = 1

    assert not verdict(change)["passed"]
