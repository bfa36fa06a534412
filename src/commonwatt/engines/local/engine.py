"""An ``Engine`` whose jobs are processes on this machine.

Nodes are declared: each has a number of slots, which are GPUs where there are any (``CUDA_VISIBLE_DEVICES``), else
just a limit on jobs that run side by side. Every run and its end are on disk (``folder``): after a crash, another
engine on the same folder continues.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from commonwatt.control.engine import Capabilities, Change, NodeView, RecordedRun, SetPower, Start
from commonwatt.engines.hosting_engine import HostingEngine
from commonwatt.engines.local.folder import End, RunFolder
from commonwatt.engines.local.run import PATIENCE_S, LocalRun, await_any, reap
from commonwatt.engines.meters import Since, catch_up
from commonwatt.engines.model_servers import Hosting, LocalServers, stop_services
from commonwatt.engines.recorded_engine import check_free
from commonwatt.engines.run_history import RunPlanner
from commonwatt.engines.run_spec import Images, JobWork, RunSpec
from commonwatt.engines.state_folder import fence_in
from commonwatt.model.arrays import Ints
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.model.nodes import Cluster

__all__ = ["LocalEngine", "near_each_other"]

log = logging.getLogger("commonwatt.engines")


class LocalEngine(HostingEngine[LocalRun]):
    """Jobs as processes on this machine.

    Parameters
    ----------
    cluster
        The declared nodes.
    state
        Folder of its own, made if need be; one engine at a time.
    work_of
        Returns the work of the job of a given name.
    slots
        GPU indices of each node; counted through if not given.
    grace_s
        Time between asking a job to stop and killing it.
    node_energy_j
        Reading of a node's meter, joules; energy is unknown if there is none.
    images
        How jobs that name an image are run; they cannot be if not given.
    declared_power
        Use the declared power where there is no meter.
    since
        How an earlier engine read each node's meter last (``marks``).
    now_s, steady_s
        The time, and a monotonic clock.
    hosting
        What GPUs may be shared for; none are if not given.
    """

    def __init__(
        self, cluster: Cluster, state: Path, work_of: Callable[[str], JobWork], *,
        slots: Sequence[Sequence[int]] | None = None, grace_s: float = 10.0,
        node_energy_j: Callable[[int], float] | None = None, images: Images | None = None,
        declared_power: bool = False, since: Since | None = None, now_s: Callable[[], float] = time.time,
        steady_s: Callable[[], float] = time.monotonic, hosting: Hosting | None = None,
    ) -> None:  # fmt: skip
        energy = node_energy_j is not None or declared_power
        self.capabilities = Capabilities(
            preempt=True, gangs=True, energy=energy, deferred_stop=True, stop_s=grace_s + PATIENCE_S, prune=True,
            measures_shared=hosting is not None,
        )  # fmt: skip
        super().__init__(
            cluster, state, work_of, node_energy_j=node_energy_j, declared_power=declared_power, now_s=now_s,
            steady_s=steady_s,
        )  # fmt: skip
        self._slots = [list(own) for own in slots] if slots is not None else _counted(cluster.gpus)
        self._planner = RunPlanner(
            cluster, self._reports, self._history, images or Images(), grace_s, now_s, fence=fence_in(self._state)
        )
        (self._state / "jobs").mkdir(parents=True, exist_ok=True)
        if hosting is not None:
            self._host(hosting, self._slots, LocalServers(self._free))
        self._attach(since or {})
        self._supervise()

    # -- the Engine interface

    def nodes(self) -> NodeView:
        """All nodes are always on; a run that cannot be killed keeps its GPUs."""
        nodes, usable = len(self._cluster), self._cluster.gpus.copy()
        for run in self._runs.values():
            if run.stuck():
                usable[list(run.spec.nodes)] -= run.spec.gpus_per_node
        states, up = np.full(nodes, -1, dtype=np.int64), np.ones(nodes, dtype=bool)
        return NodeView(usable, np.zeros(nodes), states, up=up)

    def poll(self) -> Sequence[Change]:
        """What changed since the last poll."""
        for handle, run in list(self._runs.items()):
            if (end := run.glance()) is not None:
                self._vacate(handle)
                end = end.timely(run.spec, self._now_s())
                self._changes.append(self._reports.change(run.spec, end, begun=run.folder.begun(end)))
        self._look_at_devices()
        self._tend_front()
        reap()
        changes, self._changes = self._changes, []
        return changes

    def request_stop(self, handles: Collection[int]) -> Collection[int]:
        """Ask jobs to stop; returns those whose runner can be reached."""
        runs = {handle: self._runs[handle] for handle in handles if handle in self._runs}
        for run in runs.values():
            run.terminate()
        return [handle for handle, run in runs.items() if run.watched >= 0 or run.orphaned_s is not None]

    def has_room(self, nodes: Collection[int], gpus_per_node: int, job: int | None = None) -> bool:  # noqa: ARG002
        """Whether so many GPUs of each of *nodes* are free."""
        return all(len(self._free_for_jobs(n)) >= gpus_per_node for n in nodes)

    # -- what survives a controller

    def recorded_runs(self) -> Sequence[RecordedRun]:
        """Return every job ever started here."""
        return self._history.recorded_runs({handle: run.spec for handle, run in self._runs.items()})

    def close(self) -> None:
        """Close what this process has open; running jobs keep running."""
        for run in self._runs.values():
            run.unwatch()
        self._leave_services()

    def wait(self, seconds: float, waker: int = -1) -> None:
        """Return after so long, as soon as a job has ended, or when *waker* is readable."""
        own = [] if self._shared is None else [*self._shared.runs(), self._shared.front]
        if not self._changes and not self.has_shared_news():
            await_any([*self._runs.values(), *(run for run in own if run is not None)], seconds, waker)

    # -- jobs

    def _start(self, command: Start) -> None:
        if self._has_ended(command):
            return
        slots = []
        for n in command.nodes:
            free = self._free_for_jobs(n)
            check_free(command, self._cluster.names[n], len(free))
            slots.append(near_each_other(self._slots[n], free, command.gpus_per_node))
        gpus = ",".join(str(slot) for row in slots for slot in row)
        visible = {"CUDA_VISIBLE_DEVICES": gpus, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        spec = self._planner.spec(command, tuple(slots), visible)
        folder = RunFolder.create(self._state / "runs", spec)
        self._history.add(spec)
        self._meter(command.nodes)
        run = self._runs[command.handle] = LocalRun(folder, spec)
        run.launch()

    def _set_power(self, command: SetPower) -> None:
        msg = f"node {self._cluster.names[command.node]}: this machine is not put to sleep"
        raise EngineError(msg)

    def _end_of(self, run: LocalRun) -> End | None:
        return run.folder.end()

    def _await_end(self, run: LocalRun) -> End:
        return run.await_end().timely(run.spec, self._now_s())

    def _vacate(self, handle: int) -> None:
        run = self._runs[handle]
        self._meter(run.spec.nodes)
        del self._runs[handle]
        run.close()

    # -- nodes

    def _free(self, n: int) -> list[int]:
        taken = {
            slot
            for run in self._runs.values()
            for node, slots in zip(run.spec.nodes, run.spec.slots, strict=True)
            if node == n
            for slot in slots
        }
        if self._shared is None:
            return [slot for slot in self._slots[n] if slot not in taken]
        taken |= self._shared.taken(n)
        return [slot for slot in self._slots[n] if slot not in taken]

    def _free_for_jobs(self, n: int) -> list[int]:
        """Return the free slots that no shared GPU waits for."""
        free = self._free(n)
        return free if self._shared is None else free[self._shared.waiting(n) :]

    def _attach(self, since: Since) -> None:
        """Take over the runs of an earlier engine: those that ended unnoticed are reported."""
        spans, now_s = [], self._now_s()
        ended: dict[int, tuple[RunFolder, RunSpec, End]] = {}
        for folder, recorded in RunFolder.all_in(self._state / "runs"):
            spec, end = recorded.placed(self._cluster.names), folder.end()
            self._history.add(spec)
            if end is None:
                self._runs[spec.handle] = LocalRun(folder, spec)
                spans.append((spec.started_s, math.inf, spec))
            else:
                ended[spec.handle] = folder, spec, end.timely(spec, now_s)
                spans.append((spec.started_s, ended[spec.handle][2].at_s, spec))
            self._reports.add(spec)
        spans += self._service_spans()
        catch_up(self._meters, self._cluster, since, spans)
        for handle in ended.keys() - self._runs.keys():
            folder, spec, end = ended[handle]
            self._changes.append(self._reports.change(spec, end, begun=folder.begun(end)))

    def evict_unplaced(self, *, dry: bool) -> Collection[int]:
        """Stop runs of an earlier engine in places the configuration lacks; in a *dry* run they keep running."""
        unplaced = [handle for handle, run in self._runs.items() if not self._has_place(run.spec)]
        if dry:
            return unplaced
        if self._shared is None:
            stop_services(self._state)  # of an earlier configuration
        for handle in unplaced:
            self._runs[handle].terminate()
        for handle in unplaced:
            run = self._runs[handle]
            try:
                end = self._await_end(run)
            except EngineDownError:
                raise
            except EngineError as error:  # it blocks only its own next run
                extra = {"job": handle, "cause": str(error)}
                log.warning("a run without a place in the configuration cannot be stopped", extra=extra)
                continue
            self._vacate(handle)
            end = replace(end, cause="its place is not in the configuration any more") if end.stopped else end
            self._changes.append(self._reports.change(run.spec, end))
        return unplaced

    def _has_place(self, spec: RunSpec) -> bool:
        places = zip(spec.nodes, spec.slots, strict=True)
        return bool(spec.nodes) and all(set(slots) <= set(self._slots[n]) for n, slots in places)


def _counted(gpus: Ints) -> list[list[int]]:
    ends = np.cumsum(gpus)
    return [list(range(int(end - count), int(end))) for end, count in zip(ends, gpus, strict=True)]


def near_each_other(slots: Sequence[int], free: Sequence[int], count: int) -> tuple[int, ...]:
    """Return *count* of the *free* slots of a node, which has *slots*, that are likely to be near each other.

    GPUs numbered by PCI bus share switches and NVLink islands by pairs, fours and eights. So they are taken from the
    smallest such block that has enough, and of several from the one with the least to spare.
    """
    size = 1
    while size < len(slots):
        blocks = [[slot for slot in slots[k : k + size] if slot in free] for k in range(0, len(slots), size)]
        enough = [block for block in blocks if len(block) >= count]
        if enough:
            return tuple(min(enough, key=len)[:count])
        size *= 2
    return tuple(free[:count])
