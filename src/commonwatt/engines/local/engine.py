"""An ``Engine`` whose jobs are processes on this machine.

Nodes are declared: each has so many slots, which are GPUs where there are any (``CUDA_VISIBLE_DEVICES``), else just
a number of jobs that may run side by side. What was ordered and how it ended is on disk (``folder.py``), so another
engine on the same folder, after a crash of the first, goes on where that was: ``found`` tells what it found.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from commonwatt.control.engine import (
    Capabilities,
    Change,
    Command,
    Found,
    JobEnded,
    NodeView,
    Progress,
    Reading,
    SetPower,
    Start,
    Stop,
    Stopped,
)
from commonwatt.engines.images import Images
from commonwatt.engines.local.folder import End, RunFolder, RunOrder
from commonwatt.engines.local.run import PATIENCE_S, Run, await_any, reap
from commonwatt.engines.meters import DeclaredPower, Mark, Meters, Since, catch_up, holders_of
from commonwatt.engines.orders import Orders
from commonwatt.engines.past import Past
from commonwatt.engines.reports import Reports
from commonwatt.engines.work import Work
from commonwatt.model.arrays import Ints
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.model.nodes import Cluster

__all__ = ["LocalEngine"]

log = logging.getLogger("commonwatt.engines")


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
    images
        How jobs that name an image are run; they cannot be if not given.
    declared_power
        Take the power the cluster declares for a meter where there is none.
    since
        When nodes were read last by an engine before this one, and what their meters said (``marks``).
    now_s, steady_s
        The time, and a clock nobody sets.
    """

    def __init__(
        self, cluster: Cluster, state: Path, work_of: Callable[[str], Work], *,
        slots: Sequence[Sequence[int]] | None = None, grace_s: float = 10.0,
        node_energy_j: Callable[[int], float] | None = None, images: Images | None = None,
        declared_power: bool = False, since: Since | None = None, now_s: Callable[[], float] = time.time,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        energy = node_energy_j is not None or declared_power
        self.capabilities = Capabilities(preempt=True, gangs=True, energy=energy)
        self._cluster, self._state, self._grace_s = cluster, state.absolute(), grace_s
        self._slots = [list(own) for own in slots] if slots is not None else _counted(cluster.gpus)
        self._reports = Reports(self._state / "jobs", work_of)
        self._declared = DeclaredPower(cluster) if declared_power and node_energy_j is None else None
        self._meters = Meters(len(cluster), node_energy_j, self._declared, now_s=now_s, steady_s=steady_s)
        self._now_s = now_s
        self._runs: dict[int, Run] = {}  # running, or ended but not yet reported
        self._past = Past(self._state, self._reports, now_s)
        self._orders = Orders(cluster, self._reports, self._past, images or Images(), grace_s, now_s)
        self._changes: list[Change] = []
        (self._state / "jobs").mkdir(parents=True, exist_ok=True)
        self._attach(since or {})

    # -- the Engine interface

    def nodes(self) -> NodeView:
        """All nodes are always on; what cannot be killed keeps its GPUs from others."""
        nodes, usable = len(self._cluster), self._cluster.gpus.copy()
        for run in self._runs.values():
            if run.stuck():
                usable[list(run.order.nodes)] -= run.order.gpus_per_node
        states, up = np.full(nodes, -1, dtype=np.int64), np.ones(nodes, dtype=bool)
        return NodeView(usable, np.zeros(nodes), states, up=up)

    def progress(self, handles: Ints) -> Progress:
        """Epochs as the jobs report them; nothing is known of how soon they begin to work."""
        return self._reports.progress(handles, self._order_of)

    def poll(self) -> Sequence[Change]:
        """What changed since the last poll."""
        for handle, run in list(self._runs.items()):
            if (end := run.glance()) is not None:
                self._vacate(handle)
                end = end.timely(run.order, self._now_s())
                self._changes.append(self._reports.change(run.order, end, begun=run.folder.begun(end)))
        reap()
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

    @property
    def stop_s(self) -> float:
        """How long a job that was told may take to be gone."""
        return self._grace_s + PATIENCE_S

    def tell(self, handles: Collection[int]) -> Collection[int]:
        """Tell jobs to stop; those of whose runner nothing is known (yet) may not have heard it."""
        runs = {handle: self._runs[handle] for handle in handles if handle in self._runs}
        for run in runs.values():
            run.tell()
        return [handle for handle, run in runs.items() if run.watched >= 0 or run.orphaned_s is not None]

    def room(self, nodes: Collection[int], gpus_per_node: int) -> bool:
        """Whether so many GPUs of each of *nodes* are free."""
        return all(len(self._free(n)) >= gpus_per_node for n in nodes)

    def readings(self, *, up_to_now: bool = False) -> Sequence[Reading]:
        """Readings closed since the last call; with *up_to_now*, those of all nodes up to this moment."""
        if up_to_now:
            for node in range(len(self._cluster)):
                self._meter(node)
        return self._meters.take()

    def power_w(self) -> float | None:
        """Return the declared power, where that stands for a meter; unknown otherwise: meters read energy."""
        if self._declared is None:
            return None
        orders = [run.order for run in self._runs.values()]
        nodes = range(len(self._cluster))
        return sum(self._declared(n, holders_of(self._cluster, n, orders), asleep=False) for n in nodes)

    # -- what an engine adds that survives its controller

    def found(self) -> Sequence[Found]:
        """Every job that was ever ordered here, as it stands: for a controller that has just come (back) to life."""
        return self._past.found({handle: run.order for handle, run in self._runs.items()})

    def attempts(self, handle: int) -> int:
        """How often a job was ordered to run."""
        return self._past.next_attempt(handle) - 1

    def remembered(self) -> Sequence[int]:
        """Return the jobs that do not run."""
        return self._past.others(self._runs)

    def forget(self, handles: Collection[int], *, aside: bool = False) -> None:
        """Delete the records of runs of jobs that do not run, or move them *aside* with all these jobs have left."""
        gone = self._past.forget(set(handles) - self._runs.keys(), aside=aside)
        self._changes = [change for change in self._changes if change.handle not in gone]

    def close(self) -> None:
        """Let go of what runs; it goes on."""
        for run in self._runs.values():
            run.forsake()

    def marks(self) -> dict[int, Mark]:
        """Return when each node was read last, and what its meter said: for the engine after this one."""
        return {n: self._meters.mark(n) for n in range(len(self._cluster))}

    def wait(self, seconds: float, waker: int = -1) -> None:
        """Return after so long, as soon as a job has ended, or when *waker* is readable."""
        if not self._changes:
            await_any(self._runs.values(), seconds, waker)

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
        gpus = ",".join(str(slot) for row in slots for slot in row)
        visible = {"CUDA_VISIBLE_DEVICES": gpus, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        order = self._orders.order(command, tuple(slots), visible)
        if not Path(order.folder).is_dir():
            msg = f"start {command.name}: its folder {order.folder} is not there"
            raise EngineError(msg)
        folder = RunFolder.create(self._state / "runs", order)
        self._past.note(order)
        for n in command.nodes:
            self._meter(n)
        run = self._runs[command.handle] = Run(folder, order)
        run.launch()

    def _stop(self, handle: int) -> Stopped:
        run = self._runs.get(handle)
        if run is None:
            msg = f"stop job {handle}: it is not running"
            raise EngineError(msg)
        end = run.await_end().timely(run.order, self._now_s())
        self._vacate(handle)
        if self._reports.by_itself(run.order, end):
            self._changes.append(self._reports.change(run.order, end))
            return Stopped(handle, 0.0)
        return Stopped(handle, self._reports.interrupted(run.order, end.at_s, end.ran_s))

    def _order_of(self, handle: int) -> RunOrder | None:
        return self._runs[handle].order if handle in self._runs else None

    def _vacate(self, handle: int) -> None:
        run = self._runs[handle]
        for n in run.order.nodes:
            self._meter(n)
        del self._runs[handle]
        run.close()

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
        self._meters.close(n, holders_of(self._cluster, n, [run.order for run in self._runs.values()]))

    def _attach(self, since: Since) -> None:
        """Take up what an engine before us left: what runs, and what ended without anybody noticing is reported."""
        spans, now_s = [], self._now_s()
        ended: dict[int, tuple[RunFolder, RunOrder, End]] = {}
        for folder, ordered in RunFolder.all_in(self._state / "runs"):
            order, end = ordered.placed(self._cluster.names), folder.end()
            self._past.note(order)
            if end is None:
                self._runs[order.handle] = Run(folder, order)
                spans.append((order.started_s, math.inf, order))
            else:
                ended[order.handle] = folder, order, end.timely(order, now_s)
                spans.append((order.started_s, ended[order.handle][2].at_s, order))
            self._reports.know(order)
        catch_up(self._meters, self._cluster, since, spans)
        for handle in ended.keys() - self._runs.keys():
            folder, order, end = ended[handle]
            self._changes.append(self._reports.change(order, end, begun=folder.begun(end)))

    def clear_out(self, *, dry: bool) -> Collection[int]:
        """Return what an engine before us started in a place that is not in the configuration any more, stopped or not.

        In a *dry* run it goes on.
        """
        gone = [handle for handle, run in self._runs.items() if not self._has_place(run.order)]
        if dry:
            return gone
        for handle in gone:
            self._runs[handle].tell()
        for handle in gone:
            run = self._runs[handle]
            try:
                end = run.await_end().timely(run.order, self._now_s())
            except EngineDownError:
                raise
            except EngineError as error:  # it is in nobody's way but that of its own next run
                log.warning("what has no place any more goes on", extra={"job": handle, "cause": str(error)})
                continue
            self._vacate(handle)
            told = replace(end, cause="its place is not in the configuration any more") if end.stopped else end
            self._changes.append(self._reports.change(run.order, told))
        return gone

    def _has_place(self, order: RunOrder) -> bool:
        places = zip(order.nodes, order.slots, strict=True)
        return bool(order.nodes) and all(set(slots) <= set(self._slots[n]) for n, slots in places)


def _counted(gpus: Ints) -> list[list[int]]:
    ends = np.cumsum(gpus)
    return [list(range(int(end - count), int(end))) for end, count in zip(ends, gpus, strict=True)]
