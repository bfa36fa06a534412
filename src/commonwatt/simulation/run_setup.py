"""Builds engine, clock and controller for one run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from commonwatt.control.capacity import coming_jobs
from commonwatt.control.controller import Controller
from commonwatt.control.electricity import check_electricity
from commonwatt.control.engine import JobSource
from commonwatt.control.events import Event, EventKind
from commonwatt.control.fleet.controller import FleetController, eager
from commonwatt.control.job_registry import JobRegistry, Rules, Status
from commonwatt.control.policy import Policy
from commonwatt.control.preemption import PreemptionTracker
from commonwatt.control.run_time_estimates import RunTimeEstimates, relative_times, requested_rows
from commonwatt.control.scheduling import JobCondition
from commonwatt.data.profiles.base import CLASSES
from commonwatt.data.profiles.lucid import make_packing
from commonwatt.engines.clocks import VirtualClock, run
from commonwatt.engines.simulated.engine import Outage, SimulatedEngine, World
from commonwatt.engines.simulated.shared_gpus import SharingCluster
from commonwatt.model.accounting import AccountTree
from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.demand import DemandSeries
from commonwatt.model.dependencies import Dependency, WaitedFor, handovers, met
from commonwatt.model.errors import InputError
from commonwatt.model.fleet import Fleet
from commonwatt.model.jobs import JobArrays
from commonwatt.model.nodes import Cluster, Hosts
from commonwatt.model.packing import Packing
from commonwatt.model.policies import RESIZING
from commonwatt.model.scenario import Knowledge, LogWorkload, PeerName, PolicySpec, Scenario
from commonwatt.planning.capacity import Past, foreseen_by, make_capacity
from commonwatt.simulation.reference import reference_runs
from commonwatt.simulation.window import Window

__all__ = [
    "Dependents", "PolicyRun", "TableSource", "believed_table", "check_runs", "due_dates_move", "packing_of",
    "run_policy", "slowdowns",
]  # fmt: skip

MOST_AGAIN = 4
"""Decisions at one moment after the first, while limits of QOS and associations keep back other jobs than before."""


class TableSource:
    """Submits the jobs of a table at their times.

    Parameters
    ----------
    pools_of
        Returns the pool of each of some rows of the table; by default there is one pool.
    """

    def __init__(self, table: JobArrays, pools_of: Callable[[JobArrays, Ints], Ints] | None = None) -> None:
        self._table, self._pools_of = table, pools_of or _one_pool
        self._order = np.argsort(table.submit_s, kind="stable").astype(np.int64)
        self._times = table.submit_s[self._order]
        self._asked = table.config_gpus[requested_rows(table)] if len(table.known_s) else table.requested_gpus
        self._waits = np.array([bool(own) for own in table.after] or [False] * len(table), dtype=bool)
        self._next = 0

    def next_s(self) -> float | None:
        """Return the time of the next submission."""
        return float(self._times[self._next]) if self._next < len(self._times) else None

    def poll(self, now_s: float) -> tuple[JobArrays, Ints] | None:
        """Return new submissions up to *now_s*."""
        upto = int(np.searchsorted(self._times, now_s, side="right"))
        if upto == self._next:
            return None
        rows, self._next = self._order[self._next : upto], upto
        return self._table, rows

    def coming(self, now_s: float, until_s: float) -> tuple[Floats, Ints, Ints]:
        """Return when jobs come that were known by *now_s* and come after it, up to *until_s*; GPUs; and pools.

        Not those that wait for others: when they come is known once these run.
        """
        if not len(self._table.known_s):
            return np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        first, last = (int(np.searchsorted(self._times, at_s, side="right")) for at_s in (now_s, until_s))
        rows = self._order[first:last]
        rows = rows[(self._table.known_s[rows] <= now_s) & ~self._waits[rows]]  # false for NaN
        return self._table.submit_s[rows], self._asked[rows], self._pools_of(self._table, rows)


class Dependents:
    """Keeps *controller* from starting jobs of *table* before the jobs they wait for have started or ended.

    A job counts as submitted when it may start: waiting, slowdown and age are counted from then, as Slurm does by its
    time ``Eligible``.

    Parameters
    ----------
    source
        Tells the other jobs that are known to come.
    due_moves
        Whether due dates are so long after a job may start, not dates.
    """

    def __init__(self, controller: Controller, table: JobArrays, source: TableSource, *, due_moves: bool) -> None:
        self._controller, self._source, self._due_moves, self._names = controller, source, due_moves, table.names
        self._rows = {name: j for j, name in enumerate(table.names)}
        self._after = [{self._rows[name]: kind for name, kind in own.items()} for own in table.after]
        self._behind: dict[int, list[int]] = {}  # by row: those that wait for it
        for row, own in enumerate(self._after):
            for other in own:
                self._behind.setdefault(other, []).append(row)
        self._handle: dict[int, int] = {}  # of each job that has been submitted, by row
        self._waiting: dict[int, Mapping[int, Dependency]] = {}  # by handle
        self._ends: dict[int, tuple[float, float]] = {}  # by handle: when a job was placed, and its expected end
        self._read = 0  # events of the log

    def look(self, now_s: float) -> bool:
        """Let go of the jobs that may start at *now_s*; returns whether there are any."""
        registry, log = self._controller.registry, self._controller.log
        events = log.since(self._read)
        new = [event.handle for event in events if event.kind is EventKind.SUBMITTED]
        for handle in new:
            row = self._rows[registry.names[handle]]
            self._handle[row] = handle
            if self._after[row]:
                self._waiting[handle] = self._after[row]
        moved = {event.handle for event in events if event.handle >= 0}
        rows = {row for handle in moved for row in self._behind.get(self._rows[registry.names[handle]], ())}
        touched = sorted((moved | {self._handle[row] for row in rows if row in self._handle}) & self._waiting.keys())
        free = [handle for handle in touched if not self._still(handle)]
        for handle in free:
            del self._waiting[handle]
            waited_s = now_s - float(registry.job("submit_s")[handle])
            registry.job("submit_s")[handle] += waited_s
            registry.job("due_s")[handle] += waited_s if self._due_moves else 0.0
        if touched:
            self._controller.scheduling.mark_only(self._waiting, JobCondition.NOT_YET)
        for handle in (h for h in new if h in self._waiting):
            text = f"{registry.names[handle]} waits: it waits for job {', '.join(self._still(handle)[:5])}"
            log.append(Event(now_s, EventKind.WAITS, handle, reason="dependency", text=text))
        if free:
            self._controller.decide_anew()
        self._read = len(log)
        return bool(free)

    def coming(self, now_s: float, until_s: float) -> tuple[Floats, Ints, Ints]:
        """Return jobs as ``AnnouncedJobs``: one comes when those it waits for are expected to end."""
        asked, capacity = self._controller.registry.job("asked_gpus"), self._controller.capacity
        others = {row: self._state_of(row, now_s) for own in self._waiting.values() for row in own}
        by_handle = handovers(self._waiting, others)
        jobs = [(at_s, handle, int(asked[handle]) - freed) for handle, (at_s, freed) in by_handle.items()]
        own = coming_jobs(jobs, now_s, until_s, (lambda _: 0) if capacity is None else capacity.pool_of)
        times_s, gpus, pools = self._source.coming(now_s, until_s)
        return np.append(times_s, own[0]), np.append(gpus, own[1]), np.append(pools, own[2])

    def _still(self, handle: int) -> list[str]:
        """Return what a job still waits for."""
        own = self._waiting[handle]
        return [f"{self._names[row]} ({kind})" for row, kind in own.items() if not met(kind, self._state_of(row))]

    def _state_of(self, row: int, now_s: float | None = None) -> WaitedFor:
        """Return what is known of a job; without *now_s* not when it is expected to end."""
        registry, handle = self._controller.registry, self._handle.get(row)
        if handle is None:
            return WaitedFor()
        running = handle in registry.nodes
        return WaitedFor(
            began=not math.isnan(registry.job("began_s")[handle]),
            ended=handle not in registry.active,
            completed=registry.job("status")[handle] == Status.COMPLETED,
            expected_end_s=self._expected_end_s(handle, now_s) if running and now_s is not None else None,
            gpus=self._controller.gpus.get(handle, 0),
        )

    def _expected_end_s(self, handle: int, now_s: float) -> float:
        """Return when a running job was expected to end at the first plan since it got its nodes, by the policy."""
        registry, one = self._controller.registry, np.array([handle])
        placed_s = float(registry.job("placed_s")[handle])
        if self._ends.get(handle, (math.nan, 0.0))[0] != placed_s:
            progress, remaining = self._controller.engine.progress(one), self._controller.remaining
            left = None if remaining is None else remaining(one, now_s, progress)
            part = 1.0 - progress.done_epochs / registry.job("epochs")[one] if left is None else left.now_s
            time_s = registry.row("time_s")[registry.job("row")[one]] * part + progress.until_work_s
            self._ends[handle] = placed_s, now_s + float(time_s[0])
        return self._ends[handle][1]


def _one_pool(_: JobArrays, rows: Ints) -> Ints:
    return np.zeros(len(rows), dtype=np.int64)


@dataclass(frozen=True)
class PolicyRun:
    """A finished run: the controller with its state, the time spent deciding, and the window common to all runs."""

    controller: Controller
    scheduler_s: float
    window: Window
    capacity: CapacitySpec | None = None
    weights: dict[str, float] | None = None  # of tenants, where a policy guarantees them something


def slowdowns(scenario: Scenario, jobs: int, seed: int) -> Floats:
    """Return true over expected run time of each job, [J], the same for all policies; empty without an error."""
    if not scenario.runtime_error:
        return np.zeros(0)
    rng = np.random.default_rng([seed, 2])
    return np.exp(rng.normal(0.0, scenario.runtime_error, jobs))


def tenant_weights(scenario: Scenario) -> dict[str, float]:
    """Return the weights of tenants: as the scenario says, else by the shares of their accounts; else they have 1."""
    own = {tenant.name: tenant.weight for tenant in scenario.tenants}
    return AccountTree(scenario.associations).weights | own


def due_dates_move(scenario: Scenario) -> bool:
    """Whether due dates are drawn as a time after a job may start: those of a log are, those written down are dates."""
    return isinstance(scenario.workload, LogWorkload)


def believed_table(scenario: Scenario, knowledge: Knowledge, table: JobArrays, seed: int) -> JobArrays:
    """Return *table* as schedulers see it: with wrong relative speeds, and without run times unless these are known.

    The engine keeps the true table, so a wrong speed changes what is believed, never what is true.
    """
    if scenario.speed_error:
        rng = np.random.default_rng([seed, 4])
        error = np.exp(rng.normal(0.0, scenario.speed_error, len(table.config_time_s)))
        error[requested_rows(table)] = 1.0
        table = replace(table, config_time_s=table.config_time_s * error)
    return table if knowledge == "oracle" else relative_times(table)


def check_runs(scenario: Scenario, cluster: Cluster, table: JobArrays) -> None:
    """Raise ``InputError`` on jobs that never fit, and unknown nodes or power states."""
    _outages(scenario, cluster)
    for policy in scenario.policies:
        unused = policy.unused_nodes or scenario.unused_nodes
        if unused.state is not None and (policy.capacity or scenario.capacity) is None:
            for kind in cluster.classes:
                if kind.states:  # else it stays on
                    kind.state(unused.state)
        if policy.solver in get_args(PeerName):
            _check_peer(scenario, policy, cluster, table)
    JobRegistry(cluster).add(table, np.arange(len(table)))
    check_electricity(scenario, cluster, table)


def packing_of(policy: PolicySpec, cluster: Cluster, table: JobArrays) -> Packing | None:
    """Return what says which jobs of *table* may share GPUs under *policy*; ``None``: none may."""
    if policy.solver != "lucid":
        return None
    return make_packing(table.kinds, [kind.gpu_type for kind in cluster.classes])


def _check_packing(packing: Packing, cluster: Cluster, field: str) -> None:
    """Raise ``InputError`` if no two jobs could ever share GPUs because nothing is known of jobs, or of GPUs."""
    if not packing.use:
        expected = f"jobs of a known class of models ({', '.join(CLASSES)}), which says what they use of a GPU"
        raise InputError(expected, field=field, value="lucid with none")
    if not packing.gpu_memory_gib:
        types = ", ".join(cluster.gpu_types)
        raise InputError("a GPU type whose memory is known (commonwatt's table of data sheets)", field=field,
                         value=f"lucid with {types}")  # fmt: skip


def _able(cluster: Cluster, table: JobArrays) -> Bools:
    """Return which configurations of *table* some class of nodes has room for, [C]."""
    pairs, which = np.unique(np.stack((table.config_type, table.config_gpus)), axis=1, return_inverse=True)
    able = [bool(cluster.shapes(table.gpu_types[kind], int(gpus))) for kind, gpus in pairs.T]
    return np.array(able, dtype=bool)[which.reshape(-1)]


def _check_peer(scenario: Scenario, policy: PolicySpec, cluster: Cluster, table: JobArrays) -> None:
    """Raise ``InputError`` if a scheduler for jobs of fixed size is not defined for these jobs."""
    where = f"policies.{policy.label}"
    rounds = policy.rounds or scenario.rounds
    if rounds is not None and policy.solver in ("gavel", "themis"):
        usual_s = (policy.preemption or scenario.preemption).restart_s
        own_s = np.where(np.isnan(table.restart_s), usual_s, table.restart_s)
        longest_s = float(own_s.max(initial=usual_s))
        if rounds.length_s <= longest_s:
            raise InputError(
                f"more than the longest restart, {longest_s:g} s, or jobs that change types every round never work",
                field=f"{where}.rounds.length_s", value=rounds.length_s,
            )  # fmt: skip
    if policy.solver in RESIZING or policy.resize:
        return
    if (packing := packing_of(policy, cluster, table)) is not None:
        _check_packing(packing, cluster, f"{where}.solver")
    able = _able(cluster, table)
    for j, asked in enumerate(table.requested_gpus.tolist()):
        own = table.configs(j)
        sizes = set(table.config_gpus[own][able[own]].tolist())
        if len(sizes) > 1 and asked not in sizes:
            what = f"{asked}, more than it can have here" if asked else "none"
            raise InputError(
                f"jobs that can have the GPUs they ask for (requested_gpus), as {policy.solver} does not resize jobs",
                field=f"{where}.solver", value=f"{table.names[j]}, which asks for {what}",
            )  # fmt: skip
    if policy.solver == "gavel" and policy.objective == "max-sum":
        iterations = table.iterations if len(table.iterations) else np.full(len(table), np.nan)
        for j in np.flatnonzero(np.isnan(iterations)).tolist():
            raise InputError(
                "jobs with known training iterations, whose sum max-sum counts", field=f"{where}.objective",
                value=f"{policy.objective} with {table.names[j]}, which has none",
            )  # fmt: skip


def run_policy(
    scenario: Scenario, spec: PolicySpec, cluster: Cluster, table: JobArrays, seed: int,
    on_tick: Callable[[float], None] = lambda _: None, past: Past | None = None, until_s: float = math.inf,
    hosts: Hosts | None = None, fleet: Fleet | None = None,
) -> PolicyRun:  # fmt: skip
    """Run the workload under one policy, after ``check_runs``.

    *past* is the demand before the period, for a capacity plan that forecasts. A plan with foresight runs twice.
    *hosts* are those of nodes whose GPUs are on several. Services and fractional jobs of a *fleet* run beside the jobs.
    The run ends with its last job, at the latest at *until_s*.
    """
    table = replace(table.within_power_limits(spec.power_limits), packing=packing_of(spec, cluster, table))
    unused, preemption = spec.unused_nodes or scenario.unused_nodes, spec.preemption or scenario.preemption
    plan, rounds = spec.capacity or scenario.capacity, spec.rounds or scenario.rounds
    foreseen: list[DemandSeries] | None = None
    if plan is not None and plan.policy == "foresight":
        all_on = CapacitySpec(policy="always-on", step_s=plan.step_s, pools=plan.pools, share=plan.share)
        first = spec.model_copy(update={"capacity": all_on})
        before = run_policy(scenario, first, cluster, table, seed, until_s=until_s, hosts=hosts, fleet=fleet).controller
        foreseen = foreseen_by(plan, cluster, before.samples)
    world = World(
        restart_s=preemption.restart_s,
        first_start=preemption.first_start,
        lose_work=preemption.lose_work,
        unused_state=unused.state if plan is None else None,
        unused_after_s=unused.after_s,
        slowdown=slowdowns(scenario, len(table), seed),
        outages=_outages(scenario, cluster),
        hosts=hosts,
    )
    tariff = scenario.electricity.tariff()
    submitted_s = float(table.submit_s.min()), float(table.submit_s.max())
    knowledge = spec.knowledge or scenario.knowledge
    estimates = None if knowledge == "oracle" else RunTimeEstimates(knowledge)
    named: dict[str, Any] = dict(  # noqa: C408 - arguments by name
        cluster=cluster,
        policy=Policy.of(spec),
        rules=Rules(
            interval_s=scenario.interval_s if rounds is None else rounds.length_s,
            postponement_penalty=scenario.postponement_penalty,
            restart_s=preemption.restart_s,
            preempt=preemption.allowed,
            half_life_s=spec.half_life_s,
            round_s=None if rounds is None else rounds.length_s,
            first_start=preemption.first_start,
        ),
        tariff=tariff,
        seen_tariff=tariff.flat(*submitted_s) if spec.price == "mean" else None,
        rng=np.random.default_rng([seed, 1]),
        tenant_weights=tenant_weights(scenario),
        capacity=None if plan is None else make_capacity(plan, cluster, past or Past(), seed, foreseen, tariff=tariff),
        estimates=estimates,
    )
    engine, controller = _controlled(fleet, spec, cluster, table, world, named)
    table = _with_priority(scenario, table)
    pools_of = None if controller.capacity is None else controller.capacity.pools_of
    source = TableSource(believed_table(scenario, knowledge, table, seed), pools_of)
    window, at_tick = _window(scenario, controller, table, world.slowdown, on_tick)
    jobs, at_tick = _within_limits(scenario, controller, table, source, at_tick)
    dependents = Dependents(controller, table, source, due_moves=due_dates_move(scenario)) if table.after else None
    if dependents is not None:
        at_tick = _again_for(dependents, controller, at_tick)
    if controller.capacity is not None:
        controller.capacity.announced_jobs = dependents or source
    spent_s = run(controller, VirtualClock(engine), jobs, at_tick, until_s)
    guaranteed = any(policy.fairness is not None for policy in scenario.policies)
    weights = tenant_weights(scenario) if guaranteed else None
    return PolicyRun(controller, spent_s, window, plan, weights)


def _controlled(
    fleet: Fleet | None, spec: PolicySpec, cluster: Cluster, table: JobArrays, world: World, named: dict[str, Any]
) -> tuple[SimulatedEngine, Controller]:
    """Return the engine and its controller, of a fleet if there is one; *named* are the controller's arguments."""
    if fleet is None:
        engine = SimulatedEngine(cluster, table, world)
        return engine, Controller(engine=engine, **named)
    sharing = SharingCluster(cluster, table, world)
    return sharing, FleetController(engine=sharing, fleet=fleet, resident_policy=Policy.of(eager(spec)), **named)


