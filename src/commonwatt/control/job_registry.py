"""Every job of the controller: its configurations, its progress, where it runs.

Columns grow as jobs are submitted; a job's handle is its row. ``problem`` compiles the placement problem of a tick
from active jobs only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from commonwatt.control.engine import JobProgress, NodeRoom, NodeView
from commonwatt.control.run_time_estimates import Remaining
from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.electricity import Tariff
from commonwatt.model.errors import JobNeverFitsError
from commonwatt.model.jobs import JobArrays, Received
from commonwatt.model.nodes import Cluster
from commonwatt.model.packing import GpuFootprint, PackableJobs, Packing
from commonwatt.model.units import plural
from commonwatt.placement import Background, PlacementProblem, Schedule

__all__ = ["JobRegistry", "Rules", "Shortage", "Status"]

_LITTLE = 1e-6  # of a resource: what adding and subtracting may leave


class Status(IntEnum):
    """Where a job is in its life."""

    WAITING = 0
    RUNNING = 1
    COMPLETED = 2
    FAILED = 3
    CANCELLED = 4


@dataclass(frozen=True)
class Rules:
    """When the controller decides, and what it assumes a restart to cost.

    Attributes
    ----------
    interval_s
        H: time between rescheduling points; submissions and completions cause one as well.
    postponement_penalty
        rho of eq. (1).
    restart_s
        Time a job has its GPUs before it works again when it is started from a checkpoint.
    preempt
        Whether running jobs may be stopped or moved.
    half_life_s
        Half-life of the usage that counts for fair share.
    round_s
        Length of a round, to whose multiples after 0 decisions are bound; ``None``: they are not.
    first_start
        Whether the first start of a job takes its restart time too.
    """

    interval_s: float = 300.0
    postponement_penalty: float = 100.0
    restart_s: float = 0.0
    preempt: bool = True
    half_life_s: float = 7 * 86400.0
    round_s: float | None = None
    first_start: bool = False


class Shortage(NamedTuple):
    """What a node has too little of for a job even if it were empty: the resource, what is needed, and all it has."""

    node: int
    resource: str
    amount: float
    most: float


class _Column:
    """An array that grows."""

    def __init__(self, dtype: str) -> None:
        self._data = np.zeros(64, dtype)
        self._size = 0

    def extend(self, values: Sequence[Any]) -> None:
        need = self._size + len(values)
        if need > len(self._data):
            grown = np.zeros(max(need, 2 * len(self._data)), self._data.dtype)
            grown[: self._size] = self._data[: self._size]
            self._data = grown
        for k, value in enumerate(values, self._size):  # a few at a time: quicker than by way of an array
            self._data[k] = value
        self._size = need

    @property
    def values(self) -> NDArray[np.generic]:
        return self._data[: self._size]


_JOB_COLUMNS = {
    "submit_s": "f8", "due_s": "f8", "weight": "f8", "epochs": "i8", "tenant": "i8", "limit_s": "f8",
    "asked_gpus": "i8", "first": "i8", "count": "i8", "status": "i8", "row": "i8", "starts": "i8",
    "began_s": "f8", "ended_s": "f8", "placed_s": "f8", "restart_s": "f8", "iterations": "f8",
    "priority": "f8", "cpus_per_gpu": "f8", "memory_gib_per_gpu": "f8",
}  # fmt: skip
_ROW_COLUMNS = {
    "klass": "i8",
    "width": "i8",
    "per_node": "i8",
    "time_s": "f8",
    "power_w": "f8",
    "gpu_w": "f8",
    "asked": "?",
    "power_limit": "f8",
}


@dataclass
class JobRegistry:
    """Jobs by handle."""

    cluster: Cluster
    names: list[str] = field(default_factory=list)
    tenants: list[str] = field(default_factory=list)
    nodes: dict[int, tuple[int, ...]] = field(default_factory=dict)  # of running jobs
    active: set[int] = field(default_factory=set)  # running or waiting
    waiting: set[int] = field(default_factory=set)
    beside: dict[int, int] = field(default_factory=dict)  # jobs that have or will have the same GPUs, by each other

    def __post_init__(self) -> None:
        self._jobs = {name: _Column(dtype) for name, dtype in _JOB_COLUMNS.items()}
        self._rows = {name: _Column(dtype) for name, dtype in _ROW_COLUMNS.items()}
        self._tenant_at: dict[str, int] = {}
        self._unsure: set[int] = set()  # jobs of which it is not known whether their first run has begun
        self.node_gpus: Ints = self.cluster.gpus  # as declared, [N]
        self.allocated_gpus: Ints = np.zeros(len(self.cluster), dtype=np.int64)  # of each node, [N]
        sizes = [(kind.cpus or np.inf, kind.memory_gib or np.inf) for kind in self.cluster.classes]
        self._class_cpus_memory: Floats = np.array(sizes, dtype=np.float64)  # [K, 2]
        self._left_cpus_memory: Floats = self._class_cpus_memory[self.cluster.klass]  # by running jobs, [N, 2]
        self._any_asks = False  # for CPUs or memory, where some node has a limit
        self.room: Callable[[Ints, Ints], NodeRoom | None] | None = None
        """Says what nodes have beside GPUs, and what jobs, by handle, take with so many GPUs on each of their nodes."""
        self._packing: Packing | None = None  # what says which jobs may share GPUs; None: none do
        self._use: list[GpuFootprint | None] = []  # of GPUs, by handle, where that says it
        self._shapes: dict[tuple[str, int, str, int, str], list[tuple[int, int, int]]] = {}

    def __len__(self) -> int:
        return len(self.names)

    def job(self, column: str) -> NDArray[Any]:
        """A column over all jobs; writing to it changes the registry."""
        return self._jobs[column].values

    def row(self, column: str) -> NDArray[Any]:
        """A column over all configurations."""
        return self._rows[column].values

    def add(self, table: JobArrays, rows: Ints) -> list[int]:
        """Register jobs; returns their handles. Raises ``JobNeverFitsError`` on a job no node can ever run."""
        handles = []
        for j in rows:
            handles.append(self._add(table, int(j)))
        return handles

    def _add(self, table: JobArrays, j: int) -> int:
        entries = self._configurations(table, j)
        if not entries:
            types = sorted({table.gpu_types[y] for y in table.config_type[table.configs(j)]})
            smallest = int(table.config_gpus[table.configs(j)].min(initial=1 << 30))
            partition, width, constraint = table.nodes_of(j)
            asked = f"at least {plural(smallest, 'GPU')} of {' or '.join(types)}"
            asked += f" in partition {partition}" if partition else ""
            asked += f" on {plural(width, 'node')}" if width > 0 else f", {-width} on each node" if width else ""
            asked += f" with {constraint}" if constraint else ""
            expected = "a job that some node, or several nodes of one class, could run"
            raise JobNeverFitsError(expected, field=f"jobs.{table.names[j]}", value=asked)
        columns = list(zip(*entries, strict=True))
        first = len(self.row("klass"))
        for name, column in zip(_ROW_COLUMNS, columns, strict=True):
            self._rows[name].extend(column)
        values = {
            "submit_s": table.submit_s[j], "due_s": table.due_s[j], "weight": table.tardiness_weight[j],
            "epochs": table.epochs[j], "tenant": self.tenant_at(table.tenants[table.tenant[j]]),
            "limit_s": table.time_limit_s[j], "asked_gpus": _asked_gpus(entries),
            "first": first, "count": len(entries), "status": Status.WAITING, "row": -1, "starts": 0,
            "began_s": np.nan, "ended_s": np.nan, "placed_s": np.nan,
            "restart_s": table.restart_s[j] if len(table.restart_s) else np.nan,
            "iterations": table.iterations[j] if len(table.iterations) else np.nan,
            "priority": table.priority[j] if len(table.priority) else 0.0,
        }  # fmt: skip
        values["cpus_per_gpu"], values["memory_gib_per_gpu"] = _needs(table, j)
        for name, value in values.items():
            self._jobs[name].extend((value,))
        asks = values["cpus_per_gpu"] > 0 or values["memory_gib_per_gpu"] > 0
        self._any_asks |= asks and bool(np.isfinite(self._class_cpus_memory).any())
        if table.packing is not None:
            self._packing = table.packing
            self._use.append(table.packing.use.get(table.kinds[j]))
        self.names.append(table.names[j])
        handle = len(self.names) - 1
        self.active.add(handle)
        self.waiting.add(handle)
        return handle

    def _configurations(self, table: JobArrays, j: int) -> list[tuple[int, int, int, float, float, float, bool, float]]:
        entries = []
        for c in range(int(table.start[j]), int(table.start[j + 1])):
            gpu_type, gpus = table.gpu_types[table.config_type[c]], int(table.config_gpus[c])
            key = gpu_type, gpus, *table.nodes_of(j)
            if key not in self._shapes:
                self._shapes[key] = self.cluster.shapes(*key)
            own_w = float(table.config_gpu_w[c])
            wished = table.requested_type[j] in (-1, table.config_type[c])
            limit = table.power_limit_of(c)
            for klass, width, per_node in self._holding(self._shapes[key], *_needs(table, j)):
                kind = self.cluster.classes[klass]
                gpu_w = kind.gpu_w if np.isnan(own_w) else own_w
                entries.append((
                    klass, width, per_node, float(table.config_time_s[c]), kind.idle_w + per_node * gpu_w, gpu_w,
                    bool(table.requested_gpus[j] == gpus and wished and limit == 1.0), limit,
                ))  # fmt: skip
        return entries

    def _holding(
        self, shapes: list[tuple[int, int, int]], cpus_per_gpu: float, memory_gib_per_gpu: float
    ) -> list[tuple[int, int, int]]:
        """Return those of *shapes* whose nodes have the CPUs and memory; all of them, if none has."""
        classes = self.cluster.classes
        candidates = [shape for shape in shapes if classes[shape[0]].holds(shape[2], cpus_per_gpu, memory_gib_per_gpu)]
        return candidates or shapes

    def tenant_at(self, name: str) -> int:
        """Return the number of a tenant; a new tenant gets the next one."""
        if name not in self._tenant_at:
            self._tenant_at[name] = len(self.tenants)
            self.tenants.append(name)
        return self._tenant_at[name]

    def class_of(self, handle: int) -> int:
        """Return the class of the nodes that a job has; -1: it has none."""
        row = int(self.job("row")[handle])
        return int(self.row("klass")[row]) if row >= 0 else -1

    def place(self, handle: int, row: int, nodes: Sequence[int], now_s: float) -> None:
        """The job runs in configuration *row* on *nodes*."""
        self._leave(handle)
        self.job("status")[handle] = Status.RUNNING
        self.job("row")[handle] = row
        self.job("starts")[handle] += 1
        self.job("placed_s")[handle] = now_s
        if np.isnan(self.job("began_s")[handle]):
            self.job("began_s")[handle] = now_s
            self._unsure.add(handle)
        self.nodes[handle] = tuple(nodes)
        self.waiting.discard(handle)
        if self.beside.get(handle) not in self.nodes:
            self.allocated_gpus[list(nodes)] += self.row("per_node")[row]
        if self._any_asks:
            self._left_cpus_memory[list(nodes)] -= self._cpus_memory(np.array([handle]), np.array([row]))

    def pair(self, handles: Ints, schedule: Schedule) -> None:
        """Take note of which two of *handles* have the same GPUs by *schedule*, until one of them leaves."""
        if schedule.beside is not None:
            pairs = np.flatnonzero(schedule.packed())
            self.beside |= dict(zip(handles[pairs].tolist(), handles[schedule.beside[pairs]].tolist(), strict=True))

    def adopt(self, handle: int, row: int, nodes: Sequence[int]) -> None:
        """The job runs since before this controller."""
        starts = int(self.job("starts")[handle])
        self.place(handle, row, nodes, self.job("began_s")[handle])
        self.job("starts")[handle] = max(1, starts)
        if starts <= 1:
            self._unsure.add(handle)

    def has_begun(self, handle: int) -> bool:
        """Whether it ran before, or may have: started again, it takes its restart time."""
        return not np.isnan(self.job("began_s")[handle])

    def left(self, handle: int, *, begun: bool, elsewhere: bool = False) -> None:
        """A run of the job is over; if it had not *begun*, it was no first start. *elsewhere* it has another one."""
        if handle in self._unsure and not begun:
            self.job("began_s")[handle] = self.job("placed_s")[handle] if elsewhere else np.nan
        if begun or not elsewhere:
            self._unsure.discard(handle)

    def _leave(self, handle: int) -> None:
        """Free the GPUs of a job, if it has any; another one with the same GPUs keeps them."""
        if nodes := self.nodes.pop(handle, ()):
            row = self.job("row")[handle]
            other = self.beside.pop(handle, None)
            self.beside.pop(-1 if other is None else other, None)
            if other not in self.nodes:
                self.allocated_gpus[list(nodes)] -= self.row("per_node")[row]
            if self._any_asks:
                self._left_cpus_memory[list(nodes)] += self._cpus_memory(np.array([handle]), np.array([row]))

    def _cpus_memory(self, handles: Ints, rows: Ints) -> Floats:
        """CPUs and memory (GiB) that *handles* need on each node of *rows*, [R, 2]; at most all that the node has."""
        per_gpu = np.stack((self.job("cpus_per_gpu")[handles], self.job("memory_gib_per_gpu")[handles]), axis=1)
        need = per_gpu * self.row("per_node")[rows][:, None]
        need = np.minimum(need, self._class_cpus_memory[self.row("klass")[rows]])
        return np.where(np.isfinite(need), need, 0.0)  # all the memory of a node whose memory nobody counts

    def _free_cpus_memory(
        self, handles: Ints, rows: Ints, stays: Bools, stay_nodes: Ints
    ) -> tuple[tuple[str, ...], Floats | None, Floats | None]:
        """Return resources, what nodes have for *handles*, [N, R], and what *rows* need, [C, R]; ``None``: no limit."""
        rooms = [] if (real := self._real_room(handles, rows, stays, stay_nodes)) is None else [real]
        if self._any_asks:
            need, left = self._cpus_memory(handles, rows), self._left_cpus_memory.copy()
            np.add.at(left, stay_nodes, np.repeat(need[stays], self.row("width")[rows[stays]], axis=0))
            rooms.insert(0, (("cpu", "memory"), left, need))
        if not rooms:
            return (), None, None
        named, lefts, needs = zip(*rooms, strict=True)
        return tuple(name for names in named for name in names), np.hstack(lefts), np.hstack(needs)

    def _real_room(
        self, handles: Ints, rows: Ints, stays: Bools, stay_nodes: Ints
    ) -> tuple[tuple[str, ...], Floats, Floats] | None:
        """Return what the engine says of it; ``None``: nothing. What runs fits where it is, whatever others take."""
        if self.room is None:
            return None
        outside = np.array(sorted(self.nodes.keys() - set(handles.tolist())), dtype=np.int64)
        rows_outside = self.job("row")[outside]
        room = self.room(np.concatenate((handles, outside)), self.row("per_node")[np.concatenate((rows, rows_outside))])
        if room is None or not room.resources:
            return None
        left, needs = room.left.copy(), room.needs[: len(rows)].copy()
        there = [n for handle in outside.tolist() for n in self.nodes[handle]]
        beside = np.repeat(room.needs[len(rows) :], self.row("width")[rows_outside], axis=0)
        np.subtract.at(left, np.array(there, dtype=np.int64), beside)
        if room.conditions:
            needs[stays, -room.conditions :] = 0.0
        allocated = np.zeros_like(left)
        np.add.at(allocated, stay_nodes, np.repeat(needs[stays], self.row("width")[rows[stays]], axis=0))
        return room.resources, np.maximum(left, allocated), needs

    def without_node(self, handles: Ints) -> dict[int, Shortage]:
        """Return those of *handles* that no nodes could run if they were empty, with what the nearest node lacks.

        As far as the engine says what nodes have beside GPUs. Raises ``EngineError``.
        """
        if self.room is None:
            return {}
        count = self.job("count")[handles]
        rows = np.repeat(self.job("first")[handles] - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))
        of, shortages = np.repeat(handles, count), {}
        room = self.room(of, self.row("per_node")[rows])
        if room is None or room.most is None or not len(handles):
            return {}
        asked = np.column_stack((self.row("klass")[rows], self.row("width")[rows], room.needs))
        kinds, kind = np.unique(asked, axis=0, return_inverse=True)
        short = [_shortage(np.flatnonzero(self.cluster.klass == own[0]), int(own[1]), own[2:], room) for own in kinds]
        for handle, start, number in zip(handles.tolist(), (np.cumsum(count) - count).tolist(), count, strict=True):
            lacking = [short[k] for k in kind[start : start + number].ravel()]
            if all(lacking):
                shortages[handle] = min(filter(None, lacking), key=lambda one: one.amount / max(one.most, _LITTLE))
        return shortages

    def row_of(self, handle: int, nodes: Sequence[int], gpus_per_node: int) -> int | None:
        """Return the configuration of a job with *gpus_per_node* GPUs on each of *nodes*; ``None`` if it has none."""
        first = int(self.job("first")[handle])
        for row in range(first, first + int(self.job("count")[handle])):
            alike = self.row("width")[row] == len(nodes) and self.row("per_node")[row] == gpus_per_node
            if alike and all(self.cluster.klass[n] == self.row("klass")[row] for n in nodes):
                return row
        return None

    def retime(self, handle: int, gpu_type: str, gpus: int, time_s: float, gpu_w: float | None) -> None:
        """Set the time of the whole job in a configuration, and its power per GPU (``None``: the node's figure)."""
        first = int(self.job("first")[handle])
        for row in range(first, first + int(self.job("count")[handle])):
            kind = self.cluster.classes[int(self.row("klass")[row])]
            per_node = int(self.row("per_node")[row])
            if kind.gpu_type == gpu_type and int(self.row("width")[row]) * per_node == gpus:
                own_w = kind.gpu_w if gpu_w is None else gpu_w
                self.row("time_s")[row] = time_s
                self.row("gpu_w")[row] = own_w
                self.row("power_w")[row] = kind.idle_w + per_node * own_w

    def restore(self, handle: int, starts: int, began_s: float) -> None:
        """Restore a job from before: how often it was started, and when first (NaN: never)."""
        self.job("starts")[handle] = starts
        self.job("began_s")[handle] = began_s

    def release(self, handle: int) -> None:
        """The job waits again."""
        self._leave(handle)
        self.waiting.add(handle)
        self.job("status")[handle] = Status.WAITING
        self.job("row")[handle] = -1

    def close(self, handle: int, status: Status, at_s: float) -> None:
        """The job will not run again."""
        self._leave(handle)
        self.job("status")[handle] = status
        self.job("row")[handle] = -1
        self.job("ended_s")[handle] = at_s
        self.active.discard(handle)
        self.waiting.discard(handle)
        self._unsure.discard(handle)

    def problem(
        self, handles: Ints, now_s: float, rules: Rules, tariff: Tariff, progress: JobProgress, nodes: NodeView,
        tenant_weight: Floats, tenant_usage_gpu_s: Floats, remaining: Remaining | None = None,
        background: Background | None = None, received: Received | None = None,
    ) -> tuple[PlacementProblem, Ints]:  # fmt: skip
        """Compile the problem of a tick over *handles*; also returns the row here of each of its configurations.

        *nodes* are as placement may use them, without the GPUs of the *background*. With *remaining*, that is what is
        left of jobs, not what their epochs say.
        """
        if remaining is None:
            epochs = self.job("epochs")[handles]
            left_kept = 1.0 - progress.kept_epochs / epochs
            left_now = 1.0 - progress.done_epochs / epochs
            limit_s = _scaled(self.job("limit_s")[handles], left_now)
            whole = np.ones(len(handles))
        else:
            left_kept, left_now, limit_s = remaining.kept_s, remaining.now_s, remaining.limit_s
            whole = left_now if remaining.attained_s is None else left_now + remaining.attained_s
        own_s = self.job("restart_s")[handles]
        again = ~np.isnan(self.job("began_s")[handles]) | rules.first_start
        restart_s = np.where(again, np.where(np.isnan(own_s), rules.restart_s, own_s), 0.0)
        current = self.job("row")[handles]
        running = current >= 0
        anew = np.ones(len(handles), dtype=bool) if rules.preempt else ~running
        counts = np.where(anew, self.job("count")[handles], 0) + running
        start = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        job = np.repeat(np.arange(len(handles)), counts)
        offset = np.arange(start[-1]) - start[job]
        rows = self.job("first")[handles][job] + offset
        stays = running[job] & (offset == counts[job] - 1)
        rows[stays] = current[running]
        whole_s = self.row("time_s")[rows] * whole[job]
        time_s = self.row("time_s")[rows] * np.where(stays, left_now[job], left_kept[job])
        time_s += np.where(stays, progress.until_work_s[job], restart_s[job])
        time_s = np.maximum(time_s, 1e-6)
        stay = np.full(len(handles), -1, dtype=np.int64)
        stay[running] = np.flatnonzero(stays)
        there = [n for handle in handles[running] for n in self.nodes[int(handle)]]
        stay_nodes = np.array(there, dtype=np.int64)
        resources, limits, need = self._free_cpus_memory(handles[job], rows, stays, stay_nodes)
        return PlacementProblem(
            now_s=now_s,
            interval_s=rules.interval_s,
            postponement_penalty=rules.postponement_penalty,
            node_names=self.cluster.names,
            node_class=self.cluster.klass,
            node_gpus=np.minimum(nodes.usable_gpus, self.node_gpus),  # an engine may have more than is declared
            node_wait_s=nodes.wait_s,
            class_gpus=np.array([kind.gpus for kind in self.cluster.classes], dtype=np.int64),
            class_types=[kind.gpu_type for kind in self.cluster.classes],
            class_share_weight=self.cluster.share_weights,
            node_domain=self.cluster.domain,
            class_idle_cost_s=tariff.cost([kind.idle_w for kind in self.cluster.classes], now_s, now_s + 1.0),
            currency=tariff.currency,
            job_names=_Names(self.names, handles),
            submit_s=self.job("submit_s")[handles],
            due_s=self.job("due_s")[handles],
            weight=self.job("weight")[handles],
            tenant=self.job("tenant")[handles],
            limit_s=limit_s,
            start=start,
            klass=self.row("klass")[rows],
            width=self.row("width")[rows],
            per_node=self.row("per_node")[rows],
            time_s=time_s,
            node_cost=tariff.cost(self.row("power_w")[rows], now_s, now_s + time_s),
            asked=self.row("asked")[rows] & ~stays,
            power_limit=self.row("power_limit")[rows],
            stay=stay,
            stay_nodes=stay_nodes,
            tenant_names=self.tenants,
            tenant_weight=tenant_weight,
            tenant_usage_gpu_s=tenant_usage_gpu_s,
            background=background,
            locked=not rules.preempt,
            outcomes=None if remaining is None else remaining.outcomes,
            attained_gpu_s=None if remaining is None else remaining.attained_gpu_s,
            by_limit=None if remaining is None else remaining.by_limit,
            round_s=rules.round_s,
            received=received,
            whole_s=whole_s,
            restart_s=restart_s,
            starts=self.job("starts")[handles],
            iterations=self.job("iterations")[handles],
            priority=self.job("priority")[handles],
            node_cpus_memory=limits,
            cpus_memory=need,
            resources=resources,
            packable=None if self._packing is None else self._packable(self._packing, handles),
        ), rows

    def _packable(self, packing: Packing, handles: Ints) -> PackableJobs:
        """Return what *handles* use of GPUs, and who shares them."""
        use = (self._use[handle] for handle in handles)
        rows = [(np.nan,) * 3 if u is None else (u.utilization, u.memory_utilization, u.memory_gib) for u in use]
        columns: Floats = np.array(rows, dtype=np.float64).reshape(-1, 3)
        types = [kind.gpu_type for kind in self.cluster.classes]
        memory: Floats = np.array([packing.gpu_memory_gib.get(name, np.nan) for name in types], dtype=np.float64)
        at = {handle: j for j, handle in enumerate(handles.tolist())}
        beside = [at.get(self.beside.get(handle, -1), -1) for handle in at]
        return PackableJobs(
            columns[:, 0], columns[:, 1], columns[:, 2], memory, np.array(beside, dtype=np.int64)
        )  # fmt: skip


def _shortage(nodes: Ints, width: int, needs: Floats, room: NodeRoom) -> Shortage | None:
    """Return what the last of the *width* nodes nearest to *needs* lacks; ``None``: nothing, or too few nodes."""
    assert room.most is not None
    with np.errstate(invalid="ignore", divide="ignore"):
        parts = np.where(needs > room.most[nodes] + _LITTLE, needs / room.most[nodes], 0.0)
    order = np.argsort(parts.max(axis=1, initial=0.0), kind="stable")
    if len(nodes) < width or not parts[n := order[width - 1]].any():
        return None
    k = int(parts[n].argmax())
    return Shortage(int(nodes[n]), room.resources[k], float(needs[k]), float(room.most[nodes[n], k]))


def _needs(table: JobArrays, j: int) -> tuple[float, float]:
    """Return the CPUs and the memory (GiB) that a job needs for each GPU; 0: none."""
    of = (table.cpus_per_gpu, table.memory_gib_per_gpu)
    cpus, memory_gib = (float(np.nan_to_num(column[j], posinf=np.inf)) if len(column) else 0.0 for column in of)
    return cpus, memory_gib


def _asked_gpus(entries: Sequence[tuple[int, int, int, float, float, float, bool, float]]) -> int:
    """GPUs the owner asked for; the fewest the job can run on, if that cannot be met."""
    asked = [width * per_node for _, width, per_node, *_, wished, _ in entries if wished]
    return asked[0] if asked else min(width * per_node for _, width, per_node, *_ in entries)


def _scaled(limit_s: Floats, left: Floats) -> Floats:
    """Limits of what is left to do; no limit stays no limit, also where nothing is left."""
    return np.where(np.isfinite(limit_s), limit_s * np.maximum(left, np.finfo(float).tiny), np.inf)


@dataclass(frozen=True)
class _Names(Sequence[str]):
    """Names of the jobs of a problem, looked up on demand."""

    names: list[str]
    handles: Ints

    def __getitem__(self, i: Any) -> Any:  # noqa: ANN401
        return self.names[self.handles[i]]

    def __len__(self) -> int:
        return len(self.handles)
