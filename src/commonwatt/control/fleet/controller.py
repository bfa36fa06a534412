"""The controller of a fleet: that of training jobs, which does not see the GPUs that are shared.

The walk of one tick: capacity says which nodes are on, for whole jobs and shared GPUs together; the manager of the
fleet cuts, places and slices shared GPUs; placement then decides about training jobs on what is left, by the very code
that decides where nothing is shared. One ledger, one event log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from commonwatt.control.capacity import Capacity
from commonwatt.control.controller import Controller
from commonwatt.control.engine import NodeView
from commonwatt.control.events import Event, EventKind
from commonwatt.control.fleet.interface import SharingEngine
from commonwatt.control.fleet.manager import FleetManager
from commonwatt.control.fleet.placing import ResidentPlacer
from commonwatt.control.fleet.shared_gpus import FRACTIONS, SERVICES
from commonwatt.control.ledger import Account
from commonwatt.control.policy import Policy
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.fleet import Fleet
from commonwatt.model.scenario import PolicySpec

__all__ = ["FleetController", "eager"]

RESIDENT_ITERATIONS = 20
"""Of the randomized greedy that places replicas and fractional jobs, of which few are new at a time."""


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
        super().__init__(engine=engine, rng=rng, **named)
        for row in (SERVICES, FRACTIONS):
            self.ledger.overhead[row] = Account()
        placer = ResidentPlacer(self.cluster, resident_policy, self._seen_tariff)
        self.manager = FleetManager(fleet, self.cluster, engine, placer, self.log, rng, self.rules.restart_s, self)
        self._now_s = 0.0

    def next_tick_s(self, *, more_to_come: bool = False) -> float | None:
        """When something is due: a decision about jobs, a step of requests, a change of shared GPUs."""
        due_s = self.manager.next_s(self._now_s)
        own_s = super().next_tick_s(more_to_come=more_to_come or due_s is not None)
        times = [t for t in (due_s, own_s) if t is not None]
        return min(times, default=None)

    def tick(self, now_s: float) -> None:
        """Decide about shared GPUs, then about training jobs."""
        self._now_s = now_s
        self._usage.age(now_s, self._held_by_tenants())  # as it was until now, before shared GPUs change
        if self.capacity is None:
            self.absorb()
            self._share(now_s)
        super().tick(now_s)

    def _held_by_tenants(self) -> Floats:
        """Return the GPUs each tenant has: its jobs, and the parts its services and fractional jobs reserve. [T]."""
        reserved = {self.registry.tenant_at(name): gpus for name, gpus in self.manager.reserved_gpus().items()}
        held = self._gpus.of_tenants(len(self.registry.tenants)).copy()
        held[list(reserved)] += list(reserved.values())
        return held

    def _plan_capacity(self, capacity: Capacity, now_s: float) -> None:
        super()._plan_capacity(capacity, now_s)
        self._share(now_s)

    def _share(self, now_s: float) -> None:
        if self.dry:  # what is shared stays as it is
            self.manager.observe(now_s)
            return
        before = self.manager.held()
        self.manager.tick(now_s)
        if self.registry.waiting and (self.manager.held() < before).any():
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
        return super().allocated_gpus() + self.manager.held()

    def _placeable(self, view: NodeView) -> NodeView:
        seen = super()._placeable(view)
        usable = np.maximum(0, seen.usable_gpus - self.manager.held())
        return NodeView(usable, seen.wait_s, seen.power_state, seen.in_use, seen.up)

    def _wanted_gpus(self) -> int:
        return super()._wanted_gpus() + self.manager.wanted_gpus()

    # -- what the manager of the fleet asks

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
        found: list[tuple[float, int]] = []
        for handle, kept in zip(handles.tolist(), pinned.tolist(), strict=True):
            kinds = [self.cluster.classes[self.cluster.klass[n]] for n in self.registry.nodes[handle]]
            suits = any(k.gpu_type in gpu_types and ("time" in k.share or not shared) for k in kinds)
            if suits and not kept and handle not in self.scheduling.terminating:
                found.append((-float(self.registry.job("placed_s")[handle]), handle))
        if not found:
            return False
        handle = min(found)[1]
        text = "stopped to make room for a service"
        self._stop(handle, now_s, Event(now_s, EventKind.PREEMPTED, handle, reason="room-for-a-service", text=text))
        self.preemptions += 1
        self.decide_anew()
        return True
