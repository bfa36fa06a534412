"""Which nodes are on: an outlook on demand, a plan of power states, commands to the engine.

Nodes are ranked: those in use, then those on or waking, then those nearest to being on; within these the class with
the least idle power for a GPU first, then by index. What the outlook promises is met from the front of that row.
Nodes in use are never touched; a waiting job that fits no free GPUs of nodes that are on has nodes woken for it.
Nodes that are drained or set aside are left as they are, and count only as far as they are held.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from commonwatt.control.engine import NodeView, SetPower
from commonwatt.control.expectation import Expectation
from commonwatt.forecasting.planner import ON, Need, NodesNow, check_states, delay_w, plan_states
from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.errors import InputError
from commonwatt.model.nodes import Cluster, NodeClass, PowerState
from commonwatt.placement.problem import POSTPONED, Problem, Schedule

__all__ = ["Capacity", "CapacityRules", "CapacityTally", "only_held", "only_on"]


@dataclass(frozen=True)
class CapacityRules:
    """What a plan has to keep to.

    Attributes
    ----------
    target
        Share of instants promised; prices the delay of nodes beyond the promise.
    states
        Names of the states that may be used; all if ``None``.
    step_s
        Time between plans.
    floor_gpus
        GPUs that are always on.
    hold_s
        How long what was promised once stays promised.
    """

    target: float = 0.98
    states: tuple[str, ...] | None = None
    step_s: float = 60.0
    floor_gpus: int = 0
    hold_s: float = 0.0


@dataclass
class CapacityTally:
    """What became of the plans.

    Attributes
    ----------
    steps, served
        Plans made, and those at which the GPUs on sufficed for what was wanted just then.
    fallback
        Plans that kept everything on because no promise could be made.
    wakes
        Times a node was woken.
    delays_s
        How long each delayed job waited for nodes to wake, by handle.
    """

    steps: int = 0
    served: int = 0
    fallback: int = 0
    wakes: int = 0
    delays_s: dict[int, float] = field(default_factory=dict)


def only_on(view: NodeView) -> NodeView:
    """Return *view* as placement may see it: nodes asleep have no GPUs."""
    return replace(view, usable_gpus=np.where(view.power_state >= 0, 0, view.usable_gpus))


def only_held(view: NodeView, nodes: Collection[int], held: Ints) -> NodeView:
    """Return *view* with no more GPUs of *nodes* than are *held* there. Shape [N]."""
    usable, some = view.usable_gpus.copy(), sorted(nodes)
    usable[some] = np.minimum(usable, held)[some]
    return replace(view, usable_gpus=usable)


class Capacity:
    """Plans the power states of a cluster, step by step.

    Raises
    ------
    InputError
        For a state no node has, and for one that cannot be entered and left within the expectation's horizon.
    """

    def __init__(self, cluster: Cluster, expectation: Expectation, rules: CapacityRules) -> None:
        self._cluster, self._expectation, self._rules = cluster, expectation, rules
        self.tally = CapacityTally()
        self.renew_s = math.inf  # when whoever made it should make it anew, with what is known by then
        self._next_s: float | None = None
        self._promises: deque[tuple[float, int]] = deque()
        self._waits_since: dict[int, float] = {}
        self._states = [_allowed(kind, rules.states) for kind in cluster.classes]
        known = {state.name for kind in cluster.classes for state in kind.states}
        for name in rules.states or ():
            if name not in known:
                raise InputError(f"a power state of a node ({', '.join(sorted(known))})", field="states", value=name)
        for states in self._states:
            check_states(states, expectation.steps * rules.step_s)
        self._idle_each = np.array([kind.idle_w / kind.gpus for kind in cluster.classes])[cluster.klass]

    @property
    def next_s(self) -> float | None:
        """When the next plan is due; ``None`` before the first."""
        return self._next_s

    def plan(self, now_s: float, view: NodeView, busy: Bools, held_gpus: int, wanted_gpus: int) -> list[SetPower]:
        """Return what to do at *now_s*, if a plan is due.

        Parameters
        ----------
        view
            The nodes.
        busy
            Nodes a job holds GPUs of, or others use. Shape [N].
        held_gpus, wanted_gpus
            GPUs jobs hold, and those and what waiting jobs ask for.
        """
        if self._next_s is not None and now_s < self._next_s - 1e-6:
            return []
        began_s = now_s if self._next_s is None else self._next_s
        missed = int((now_s - began_s) / self._rules.step_s + 1e-9)
        self._next_s = began_s + self._rules.step_s * (1 + missed)
        if missed:
            self._expectation.missed(missed)
        usable = view.usable_gpus
        ready = (view.power_state < 0) & (view.wait_s <= 0)
        whole = int(usable.sum())
        self.tally.steps += 1
        self.tally.served += min(wanted_gpus, whole) <= int(usable[ready].sum())
        outlook = self._expectation.ahead(float(wanted_gpus), now_s)
        self.tally.fallback += not outlook.kept
        promised = self._held(now_s, np.maximum(outlook.promised_gpus, max(held_gpus, self._rules.floor_gpus)))
        order = np.lexsort((np.arange(len(usable)), self._idle_each, view.wait_s, view.power_state >= 0, ~busy))
        before = np.empty(len(usable))
        before[order] = np.concatenate(([0], np.cumsum(usable[order])[:-1]))
        return self._commands(view, busy, before, promised, outlook.probability(before))

    def _held(self, now_s: float, promised: Ints) -> Ints:
        """Raise *promised* to the most promised for a first step within the last ``hold_s``."""
        self._promises.append((now_s, int(promised[0])))
        while self._promises[0][0] < now_s - self._rules.hold_s:
            self._promises.popleft()
        return np.maximum(promised, max(gpus for _, gpus in self._promises))

    def _commands(
        self, view: NodeView, busy: Bools, before: Floats, promised: Ints, probability: Floats
    ) -> list[SetPower]:
        commands = []
        for k, kind in enumerate(self._cluster.classes):
            own = np.flatnonzero((self._cluster.klass == k) & ~busy & (view.usable_gpus > 0))
            states = self._states[k]
            if not len(own) or not states:
                continue
            now = _now(kind, states, view, own)
            need = Need(probability[own], before[own, None] < promised[None, :])
            price_w = delay_w(kind.idle_w, states, self._rules.target)
            choice, _ = plan_states(kind, states, now, need, self._rules.step_s, price_w)
            for n, to in zip(own[choice != now.state], choice[choice != now.state], strict=True):
                commands.append(SetPower(int(n), None if to == ON else states[to].name))
        self.tally.wakes += sum(command.state is None for command in commands)
        return commands

    def rescue(
        self, problem: Problem, schedule: Schedule, handles: Ints, view: NodeView, now_s: float
    ) -> list[SetPower]:
        """Return which sleeping nodes to wake for jobs that wait although all nodes on have no room for them."""
        asleep = np.flatnonzero((view.power_state >= 0) & (view.usable_gpus > 0))
        waiting = np.flatnonzero((schedule.choice == POSTPONED) & (problem.stay < 0))
        if not len(asleep) or not len(waiting):
            return []
        free = _free(problem, schedule)
        left = dict.fromkeys(asleep[np.argsort(view.wait_s[asleep], kind="stable")].tolist())
        woken: list[int] = []
        for j in waiting:
            row = _row(problem, int(j))
            klass, width, each = int(problem.klass[row]), int(problem.width[row]), int(problem.per_node[row])
            roomy = np.flatnonzero((self._cluster.klass == klass) & (free >= each))[:width]
            more = [n for n in left if self._cluster.klass[n] == klass][: width - len(roomy)]
            if len(roomy) + len(more) < width:
                continue
            for n in more:
                del left[n]
                free[n] = view.usable_gpus[n]
            free[[*roomy, *more]] -= each
            if more:
                woken += more
                self._waits_since.setdefault(int(handles[j]), now_s)
        self.tally.wakes += len(woken)
        return [SetPower(n, None) for n in woken]

    def started(self, handle: int, nodes: Sequence[int], view: NodeView, now_s: float) -> None:
        """Take note of a job placed on *nodes*: it is delayed if it waited for nodes to wake, or has to."""
        wait_s = max(float(view.wait_s[n]) for n in nodes)
        since_s = self._waits_since.pop(handle, now_s)
        if wait_s > 0 or since_s < now_s:
            delayed_s = now_s + wait_s - since_s
            self.tally.delays_s[handle] = self.tally.delays_s.get(handle, 0.0) + delayed_s


def _allowed(kind: NodeClass, names: tuple[str, ...] | None) -> tuple[PowerState, ...]:
    return tuple(state for state in kind.states if names is None or state.name in names)


def _now(kind: NodeClass, states: tuple[PowerState, ...], view: NodeView, own: Ints) -> NodesNow:
    """Nodes *own* as the planner sees them; what is left of entering is the wait beyond waking."""
    index = np.array([states.index(state) if state in states else ON for state in kind.states] + [ON], dtype=np.int64)
    wake_s = np.array([state.wake_s for state in kind.states] + [0.0])
    at = view.power_state[own]
    return NodesNow(index[at], np.maximum(0.0, np.round(view.wait_s[own] - wake_s[at], 6)))


def _free(problem: Problem, schedule: Schedule) -> Ints:
    """GPUs nobody holds once *schedule* is carried out, on nodes placement sees. Shape [N]."""
    free = problem.node_gpus.copy()
    for j in np.flatnonzero(schedule.choice != POSTPONED):
        np.subtract.at(free, schedule.nodes_of(problem, j), problem.per_node[schedule.choice[j]])
    return free


def _row(problem: Problem, j: int) -> int:
    """Return the configuration a waiting job asked for, else its smallest."""
    rows = np.arange(problem.start[j], problem.start[j + 1])
    asked = rows[problem.asked[rows]]
    if len(asked):
        return int(asked[0])
    return int(rows[np.argmin(problem.width[rows] * problem.per_node[rows])])
