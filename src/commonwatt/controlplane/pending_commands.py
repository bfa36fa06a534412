"""Commands whose effect takes time: jobs that are terminating, and starts deferred for them.

A job may need half a minute for its last checkpoint. Only the job that gets its place waits for that: the controller
takes the stop as done, and what it starts there begins as soon as there is room. A job that survives being killed is
not waited for at all: its engine reports when it is gone, however long that takes.

What is done about single Jobs of users in Kubernetes waits for nothing: a refusal is logged once.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from commonwatt.control.engine import Change, LiveEngine, Start, Stop, Stopped
from commonwatt.engines.kubernetes.api import NotYetAllowedError
from commonwatt.engines.kubernetes.user_requests import LateError
from commonwatt.model.errors import EngineDownError, EngineError, StoreError
from commonwatt.store.records import IntentRow

if TYPE_CHECKING:
    from commonwatt.engines.kubernetes.user_job import UserJob

__all__ = ["DeferredStart", "OneByOne", "Terminating"]

log = logging.getLogger("commonwatt.terminating")
_users_log = logging.getLogger("commonwatt.kubernetes")
_T = TypeVar("_T")

_AGAIN_S = 1.0
"""How often to ask a job again to stop: one that is being launched may have missed it."""


@dataclass(frozen=True)
class DeferredStart:
    """A start that is written down and not given yet."""

    handle: int
    command: Start  # by the job's id
    intent: IntentRow


@dataclass
class _Stopping:
    intent: IntentRow
    asked_s: float
    kill_s: float
    stuck: bool = False  # it was killed and is still there


class Terminating:
    """Terminating jobs and deferred starts, by job id.

    Parameters
    ----------
    engine
        Where the jobs run; if its stops have to be waited for, only a job that survives being killed is terminating.
    at_once_s
        How long to wait for jobs that were just asked to stop: most are gone in a moment.
    steady_s
        A monotonic clock.
    """

    def __init__(
        self, engine: LiveEngine, *, at_once_s: float = 0.5, steady_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine, self._deferred_stop = engine, engine.capabilities.deferred_stop
        self._at_once_s, self._steady_s = at_once_s, steady_s
        self._stopping: dict[int, _Stopping] = {}
        self._deferred: dict[int, DeferredStart] = {}

    def __contains__(self, job: int) -> bool:
        """Whether a job is terminating."""
        return job in self._stopping

    def __bool__(self) -> bool:
        """Whether any job is terminating, or any start deferred."""
        return bool(self._stopping or self._deferred)

    def request_stop(self, intents: dict[int, IntentRow], absorb: Callable[[Collection[Change]], None]) -> set[int]:
        """Ask jobs to stop; returns those that will without anybody waiting for them.

        They get a moment nevertheless; *absorb* takes what the engine reports meanwhile.
        """
        if not self._deferred_stop or not intents:
            return set()
        now_s = self._steady_s()
        asked = set(self._engine.request_stop(list(intents)))
        for job in asked:
            self._stopping[job] = _Stopping(intents[job], now_s, now_s + self._engine.capabilities.stop_s)
        while not asked.isdisjoint(self._stopping) and (left_s := now_s + self._at_once_s - self._steady_s()) > 0:
            self._engine.wait(left_s)
            absorb(self._engine.poll())
        return asked

    def track(self, job: int, intent: IntentRow) -> None:
        """Track a job that was stopped by command and is still there, until it is gone."""
        self._stopping[job] = _Stopping(intent, self._steady_s(), math.inf, stuck=True)

    def resume(self, intent: IntentRow) -> bool:
        """Ask a job again that an earlier controller asked to stop; returns whether that needs no waiting."""
        if not self._deferred_stop:
            return False
        kill_s = self._steady_s() + self._engine.capabilities.stop_s
        self._stopping[intent.job] = _Stopping(intent, -math.inf, kill_s)
        return True

    def pending(self, intent: IntentRow) -> bool:
        """Whether a job is terminating by this *intent*."""
        return intent.job in self._stopping and self._stopping[intent.job].intent == intent

    def deferred(self) -> list[DeferredStart]:
        """Return the deferred starts."""
        return list(self._deferred.values())

    def finished(self, job: int) -> IntentRow | None:
        """Take note that a job is off its nodes; returns the intent of its stop, ``None`` if it was not terminating."""
        stopping = self._stopping.pop(job, None)
        return None if stopping is None else stopping.intent

    def stop_overdue(self) -> list[Stopped]:
        """Stop overdue jobs by command, once, and ask the others again; returns the stops that are done."""
        if not self._deferred_stop or not self._stopping:
            return []
        now_s = self._steady_s()
        going = {job: stopping for job, stopping in self._stopping.items() if not stopping.stuck}
        again = [job for job, stopping in going.items() if stopping.asked_s + _AGAIN_S <= now_s < stopping.kill_s]
        if again:
            self._engine.request_stop(again)
            for job in again:
                self._stopping[job].asked_s = now_s
        gone: list[Stopped] = []
        for job, stopping in going.items():
            if now_s < stopping.kill_s:
                continue
            try:
                stopped = self._kill(job)
            except EngineError:
                if gone:  # which have to be processed first
                    break
                raise
            stopping.stuck = stopped is None
            gone += [] if stopped is None else [stopped]
        return gone

    def _kill(self, job: int) -> Stopped | None:
        """Have a job killed; ``None`` if it is still there afterwards."""
        try:
            (stopped,) = self._engine.apply([Stop(job)])
            if not stopped.later:
                return stopped
            cause = "the engine still has it, although it ended or was killed"
        except EngineDownError:
            raise
        except EngineError as error:
            if not any(run.handle == job and run.nodes for run in self._engine.recorded_runs()):
                raise
            cause = str(error)
        log.warning("a job does not terminate, and keeps its GPUs until it does", extra={"job": job, "cause": cause})
        return None

    def defer(self, start: DeferredStart) -> bool:
        """Defer a start that cannot be given yet; returns whether it was deferred."""
        job, command = start.command.handle, start.command
        if not self._deferred_stop or not (self._awaited() or job in self._stopping):
            return False
        if job not in self._stopping and self._engine.has_room(command.nodes, command.gpus_per_node, job):
            return False
        self._deferred[job] = start
        return True

    def withdraw(self, job: int) -> DeferredStart | None:
        """Drop a deferred start; returns it."""
        return self._deferred.pop(job, None)

    def take_ready(self) -> DeferredStart | None:
        """Take out the next deferred start for which there is room, or nobody left who could make room."""
        for job, start in self._deferred.items():
            command = start.command
            if job in self._stopping:
                continue
            if not self._awaited() or self._engine.has_room(command.nodes, command.gpus_per_node, job):
                return self._deferred.pop(job)
        return None

    def _awaited(self) -> bool:
        """Whether any terminating job can be expected to go."""
        return not all(stopping.stuck for stopping in self._stopping.values())


@dataclass
class OneByOne:
    """What is done about single Jobs of users in Kubernetes: what fails of one is logged once, and stops no other.

    Attributes
    ----------
    refused
        By uid: the change that the server does not allow.
    """

    refused: dict[str, str] = field(default_factory=dict)
    _odd: set[str] = field(default_factory=set)  # uids of which something failed that nobody has foreseen

    def forget(self, there: Collection[str]) -> None:
        """Forget all Jobs but those of these uids."""
        self.refused = {uid: said for uid, said in self.refused.items() if uid in there}
        self._odd = {uid for uid in self._odd if uid in there}

    def look(self, at: Callable[..., _T], job: UserJob, *more: object) -> _T | None:
        """Return what a look *at* one Job does, ``None`` where it fails.

        Raises what concerns all: ``StoreError``, a lost claim included; and ``EngineError``, as ``change`` has dealt
        with those of one.
        """
        try:
            return at(job, *more)
        except (StoreError, EngineError):
            raise
        except Exception:  # whatever somebody wrote into it
            if job.uid not in self._odd:
                there = {"namespace": job.namespace, "name_there": job.name}
                _users_log.exception("a Job cannot be looked at", extra=there)
            self._odd.add(job.uid)
            return None

    def change(self, job: UserJob, change: Callable[[UserJob], bool | None], otherwise: str) -> bool | None:
        """Return whether a Job was changed, ``None`` if the server has not answered yet.

        *otherwise* is logged, once, and that it is tried again is not.
        """
        try:
            done = change(job) is not False
        except LateError:
            return None
        except EngineError as error:
            if isinstance(error, EngineDownError) and not isinstance(error, NotYetAllowedError):
                raise  # the server does not answer: that concerns all namespaces
            if self.refused.get(job.uid) != otherwise:
                _users_log.warning(otherwise, extra={"name_there": job.name, "cause": str(error)})
            self.refused[job.uid] = otherwise
            return False
        self.refused.pop(job.uid, None)
        return done
