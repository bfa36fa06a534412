"""Which nodes are on: expected demand in, power states out.

Nodes are ranked: nodes in use first, then nodes on or waking, then nodes that wake soonest; within these the class with
the least idle power per GPU first, then by index. The promises are met from the front of that ranking, each pool's by
the nodes that serve it. Nodes in use are never touched, and nodes without usable GPUs (drained, cordoned) keep their
state.

Where the power budget is too small, nodes go without in this order: those that no promise needs, the least probable
first; those promised, but not needed now; those that waiting jobs need.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from commonwatt.capacity._budget import NodePowerBudget
from commonwatt.capacity._demand_forecasters import AlwaysOnForecaster, DemandForecaster, ExpectedDemand
from commonwatt.capacity._power_plan import ON, Need, NodePowers, NodesNow, check_states, delay_w, plan_states
from commonwatt.capacity._sharing import shared_out
from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.demand import Arrivals
from commonwatt.model.electricity import StepIntegral
from commonwatt.model.errors import InputError
from commonwatt.model.nodes import Cluster, NodeClass, PowerState
from commonwatt.model.pools import Pools

__all__ = ["CapacityPlan", "CapacityPlanner", "NodePowers", "PoolDemand", "PowerUse", "check_spec"]


@dataclass(frozen=True)
class PoolDemand:
    """Demand of a pool now.

    Parameters
    ----------
    allocated_gpus, wanted_gpus
        GPUs allocated to jobs, and those plus what waiting jobs request.
    arrivals
        The jobs that came since the plan before, for a promise about jobs.
    due
        GPUs of jobs known to come within 1, 2, ... steps. Shape [m].
    """

    allocated_gpus: int
    wanted_gpus: int
    arrivals: Arrivals | None = None
    due: Floats | None = None


@dataclass(frozen=True)
class CapacityPlan:
    """What to do in one step.

    Parameters
    ----------
    changes
        Index of a node and the state it enters, by name; ``None`` to wake.
    served
        Whether the GPUs on suffice for the demand of now, by pool. Length P.
    expected
        What was promised to each pool, and whether it is kept; else all its nodes stay on. Length P.
    reach
        Which pools each node serves. Shape [P, N].
    power
        What the power budget did; ``None`` without one.
    """

    changes: tuple[tuple[int, str | None], ...]
    served: tuple[bool, ...]
    expected: tuple[ExpectedDemand, ...]
    reach: Bools
    power: PowerUse | None = None


@dataclass(frozen=True)
class PowerUse:
    """A power budget and what counts against it.

    Parameters
    ----------
    limit_w
        The budget; infinity for none.
    counted_w
        What the nodes count for before the plan.
    off
        Nodes that the plan would keep on, but for the budget.
    """

    limit_w: float
    counted_w: float
    off: Ints


def check_spec(spec: CapacitySpec, cluster: Cluster) -> None:
    """Raise ``InputError`` on a plan that cannot work.

    Its states must exist and be fast enough, its pools must have nodes, and its power must suffice for nodes that are
    asleep. No more GPUs may be always on than there are.
    """
    CapacityPlanner(
        cluster, [AlwaysOnForecaster(cluster.total_gpus, spec.horizon)] * len(Pools.of(spec, cluster)), spec
    )
    if spec.floor_gpus > cluster.total_gpus:
        expected = f"at most the {cluster.total_gpus} GPUs of the cluster"
        raise InputError(expected, field="capacity.floor_gpus", value=spec.floor_gpus)


class CapacityPlanner:
    """Plans the power states of a cluster, step by step.

    Parameters
    ----------
    forecasters
        One for each pool of *spec*, all with the same number of steps; one alone for one pool.
    spec
        ``target`` prices the delay of nodes beyond the promise; ``states``, ``step_s``, ``floor_gpus``, ``hold_s`` and
        ``power_kw`` limit the plan.
    cap_w
        A limit of power over time, W; ``None`` for none.

    Raises
    ------
    InputError
        For a state no node has, one that cannot be entered and left within the horizon, and as ``Pools.of``
        and ``NodePowerBudget``.
    """

    def __init__(
        self, cluster: Cluster, forecasters: DemandForecaster | Sequence[DemandForecaster], spec: CapacitySpec,
        cap_w: StepIntegral | None = None,
    ) -> None:  # fmt: skip
        self.cluster, self._spec = cluster, spec
        self._forecasters = forecasters if isinstance(forecasters, Sequence) else [forecasters]
        self.pools = Pools.of(spec, cluster)
        self._reach: Bools = self.pools.reach[:, cluster.klass]
        self._next_s: float | None = None
        self._last: dict[int, tuple[bytes, Ints]] = {}  # what was asked of each class, and its states: often the same
        self._promises: list[deque[tuple[float, int]]] = [deque() for _ in self._forecasters]
        self._states = [
            tuple(state for state in kind.states if spec.states is None or state.name in spec.states)
            for kind in cluster.classes
        ]
        names = {state.name for kind in cluster.classes for state in kind.states}
        for name in spec.states or ():
            if name not in names:
                raise InputError(f"a power state of a node ({', '.join(sorted(names))})", field="states", value=name)
        for states in self._states:
            check_states(states, self._forecasters[0].steps * spec.step_s)
        self._members = [np.flatnonzero(cluster.klass == k) for k in range(len(cluster.classes))]
        self._idle_each = np.array([kind.idle_w / kind.gpus for kind in cluster.classes])[cluster.klass]
        self.budget: NodePowerBudget | None = None
        if spec.power_kw is not None or cap_w is not None:
            self.budget = NodePowerBudget(cluster, self._states, self.limit_w, cap_w)

    @property
    def limit_w(self) -> float:
        """The constant power budget, W; infinity for none."""
        return np.inf if self._spec.power_kw is None else 1000.0 * self._spec.power_kw

    @property
    def steps_s(self) -> Floats:
        """Seconds from a plan to the end of each step it looks ahead. Shape [m]."""
        steps: Floats = self._spec.step_s * np.arange(1, self._forecasters[0].steps + 1, dtype=np.float64)
        return steps

    @property
    def next_s(self) -> float | None:
        """When the next plan is due; ``None`` before the first."""
        return self._next_s

    def power_room_w(self, now_s: float, nodes: NodePowers) -> float:
        """Return how much more power nodes may count for at *now_s*, W; infinity without a budget."""
        if self.budget is None:
            return np.inf
        return self.budget.at(now_s, self._spec.step_s) - float(self.budget.counted_w(nodes).sum())

    def plan(
        self, now_s: float, nodes: NodePowers, demands: Sequence[PoolDemand], claimed: Collection[int] = (),
        uses: Bools | None = None,
    ) -> CapacityPlan | None:  # fmt: skip
        """Return what to do at *now_s*; ``None`` if no plan is due.

        Parameters
        ----------
        demands
            Demand of each pool. Length P.
        claimed
            Nodes that waiting jobs need, and that power kept off so far: they are promised before any other.
        uses
            Whether a pool has GPUs of a node, where pools take whole nodes; ``None``: no node is used. Shape [P, N].
        """
        if self._next_s is not None and now_s < self._next_s - 1e-6:
            return None
        began_s = now_s if self._next_s is None else self._next_s
        missed = int((now_s - began_s) / self._spec.step_s + 1e-9)
        self._next_s = began_s + self._spec.step_s * (1 + missed)
        expected = []
        for forecaster, own in zip(self._forecasters, demands, strict=True):
            if missed:
                forecaster.missed(missed)
            expected.append(forecaster.ahead(float(own.wanted_gpus), now_s, own.arrivals, own.due))
        reach = self._reach
        if self.pools.whole.any():
            reach = self.pools.serving(self.cluster, nodes.usable_gpus, np.zeros_like(reach) if uses is None else uses)
        ranking = self._ranked(now_s, nodes, demands, expected, claimed, reach)
        served = self._served(nodes, demands, reach, ranking.order)
        changes, power = self._changes(nodes, ranking.need), None
        if self.budget is not None:
            limit_w = self.budget.at(now_s, self._spec.step_s)
            bounded, off = self.budget.bounded(dict(changes), nodes, ranking.worth(nodes), limit_w)
            power = PowerUse(limit_w, float(self.budget.counted_w(nodes).sum()), off)
            changes = changes if not len(off) else tuple(bounded.items())
        return CapacityPlan(changes, served, tuple(expected), reach, power)

    def _served(self, nodes: NodePowers, demands: Sequence[PoolDemand], reach: Bools, order: Ints) -> tuple[bool, ...]:
        """Return whether the GPUs that are on suffice for the demand of now, or for all that nodes can serve."""
        ready = (nodes.power_state < 0) & (nodes.wait_s <= 0)
        on = np.where(reach & ready, nodes.usable_gpus, 0)
        if self.pools.whole.any():
            wanted = np.array([own.wanted_gpus for own in demands])
            on = shared_out(
                np.where(ready, nodes.usable_gpus, 0), order, reach, wanted, lambda _, __: 0.0, self.pools.whole
            )
        most = np.where(reach, nodes.usable_gpus, 0).sum(axis=1)
        return tuple(min(own.wanted_gpus, int(most[p])) <= int(on[p].sum()) for p, own in enumerate(demands))

    def _ranked(
        self, now_s: float, nodes: NodePowers, demands: Sequence[PoolDemand], expected: Sequence[ExpectedDemand],
        claimed: Collection[int], reach: Bools,
    ) -> _Ranking:  # fmt: skip
        """Rank the nodes, divide them among the pools, and say how much each is needed."""
        usable, first = nodes.usable_gpus, np.zeros(len(nodes.busy), dtype=bool)
        first[list(claimed)] = True
        order = np.lexsort(
            (np.arange(len(usable)), self._idle_each, nodes.wait_s, nodes.power_state >= 0, ~first, ~nodes.busy)
        )
        promised = [
            self._peak_within_hold(now_s, pool, np.maximum(own.promised_gpus, demand.allocated_gpus))
            for pool, (own, demand) in enumerate(zip(expected, demands, strict=True))
        ]

        at_last = [own.last_step() for own in expected]

        def chance(pool: int, gpus: int) -> float:
            return float(at_last[pool].probability(np.array([float(gpus)]))[0, 0])

        most = np.array([int(own.max()) for own in promised])
        parts = shared_out(usable, order, reach, most, chance, self.pools.whole)
        serves = (parts > 0).sum(axis=0)
        needed, none = first.copy(), first[:, None]
        sums: Floats = np.zeros((len(usable), len(self.steps_s)))
        least: Floats = np.ones_like(sums)
        floor = _before(usable, order) < self._spec.floor_gpus
        flags = np.repeat(none | floor[:, None], len(self.steps_s), axis=1)
        for pool, (own, demand) in enumerate(zip(expected, demands, strict=True)):
            before, serving = _before(parts[pool], order), parts[pool] > 0
            likely = np.where(serving[:, None], own.probability(before), 0.0)
            sums, least = sums + likely, least * (1.0 - likely)
            flags |= serving[:, None] & (before[:, None] < promised[pool][None, :])
            needed |= serving & (before < demand.wanted_gpus)
        # independent needs of several pools; of one, exactly its own
        probability: Floats = np.where((serves > 1)[:, None], 1.0 - least, sums)
        probability[first] = 1.0
        return _Ranking(order, needed, Need(probability, flags))

    def _peak_within_hold(self, now_s: float, pool: int, promised: Ints) -> Ints:
        """Raise *promised* to the largest promise to the pool for a first step within the last ``hold_s``."""
        promises = self._promises[pool]
        promises.append((now_s, int(promised[0])))
        while promises[0][0] < now_s - self._spec.hold_s:
            promises.popleft()
        return np.maximum(promised, max(gpus for _, gpus in promises))

    def _changes(self, nodes: NodePowers, need: Need) -> tuple[tuple[int, str | None], ...]:
        changes: list[tuple[int, str | None]] = []
        free = ~nodes.busy & (nodes.usable_gpus > 0)
        for k, (kind, states) in enumerate(zip(self.cluster.classes, self._states, strict=True)):
            own = self._members[k][free[self._members[k]]]
            if not len(own) or not states:
                continue
            now = _now(kind, states, nodes, own)
            price_w = delay_w(kind.idle_w, states, self._spec.promised_share)
            own_need = Need(need.probability[own], need.promised[own])
            given = (own, now.state, now.busy_s, own_need.probability, own_need.promised)
            asked = b"".join(each.tobytes() for each in given)
            if k not in self._last or self._last[k][0] != asked:
                self._last[k] = asked, plan_states(kind, states, now, own_need, self._spec.step_s, price_w)[0]
            choice = self._last[k][1]
            for n, to in zip(own[choice != now.state], choice[choice != now.state], strict=True):
                changes.append((int(n), None if to == ON else states[to].name))
        return tuple(changes)


@dataclass(frozen=True)
class _Ranking:
    """Nodes by rank, [N]; whether the demand of now needs them, [N]; and how much they are needed."""

    order: Ints
    needed: Bools
    need: Need

    def worth(self, nodes: NodePowers) -> Ints:
        """Return the nodes, those first that stay on longest where power is short. Shape [N]."""
        rank = np.empty(len(self.order), dtype=np.int64)
        rank[self.order] = np.arange(len(self.order))
        likely = self.need.probability.max(axis=1)
        return np.lexsort((rank, -likely, ~self.need.promised.any(axis=1), ~self.needed, ~nodes.busy))


def _before(gpus: Ints, order: Ints) -> Floats:
    """Return the GPUs of the nodes ranked before each node. Shape [N]."""
    before = np.empty(len(gpus))
    before[order] = np.concatenate(([0], np.cumsum(gpus[order])[:-1]))
    return before


def _now(kind: NodeClass, states: tuple[PowerState, ...], nodes: NodePowers, own: Ints) -> NodesNow:
    """Return the states of nodes *own*; the wait beyond waking is what is left of entering."""
    index = np.array([states.index(state) if state in states else ON for state in kind.states] + [ON], dtype=np.int64)
    wake_s = np.array([state.wake_s for state in kind.states] + [0.0])
    at = nodes.power_state[own]
    return NodesNow(index[at], np.maximum(0.0, np.round(nodes.wait_s[own] - wake_s[at], 6)))
