"""Capacity plans of a controller: the planner's decisions become commands to the engine, and are counted.

A waiting job that fits no free GPUs of nodes that are on has nodes woken for it. Drained and cordoned nodes keep their
state, and count only as far as their GPUs are allocated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from commonwatt.capacity import CapacityPlan, CapacityPlanner, NodePowers, PoolDemand
from commonwatt.control.engine import NodeView, SetPower
from commonwatt.control.external_jobs import ExternalDemand
from commonwatt.control.job_registry import JobRegistry
from commonwatt.control.scheduling import JobCondition, Scheduling
from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.capacity import Target
from commonwatt.model.demand import Arrivals
from commonwatt.model.jobs import JobArrays
from commonwatt.placement import POSTPONED, PlacementProblem, Schedule

__all__ = [
    "AnnouncedJobs", "Capacity", "CapacityCounters", "PoolCounters", "PoolNow", "PowerNow", "coming_jobs", "only_on",
]  # fmt: skip


class AnnouncedJobs(Protocol):
    """Jobs whose time is known before they come: begin times, reservations, jobs that wait for others to end."""

    def coming(self, now_s: float, until_s: float) -> tuple[Floats, Ints, Ints]:
        """Return when jobs come that are known at *now_s* and come after it, up to *until_s*; GPUs; and pools. [K]."""
        ...


def coming_jobs(
    jobs: Iterable[tuple[float, int, int]], now_s: float, until_s: float, pool_of: Callable[[int], int]
) -> tuple[Floats, Ints, Ints]:
    """Return those of *jobs* (time, handle, new GPUs) after *now_s*, up to *until_s*, as ``AnnouncedJobs``."""
    own = sorted(job for job in jobs if now_s < job[0] <= until_s and job[2] > 0)
    times_s, handles, gpus = zip(*own, strict=True) if own else ((), (), ())
    pools = [pool_of(handle) for handle in handles]
    return np.array(times_s, dtype=float), np.array(gpus, dtype=np.int64), np.array(pools, dtype=np.int64)


@dataclass
class CapacityCounters:
    """Counts of what the plans did.

    Attributes
    ----------
    steps, served
        Plans made, and those at which the GPUs on sufficed for the demand of that instant in every pool.
    fallback
        Plans that kept all nodes of a pool on because no promise could be made.
    wakes
        Wake commands.
    started
        Jobs that were placed, by handle.
    delays_s
        Time each delayed job waited for nodes to wake, by handle.
    pools
        Counts of each pool, by index.
    bound
        Plans that the power budget kept from having as many nodes on as they would have.
    power_delays_s
        Time each job waited for power, by handle.
    """

    steps: int = 0
    served: int = 0
    fallback: int = 0
    wakes: int = 0
    started: set[int] = field(default_factory=set)
    delays_s: dict[int, float] = field(default_factory=dict)
    pools: list[PoolCounters] = field(default_factory=list)
    bound: int = 0
    power_delays_s: dict[int, float] = field(default_factory=dict)


@dataclass
class PoolCounters:
    """Counts of the plans of one pool: sums of GPUs over plans, plans with enough GPUs on, and without a promise."""

    served: int = 0
    fallback: int = 0
    on_gpus: int = 0
    wanted_gpus: int = 0
    promised_gpus: int = 0


@dataclass(frozen=True)
class PoolNow:
    """A pool at the last plan.

    Parameters
    ----------
    gpus, on_gpus, wanted_gpus, promised_gpus
        GPUs of its nodes, those of nodes that were on or waking, those of running and waiting jobs, and those promised
        for the next step.
    kept
        Whether the promise is being kept.
    sentence
        Why not, in one sentence.
    """

    name: str
    gpus: int
    on_gpus: int
    wanted_gpus: int
    promised_gpus: int
    kept: bool
    sentence: str


@dataclass(frozen=True)
class PowerNow:
    """The power budget at the last plan.

    Parameters
    ----------
    limit_w, counted_w
        The budget, infinity for none; and what the nodes counted for.
    nodes_off
        Nodes that the plan would have kept on, but for the budget.
    """

    limit_w: float
    counted_w: float
    nodes_off: int


def only_on(view: NodeView) -> NodeView:
    """Return *view* for placement: sleeping nodes have no usable GPUs."""
    return replace(view, usable_gpus=np.where(view.power_state >= 0, 0, view.usable_gpus))


class Capacity:
    """Carries out the plans of *planner*, step by step.

    Attributes
    ----------
    known
        Tells which jobs are known to come; ``None``: none are.
    planned_s
        When jobs are to start that placement defers, by handle: they come then.
    targets
        What is promised to each pool; ``None`` or empty: nothing is.
    pool_gpus
        GPUs that jobs of each pool may use.
    pools_now
        Each pool at the last plan.
    power_now
        The power budget at the last plan; ``None`` without one.
    claimed_for_sharing
        Nodes that power keeps off and shared GPUs need: the next plan promises them first.
    shared_by_pool
        Returns the shared GPUs of each pool, and those with what waits for a part of one; ``None``: none are shared.
    external
        What external jobs have and want; ``None``: they do not count.
    own_jobs
        Whether our own jobs count that wait or are known to come: they do not where others place all jobs.
    """

    def __init__(self, planner: CapacityPlanner, targets: Sequence[Target | None] = ()) -> None:
        self._planner, self.targets = planner, tuple(targets)
        self.pools, self.pool_gpus = planner.pools, planner.pools.gpus(planner.cluster).tolist()
        self.counters = CapacityCounters(pools=[PoolCounters() for _ in planner.pools.names])
        self.renew_s = math.inf  # when its maker should build it again, with the demand observed by then
        self.announced_jobs: AnnouncedJobs | None = None
        self.planned_s: Mapping[int, float] = {}
        self.pools_now: tuple[PoolNow, ...] = ()
        self.power_now: PowerNow | None = None
        self.shared_by_pool: Callable[[], tuple[Ints, Ints]] | None = None
        self.claimed_for_sharing: set[int] = set()
        self.external: ExternalDemand | None = None
        self.own_jobs = True
        self._external_came: list[tuple[int, int]] = []  # pool and GPUs of external jobs since the last look
        self._waits_since: dict[int, float] = {}
        self._counted: int | None = None  # jobs whose arrival was observed
        self._later: set[int] = set()  # jobs whose time has not come, by handle
        self._came: list[tuple[int, int, int]] = []  # pool, GPUs, and demand met, of jobs since the last plan
        self._pool: list[int] = []  # of each job
        self._short: dict[int, float] = {}  # jobs that wait for power, by handle: since when
        self._claimed: set[int] = set()  # nodes that they need
        self._slept: tuple[float, list[int]] = -math.inf, []  # time of the last plan, and nodes that it put to sleep

    @property
    def next_s(self) -> float | None:
        """When the next plan is due; ``None`` before the first."""
        return self._planner.next_s

    @property
    def limit_w(self) -> float:
        """The plan's own power budget, W; infinity without one."""
        return self._planner.limit_w

    @property
    def waits_for_power(self) -> Set[int]:
        """Jobs that wait because the power budget lets no node wake for them, by handle."""
        return self._short.keys()

    # -- pools

    def submitted(self, table: JobArrays, rows: Ints) -> None:
        """Take note of jobs, in order of their handles."""
        self._pool += self.pools_of(table, rows).tolist()

    def pools_of(self, table: JobArrays, rows: Ints) -> Ints:
        """Return the pool of each of *rows*, jobs of *table*. Shape [R]."""
        return self.pools.of_jobs(table, rows, self._planner.cluster)

    def pool_of(self, handle: int, nodes: Sequence[int] = (), gpus: int = 0) -> int:
        """Return the pool a job counts for: its own, or that of *nodes* on which it has so many *gpus* if it runs."""
        if len(self.pools) == 1:
            return 0
        pool, cluster = self._pool[handle], self._planner.cluster
        if not nodes:
            return pool
        return self.pools.running(pool, int(cluster.klass[nodes[0]]), whole=gpus >= cluster.gpus[list(nodes)].sum())

    def _uses(self, registry: JobRegistry, gpus: Mapping[int, int], busy: Bools) -> Bools | None:
        """Whether a pool has GPUs of a node; those of shared GPUs count, too. ``None``: no pool takes whole nodes."""
        if not self.pools.whole.any():
            return None
        uses = np.zeros((len(self.pools), len(busy)), dtype=bool)
        for handle, count in gpus.items():
            nodes = registry.nodes.get(handle, ())
            if nodes:
                uses[self.pool_of(handle, nodes, count), list(nodes)] = True
        if self.external is not None:
            uses |= self.external.uses
        shared = np.flatnonzero(busy & ~uses.any(axis=0))
        uses[self.pools.home[self._planner.cluster.klass[shared]], shared] = True
        return uses

    def _by_pool(self, registry: JobRegistry, gpus: Mapping[int, int]) -> Ints:
        """Sum *gpus* of jobs, by handle, over the jobs of each pool. Shape [P]."""
        sums = np.zeros(len(self.pools), dtype=np.int64)
        for handle, count in gpus.items():
            sums[self.pool_of(handle, registry.nodes.get(handle, ()), count)] += count
        return sums

    def wanted(
        self, registry: JobRegistry, gpus: Mapping[int, int], waiting: Callable[[], Mapping[int, int]]
    ) -> dict[str, int] | None:
        """Return the GPUs that jobs of each pool have or want, by its name; ``None`` where there is one pool."""
        if len(self.pools) == 1:
            return None
        wanted = self._by_pool(registry, gpus) + self._by_pool(registry, waiting())
        wanted += 0 if self.shared_by_pool is None else self.shared_by_pool()[1]
        wanted += 0 if self.external is None else self.external.wanted_gpus
        return dict(zip(self.pools.names, wanted.tolist(), strict=True))

    def observe_external(self, demand: ExternalDemand | None, *, own_jobs: bool = True) -> None:
        """Take note of what external jobs have and want now, if they count; at the first look all were there before.

        *own_jobs* as the attribute: those that do not count claim no nodes.
        """
        self.own_jobs = own_jobs
        if not own_jobs:
            self._short, self._claimed = {}, set()
        if demand is None:
            self._external_came = []
        elif self.external is not None:
            self._external_came += demand.came(self.external)
        self.external = demand

    # -- plans

    def plan_for(
        self, registry: JobRegistry, scheduling: Scheduling, gpus: Mapping[int, int], waiting: Mapping[int, int],
        wanted_gpus: int, now_s: float, view: NodeView, busy: Bools,
    ) -> list[SetPower]:  # fmt: skip
        """Return the commands at *now_s* for the jobs of *registry*, if a plan is due.

        Parameters
        ----------
        gpus, waiting
            GPUs of running jobs, and those that waiting jobs ask for, by handle.
        wanted_gpus
            All of them, and those wanted for sharing, and by external jobs.
        """
        profiling = scheduling.jobs(JobCondition.PROFILING)
        apart = (JobCondition.NOT_YET, JobCondition.DEFERRED, JobCondition.NO_NODE)
        not_yet = set[int]().union(*map(scheduling.jobs, apart))
        allocated = {handle: count for handle, count in gpus.items() if handle not in profiling}
        asked, active = registry.job("asked_gpus"), registry.active
        external = self.external
        if len(self.pools) == 1:
            in_use = sum(allocated.values()) + (0 if external is None else int(external.running_gpus.sum()))
            return self.plan(now_s, view, busy, in_use, wanted_gpus, asked, not_yet, active)
        wanted, has = (
            self._by_pool(registry, gpus) + self._by_pool(registry, waiting),
            self._by_pool(registry, allocated),
        )
        if self.shared_by_pool is not None:
            own, all_wanted = self.shared_by_pool()
            has, wanted = has + own, wanted + all_wanted
        if external is not None:
            has, wanted = has + external.running_gpus, wanted + external.wanted_gpus
        return self.plan(now_s, view, busy, has, wanted, asked, not_yet, active, self._uses(registry, gpus, busy))

    def plan(
        self,
        now_s: float,
        view: NodeView,
        busy: Bools,
        allocated_gpus: int | Ints,
        wanted_gpus: int | Ints,
        asked_gpus: Ints | None = None,
        not_yet: Set[int] = frozenset(),
        active: Set[int] = frozenset(),
        uses: Bools | None = None,
    ) -> list[SetPower]:
        """Return the commands at *now_s*, if a plan is due.

        Parameters
        ----------
        view
            The nodes.
        busy
            Nodes in use, by jobs or by others. Shape [N].
        allocated_gpus, wanted_gpus
            GPUs allocated to jobs of each pool, and those plus what waiting jobs ask for. Shape [P].
        asked_gpus
            What every job so far asked for, in order of submission: the new ones among them are this tick's arrivals.
        not_yet
            Jobs whose time has not come, by index into *asked_gpus*: they arrive when it has.
        active
            Jobs that have not ended: one cancelled before its time never arrives.
        uses
            Whether a pool has GPUs of a node, where pools take whole nodes. Shape [P, N].
        """
        allocated, wanted = np.atleast_1d(allocated_gpus), np.atleast_1d(wanted_gpus)
        if asked_gpus is not None:
            self._observe(asked_gpus, wanted, not_yet, active)
        nodes = NodePowers(view.usable_gpus, view.power_state, view.wait_s, busy)
        if not self._short.keys() & active:
            self._claimed.clear()
        due = self._due(now_s, asked_gpus)
        demands = [
            PoolDemand(int(allocated[p]), int(wanted[p]), self._arrivals(p), None if due is None else due[p])
            for p in range(len(self.pools))
        ]
        plan = self._planner.plan(now_s, nodes, demands, self._claimed | self.claimed_for_sharing, uses)
        if plan is None:
            return []
        self._came.clear()
        self._slept = now_s, [node for node, state in plan.changes if state is not None]
        self._count(plan, nodes, wanted)
        return [SetPower(node, state) for node, state in plan.changes]

    def _count(self, plan: CapacityPlan, nodes: NodePowers, wanted: Ints) -> None:
        """Count what *plan* did."""
        counters = self.counters
        counters.steps += 1
        counters.served += all(plan.served)
        counters.fallback += not all(own.kept for own in plan.expected)
        counters.wakes += sum(state is None for _, state in plan.changes)
        if plan.power is not None:
            off = len(plan.power.off)
            counters.bound += off > 0
            self.power_now = PowerNow(plan.power.limit_w, plan.power.counted_w, off)
        reach, on = plan.reach, np.where(nodes.power_state < 0, nodes.usable_gpus, 0)
        pools_now = []
        for p, (name, own) in enumerate(zip(self.pools.names, plan.expected, strict=True)):
            now = PoolNow(
                name, int(nodes.usable_gpus[reach[p]].sum()), int(on[reach[p]].sum()), int(wanted[p]),
                int(own.promised_gpus[0]), own.kept, own.sentence,
            )  # fmt: skip
            pools_now.append(now)
            counts = counters.pools[p]
            counts.served += plan.served[p]
            counts.fallback += not own.kept
            counts.on_gpus += now.on_gpus
            counts.wanted_gpus += now.wanted_gpus
            counts.promised_gpus += now.promised_gpus
        self.pools_now = tuple(pools_now)

    def _observe(self, asked_gpus: Ints, wanted: Ints, not_yet: Set[int], active: Set[int]) -> None:
        """Note the jobs that came since the last tick; those there before the first one count as known."""
        first = len(asked_gpus) if self._counted is None else self._counted
        self._counted = len(asked_gpus)
        new = [
            *sorted((self._later - not_yet) & active),
            *(j for j in range(first, len(asked_gpus)) if j not in not_yet),
        ]
        self._later = set(not_yet)
        own = [(self.pool_of(j), int(asked_gpus[j])) for j in new if self.own_jobs]
        came = own + self._external_came
        self._external_came = []
        behind = np.zeros(len(self.pools), dtype=np.int64)
        for pool, gpus in came:
            behind[pool] += gpus
        for pool, gpus in came:
            behind[pool] -= gpus
            self._came.append((pool, gpus, int(wanted[pool] - behind[pool])))

    def _due(self, now_s: float, asked_gpus: Ints | None) -> Floats | None:
        """GPUs of jobs known to come by the end of each step ahead, [P, m]; ``None`` if none is known."""
        if (self.next_s is not None and now_s < self.next_s - 1e-6) or not self.own_jobs:
            return None
        ends_s = now_s + self._planner.steps_s
        coming = [] if self.announced_jobs is None else [self.announced_jobs.coming(now_s, float(ends_s[-1]))]
        if asked_gpus is not None and self.planned_s:
            soon = [handle for handle, at_s in self.planned_s.items() if now_s < at_s <= ends_s[-1]]
            pools = np.array([self.pool_of(handle) for handle in soon], dtype=np.int64)
            coming.append((np.array([self.planned_s[handle] for handle in soon]), asked_gpus[soon], pools))
        if not any(len(times_s) for times_s, _, _ in coming):
            return None
        times_s, gpus, pools = (np.concatenate(columns) for columns in zip(*coming, strict=True))
        by_then = (times_s[None, :] <= ends_s[:, None] + 1e-6).astype(float)
        return np.array([by_then @ np.where(pools == p, gpus, 0) for p in range(len(self.pools))])

    def _arrivals(self, pool: int) -> Arrivals:
        came = [(gpus, met) for own, gpus, met in self._came if own == pool]
        gpus, met = np.array(came, dtype=float).reshape(-1, 2).T
        return Arrivals(np.zeros(len(gpus), dtype=np.int64), gpus, met)

    # -- waiting jobs

    def rescue(
        self, problem: PlacementProblem, schedule: Schedule, handles: Ints, view: NodeView, now_s: float,
        busy: Bools | None = None, closed: Collection[int] = (),
    ) -> list[SetPower]:  # fmt: skip
        """Return the sleeping nodes to wake for jobs that fit on no nodes that are on.

        Where the power budget does not allow it, the job waits for power, and the next plans promise its nodes first.
        Jobs behind it wake no nodes meanwhile. *busy* are nodes in use (shape [N]); *closed* ones are not woken.
        """
        asleep = np.setdiff1d(np.flatnonzero((view.power_state >= 0) & (view.usable_gpus > 0)), list(closed))
        waiting = np.flatnonzero((schedule.choice == POSTPONED) & (problem.stay < 0))
        self._claimed, short_before, self._short = set(), self._short, {}
        if not len(asleep) or not len(waiting):
            self._end_waits(short_before, now_s)
            return []
        room_w, more_w = self._power_left(view, now_s, busy)
        free = _free(problem, schedule)
        left = dict.fromkeys(asleep[np.argsort(view.wait_s[asleep], kind="stable")].tolist())
        woken: list[int] = []
        for j in waiting:
            row, handle = _row(problem, int(j)), int(handles[j])
            klass, width, each = int(problem.klass[row]), int(problem.width[row]), int(problem.per_node[row])
            roomy = np.flatnonzero((self._planner.cluster.klass == klass) & (free >= each))[:width]
            more = [n for n in left if self._planner.cluster.klass[n] == klass][: width - len(roomy)]
            if len(roomy) + len(more) < width:
                continue
            for n in more:
                del left[n]
                free[n] = view.usable_gpus[n]
            free[[*roomy, *more]] -= each
            if not more:
                continue
            needed_w = float(more_w[more].sum())
            if needed_w > room_w + 1e-6 or self._short:
                if not self._short:
                    self._claimed.update(more)
                self._short[handle] = short_before.get(handle, now_s)
                continue
            room_w -= needed_w
            woken += more
            self._waits_since.setdefault(handle, now_s)
        self.counters.wakes += len(woken)
        self._end_waits(short_before, now_s)
        return [SetPower(n, None) for n in woken]

    def explained(self, schedule: Schedule, handles: Ints) -> Schedule:
        """Return *schedule* of *handles*, in which jobs that wait for power say so."""
        if not self._short:
            return schedule
        short = np.isin(handles, list(self._short)) & (schedule.choice == POSTPONED)
        return replace(schedule, capped=short if schedule.capped is None else schedule.capped | short)

    def _power_left(self, view: NodeView, now_s: float, busy: Bools | None) -> tuple[float, Floats]:
        """Return by how much more power nodes may count for, W, and what waking each of them adds, W. Shape [N]."""
        if self._planner.budget is None:
            return math.inf, np.zeros(len(view.wait_s))
        in_use = np.zeros(len(view.wait_s), dtype=bool) if busy is None else busy
        wait_s = view.wait_s.copy()
        slept_s, slept = self._slept
        wait_s[slept if slept_s == now_s else []] = np.inf  # they could be back at once, but are not asleep yet
        nodes = NodePowers(view.usable_gpus, view.power_state, wait_s, in_use)
        return self._planner.power_room_w(now_s, nodes), self._planner.budget.more_w(nodes)

    def may_wake(self, node: int, view: NodeView, now_s: float, busy: Bools) -> bool:
        """Whether *node* is on, or the power budget allows to wake it. *busy* are nodes in use. Shape [N]."""
        if view.power_state[node] < 0:
            return True
        room_w, more_w = self._power_left(view, now_s, busy)
        may = float(more_w[node]) <= room_w + 1e-6
        if not may and not self.claimed_for_sharing:
            self.claimed_for_sharing.add(node)
        return may

    def _end_waits(self, before: Mapping[int, float], now_s: float) -> None:
        """Count how long jobs waited for power that do not wait for it any more."""
        for handle, since_s in before.items():
            if handle not in self._short:
                self.counters.power_delays_s[handle] = self.counters.power_delays_s.get(handle, 0.0) + now_s - since_s

    def started(self, handle: int, nodes: Sequence[int], view: NodeView, now_s: float) -> None:
        """Count the delay of a job placed on *nodes* that waited, or has to wait, for nodes to wake."""
        self.counters.started.add(handle)
        wait_s = max(float(view.wait_s[n]) for n in nodes)
        since_s = self._waits_since.pop(handle, now_s)
        if wait_s > 0 or since_s < now_s:
            delayed_s = now_s + wait_s - since_s
            self.counters.delays_s[handle] = self.counters.delays_s.get(handle, 0.0) + delayed_s


def _free(problem: PlacementProblem, schedule: Schedule) -> Ints:
    """GPUs that *schedule* leaves free on the nodes of *problem*. Shape [N]."""
    free = problem.node_gpus.copy()
    for j in np.flatnonzero(schedule.choice != POSTPONED):
        np.subtract.at(free, schedule.nodes_of(problem, j), problem.per_node[schedule.choice[j]])
    return free


def _row(problem: PlacementProblem, j: int) -> int:
    """Return the configuration a waiting job asked for, else its smallest."""
    rows = np.arange(problem.start[j], problem.start[j + 1])
    asked = rows[problem.asked[rows]]
    if len(asked):
        return int(asked[0])
    return int(rows[np.argmin(problem.width[rows] * problem.per_node[rows])])
