"""What takes long to count is not counted again for everybody who asks within the same second."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool

__all__ = ["Recent"]

T = TypeVar("T")


class Recent:
    """Remembers answers for *keep_s*, at most *most* of them. Used by one event loop only."""

    def __init__(self, keep_s: float = 1.0, most: int = 1000, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep_s, self._most, self._clock = keep_s, most, clock
        self._known: dict[Hashable, tuple[float, Any]] = {}

    async def get(self, key: Hashable, find: Callable[[], T]) -> T:
        """Return the answer to *key*: the last one, or what *find*, called on a thread, returns now."""
        now_s, known = self._clock(), self._known.get(key)
        if known is not None and now_s < known[0] + self._keep_s:
            return known[1]
        found = await run_in_threadpool(find)
        if len(self._known) >= self._most:
            self._known.clear()
        self._known[key] = (now_s, found)
        return found

    def forget(self) -> None:
        """Find everything anew."""
        self._known.clear()
