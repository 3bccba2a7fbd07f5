"""Held-out questions answered by vLLM's own Muse Glimmer, as a server of its own process.

The server is vLLM's stock one, started with `titan.python` from the checkpoint folder as anyone
would, so that a trained checkpoint is read here as its users will read it: by another
implementation than the one that trained it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from glimmer.errors import DataError, GlimmerError
from glimmer.files import read_json
from glimmer.logs import get_logger, last_lines
from glimmer.processes import end_session
from glimmer.titanrl import ensure_importable
from glimmer.training.local.sampler import SamplingConfig
from glimmer.training.titan.launch import ALLOCATOR, environment, interpreter

ensure_importable()

from torchtitan.experiments.rl.types import Completion  # noqa: E402

logger = get_logger(__name__)
MODEL = "glimmer"
_MEMORY_FRACTION = 0.85  # nothing else is on the GPU
_REQUEST_S = 1800.0  # a server with a whole batch before it answers late, not never


class VLLMSampler:
    """Completions from vLLM's completion endpoint, token ids in and out.

    Args:
        url: "http://host:port".
        context: tokens of prompt and completion that the server was started with.
    """

    def __init__(self, url: str, *, context: int) -> None:
        self._url, self._context = f"{url}/v1/completions", context
        self._session: aiohttp.ClientSession | None = None

    sampling = staticmethod(SamplingConfig)

    def begin(self, rollouts: int) -> None:
        """Nothing to prepare: the server takes requests as they come."""

    def leave(self) -> None:
        """Nobody waits for the others."""

    async def generate(
        self,
        prompt_token_ids: list[int],
        *,
        request_id: str,
        routing_session_id: str | None = None,
        sampling_config: SamplingConfig,
    ) -> Completion:
        """TitanRL's `GenerateFn`. A prompt that fills the context gets no token and the reason
        `length`.

        Raises:
            GlimmerError: the server's refusal, or an answer without ids or log-probabilities.
        """
        room = self._context - len(prompt_token_ids)
        ids, logprobs, reason = [], [], "length"
        if room > 0:
            answer = await self._post(
                {
                    "model": MODEL,
                    "prompt": prompt_token_ids,
                    "max_tokens": min(sampling_config.max_tokens, room),
                    "temperature": sampling_config.temperature,
                    "top_p": 1.0,
                    "seed": sampling_config.seed,
                    "stop_token_ids": list(sampling_config.stop_token_ids),
                    "logprobs": 1,
                    "return_token_ids": True,
                    "skip_special_tokens": False,
                    "request_id": request_id,
                }
            )
            ids, logprobs, reason = _completion(answer)
        return Completion(
            min_policy_version=0,
            max_policy_version=0,
            request_id=request_id,
            token_ids=ids,
            token_logprobs=logprobs,
            finish_reason=reason,
        )

    async def _post(self, body: Mapping[str, Any]) -> Any:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=_REQUEST_S),
                connector=aiohttp.TCPConnector(limit=0),
            )
        try:
            async with self._session.post(self._url, json=body) as response:
                if response.status != 200:
                    told = (await response.text())[:500]
                    raise GlimmerError(f"{self._url}: vLLM answered {response.status}: {told}")
                return await response.json()
        except (TimeoutError, aiohttp.ClientError) as error:
            raise GlimmerError(f"{self._url}: no answer from vLLM ({error!r}).") from error

    async def close(self) -> None:
        """Close the connections; called on the event loop that used them."""
        if self._session is not None:
            await self._session.close()


def _completion(answer: Mapping[str, Any]) -> tuple[list[int], list[float], str]:
    """(token ids, log-probabilities, reason) of the one choice of an answer."""
    try:
        choice = answer["choices"][0]
        ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        if len(ids) != len(logprobs):
            raise ValueError(f"{len(ids)} token ids, {len(logprobs)} log-probabilities")
        return list(ids), [float(x) for x in logprobs], choice["finish_reason"]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise GlimmerError(
            f"vLLM's answer lacks what was asked for ({error!r}): {str(answer)[:300]}. vLLM 0.28 "
            "is expected (envs/train)."
        ) from error


def vision_sizes(checkpoint: Path) -> dict[str, Any]:
    """What vLLM 0.28 must be told of the vision tower, though no picture is ever sent: it reads
    three sizes under names that transformers' config does not write. For the released checkpoint
    they are its defaults; with another it stops with "vision output_dim=6144 does not match".

    Raises:
        DataError: `config.json` has not the released layout.
    """
    config = read_json(checkpoint / "config.json")
    try:
        vision = config["vision_config"]
        merge = vision["merge_size"]
        return {
            "vision_config": {
                "output_dim": vision["hidden_size"] * merge**2,
                "adapter_dim": config["projector_hidden_size"],
                "merge_kernel_size": merge,
            }
        }
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{checkpoint / 'config.json'}: has no {error} for the vision tower, expected the "
            "released layout. Set checkpoint.source to a Muse Glimmer checkpoint."
        ) from error


def command(checkpoint: Path, titan: Mapping[str, Any], port: int) -> list[str]:
    """The server's command line."""
    return [
        interpreter(titan),
        *("-m", "glimmer.heldout.vllm_server"),
        *("--model", str(checkpoint), "--served-model-name", MODEL),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--tensor-parallel-size", str(titan["generator_tp"])),
        *("--max-model-len", str(titan["context"])),
        *("--gpu-memory-utilization", str(_MEMORY_FRACTION)),
        *("--logprobs-mode", "processed_logprobs"),
        *("--dtype", "bfloat16", "--generation-config", "vllm"),
        "--language-model-only",
        *("--hf-overrides", json.dumps(vision_sizes(checkpoint))),
        *(["--enforce-eager"] if titan["cudagraph"] == "off" else []),
        *("--uvicorn-log-level", "warning", "--disable-uvicorn-access-log"),
    ]


