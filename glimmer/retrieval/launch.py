"""Starting the retrieval service inside the job that needs it, and taking it down whatever happens.

The service is a process of its own. It tells its port through a pipe, so that a port is never
guessed; it holds a pipe from us as its standard input, so that it ends with us, even if we are
killed; and a known query has to bring its passage before its URL is handed out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

import glimmer
from glimmer.assets.corpus import split_contents
from glimmer.files import read_json
from glimmer.logs import get_logger, last_lines
from glimmer.retrieval.errors import SearchError, ServiceError
from glimmer.retrieval.settings import bearer_token, service_settings

logger = get_logger(__name__)

_PROBES = 5
_MOST_BYTES = 64 << 20  # of an answer to the probes, each a passage
_LAST_WORDS_S = 2.0


@contextmanager
def retrieval_service(
    settings: Mapping[str, Any], *, index: Path, corpus: Path, topk: int = 1, log: Path
) -> Iterator[str]:
    """Run the retrieval service of an index for the length of a `with` block.

    Args:
        settings: section `retrieval`, see `glimmer.retrieval.settings`. With `url`, the service
            there is checked and nothing is started.
        index: folder written by `build_index`.
        corpus: the corpus it was built from.
        topk: passages that will be asked for in a search.
        log: file that receives the service's log.

    Yields:
        "http://host:port/retrieve".

    Raises:
        ConfigError: a setting is wrong, or topk is more than the corpus or efSearch can give.
        ServiceError: the service did not start (its own message is given), does not answer a known
            query, serves another index, or died while a search of the block failed.
    """
    from glimmer.retrieval.index import check_k, served_ef_search

    complete = service_settings(settings)
    complete["ef_search"] = served_ef_search(Path(index), complete["ef_search"])
    probes = _known_passages(Path(index), Path(corpus))
    record = read_json(Path(index) / "index.json")
    check_k(topk, complete["ef_search"] or record["ef_search"], record["n"], "search.topk")
    if complete["url"]:
        _check_elsewhere(complete, Path(index), probes)
        yield complete["url"]
        return
    log = Path(log)
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as handle:
        process, report = _start(complete, Path(index), Path(corpus), handle)
    try:
        url = _wait_until_ready(process, report, complete, probes, log)
        logger.info("the retrieval service answers at %s (log: %s)", url, log)
        try:
            yield url
        except Exception as error:
            if isinstance(error, SearchError):
                # Replicas stop to answer a little before the process that keeps them ends.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_LAST_WORDS_S)
            if process.poll() is None:
                raise
            death = _death(process, log)
            if isinstance(error, SearchError):
                raise ServiceError(f"{death}The first search that failed: {error}") from error
            logger.error("%s", death)
            raise
        if process.poll() is not None:
            logger.error(
                "%sSearches after that have failed and were counted.", _death(process, log)
            )
    finally:
        os.close(report)
        _stop(process, wait_s=complete["drain_timeout_s"] + 10)


def _start(
    settings: Mapping[str, Any], index: Path, corpus: Path, log: Any
) -> tuple[subprocess.Popen[bytes], int]:
    """The started process, and the reading end of the pipe through which it reports."""
    read, write = os.pipe()
    threads = str(settings["threads"])
    paths = [str(Path(glimmer.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    try:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "glimmer.retrieval.service"),
                *("--index", str(index), "--corpus", str(corpus)),
                *("--settings", json.dumps(dict(settings))),
                *("--report-fd", str(write), "--parent", str(os.getpid())),
            ],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=(write,),
            env=os.environ
            | {
                "OMP_NUM_THREADS": threads,
                "TOKENIZERS_PARALLELISM": "false",
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            },
        )
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    return process, read


def _wait_until_ready(
    process: subprocess.Popen[bytes],
    report: int,
    settings: Mapping[str, Any],
    probes: list[tuple[str, str]],
    log: Path,
) -> str:
    """The URL, once the process has told its port and a known query brings its passage."""
    timeout_s = settings["start_timeout_s"]
    deadline = time.monotonic() + timeout_s
    told = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([report], [], [], left)[0]:
            raise ServiceError(
                f"the retrieval service did not start within {timeout_s:g} s "
                f"(retrieval.start_timeout_s). Its log is {log}:\n{last_lines(log)}"
            )
        block = os.read(report, 65536)
        if not block:
            break
        told += block
    if not told:
        process.wait()
        raise ServiceError(f"{_death(process, log)}")
    message = json.loads(told)
    if "error" in message:
        raise ServiceError(f"the retrieval service did not start: {message['error']} (log: {log})")
    host = f"[{settings['host']}]" if ":" in settings["host"] else settings["host"]
    url = f"http://{host}:{message['port']}/retrieve"
    token = bearer_token(settings["token_env"])
    try:
        _probe(url, probes, timeout_s=max(deadline - time.monotonic(), 1.0), token=token)
    except ServiceError as error:
        raise ServiceError(f"{error} The service's log is {log}:\n{last_lines(log)}") from error
    return url


def _stop(process: subprocess.Popen[bytes], *, wait_s: float) -> None:
    """End the process: politely, then not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            process.kill()
    process.stdin.close()
    process.wait()


