"""What the generator asks vLLM for, and what TitanRL makes of the answer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torchtitan", reason="needs the GPU stack (make env-train)")
pytest.importorskip("vllm", reason="needs the GPU stack (make env-train)")

from torchtitan.experiments.rl.actors import generator as titan  # noqa: E402
from vllm.logprobs import (  # noqa: E402
    FlatLogprobs,
    append_logprobs_for_next_position,
    create_sample_logprobs,
)
from vllm.outputs import CompletionOutput, RequestOutput  # noqa: E402

from glimmer.training.titan.actors import Generator  # noqa: E402


def asked(kind: type):
    actor = object.__new__(kind)
    return actor._build_sampling_params(
        titan.SamplingConfig(temperature=1.0, top_p=1.0, max_tokens=8, seed=3, stop_token_ids=[5])
    )


def test_no_text_is_asked_for_and_all_else_is_titans() -> None:
    ours, theirs = asked(Generator), asked(titan.VLLMGenerator)
    assert not ours.detokenize and ours.flat_logprobs
    assert theirs.detokenize and not theirs.flat_logprobs, "TitanRL does this itself now"
    theirs.detokenize, theirs.flat_logprobs = False, True
    assert ours == theirs
    assert ours.seed == 3 and ours.stop_token_ids == [5] and ours.logprobs == 0


def test_titan_reads_the_same_from_either_kind_of_logprobs(monkeypatch) -> None:
    monkeypatch.setattr(titan, "_extract_request_metrics_inputs", lambda output: None)
    found = []
    for flat in (False, True):
        logprobs = create_sample_logprobs(flat)
        assert isinstance(logprobs, FlatLogprobs) is flat
        for token, value in ((7, -0.25), (9, -1.5), (5, -3.0)):
            # vLLM puts the sampled token first; a second one stands for what logprobs=1 would give.
            append_logprobs_for_next_position(
                logprobs, [token, 1], [value, -0.1], [None, None], 2, 1
            )
        output = CompletionOutput(
            index=0, text="", token_ids=[7, 9, 5], cumulative_logprob=-4.75, logprobs=logprobs,
            finish_reason="stop",
        )  # fmt: skip
        request = RequestOutput("r", None, [1, 2], None, [output], True)
        [(name, completion, _)] = titan.RequestDispatcher._build_completions(
            SimpleNamespace(), [request], 4
        )
        found.append((name, completion.token_ids, completion.token_logprobs))
    assert found[0] == found[1] == ("r", [7, 9, 5], [-0.25, -1.5, -3.0])
