"""The controller tick: observe the engine, decide, command it, account for what was used.

The controller does not know whether its engine and clock are simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np

from commonwatt.control.capacity import Capacity, only_on
from commonwatt.control.dry_run import DryRun, awake, without_nodes
from commonwatt.control.electricity import PriceDeferral, power_of
from commonwatt.control.engine import (
    Engine,
    JobEnded,
    JobInterrupted,
    JobLeft,
    JobProgress,
    NodeView,
    Start,
    Stop,
    Stopped,
)
from commonwatt.control.events import Event, EventKind, EventLog, Requester, Sample, cancelled_by, report_of
from commonwatt.control.external_jobs import ExternalDemand
from commonwatt.control.job_registry import JobRegistry, Rules, Status
from commonwatt.control.ledger import Account, Ledger
from commonwatt.control.limits import LimitTracker
from commonwatt.control.policy import Policy
from commonwatt.control.quotas import QuotaTracker
from commonwatt.control.replanning import Replanning, RoundClock, Scope
from commonwatt.control.run_time_estimates import Remaining, RunTimeEstimates
from commonwatt.control.scheduling import Allocation, JobCondition, NodeCondition, Scheduling
from commonwatt.control.usage import AllocatedGpus, DecayedUsage, OnGpus, ServiceTimes, TenantShare
from commonwatt.model.arrays import Bools, Ints
from commonwatt.model.electricity import Tariff
from commonwatt.model.errors import EngineError
from commonwatt.model.jobs import JobArrays
from commonwatt.model.nodes import Cluster
from commonwatt.model.units import plural
from commonwatt.optimize import KeepGoing, always
from commonwatt.placement import POSTPONED, Background, Explainer, PlacementProblem, Schedule, start_times

__all__ = ["Controller"]


class Controller:
    """Owns the state of all jobs; drives one engine by one policy.

    Attributes
    ----------
    registry
        Every job, with its configurations and where it runs.
    scheduling
        Which jobs and nodes placement may use.
    estimates
        What is believed of run times; ``None``: those of the jobs' tables.
    remaining
        Says what is left of jobs; ``None``, or where it returns that: what their epochs say.
    on_absorbed
        Called in each tick before it decides, when what the engine reports has been processed.
    dry, powers, alone
        Whether decisions are only reported; whether power commands are carried out, also alone, for external jobs.
    """

    def __init__(
        self, *, cluster: Cluster, engine: Engine, policy: Policy, rules: Rules, tariff: Tariff,
        rng: np.random.Generator, tenant_weights: Mapping[str, float] | None = None,
        stopwatch: Callable[[], KeepGoing] = lambda: always, capacity: Capacity | None = None,
        now_s: float = 0.0, seen_tariff: Tariff | None = None, estimates: RunTimeEstimates | None = None,
    ) -> None:  # fmt: skip
        if capacity is not None and not engine.capabilities.power_states:
            msg = "a capacity plan needs an engine that can put nodes to sleep and wake them"
            raise EngineError(msg)
        self.cluster, self.engine, self.policy, self.rules, self.tariff = cluster, engine, policy, rules, tariff
        self._seen_tariff = (seen_tariff := seen_tariff or tariff).never_negative()  # what the policy decides by
        if rules.preempt and not engine.capabilities.preempt:
            self.rules = Rules(**{**vars(rules), "preempt": False})
        self._rng, self._stopwatch, self._weights = rng, stopwatch, dict(tenant_weights or {})
        self.registry = JobRegistry(cluster)
        self.capacity, self.estimates = capacity, estimates
        self.on_absorbed: Callable[[float], object] = lambda _: None
        self.remaining: Callable[[Ints, float, JobProgress], Remaining | None] | None = None
        if estimates is not None:
            self.remaining = estimates.remaining
        self.scheduling = Scheduling()
        self.ledger = Ledger(cluster, tariff)
        self.log = EventLog()
        self.samples: list[Sample] = []
        self.preemptions, self.migrations, self.dry, self.powers, self.alone = 0, 0, False, True, False
        self.external = ExternalDemand.none(len(cluster))
        self._dry_run = DryRun(cluster.klass, self.log)
        self._gpus = AllocatedGpus(cluster.share_weights, self.registry.beside)  # of running jobs
        self.quotas = QuotaTracker(self.registry)
        self.limits = None if policy.limits is None else LimitTracker(policy.limits, self.registry)
        kept, price = (self.registry, self.scheduling, self.log, self.rules), policy.wait_for_price
        self._prices = None if price is None else PriceDeferral(price, policy, seen_tariff, *kept)
        self.past_usage = DecayedUsage(self.rules.half_life_s, now_s)
        self.service = ServiceTimes(self.registry, now_s, wanted=policy.by_service)
        self._rounds, self._on = RoundClock(rules.round_s), OnGpus()
        self._decided_s: float | None = None
        # usable GPUs, and those placement saw, when the last decision left every job running as it was
        self._settled: tuple[Ints, Ints] | None = None
        # solvers of eq. (1) decide about all jobs at every event, as ANDREAS does; a cap counts all of them
        paced = policy.solver.plans and capacity is None and tariff.cap_w is None and rules.round_s is None
        self._replanning = Replanning(rules.interval_s) if paced else None

    def next_tick_s(self, *, more_to_come: bool = False) -> float | None:
        """When the next periodic rescheduling or capacity plan is due.

        ``None`` while there is nothing to schedule; if there is *more_to_come*, capacity is planned nevertheless.
        """
        plan_s = None if self.capacity is None else self.capacity.next_s
        if self.registry.active and self._decided_s is not None:
            tick_s = self._decided_s + self.rules.interval_s
            if self._replanning is not None and self._replanning.due_s is not None:
                tick_s = min(tick_s, self._replanning.due_s)
            if self._prices is not None and self._prices.next_s is not None:
                tick_s = min(tick_s, max(self._prices.next_s, self._decided_s))
            if (cap_w := self.tariff.cap_w) is not None:
                tick_s = min([tick_s, *cap_w.changes(self._decided_s, tick_s).tolist()])
            if self._rounds.due_s is not None:
                tick_s = self._rounds.due_s
            return tick_s if plan_s is None else min(tick_s, plan_s)
        return plan_s if more_to_come else None

    def submit(self, table: JobArrays, rows: Ints) -> list[int]:
        """Register jobs, which are placed at the next tick; returns their handles.

        Raises ``JobNeverFitsError`` on a job no node can run.
        """
        self._settled = None
        handles = self.registry.add(table, rows)
        if self.estimates is not None:
            self.estimates.submitted(table, rows)
        if self.capacity is not None:
            self.capacity.submitted(table, rows)
        for handle in handles:
            if self._replanning is not None:
                self._replanning.submitted(handle)
            self.log.append(Event(float(self.registry.job("submit_s")[handle]), EventKind.SUBMITTED, handle))
        return handles

    def adopt(self, handle: int, nodes: tuple[int, ...], gpus_per_node: int, segment: Account) -> bool:
        """Take over a job that was running before this controller; returns whether it may run there.

        *segment* is what it was charged for since it began.
        """
        row = self.registry.row_of(handle, nodes, gpus_per_node)
        if row is None:
            return False
        self.registry.adopt(handle, row, nodes)
        self.ledger.resume(handle, segment)
        self._give(handle, len(nodes) * gpus_per_node)
        return True

    def await_end(self, handle: int, gpus: int) -> None:
        """Count *gpus* as a job's until the engine reports how its run under an earlier controller ended."""
        self._give(handle, gpus)

    def cancel(self, jobs: Mapping[int, Requester | None], now_s: float) -> None:
        """Stop and close *jobs*, by handle with who asked for it; they stay charged for what they used."""
        self.absorb()
        gpus, active = dict(self._gpus), self.registry.active
        if not (there := {h: self.registry.nodes.get(h, ()) for h in jobs if h in active}):
            return
        self._settled = None
        if running := [handle for handle, nodes in there.items() if nodes]:
            for stopped in self.engine.apply([Stop(handle) for handle in running]):
                if stopped.later:
                    self.scheduling.terminate(h := stopped.handle, Allocation(there[h], gpus[h]))
            self.charge()
            self.absorb()
        for handle, nodes in there.items():
            if handle not in self.registry.active:  # it ended before it could be stopped
                continue
            self._gpus.take(handle)
            self.scheduling.forget(handle)
            self.registry.close(handle, Status.CANCELLED, now_s)
            self.ledger.ended(handle)
            why, number = cancelled_by(jobs[handle]), gpus.get(handle, 0)
            self.log.append(Event(now_s, EventKind.CANCELLED, handle, nodes, number, *why, requester=jobs[handle]))

    def set_weights(self, tenant_weights: Mapping[str, float]) -> None:
        """Use these weights of tenants from now on."""
        if tenant_weights != self._weights:
            self._weights = dict(tenant_weights)
            self.decide_anew()

    def set_dry(self, *, dry: bool, alone: bool = False) -> None:
        """Only report decisions from now on, or carry them out (again); *alone*: those on power, for external jobs."""
        if dry != self.dry:
            self._dry_run.reset()
        self.dry, self.powers, self.alone = dry, alone or not dry, alone
        self.decide_anew()

    def observe_external(self, demand: ExternalDemand | None) -> None:
        """Count what external jobs have and want from now on, in samples and the capacity plan; ``None``: do not."""
        self.external = demand or ExternalDemand.none(len(self.cluster))
        if self.capacity is not None:
            self.capacity.observe_external(demand, own_jobs=not self.alone)

    def usage(self) -> tuple[float, dict[str, float]]:
        """Decayed GPU seconds of each tenant, which count for fair share, and up to when."""
        return self.past_usage.at_s, self.past_usage.by_name(self.registry.tenants)

    def shares(self) -> tuple[TenantShare, ...]:
        """Return what tenants have and are entitled to; empty where nothing is guaranteed, or nothing is decided."""
        names, of, fairness = self.registry.tenants, self._gpus.of_tenants, self.policy.fairness
        return () if fairness is None else self.past_usage.shares(names, self._weights, of(len(names)), fairness.memory)

    def start_probe(self, handle: int, node: int, gpus: int, now_s: float, why: tuple[str, str]) -> None:
        """Start a waiting job on a reserved node, to be measured; *why* is a reason and a sentence.

        Raises ``EngineError`` if it cannot run there.
        """
        row = self.registry.row_of(handle, (node,), gpus)
        if row is None:
            msg = f"{self.registry.names[handle]} cannot run with {plural(gpus, 'GPU')} on {self.cluster.names[node]}"
            raise EngineError(msg)
        kind = EventKind.RESUMED if self.registry.has_begun(handle) else EventKind.STARTED
        self.log.append(Event(now_s, kind, handle, (node,), gpus, *why))
        self._run(handle, row, (node,), gpus, now_s)
        self.scheduling.mark(handle, JobCondition.PROFILING)
        self.engine.apply([Start(handle, self.registry.names[handle], (node,), gpus)])

    def stop_probe(self, handle: int, now_s: float, why: tuple[str, str]) -> None:
        """Stop a job that is measured; it waits again."""
        self._stop(handle, now_s, Event(now_s, EventKind.PREEMPTED, handle, reason=why[0], text=why[1]))
        self.scheduling.mark(handle, JobCondition.PROFILING, on=False)
        self.decide_anew()

    def _stop(self, handle: int, now_s: float, event: Event) -> None:
        """Take a running job off its nodes at once, before the next decision; it waits again."""
        (stopped,) = self.engine.apply([Stop(handle)])
        self.charge()
        self._account_for_stop(stopped, now_s)
        nodes, gpus = self.registry.nodes[handle], self._gpus.take(handle)
        self.log.append(replace(event, nodes=nodes, gpus=gpus, lost_s=stopped.final_lost_s))
        self.registry.release(handle)

    def decide_anew(self) -> None:
        """Force a decision at the next tick: something that decisions depend on has changed."""
        self._settled = None
        if self._replanning is not None:
            self._replanning.hurry()

    def tick(self, now_s: float) -> None:
        """Reschedule.

        A tick decides nothing if the last decision left every job running as it was and nothing has happened since,
        except that unused nodes went to sleep.
        """
        self.past_usage.age(now_s, self._gpus.of_tenants(len(self.registry.tenants)))
        self.absorb()
        self.on_absorbed(now_s)
        self._hold_for_price(now_s)
        if self.capacity is not None:
            self._plan_capacity(self.capacity, now_s)
        kept_waiting, kept_running = self.scheduling.left_alone(self.registry.waiting, self.registry.nodes.keys())
        candidates = len(self.registry.active) - len(kept_waiting) - len(kept_running)
        self.past_usage.entitled = self.past_usage.entitled if candidates else None
        if not self._rounds.within(now_s, any_job=bool(self.registry.active)):
            if candidates and not self._nothing_new(now_s):
                self._decide_in_scope(candidates, self.registry.waiting - kept_waiting, now_s)
            elif self._replanning is not None:
                self._replanning.due_s = None
            self.service.decided(now_s)
        self._decided_s = now_s
        self.charge()
        waiting = len(self.registry.active) - len(self._gpus)
        by_pool = None if self.capacity is None else self.capacity.wanted(self.registry, self._gpus, self._wanting)
        other, on = self.external, self._on.of(self.external.held_in(self.engine.nodes(), self.cluster.gpus))
        jobs = len(self._gpus) + other.running, waiting + other.waiting
        allocated, power_w = self._gpus.total + int(other.held_gpus.sum()), self.engine.power_w()
        self.samples.append(Sample(now_s, allocated, power_w, *jobs, on, self._wanted_gpus(), by_pool))

    def _hold_for_price(self, now_s: float) -> None:
        """Hold jobs that can wait until the price is lower, and let go those whose time has come."""
        if (prices := self._prices) is None or not prices.is_due(now_s, self.engine.nodes()):
            return
        before, view = set(self.deferred), self.engine.nodes()  # nodes that are asleep can be awake by then
        handles = prices.candidates()
        problem, rows = self._problem(handles, now_s, self._without_closed(view), None)
        power, running = self._power(problem, rows, view), problem.stay >= 0
        fixed = running & np.isin(handles, handles if self.dry else list(self.scheduling.terminating))
        if self.limits is not None:
            fixed |= self.limits.lasting(handles, running, now_s)
        for handle, why in prices.plan(problem, handles, power, self.policy.solver, fixed, self._rng):
            self.preemptions += 1
            self._stop(handle, now_s, Event(now_s, EventKind.PREEMPTED, handle, reason=why.reason, why=why))
        if released := before - self.deferred:
            self._settled = None
            self._dry_run.explained -= released
            if self._replanning is not None:
                for handle in released:
                    self._replanning.submitted(handle)

    @property
    def deferred(self) -> Set[int]:
        """Jobs that are held until a lower price."""
        return self.scheduling.jobs(JobCondition.DEFERRED)

    def charge(self) -> None:
        """Account for all readings the meters have given."""
        self.ledger.charge(self.engine.readings())

    def close(self) -> None:
        """Account for everything up to now."""
        self.ledger.charge(self.engine.readings(up_to_now=True))

    def _plan_capacity(self, capacity: Capacity, now_s: float) -> None:
        view, due_s = self._powered(self.engine.nodes()), capacity.next_s
        busy, wanted = self._busy(view), (self._gpus, self._wanting(), self._wanted_gpus())
        capacity.planned_s = {} if self._prices is None else self._prices.starts_s
        commands = capacity.plan_for(self.registry, self.scheduling, *wanted, now_s, view, busy)
        if not self.powers and capacity.next_s != due_s:
            self._dry_run.power("capacity-plan", commands, view, now_s, busy)
        elif commands and self.powers:
            self.engine.apply(commands)

    def _powered(self, view: NodeView) -> NodeView:
        """Nodes as capacity plans see them: with the GPUs that external jobs have, and those where others place."""
        allocated = self.allocated_gpus() + self.external.held_gpus
        return self.scheduling.open(self.external.held_in(view, self.cluster.gpus), allocated, place=False)

    def _busy(self, view: NodeView) -> Bools:
        """Nodes in use, by jobs or by others. Shape [N]."""
        busy = self.allocated_gpus() > 0
        busy[[n for allocation in self.scheduling.terminating.values() for n in allocation.nodes]] = True
        busy |= self.external.held_gpus > 0
        return busy if view.in_use is None else busy | view.in_use

    def _wanting(self) -> Mapping[int, int]:
        """GPUs that waiting jobs ask for which may start as soon as there is room, by handle."""
        waiting: Set[int] = set() if self.alone else self.registry.waiting
        if len(self._gpus) != len(self.registry.nodes):  # some run under an earlier controller
            waiting = waiting - self._gpus.keys()
        asked = self.registry.job("asked_gpus")
        return {handle: int(asked[handle]) for handle in self.scheduling.demands(waiting)}

    def _wanted_gpus(self) -> int:
        """GPUs of running jobs, and those of waiting jobs."""
        return self._gpus.total + sum(self._wanting().values()) + int(self.external.wanted_gpus.sum())

    def _placeable(self, view: NodeView) -> NodeView:
        """Nodes as placement sees them; where capacity is planned, nodes that are asleep are left out."""
        return self._without_closed(view if self.capacity is None else only_on(view))

    def _without_closed(self, view: NodeView) -> NodeView:
        """Nodes on which we place jobs; of drained nodes, only the GPUs that are allocated."""
        return self.scheduling.open(view, self.allocated_gpus())

    def allocated_gpus(self) -> Ints:
        """Return the GPUs of each node that jobs have. Shape [N]."""
        return self.registry.allocated_gpus.copy()

    def _nothing_new(self, now_s: float) -> bool:
        capped = self.tariff.cap_w is not None and not self.tariff.cap_w.is_constant
        estimates = self.estimates
        aged = estimates is not None and self.policy.solver.plans and estimates.aged(self.registry.nodes, now_s)
        if self._settled is None or capped or aged or self.rules.round_s is not None:  # rounds share GPUs over time
            return False
        view, (usable, seen) = self.engine.nodes(), self._settled
        return np.array_equal(view.usable_gpus, usable) and bool((self._placeable(view).usable_gpus <= seen).all())

    def _decide_in_scope(self, candidates: int, waiting: Set[int], now_s: float) -> None:
        """Decide about so many jobs, of which these are *waiting*, as far as it is worth while after what happened."""
        replanning = self._replanning
        if replanning is None:
            self._decide(self._candidates(), now_s)
            return
        scope = replanning.scope(now_s, candidates, waiting)
        if scope is Scope.NEW:
            left = self._add(np.array(sorted(waiting), dtype=np.int64), replanning, now_s)
            replanning.added(all_started=not left)
            scope = replanning.gathered(now_s, candidates) if left else Scope.NOTHING
        if scope is Scope.ALL:
            replanning.planned(now_s, *self._decide(self._candidates(), now_s))

    def _candidates(self) -> Ints:
        return np.array(self.scheduling.candidates(self.registry.active, self.registry.nodes.keys()), dtype=np.int64)

    def _add(self, handles: Ints, replanning: Replanning, now_s: float) -> int:
        """Place waiting jobs beside the running ones; returns how many still wait."""
        view, taken = self.engine.nodes(), self.registry.allocated_gpus
        free = np.maximum(0, np.minimum(self._placeable(view).usable_gpus, self.registry.node_gpus) - taken)
        free[sorted(self.scheduling.nodes(NodeCondition.DRAINED))] = 0
        beside = replanning.background(taken, now_s)
        problem, rows, schedule = self._schedule(handles, now_s, replace(view, usable_gpus=free), beside)
        schedule = self._commit(problem, schedule, handles, rows, now_s)
        replanning.started(problem, schedule)
        return int((schedule.choice == POSTPONED).sum())

    def _decide(self, handles: Ints, now_s: float) -> tuple[PlacementProblem, Schedule]:
        problem, rows, schedule = self._schedule(handles, now_s, self.engine.nodes())
        if self.capacity is not None and not self.alone:
            view, closed = self._powered(self.engine.nodes()), self.scheduling.nodes(NodeCondition.NOT_OURS)
            short = set(self.capacity.waits_for_power)
            woken = self.capacity.rescue(problem, schedule, handles, view, now_s, self._busy(view), closed)
            self._dry_run.explained -= self.capacity.waits_for_power ^ short
            if self.dry:
                self._dry_run.power("waiting-jobs", woken, self.engine.nodes(), now_s)
            elif woken:
                self.engine.apply(woken)
            if woken:
                view = awake(self.engine.nodes(), woken if self.dry else ())
                problem, rows, schedule = self._schedule(handles, now_s, view)
            schedule = self.capacity.explained(schedule, handles)
        self.past_usage.entitled = None if schedule.shares is None else schedule.shares.entitled
        if drained := self.scheduling.nodes(NodeCondition.DRAINED):
            schedule = without_nodes(problem, schedule, drained)
        schedule = self._commit(problem, schedule, handles, rows, now_s)
        if not self.dry:
            settled = np.array_equal(schedule.choice, problem.stay) and bool((problem.stay >= 0).all())
            view = self.engine.nodes()
            self._settled = (view.usable_gpus, self._placeable(view).usable_gpus) if settled else None
        return problem, schedule

    @property
    def gpus(self) -> Mapping[int, int]:
        """GPUs of running jobs, by handle."""
        return self._gpus

    def explain_again(self, handle: int) -> None:
        """Log once more why a job waits, should it wait."""
        self._dry_run.explained.discard(handle)

    def _commit(
        self, problem: PlacementProblem, schedule: Schedule, handles: Ints, rows: Ints, now_s: float
    ) -> Schedule:
        """Carry out a decision within quotas, or record it in a dry run; returns what is left of it."""
        if self.quotas.limits:
            kept = self.quotas.within(problem, schedule, handles.tolist(), self._gpus)
            self._settled = self._settled if kept is schedule else None
            schedule = kept
        newly = None if self.limits is None else self.limits.decided(problem, schedule, handles, now_s)
        if newly is not None:  # a job with a new reservation is explained again
            self._dry_run.explained.discard(newly)
        if self.dry:
            self._dry_run.place(problem, schedule, handles, now_s)
        else:
            self._carry_out(problem, schedule, handles, rows, now_s)
        return schedule

    def _schedule(
        self, handles: Ints, now_s: float, view: NodeView, background: Background | None = None
    ) -> tuple[PlacementProblem, Ints, Schedule]:
        """Return the problem, the registry's row of each of its configurations, and the policy's schedule."""
        problem, rows = self._problem(handles, now_s, self._placeable(view), background)
        if self._prices is not None:
            problem, rows = self._prices.as_planned(problem, rows, handles, self._power(problem, rows, view))
        if (kept := self.quotas.fitting(problem, handles.tolist(), self._gpus)) is not None:
            problem, rows = problem.only(kept), rows[kept]
        if self.limits is not None:
            closed = self.scheduling.nodes(NodeCondition.DRAINED)
            problem = replace(problem, guarantees=self.limits.guarantees(problem, handles, now_s, closed))
        problem = problem if self._prices is None else self._prices.keeping(problem, handles)
        schedule = self.policy.decide(problem, self._rng, self._stopwatch(), self.log)
        if self.tariff.cap_w is not None:
            schedule = start_times.under_cap(problem, schedule, self._power(problem, rows, view))
        return problem, rows, schedule

    def _power(self, problem: PlacementProblem, rows: Ints, view: NodeView) -> start_times.Power:
        """Return what the configurations of *problem* and the nodes draw, and how much they may."""
        return power_of(self.registry, problem, rows, view, self.tariff)

    def _problem(
        self, handles: Ints, now_s: float, view: NodeView, background: Background | None
    ) -> tuple[PlacementProblem, Ints]:
        weights = np.array([self._weights.get(name, 1.0) for name in self.registry.tenants])
        progress, usage = self.engine.progress(handles), self.past_usage.gpu_s
        left = None if self.remaining is None else self.remaining(handles, now_s, progress)
        return self.registry.problem(
            handles, now_s, self.rules, self._seen_tariff, progress, view, weights, usage, left, background,
            self.service.received(handles, now_s),
        )  # fmt: skip

    def absorb(self) -> None:
        """Process what the engine reports."""
        changes = self.engine.poll()
        if changes:
            self._settled = None
            self.charge()
            if self._replanning is not None and not all(isinstance(change, JobEnded) for change in changes):
                self._replanning.hurry()
        for change in changes:
            handle = change.handle
            # a start that was put off and refused: the job is still terminating where it was
            refused = isinstance(change, JobInterrupted) and not change.begun and handle in self.scheduling.terminating
            left = None if refused else self.scheduling.terminated(handle)
            if handle not in self.registry.active:
                continue  # it was given up before its engine reported how it ended
            if isinstance(change, JobLeft):
                self.ledger.lost(handle, change.lost_s * (left.gpus if left else 0))
                self.registry.left(handle, begun=change.begun, elsewhere=handle in self.registry.nodes)
                if handle in self._gpus:  # it has another place, where it starts now
                    self.ledger.began(handle)
                continue
            self.scheduling.mark(handle, JobCondition.PROFILING, on=False)
            nodes, gpus = left or (self.registry.nodes.get(handle, ()), self._gpus.get(handle, 0))
            self._gpus.take(handle)
            self.log.append(report_of(change, self.registry.names[handle], nodes, gpus))
            match change:
                case JobEnded():
                    if self.estimates is not None:
                        self.estimates.ended(handle, change.at_s)
                    self.registry.close(handle, Status[change.outcome.name], change.at_s)
                    self.scheduling.forget(handle)
                    self.ledger.ended(handle)
                case JobInterrupted():
                    if self.estimates is not None:
                        self.estimates.left(handle, change.at_s, change.lost_s)
                    self.registry.release(handle)
                    self.registry.left(handle, begun=change.begun or refused)
                    if not (refused or change.paid):
                        self.ledger.lost(handle, change.lost_s * gpus)
                    self._dry_run.explained.discard(handle)

    def _carry_out(
        self, problem: PlacementProblem, schedule: Schedule, handles: Ints, rows: Ints, now_s: float
    ) -> None:
        """Turn the difference between what runs and *schedule* into commands."""
        changed = schedule.choice != problem.stay
        explainer = Explainer(problem, schedule)
        self.registry.pair(handles, schedule)
        stopping, starting = (np.flatnonzero(changed & by) for by in (problem.stay >= 0, schedule.choice != POSTPONED))
        stopped: Sequence[Stopped] = ()
        if len(stopping):
            stopped = self.engine.apply([Stop(int(handles[j])) for j in stopping])
            self.charge()
            for j, receipt in zip(stopping, stopped, strict=True):
                self._stopped(explainer, int(j), receipt, now_s)
        if len(starting):
            starts, view, lost_s = [], self.engine.nodes(), {own.handle: own.final_lost_s for own in stopped}
            for j in starting:
                nodes = tuple(int(n) for n in schedule.nodes_of(problem, j))
                row, handle = int(schedule.choice[j]), int(handles[j])
                each = int(problem.per_node[row]), float(problem.limits[row]), self.registry.beside.get(handle)
                starts.append(Start(handle, self.registry.names[handle], nodes, *each))
                if self.capacity is not None:
                    self.capacity.started(handle, nodes, view, now_s)
                self._started(explainer, int(j), handle, int(rows[row]), nodes, now_s, lost_s.get(handle))
            self.engine.apply(starts)
            if self.estimates is not None:
                on, gpus = handles[starting], np.array([self._gpus[int(h)] for h in handles[starting]], dtype=np.int64)
                unit = self.registry.row("time_s")[self.registry.job("row")[on]]
                self.estimates.started(on, unit, gpus, now_s, self.engine.progress(on))
        self._dry_run.waits(explainer, handles, now_s)

    def _stopped(self, explainer: Explainer, j: int, stopped: Stopped, now_s: float) -> None:
        handle = stopped.handle
        self._account_for_stop(stopped, now_s)
        if explainer.schedule.choice[j] != POSTPONED:
            self.migrations += 1
            return
        self.preemptions += 1
        why, lost_s = explainer.explain(j), stopped.final_lost_s
        nodes, gpus = self.registry.nodes[handle], self._gpus.take(handle)
        self.log.append(Event(now_s, EventKind.PREEMPTED, handle, nodes, gpus, why.reason, lost_s=lost_s, why=why))
        self.registry.release(handle)
        self._dry_run.explained.add(handle)

    def _account_for_stop(self, stopped: Stopped, now_s: float) -> None:
        """Charge the work a stopped job loses; while it is terminating, remember what it has."""
        handle = stopped.handle
        if self.estimates is not None:
            self.estimates.left(handle, now_s, stopped.lost_s)
        if stopped.later:
            self.scheduling.terminate(handle, Allocation(self.registry.nodes[handle], self._gpus[handle]))
        else:
            self.ledger.lost(handle, stopped.lost_s * self._gpus[handle])
            self.registry.left(handle, begun=stopped.begun)

    def _started(
        self, explainer: Explainer, j: int, handle: int, row: int, nodes: tuple[int, ...], now_s: float,
        lost_s: float | None,
    ) -> None:  # fmt: skip
        gpus = explainer.problem.gpus_of(int(explainer.schedule.choice[j]))
        if explainer.problem.stay[j] >= 0:
            kind = EventKind.RESIZED if self._gpus[handle] != gpus else EventKind.MIGRATED
        else:
            kind = EventKind.RESUMED if self.registry.has_begun(handle) else EventKind.STARTED
        why = explainer.explain(j)
        self.log.append(Event(now_s, kind, handle, nodes, gpus, why.reason, lost_s=lost_s, why=why))
        self._run(handle, row, nodes, gpus, now_s)

    def _run(self, handle: int, row: int, nodes: tuple[int, ...], gpus: int, now_s: float) -> None:
        """Take note that a job runs in the registry's configuration *row*, or will once it is terminated elsewhere."""
        self.registry.place(handle, row, nodes, now_s)
        if handle not in self.scheduling.terminating:
            self.ledger.began(handle)
        self._give(handle, gpus)
        self._dry_run.explained.discard(handle)

    def _give(self, handle: int, gpus: int) -> None:
        self._gpus.give(handle, gpus, int(self.registry.job("tenant")[handle]), self.registry.class_of(handle))
