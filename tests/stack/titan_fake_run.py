"""`python titan_fake_run.py JOB.json`: one job with the fake actors, for the test beside it."""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import glimmer.training.titan.__main__ as entry
from glimmer.renderer import load_renderer
from glimmer.search_r1.prompt import SEARCH_TOOL, opening_messages
from glimmer.training.job import Job

QUESTION = "Who directed it?"


class Passages(BaseHTTPRequestHandler):
    """The same passage for every query, in Search-R1's protocol."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        document = {"id": "0", "contents": '"A"\nA passage.'}
        found = {"document": document, "score": 1.0}
        answer = {"result": [[found] * request["topk"] for _ in request["queries"]]}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args) -> None:
        pass


def completions(job: Job) -> dict[str, list[list[int]]]:
    """What the fake model says: a search call, then the right or a wrong answer."""
    renderer = load_renderer(Path(job.checkpoint), job.renderer, tools=[SEARCH_TOOL])
    messages = opening_messages(QUESTION)
    prompt = renderer.render_ids(messages, tools=[SEARCH_TOOL], add_generation_prompt=True)

    def said(message) -> list[int]:
        whole = renderer.render_ids([*messages, message], tools=[SEARCH_TOOL])
        return list(whole[len(prompt) :])

    function = {"name": "search", "arguments": {"query": "the director"}}
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": function}]}
    answers = ["right", "wrong"]
    return {
        "call": [said(call)] * 2,
        "answer": [said({"role": "assistant", "content": text}) for text in answers],
    }


def main() -> int:
    path = Path(sys.argv[1])
    job = Job.read(path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Passages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/retrieve"
    job = Job(**{**job.__dict__, "search_url": url})
    job.write(path)
    work = Path(job.work)
    (work / "failure.json").unlink(missing_ok=True)
    (work / "completions.json").write_text(json.dumps(completions(job)))

    import titan_fakes

    import glimmer.training.titan.actors as actors

    actors.Trainer, actors.Generator = titan_fakes.FakeTrainer, titan_fakes.FakeGenerator
    return entry.main([str(path)])


if __name__ == "__main__":
    import os

    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
