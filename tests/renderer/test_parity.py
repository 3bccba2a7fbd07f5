"""The gate: renderer against the chat template of a checkpoint folder."""

from __future__ import annotations

import json
import shutil

import pytest

from glimmer.bundled.tokenizer import save_tokenizer, train_tokenizer
from glimmer.errors import ConfigError, IntegrityError
from glimmer.renderer import CHAT_TEMPLATE, check_parity, load_renderer
from glimmer.renderer.cases import builtin_cases, pipeline_cases, refused_cases
from glimmer.renderer.config import MuseGlimmerRendererConfig
from glimmer.renderer.parity import difference
from glimmer.search_r1.prompt import SEARCH_TOOL

from .helpers import SETTINGS

TOOLS = [SEARCH_TOOL]


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
    ]
    assert verdict["gate"] == "renderer_parity"
    assert verdict["measured"] == {"cases": len(cases), "differing": 0}
    assert verdict["threshold"] == {"differing": 0}
    assert set(verdict["measured_on"]) == {"checkpoint", "implementation", "template_sha256"}
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
        assert set(detail) == {"case", "problem", "position", "renderer", "template"}
        assert detail["problem"] == "text differs" and detail["renderer"] != detail["template"]


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
    verdict = check_parity(with_template(None), SETTINGS)
    assert not verdict["passed"]
    assert [detail["case"] for detail in verdict["details"]] == ["template"]


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
    from glimmer.renderer import muse_glimmer

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
