"""The gate: renderer against the chat template of a checkpoint folder."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest

from glimmer.bundled.tokenizer import save_tokenizer, train_tokenizer
from glimmer.errors import ConfigError, IntegrityError
from glimmer.renderer import (
    CHAT_TEMPLATE,
    check_parity,
    golden,
    load_renderer,
    muse_glimmer,
    parity,
)
from glimmer.renderer.cases import builtin_cases, pipeline_cases, refused_cases
from glimmer.renderer.config import MuseGlimmerRendererConfig
from glimmer.renderer.load import load_tokenizer
from glimmer.renderer.parity import difference
from glimmer.search_r1.prompt import SEARCH_TOOL

from .helpers import KNOBS, SETTINGS

TOOLS = [SEARCH_TOOL]
FIELDS = {"case", "verdict", "problem", "position", "token", "renderer", "template"}


@pytest.fixture
def with_template(checkpoint, tmp_path):
    """Writes the checkpoint folder anew, with another chat template."""

    def write(template):
        folder = tmp_path / "checkpoint"
        shutil.copytree(checkpoint, folder, dirs_exist_ok=True)
        (folder / "chat_template.jinja").unlink()
        if template is not None:
            (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        return folder

    return write


def test_the_projects_template_passes(checkpoint):
    verdict = check_parity(checkpoint, SETTINGS, tools=TOOLS)
    assert verdict["details"] == [] and verdict["passed"] is True


def test_form_of_the_verdict(checkpoint):
    verdict = check_parity(checkpoint, SETTINGS, tools=TOOLS)
    cases = [*builtin_cases(), *pipeline_cases(TOOLS), *refused_cases()]
    assert list(verdict) == [
        "gate",
        "passed",
        "measured",
        "threshold",
        "measured_on",
        "details",
        "cases",
    ]
    assert [each["case"] for each in verdict["cases"]] == [case.name for case in cases]
    refused = {case.name for case in refused_cases()}
    for each in verdict["cases"]:
        assert each["verdict"] == ("refused" if each["case"] in refused else "same")
        assert set(each) == FIELDS and set(each.values()) == {each["case"], each["verdict"], None}
    assert verdict["gate"] == "renderer_parity"
    assert verdict["measured"] == {"cases": len(cases), "differing": 0}
    assert verdict["threshold"] == {"differing": 0}
    assert set(verdict["measured_on"]) == {
        "checkpoint",
        "implementation",
        *KNOBS,
        "template_sha256",
        "tokenizer_sha256",
    }
    assert verdict["measured_on"]["current_date"] == SETTINGS["current_date"]
    assert verdict == json.loads(json.dumps(verdict))
    assert verdict == check_parity(checkpoint, SETTINGS, tools=TOOLS)


@pytest.mark.parametrize(
    ("old", "new", "cases"),
    [
        # One character each, and cases that must be among those that differ.
        ("{{- '<|start|>assistant' -}}", "{{- '<|start|>assistanT' -}}", {"rollout_0"}),
        ("'\\n</tool_output>", "' \\n</tool_output>", {"rollout_1", "results_by_id"}),
        ("You are a helpful AI", "You are a helpful aI", {"user_plain", "rollout_0"}),
        ("'REASONING EFFORT'", "'REASONING EFFORS'", {"strength_REASONING EFFORT: LOW"}),
        ("'true' if value", "'True' if value", {"value_true"}),
        ("loop.index0 + 1", "loop.index0 + 0", {"rollout_1"}),
        (
            "'reasoning strength' not",
            "'reasoning Strength' not",
            {"strength_Reasoning strength: low."},
        ),
    ],
)
def test_one_character_of_the_template(old, new, cases, with_template):
    assert CHAT_TEMPLATE.count(old) == 1
    verdict = check_parity(with_template(CHAT_TEMPLATE.replace(old, new)), SETTINGS, tools=TOOLS)
    differing = {detail["case"]: detail for detail in verdict["details"]}
    assert not verdict["passed"]
    assert verdict["measured"]["differing"] == len(differing)
    assert cases <= set(differing)
    for detail in differing.values():
        # The ids too, unless this tokenizer writes both texts with the same ids.
        assert set(detail) - {"token"} == FIELDS - {"token"}
        assert detail["verdict"] == "differs" and detail["problem"] == "text differs"
        assert detail["renderer"] != detail["template"]
    for each in verdict["cases"]:
        shown = {key: value for key, value in each.items() if value is not None}
        assert shown == differing.get(each["case"], shown)
        assert (each["verdict"] == "differs") is (each["case"] in differing)


def test_a_template_that_renders_what_must_be_refused(with_template):
    folder = with_template(CHAT_TEMPLATE.replace("is not mapping -%}", "is sameas 0 -%}", 1))
    verdict = check_parity(folder, SETTINGS)
    assert not verdict["passed"]


def test_a_template_that_raises(with_template):
    """Each case is listed; the gate itself does not fall over."""
    for template in ("{{ raise_exception('no') }}", "{% if %}"):
        verdict = check_parity(with_template(template), SETTINGS)
        assert not verdict["passed"]
        problems = {d["case"]: d["problem"] for d in verdict["details"]}
        assert problems["user_plain"].startswith("the template raises")


def test_no_template_at_all(with_template):
    folder = with_template(None)
    verdict = check_parity(folder, SETTINGS)
    assert not verdict["passed"] and verdict["measured_on"]["template_sha256"] is None
    (detail,) = verdict["details"]
    assert detail["case"] == "template" and str(folder) in detail["problem"]
    assert "renderer.without_template is 'fail'" in detail["problem"]


GOLDEN_SETTINGS = {**SETTINGS, "without_template": "golden"}


@pytest.mark.parametrize("strength", ["high", "low", None])
def test_no_template_but_the_released_renderings(strength, with_template):
    """The released renderings have settings of their own: the config's do not count."""
    settings = {**GOLDEN_SETTINGS, "reasoning_strength": strength}
    verdict = check_parity(with_template(None), settings)
    assert verdict["passed"] and verdict["measured"] == {"cases": 24, "differing": 0}
    assert all(each["case"].startswith("golden_") for each in verdict["cases"])
    assert verdict["measured_on"]["golden_ids"] == "of this tokenizer"


