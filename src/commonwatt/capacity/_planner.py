"""Which nodes are on: expected demand in, power states out.

Nodes are ranked: nodes in use first, then nodes on or waking, then nodes that wake soonest; within these the class with
the least idle power per GPU first, then by index. The promise is met from the front of that ranking. Nodes in use are
never touched, and nodes without usable GPUs (drained, cordoned) keep their state.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from commonwatt.capacity._outlooks import AlwaysOnOutlook, Outlook
from commonwatt.capacity._power_plan import ON, Need, NodesNow, check_states, delay_w, plan_states
from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.demand import Arrivals
from commonwatt.model.errors import InputError
from commonwatt.model.nodes import Cluster, NodeClass, PowerState

__all__ = ["CapacityPlan", "CapacityPlanner", "NodePowers", "check_spec"]


@dataclass(frozen=True)
class NodePowers:
    """The nodes of a cluster. All shapes [N].

    Parameters
    ----------
    usable_gpus
        GPUs that may be used; those of sleeping nodes count.
    power_state
        Index of the state each node is in or enters, among those of its class; -1 if on or waking.
    wait_s
        Seconds until a node could be on.
    busy
        Whether anybody uses the node.
    """

    usable_gpus: Ints
    power_state: Ints
    wait_s: Floats
    busy: Bools


@dataclass(frozen=True)
class CapacityPlan:
    """What to do in one step.

    Parameters
    ----------
    changes
        Index of a node and the state it enters, by name; ``None`` to wake.
    served
        Whether the GPUs on suffice for the demand of now.
    kept
        Whether a promise is being kept; else everything stays on.
    """

    changes: tuple[tuple[int, str | None], ...]
    served: bool
    kept: bool


def check_spec(spec: CapacitySpec, cluster: Cluster) -> None:
    """Raise ``InputError`` on states no node has or that are too slow, and on more GPUs always on than all."""
    CapacityPlanner(cluster, AlwaysOnOutlook(cluster.total_gpus, spec.horizon), spec)
    if spec.floor_gpus > cluster.total_gpus:
        expected = f"at most the {cluster.total_gpus} GPUs of the cluster"
        raise InputError(expected, field="capacity.floor_gpus", value=spec.floor_gpus)


class CapacityPlanner:
    """Plans the power states of a cluster, step by step.

    Parameters
    ----------
    spec
        ``target`` prices the delay of nodes beyond the promise; ``states``, ``step_s``, ``floor_gpus`` and ``hold_s``
        limit the plan.

    Raises
    ------
    InputError
        For a state no node has, and for one that cannot be entered and left within the outlook's horizon.
    """

    def __init__(self, cluster: Cluster, outlook: Outlook, spec: CapacitySpec) -> None:
        self.cluster, self._outlook, self._spec = cluster, outlook, spec
        self._next_s: float | None = None
        self._promises: deque[tuple[float, int]] = deque()
        self._states = [
            tuple(state for state in kind.states if spec.states is None or state.name in spec.states)
            for kind in cluster.classes
        ]
        names = {state.name for kind in cluster.classes for state in kind.states}
        for name in spec.states or ():
            if name not in names:
                raise InputError(f"a power state of a node ({', '.join(sorted(names))})", field="states", value=name)
        for states in self._states:
            check_states(states, outlook.steps * spec.step_s)
        self._idle_each = np.array([kind.idle_w / kind.gpus for kind in cluster.classes])[cluster.klass]

    @property
    def steps_s(self) -> Floats:
        """Seconds from a plan to the end of each step it looks ahead. Shape [m]."""
        steps: Floats = self._spec.step_s * np.arange(1, self._outlook.steps + 1, dtype=np.float64)
        return steps

    @property
    def next_s(self) -> float | None:
        """When the next plan is due; ``None`` before the first."""
        return self._next_s

    def plan(
        self, now_s: float, nodes: NodePowers, held_gpus: int, wanted_gpus: int, arrivals: Arrivals | None = None,
        due: Floats | None = None,
    ) -> CapacityPlan | None:  # fmt: skip
        """Return what to do at *now_s*; ``None`` if no plan is due.

        Parameters
        ----------
        held_gpus, wanted_gpus
            GPUs allocated to jobs, and those plus what waiting jobs request.
        arrivals
            The jobs that came since the plan before, for a promise about jobs.
        due
            GPUs of jobs known to come within 1, 2, ... steps. Shape [m].
        """
        if self._next_s is not None and now_s < self._next_s - 1e-6:
            return None
        began_s = now_s if self._next_s is None else self._next_s
        missed = int((now_s - began_s) / self._spec.step_s + 1e-9)
        self._next_s = began_s + self._spec.step_s * (1 + missed)
        if missed:
            self._outlook.missed(missed)
        usable, asleep = nodes.usable_gpus, nodes.power_state >= 0
        ready = ~asleep & (nodes.wait_s <= 0)
        served = min(wanted_gpus, int(usable.sum())) <= int(usable[ready].sum())
        expected = self._outlook.ahead(float(wanted_gpus), now_s, arrivals, due)
        promised = self._held(now_s, np.maximum(expected.promised_gpus, max(held_gpus, self._spec.floor_gpus)))
        order = np.lexsort((np.arange(len(usable)), self._idle_each, nodes.wait_s, asleep, ~nodes.busy))
        before = np.empty(len(usable))
        before[order] = np.concatenate(([0], np.cumsum(usable[order])[:-1]))
        need = Need(expected.probability(before), before[:, None] < promised[None, :])
        return CapacityPlan(self._changes(nodes, need), served, expected.kept)

    def _held(self, now_s: float, promised: Ints) -> Ints:
        """Raise *promised* to the largest promise for a first step within the last ``hold_s``."""
        self._promises.append((now_s, int(promised[0])))
        while self._promises[0][0] < now_s - self._spec.hold_s:
            self._promises.popleft()
        return np.maximum(promised, max(gpus for _, gpus in self._promises))

    def _changes(self, nodes: NodePowers, need: Need) -> tuple[tuple[int, str | None], ...]:
        changes: list[tuple[int, str | None]] = []
        for k, (kind, states) in enumerate(zip(self.cluster.classes, self._states, strict=True)):
            own = np.flatnonzero((self.cluster.klass == k) & ~nodes.busy & (nodes.usable_gpus > 0))
            if not len(own) or not states:
                continue
            now = _now(kind, states, nodes, own)
            price_w = delay_w(kind.idle_w, states, self._spec.share)
            own_need = Need(need.probability[own], need.promised[own])
            choice, _ = plan_states(kind, states, now, own_need, self._spec.step_s, price_w)
            for n, to in zip(own[choice != now.state], choice[choice != now.state], strict=True):
                changes.append((int(n), None if to == ON else states[to].name))
        return tuple(changes)


def _now(kind: NodeClass, states: tuple[PowerState, ...], nodes: NodePowers, own: Ints) -> NodesNow:
    """Return the states of nodes *own*; the wait beyond waking is what is left of entering."""
    index = np.array([states.index(state) if state in states else ON for state in kind.states] + [ON], dtype=np.int64)
    wake_s = np.array([state.wake_s for state in kind.states] + [0.0])
    at = nodes.power_state[own]
    return NodesNow(index[at], np.maximum(0.0, np.round(nodes.wait_s[own] - wake_s[at], 6)))
