import copy
from pathlib import Path

import pytest

from glimmer import config as configs
from glimmer.files import read_json, write_json
from glimmer.parity import bitwise
from glimmer.parity.bitwise import COMPARISONS, SLICE, WIDE, judge, models
from glimmer.training.local.model import parameter_count, read_text_config

ROOT = Path(__file__).parents[2]

SETTINGS = {"max_entropy_fraction": 0.5}


def run(delta=0.0, changed=0.01, entropy=1.0):
    return {
        "max_delta": dict.fromkeys(COMPARISONS, delta),
        "tokens_differing": 0,
        "one_weight_changed": changed,
        "entropy": entropy,
        "max_entropy": 8.0,
        "measured_on": {},
    }


def verdict(change=lambda found, loose: None):
    found, loose = {"checkpoint": run(), "wide": run()}, run(delta=0.2)
    change(found, loose)
    before = copy.deepcopy(found)
    judged = judge(found, loose, settings=SETTINGS)
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


def test_a_checkpoint_that_fits_is_measured_itself_and_a_large_one_by_its_shape():
    tiny = read_text_config(ROOT / "resources/tiny_glimmer")
    assert models(tiny) == {"checkpoint": None, "wide": WIDE}
    large = read_json(ROOT / "glimmer/preflight/muse_glimmer_30b.json")["text_config"]
    assert models(large) == {"slice": SLICE, "wide": WIDE}
    assert parameter_count(large | SLICE) < 5e9  # float32 beside bfloat16 on a card of 80 GB
    assert parameter_count(tiny | WIDE) > 0.8e9


def test_trainer_and_generator_share_a_card_of_80_gb_in_the_gate_without_graphs(
    tmp_path, monkeypatch
):
    """The run's own fraction is of cards that the generator has to itself."""
    paper = configs.load(ROOT / "config/config.yaml", ROOT / "config/h100x8.yaml")
    paper["titan"]["cudagraph"] = "FULL"
    asked = []

    def run_process(command, *, alive, **_):
        asked.append(read_json(command[-1]))
        write_json(alive, run())
        return 0

    monkeypatch.setattr(bitwise, "run_process", run_process)
    monkeypatch.setattr(bitwise, "interpreter", lambda titan: "python")
    monkeypatch.setattr(bitwise, "load_renderer", lambda *_, **__: None)
    monkeypatch.setattr(bitwise, "gate_prompts", lambda *_, **__: [[1, 2]])
    large = read_json(ROOT / "glimmer/preflight/muse_glimmer_30b.json")["text_config"]
    monkeypatch.setattr(bitwise, "read_text_config", lambda _: large)
    names = ("training", "search", "renderer", "titan")
    bitwise.check_bitwise(
        **{name: paper[name] for name in names},
        settings=paper["parity"],
        **{name: tmp_path for name in ("checkpoint", "questions", "corpus", "work")},
        out=tmp_path / "verdict.json",
        log=tmp_path / "log",
    )
    assert [r["shape"] for r in asked] == [SLICE, WIDE, WIDE]
    card = 80 * 2**30
    for request in asked:
        titan, parameters = request["job"]["titan"], parameter_count(large | request["shape"])
        assert titan["cudagraph"] == "off", "vLLM's start with graphs and torch's attention fails"
        logits = 3 * titan["context"] * large["vocab_size"] * 4
        fraction = titan["generator_memory_fraction"] * card
        # While weights are handed over, and while the trainer scores a row.
        assert 8 * parameters + fraction < 0.95 * card
        assert 4 * parameters + logits + fraction < 0.95 * card


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


def test_random_weights_may_know_less_than_a_checkpoint_but_not_nothing():
    def change(found, loose, entropy):
        found["wide"]["entropy"] = entropy

    assert verdict(lambda *both: change(*both, 4.4))["passed"]  # as on an H200, of 8.3
    assert not verdict(lambda *both: change(*both, 7.9))["passed"]


def test_other_tokens_fail():
    def change(found, loose):
        found["wide"]["tokens_differing"] = 1

    assert not verdict(change)["passed"]
