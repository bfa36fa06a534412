"""Jobs that were told to stop and are still on their nodes, and starts that wait until these are gone.

A job may need half a minute for its last snapshot. Nobody else's job has to wait for that, but the one that gets its
place: the controller takes the stop for given, and what it orders there is begun as soon as there is room. One that
does not even go when it is killed is not waited for: its engine says when it has gone, however long that takes.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from commonwatt.control.engine import Change, PatientEngine, RecoverableEngine, Start, Stop, Stopped
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.store.records import IntentRow

__all__ = ["Late", "Leaving"]

log = logging.getLogger("commonwatt.leaving")

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
    stuck: bool = False  # there though it was killed


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

    def keep(self, job: int, intent: IntentRow) -> None:
        """Take note of a job that does not go though it was stopped by command, until it does."""
        self._told[job] = _Leaver(intent, self._steady_s(), math.inf, stuck=True)

    def again(self, intent: IntentRow) -> bool:
        """Take note of a job that was told to stop before, and is told again; not if it can only be waited for."""
        if self._engine is None:
            return False
        self._told[intent.job] = _Leaver(intent, -math.inf, self._steady_s() + self._engine.stop_s)
        return True

    def awaits(self, intent: IntentRow) -> bool:
        """Whether a job is on its way off its nodes by this *intent*."""
        return intent.job in self._told and self._told[intent.job].intent == intent

    def late(self) -> list[Late]:
        """Return the starts that were put off."""
        return list(self._late.values())

    def gone(self, job: int) -> IntentRow | None:
        """Take note that a job is off its nodes; returns what it was told by, ``None`` if it was not."""
        leaver = self._told.pop(job, None)
        return None if leaver is None else leaver.intent

    def overdue(self) -> list[Stopped]:
        """Stop by command what was told and does not go, once, and tell again what may not have heard it."""
        if self._engine is None or not self._told:
            return []
        now_s = self._steady_s()
        going = {job: leaver for job, leaver in self._told.items() if not leaver.stuck}
        again = [job for job, leaver in going.items() if leaver.told_s + _AGAIN_S <= now_s < leaver.until_s]
        if again:
            self._engine.tell(again)
            for job in again:
                self._told[job].told_s = now_s
        gone: list[Stopped] = []
        for job, leaver in going.items():
            if now_s < leaver.until_s:
                continue
            try:
                stopped = self._killed(self._engine, job)
            except EngineError:
                if gone:  # which has to be taken account of first
                    break
                raise
            leaver.stuck = stopped is None
            gone += [] if stopped is None else [stopped]
        return gone

    def _killed(self, engine: PatientEngine, job: int) -> Stopped | None:
        """Have a job killed; ``None`` if it goes on leaving nevertheless."""
        try:
            (stopped,) = engine.apply([Stop(job)])
            if not stopped.later:
                return stopped
            cause = "the engine has it still, ended or killed"
        except EngineDownError:
            raise
        except EngineError as error:
            if not any(found.handle == job and found.nodes for found in engine.found()):
                raise
            cause = str(error)
        log.warning("a job does not leave, and keeps its GPUs until it does", extra={"job": job, "cause": cause})
        return None

    def put_off(self, late: Late) -> bool:
        """Keep a start that cannot be given yet; whether that is so."""
        job, command = late.command.handle, late.command
        if self._engine is None or not (self._awaited() or job in self._told):
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
            if not self._awaited() or self._engine is None or self._engine.room(command.nodes, command.gpus_per_node):
                return self._late.pop(job)
        return None

    def _awaited(self) -> bool:
        """Whether anything is on its way that can be expected to go."""
        return not all(leaver.stuck for leaver in self._told.values())
