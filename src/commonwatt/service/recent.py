"""What takes long to count is not counted again for everybody who asks within the same second."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool

__all__ = ["Recent"]

T = TypeVar("T")


class Recent:
    """Remembers answers for *keep_s* after they were found, at most *most* of them.

    Who asks while one is looked for gets the same one. Used by one event loop only; ``forget`` by any thread.
    """

    def __init__(self, keep_s: float = 1.0, most: int = 1000, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep_s, self._most, self._clock = keep_s, most, clock
        self._known: dict[Hashable, tuple[float, Any]] = {}
        self._sought: dict[Hashable, asyncio.Task[Any]] = {}
        self._lock = threading.Lock()  # of what was found and what is looked for

    async def get(self, key: Hashable, find: Callable[[], T]) -> T:
        """Return the answer to *key*: the last one, or what *find*, called on a thread, returns now."""
        known = self._known.get(key)
        if known is not None and self._clock() < known[0] + self._keep_s:
            return known[1]
        sought = self._sought.get(key)
        if sought is None:
            sought = asyncio.get_running_loop().create_task(self._look(key, find))
            sought.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits any more
            self._sought[key] = sought
        return await asyncio.shield(sought)  # who hangs up leaves the others waiting for it

    async def _look(self, key: Hashable, find: Callable[[], T]) -> T:
        own = asyncio.current_task()
        try:
            found = await run_in_threadpool(find)
            with self._lock:
                if self._sought.get(key) is own:  # nobody has told to forget it meanwhile
                    if len(self._known) >= self._most:
                        self._known.clear()
                    self._known[key] = (self._clock(), found)
            return found
        finally:
            with self._lock:
                if self._sought.get(key) is own:
                    del self._sought[key]

    def change(self, key: Hashable, how: Callable[[Any], Any]) -> None:
        """Change what is remembered for *key* as *how* says; what is being looked for now is not remembered."""
        with self._lock:
            self._sought.pop(key, None)
            if key in self._known:
                since_s, found = self._known[key]
                self._known[key] = (since_s, how(found))

    def forget(self, *keys: Hashable) -> None:
        """Find everything anew, or what *keys* ask for; what is being looked for now is not remembered either."""
        with self._lock:
            for known in (self._known, self._sought):
                for key in keys or tuple(known):
                    known.pop(key, None)
