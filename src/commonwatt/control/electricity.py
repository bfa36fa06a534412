"""What the controller does about the price of electricity: it holds jobs that can wait until it is lower."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from commonwatt.control.engine import NodeView
from commonwatt.control.events import Event, EventKind, EventLog
from commonwatt.control.job_registry import JobRegistry, Rules
from commonwatt.control.policy import Policy
from commonwatt.control.scheduling import JobCondition, Scheduling
from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.electricity import Electricity, StepIntegral, Tariff
from commonwatt.model.errors import InputError
from commonwatt.model.explanation import PlacementExplanation, Reason
from commonwatt.model.fleet import WHOLE_MILLI, Fleet
from commonwatt.model.jobs import JobArrays
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import PriceWait, Scenario
from commonwatt.model.units import HOUR_S
from commonwatt.placement import PlacementProblem, PlacementSolver, start_times
from commonwatt.placement.guarantees import Guarantees

__all__ = ["PriceDeferral", "check_electricity", "drawn_by_jobs_w", "power_of", "resting_w"]

NO_FLEETS: Mapping[str, Fleet] = MappingProxyType({})
REPLAN_S = 3600.0  # a plan holds so long if nothing happens
LEAST_REGULAR = 12  # steps of a series that may be taken for a regular one
COSTS_MORE = 0.01  # of what a job is planned to cost, that the configuration in which it starts may cost more
MOST_HOLES = 0.1  # of its steps: with more, it is not regular


class PriceDeferral:
    """Keeps jobs deferred that wait for a lower price, and plans anew when something has happened.

    Attributes
    ----------
    next_s
        When the first of them is to start, or one that runs is to pause; ``None``: none is.
    starts_s
        When each of them is to start, by handle.
    """

    def __init__(
        self, spec: PriceWait, policy: Policy, tariff: Tariff, registry: JobRegistry,
        scheduling: Scheduling, log: EventLog, rules: Rules,
    ) -> None:  # fmt: skip
        limits = policy.limits
        longest_s = np.inf if limits is None or spec.delay_cost_per_h > 0 else limits.max_deliberate_wait_s
        self.rules = start_times.StartRules(
            tariff.planned_by(spec.minimise, spec.carbon_price_per_kg), spec.may_wait_s, spec.margin_s, spec.sure,
            spec.least_saving, spec.delay_cost_per_h / HOUR_S, np.inf if longest_s is None else longest_s,
            np.inf if spec.known_s is None else spec.known_s,
            rules.restart_s if spec.preempt and rules.preempt else None,
        )  # fmt: skip
        self.reason = Reason.LESS_CARBON if spec.minimise == "carbon" else Reason.LOWER_PRICE
        self.next_s: float | None = None
        self.starts_s: dict[int, float] = {}
        self._registry, self._scheduling, self._log = registry, scheduling, log
        self._seen: tuple[object, ...] | None = None
        self._planned_s = -np.inf
        self._said: set[int] = set()
        self._paused: set[int] = set()  # for the price, once
        self._keeps = policy.fairness is None  # else who is entitled to GPUs gets them
        self._late = False  # whether a job is planned to end late
        self._most: dict[int, float] = {}  # what jobs that could wait are planned to cost, by handle

    def is_due(self, now_s: float, view: NodeView) -> bool:
        """Whether to plan anew: something has happened, a planned start is due, or the plan is old."""
        registry = self._registry
        if self.rules.value.is_constant:
            return False
        kept = tuple(frozenset(self._scheduling.jobs(one)) for one in (JobCondition.HELD, JobCondition.BACKOFF))
        rows = tuple((handle, int(registry.job("row")[handle])) for handle in sorted(registry.nodes))
        seen = (frozenset(registry.active), rows, kept, view.usable_gpus.tobytes())
        same, self._seen = seen == self._seen, seen
        started = self.next_s is not None and now_s >= self.next_s
        return not same or started or now_s >= self._planned_s + REPLAN_S

    def candidates(self) -> Ints:
        """Return all jobs to plan with: those that run, wait, or are deferred."""
        self._scheduling.mark_only((), JobCondition.DEFERRED)
        registry = self._registry
        return np.array(self._scheduling.candidates(registry.active, registry.nodes.keys()), dtype=np.int64)

    def plan(
        self, problem: PlacementProblem, handles: Ints, power: start_times.Power, solver: PlacementSolver, fixed: Bools,
        rng: np.random.Generator,
    ) -> list[tuple[int, PlacementExplanation]]:  # fmt: skip
        """Hold those of *handles*, the jobs of *problem*, that are to wait until *solver* gets them.

        Returns which running jobs are to pause, and why; none of those that are *fixed* ([J]).
        """
        before = np.array([int(handle) in self._said for handle in handles], dtype=bool)
        paused = np.array([int(handle) in self._paused for handle in handles], dtype=bool) & (problem.stay < 0)
        plan = start_times.plan_starts(problem, power, self.rules, rng, solver, before, fixed, paused)
        self._planned_s, self.next_s, self._late = problem.now_s, plan.next_s, bool(plan.late.any())
        self.starts_s = {int(handles[j]): float(plan.start_s[j]) for j in np.flatnonzero(plan.holds)}
        deferred = set(self.starts_s)
        self._scheduling.mark_only(deferred, JobCondition.DEFERRED)
        pauses = []
        for j in np.flatnonzero(plan.holds).tolist():
            handle = int(handles[j])
            if handle in self._said:
                continue
            why = _explained(problem, plan, j, self.reason)
            if problem.stay[j] >= 0:
                pauses.append((handle, why))
                self._paused.add(handle)
            else:
                self._log.append(Event(problem.now_s, EventKind.WAITS, handle, reason=why.reason, why=why))
        self._said = deferred
        self._paused &= self._registry.active
        self._most = {handle: most for handle, most in self._most.items() if handle in self._registry.active}
        self._most |= {int(handles[j]): float(plan.cost[j]) for j in np.flatnonzero(np.isfinite(plan.cost))}
        return pauses

    def as_planned(
        self, problem: PlacementProblem, rows: Ints, handles: Ints, power: start_times.Power
    ) -> tuple[PlacementProblem, Ints]:
        """Return the problem, and its *rows* of the registry, with what costs no more than planned of what could wait.

        And of that what ends in time, where there is such: a solver may find that it pays to be a little late, but no
        job is late because it waited.
        """
        most = np.array([self._most.get(int(handle), np.nan) for handle in handles])
        could = np.isfinite(most) & (problem.stay < 0)
        if not could.any():
            return problem, rows
        kept = np.ones(len(problem.time_s), dtype=bool)
        end_s = problem.now_s + problem.time_s
        in_time = end_s <= problem.due_s[problem.row_job]
        cost = power.share_w * self.rules.value.integral(np.full(len(end_s), problem.now_s), end_s)
        for among in (in_time, in_time & (cost <= most[problem.row_job] * (1 + COSTS_MORE) + 1e-15)):
            some = np.bincount(problem.row_job[kept & among], minlength=len(problem)) > 0
            kept &= among | ~(could & some)[problem.row_job]
        return (problem, rows) if kept.all() else (problem.only(kept), rows[kept])

    def keeping(self, problem: PlacementProblem, handles: Ints) -> PlacementProblem:
        """Return the problem with jobs pinned that run as planned, unless others would then be late.

        A solver would stop them for others, as they have time; the hours planned for those would then be taken.
        """
        runs = np.isin(handles, list(self._most)) & (problem.stay >= 0)
        if self._late or not self._keeps or not runs.any():
            return problem
        none = np.zeros(len(runs), dtype=bool)
        kept = problem.guarantees or Guarantees(none, none, none, np.zeros(0, dtype=np.int64), spent=none)
        return replace(problem, guarantees=replace(kept, pinned=kept.pinned | runs, planned=runs & ~kept.pinned))


def _explained(problem: PlacementProblem, plan: start_times.StartPlan, j: int, reason: Reason) -> PlacementExplanation:
    rows = np.arange(problem.start[j], problem.start[j + 1])
    spare_s = float(problem.due_s[j] - plan.end_s[j])
    part = float(plan.saved_part[j])
    nodes = tuple(problem.node_names[n] for n in problem.nodes_held(j))
    return PlacementExplanation(
        reason, problem.job_names[j], nodes, gpus=int((problem.width * problem.per_node)[rows].min()),
        spare_s=spare_s if np.isfinite(spare_s) else None, starts_within_s=float(plan.start_s[j] - problem.now_s),
        saved=float(plan.saved[j]), saved_part=part if np.isfinite(part) else None,
        expected_s=None if problem.outcomes is None else float(plan.end_s[j] - plan.start_s[j]),
        currency=problem.currency,
    )  # fmt: skip


def power_of(
    registry: JobRegistry, problem: PlacementProblem, rows: Ints, view: NodeView, tariff: Tariff
) -> start_times.Power:
    """Return what the configurations of *problem* draw, which are *rows* of the registry, and its nodes in *view*."""
    classes, klass = registry.cluster.classes, registry.cluster.klass
    per_gpu_w = np.array([kind.idle_w / kind.gpus for kind in classes])
    idle_w = np.array([kind.idle_w for kind in classes])[klass]
    gpus = problem.width * problem.per_node
    busy_w: Floats = gpus * registry.row("gpu_w")[rows]
    return start_times.Power(
        busy_w, busy_w + gpus * per_gpu_w[problem.klass], idle_w, resting_w(registry, view), tariff.cap_w
    )  # fmt: skip


def resting_w(registry: JobRegistry, view: NodeView) -> Floats:
    """Return what nodes draw without anybody on them, as they are in *view*; one that is down as if it were on. [N]."""
    classes, klass = registry.cluster.classes, registry.cluster.klass
    rest_w: Floats = np.array([kind.idle_w for kind in classes])[klass]
    for n in np.flatnonzero(_asleep(registry, view)).tolist():
        rest_w[n] = classes[klass[n]].states[int(view.power_state[n])].power_w
    return rest_w


def drawn_by_jobs_w(registry: JobRegistry, gpus: Mapping[int, int]) -> float:
    """Return what the *gpus* of jobs that run, by handle, draw beyond their nodes' idle power, W."""
    running = [handle for handle in gpus if handle in registry.nodes]
    counts = np.array([gpus[handle] for handle in running], dtype=np.int64)
    return float((counts * registry.row("gpu_w")[registry.job("row")[running]]).sum()) if running else 0.0


