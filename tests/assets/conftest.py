from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .hub_server import Hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    # A cut loses the chunk that was being received: 10 MiB, more than these files have.
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10)
    # Between its retries http_get waits for a second.
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    # A network that is away is waited for by a test of its own.
    monkeypatch.setattr("glimmer.assets.hub._PAUSES_S", ())
    yield server
    server.close()


def safetensors_bytes(tensors: dict[str, list[int]]) -> bytes:
    """A safetensors file of F32 zeros, written from the format's description."""
    header, position = {}, 0
    for name, shape in tensors.items():
        size = 4
        for n in shape:
            size *= n
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(position)


def checkpoint_files() -> dict[str, bytes]:
    return {
        "config.json": b'{"model_type": "muse_glimmer"}',
        "model.safetensors": safetensors_bytes({"a": [2, 3], "b": [400]}),
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
        "chat_template.jinja": b"{{ messages }}",
        "README.md": b"not taken",
    }


def corpus_bytes(n: int = 3) -> bytes:
    rows = ({"id": str(i), "contents": f'"Title {i}"\nText {i}.'} for i in range(n))
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def question_bytes(prefix: str, n: int = 3) -> bytes:
    rows = (
        {
            "id": f"{prefix}-{i}",
            "question": f"What is the {prefix} thing number {i}?",
            "golden_answers": [f"answer {i}"],
            "type": "thing",
        }
        for i in range(n)
    )
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[dict[str, bytes]], Path]:
    def write(files: dict[str, bytes], name: str = "source") -> Path:
        for path, data in files.items():
            target = tmp_path / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        return tmp_path / name

    return write