def _window(
    scenario: Scenario, controller: Controller, table: JobArrays, slowdown: Floats, on_tick: Callable[[float], None]
) -> tuple[Window, Callable[[float], None]]:
    """Return the window of the run, which its ledger feeds, and what to call at each tick."""
    reference = reference_runs(scenario, controller.cluster, table, slowdown)
    window = Window.of(table, controller.tariff, reference)
    rows = {name: j for j, name in enumerate(table.names)}
    controller.ledger.on_metered = window.metered

    def at_tick(now_s: float) -> None:
        window.tick(controller, rows, now_s)
        on_tick(now_s)

    return window, at_tick


class _Woken:
    """A source of jobs that also lets the controller tick when a job may be preempted that could not be before."""

    def __init__(self, source: JobSource, controller: Controller, tracker: PreemptionTracker) -> None:
        self._source, self._controller, self._tracker = source, controller, tracker

    def next_s(self) -> float | None:
        """Return the time of the next submission, or of that."""
        times = [at_s for at_s in (self._source.next_s(), self._tracker.next_s) if at_s is not None]
        return min(times, default=None)

    def poll(self, now_s: float) -> tuple[JobArrays, Ints] | None:
        """Return new submissions up to *now_s*."""
        if self._tracker.next_s is not None and self._tracker.next_s <= now_s:
            self._tracker.next_s = None
            self._controller.decide_anew()
        return self._source.poll(now_s)


