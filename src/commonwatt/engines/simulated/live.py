"""Simulated work in real time: a cluster to try the control plane on, without any installation."""

from __future__ import annotations

import pickle
import select
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from commonwatt.control.engine import (
    Change,
    Command,
    JobInterrupted,
    JobProgress,
    LiveEngine,
    NodeView,
    Reading,
    RecordedRun,
    SetPower,
    Start,
    Stop,
    Stopped,
)
from commonwatt.engines.simulated.engine import SimulatedEngine, World
from commonwatt.model.arrays import Ints
from commonwatt.model.jobs import JobArrays
from commonwatt.model.nodes import Cluster

__all__ = ["VirtualWork"]


class VirtualWork(SimulatedEngine, LiveEngine):
    """A simulated cluster whose clock is *now*, seconds since 1970.

    It has no records once its process ends: jobs that ran then run nowhere.
    """

    def __init__(self, cluster: Cluster, world: World, now: Callable[[], float]) -> None:
        self._now = now
        self._attempts: dict[int, int] = {}
        self._ends: dict[int, Change] = {}  # of the last run of each job that does not run
        self._packed: dict[str, bytes] = {}  # tables of jobs: each comes in one of its own, and few are started soon
        super().__init__(cluster, JobArrays.of([]), world, now_s=now())
        self.capabilities = replace(self.capabilities, prune=True)

    def add(self, jobs: JobArrays, last_handle: int) -> None:
        """Add jobs, whose handles are *last_handle* at most."""
        self._packed |= {name: _packed(jobs, j) for j, name in enumerate(jobs.names)}
        self._speeds.grow(last_handle + 1)

    def _row_of(self, name: str) -> tuple[JobArrays, int]:
        """Return the table of a job, and its row."""
        return _unpacked(self._packed[name]), 0

    def nodes(self) -> NodeView:
        """State of the nodes."""
        self._catch_up()
        return super().nodes()

    def progress(self, handles: Ints) -> JobProgress:
        """Progress of *handles* now."""
        self._speeds.grow(int(handles.max(initial=-1)) + 1)
        self._catch_up()
        return super().progress(handles)

    def poll(self) -> Sequence[Change]:
        """What changed since the last poll."""
        self._catch_up()
        return super().poll()

    def apply(self, commands: Sequence[Command]) -> Sequence[Stopped]:
        """Execute *commands*; raises ``EngineError`` on one that is impossible.

        A job whose end was not reported yet is neither stopped nor started: the next poll reports it.
        """
        self._catch_up()
        answers = []
        for command in commands:
            handle = -1 if isinstance(command, SetPower) else command.handle
            if any(change.handle == handle for change in self._changes):
                answers += [Stopped(handle, 0.0)] if isinstance(command, Stop) else []
                continue
            own = super().apply([command])
            answers += own
            if isinstance(command, Start):
                self._attempts[handle] = self._attempts.get(handle, 0) + 1
                self._ends.pop(handle, None)
            elif own:
                self._ends[handle] = JobInterrupted(handle, self.now_s, own[0].lost_s, "stopped")
        return answers

    def readings(self, *, up_to_now: bool = False) -> Sequence[Reading]:
        """Readings closed since the last call; with *up_to_now*, those of all nodes up to this moment."""
        self._catch_up()
        return super().readings(up_to_now=up_to_now)

    def recorded_runs(self) -> Sequence[RecordedRun]:
        """Return every job started in this process; the next poll reports how those ended that do not run."""
        self._catch_up()
        self._changes = list(self._ends.values())
        runs = []
        for handle, attempts in sorted(self._attempts.items()):
            run = self._running.get(handle)
            runs.append(RecordedRun(handle, attempts, run.nodes if run else (), run.gpus_per_node if run else 0))
        return runs

    def attempts(self, handle: int) -> int:
        """How often a job was started."""
        return self._attempts.get(handle, 0)

    def prunable(self) -> Sequence[int]:
        """Return the jobs that were started and do not run."""
        return sorted(self._ends)

    def prune(self, handles: Collection[int], *, aside: bool = False) -> None:  # noqa: ARG002
        """Forget jobs that do not run."""
        gone = {handle for handle in handles if handle in self._ends}
        for handle in gone:
            del self._ends[handle], self._attempts[handle]
        self._changes = [change for change in self._changes if change.handle not in gone]
        numbers = {str(handle) for handle in gone}  # jobs are called ID-NAME
        self._packed = {name: row for name, row in self._packed.items() if name.partition("-")[0] not in numbers}

    def wait(self, seconds: float, waker: int = -1) -> None:
        """Return after so long, when something happens, or when *waker* is readable."""
        upcoming_s = self.next_s()
        until_s = seconds if upcoming_s is None else min(seconds, upcoming_s - self._now())
        if not self._changes and until_s > 0:
            select.select([waker] if waker >= 0 else [], [], [], until_s)

    def _catch_up(self) -> None:
        """Simulate up to now."""
        now_s, changes = self._now(), self._changes
        while self.now_s < now_s:
            self._changes = []  # else time would stop at the first of them
            self.advance(now_s)
            for change in self._changes:
                self._ends[change.handle] = change
            changes = changes + self._changes
        self._changes = changes


def _packed(jobs: JobArrays, j: int) -> bytes:
    """Return what the engine asks for of job *j*, which as a table of its own would take many times the memory."""
    of = jobs.config_type, jobs.config_gpus, jobs.config_time_s, jobs.config_gpu_w, jobs.config_power_limit
    configs = [column[jobs.configs(j)].tolist() for column in of]
    own = jobs.names[j], jobs.kinds[j], int(jobs.epochs[j]), jobs.restart_s[j : j + 1].tolist()
    return pickle.dumps((*own, jobs.gpu_types, configs), pickle.HIGHEST_PROTOCOL)


def _unpacked(packed: bytes) -> JobArrays:
    name, kind, epochs, restart_s, gpu_types, configs = pickle.loads(packed)  # noqa: S301
    types, counts, times_s, gpu_w, limits = configs
    none = np.zeros(0)
    return JobArrays(
        names=(name,), tenants=(), gpu_types=gpu_types, tenant=none.astype(np.int64), submit_s=none, due_s=none,
        tardiness_weight=none, epochs=np.array([epochs]), requested_gpus=none.astype(np.int64),
        requested_type=none.astype(np.int64), time_limit_s=none, kinds=(kind,), start=np.array([0, len(types)]),
        config_type=np.array(types), config_gpus=np.array(counts), config_time_s=np.array(times_s),
        config_gpu_w=np.array(gpu_w), restart_s=np.array(restart_s), config_power_limit=np.array(limits),
    )  # fmt: skip
