"""The placement problem at one rescheduling point, in arrays, and a schedule for it.

Symbols (ANDREAS, Table I): ``J`` jobs, ``N`` nodes, ``C`` configurations. A configuration of job ``j`` is a row
``r`` in ``start[j]:start[j + 1]``: ``per_node[r]`` GPUs on each of ``width[r]`` nodes of class ``klass[r]``, with
run time ``time_s[r]`` (t_jng) and cost ``node_cost[r]`` (t_jng * c_ng) on each of those nodes. A running job has
one more row, ``stay[j]``: the nodes it is on, with the time left if it is not disturbed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Index, Ints
from commonwatt.model.errors import InputError, JobNeverFitsError
from commonwatt.model.jobs import Received, Times, read_times
from commonwatt.model.names import did_you_mean
from commonwatt.model.nodes import Cluster
from commonwatt.model.packing import PackableJobs
from commonwatt.model.place_file import PlaceFile, PlaceJob
from commonwatt.model.units import plural
from commonwatt.optimize import SearchResult, Solver
from commonwatt.placement.guarantees._kept import Guarantees, Reservation

if TYPE_CHECKING:
    from commonwatt.model.results import PlaceResult

__all__ = [
    "POSTPONED",
    "Assignment",
    "Background",
    "PlacementProblem",
    "PlacementSearch",
    "PlacementSolver",
    "Schedule",
]


POSTPONED = -1


@dataclass(frozen=True)
class Background:
    """Jobs that run and are not decided about: where they keep nodes on, and what they add to the worth of GPU time.

    Attributes
    ----------
    on_s
        Time from now for which they keep each node on, [N].
    gpus
        GPUs of each node that they have, [N]; ``node_gpus`` of the problem counts the others.
    pressing_weight
        Sum of the weights of those that are late or may soon be, currency/s.
    """

    on_s: Floats
    gpus: Ints
    pressing_weight: float


@dataclass(frozen=True)
class PlacementProblem:
    """Everything a solver may look at. All arrays are read-only by convention."""

    now_s: float  # T_c
    interval_s: float  # H
    postponement_penalty: float  # rho
    # nodes
    node_names: Sequence[str]  # [N]
    node_class: Ints  # [N]
    node_gpus: Ints  # [N] GPUs we may use: none on a node that is down
    node_wait_s: Floats  # [N] time until a node that sleeps can run a job
    class_gpus: Ints  # [K] GPUs of a whole node
    class_types: Sequence[str]  # [K]
    class_idle_cost_s: Floats  # [K] currency for a second of a node's idle power, at the present price
    # jobs
    job_names: Sequence[str]  # [J]
    submit_s: Floats  # [J]
    due_s: Floats  # [J] d_j
    weight: Floats  # [J] omega_j, currency/s
    tenant: Ints  # [J]
    limit_s: Floats  # [J] declared remaining run time, infinity: none
    # configurations
    start: Ints  # [J + 1]
    klass: Ints  # [C]
    width: Ints  # [C]
    per_node: Ints  # [C]
    time_s: Floats  # [C]
    node_cost: Floats  # [C] currency
    asked: Bools  # [C] whether it is what the job's owner asked for
    # what runs now
    stay: Ints  # [J] a row, or -1
    stay_nodes: Ints  # [sum of widths of stay rows, in job order]
    # tenants
    tenant_names: Sequence[str] = ("default",)
    tenant_weight: Floats = field(default_factory=lambda: np.ones(1))
    tenant_usage_gpu_s: Floats = field(default_factory=lambda: np.zeros(1))
    use_every_node: bool = False  # constraint (4n)
    background: Background | None = None
    # what is not known
    by_limit: Bools | None = None  # [J] ``time_s`` is until the job's limit; False: it is a guess; None: it is neither
    outcomes: Floats | None = None  # [J, Q] equally likely remaining times, relative to ``time_s``; None: certain
    attained_gpu_s: Floats | None = None  # [J] GPU time had so far, where nothing is known of run times
    locked: bool = False  # running jobs may be neither stopped nor moved; they have no row but the one they stay in
    guarantees: Guarantees | None = None
    round_s: float | None = None  # decisions are bound to multiples of this; None: they are not
    # what schedulers of other authors go by
    received: Received | None = None  # None: no job has had GPUs
    whole_s: Floats | None = None  # [C] time of the whole job, done and left; None: nothing is done
    restart_s: Floats | None = None  # [J] part of the time of every configuration but ``stay``; None: none
    starts: Ints | None = None  # [J] how often a job was started or moved; None: unknown
    iterations: Floats | None = None  # [J] training iterations of the whole job, NaN: unknown; None: of all jobs
    priority: Floats | None = None  # [J] factor of the job's quality of service, 0 to 1; None: 0
    # CPUs, memory (GiB) and more, which solvers do not know of: see ``_cpus_memory``
    node_cpus_memory: Floats | None = None  # [N, R] beside those of the background; None: not limited
    cpus_memory: Floats | None = None  # [C, R] that each configuration needs on each of its nodes
    resources: tuple[str, ...] = ("cpu", "memory")  # [R] what they are
    power_limit: Floats | None = None  # [C] of the GPUs, as a part of their highest; None: 1
    currency: str = ""  # of all costs, for sentences; unknown: none
    class_share_weight: Floats | None = None  # [K] GPUs that one counts as in shares of tenants; None: all count as one
    packable: PackableJobs | None = None  # None: no jobs share GPUs
    node_domain: Ints | None = None  # [N, levels] domain of each level, wide to narrow; None: not known

    def __len__(self) -> int:
        return len(self.due_s)

    @cached_property
    def limits(self) -> Floats:
        """``power_limit`` of each configuration, [C]."""
        return np.ones(len(self.klass)) if self.power_limit is None else self.power_limit

    def alike(self, one: int, other: int) -> bool:
        """Whether configurations *one* and *other* have the same GPUs with the same power limit."""
        columns = (self.klass, self.width, self.per_node, self.limits)
        return all(column[one] == column[other] for column in columns)

    def counted(self, klass: Ints, gpus: Ints) -> Ints | Floats:
        """Return *gpus* of these classes as they count in shares of tenants."""
        return gpus if self.class_share_weight is None else np.asarray(gpus * self.class_share_weight[klass])

    @cached_property
    def row_job(self) -> Ints:
        """Job of each configuration, [C]."""
        return np.repeat(np.arange(len(self)), np.diff(self.start))

    @cached_property
    def run_cost(self) -> Floats:
        """Cost of running the job in each configuration, over all its nodes, [C]."""
        return self.node_cost * self.width

    @cached_property
    def idle_cost(self) -> Floats:
        """Cost of the idle power of one node of each configuration, for its run time, [C]."""
        return self.class_idle_cost_s[self.klass] * self.time_s

    @cached_property
    def busy_cost(self) -> Floats:
        """Cost of the busy GPUs of each configuration, over all its nodes, [C]."""
        return (self.node_cost - self.idle_cost) * self.width

    @cached_property
    def share_cost(self) -> Floats:
        """The part of its nodes' idle power that the GPUs of each configuration stand for, [C]."""
        return self.idle_cost * self.width * self.per_node / self.class_gpus[self.klass]

    @cached_property
    def fastest_s(self) -> Floats:
        """Least time of each job over its configurations, [J]."""
        return np.minimum.reduceat(self.time_s, self.start[:-1]) if len(self) else np.zeros(0)

    @cached_property
    def slowest_s(self) -> Floats:
        """M_j: greatest time of each job if it is started anew, [J]."""
        if not len(self):
            return np.zeros(0)
        anew = self.time_s.copy()
        running = self.stay[self.stay >= 0]
        anew[running] = -np.inf
        slowest = np.maximum.reduceat(anew, self.start[:-1])
        return np.where(np.isfinite(slowest), slowest, self.fastest_s)

    @cached_property
    def pressure_s(self) -> Floats:
        """Delta_j = T_c + min t_jng - d_j, [J]. ANDREAS, eq. (2)."""
        return self.now_s + self.fastest_s - self.due_s

    @cached_property
    def pressing_weight(self) -> float:
        """Sum of the weights of the jobs that are late or may soon be, those of the background included."""
        outside = 0.0 if self.background is None else self.background.pressing_weight
        if not len(self):
            return outside
        ordered, middle = np.sort(self.fastest_s), len(self) // 2
        median_s = ordered[middle] if len(self) % 2 else (ordered[middle - 1] + ordered[middle]) / 2  # quick for few
        pressing = self.pressure_s > -median_s
        return float(self.weight[pressing].sum()) + outside

    @cached_property
    def postponed_cost(self) -> Floats:
        """Rho * omega_j * worst-case tardiness of each job if it is postponed, [J]. ANDREAS, (1) and (4j)."""
        ends_s = self.now_s + self.interval_s + self.slowest_s
        return self.postponement_penalty * self.weight * self.late_s(np.arange(len(self)), ends_s, self.slowest_s)

    def late_s(self, jobs: Ints, ends_s: Floats, time_s: Floats) -> Floats:
        """Expected lateness of *jobs* that run for *time_s* and end at *ends_s* (s, on the clock of ``now_s``).

        With ``outcomes``, *time_s* is what they are expected to run, and the mean is over what they may run.
        """
        due_s = self.due_s[jobs]
        if self.outcomes is None:
            return np.maximum(0.0, ends_s - due_s)
        possible_s = ends_s[:, None] + time_s[:, None] * (self.outcomes[jobs] - 1.0)
        return np.maximum(0.0, possible_s - due_s[:, None]).mean(axis=1)

    @cached_property
    def slot_start(self) -> Ints:
        """Where each job's nodes begin in ``Schedule.nodes``, [J + 1]."""
        widest = np.maximum.reduceat(self.width, self.start[:-1]) if len(self) else np.zeros(0, dtype=np.int64)
        return np.concatenate(([0], np.cumsum(widest))).astype(np.int64)

    @cached_property
    def stay_start(self) -> Ints:
        """Where each job's nodes begin in ``stay_nodes``, [J + 1]."""
        widths = np.where(self.stay >= 0, self.width[self.stay], 0) if len(self) else np.zeros(0, dtype=np.int64)
        return np.concatenate(([0], np.cumsum(widths))).astype(np.int64)

    def nodes_held(self, job: Index) -> Ints:
        """Nodes job *job* runs on now."""
        return self.stay_nodes[self.stay_start[job] : self.stay_start[job + 1]]

    def gpus_of(self, row: Index) -> int:
        """Total GPUs of configuration *row*."""
        return int(self.width[row] * self.per_node[row])

    def room(self, row: Index, free: Ints) -> Ints:
        """Nodes with enough *free* GPUs ([N]) for their part of configuration *row*; none if they are too few."""
        fit = np.flatnonzero((self.node_class == self.klass[row]) & (free >= self.per_node[row]))
        return fit if len(fit) >= self.width[row] else fit[:0]

    def with_sunk_idle_power(self) -> PlacementProblem:
        """Return the problem without the cost of idle power, so that only the power of busy GPUs counts.

        Solvers otherwise take a node without jobs to draw nothing. Idle power counts at the present price.
        """
        none = np.zeros_like(self.class_idle_cost_s)
        return replace(self, class_idle_cost_s=none, node_cost=np.maximum(0.0, self.node_cost - self.idle_cost))

    def with_weighed_due_dates(self) -> PlacementProblem:
        """Return the problem without the due dates of jobs whose lateness costs nothing: they are nobody's hurry."""
        idle = (self.weight == 0) & np.isfinite(self.due_s)
        return replace(self, due_s=np.where(idle, np.inf, self.due_s)) if idle.any() else self

    def without(self, gone: Bools, node_gpus: Ints, background: Background | None) -> PlacementProblem:
        """Return the problem without the jobs *gone* ([J]), with so many GPUs on each node ([N]), and no guarantees."""
        kept, rows = np.flatnonzero(~gone), np.flatnonzero(~gone[self.row_job])
        counts, stay = np.diff(self.start)[kept], self.stay[kept]
        stays = np.repeat(~gone, np.diff(self.stay_start))
        fields: dict[str, Any] = {}
        for names, of in ((_OF_ROWS, rows), (_OF_JOBS, kept)):
            for name in names:
                values = getattr(self, name)
                fields[name] = None if values is None else values[of]
        if self.received is not None:
            had = self.received
            fields["received"] = replace(had, job_s=had.job_s[kept], gpu_s=had.gpu_s[kept])
        fields |= {
            "node_gpus": node_gpus, "background": background, "guarantees": None, "packable": None,
            "stay_nodes": self.stay_nodes[stays],
            "job_names": [self.job_names[int(j)] for j in kept],
            "start": np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
            "stay": np.where(stay >= 0, np.searchsorted(rows, stay), -1),
        }  # fmt: skip
        return replace(self, **fields)

    def only(self, kept: Bools) -> PlacementProblem:
        """Return the problem with the configurations *kept* ([C]) only, of which each job has one or more."""
        counts = np.add.reduceat(kept.astype(np.int64), self.start[:-1]) if len(self) else np.zeros(0, dtype=np.int64)
        columns = {name: getattr(self, name) for name in _OF_ROWS}
        fields: dict[str, Any] = {name: None if c is None else c[kept] for name, c in columns.items()}
        place = np.cumsum(kept) - 1
        return replace(
            self, start=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
            stay=np.where(self.stay >= 0, place[self.stay], -1), **fields,
        )  # fmt: skip

    @classmethod
    def of(cls, file: PlaceFile) -> PlacementProblem:
        """Compile a problem file. Raises ``InputError`` on unknown nodes or types and on jobs that fit nowhere."""
        return _Compiler(file).problem()