def test_golden_counts_only_without_a_template(with_template):
    verdict = check_parity(with_template(CHAT_TEMPLATE.replace("Be", "be")), GOLDEN_SETTINGS)
    assert verdict["measured"]["cases"] > 24 and "golden_ids" not in verdict["measured_on"]


def test_a_renderer_that_is_wrong_fails_on_the_released_renderings(with_template, monkeypatch):
    monkeypatch.setattr(muse_glimmer, "default_system_text", lambda *_: "You are a helpful aI")
    verdict = check_parity(with_template(None), GOLDEN_SETTINGS)
    differing = {detail["case"]: detail for detail in verdict["details"]}
    assert not verdict["passed"] and "golden_plain_user" in differing
    assert "golden_explicit_system" not in differing
    shown = differing["golden_plain_user"]
    assert "helpful aI\n\nReasoning strength: high." in shown["renderer"]
    assert "helpful AI assistant." in shown["template"]


def test_a_text_that_is_not_the_released_one_fails(with_template, monkeypatch):
    monkeypatch.setattr(parity, "CHAT_TEMPLATE", CHAT_TEMPLATE.replace("helpful AI", "helpful aI"))
    verdict = check_parity(with_template(None), GOLDEN_SETTINGS)
    assert "golden_plain_user" in {detail["case"] for detail in verdict["details"]}
    assert {d["problem"] for d in verdict["details"]} == {
        "the project's own template does not give the released text"
    }


def test_recorded_ids_count_for_the_tokenizer_that_they_are_of(with_template, monkeypatch):
    """Told that this tokenizer is the released one, the gate finds that its ids are not."""
    folder = with_template(None)
    here = golden.tokenizer_sha256(load_tokenizer(folder))
    told = dataclasses.replace(golden.golden_cases(), tokenizer_sha256=here)
    monkeypatch.setattr(parity, "golden_cases", lambda: told)
    verdict = check_parity(folder, GOLDEN_SETTINGS)
    assert verdict["measured"] == {"cases": 24, "differing": 24}
    assert verdict["measured_on"]["golden_ids"] == "recorded"
    assert {d["problem"] for d in verdict["details"]} == {
        "the tokenizer's ids differ from the released, token 0 on"
    }


