"""The project's own chat template of the format, for checkpoints that it makes itself."""

from __future__ import annotations

from pathlib import Path

CHAT_TEMPLATE: str = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8")
