"""A cache for slow queries, which answers all callers within a second from one result."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool

__all__ = ["TtlCache"]

T = TypeVar("T")


class TtlCache:
    """Keeps results for *keep_s* seconds, at most *most* of them.

    Concurrent callers share one query. Use it from one event loop; ``change`` and ``forget`` from any thread.
    """

    def __init__(self, keep_s: float = 1.0, most: int = 1000, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep_s, self._most, self._clock = keep_s, most, clock
        self._results: dict[Hashable, tuple[float, Any]] = {}
        self._pending: dict[Hashable, asyncio.Task[Any]] = {}
        self._lock = threading.Lock()  # of both

    async def get(self, key: Hashable, find: Callable[[], T]) -> T:
        """Return the kept result for *key*, or that of *find*, called on a thread."""
        kept = self._results.get(key)
        if kept is not None and self._clock() < kept[0] + self._keep_s:
            return kept[1]
        pending = self._pending.get(key)
        if pending is None:
            pending = asyncio.get_running_loop().create_task(self._query(key, find))
            pending.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be waiting
            self._pending[key] = pending
        return await asyncio.shield(pending)  # a caller that is cancelled leaves the query to the others

    async def _query(self, key: Hashable, find: Callable[[], T]) -> T:
        own = asyncio.current_task()
        try:
            result = await run_in_threadpool(find)
            with self._lock:
                if self._pending.get(key) is own:  # not forgotten meanwhile
                    if len(self._results) >= self._most:
                        self._results.clear()
                    self._results[key] = (self._clock(), result)
            return result
        finally:
            with self._lock:
                if self._pending.get(key) is own:
                    del self._pending[key]

    def change(self, key: Hashable, how: Callable[[Any], Any]) -> None:
        """Replace the kept result of *key* by *how* of it; a query in progress is not kept."""
        with self._lock:
            self._pending.pop(key, None)
            if key in self._results:
                since_s, result = self._results[key]
                self._results[key] = (since_s, how(result))

    def forget(self, *keys: Hashable) -> None:
        """Drop the results of *keys*, or all; a query in progress is not kept either."""
        with self._lock:
            for entries in (self._results, self._pending):
                for key in keys or tuple(entries):
                    entries.pop(key, None)