@contextlib.contextmanager
def vllm_server(checkpoint: Path, titan: Mapping[str, Any], *, log: Path) -> Iterator[str]:
    """Run vLLM's server of `checkpoint` for the length of a `with` block.

    Args:
        titan: config section; `python`, `generator_tp`, `context`, `cudagraph`, `batch_invariant`
            and `setup_timeout_s` count.
        log: file that receives the server's output.

    Yields:
        "http://127.0.0.1:port".

    Raises:
        ConfigError: `titan.python` is no program.
        GlimmerError: the server ended or was not ready in time; the end of its log is given.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log.parent.mkdir(parents=True, exist_ok=True)
    env = environment() | {"VLLM_BATCH_INVARIANT": str(int(titan["batch_invariant"]))}
    if ALLOCATOR not in os.environ:  # vLLM's own all-reduce cannot share expandable segments
        del env[ALLOCATOR]
    with open(log, "ab") as handle:
        process = subprocess.Popen(
            command(checkpoint, titan, port),
            stdin=subprocess.PIPE,  # its end tells the child that we are gone
            stdout=handle,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=env,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        start = time.monotonic()
        _wait_until_ready(process, url, float(titan["setup_timeout_s"]), log)
        logger.info("vLLM answers after %.0f s (log: %s)", time.monotonic() - start, log)
        yield url
    finally:
        end_session(process)


def _wait_until_ready(
    process: subprocess.Popen, url: str, timeout_s: float, log: Path, pause_s: float = 0.5
) -> None:
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + timeout_s
    while True:
        if process.poll() is not None:
            why = f"ended with status {process.returncode} before it answered"
            break
        with contextlib.suppress(OSError), opener.open(f"{url}/health", timeout=5) as response:
            if response.status == 200:
                return
        if time.monotonic() > deadline:
            why = f"was not ready after titan.setup_timeout_s = {timeout_s:g} s"
            break
        time.sleep(pause_s)
    raise GlimmerError(f"vLLM's server {why}. Its log, {log}, ends:\n{last_lines(log)}")