def _death(process: subprocess.Popen[bytes], log: Path) -> str:
    return (
        f"the retrieval service ended by itself with status {process.returncode}. "
        f"The end of its log {log}:\n{last_lines(log)}\n"
    )


def _known_passages(index: Path, corpus: Path) -> list[tuple[str, str]]:
    """(title, contents) of a few passages spread over the corpus."""
    from glimmer.retrieval.index import read_offsets
    from glimmer.retrieval.passages import PassageStore

    store = PassageStore(corpus, read_offsets(index, corpus))
    rows = sorted({len(store) * place // _PROBES for place in range(_PROBES)})
    contents = [store[row]["contents"] for row in rows]
    store.close()
    return [(split_contents(text)[0] or text[:200], text) for text in contents]


def _probe(url: str, probes: list[tuple[str, str]], *, timeout_s: float, token: str | None) -> None:
    """Search for known titles; one has to bring a passage that bears it."""
    titles = [title for title, _ in probes]
    asked = {"queries": titles, "topk": 1, "return_scores": False}
    answer = _request(url, asked, timeout_s, token)
    try:
        found = [passages[0] for passages in answer["result"]]
        found = [passage.get("document", passage)["contents"] for passage in found]
        if len(found) != len(titles):
            raise IndexError(f"{len(found)} lists for {len(titles)} queries")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ServiceError(
            f"{url}: answered a known query with {str(answer)[:200]}, which is not Search-R1's "
            f"protocol (one list of passages a query)."
        ) from error
    if not any(
        title in contents.partition("\n")[0] for title, contents in zip(titles, found, strict=True)
    ):
        raise ServiceError(
            f"{url}: none of {len(titles)} titles of the corpus, e.g. {titles[0]!r}, brought its "
            f"passage; the first brought {found[0][:80]!r}. The service has another corpus, or "
            f"its index does not fit its model."
        )


def _check_elsewhere(
    settings: Mapping[str, Any], index: Path, probes: list[tuple[str, str]]
) -> None:
    """Check a service that runs elsewhere: the same index and model, and a known query."""
    url, timeout_s = settings["url"], settings["start_timeout_s"]
    token = bearer_token(settings["token_env"])
    if settings["require_info"]:
        info_url = url.rpartition("/retrieve")[0] + "/info"
        try:
            info = _request(info_url, None, timeout_s, token)
            index_sha256, model = info["index"]["sha256"], info["model"]
        except (ServiceError, KeyError, TypeError) as error:
            raise ServiceError(
                f"retrieval.url: {url} does not say which index it serves ({error}). Set "
                f"retrieval.require_info to false to accept any server of Search-R1's protocol."
            ) from error
        record = read_json(index / "index.json")
        if index_sha256 != record["index"]["sha256"] or model != record["model"]:
            raise ServiceError(
                f"retrieval.url: {url} serves the index {index_sha256[:12]} of model "
                f"{model.get('name')!r}; {index} is {record['index']['sha256'][:12]} of "
                f"{record['model']['name']!r}. Start the service with this index."
            )
    _probe(url, probes, timeout_s=timeout_s, token=token)


def _request(url: str, body: Mapping[str, Any] | None, timeout_s: float, token: str | None) -> Any:
    """JSON answer to a GET, or to a POST of `body`. ServiceError on anything else."""
    with ThreadPoolExecutor(1) as thread:  # the caller may be within a loop of its own
        return thread.submit(asyncio.run, _answer(url, body, timeout_s, token)).result()


async def _answer(
    url: str, body: Mapping[str, Any] | None, timeout_s: float, token: str | None
) -> Any:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    text = bytearray()
    try:
        # Of the whole answer: one that comes drop by drop is not awaited for ever.
        async with (
            asyncio.timeout(timeout_s),
            aiohttp.ClientSession(headers=headers) as session,
            session.request("GET" if body is None else "POST", url, json=body) as response,
        ):
            async for block in response.content.iter_any():
                text += block
                if len(text) > _MOST_BYTES:
                    raise ServiceError(f"{url}: its answer is longer than {_MOST_BYTES} bytes.")
        if response.status != 200:
            detail = text[:300].decode("utf-8", "replace")
            raise ServiceError(f"{url}: answered {response.status}: {detail}")
        return json.loads(text)
    except TimeoutError as error:
        raise ServiceError(
            f"{url}: no whole answer within {timeout_s:.3g} s (retrieval.start_timeout_s)."
        ) from error
    except (aiohttp.ClientError, OSError, ValueError, RecursionError) as error:
        raise ServiceError(f"{url}: no answer ({error}).") from error
