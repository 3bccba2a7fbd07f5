"""Concurrent queries -> batches -> candidates, with a cache.

Rollouts send one query a request, many at once, and eight samples of one question often send the
same query. So queries that arrive while a batch is being worked on form the next batch; a query
that is already waiting is not asked twice; and answers are kept, the least recently used dropped
first. A query that nobody waits for any more, since its clients have hung up, is not searched for.
None of this shows in an answer: a query's candidates do not depend on its batch.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from glimmer.logs import get_logger
from glimmer.retrieval.metrics import ServiceMetrics
from glimmer.retrieval.protocol import InternalError, Overloaded, Stopping

logger = get_logger(__name__)

Answer = TypeVar("Answer")
# A pause of this length without a new query ends the wait for company: when the service was idle,
# and when a batch has just been answered, whose clients will soon be back.
_PAUSE_IDLE_S, _PAUSE_BUSY_S = 0.002, 0.01


class Batcher:
    """Brings single queries together, and answers each by `search`, in one worker thread.

    Args:
        search: texts -> one answer each, blocking; called with distinct texts.
        max_batch: texts in one call.
        max_wait_s: how long a first query waits for company at most; 2 ms without any are enough.
        max_waiting: queries in the queue, above which `Overloaded` is raised.
        cache_size: answers kept; 0 keeps none.
        metrics: told of every query and batch.
    """

    def __init__(
        self,
        search: Callable[[Sequence[str]], Sequence[Answer]],
        *,
        max_batch: int,
        max_wait_s: float,
        max_waiting: int,
        cache_size: int,
        metrics: ServiceMetrics,
    ) -> None:
        self._search, self._max_batch, self._max_wait_s = search, max_batch, max_wait_s
        self._max_waiting, self._cache_size = max_waiting, cache_size
        self._metrics = metrics
        self._cache: OrderedDict[str, Answer] = OrderedDict()
        self._pending: dict[str, asyncio.Future[Answer]] = {}
        self._askers: Counter[str] = Counter()  # of each pending query
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="search")
        self._task: asyncio.Task[None] | None = None
        self.counts: Counter[str] = Counter(
            queries=0, cached=0, shared=0, searched=0, batches=0, dropped=0
        )

    def start(self) -> None:
        """Begin to answer; to be called within the event loop."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        """Finish the batch at work, refuse the rest."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for future in self._pending.values():
            if not future.done():
                future.set_exception(Stopping("the service has been told to end"))
        self._thread.shutdown(wait=True)

    async def answer(self, queries: Sequence[str], *, fresh: bool = False) -> list[Answer]:
        """One answer a query, in order.

        Args:
            queries: texts.
            fresh: search even for what is known.

        Raises:
            Overloaded: the queue is full.
            InternalError: the search failed.
        """
        new = sum(q not in self._pending and (fresh or q not in self._cache) for q in queries)
        if self._queue.qsize() + new > self._max_waiting:
            raise Overloaded(
                f"{self._queue.qsize()} queries are waiting, the limit is {self._max_waiting}"
            )
        self._askers.update(queries)
        try:
            return list(await asyncio.gather(*(self._future(query, fresh) for query in queries)))
        finally:
            for query in queries:
                self._askers[query] -= 1
                if self._askers[query] <= 0:
                    del self._askers[query]

    def _future(self, query: str, fresh: bool) -> asyncio.Future[Answer]:
        loop = asyncio.get_running_loop()
        if query in self._cache and not fresh:
            self._count("cached")
            self._cache.move_to_end(query)
            known: asyncio.Future[Answer] = loop.create_future()
            known.set_result(self._cache[query])
            return known
        if query in self._pending:
            self._count("shared")
        else:
            self._count("searched")
            future = loop.create_future()
            # A client that hung up leaves its future unread; that is no fault to report.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._pending[query] = future
            self._queue.put_nowait(query)
            self._metrics.queue.set(self._queue.qsize())
        # One client that hangs up must not cancel the search that others wait for.
        return asyncio.shield(self._pending[query])

    def _count(self, answer: str) -> None:
        self.counts["queries"] += 1
        self.counts[answer] += 1
        self._metrics.query(answer)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            pause = _PAUSE_IDLE_S if self._queue.empty() else _PAUSE_BUSY_S
            batch = [await self._queue.get()]
            deadline, asked = loop.time() + self._max_wait_s, -1
            while True:
                while len(batch) < self._max_batch and not self._queue.empty():
                    batch.append(self._queue.get_nowait())
                # Answers of the last batch bring the next queries one after the other: wait while
                # more keep coming.
                if len(batch) == self._max_batch or loop.time() >= deadline:
                    break
                if asked == self._asked():
                    break
                asked = self._asked()
                await asyncio.sleep(min(pause, self._max_wait_s))
            self._metrics.queue.set(self._queue.qsize())
            batch = [query for query in batch if self._wanted(query)]
            if batch:
                await self._search_for(batch)

    def _asked(self) -> int:
        """Queries so far that had to wait. Equal ones count: others of their kind are coming."""
        return self.counts["searched"] + self.counts["shared"]

    def _wanted(self, query: str) -> bool:
        """Whether anybody still waits for it; else it is taken out."""
        if self._askers[query] > 0:
            return True
        self._pending.pop(query).cancel()
        self.counts["dropped"] += 1
        return False

    async def _search_for(self, batch: list[str]) -> None:
        began = time.perf_counter()
        try:
            answers = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._search, batch
            )
            answered = list(zip(batch, answers, strict=True))
        except Exception as error:
            logger.exception("a batch of %d queries failed", len(batch))
            for query in batch:
                failure = InternalError(f"the search failed: {type(error).__name__}: {error}")
                self._pending.pop(query).set_exception(failure)
            return
        self._metrics.batch(len(batch), time.perf_counter() - began)
        self.counts["batches"] += 1
        for query, answer in answered:
            self._keep(query, answer)
            self._pending.pop(query).set_result(answer)
        self._metrics.cache.set(len(self._cache))

    def _keep(self, query: str, answer: Answer) -> None:
        if self._cache_size:
            self._cache[query] = answer
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
