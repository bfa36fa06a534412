"""The controller tick: observe the engine, decide, command it, account for what was used.

The controller does not know whether its engine and clock are simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from commonwatt.control.advice import Adviser, awake, without_nodes
from commonwatt.control.book import JobBook, Rules, Status
from commonwatt.control.capacity import Capacity, only_held, only_on
from commonwatt.control.engine import Engine, JobEnded, JobInterrupted, JobLeft, NodeView, Outcome, Start, Stop, Stopped
from commonwatt.control.events import Event, EventKind, EventLog, told
from commonwatt.control.ledger import Account, Ledger
from commonwatt.control.policy import Policy
from commonwatt.control.sample import Sample
from commonwatt.control.usage import Usage
from commonwatt.model.arrays import Ints
from commonwatt.model.electricity import Tariff
from commonwatt.model.errors import EngineError
from commonwatt.model.jobs import JobTable
from commonwatt.model.nodes import Cluster
from commonwatt.placement.explain import Explainer
from commonwatt.placement.problem import POSTPONED, Problem, Schedule
from commonwatt.placement.solvers import KeepGoing, always

__all__ = ["Controller"]


class Controller:
    """Owns the state of all jobs; drives one engine by one policy."""

    def __init__(
        self, *, cluster: Cluster, engine: Engine, policy: Policy, rules: Rules, tariff: Tariff,
        rng: np.random.Generator, tenant_weights: Mapping[str, float] | None = None,
        stopwatch: Callable[[], KeepGoing] = lambda: always, capacity: Capacity | None = None,
        now_s: float = 0.0,
    ) -> None:  # fmt: skip
        if capacity is not None and not engine.capabilities.power_states:
            msg = "a capacity plan needs an engine that can put nodes to sleep and wake them"
            raise EngineError(msg)
        self.cluster, self.engine, self.policy, self.rules, self.tariff = cluster, engine, policy, rules, tariff
        if rules.preempt and not engine.capabilities.preempt:
            self.rules = Rules(**{**vars(rules), "preempt": False})
        self._rng = rng
        self._weights = dict(tenant_weights or {})
        self._stopwatch = stopwatch
        self.capacity = capacity
        self.book = JobBook(cluster)
        self.ledger = Ledger(cluster, tariff)
        self.log = EventLog()
        self.samples: list[Sample] = []
        self.preemptions = 0
        self.migrations = 0
        self.dry = False  # only say what would be done
        self.drained: set[int] = set()  # nodes on which nothing new begins
        self.held_back: set[int] = set()  # waiting jobs that are not to be placed, ...
        self.paused: set[int] = set()  # ... and those that are not just now
        self.set_aside: set[int] = set()  # nodes that are not placed on, and ...
        self.aside: set[int] = set()  # ... jobs that run there
        self._adviser = Adviser(cluster.klass, self.log)
        self._held: dict[int, int] = {}  # GPUs of running jobs
        self.leaving: dict[int, tuple[tuple[int, ...], int]] = {}  # nodes, GPUs of jobs told to stop
        self._usage = Usage(self.rules.half_life_s, now_s)
        self._decided_s: float | None = None
        # GPUs that could be used, and those placement saw, when a decision left everybody running as they were
        self._calm: tuple[Ints, Ints] | None = None

    def next_tick_s(self, *, more_to_come: bool = False) -> float | None:
        """When the next periodic rescheduling or capacity plan is due.

        ``None`` while there is nothing to schedule; if there is *more_to_come*, capacity is planned nevertheless.
        """
        plan_s = None if self.capacity is None else self.capacity.next_s
        if self.book.active and self._decided_s is not None:
            tick_s = self._decided_s + self.rules.interval_s
            return tick_s if plan_s is None else min(tick_s, plan_s)
        return plan_s if more_to_come else None

    def submit(self, table: JobTable, rows: Ints) -> list[int]:
        """Take in jobs, which are placed at the next tick; returns their handles.

        Raises ``JobNeverFitsError`` on a job no node can run.
        """
        self._calm = None
        handles = self.book.add(table, rows)
        for handle in handles:
            self.log.append(Event(float(self.book.job("submit_s")[handle]), EventKind.SUBMITTED, handle))
        return handles

    def adopt(self, handle: int, nodes: tuple[int, ...], gpus_per_node: int, segment: Account) -> bool:
        """Take over a job that runs since before this controller; whether it may run there at all.

        *segment* is what it was charged for since it began.
        """
        row = self.book.row_of(handle, nodes, gpus_per_node)
        if row is None:
            return False
        starts = self.book.job("starts")[handle]
        self.book.place(handle, row, nodes, self.book.job("began_s")[handle])
        self.book.job("starts")[handle] = max(1, starts)
        self.ledger.resume(handle, segment)
        self._held[handle] = len(nodes) * gpus_per_node
        return True

    def await_news(self, handle: int, gpus: int) -> None:
        """The engine is about to tell how a job came off so many GPUs it held when another controller knew of it."""
        self._held[handle] = gpus

    def cancel(self, handles: Iterable[int], now_s: float) -> None:
        """Take jobs off their nodes, if they have any, and forget them; what they used is still their own."""
        self.absorb()
        held, active = dict(self._held), self.book.active
        if not (there := {h: self.book.nodes.get(h, ()) for h in dict.fromkeys(handles) if h in active}):
            return
        self._calm = None
        if running := [handle for handle, nodes in there.items() if nodes]:
            for stopped in self.engine.apply([Stop(handle) for handle in running]):
                if stopped.later:
                    self.leaving.setdefault(stopped.handle, (there[stopped.handle], held[stopped.handle]))
            self.charge()
            self.absorb()
        for handle, nodes in there.items():
            if handle not in self.book.active:  # it was over before it could be stopped
                continue
            self._held.pop(handle, None)
            self.aside.discard(handle)
            self.book.close(handle, Status.CANCELLED, now_s)
            self.ledger.ended(handle)
            why = ("cancelled", "cancelled by its owner")
            self.log.append(Event(now_s, EventKind.CANCELLED, handle, nodes, held.get(handle, 0), *why))

    def weigh(self, tenant_weights: Mapping[str, float]) -> None:
        """Take over the weights of tenants, which may have changed."""
        if tenant_weights != self._weights:
            self._weights = dict(tenant_weights)
            self._calm = None

    def only_say(self, *, dry: bool) -> None:
        """Only say from now on what would be done, or do it (again)."""
        if dry != self.dry:
            self._adviser.forget()
        self.dry = dry
        self._calm = None

    def pass_over(self, seconds: float) -> None:
        """The clock was set ahead by so much: time that nobody used."""
        self._usage.pass_over(seconds)

    def usage(self) -> dict[str, float]:
        """Decayed GPU seconds of each tenant, which count for fair share."""
        return self._usage.by_name(self.book.tenants)

    def resume_usage(self, usage: Mapping[str, float], at_s: float) -> None:
        """Go on from the usage of tenants at *at_s*."""
        for name in usage:
            self.book.tenant_at(name)
        self._usage.resume(self.book.tenants, usage, at_s)

    def start_aside(self, handle: int, node: int, gpus: int, now_s: float, why: tuple[str, str]) -> None:
        """Start a waiting job on a node set aside, one it may run on; *why* is a reason and a sentence."""
        row = self.book.row_of(handle, (node,), gpus)
        if row is None:
            msg = f"{self.book.names[handle]} cannot run with {gpus} GPUs on {self.cluster.names[node]}"
            raise EngineError(msg)
        kind = EventKind.RESUMED if self.book.job("starts")[handle] else EventKind.STARTED
        self.log.append(Event(now_s, kind, handle, (node,), gpus, *why))
        self.book.place(handle, row, (node,), now_s)
        if handle not in self.leaving:
            self.ledger.began(handle)
        self._held[handle] = gpus
        self._adviser.told_waiting.discard(handle)
        self.aside.add(handle)
        self.engine.apply([Start(handle, self.book.names[handle], (node,), gpus)])

    def stop_aside(self, handle: int, now_s: float, why: tuple[str, str]) -> None:
        """Stop a job on a node set aside; it waits again."""
        (stopped,) = self.engine.apply([Stop(handle)])
        self.charge()
        self._off(stopped)
        nodes, gpus = self.book.nodes[handle], self._held.pop(handle)
        self.log.append(Event(now_s, EventKind.PREEMPTED, handle, nodes, gpus, *why))
        self.book.release(handle)
        self.aside.discard(handle)
        self._calm = None

    def decide_anew(self) -> None:
        """Let the next tick decide even though nothing has happened: something it depends on was changed."""
        self._calm = None

    def tick(self, now_s: float) -> None:
        """One rescheduling point.

        Nothing is decided anew where the last decision left every job running as it was and nothing has happened since,
        but that unused nodes went to sleep.
        """
        self._usage.age(now_s, len(self.book.tenants), self._held, self.book.job("tenant"))
        self.absorb()
        if self.capacity is not None:
            self._plan_capacity(self.capacity, now_s)
        left_out = (self.held_back | self.paused) - self.book.nodes.keys() | self.aside
        candidates = sorted(self.book.active - left_out)
        if candidates and not self._nothing_new():
            self._decide(np.array(candidates, dtype=np.int64), now_s)
        self._decided_s = now_s
        self.charge()
        held, waiting = sum(self._held.values()), len(self.book.active) - len(self._held)
        on_gpus = int(only_on(self.engine.nodes()).usable_gpus.sum())
        self.samples.append(
            Sample(now_s, held, self.engine.power_w(), len(self._held), waiting, on_gpus, self._wanted_gpus())
        )

    def charge(self) -> None:
        """Account for all that meters have been read for."""
        self.ledger.charge(self.engine.readings())

    def close(self) -> None:
        """Account for everything up to now."""
        self.ledger.charge(self.engine.readings(up_to_now=True))

    def _plan_capacity(self, capacity: Capacity, now_s: float) -> None:
        view, busy = self._open(self.engine.nodes()), self.held_on() > 0
        for nodes, _ in self.leaving.values():
            busy[list(nodes)] = True
        if view.in_use is not None:
            busy |= view.in_use
        held = sum(gpus for handle, gpus in self._held.items() if handle not in self.aside)
        due_s = capacity.next_s
        commands = capacity.plan(now_s, view, busy, held, self._wanted_gpus())
        if self.dry and capacity.next_s != due_s:
            self._adviser.power("capacity-plan", commands, view, now_s, busy)
        elif commands and not self.dry:
            self.engine.apply(commands)

    def _wanted_gpus(self) -> int:
        """GPUs jobs hold, and those that waiting jobs ask for that are not held back."""
        waiting = np.fromiter(self.book.active - self._held.keys() - self.held_back, dtype=np.int64)
        return sum(self._held.values()) + int(self.book.job("asked_gpus")[waiting].sum())

    def _seen(self, view: NodeView) -> NodeView:
        """Nodes as placement may see them; where capacity is planned, sleeping ones are not to be had."""
        return self._open(view if self.capacity is None else only_on(view))

    def _open(self, view: NodeView) -> NodeView:
        """Nodes without those set aside, and of drained ones only what is held."""
        if not self.drained and not self.set_aside:
            return view
        seen = only_held(view, self.drained, self.held_on())
        seen.usable_gpus[sorted(self.set_aside)] = 0
        return seen

    def held_on(self) -> Ints:
        """Return the GPUs jobs hold on each node. Shape [N]."""
        held = np.zeros(len(self.cluster), dtype=np.int64)
        for handle, nodes in self.book.nodes.items():
            held[list(nodes)] += self._held[handle] // len(nodes)
        return held

    def _nothing_new(self) -> bool:
        if self._calm is None:
            return False
        view, (usable, seen) = self.engine.nodes(), self._calm
        same = np.array_equal(view.usable_gpus, usable)
        return same and bool((self._seen(view).usable_gpus <= seen).all())

    def _decide(self, handles: Ints, now_s: float) -> None:
        problem, rows, schedule = self._schedule(handles, now_s, self.engine.nodes())
        if self.capacity is not None:
            woken = self.capacity.rescue(problem, schedule, handles, self._open(self.engine.nodes()), now_s)
            if self.dry:
                self._adviser.power("waiting-jobs", woken, self.engine.nodes(), now_s)
            elif woken:
                self.engine.apply(woken)
            if woken:
                view = awake(self.engine.nodes(), woken if self.dry else ())
                problem, rows, schedule = self._schedule(handles, now_s, view)
        if self.drained:
            schedule = without_nodes(problem, schedule, self.drained)
        if self.dry:
            self._adviser.place(problem, schedule, handles, now_s)
            return
        self._carry_out(problem, schedule, handles, rows, now_s)
        calm = np.array_equal(schedule.choice, problem.stay) and bool((problem.stay >= 0).all())
        view = self.engine.nodes()
        self._calm = (view.usable_gpus, self._seen(view).usable_gpus) if calm else None

    def _schedule(self, handles: Ints, now_s: float, view: NodeView) -> tuple[Problem, Ints, Schedule]:
        """Return the problem, its rows in the book, and what the policy makes of it."""
        weights = np.array([self._weights.get(name, 1.0) for name in self.book.tenants])
        progress, view, usage = self.engine.progress(handles), self._seen(view), self._usage.gpu_s
        problem, rows = self.book.problem(handles, now_s, self.rules, self.tariff, progress, view, weights, usage)
        schedule, _ = self.policy.decide(problem, self._rng, self._stopwatch())
        return problem, rows, schedule

    def absorb(self) -> None:
        """Take note of what the engine reports."""
        changes = self.engine.poll()
        if changes:
            self._calm = None
            self.charge()
        for change in changes:
            handle = change.handle
            still = handle in self.leaving and isinstance(change, JobInterrupted) and not change.begun  # where it was
            left = None if still else self.leaving.pop(handle, None)
            if handle not in self.book.active:
                continue  # it was given up before its engine knew how it ended
            if isinstance(change, JobLeft):
                self.ledger.lost(handle, change.lost_s * (left[1] if left else 0))
                if handle in self._held:  # it is to run elsewhere, which begins now
                    self.ledger.began(handle)
                continue
            self.aside.discard(handle)
            held = self.book.nodes.get(handle, ()), self._held.pop(handle, 0)
            nodes, gpus = left or held
            self.log.append(told(change, self.book.names[handle], nodes, gpus))
            match change:
                case JobEnded():
                    done = change.outcome is Outcome.COMPLETED
                    self.book.close(handle, Status.COMPLETED if done else Status.FAILED, change.at_s)
                    self.ledger.ended(handle)
                case JobInterrupted():
                    self.book.release(handle)
                    if not still:
                        self.ledger.lost(handle, change.lost_s * gpus)
                    self._adviser.told_waiting.discard(handle)

    def _carry_out(self, problem: Problem, schedule: Schedule, handles: Ints, rows: Ints, now_s: float) -> None:
        """Turn the difference between what runs and *schedule* into commands."""
        changed = schedule.choice != problem.stay
        explainer = Explainer(problem, schedule)
        leave = np.flatnonzero(changed & (problem.stay >= 0))
        enter = np.flatnonzero(changed & (schedule.choice != POSTPONED))
        if len(leave):
            stopped = self.engine.apply([Stop(int(handles[j])) for j in leave])
            self.charge()
            for j, receipt in zip(leave, stopped, strict=True):
                self._left(explainer, int(j), receipt, now_s)
        if len(enter):
            starts, view = [], self.engine.nodes()
            for j in enter:
                nodes = tuple(int(n) for n in schedule.nodes_of(problem, j))
                row = int(schedule.choice[j])
                handle = int(handles[j])
                starts.append(Start(handle, self.book.names[handle], nodes, int(problem.per_node[row])))
                if self.capacity is not None:
                    self.capacity.started(handle, nodes, view, now_s)
                self._entered(explainer, int(j), handle, int(rows[row]), nodes, now_s)
            self.engine.apply(starts)
        self._adviser.waits(explainer, handles, now_s)

    def _left(self, explainer: Explainer, j: int, stopped: Stopped, now_s: float) -> None:
        handle = stopped.handle
        self._off(stopped)
        if explainer.schedule.choice[j] != POSTPONED:
            self.migrations += 1
            return
        self.preemptions += 1
        why = explainer.explain(j)
        nodes, gpus = self.book.nodes[handle], self._held.pop(handle)
        lost = f"{stopped.lost_s:.0f} s of work since the last snapshot are lost"
        lost = "it was told to stop, and is still leaving" if stopped.later else lost
        self.log.append(Event(now_s, EventKind.PREEMPTED, handle, nodes, gpus, why.reason, f"{why.sentence}; {lost}"))
        self.book.release(handle)
        self._adviser.told_waiting.add(handle)

    def _off(self, stopped: Stopped) -> None:
        """Take account of what a job loses that was stopped, or remember what it goes on holding for a while."""
        handle = stopped.handle
        if stopped.later:
            self.leaving.setdefault(handle, (self.book.nodes[handle], self._held[handle]))
        else:
            self.ledger.lost(handle, stopped.lost_s * self._held[handle])

    def _entered(
        self, explainer: Explainer, j: int, handle: int, row: int, nodes: tuple[int, ...], now_s: float
    ) -> None:
        gpus = explainer.problem.gpus_of(int(explainer.schedule.choice[j]))
        if explainer.problem.stay[j] >= 0:
            kind = EventKind.RESIZED if self._held[handle] != gpus else EventKind.MIGRATED
        else:
            kind = EventKind.RESUMED if self.book.job("starts")[handle] else EventKind.STARTED
        why = explainer.explain(j)
        self.log.append(Event(now_s, kind, handle, nodes, gpus, why.reason, why.sentence))
        self.book.place(handle, row, nodes, now_s)
        if handle not in self.leaving:
            self.ledger.began(handle)
        self._held[handle] = gpus
        self._adviser.told_waiting.discard(handle)
