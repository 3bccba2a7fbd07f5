"""The printed table of attributions."""

from __future__ import annotations

import json

import pytest

from glimmer.renderer.__main__ import main

from .helpers import make_renderer, said, user


@pytest.mark.parametrize("attribution", ["body", "sampled"])
def test_every_token_has_a_line(attribution, checkpoint, tokenizer, tmp_path, capsys):
    messages = [user(), said("Yes.", reasoning_content="Hm.")]
    file = tmp_path / "conversation.json"
    file.write_text(json.dumps(messages))
    main(["explain", str(file), "--checkpoint", str(checkpoint), "--attribution", attribution])
    head, *lines = capsys.readouterr().out.splitlines()
    rendered = make_renderer(tokenizer, attribution=attribution).render(messages)
    assert head.split() == ["token", "id", "message", "sampled", "content"]
    found = [line.split()[-4:] for line in lines]
    yes = {True: "yes", False: "-"}
    assert found == [
        [str(token), "-" if message < 0 else str(message), yes[sampled], yes[content]]
        for token, message, sampled, content in zip(
            rendered.token_ids,
            rendered.message_indices,
            rendered.sampled_mask,
            rendered.is_content,
            strict=True,
        )
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "No such file"), ("{", "expected JSON"), ('{"message": []}', "found no messages")],
)
def test_a_file_that_is_no_conversation_is_named(text, said, checkpoint, tmp_path, capsys):
    file = tmp_path / "conversation.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SystemExit):
        main(["explain", str(file), "--checkpoint", str(checkpoint)])
    shown = capsys.readouterr().err
    assert said in shown and str(file) in shown
