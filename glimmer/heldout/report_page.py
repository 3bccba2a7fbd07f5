"""One self-contained HTML page that makes no request: frame, content policy, data blocks."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from glimmer.heldout.page import asset
from glimmer.heldout.report_tables import esc


def document(
    title: str,
    *,
    first: str,
    sections: Mapping[str, tuple[str, str]],
    data: Mapping[str, Any],
    script: bool = True,
) -> str:
    """A whole page.

    Args:
        title: as text.
        first: HTML of the first screen, below the title.
        sections: id -> (heading as text, body as HTML).
        data: name -> JSON value of a block that the script reads.
        script: whether the page has the viewer's script.
    """
    style, code = asset("style.css"), asset("viewer.js") if script else ""
    policy = f"default-src 'none'; style-src '{_hash(style)}'; "
    policy += f"script-src '{_hash(code)}'; " if script else ""
    policy += "base-uri 'none'; form-action 'none'"
    contents = "".join(
        f'<li><a href="#{key}">{name}</a></li>' for key, (name, _) in sections.items()
    )
    body = "".join(
        f'<section id="{key}" aria-labelledby="{key}-title">'
        f'<h2 id="{key}-title">{name}</h2>{part}</section>\n'
        for key, (name, part) in sections.items()
    )
    blocks = "".join(
        f'<script type="application/json" id="data-{name}">{_json(value)}</script>\n'
        for name, value in data.items()
    )
    blocks += f"<script>{code}</script>\n" if script else ""
    whole = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{esc(title)}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1 dir="auto">{esc(title)}</h1>
{first}
<nav aria-label="Contents"><ul>{contents}</ul></nav>
</header>
<main>
{body}</main>
{blocks}</body>
</html>
"""
    return unicode_only(whole)


def unicode_only(text: str) -> str:
    """Text without halves of surrogate pairs, which cannot be written as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _json(value: Any) -> str:
    """JSON that cannot end its script element or open a comment in it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _hash(text: str) -> str:
    """The source expression that lets the page run exactly this text."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