def _asleep(registry: JobRegistry, view: NodeView) -> Bools:
    """Nodes in a low-power state, not on the way to one: those draw idle power, [N]."""
    asleep = view.power_state >= 0
    for n in np.flatnonzero(asleep).tolist():
        state = registry.cluster.classes[registry.cluster.klass[n]].states[int(view.power_state[n])]
        asleep[n] = abs(view.wait_s[n] - state.wake_s) <= 1e-9  # one that has just begun to enter could be back at once
    return asleep


def check_electricity(
    scenario: Scenario, cluster: Cluster, table: JobArrays | None = None, now_s: float = -np.inf,
    fleets: Mapping[str, Fleet] = NO_FLEETS,
) -> None:  # fmt: skip
    """Raise ``InputError`` for prices that no job can wait for, and for a power cap that cannot be kept.

    Without *table*, jobs come later than *now_s*, and nodes stay on. Of *fleets*, by policy, fractional jobs count.
    """
    electricity = scenario.electricity
    from_s = now_s if table is None else float(table.submit_s.min(initial=np.inf))
    for policy in scenario.policies:
        if policy.wait_for_price is not None:
            electricity.tariff().planned_by(policy.wait_for_price.minimise, policy.wait_for_price.carbon_price_per_kg)
            _check_series(electricity, from_s)
    cap_w = electricity.tariff().cap_w
    for policy in scenario.policies:
        plan = policy.capacity or scenario.capacity
        state = None if table is None else (policy.unused_nodes or scenario.unused_nodes).state
        rest_w = _rest_w(cluster, state) if plan is None else _deepest_w(cluster, plan)
        added = () if table is None else tuple(_alone_w(table, cluster, rest_w, whole=plan is not None))
        if policy.label in fleets:
            added += tuple(_fractions_w(fleets[policy.label], cluster, rest_w, whole=plan is not None))
        if cap_w is not None:
            field = "electricity.power_cap_w" if cap_w.is_constant else "electricity.series.power_cap_w"
            what = "idle power" if state is None else f"power in state {state!r}"
            _check_cap(cap_w, cluster, rest_w, what if plan is None else "least power", added, field)
        if plan is not None and plan.power_kw is not None:
            budget_w = StepIntegral.constant(1000.0 * plan.power_kw)
            _check_cap(budget_w, cluster, rest_w, "least power", added, "capacity.power_kw")