_OF_JOBS = (
    "submit_s", "due_s", "weight", "tenant", "limit_s", "outcomes", "attained_gpu_s", "iterations", "restart_s",
    "priority", "starts",
)  # fmt: skip
_OF_ROWS = ("klass", "width", "per_node", "time_s", "node_cost", "asked", "whole_s", "cpus_memory", "power_limit")


@dataclass(frozen=True)
class TenantShares:
    """What each tenant is entitled to at a decision, and what it has used.

    Attributes
    ----------
    entitled
        GPUs, a number that need not be whole. Shape [T].
    used
        Its part of all past use that counts, over its part of all weights; 1 where nothing was used. Shape [T].
    first
        Jobs within their tenant's entitlement. Shape [J].
    half_life_s
        Of past use.
    """

    entitled: Floats
    used: Floats
    first: Bools
    half_life_s: float


@dataclass(frozen=True)
class Schedule:
    """A decision: for each job its configuration, and which nodes.

    ``nodes[slot_start[j] : slot_start[j] + width[choice[j]]]`` are the nodes of job ``j``; other entries are -1.
    """

    choice: Ints  # [J] a row, or POSTPONED
    nodes: Ints  # [slot_start[J]]
    reservation: Reservation | None = None  # what is kept for a job that waits
    weighed: bool = False  # whether its moves were weighed against the energy and the time they cost
    may_have: Bools | None = None  # [C] configurations that were weighed; None: all
    capped: Bools | None = None  # [J] jobs that do not run because of the power cap; None: there is none, or none does
    short: Bools | None = None  # [J] jobs that do not run for lack of CPUs or memory; None: none
    shares: TenantShares | None = None  # what tenants are entitled to; None: nothing is guaranteed
    shared_w: float = 0.0  # beside `capped`: what shared GPUs draw under that cap
    beside: Ints | None = None  # [J] the other job with the same GPUs, which has as many; -1: none; None: nobody shares

    @classmethod
    def empty(cls, problem: PlacementProblem) -> Schedule:
        """Everything postponed."""
        return cls(np.full(len(problem), POSTPONED), np.full(int(problem.slot_start[-1]), -1))

    @classmethod
    def unchanged(cls, problem: PlacementProblem) -> Schedule:
        """Running jobs stay, the others wait."""
        beside = None if problem.packable is None else problem.packable.beside.copy()
        schedule = cls(problem.stay.copy(), np.full(int(problem.slot_start[-1]), -1), beside=beside)
        running = np.flatnonzero(problem.stay >= 0)
        widths = problem.width[problem.stay[running]]
        offset = np.arange(len(problem.stay_nodes)) - np.repeat(np.cumsum(widths) - widths, widths)
        schedule.nodes[np.repeat(problem.slot_start[running], widths) + offset] = problem.stay_nodes
        return schedule

    @classmethod
    def of(cls, problem: PlacementProblem, result: PlaceResult) -> Schedule:
        """Return the schedule *result* reports for *problem*."""
        schedule = cls.empty(problem)
        job_at = {name: j for j, name in enumerate(problem.job_names)}
        node_at = {name: n for n, name in enumerate(problem.node_names)}
        for given in result.assignments:
            j, nodes = job_at[given.job], np.array([node_at[name] for name in given.nodes])
            row = int(problem.stay[j])
            stays = row >= 0 and problem.gpus_of(row) == given.gpus and set(problem.nodes_held(j)) == set(nodes)
            if not stays:
                rows = np.arange(problem.start[j], problem.start[j + 1])
                shape = (problem.width[rows] == len(nodes)) & (problem.per_node[rows] * len(nodes) == given.gpus)
                alike = (problem.klass[rows] == problem.node_class[nodes[0]]) & (rows != problem.stay[j])
                row = int(rows[shape & alike][0])
            schedule.choice[j] = row
            schedule.nodes[problem.slot_start[j] : problem.slot_start[j] + len(nodes)] = nodes
        return schedule

    def nodes_of(self, problem: PlacementProblem, job: Index) -> Ints:
        """Nodes given to job *job*; empty if it is postponed."""
        row = self.choice[job]
        first = problem.slot_start[job]
        return self.nodes[first : first + (problem.width[row] if row != POSTPONED else 0)]

    def occupancy(self, problem: PlacementProblem) -> tuple[Ints, Ints]:
        """Nodes used, once for every job on them, and the GPUs the job has there; of two that share, one counts."""
        placed = np.flatnonzero(self.choice != POSTPONED)
        if self.beside is not None:
            placed = placed[~(self.packed()[placed] & (self.beside[placed] < placed))]
        rows = self.choice[placed]
        widths = problem.width[rows]
        ends = np.cumsum(widths)
        offset = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - widths, widths)
        slots = np.repeat(problem.slot_start[placed], widths) + offset
        return self.nodes[slots], np.repeat(problem.per_node[rows], widths)

    def packed(self) -> Bools:
        """Jobs that have the same GPUs as another, [J]."""
        if self.beside is None:
            return np.zeros(len(self.choice), dtype=bool)
        runs = self.choice != POSTPONED
        return np.asarray(runs & (self.beside >= 0) & runs[self.beside])

    def free_gpus(self, problem: PlacementProblem) -> Ints:
        """GPUs of each node that the schedule leaves free, [N]."""
        free = problem.node_gpus.copy()
        nodes, gpus = self.occupancy(problem)
        np.subtract.at(free, nodes, gpus)
        return free

    def assignments(self, problem: PlacementProblem) -> list[Assignment]:
        """What was assigned, in job order."""
        return [
            Assignment(
                job=problem.job_names[int(j)],
                nodes=tuple(problem.node_names[n] for n in self.nodes_of(problem, j)),
                gpus=problem.gpus_of(int(self.choice[j])),
            )
            for j in np.flatnonzero(self.choice != POSTPONED)
        ]


