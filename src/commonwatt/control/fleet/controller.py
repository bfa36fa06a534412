"""The controller of a fleet: that of training jobs, which does not see the GPUs that are shared.

The walk of one tick: capacity says which nodes are on, for whole jobs and shared GPUs together; the manager of the
fleet cuts, places and slices shared GPUs; placement then decides about training jobs on what is left, by the very code
that decides where nothing is shared. One ledger, one event log.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from commonwatt.control.capacity import Capacity
from commonwatt.control.controller import Controller
from commonwatt.control.electricity import drawn_by_jobs_w, resting_w
from commonwatt.control.engine import NodeView
from commonwatt.control.events import Event, EventKind
from commonwatt.control.fleet.interface import SharingEngine
from commonwatt.control.fleet.manager import FleetManager
from commonwatt.control.fleet.placing import ResidentPlacer
from commonwatt.control.fleet.shared_gpus import FRACTIONS, SERVICES
from commonwatt.control.ledger import Account
from commonwatt.control.policy import Policy
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.electricity import StepIntegral, Tariff
from commonwatt.model.fleet import WHOLE_MILLI, Fleet
from commonwatt.model.scenario import PolicySpec
from commonwatt.placement import POSTPONED, Explainer, PlacementProblem, Schedule, start_times

__all__ = ["FleetController", "eager"]

RESIDENT_ITERATIONS = 20
"""Of the randomized greedy that places replicas and fractional jobs, of which few are new at a time."""


ROUNDING_W = 1e-6


def _within(tariff: Tariff, capacity: Capacity | None) -> Tariff:
    """Return *tariff* with a cap no higher than the power budget of the plan: services wake nodes beyond its plans."""
    limit_w = math.inf if capacity is None else capacity.limit_w
    if limit_w == math.inf:
        return tariff
    cap_w = StepIntegral.constant(limit_w) if tariff.cap_w is None else tariff.cap_w.at_most(limit_w)
    return replace(tariff, cap_w=cap_w)


def eager(spec: PolicySpec) -> PolicySpec:
    """Return the policy that places replicas and fractional jobs: it leaves none waiting beside room."""
    changed = {"work_conserving": True, "limits": None, "wait_for_price": None, "iterations": RESIDENT_ITERATIONS}
    return spec.model_copy(update=changed)


class FleetController(Controller):
    """A controller of training jobs, services and fractional jobs.

    Parameters
    ----------
    fleet
        Services and fractional jobs.
    resident_policy
        Places replicas and fractional jobs; it may not leave them waiting beside room.
    named
        As of ``Controller``.
    """

    def __init__(
        self, *, fleet: Fleet, engine: SharingEngine, resident_policy: Policy, rng: np.random.Generator,
        **named: Any,  # noqa: ANN401
    ) -> None:  # fmt: skip
        named["tariff"] = _within(named["tariff"], named.get("capacity"))
        super().__init__(engine=engine, rng=rng, **named)
        self._sharing = engine
        for row in (SERVICES, FRACTIONS):
            self.ledger.overhead[row] = Account()
        placer = ResidentPlacer(self.cluster, resident_policy, self._seen_tariff)
        self.manager = FleetManager(fleet, self.cluster, engine, placer, self.log, rng, self.rules.restart_s, self)
        self._now_s = 0.0
        if self.capacity is not None:
            self.capacity.shared_by_pool = self._shared_by_pool

    def next_tick_s(self, *, more_to_come: bool = False) -> float | None:
        """When something is due: a decision about jobs, a step of requests, a change of shared GPUs."""
        due_s = self.manager.next_s(self._now_s)
        own_s = super().next_tick_s(more_to_come=more_to_come or due_s is not None)
        times = [t for t in (due_s, own_s) if t is not None]
        if times and self.tariff.cap_w is not None:
            times += self.tariff.cap_w.changes(self._now_s, min(times)).tolist()
        return min(times, default=None)

    def tick(self, now_s: float) -> None:
        """Decide about shared GPUs, then about training jobs."""
        self._now_s = now_s
        self.past_usage.age(now_s, self._allocated_by_tenants())  # as it was until now, before shared GPUs change
        if self.capacity is None:
            self.absorb()
            self._share(now_s)
        super().tick(now_s)
        self._watch_cap(now_s)

    def _allocated_by_tenants(self) -> Floats:
        """Return the GPUs each tenant has: its jobs, and the parts its services and fractional jobs reserve. [T]."""
        reserved = {self.registry.tenant_at(name): gpus for name, gpus in self.manager.reserved_gpus().items()}
        allocated = self._gpus.of_tenants(len(self.registry.tenants)).copy()
        allocated[list(reserved)] += list(reserved.values())
        return allocated

    def _plan_capacity(self, capacity: Capacity, now_s: float) -> None:
        if not self.dry and self.engine.capabilities.measures_shared:
            self.manager.expect(now_s)  # a machine that is put to sleep and woken again takes minutes
        super()._plan_capacity(capacity, now_s)
        self._share(now_s)

    def _share(self, now_s: float) -> None:
        if self.dry:  # what is shared stays as it is
            self.manager.observe(now_s)
            return
        before = self.manager.shared_gpus()
        if self.capacity is not None:
            self.capacity.claimed_for_sharing.clear()
        self.manager.tick(now_s)
        self._keep_cap(now_s)
        if self.registry.waiting and (self.manager.shared_gpus() < before).any():
            self.decide_anew()

    def charge(self) -> None:
        """Account for all readings the meters have given, of shared GPUs to those on them."""
        super().charge()
        self.manager.weigh_measured()
        self.manager.gpus.divide(self.ledger)

    def close(self) -> None:
        """Account for everything up to now."""
        super().close()
        self.manager.weigh_measured()
        self.manager.gpus.divide(self.ledger)
        self.manager.finish(self._now_s)

    def allocated_gpus(self) -> Ints:
        """Return the GPUs of each node that are not free: of jobs, and shared ones. Shape [N]."""
        return super().allocated_gpus() + self.manager.shared_gpus()

    def _placeable(self, view: NodeView) -> NodeView:
        seen = super()._placeable(view)
        usable = np.maximum(0, seen.usable_gpus - self.manager.shared_gpus())
        return NodeView(usable, seen.wait_s, seen.power_state, seen.in_use, seen.up)

    def _wanted_gpus(self) -> int:
        return super()._wanted_gpus() + self.manager.wanted_gpus()

    def _shared_by_pool(self) -> tuple[Ints, Ints]:
        """Return the shared GPUs of each pool, and those with what waits for a part of one. Shape [P]."""
        assert self.capacity is not None
        home, count = self.capacity.pools.home, len(self.capacity.pools)
        shared = np.zeros(count, dtype=np.int64)
        np.add.at(shared, home[self.cluster.klass], self.manager.shared_gpus())
        milli = np.zeros(count, dtype=np.int64)
        np.add.at(milli, home, self.manager.unplaced_milli())
        upto = -(-np.cumsum(milli) // WHOLE_MILLI)  # rounded up once for all pools
        return shared, shared + np.diff(upto, prepend=0)

    # -- power

    def _power(self, problem: PlacementProblem, rows: Ints, view: NodeView) -> start_times.Power:
        own, shared_w = super()._power(problem, rows, view), self.manager.gpus.power_w()
        return replace(
            own, idle_w=own.idle_w + shared_w, rest_w=own.rest_w + shared_w, shared_w=float(shared_w.sum()),
            spare_w=self.manager.spare_w(),
        )  # fmt: skip

    def _drawn_w(self) -> float:
        """Return what all nodes draw; one that is down counts as if it were on, as it may come back at any time."""
        resting = float(resting_w(self.registry, self.engine.nodes()).sum())
        return resting + drawn_by_jobs_w(self.registry, self._gpus) + float(self.manager.gpus.power_w().sum())

    def _over_w(self, now_s: float) -> float:
        """Return by how much the power cap is exceeded, W; 0: it is not."""
        over_w = self._drawn_w() - self._cap_w(now_s)
        return over_w if over_w > ROUNDING_W else 0.0

    def _cap_w(self, now_s: float) -> float:
        return math.inf if self.tariff.cap_w is None else float(self.tariff.cap_w.at(now_s))

    def _keep_cap(self, now_s: float) -> None:
        """Stop what services leave no power for: best-effort fractional jobs, jobs, then other fractional jobs."""
        if self.tariff.cap_w is None:
            return
        while self._over_w(now_s) and self.manager.stop_for_power(now_s, best_effort=True):
            pass
        if self._over_w(now_s):
            self._stop_for_power(now_s)
        while self.rules.preempt and self._over_w(now_s) and self.manager.stop_for_power(now_s, best_effort=False):
            pass

    def _stop_for_power(self, now_s: float) -> None:
        """Stop the least pressing jobs, if jobs may be, until the others have power."""
        handles = np.array(sorted(self.registry.nodes.keys() - self.scheduling.terminating.keys()), dtype=np.int64)
        view = self.engine.nodes()
        problem, rows = self._problem(handles, now_s, self._placeable(view), None)
        schedule = start_times.under_cap(problem, Schedule.unchanged(problem), self._power(problem, rows, view))
        explainer = Explainer(problem, schedule)
        for j in np.flatnonzero((schedule.choice == POSTPONED) & (problem.stay >= 0)).tolist():
            why, handle = explainer.explain(j), int(handles[j])
            self._stop(handle, now_s, Event(now_s, EventKind.PREEMPTED, handle, reason=why.reason, why=why))
            self.preemptions += 1
            self.manager.counters.cap.stopped_jobs += 1
            self.decide_anew()

    def _watch_cap(self, now_s: float) -> None:
        """Note whether the power cap is exceeded until the next tick, and say when that begins and ends."""
        if self.tariff.cap_w is None:
            return
        counts, over_w = self.manager.counters.cap, self._over_w(now_s)
        left = bool(self.registry.nodes) or any(r.job >= 0 for r in self.manager.gpus.residents.values())
        before, counts.over_w = (counts.over_w > 0, counts.jobs_left), over_w
        counts.jobs_left = left
        counts.most_over_w = max(counts.most_over_w, over_w)
        if over_w and before != (True, left):
            why = "jobs beside services may not be stopped" if left else "services alone do, and no job is left to stop"
            text = f"the nodes draw {over_w:.0f} W more than their power cap of {self._cap_w(now_s):.0f} W: {why}"
            self.log.append(Event(now_s, EventKind.OVER_CAP, -1, reason="over-cap", text=text))
        elif before[0] and not over_w:
            text = "the nodes draw no more than their power cap again"
            self.log.append(Event(now_s, EventKind.WITHIN_CAP, -1, reason="within-cap", text=text))

    # -- what the manager of the fleet asks

    def power_left_w(self, node: int, now_s: float, time_s: float) -> float:
        """Return what a GPU of *node* may draw more for so long, W; infinity without a power cap."""
        if self.tariff.cap_w is None:
            return math.inf
        view = self.engine.nodes()
        if self.capacity is not None and not self.capacity.may_wake(node, view, now_s, self._busy(view)):
            return -math.inf
        wakes_w = self.cluster.classes[self.cluster.klass[node]].idle_w - resting_w(self.registry, view)[node]
        least_w = float(self.tariff.cap_w.least_within(np.array([now_s, now_s + time_s]))[0])
        return least_w - self._drawn_w() - self.manager.spare_w() - float(wakes_w)

    def node_view(self) -> NodeView:
        """Return the nodes that replicas and fractional jobs may have GPUs of."""
        return self._without_closed(self.engine.nodes())

    def whole_gpus(self) -> Ints:
        """Return the GPUs of each node that whole jobs have. Shape [N]."""
        return self.registry.allocated_gpus

    def make_room(self, gpu_types: Sequence[str], shared: bool, now_s: float) -> bool:
        """Stop the training job that was started last on a node that suits; returns whether there was one."""
        if not self.rules.preempt or self.dry:
            return False
        handles = np.array(sorted(self.registry.nodes), dtype=np.int64)
        pinned = np.zeros(len(handles), dtype=bool)
        if self.limits is not None:
            pinned = self.limits.pinned(handles, np.ones(len(handles), dtype=bool), now_s)
        resting = set(self._sharing.resting())
        candidates: list[tuple[float, int]] = []
        for handle, kept in zip(handles.tolist(), pinned.tolist(), strict=True):
            kinds = [self.cluster.classes[self.cluster.klass[n]] for n in self.registry.nodes[handle]]
            suits = any(k.gpu_type in gpu_types and ("time" in k.share or not shared) for k in kinds)
            suits = suits and resting.isdisjoint(self.registry.nodes[handle])
            if suits and not kept and handle not in self.scheduling.terminating:
                candidates.append((-float(self.registry.job("placed_s")[handle]), handle))
        if not candidates:
            return False
        handle = min(candidates)[1]
        text = "stopped to make room for a service"
        self._stop(handle, now_s, Event(now_s, EventKind.PREEMPTED, handle, reason="room-for-a-service", text=text))
        self.preemptions += 1
        self.decide_anew()
        return True
