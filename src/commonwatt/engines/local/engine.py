"""An ``Engine`` whose jobs are processes on this machine.

Nodes are declared: each has so many slots, which are GPUs where there are any (``CUDA_VISIBLE_DEVICES``), else just
a number of jobs that may run side by side. What was ordered and how it ended is on disk (``folder.py``), so another
engine on the same folder, after a crash of the first, goes on where that was: ``found`` tells what it found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from commonwatt.control.engine import (
    Capabilities,
    Change,
    Command,
    Found,
    Holder,
    JobEnded,
    JobInterrupted,
    NodeView,
    Outcome,
    Progress,
    Reading,
    SetPower,
    Start,
    Stop,
    Stopped,
)
from commonwatt.engines.local.folder import End, RunFolder, RunOrder, write_record
from commonwatt.engines.local.progress import read_progress
from commonwatt.engines.local.run import Run, await_any
from commonwatt.engines.work import Work
from commonwatt.model.arrays import Ints
from commonwatt.model.errors import EngineError
from commonwatt.model.nodes import Cluster
from commonwatt.model.units import MICRO

__all__ = ["LocalEngine"]


class LocalEngine:
    """Jobs as processes on this machine.

    Parameters
    ----------
    cluster
        The declared nodes.
    state
        Folder of its own, made if need be; one engine at a time.
    work_of
        What the job of a given name runs.
    slots
        GPU indices of each node; counted through if not given.
    grace_s
        Time between asking a job to stop and killing it.
    node_energy_j
        Reading of a node's meter, joules; energy is unknown if there is none.
    """

    def __init__(
        self, cluster: Cluster, state: Path, work_of: Callable[[str], Work], *,
        slots: Sequence[Sequence[int]] | None = None, grace_s: float = 10.0,
        node_energy_j: Callable[[int], float] | None = None,
    ) -> None:  # fmt: skip
        self.capabilities = Capabilities(preempt=True, gangs=True, energy=node_energy_j is not None)
        self._cluster, self._state, self._work_of, self._grace_s = cluster, state.absolute(), work_of, grace_s
        self._slots = [list(own) for own in slots] if slots is not None else _counted(cluster.gpus)
        self._energy_j = node_energy_j
        self._runs: dict[int, Run] = {}  # running, or ended but not yet reported
        self._settled: dict[int, tuple[float, float]] = {}  # epochs done and kept of jobs that do not run
        self._attempts: dict[int, int] = {}
        self._changes: list[Change] = []
        self._readings: list[Reading] = []
        self._metered_s = [time.time()] * len(cluster)
        self._meter_j = [node_energy_j(n) if node_energy_j else 0.0 for n in range(len(cluster))]
        self._epochs: dict[int, float] = {}
        (self._state / "jobs").mkdir(parents=True, exist_ok=True)
        self._attach()

    # -- the Engine interface

    def nodes(self) -> NodeView:
        """All nodes are always on."""
        nodes = len(self._cluster)
        return NodeView(self._cluster.gpus, np.zeros(nodes), np.full(nodes, -1, dtype=np.int64))

    def progress(self, handles: Ints) -> Progress:
        """Epochs as the jobs report them; nothing is known of how soon they begin to work."""
        told = [self._progress(int(handle)) for handle in handles]
        done, kept = np.array(told, dtype=np.float64).reshape(-1, 2).T
        return Progress(done, kept, np.zeros(len(told)))

    def poll(self) -> Sequence[Change]:
        """What changed since the last poll."""
        for handle, run in list(self._runs.items()):
            if (end := run.ended()) is not None:
                self._vacate(handle)
                self._report(run, end)
        changes, self._changes = self._changes, []
        return changes

    def apply(self, commands: Sequence[Command]) -> Sequence[Stopped]:
        """Execute *commands*; raises ``EngineError`` on one that cannot be. Jobs to be stopped are all told at once."""
        for command in commands:
            if isinstance(command, Stop) and command.handle in self._runs:
                self._runs[command.handle].tell()
        stopped = []
        for command in commands:
            match command:
                case Stop():
                    stopped.append(self._stop(command.handle))
                case Start():
                    self._start(command)
                case SetPower():
                    msg = f"node {self._cluster.names[command.node]}: this machine is not put to sleep"
                    raise EngineError(msg)
        return stopped

    def readings(self, *, up_to_now: bool = False) -> Sequence[Reading]:
        """Readings closed since the last call; with *up_to_now*, those of all nodes up to this moment."""
        if up_to_now:
            for node in range(len(self._cluster)):
                self._meter(node)
        readings, self._readings = self._readings, []
        return readings

    def power_w(self) -> float | None:
        """Unknown: there are energy meters at most."""
        return None

    # -- what an engine adds that survives its controller

    def found(self) -> Sequence[Found]:
        """Every job that was ever ordered here, as it stands: for a controller that has just come (back) to life."""
        return [
            Found(handle, self._attempts[handle], run.order.nodes if run else (), run.order.gpus_per_node if run else 0)
            for handle in sorted(self._attempts)
            for run in (self._runs.get(handle),)
        ]

    def wait(self, seconds: float) -> None:
        """Return after so long, or as soon as a job has ended."""
        if not self._changes:
            await_any(self._runs.values(), seconds)

    # -- jobs

    def _start(self, command: Start) -> None:
        current = self._runs.get(command.handle)
        if current is not None or any(isinstance(c, JobEnded) and c.handle == command.handle for c in self._changes):
            if current is None or current.folder.end() is not None:
                return  # it has ended by itself, which the next poll will tell: there is nothing to start
            msg = f"start {command.name}: it is running already"
            raise EngineError(msg)
        slots = []
        for n in command.nodes:
            free = self._free(n)
            if len(free) < command.gpus_per_node:
                name = self._cluster.names[n]
                msg = f"start {command.name}: node {name} has {len(free)} GPUs free, not {command.gpus_per_node}"
                raise EngineError(msg)
            slots.append(tuple(free[: command.gpus_per_node]))
        order = self._order(command, tuple(slots))
        folder = RunFolder.create(self._state / "runs", order)
        self._attempts[command.handle] = order.attempt
        for n in command.nodes:
            self._meter(n)
        run = self._runs[command.handle] = Run(folder, order)
        run.launch()

    def _order(self, command: Start, slots: tuple[tuple[int, ...], ...]) -> RunOrder:
        work = self._work_of(command.name)
        self._epochs[command.handle] = work.epochs
        own = self._state / "jobs" / str(command.handle)
        own.mkdir(exist_ok=True)
        environment = {
            "CUDA_VISIBLE_DEVICES": ",".join(str(slot) for row in slots for slot in row),
            "COMMONWATT_JOB": command.name,
            "COMMONWATT_GPUS": str(sum(len(row) for row in slots)),
            "COMMONWATT_PROGRESS": str(own / "progress"),
            "COMMONWATT_SNAPSHOTS": str(work.snapshots or own),
        }
        return RunOrder(
            handle=command.handle,
            attempt=self._attempts.get(command.handle, 0) + 1,
            name=command.name,
            nodes=command.nodes,
            gpus_per_node=command.gpus_per_node,
            slots=slots,
            started_s=time.time(),
            base_epochs=self._progress(command.handle)[1],
            command=work.command,
            folder=str(work.folder),
            environment={**work.environment, **environment},
            grace_s=self._grace_s,
        )

    def _stop(self, handle: int) -> Stopped:
        run = self._runs.get(handle)
        if run is None:
            msg = f"stop job {handle}: it is not running"
            raise EngineError(msg)
        end = run.await_end()
        self._vacate(handle)
        if not end.stopped:
            self._report(run, end)
            return Stopped(handle, 0.0)
        done, kept = self._settle(run)
        return Stopped(handle, _lost_s(run, done, kept, end.at_s))

    def _report(self, run: Run, end: End) -> None:
        """Turn the end of a run nobody asked for into a change."""
        order = run.order
        if end.exit_code is None or end.stopped:
            done, kept = self._settle(run)
            lost_s = _lost_s(run, done, kept, end.at_s)
            self._changes.append(JobInterrupted(order.handle, end.at_s, lost_s, end.cause))
            return
        outcome = Outcome.COMPLETED if end.exit_code == 0 else Outcome.FAILED
        epochs = self._epochs_of(order)
        self._settled[order.handle] = (epochs, epochs) if outcome is Outcome.COMPLETED else self._told(order.handle)
        self._changes.append(JobEnded(order.handle, end.at_s, outcome))

    def _vacate(self, handle: int) -> None:
        run = self._runs[handle]
        for n in run.order.nodes:
            self._meter(n)
        del self._runs[handle]
        run.close()

    # -- progress

    def _epochs_of(self, order: RunOrder) -> float:
        return self._epochs.setdefault(order.handle, self._work_of(order.name).epochs)

    def _told(self, handle: int) -> tuple[float, float]:
        """What the job last said, within its epochs; nothing if it says nothing."""
        said = read_progress(self._state / "jobs" / str(handle) / "progress")
        most = self._epochs.get(handle, np.inf)
        return (0.0, 0.0) if said is None else (min(said[0], most), min(said[1], most))

    def _progress(self, handle: int) -> tuple[float, float]:
        if handle not in self._runs:
            return self._settled.get(handle, (0.0, 0.0))
        base = self._runs[handle].order.base_epochs
        done, kept = self._told(handle)
        return max(done, base), max(kept, base)

    def _settle(self, run: Run) -> tuple[float, float]:
        """Fall back to the last snapshot; returns what was done and what is kept of it."""
        done, kept = self._told(run.order.handle)
        done, kept = max(done, run.order.base_epochs), max(kept, run.order.base_epochs)
        self._settled[run.order.handle] = (kept, kept)
        said = self._state / "jobs" / str(run.order.handle) / "progress"
        if said.exists():  # else the next run would seem to have done what this one lost
            write_record(said, {"done_epochs": kept, "kept_epochs": kept})
        return done, kept

    # -- nodes

    def _free(self, n: int) -> list[int]:
        taken = {
            slot
            for run in self._runs.values()
            for node, slots in zip(run.order.nodes, run.order.slots, strict=True)
            if node == n
            for slot in slots
        }
        return [slot for slot in self._slots[n] if slot not in taken]

    def _meter(self, n: int) -> None:
        """Close the reading of node *n* at this moment."""
        now_s = time.time()
        if now_s <= self._metered_s[n]:
            return
        energy_uj = None
        if self._energy_j is not None:
            meter_j = self._energy_j(n)
            energy_uj = max(0, round((meter_j - self._meter_j[n]) * MICRO))
            self._meter_j[n] = meter_j
        gpu_w = self._cluster.classes[self._cluster.klass[n]].gpu_w
        holders = tuple(
            Holder(run.order.handle, run.order.gpus_per_node, gpu_w, run.order.started_s)
            for run in self._runs.values()
            if n in run.order.nodes
        )
        self._readings.append(Reading(n, self._metered_s[n], now_s, energy_uj, holders))
        self._metered_s[n] = now_s

    def _attach(self) -> None:
        """Take up what an engine before us left: what runs, and what ended without anybody noticing is reported."""
        last = {folder.order().handle: folder for folder in RunFolder.all_in(self._state / "runs")}
        for handle, folder in last.items():
            order = folder.order()
            self._attempts[handle] = order.attempt
            self._runs[handle] = Run(folder, order)
            self._epochs_of(order)


def _counted(gpus: Ints) -> list[list[int]]:
    ends = np.cumsum(gpus)
    return [list(range(int(end - count), int(end))) for end, count in zip(ends, gpus, strict=True)]


def _lost_s(run: Run, done: float, kept: float, at_s: float) -> float:
    """Seconds of this run's work that a restart repeats: the part of its epochs that is not kept."""
    worked_s = max(0.0, at_s - run.order.started_s)
    since = done - run.order.base_epochs
    return worked_s * (done - kept) / since if since > 0 else worked_s
