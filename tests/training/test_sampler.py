"""The sampler: right tokens, whatever is batched with them, and caches that do not lie."""

import asyncio

import pytest
import torch

from glimmer.training.local.sampler import (
    BatchedSampler,
    SamplingConfig,
    pick,
    uniform_numbers,
)

SAMPLING = SamplingConfig(temperature=1.0, max_tokens=12, seed=5, stop_token_ids=(7,))
PROMPTS = [[3, 1, 4, 1, 5, 9], [3, 1, 4, 8], [3, 1, 2, 2, 2, 2, 2]]


def generate(sampler, prompts, sampling=SAMPLING, turn=0, first=0):
    async def run():
        sampler.expect(len(prompts))
        found = await asyncio.gather(
            *(
                sampler.generate(
                    prompt,
                    request_id=f"group={first + i}/rollout=0/turn={turn}",
                    routing_session_id=f"group={first + i}",
                    sampling_config=sampling,
                )
                for i, prompt in enumerate(prompts)
            )
        )
        sampler.expect(-len(prompts))
        return found

    return asyncio.run(run())


def reference_logprobs(model, prompt, completion):
    with torch.no_grad():
        logits = model(torch.tensor([prompt + completion]))[0]
    logprobs = torch.log_softmax(logits, -1)
    return [float(logprobs[len(prompt) - 1 + i, token]) for i, token in enumerate(completion)]


def test_log_probabilities_are_those_of_the_whole_sequence(model):
    for prompt, found in zip(PROMPTS, generate(BatchedSampler(model), PROMPTS), strict=True):
        expected = reference_logprobs(model, prompt, found.token_ids)
        assert found.token_logprobs == pytest.approx(expected, abs=1e-4)


def test_greedy_takes_the_largest_logit_at_every_step(model):
    greedy = SamplingConfig(temperature=0.0, max_tokens=8)
    found = generate(BatchedSampler(model), PROMPTS[:1], greedy)[0]
    ids = list(PROMPTS[0])
    for token in found.token_ids:
        with torch.no_grad():
            assert token == int(model(torch.tensor([ids]))[0, -1].argmax())
        ids.append(token)
    assert found.finish_reason == "length"


def test_a_completion_does_not_depend_on_what_is_batched_with_it(model):
    together = generate(BatchedSampler(model), PROMPTS)
    for i, prompt in enumerate(PROMPTS):
        alone = generate(BatchedSampler(model), [prompt], first=i)[0]
        assert alone.token_ids == together[i].token_ids


def test_stop_token_ends_a_completion_and_belongs_to_it(model):
    # All tokens but one stop: nearly every completion ends after its first token.
    stops = tuple(range(1, 97))
    found = generate(
        BatchedSampler(model), PROMPTS, SamplingConfig(max_tokens=12, seed=1, stop_token_ids=stops)
    )
    for completion in found:
        assert completion.finish_reason == "stop"
        assert completion.token_ids[-1] in stops
        assert all(token not in stops for token in completion.token_ids[:-1])


def test_second_turn_reuses_the_cache_and_equals_a_fresh_start(model):
    sampler = BatchedSampler(model)
    first = generate(sampler, PROMPTS)
    longer = [p + c.token_ids + [11, 12, 13] for p, c in zip(PROMPTS, first, strict=True)]
    again = generate(sampler, longer, turn=1)
    fresh = generate(BatchedSampler(model), longer, turn=1)
    assert [c.token_ids for c in again] == [c.token_ids for c in fresh]
    for a, b in zip(again, fresh, strict=True):
        assert a.token_logprobs == pytest.approx(b.token_logprobs, abs=1e-4)


def test_a_changed_history_is_not_answered_from_the_cache(model):
    sampler = BatchedSampler(model)
    first = generate(sampler, PROMPTS)
    edited = [p + [50] + c.token_ids[1:] + [11] for p, c in zip(PROMPTS, first, strict=True)]
    found = generate(sampler, edited, turn=1)
    for prompt, completion in zip(edited, found, strict=True):
        expected = reference_logprobs(model, prompt, completion.token_ids)
        assert completion.token_logprobs == pytest.approx(expected, abs=1e-4)


def test_a_batch_waits_for_every_live_rollout(model):
    async def run():
        sampler = BatchedSampler(model)
        sampler.expect(3)
        ids = [f"group={i}/rollout=0/turn=0" for i in range(2)]
        tasks = [
            asyncio.ensure_future(
                sampler.generate(PROMPTS[i], request_id=ids[i], sampling_config=SAMPLING)
            )
            for i in range(2)
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        sampler.leave()  # the third rollout ends without asking
        return await asyncio.gather(*tasks)

    assert len(asyncio.run(run())) == 2


def test_an_error_while_decoding_reaches_every_rollout(model):
    with pytest.raises(Exception, match="max_rollout_tokens"):
        generate(BatchedSampler(model), [[1] * 250, [2] * 250])


def test_sampling_follows_the_distribution():
    logits = torch.tensor([[0.0, 1.0, 2.0, -1e9]]).expand(4000, 4)
    uniform = torch.rand(4000, generator=torch.Generator().manual_seed(0))
    token, logprob = pick(logits, 1.0, uniform)
    expected = torch.softmax(logits[0], -1)
    shares = torch.bincount(token, minlength=4) / 4000
    torch.testing.assert_close(shares, expected, atol=0.02, rtol=0)
    torch.testing.assert_close(logprob, expected.log()[token])


def test_uniform_numbers_depend_on_seed_and_request_only():
    a = uniform_numbers(0, "group=1/rollout=2/turn=0", 5)
    assert torch.equal(a, uniform_numbers(0, "group=1/rollout=2/turn=0", 5))
    assert not torch.equal(a, uniform_numbers(1, "group=1/rollout=2/turn=0", 5))
    assert not torch.equal(a, uniform_numbers(0, "group=1/rollout=2/turn=1", 5))
