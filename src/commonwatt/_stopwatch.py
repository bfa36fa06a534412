"""Seconds of real work: a stopwatch that leaves out those in which Numba compiles."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

__all__ = ["Stopwatch", "without_compiling"]


class Stopwatch:
    """Seconds since it was made, without those in which Numba compiled, or loaded what it had compiled."""

    def __init__(self) -> None:
        self._began = perf_counter()
        self.compile_s = 0.0
        self.compiled = False  # something was not in Numba's cache

    @property
    def elapsed_s(self) -> float:
        """Seconds of real work so far."""
        return perf_counter() - self._began - self.compile_s


@contextmanager
def without_compiling(announce: Callable[[], None] | None = None) -> Iterator[Stopwatch]:
    """Yield a running ``Stopwatch``; call *announce* when Numba begins to compile inside, once."""
    from numba.core import event

    watch = Stopwatch()
    listener = _listener(watch, announce)
    with event.install_listener("numba:compiler_lock", listener), event.install_listener("numba:compile", listener):
        yield watch


def _listener(watch: Stopwatch, announce: Callable[[], None] | None) -> Any:  # noqa: ANN401
    """Return what hears Numba: each time it takes its lock, to compile or to load, and each compilation."""
    from numba.core import event

    own = threading.local()

    class Listener(event.Listener):
        def on_start(self, event: Any) -> None:  # noqa: ANN401
            if event.kind == "numba:compile":
                if not watch.compiled:
                    watch.compiled = True
                    if announce is not None:
                        announce()
                return
            own.depth = getattr(own, "depth", 0) + 1
            if own.depth == 1:
                own.began = perf_counter()

        def on_end(self, event: Any) -> None:  # noqa: ANN401
            if event.kind == "numba:compile":
                return
            own.depth -= 1
            if own.depth == 0:
                watch.compile_s += perf_counter() - own.began

    return Listener()