def _rest_w(cluster: Cluster, state: str | None) -> Floats:
    """Power of unused nodes that enter *state*, W. Shape [K]."""
    return np.array(
        [kind.idle_w if state is None or not kind.states else kind.state(state).power_w for kind in cluster.classes]
    )


def _deepest_w(cluster: Cluster, plan: CapacitySpec) -> Floats:
    """Power of nodes in the deepest state *plan* may use, or with all GPUs busy if they have none, W. Shape [K]."""
    deepest = [(kind, kind.deepest(plan.states)) for kind in cluster.classes]
    return np.array([kind.power_w(kind.gpus) if state is None else state.power_w for kind, state in deepest])


def _check_cap(
    cap_w: StepIntegral, cluster: Cluster, rest_w: Floats, what: str, added: Sequence[tuple[str, float]], field: str
) -> None:
    """Check a cap against the power of unused nodes, *rest_w* [K], and of what each job adds alone, W."""
    least_w, unused_w = float(cap_w.values.min()), float((cluster.class_sizes() * rest_w).sum())
    unit, one_w = ("kW", 1000.0) if field.endswith("_kw") else ("W", 1.0)
    if least_w < unused_w:
        expected = f"{unused_w / one_w:g} {unit} or more, the {what} of all nodes"
        raise InputError(expected, field=field, value=f"{least_w / one_w:g}")
    for name, alone_w in added:
        if unused_w + alone_w > cap_w.values.max():
            expected = f"{(unused_w + alone_w) / one_w:g} {unit} or more, for job {name} to run alone"
            raise InputError(expected, field=field, value=f"{cap_w.values.max() / one_w:g}")


