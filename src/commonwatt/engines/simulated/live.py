"""Simulated work in real time: a cluster to try the control plane on, with nothing to install and nothing at stake."""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence

from commonwatt.control.engine import Change, Command, Found, NodeView, Progress, Reading, Stopped
from commonwatt.engines.simulated.engine import SimulatedEngine, World
from commonwatt.model.arrays import Ints
from commonwatt.model.jobs import JobTable
from commonwatt.model.nodes import Cluster

__all__ = ["VirtualWork"]


class VirtualWork(SimulatedEngine):
    """A simulated cluster whose clock is *now*, seconds since 1970.

    It remembers nothing when its process ends: jobs that ran then are found to run nowhere.
    """

    def __init__(self, cluster: Cluster, world: World, now: Callable[[], float]) -> None:
        self._now = now
        super().__init__(cluster, JobTable.of([]), world, now_s=now())

    def nodes(self) -> NodeView:
        """State of the nodes."""
        self._catch_up()
        return super().nodes()

    def progress(self, handles: Ints) -> Progress:
        """Progress of *handles* now."""
        self._speeds.grow(int(handles.max(initial=-1)) + 1)
        self._catch_up()
        return super().progress(handles)

    def poll(self) -> Sequence[Change]:
        """What changed since the last poll."""
        self._catch_up()
        return super().poll()

    def apply(self, commands: Sequence[Command]) -> Sequence[Stopped]:
        """Execute *commands*; raises ``EngineError`` on one that cannot be."""
        self._catch_up()
        return super().apply(commands)

    def readings(self, *, up_to_now: bool = False) -> Sequence[Reading]:
        """Readings closed since the last call; with *up_to_now*, those of all nodes up to this moment."""
        self._catch_up()
        return super().readings(up_to_now=up_to_now)

    def found(self) -> Sequence[Found]:
        """Nothing: virtual work ends with its process."""
        return []

    def wait(self, seconds: float, waker: int = -1) -> None:
        """Return after so long, when something happens, or when *waker* is readable."""
        upcoming_s = self.next_s()
        until_s = seconds if upcoming_s is None else min(seconds, upcoming_s - self._now())
        if not self._changes and until_s > 0:
            select.select([waker] if waker >= 0 else [], [], [], until_s)

    def _catch_up(self) -> None:
        """Let happen what has happened by now; each stop at a change goes on at once."""
        now_s, seen = self._now(), len(self._changes)
        while self.now_s < now_s:
            held, self._changes = self._changes, []
            self.advance(now_s)
            self._changes = held + self._changes
            if len(self._changes) == seen and self.now_s >= now_s:
                break
            seen = len(self._changes)
