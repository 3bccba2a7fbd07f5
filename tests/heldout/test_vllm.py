"""The vLLM engine against a stand-in of its server: the real one needs a GPU."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
import textwrap
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from glimmer.errors import ConfigError, DataError, GlimmerError
from glimmer.heldout.samplers import open_sampler
from glimmer.heldout.vllm import VLLMSampler, command, vision_sizes
from glimmer.processes import session_members

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "resources/tiny_glimmer"
TITAN = {
    "python": None,
    "generator_tp": 2,
    "context": 64,
    "cudagraph": "off",
    "batch_invariant": True,
    "setup_timeout_s": 20,
}


@pytest.fixture
def endpoint():
    """A completion endpoint that echoes what it was asked in its answer."""
    asked, status = [], {"code": 200, "answer": None}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, body))
            answer = status["answer"] or {
                "choices": [
                    {
                        "token_ids": [7, 8],
                        "logprobs": {"token_logprobs": [-0.5, 0]},
                        "finish_reason": "stop",
                    }
                ]
            }
            data = json.dumps(answer).encode()
            self.send_response(status["code"])
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked, status
    server.shutdown()
    server.server_close()


def generate(url, prompt, *, max_tokens=16):
    async def run():
        sampler = VLLMSampler(url, context=TITAN["context"])
        try:
            return await sampler.generate(
                prompt,
                request_id="group=0/rollout=1/turn=2",
                sampling_config=sampler.sampling(
                    temperature=0.0, max_tokens=max_tokens, seed=3, stop_token_ids=(9,)
                ),
            )
        finally:
            await sampler.close()

    return asyncio.run(run())


def test_token_ids_go_in_and_come_out(endpoint):
    url, asked, _ = endpoint
    completion = generate(url, [1, 2, 3])
    assert completion.token_ids == [7, 8]
    assert completion.token_logprobs == [-0.5, 0.0]
    assert completion.finish_reason == "stop"
    ((path, body),) = asked
    assert path == "/v1/completions"
    assert body["prompt"] == [1, 2, 3] and body["max_tokens"] == 16
    assert (body["temperature"], body["seed"], body["stop_token_ids"]) == (0.0, 3, [9])
    assert body["return_token_ids"] and body["logprobs"] == 1


def test_a_completion_never_leaves_the_context(endpoint):
    url, asked, _ = endpoint
    generate(url, [1] * 60)
    assert asked[0][1]["max_tokens"] == 4
    full = generate(url, [1] * 64)
    assert len(asked) == 1  # the server would refuse it
    assert (full.token_ids, full.finish_reason) == ([], "length")


@pytest.mark.parametrize(
    ("code", "answer", "told"),
    [
        (400, {"error": "no such model"}, "vLLM answered 400: .*no such model"),
        (200, {"choices": []}, "lacks what was asked for"),
        (
            200,
            {"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": []}}]},
            "1 token ids, 0 log-probabilities",
        ),
    ],
)
def test_a_wrong_answer_is_told(endpoint, code, answer, told):
    url, _, status = endpoint
    status.update(code=code, answer=answer)
    with pytest.raises(GlimmerError, match=told):
        generate(url, [1])


def test_no_server_is_told():
    with pytest.raises(GlimmerError, match="no answer from vLLM"):
        generate("http://127.0.0.1:9", [1])


def test_the_command_line_is_the_configs():
    words = command(CHECKPOINT, TITAN, 4321)
    assert words[:3] == [sys.executable, "-m", "glimmer.heldout.vllm_server"]
    pairs = dict(zip(words, words[1:], strict=False))
    assert pairs["--tensor-parallel-size"] == "2" and pairs["--max-model-len"] == "64"
    assert pairs["--port"] == "4321" and pairs["--model"] == str(CHECKPOINT)
    assert "--enforce-eager" in words
    assert "--enforce-eager" not in command(CHECKPOINT, TITAN | {"cudagraph": "FULL"}, 1)
    sizes = {"output_dim": 128, "adapter_dim": 32, "merge_kernel_size": 2}
    assert json.loads(pairs["--hf-overrides"]) == {"vision_config": sizes}


def test_the_released_sizes_are_vllms_defaults(tmp_path):
    released = ROOT / "glimmer/preflight/muse_glimmer_30b.json"
    (tmp_path / "config.json").write_bytes(released.read_bytes())
    sizes = {"output_dim": 6144, "adapter_dim": 4096, "merge_kernel_size": 2}
    assert vision_sizes(tmp_path) == {"vision_config": sizes}


def test_a_config_of_another_layout_is_told(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(DataError, match=r"config.json: has no 'vision_config'"):
        vision_sizes(tmp_path)


def interpreter(folder, body):
    """A program that `titan.python` can name; it gets the server's arguments."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(body)}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


SERVER = """
import os, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args):
        pass
subprocess.Popen(["sleep", "600"])  # as vLLM's engine is: a process of the server's
print("batch invariant", os.environ["VLLM_BATCH_INVARIANT"], flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def test_the_server_and_its_children_end_with_the_block(tmp_path):
    log = tmp_path / "vllm.log"
    titan = TITAN | {"python": interpreter(tmp_path, SERVER)}
    with open_sampler("vllm", CHECKPOINT, threads=1, titan=titan, log=log):
        sessions = {os.getsid(pid) for pid in _children()} - {os.getsid(0)}
        assert len(sessions) == 1
        assert len(session_members(*sessions)) == 2
    assert session_members(*sessions) == []
    assert "batch invariant 1" in log.read_text()


def _children():
    import psutil

    return [process.pid for process in psutil.Process().children(recursive=True)]


def test_a_server_that_ends_tells_why(tmp_path):
    titan = TITAN | {"python": interpreter(tmp_path, "raise SystemExit('no GPU here')")}
    with (
        pytest.raises(GlimmerError, match=r"(?s)ended with status 1.*no GPU here"),
        open_sampler("vllm", CHECKPOINT, threads=1, titan=titan, log=tmp_path / "log"),
    ):
        pass


def test_a_server_that_never_answers_is_ended(tmp_path):
    titan = TITAN | {
        "python": interpreter(tmp_path, "import time; time.sleep(600)"),
        "setup_timeout_s": 0.5,
    }
    with (
        pytest.raises(GlimmerError, match=r"not ready after titan.setup_timeout_s = 0.5 s"),
        open_sampler("vllm", CHECKPOINT, threads=1, titan=titan, log=tmp_path / "log"),
    ):
        pass


def test_another_engine_is_refused(tmp_path):
    with (
        pytest.raises(ConfigError, match="expected local or vllm"),
        open_sampler("sglang", CHECKPOINT, threads=1, titan=TITAN, log=tmp_path / "log"),
    ):
        pass
