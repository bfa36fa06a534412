"""Tell the user when Numba compiles, and keep compiling out of every time a command reports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from commonwatt._stopwatch import Stopwatch, without_compiling
from commonwatt.cli.output import say

__all__ = ["compiling"]


@contextmanager
def compiling(what: str) -> Iterator[Stopwatch]:
    """Announce on standard error that Numba compiles inside, if it does; *what* names the code in a few words.

    Yields a running ``Stopwatch``. Numba keeps what it compiles in a cache, so this happens once on each machine, and
    again after an upgrade.
    """
    with without_compiling(lambda: say(f"compiling {what}, once per machine")) as watch:
        yield watch
    if watch.compiled:
        say(f"compiled in {watch.compile_s:.1f} s")