@dataclass(frozen=True)
class Assignment:
    """A job, the nodes it gets and its GPUs over all of them."""

    job: str
    nodes: tuple[str, ...]
    gpus: int


PlacementSearch = SearchResult[Schedule]
"""``cost`` is the objective, but of a solver that plans: there it is the cost of the plan the schedule starts."""


class PlacementSolver(Solver[PlacementProblem, Schedule], Protocol):
    """A solver, and what its schedules need first; see ``drop_needless_moves`` and ``schedule_with_guarantees``."""

    plans: ClassVar[bool]
    """Whether it weighs moves of running jobs against each other, as solvers of eq. (1) do not."""
    leaves_room: ClassVar[bool]
    """Whether it may leave a job waiting beside GPUs it could use, as optima of eq. (1) do.

    One whose schedules are the best by eq. (1) that it found also says ``by_objective``; others need not say anything.
    """


class _Compiler:
    """Turns a ``PlaceFile`` into arrays."""

    def __init__(self, file: PlaceFile) -> None:
        self.file = file
        self.cluster = Cluster.of(file.nodes)
        self.tariff = file.electricity.tariff()
        self.node_at = {name: i for i, name in enumerate(self.cluster.names)}
        named = [t.name for t in file.tenants]
        if len(set(named)) < len(named):
            raise InputError("distinct tenant names", field="tenants.name", value=_first_twice(named))
        self.tenants = list(dict.fromkeys([*named, *(job.tenant for job in file.jobs)])) or ["default"]
        # class, width, per_node, time, node cost, asked
        self.rows: list[tuple[int, int, int, float, float, bool]] = []
        self.start = [0]
        self.stay: list[int] = []
        self.stay_nodes: list[int] = []

    def problem(self) -> PlacementProblem:
        file, cluster = self.file, self.cluster
        names = [job.name for job in file.jobs]
        if len(set(names)) < len(names):
            raise InputError("distinct job names", field="jobs.name", value=_first_twice(names))
        for job in file.jobs:
            self._add(job)
        self._check_allocations()
        tenant_at = {name: i for i, name in enumerate(self.tenants)}
        given = {t.name: t for t in file.tenants}
        columns = np.array(self.rows, dtype=np.float64).reshape(-1, 6)
        return PlacementProblem(
            now_s=file.now_s,
            interval_s=file.interval_s,
            postponement_penalty=file.postponement_penalty,
            node_names=cluster.names,
            node_class=cluster.klass,
            node_gpus=cluster.gpus,
            node_wait_s=np.zeros(len(cluster)),
            class_gpus=np.array([kind.gpus for kind in cluster.classes], dtype=np.int64),
            class_types=[kind.gpu_type for kind in cluster.classes],
            class_share_weight=cluster.share_weights,
            class_idle_cost_s=self.tariff.cost([kind.idle_w for kind in cluster.classes], file.now_s, file.now_s + 1.0),
            job_names=names,
            submit_s=np.array([job.submit_s for job in file.jobs], dtype=float),
            due_s=np.array([math.inf if job.due_s is None else job.due_s for job in file.jobs], dtype=float),
            weight=np.array([job.tardiness_weight for job in file.jobs], dtype=float),
            tenant=np.array([tenant_at[job.tenant] for job in file.jobs], dtype=np.int64),
            limit_s=np.array([job.time_limit_s or math.inf for job in file.jobs], dtype=float),
            start=np.array(self.start, dtype=np.int64),
            klass=columns[:, 0].astype(np.int64),
            width=columns[:, 1].astype(np.int64),
            per_node=columns[:, 2].astype(np.int64),
            time_s=columns[:, 3].copy(),
            node_cost=columns[:, 4].copy(),
            asked=columns[:, 5] > 0,
            stay=np.array(self.stay, dtype=np.int64),
            stay_nodes=np.array(self.stay_nodes, dtype=np.int64),
            tenant_names=self.tenants,
            tenant_weight=np.array([given[t].weight if t in given else 1.0 for t in self.tenants]),
            tenant_usage_gpu_s=np.array([given[t].usage_gpu_s if t in given else 0.0 for t in self.tenants]),
            use_every_node=file.use_every_node,
            node_domain=cluster.domain,
            currency=self.tariff.currency,
        )

    def _add(self, job: PlaceJob) -> None:
        times = read_times(job.times_s, f"jobs.{job.name}")
        self._check_types(job, times)
        first = len(self.rows)
        for gpu_type, by_count in times.items():
            for gpus, seconds in by_count.items():
                for klass, width, per_node in self.cluster.shapes(gpu_type, gpus):
                    self._row(job, klass, width, per_node, seconds)
        if len(self.rows) == first and job.current is None:
            smallest = min(g for by_count in times.values() for g in by_count)
            raise JobNeverFitsError(
                "a job that some node, or nodes alike together, could run", field=f"jobs.{job.name}.times_s",
                value=f"{plural(smallest, 'GPU')} or more of {', '.join(times)}",
            )  # fmt: skip
        self.stay.append(-1)
        if job.current is not None:
            nodes = [self._node(job, name) for name in job.current.nodes]
            klass = int(self.cluster.klass[nodes[0]])
            alike = len(set(nodes)) == len(nodes) and all(self.cluster.klass[n] == klass for n in nodes)
            if job.current.gpus % len(nodes) or not alike:
                raise InputError(
                    "different nodes alike with equally many GPUs on each",
                    field=f"jobs.{job.name}.current",
                    value=job.current.nodes,
                )
            self.stay[-1] = len(self.rows)
            self.stay_nodes += nodes
            self._row(job, klass, len(nodes), job.current.gpus // len(nodes), job.current.remaining_s)
        self.start.append(len(self.rows))

    def _check_types(self, job: PlaceJob, times: Times) -> None:
        where, asked, gpu_types = f"jobs.{job.name}", job.requested_gpu_type, self.cluster.gpu_types
        named = [("times_s", name) for name in times] + [("gpu_w", name) for name in job.gpu_w]
        for key, gpu_type in [*named, ("requested_gpu_type", asked)]:
            if gpu_type and gpu_type not in gpu_types:
                expected = f"a GPU type the nodes have ({', '.join(gpu_types)}){did_you_mean(gpu_type, gpu_types)}"
                raise InputError(expected, field=f"{where}.{key}", value=gpu_type)
        if asked and asked not in times:
            expected = f"a GPU type the job has times for ({', '.join(times)}){did_you_mean(asked, times)}"
            raise InputError(expected, field=f"{where}.requested_gpu_type", value=asked)
        for gpu_type, watts in job.gpu_w.items():
            if watts < 0:
                raise InputError("a number of watts, 0 or more", field=f"{where}.gpu_w.{gpu_type}", value=watts)

    def _node(self, job: PlaceJob, name: str) -> int:
        if name not in self.node_at:
            raise InputError("the name of a node", field=f"jobs.{job.name}.current.nodes", value=name)
        return self.node_at[name]

    def _row(self, job: PlaceJob, klass: int, width: int, per_node: int, seconds: float) -> None:
        kind = self.cluster.classes[klass]
        power_w = kind.idle_w + per_node * job.gpu_w.get(kind.gpu_type, kind.gpu_w)
        cost = self.tariff.cost(power_w, self.file.now_s, self.file.now_s + seconds)
        wished_type = job.requested_gpu_type in ("", kind.gpu_type)
        asked = job.requested_gpus == width * per_node and wished_type
        self.rows.append((klass, width, per_node, seconds, float(cost), asked))

    def _check_allocations(self) -> None:
        allocated = np.zeros(len(self.cluster), dtype=np.int64)
        at = 0
        for job, row in zip(self.file.jobs, self.stay, strict=True):
            if row < 0:
                continue
            for node in self.stay_nodes[at : at + self.rows[row][1]]:
                allocated[node] += self.rows[row][2]
                if allocated[node] > self.cluster.gpus[node]:
                    raise InputError(
                        f"running jobs that fit together on node {self.cluster.names[node]}",
                        field=f"jobs.{job.name}.current.gpus", value=job.current.gpus if job.current else None,
                    )  # fmt: skip
            at += self.rows[row][1]


def _first_twice(names: Sequence[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""