def test_the_hash_of_a_tokenizer_follows_what_it_does(with_template, tokenizer):
    folder = with_template(None)
    same = load_tokenizer(folder)
    assert golden.tokenizer_sha256(same) == golden.tokenizer_sha256(tokenizer)
    same.add_tokens(["<|reserved_1|>"], special_tokens=True)
    assert golden.tokenizer_sha256(same) == golden.tokenizer_sha256(tokenizer)
    other = train_tokenizer(["one two three four five six seven"], vocab_size=270)
    save_tokenizer(other, folder, chat_template=CHAT_TEMPLATE, max_length=99)
    assert golden.tokenizer_sha256(load_tokenizer(folder)) != golden.tokenizer_sha256(tokenizer)


def test_other_tokens_in_the_same_folder(with_template):
    """The folder is read anew each time: nothing is remembered by its path."""
    folder = with_template(CHAT_TEMPLATE)
    assert check_parity(folder, SETTINGS)["passed"]
    texts = ["one two three four five six seven", "assistant to=search"]
    save_tokenizer(
        train_tokenizer(texts, vocab_size=280), folder, chat_template=CHAT_TEMPLATE, max_length=99
    )
    assert check_parity(folder, SETTINGS)["details"] == []


def test_ids_are_compared_beside_the_text(checkpoint, monkeypatch):
    def backwards(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False)[::-1]

    monkeypatch.setattr(muse_glimmer.MuseGlimmerRenderer, "_encode", backwards)
    verdict = check_parity(checkpoint, SETTINGS)
    assert not verdict["passed"]
    assert all(d["problem"].startswith("ids differ from token") for d in verdict["details"])


def test_difference_shows_where():
    found = difference("x" * 100 + "a" + "y" * 100, "x" * 100 + "b" + "y" * 100)
    assert found["position"] == 100
    assert found["renderer"] == "x" * 60 + "a" + "y" * 59
    assert difference("ab", "abc")["position"] == 2


# ---- loading ---------------------------------------------------------------------------------


def test_settings_reach_the_renderer(checkpoint):
    settings = {**SETTINGS, "reasoning_strength": "low", "current_date": "1999-12-31"}
    renderer = load_renderer(checkpoint, settings, tools=TOOLS)
    text = renderer.render_text([{"role": "user", "content": "Hi"}])
    assert "Reasoning strength: low." in text and "Current date: 1999-12-31." in text
    assert json.loads(renderer.config.parse_tools_json) == TOOLS
    assert isinstance(renderer.config, MuseGlimmerRendererConfig)


@pytest.mark.parametrize("key", ["knowledge_cutoff", "reasoning_strength"])
def test_a_setting_of_null_is_the_templates_default(key, checkpoint):
    verdict = check_parity(checkpoint, {**SETTINGS, key: None}, tools=TOOLS)
    assert verdict["passed"]
    text = load_renderer(checkpoint, {**SETTINGS, key: None}).render_text(
        [{"role": "user", "content": "Hi"}]
    )
    assert text == load_renderer(checkpoint, SETTINGS).render_text(
        [{"role": "user", "content": "Hi"}]
    )


def test_a_folder_without_tokenizer(tmp_path):
    with pytest.raises(IntegrityError, match="tokenizer"):
        load_renderer(tmp_path, SETTINGS)


def test_the_library_has_no_such_renderer(checkpoint):
    if "muse-glimmer" in {c.model_fields["name"].default for c in configs()}:
        pytest.skip("this release of `renderers` has one")
    with pytest.raises(ConfigError, match=r"renderer\.implementation"):
        load_renderer(checkpoint, {**SETTINGS, "implementation": "library"})


def configs():
    from renderers.configs import BaseRendererConfig

    return [
        c
        for c in BaseRendererConfig.__subclasses__()
        if c is not MuseGlimmerRendererConfig and "name" in c.model_fields
    ]
