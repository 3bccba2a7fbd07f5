"""python -m glimmer.renderer explain FILE: every token of a conversation with its attribution.

FILE is JSON: a list of messages, or an object with `messages` and, if need be, `tools`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from glimmer.errors import DataError
from glimmer.files import read_json
from glimmer.renderer.config import MuseGlimmerRendererConfig
from glimmer.renderer.load import load_tokenizer
from glimmer.renderer.muse_glimmer import MuseGlimmerRenderer


def table(renderer: Any, messages: list[dict], tools: list[dict] | None) -> str:
    """One line a token: token, id, message (or -), whether it is sampled, whether it is content."""
    rendered = renderer.render(messages, tools=tools)
    lines = [f"{'token':<30} {'id':>7} message sampled content"]
    for token, message, sampled, content in zip(
        rendered.token_ids,
        rendered.message_indices,
        rendered.sampled_mask,
        rendered.is_content,
        strict=True,
    ):
        text = json.dumps(renderer.tokenizer.decode([token]), ensure_ascii=False)
        owner = "-" if message < 0 else str(message)
        flags = f"{'yes' if sampled else '-':>7} {'yes' if content else '-':>7}"
        lines.append(f"{text:<30} {token:>7} {owner:>7} {flags}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m glimmer.renderer")
    parser.add_argument("what", choices=["explain"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--checkpoint", type=Path, default=Path("resources/tiny_glimmer"))
    parser.add_argument("--attribution", choices=["body", "sampled"], default="body")
    parser.add_argument("--current-date", default="2026-08-14")
    given = parser.parse_args(arguments)
    try:
        found = read_json(given.file)
        found = {"messages": found} if isinstance(found, list) else found
        if not isinstance(found, dict) or not isinstance(found.get("messages"), list):
            raise DataError(
                f"{given.file}: found no messages, expected a list of them. Correct it."
            )
    except (OSError, DataError) as error:
        parser.error(str(error))
    config = MuseGlimmerRendererConfig(
        current_date=given.current_date, attribution=given.attribution
    )
    renderer = MuseGlimmerRenderer(load_tokenizer(given.checkpoint), config)
    print(table(renderer, found["messages"], found.get("tools")))


if __name__ == "__main__":
    main()
