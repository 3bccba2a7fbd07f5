"""The one HTTP client of the retrieval service; speaks Search-R1's protocol to any such server."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp

from glimmer.assets.corpus import split_contents
from glimmer.errors import ConfigError
from glimmer.retrieval.errors import (
    SearchError,
    SearchHTTPError,
    SearchProtocolError,
    SearchRefused,
    SearchTimeout,
    ServiceError,
)

# Of an answer, for each passage asked for; wiki-18's passages have about 700 bytes. An answer that
# goes on after that is a fault of the server's, and must not fill the memory of a training run.
MOST_PASSAGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FoundPassage:
    """A passage that a search found.

    Attributes:
        id: of the passage in the corpus.
        title: without quotes.
        text: without the title line.
        contents: title line and text, as in the corpus.
        score: inner product with the query; None if the server gives none.
    """

    id: str
    title: str
    text: str
    contents: str
    score: float | None

    def as_dict(self) -> dict[str, Any]:
        """id, title, text, score: what a held-out record keeps."""
        return {"id": self.id, "title": self.title, "text": self.text, "score": self.score}


class SearchClient:
    """Asks the service for the passages nearest to a query. To be used within one event loop.

    A search either brings exactly `topk` passages or raises a `SearchError`. Refused connections
    and answers 429 and 500 to 599 are tried again, waiting `backoff_s`, then twice that, and so on,
    with jitter, or as long as the answer's Retry-After says; `timeout_s` bounds the whole search,
    retries included. An answer of more than `MOST_PASSAGE_BYTES` for each passage is not read to
    its end. Connections are kept and used again.

    Args:
        url: ".../retrieve".
        topk: passages a search.
        timeout_s: seconds allowed for one search.
        max_retries: further attempts after the first.
        backoff_s: seconds before the first retry.
        max_connections: requests at once; further searches wait, within their time.
        seed: of the jitter.
        token: for a service that wants one (`glimmer.retrieval.settings.bearer_token`).

    Attributes:
        counts: requests (attempts sent), searches, failed, retried, timeouts.
        latencies: seconds of each search that brought passages, in order of their end.
    """

    def __init__(
        self,
        url: str,
        *,
        topk: int,
        timeout_s: float = 30.0,
        max_retries: int = 2,
        backoff_s: float = 0.1,
        max_connections: int = 64,
        seed: int = 0,
        token: str | None = None,
    ) -> None:
        for name, value, least in (("topk", topk, 1), ("max_retries", max_retries, 0)):
            if not isinstance(value, int) or value < least:
                raise ConfigError(f"search.{name}: found {value!r}, expected at least {least}.")
        if not timeout_s > 0:
            raise ConfigError(f"search.timeout_s: found {timeout_s!r}, expected more than 0.")
        self.url, self.topk, self.timeout_s = url, topk, timeout_s
        self.max_retries, self.backoff_s = max_retries, backoff_s
        self._most_bytes = MOST_PASSAGE_BYTES * topk
        self._max_connections = max_connections
        # Not compressed: a few bytes could then become as many as memory has.
        self._headers = {"Accept-Encoding": "identity"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._random = random.Random(seed)
        self._session: aiohttp.ClientSession | None = None
        self.counts: Counter[str] = Counter(requests=0, searches=0, failed=0, retried=0, timeouts=0)
        self.latencies: list[float] = []
        self._last_error: SearchError | None = None
        self._checked: Counter[str] = Counter()

    async def search(self, query: str) -> list[FoundPassage]:
        """The `topk` passages nearest to `query`, best first.

        Raises:
            SearchTimeout, SearchRefused, SearchHTTPError, SearchProtocolError: see
                `glimmer.retrieval.errors`. Each is counted under "failed" once.
        """
        self.counts["searches"] += 1
        began = time.perf_counter()
        attempts: list[SearchError] = []
        try:
            async with asyncio.timeout(self.timeout_s):
                passages = await self._with_retries(query, attempts)
        except TimeoutError as error:
            self.counts["timeouts"] += 1
            self.counts["failed"] += 1
            before = f" The attempt before: {attempts[-1]}" if attempts else ""
            self._last_error = SearchTimeout(
                f"{self.url}: no answer within {self.timeout_s:g} s (search.timeout_s) to the "
                f"query {query[:80]!r}.{before}",
                query=query,
                url=self.url,
                attempts=len(attempts) + 1,
            )
            raise self._last_error from error
        except SearchError as error:
            self.counts["failed"] += 1
            self._last_error = error
            raise
        self.latencies.append(time.perf_counter() - began)
        return passages

    def check_failures(self, *, max_share: float) -> None:
        """Refuse to go on if too many of the searches since the last call failed.

        For the end of each step of a run: a few failures are noise and are in its figures, many
        mean that it goes on without its passages.

        Args:
            max_share: failed searches that are allowed, as a share of the searches.

        Raises:
            ServiceError: names the share and the last failure.
        """
        searches, failed = (
            self.counts[name] - self._checked[name] for name in ("searches", "failed")
        )
        self._checked = Counter(self.counts)
        if failed > max_share * searches:
            raise ServiceError(
                f"{failed} of {searches} searches failed, {max_share:.0%} are allowed. The last: "
                f"{type(self._last_error).__name__}: {self._last_error}"
            ) from self._last_error

    async def _with_retries(self, query: str, failed: list[SearchError]) -> list[FoundPassage]:
        """Passages of the first attempt that brings them; those before are added to `failed`."""
        while True:
            try:
                return await self._attempt(query)
            except (SearchRefused, SearchHTTPError) as error:
                failed.append(error)
                error.attempts = len(failed)
                fatal = isinstance(error, SearchHTTPError) and not (
                    error.status >= 500 or error.status == 429
                )
                if fatal or len(failed) > self.max_retries:
                    raise
                told = error.retry_after_s if isinstance(error, SearchHTTPError) else None
            self.counts["retried"] += 1
            # With jitter: clients that failed together do not come back together.
            wait = self.backoff_s * 2 ** (len(failed) - 1) if told is None else 2 * max(told, 0.1)
            await asyncio.sleep(wait * (0.5 + self._random.random() / 2))

    async def _attempt(self, query: str) -> list[FoundPassage]:
        self.counts["requests"] += 1
        payload = {"queries": [query], "topk": self.topk, "return_scores": True}
        known = {"query": query, "url": self.url}
        try:
            async with self._opened().post(self.url, json=payload) as response:
                status, told = response.status, response.headers.get("Retry-After", "")
                body = bytearray()
                async for block in response.content.iter_any():
                    body += block
                    if len(body) > self._most_bytes:
                        break
        except aiohttp.InvalidURL as error:
            raise SearchRefused(f"retrieval.url: {self.url!r} is not a URL.", **known) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise SearchRefused(
                f"{self.url}: no connection, or it was cut ({type(error).__name__}: {error}). The "
                f"retrieval service was not started or has died; its log says why.",
                **known,
            ) from error
        if status != 200:
            raise SearchHTTPError(
                f"{self.url}: answered {status} to the query {query[:80]!r}: "
                f"{body[:300].decode('utf-8', 'replace')}",
                status=status,
                # The other form, a date, would need both clocks to agree.
                retry_after_s=float(told) if told.isdecimal() and len(told) < 7 else None,
                **known,
            )
        if len(body) > self._most_bytes:
            raise SearchProtocolError(
                f"{self.url}: the answer to the query {query[:80]!r} goes on after "
                f"{self._most_bytes} bytes; expected {self.topk} passages of at most "
                f"{MOST_PASSAGE_BYTES} bytes each. The server is at fault, or its corpus is no "
                f"corpus of passages.",
                **known,
            )
        return self._passages(bytes(body), known)

    def _passages(self, body: bytes, known: dict[str, str]) -> list[FoundPassage]:
        """The passages of an answer to one query."""

        def refuse(found: str) -> SearchProtocolError:
            return SearchProtocolError(
                f"{self.url}: {found}; expected {{'result': [[{self.topk} passages]]}} for one "
                f"query. The server does not speak Search-R1's protocol, or is at fault.",
                **known,
            )

        try:
            answer = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise refuse(f"answered {body[:80]!r}, which is not JSON") from error
        result = answer.get("result") if isinstance(answer, dict) else None
        if not isinstance(result, list) or len(result) != 1 or not isinstance(result[0], list):
            raise refuse(f"answered {str(answer)[:120]}")
        if len(result[0]) != self.topk:
            raise refuse(f"answered {len(result[0])} passages")
        return [self._passage(entry, refuse) for entry in result[0]]

    @staticmethod
    def _passage(entry: Any, refuse: Any) -> FoundPassage:
        nested = isinstance(entry, dict) and "document" in entry
        document = entry["document"] if nested else entry
        contents = document.get("contents") if isinstance(document, dict) else None
        if not isinstance(contents, str) or not contents.strip():
            raise refuse(f"a passage is {str(entry)[:120]}, without 'contents'")
        score = entry.get("score")
        if score is not None and (isinstance(score, bool) or not isinstance(score, int | float)):
            raise refuse(f"a score is {str(score)[:40]!r}")
        title, text = split_contents(contents)
        return FoundPassage(
            id=str(document.get("id", "")),
            title=title,
            text=text,
            contents=contents,
            score=None if score is None else float(score),
        )

    def _opened(self) -> aiohttp.ClientSession:
        """The session, opened at the first search, within the event loop that uses it."""
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._max_connections),
                timeout=aiohttp.ClientTimeout(total=None),
                headers=self._headers,
                trust_env=False,
            )
        return self._session

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def __aenter__(self) -> SearchClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
