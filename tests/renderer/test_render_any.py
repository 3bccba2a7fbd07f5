"""Random conversations render as the chat template has them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from glimmer.renderer.cases import Case

from .helpers import call, property_of, same, user

MARKUP = ["<|eot|>", "<|start|>", "<atem:", "</atem:parameter>", "Reasoning effort", "\n\n", " "]
texts = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.sampled_from(MARKUP)
    ),
    max_size=4,
).map("".join)
names = st.from_regex(r"[a-z]{1,6}(\.[a-z]{1,4})?", fullmatch=True)
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=5,
)
contents = st.one_of(
    st.none(),
    texts,
    st.lists(st.one_of(texts, texts.map(lambda t: {"type": "text", "text": t})), max_size=3),
)
ids = st.sampled_from(["c1", "c2", "c3"])
assistants = st.fixed_dictionaries(
    {"role": st.just("assistant")},
    optional={
        "content": contents,
        "reasoning_content": st.one_of(st.none(), texts),
        "recipient": st.one_of(st.none(), names),
        "end_turn": st.sampled_from([True, False, None]),
        "tool_calls": st.lists(
            st.builds(call, names, st.dictionaries(names, values, max_size=3), ids), max_size=3
        ),
    },
)
messages_of = st.lists(
    st.one_of(
        st.builds(lambda c: {"role": "system", "content": c}, contents),
        st.builds(user, contents),
        assistants,
        st.fixed_dictionaries(
            {"role": st.just("tool"), "content": contents},
            optional={"name": names, "tool_call_id": ids},
        ),
        st.just({"role": "developer", "content": "x"}),
    ),
    min_size=1,
    max_size=5,
)
tools_of = st.lists(
    st.builds(
        lambda name, text: {"name": name, "description": text, "parameters": {"type": "object"}},
        names,
        texts,
    ),
    max_size=2,
)


@property_of(150)
@given(messages=messages_of, tools=tools_of, generation=st.booleans())
def test_random_conversations_are_the_templates(tokenizer, messages, tools, generation):
    same(Case("random", messages, tools, generation), tokenizer)