def _within_limits(
    scenario: Scenario, controller: Controller, table: JobArrays, source: JobSource,
    at_tick: Callable[[float], None],
) -> tuple[JobSource, Callable[[float], None]]:  # fmt: skip
    """Let *controller* keep the limits of QOS and associations, and preempt by QOS, if there are any.

    Returns where jobs come from, and what to call at each tick.
    """
    tracker = PreemptionTracker(controller.registry, table, scenario.qos, scenario.associations)
    if not tracker.limits:
        return source, at_tick
    controller.quotas = tracker

    def decide_again(now_s: float) -> None:
        for _ in range(MOST_AGAIN):
            if not tracker.mark(controller.scheduling, controller.gpus):
                break
            controller.decide_anew()  # for others, or without those for which there was no room
            controller.tick(now_s)
        at_tick(now_s)

    return _Woken(source, controller, tracker) if tracker.preempts else source, decide_again


def _again_for(
    dependents: Dependents, controller: Controller, at_tick: Callable[[float], None]
) -> Callable[[float], None]:
    """Let *controller* decide about jobs as soon as those they wait for have ended or started; returns as above."""
    controller.on_absorbed = dependents.look

    def decide_again(now_s: float) -> None:
        at_tick(now_s)
        while dependents.look(now_s):  # they waited for one that has just started
            controller.tick(now_s)
            at_tick(now_s)

    return decide_again


def _with_priority(scenario: Scenario, table: JobArrays) -> JobArrays:
    """Return *table* with the factor of each job's QOS."""
    highest = max((qos.priority for qos in scenario.qos), default=0.0)
    if not (highest and table.qos):
        return table
    factor = {qos.name: qos.priority / highest for qos in scenario.qos}
    return replace(table, priority=np.array([factor.get(name, 0.0) for name in table.qos]))


def _outages(scenario: Scenario, cluster: Cluster) -> tuple[Outage, ...]:
    at = cluster.by_name()
    for outage in scenario.outages:
        if outage.node not in at:
            raise InputError("the name of a node", field="outages.node", value=outage.node)
    return tuple(Outage(n, o.from_s, o.to_s) for o in scenario.outages for n in at[o.node])
