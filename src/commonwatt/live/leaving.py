"""Jobs that were told to stop and are still on their nodes, and starts that wait until these are gone.

A job may need half a minute for its last snapshot. Nobody else's job has to wait for that, but the one that gets its
place: the controller takes the stop for given, and what it orders there is begun as soon as there is room.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from commonwatt.control.engine import Change, PatientEngine, RecoverableEngine, Start, Stop, Stopped
from commonwatt.store.records import IntentRow

__all__ = ["Late", "Leaving"]

_AGAIN_S = 1.0
"""How often to tell a job again: one that is just being launched may not have heard it."""


@dataclass(frozen=True)
class Late:
    """A start that is written down, and not given yet."""

    handle: int
    command: Start  # by the job's id
    intent: IntentRow


@dataclass
class _Leaver:
    intent: IntentRow
    told_s: float
    until_s: float


class Leaving:
    """What is on its way off its nodes, and what is to come there, by the ids of jobs.

    Parameters
    ----------
    engine
        Where they run; if its stops cannot but be waited for, nothing is ever on its way.
    at_once_s
        How long to wait for jobs that were just told: most are gone in a moment.
    steady_s
        A clock nobody sets.
    """

    def __init__(
        self, engine: RecoverableEngine, *, at_once_s: float = 0.5, steady_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine if isinstance(engine, PatientEngine) else None
        self._at_once_s, self._steady_s = at_once_s, steady_s
        self._told: dict[int, _Leaver] = {}
        self._late: dict[int, Late] = {}

    def __contains__(self, job: int) -> bool:
        """Whether a job is on its way off its nodes."""
        return job in self._told

    def __bool__(self) -> bool:
        """Whether anything is on its way, or to come."""
        return bool(self._told or self._late)

    def tell(self, intents: dict[int, IntentRow], absorb: Callable[[Collection[Change]], None]) -> set[int]:
        """Tell jobs to stop; returns those that will without anybody waiting for it.

        For a moment it is waited for nevertheless: *absorb* gets what the engine says meanwhile.
        """
        if self._engine is None or not intents:
            return set()
        now_s = self._steady_s()
        told = set(self._engine.tell(list(intents)))
        for job in told:
            self._told[job] = _Leaver(intents[job], now_s, now_s + self._engine.stop_s)
        while not told.isdisjoint(self._told) and (left_s := now_s + self._at_once_s - self._steady_s()) > 0:
            self._engine.wait(left_s)
            absorb(self._engine.poll())
        return told

    def gone(self, job: int) -> IntentRow | None:
        """Take note that a job is off its nodes; returns what it was told by, ``None`` if it was not."""
        leaver = self._told.pop(job, None)
        return None if leaver is None else leaver.intent

    def overdue(self) -> list[Stopped]:
        """Stop by command what was told and does not go, and tell again what may not have heard it.

        Raises ``EngineError`` if it does not go then either.
        """
        if self._engine is None or not self._told:
            return []
        now_s = self._steady_s()
        over = [job for job, leaver in self._told.items() if now_s >= leaver.until_s]
        again = [job for job, leaver in self._told.items() if leaver.told_s + _AGAIN_S <= now_s < leaver.until_s]
        if again:
            self._engine.tell(again)
            for job in again:
                self._told[job].told_s = now_s
        return list(self._engine.apply([Stop(job) for job in over])) if over else []

    def put_off(self, late: Late) -> bool:
        """Keep a start that cannot be given yet; whether that is so."""
        job, command = late.command.handle, late.command
        if self._engine is None or not self._told:
            return False
        if job not in self._told and self._engine.room(command.nodes, command.gpus_per_node):
            return False
        self._late[job] = late
        return True

    def take_back(self, job: int) -> Late | None:
        """Return a start that was put off, which is not to be given any more."""
        return self._late.pop(job, None)

    def ready(self) -> Late | None:
        """Take out the next start for which there is room now, or nobody left to make any."""
        for job, late in self._late.items():
            command = late.command
            if job in self._told:
                continue
            if not self._told or self._engine is None or self._engine.room(command.nodes, command.gpus_per_node):
                return self._late.pop(job)
        return None