def _check_series(electricity: Electricity, from_s: float) -> None:
    """Check a series that jobs wait by: it must reach into the period, and no step of a regular one may miss."""
    starts_s = np.array([point.from_s for point in electricity.series])
    if electricity.repeat_s is None and len(starts_s) > 1 and starts_s[-1] <= from_s:
        expected = f"a series with prices after {from_s:.15g} s, when jobs come that are to wait for them"
        raise InputError(expected, field="electricity.series", value=f"the last price from {starts_s[-1]:.15g} s on")
    steps_s = np.diff(starts_s)
    if len(steps_s) < LEAST_REGULAR:
        return
    usual_s = float(np.median(steps_s))
    holes = np.flatnonzero(steps_s > 1.5 * usual_s)
    regular = np.sum(np.abs(steps_s - usual_s) < 1e-6 * usual_s) + len(holes) == len(steps_s)
    if regular and 0 < len(holes) <= MOST_HOLES * len(steps_s):
        k = int(holes[0])
        raise InputError(
            f"a price each {usual_s:.15g} s, as at all other times, as jobs are to wait by it",
            field=f"electricity.series.{k + 1}.from_s", value=f"{starts_s[k + 1]:.15g} after {starts_s[k]:.15g}",
        )  # fmt: skip


def _alone_w(table: JobArrays, cluster: Cluster, rest_w: Floats, *, whole: bool) -> Iterator[tuple[str, float]]:
    """Yield the least power that each job adds to that of unused nodes; *whole*: with all GPUs of its nodes busy."""
    for j, name in enumerate(table.names):
        least_w = np.inf
        for c in range(int(table.start[j]), int(table.start[j + 1])):
            gpus, own_w = int(table.config_gpus[c]), float(table.config_gpu_w[c])
            for klass, width, _ in cluster.shapes(table.gpu_types[table.config_type[c]], gpus, *table.nodes_of(j)):
                kind = cluster.classes[klass]
                busy_w = width * kind.gpus * kind.gpu_w if whole else gpus * (kind.gpu_w if np.isnan(own_w) else own_w)
                least_w = min(least_w, busy_w + width * (kind.idle_w - float(rest_w[klass])))
        yield name, least_w


def _fractions_w(fleet: Fleet, cluster: Cluster, rest_w: Floats, *, whole: bool) -> Iterator[tuple[str, float]]:
    """Yield the same of fractional jobs, which use what they may."""
    kinds = [(kind, float(own_w)) for kind, own_w in zip(cluster.classes, rest_w, strict=True)]
    kinds = [(kind, own_w) for kind, own_w in kinds if fleet.sharing.runs_fractions(kind)]
    for job in fleet.jobs:
        part = fleet.most_milli(job) / WHOLE_MILLI
        yield job.name, min(
            (kind.gpus if whole else part) * kind.gpu_w + kind.idle_w - own_w for kind, own_w in kinds
        )  # fmt: skip
