"""A simulated cluster.

A job works at the speed its configuration gives it, epoch by epoch. Stopped, it falls back to its last checkpoint,
taken at the end of each epoch; started again, it has its GPUs for ``restart_s`` before it works. Nodes draw the power
of their class and the GPU power of the jobs on them; unused, they go to a low-power state after a while.

Two jobs may have the same GPUs. From when both have them until one leaves, each works at the speed that the ``Packing``
of its table says, and a GPU draws what the one that draws more would draw alone, of which each job's part is in
proportion to what it would draw alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from commonwatt.control.engine import (
    Capabilities,
    Change,
    Command,
    Holder,
    JobEnded,
    JobInterrupted,
    JobProgress,
    NodeView,
    Outcome,
    Reading,
    SetPower,
    Start,
    Stop,
    Stopped,
)
from commonwatt.engines.simulated.events import EventQueue, HostGpus, Priority, Scheduled
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import EngineError
from commonwatt.model.jobs import JobArrays
from commonwatt.model.nodes import Cluster, Hosts, PowerState
from commonwatt.model.packing import Packing
from commonwatt.model.units import MICRO, plural

__all__ = ["Outage", "SimulatedEngine", "World"]


@dataclass(frozen=True)
class Outage:
    """A node that is down from one time to another."""

    node: int
    from_s: float
    to_s: float


@dataclass(frozen=True)
class World:
    """What is true in the simulation, whatever the controller assumes.

    Attributes
    ----------
    restart_s
        Time a job has its GPUs before it works, if the job does not say; except at its first start.
    first_start
        Whether the first start takes it too.
    lose_work
        Whether stopping a job loses the work since its last checkpoint; without, ANDREAS' own simulator.
    unused_state, unused_after_s
        Low-power state an unused node enters, and after how long; ``None``: it stays on.
    slowdown
        Factor by which the real run time of each job exceeds that of its table, by row; none if empty.
    outages
        When nodes are down.
    hosts
        Nodes whose GPUs are on several hosts; ``None``: there are none.
    """

    restart_s: float = 0.0
    first_start: bool = False
    lose_work: bool = True
    unused_state: str | None = "off"
    unused_after_s: float = 0.0
    slowdown: Floats = field(default_factory=lambda: np.zeros(0))
    outages: tuple[Outage, ...] = ()
    hosts: Hosts | None = None


@dataclass(slots=True)
class _Running:
    handle: int
    name: str
    nodes: tuple[int, ...]
    gpus_per_node: int
    version: int
    power_limit: float
    epoch_s: float  # while it has its GPUs alone
    gpu_w: float  # likewise
    work_from_s: float
    packing: Packing | None  # as its table says
    kind: str
    beside: int | None = None  # another job with the same GPUs, by handle
    stretches: list[tuple[float, float, float]] = field(default_factory=list)  # past ones, at other speeds; see _lost_s


@dataclass(slots=True)
class _Node:
    metered_s: float = 0.0
    holders: list[Holder] = field(default_factory=list)  # in order of arrival
    state: PowerState | None = None
    changed_s: float = 0.0  # end of the transition it is in
    version: int = 0
    outages: int = 0  # current ones
    surplus_uj: int = 0  # drawn beyond its power since it was metered
    rousing: bool = False  # waking with nobody on it


class _Speeds:
    """Progress of all jobs in columns, by handle; infinite epoch time for those that do not run."""

    def __init__(self, jobs: int) -> None:
        self.base_epochs = np.zeros(jobs)  # done at the last start or change of speed, or kept at the last stop
        self.start_epochs = np.zeros(jobs)  # done at the last start, or kept at the last stop
        self.work_from_s = np.zeros(jobs)
        self.epoch_s = np.full(jobs, np.inf)
        self.epochs = np.ones(jobs)

    def grow(self, jobs: int) -> None:
        """Make room for handles below *jobs*."""
        more = jobs - len(self.epochs)
        if more > 0:
            more += len(self.epochs)  # grow by half at least: handles come one by one
            self.base_epochs = np.append(self.base_epochs, np.zeros(more))
            self.start_epochs = np.append(self.start_epochs, np.zeros(more))
            self.work_from_s = np.append(self.work_from_s, np.zeros(more))
            self.epoch_s = np.append(self.epoch_s, np.full(more, np.inf))
            self.epochs = np.append(self.epochs, np.ones(more))

    def done(self, handles: Ints | int, now_s: float) -> Floats:
        """Epochs *handles* have done at *now_s*."""
        worked = np.maximum(0.0, now_s - self.work_from_s[handles]) / self.epoch_s[handles]
        return np.asarray(np.minimum(self.base_epochs[handles] + worked, self.epochs[handles]))

    def kept(self, handles: Ints | int, now_s: float) -> Floats:
        """Epochs *handles* would continue from if they were stopped at *now_s*."""
        return np.asarray(np.maximum(self.start_epochs[handles], np.floor(self.done(handles, now_s) + 1e-9)))


class SimulatedEngine:
    """An ``Engine`` in virtual time."""

    def __init__(self, cluster: Cluster, jobs: JobArrays, world: World, *, now_s: float = 0.0) -> None:
        self.capabilities = Capabilities(preempt=True, gangs=True, energy=True, power_states=True)
        self.now_s = now_s
        self._cluster, self._world = cluster, world
        self._jobs = {name: (jobs, j) for j, name in enumerate(jobs.names)}
        self._queue = EventQueue()
        self._running: dict[int, _Running] = {}
        self._speeds = _Speeds(len(jobs))
        self._changes: list[Change] = []
        self._readings: list[Reading] = []
        self._kinds = [cluster.classes[k] for k in cluster.klass]
        self._usable: Ints = cluster.gpus
        self._free: Ints = cluster.gpus
        self._wait_s: Floats = np.zeros(len(cluster))  # to wake, once asleep
        self._left_s: Floats = np.full(len(cluster), -np.inf)  # when they last began to go to sleep
        self._changed_s: Floats = np.zeros(len(cluster))  # when they are asleep that are going to, or awake
        self._power_state: Ints = np.full(len(cluster), -1, dtype=np.int64)
        self._moving: set[int] = set()  # nodes that may be changing their power state at this moment
        self._view: NodeView | None = None  # as of the last change
        self._power_w: Floats = np.array([kind.idle_w for kind in self._kinds])
        self._nodes = [_Node(metered_s=now_s) for _ in self._kinds]
        self._started: set[int] = set()
        hosts = {} if world.hosts is None else world.hosts.gpus
        self._host_gpus = {n: HostGpus(hosts[name]) for n, name in enumerate(cluster.names) if name in hosts}
        self._version = 0
        for node in range(len(cluster)):
            self._left_alone(node)
        for outage in world.outages:
            self._queue.push(outage.from_s, Priority.NODE_DOWN, outage.node)
            self._queue.push(outage.to_s, Priority.NODE_UP, outage.node)

    def add(self, jobs: JobArrays, last_handle: int) -> None:
        """Add jobs, whose handles are *last_handle* at most."""
        self._jobs |= {name: (jobs, j) for j, name in enumerate(jobs.names)}
        self._speeds.grow(last_handle + 1)

    def _row_of(self, name: str) -> tuple[JobArrays, int]:
        """Return the table of a job, and its row."""
        return self._jobs[name]

    # -- the Engine interface

    def nodes(self) -> NodeView:
        """State of the nodes."""
        if self._view is None or self._moving:
            wait_s, moving = self._wait_s.copy(), np.fromiter(self._moving, dtype=np.int64, count=len(self._moving))
            left_s, until_s = self._left_s[moving], self._changed_s[moving] - self.now_s
            wait_s[moving] = np.where(left_s < self.now_s, wait_s[moving] + np.maximum(0.0, until_s), 0.0)
            self._moving.difference_update(moving[(until_s <= 0) & (left_s < self.now_s)].tolist())
            self._view = NodeView(self._usable.copy(), wait_s, self._power_state.copy())
        return self._view

    def progress(self, handles: Ints) -> JobProgress:
        """Progress of *handles* now."""
        speeds, now_s = self._speeds, self.now_s
        done = speeds.done(handles, now_s)
        running = np.isfinite(speeds.epoch_s[handles])
        kept = speeds.kept(handles, now_s) if self._world.lose_work else done
        until_s = np.where(running, np.maximum(0.0, speeds.work_from_s[handles] - now_s), 0.0)
        return JobProgress(done, kept, until_s)

    def poll(self) -> Sequence[Change]:
        """What changed since the last poll."""
        changes, self._changes = self._changes, []
        return changes

    def apply(self, commands: Sequence[Command]) -> Sequence[Stopped]:
        """Execute *commands*; raises ``EngineError`` on one that is impossible."""
        stopped = []
        waiting = [command for command in commands if isinstance(command, Start)] if self._host_gpus else []
        for command in commands:
            if waiting and isinstance(command, Start):
                self._enter_hosts(waiting)
                waiting = []
            if isinstance(command, Stop):
                stopped.append(self._stop(command.handle))
            elif isinstance(command, SetPower):
                self._set_power(command)
            else:
                self._start(command)
        return stopped

    def readings(self, *, up_to_now: bool = False) -> Sequence[Reading]:
        """Readings closed since the last call; with *up_to_now*, those of all nodes up to this moment."""
        if up_to_now:
            for node in range(len(self._nodes)):
                self._meter(node)
        readings, self._readings = self._readings, []
        return readings

    def power_w(self) -> float:
        """Power of the cluster now."""
        return float(self._power_w.sum())

    # -- virtual time

    def next_s(self) -> float | None:
        """When the next event is."""
        return self._queue.next_s()

    def advance(self, time_s: float) -> None:
        """Advance to *time_s*, or to the first moment at which there is something to report."""
        while (upcoming := self._queue.next_s()) is not None and upcoming <= time_s:
            if self._has_news() and upcoming > self.now_s:
                return
            self.now_s = max(self.now_s, upcoming)
            self._happen(self._queue.pop())
        if not self._has_news():
            self.now_s = max(self.now_s, time_s)

    def _has_news(self) -> bool:
        return bool(self._changes)

    def _happen(self, event: Scheduled) -> None:
        match event.priority:
            case Priority.JOB_END:
                job = self._running.get(event.subject)
                if job is not None and job.version == event.version:
                    self._vacate(job)
                    self._changes.append(JobEnded(job.handle, self.now_s, Outcome.COMPLETED))
            case Priority.POWER:
                if self._nodes[event.subject].version == event.version:
                    self._power_event(event.subject)
            case Priority.NODE_DOWN:
                self._fail(event.subject)
            case Priority.NODE_UP:
                self._repair(event.subject)

    # -- jobs

    def _enter_hosts(self, commands: Sequence[Start]) -> None:
        """Choose the GPUs of jobs about to start on hosts; others whose GPUs per host change are started again."""
        starting: dict[int, dict[int, int]] = {}
        for command in commands:
            if command.nodes[0] in self._host_gpus:
                starting.setdefault(command.nodes[0], {})[command.handle] = command.gpus_per_node
        for n, gpus in starting.items():
            for handle in self._host_gpus[n].enter(gpus):
                job = self._running[handle]
                self._interrupt(job, stays=True)
                self._start(Start(handle, job.name, job.nodes, job.gpus_per_node, job.power_limit))

    def _start(self, command: Start) -> None:
        if command.handle in self._running:
            msg = f"start {command.name}: it is running already"
            raise EngineError(msg)
        other = self._sharer(command)
        for n in command.nodes if other is None else ():
            if self._free[n] < command.gpus_per_node:
                name = self._cluster.names[n]
                msg = f"start {command.name}: node {name} has {self._free[n]} GPUs free, not {command.gpus_per_node}"
                raise EngineError(msg)
        table, row = self._row_of(command.name)
        kind = self._kinds[command.nodes[0]]
        gpus = len(command.nodes) * command.gpus_per_node
        config = _config(table, row, kind.gpu_type, gpus, command.power_limit)
        own_w = table.config_gpu_w[config]
        ready_s = max(self._wake(n) for n in command.nodes)
        again = self._world.first_start or command.handle in self._started
        work_from_s = ready_s + (self._restart_s(table, row) if again else 0.0)
        slowdown = self._world.slowdown[row] if len(self._world.slowdown) else 1.0
        epochs = float(table.epochs[row])
        epoch_s = self._time_s(command, table, row, config) / epochs * float(slowdown)
        gpu_w = kind.gpu_w if np.isnan(own_w) else float(own_w)
        self._started.add(command.handle)
        self._version += 1
        job = self._running[command.handle] = _Running(
            command.handle, command.name, command.nodes, command.gpus_per_node, self._version, command.power_limit,
            epoch_s, gpu_w, work_from_s, table.packing, table.kinds[row],
        )  # fmt: skip
        self._speeds.work_from_s[command.handle] = work_from_s
        self._speeds.epoch_s[command.handle] = epoch_s
        self._speeds.epochs[command.handle] = epochs
        for n in command.nodes:
            self._meter(n)
            self._free[n] -= command.gpus_per_node if other is None else 0
            self._nodes[n].holders.append(Holder(command.handle, command.gpus_per_node, gpu_w, work_from_s))
            self._draw(n)
        if other is not None:
            job.beside, other.beside = other.handle, job.handle
            self._pace(other)
            self._pace(job)
            return
        left = epochs - self._speeds.base_epochs[command.handle]
        self._queue.push(work_from_s + left * epoch_s, Priority.JOB_END, command.handle, self._version)

    def _sharer(self, command: Start) -> _Running | None:
        """Return the job whose GPUs *command* is to share; ``None``: it gets its own."""
        other = None if command.beside is None else self._running.get(command.beside)
        if other is None:
            return None
        alike = (other.nodes, other.gpus_per_node) == (command.nodes, command.gpus_per_node)
        if not alike or other.beside is not None or other.packing is None:
            msg = f"start {command.name}: it cannot have the GPUs of {other.name}"
            raise EngineError(msg)
        return other

    def _pace(self, job: _Running) -> None:
        """Let *job*, to which another has come or which is left alone, work and draw power accordingly from now on."""
        speeds, h = self._speeds, job.handle
        other = None if job.beside is None else self._running[job.beside]
        job.stretches.append((float(speeds.base_epochs[h]), float(speeds.epoch_s[h]), 1.0 if other else 0.5))
        speeds.base_epochs[h] = speeds.done(h, self.now_s)
        speeds.work_from_s[h] = max(self.now_s, job.work_from_s)
        speeds.epoch_s[h], gpu_w = job.epoch_s, job.gpu_w
        if other is not None:
            assert job.packing is not None
            speeds.epoch_s[h] /= job.packing.speed(job.kind, other.kind)
            both_w = job.gpu_w + other.gpu_w
            gpu_w = max(job.gpu_w, other.gpu_w) * (job.gpu_w / both_w if both_w > 0 else 0.5)
        for n in job.nodes:
            self._meter(n)
            holders = self._nodes[n].holders
            k = next(k for k, holder in enumerate(holders) if holder.handle == h)
            holders[k] = Holder(h, job.gpus_per_node, gpu_w, job.work_from_s, job.beside)
            self._draw(n)
        self._version += 1
        job.version = self._version
        left = speeds.epochs[h] - speeds.base_epochs[h]
        self._queue.push(float(speeds.work_from_s[h] + left * speeds.epoch_s[h]), Priority.JOB_END, h, job.version)

    def _lost_s(self, job: _Running, kept: float, done: float) -> float:
        """Return the seconds that *job* worked on the epochs from *kept* to *done*; those on shared GPUs count half.

        Each stretch of it at one speed is the epochs done before, the time of an epoch, and how its seconds count.
        """
        speeds, h = self._speeds, job.handle
        now = float(speeds.base_epochs[h]), float(speeds.epoch_s[h]), 1.0 if job.beside is None else 0.5
        lost_s = 0.0
        for from_epochs, epoch_s, counted in (now, *reversed(job.stretches)):
            lost_s += max(0.0, done - max(from_epochs, kept)) * epoch_s * counted
            done = min(done, from_epochs)
        return lost_s

    def _restart_s(self, table: JobArrays, row: int) -> float:
        own_s = table.restart_s[row] if len(table.restart_s) else np.nan
        return self._world.restart_s if np.isnan(own_s) else float(own_s)

    def _time_s(self, command: Start, table: JobArrays, row: int, config: int) -> float:
        """Run time of the whole job where it starts."""
        usual_s = float(table.config_time_s[config])
        if self._world.hosts is None or command.nodes[0] not in self._host_gpus:
            return usual_s
        counts = self._host_gpus[command.nodes[0]].counts(command.handle)
        return self._world.hosts.times_s.get(
            (table.kinds[row], self._kinds[command.nodes[0]].gpu_type, counts), usual_s
        )

    def _stop(self, handle: int) -> Stopped:
        job = self._running.get(handle)
        if job is None:
            msg = f"stop job {handle}: it is not running"
            raise EngineError(msg)
        return Stopped(handle, self._interrupt(job))

    def _interrupt(self, job: _Running, *, stays: bool = False) -> float:
        """Take *job* off its nodes, or (it *stays*) only stop it there; returns the seconds of work lost."""
        speeds = self._speeds
        done = float(speeds.done(job.handle, self.now_s))
        kept = float(speeds.kept(job.handle, self.now_s)) if self._world.lose_work else done
        lost_s = self._lost_s(job, kept, done)
        self._vacate(job, stays=stays)
        speeds.base_epochs[job.handle] = speeds.start_epochs[job.handle] = kept
        return lost_s

    def _vacate(self, job: _Running, *, stays: bool = False) -> None:
        del self._running[job.handle]
        if job.nodes[0] in self._host_gpus and not stays:
            self._host_gpus[job.nodes[0]].leave(job.handle)
        self._speeds.epoch_s[job.handle] = np.inf
        other = None if job.beside is None else self._running[job.beside]
        for n in job.nodes:
            self._meter(n)
            node = self._nodes[n]
            node.holders = [holder for holder in node.holders if holder.handle != job.handle]
            self._free[n] += job.gpus_per_node if other is None else 0
            self._draw(n)
            if not node.holders:
                self._left_alone(n)
        if other is not None:
            other.beside = None
            self._pace(other)

    # -- nodes

    def _draw(self, n: int) -> None:
        """Set the power of node *n*, which is on."""
        busy_w = sum(holder.gpus * holder.gpu_w for holder in self._nodes[n].holders)
        self._power_w[n] = self._kinds[n].idle_w + busy_w

    def _meter(self, n: int) -> None:
        """Close the reading of node *n* at this moment."""
        node = self._nodes[n]
        if self.now_s <= node.metered_s:
            return
        energy_uj = round(float(self._power_w[n]) * MICRO * (self.now_s - node.metered_s)) + node.surplus_uj
        waking = node.changed_s >= self.now_s
        asleep = node.state is not None and node.metered_s >= node.changed_s
        holders = tuple(node.holders)
        self._readings.append(Reading(n, node.metered_s, self.now_s, energy_uj, holders, waking, asleep))
        node.surplus_uj = 0
        node.metered_s = self.now_s

    def _left_alone(self, n: int) -> None:
        """Node *n* has become unused: schedule its sleep."""
        if self._world.unused_state is None or not self._kinds[n].states:
            return
        node = self._nodes[n]
        self._version += 1
        node.version = self._version
        self._queue.push(self.now_s + self._world.unused_after_s, Priority.POWER, n, node.version)

    def _power_event(self, n: int) -> None:
        """Node *n* has entered its state, is awake, or has been unused for long enough."""
        node = self._nodes[n]
        if node.state is not None:
            self._meter(n)
            self._power_w[n] = node.state.power_w
        elif node.rousing:
            node.rousing = False
            self._meter(n)
            self._left_alone(n)
        elif self._world.unused_state is not None and self._usable[n] and not node.holders:
            self._sleep(n, self._world.unused_state)

    def _set_power(self, command: SetPower) -> None:
        n, node, name = command.node, self._nodes[command.node], self._cluster.names[command.node]
        if not self._usable[n]:
            msg = f"power of node {name}: it is down"
            raise EngineError(msg)
        if command.state is None:
            if node.state is not None:
                ready_s = self._wake(n)
                self._version += 1
                node.version, node.rousing = self._version, True
                self._queue.push(ready_s, Priority.POWER, n, node.version)
            return
        if node.state is not None and node.state.name == command.state:
            return
        if node.holders or node.state is not None or node.changed_s > self.now_s:
            msg = f"put node {name} to {command.state}: it is {'used' if node.holders else 'not on'}"
            raise EngineError(msg)
        self._version += 1
        node.version = self._version
        self._sleep(n, command.state)

    def _sleep(self, n: int, state: str) -> None:
        """Let node *n*, which is on, enter *state*, which takes a while at idle power."""
        node = self._nodes[n]
        self._meter(n)
        node.state = self._kinds[n].state(state)
        self._moves(n)
        self._power_state[n] = self._kinds[n].states.index(node.state)
        self._left_s[n] = self.now_s
        node.changed_s = self.now_s + node.state.enter_s
        self._wait_s[n], self._changed_s[n] = node.state.wake_s, node.changed_s
        if node.state.enter_s > 0:
            self._queue.push(node.changed_s, Priority.POWER, n, node.version)
        else:
            self._power_w[n] = node.state.power_w

    def _wake(self, n: int) -> float:
        """Wake node *n* unless it is on; returns when it is ready: at once, if it began to sleep at this moment."""
        node = self._nodes[n]
        node.version, node.rousing = -1, False  # no longer about to sleep
        if node.state is not None:
            self._meter(n)
            if self._left_s[n] < self.now_s:
                node.changed_s = max(self.now_s, node.changed_s) + node.state.wake_s
                node.surplus_uj += round(node.state.wake_j * MICRO)
            else:
                node.changed_s = self.now_s
            node.state = None
            self._moves(n)
            self._power_state[n] = -1
            self._wait_s[n], self._changed_s[n] = 0.0, node.changed_s
            self._draw(n)
        return max(self.now_s, node.changed_s)

    def _moves(self, n: int) -> None:
        """Take note that the state of node *n* changes."""
        self._view = None
        self._moving.add(n)

    def _fail(self, n: int) -> None:
        node = self._nodes[n]
        node.outages += 1
        self._meter(n)
        for holder in node.holders:
            lost_s = self._interrupt(self._running[holder.handle])
            cause = f"node {self._cluster.names[n]} went down"
            self._changes.append(JobInterrupted(holder.handle, self.now_s, lost_s, cause))
        self._moves(n)
        node.version, node.rousing, node.state, node.changed_s = -1, False, None, self.now_s
        self._power_w[n] = self._wait_s[n] = self._changed_s[n] = 0.0
        self._power_state[n] = -1
        self._usable[n] = self._free[n] = 0

    def _repair(self, n: int) -> None:
        self._nodes[n].outages -= 1
        if self._nodes[n].outages:
            return
        self._meter(n)
        self._moves(n)
        self._usable[n] = self._free[n] = self._kinds[n].gpus
        self._draw(n)
        self._left_alone(n)


def _config(table: JobArrays, row: int, gpu_type: str, gpus: int, power_limit: float) -> int:
    for c in range(int(table.start[row]), int(table.start[row + 1])):
        alike = table.config_gpus[c] == gpus and table.gpu_types[table.config_type[c]] == gpu_type
        if alike and table.power_limit_of(c) == power_limit:
            return c
    limited = "" if power_limit == 1.0 else f" with {power_limit:.0%} of their highest power"
    msg = f"start {table.names[row]}: it cannot run on {plural(gpus, 'GPU')} of {gpu_type}{limited}"
    raise EngineError(msg)
