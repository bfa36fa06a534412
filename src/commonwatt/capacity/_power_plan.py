"""The power plan: which power state each node should be in, by expected cost over the forecast distribution.

CUFF leaves this module as future work. Nodes are ranked, those in use first; the node with ``c`` GPUs ranked before it
is needed in a step with the probability that demand exceeds ``c``. Promised nodes must be on; every other node follows
the cheapest path through its power states over the horizon (a dynamic program, all nodes at once):

- a step on or waking costs idle power; a step asleep costs the state's power; entering costs idle power for as long as
  it takes; waking costs the state's ``wake_j`` besides;
- a second in which a node is needed but not on costs ``delay_w`` watts, or ``PROMISED`` if it is promised;
- after the horizon its last step repeats for as long again: a sleeping node that is not needed goes on saving, one
  that is needed wakes at once.

Transitions begin at the start of a step. Entering and waking cannot be interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.errors import InputError
from commonwatt.model.nodes import NodeClass, PowerState

__all__ = ["ON", "Need", "NodePowers", "NodesNow", "check_states", "delay_w", "exceedance", "plan_states"]

ON = -1
"""State index of a node that is on or waking."""

PROMISED = 1e6
"""Watts that a missing promised node costs: more than any state saves."""


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
class NodesNow:
    """Present power states of the nodes of one class.

    Parameters
    ----------
    state
        Index of the state each node is in or enters; ``ON`` if on or waking. Shape [N].
    busy_s
        Seconds until it has entered or is awake; 0 if it does neither. Shape [N].
    """

    state: Ints
    busy_s: Floats


@dataclass(frozen=True)
class Need:
    """How much the nodes are needed.

    Parameters
    ----------
    probability
        Probability that each node is needed in each step. Shape [N, m].
    promised
        Whether it must be on at any cost. Shape [N, m].
    """

    probability: Floats
    promised: Bools


def check_states(states: Sequence[PowerState], horizon_s: float) -> None:
    """Raise ``InputError`` for a state that cannot be entered and left within the horizon.

    A plan would see the need for such a node too late.
    """
    for state in states:
        if state.enter_s + state.wake_s > horizon_s:
            raise InputError(
                f"a state entered and left within the forecast horizon of {horizon_s:g} s",
                field=f"states.{state.name}",
                value=f"{state.enter_s + state.wake_s:g} s",
            )


def delay_w(idle_w: float, states: Sequence[PowerState], target: float) -> float:
    """Return the cost of a missing node, W, at which serving a share ``target`` of its need is optimal.

    A node needed with probability p wastes ``(1 - p) s`` watts if it stays on and risks ``p d`` if it does not, so it
    stays on where ``p > s / (s + d)``. That threshold is ``1 - target`` for ``d = s target / (1 - target)``, where s is
    what the deepest state saves (the newsvendor's critical fractile). At most ``PROMISED``.
    """
    saved_w = max((idle_w - state.power_w for state in states), default=0.0)
    if target >= 1:
        return PROMISED
    return min(PROMISED, max(0.0, saved_w) * target / (1.0 - target))


def exceedance(levels: Floats, quantiles: Floats, gpus: Floats) -> Floats:
    """Return the probability that demand exceeds each of *gpus* in each step.

    The distribution is linear between quantiles. No demand lies below the lowest quantile; the probability beyond the
    highest falls off over the distance between the two highest. Shape [N, m] for *gpus* [N] and *quantiles* [m, Q].
    """
    out = np.empty((len(gpus), len(quantiles)))
    for h, row in enumerate(quantiles):
        tail = max(1.0, float(row[-1] - row[-2])) if len(row) > 1 else 1.0
        points = np.concatenate(([row[0] - 1.0], row, [row[-1] + tail]))
        shares = np.concatenate(([0.0], levels, [1.0]))
        out[:, h] = 1.0 - np.interp(gpus, _rising(points), shares)
    return out


def _rising(points: Floats) -> Floats:
    """Make equal points differ a little, so that the highest level among them applies."""
    return points - 1e-9 * np.arange(len(points))[::-1]


def plan_states(
    kind: NodeClass, states: Sequence[PowerState], now: NodesNow, need: Need, step_s: float, delay_w: float
) -> tuple[Ints, Floats]:
    """Choose the state each node should be in or go to in the first step.

    Parameters
    ----------
    kind
        Class of the nodes; only its idle power is used.
    states
        States nodes may be put into.
    now
        Present states. [N]
    need
        Need for the nodes. [N, m]
    step_s
        Seconds of a step.
    delay_w
        Watts that a needed node costs while it is not on.

    Returns
    -------
    State index or ``ON``, shape [N], and expected cost of the whole plan in joules, shape [N]. Of equal costs being on
    is preferred, then the state listed first.
    """
    program = _Program(kind.idle_w, states, need, step_s, delay_w)
    return program.decide(now)


@dataclass(frozen=True)
class _Condition:
    """Condition of a node at the start of a step: in *state*, or entering or waking for *busy_s* more."""

    state: int
    busy_s: float


class _Program:
    """Backward over the horizon; values of all nodes in each condition."""

    def __init__(
        self, idle_w: float, states: Sequence[PowerState], need: Need, step_s: float, delay_w: float
    ) -> None:  # fmt: skip
        self.idle_w, self.states, self.step_s = idle_w, states, step_s
        self.missing_w = np.where(need.promised, PROMISED, delay_w * need.probability)  # [N, m]
        self.last = need.probability[:, -1] if need.probability.shape[1] else np.zeros(len(need.probability))
        self.horizon = need.probability.shape[1]
        self.delay_w = delay_w
        self.after_s = step_s * self.horizon
        self._values: dict[tuple[int, _Condition], Floats] = {}

    def decide(self, now: NodesNow) -> tuple[Ints, Floats]:
        choice = np.full(len(now.state), ON, dtype=np.int64)
        cost = np.zeros(len(now.state))
        keys = np.stack([now.state.astype(float), now.busy_s], axis=1)
        for row in np.unique(keys, axis=0):
            own = (keys == row).all(axis=1)
            options = self._options(0, _Condition(int(row[0]), float(row[1])))
            values = np.stack([value[own] for _, value in options])
            best = np.argmin(values, axis=0)
            choice[own] = np.array([to for to, _ in options])[best]
            cost[own] = values.min(axis=0)
        return choice, cost

    def _value(self, step: int, condition: _Condition) -> Floats:
        """Least expected cost, joules, from the start of *step* on. Shape [N]."""
        key = (step, condition)
        if key not in self._values:
            if step == self.horizon:
                self._values[key] = self._afterwards(condition)
            else:
                self._values[key] = np.min([value for _, value in self._options(step, condition)], axis=0)
        return self._values[key]

    def _options(self, step: int, condition: _Condition) -> list[tuple[int, Floats]]:
        """Return the choices in *step*: the state the node is in or goes to, and the cost from there on."""
        state, busy_s = condition.state, condition.busy_s
        if busy_s > 0:
            return [(state, self._stay(step, state, busy_s))]
        if state == ON:
            sleeps = [(s, self._stay(step, s, power.enter_s)) for s, power in enumerate(self.states)]
            return [(ON, self._stay(step, ON, 0.0)), *sleeps]
        power = self.states[state]
        return [(ON, self._stay(step, ON, power.wake_s) + power.wake_j), (state, self._stay(step, state, 0.0))]

    def _stay(self, step: int, state: int, busy_s: float) -> Floats:
        """Cost of a step that begins with *busy_s* left to enter *state* or to wake, and of all later steps."""
        taken_s = min(busy_s, self.step_s)
        after = self._value(step + 1, _Condition(state, max(0.0, busy_s - self.step_s)))
        if state == ON:
            return self.idle_w * self.step_s + self.missing_w[:, step] * taken_s + after
        energy_j = self.idle_w * taken_s + self.states[state].power_w * (self.step_s - taken_s)
        return energy_j + self.missing_w[:, step] * self.step_s + after

    def _afterwards(self, condition: _Condition) -> Floats:
        """Cost of another horizon with the need of the last step throughout."""
        on_j = self.idle_w * self.after_s
        if condition.state == ON:
            return on_j + self.last * self.delay_w * min(condition.busy_s, self.after_s)
        power = self.states[condition.state]
        taken_s = min(condition.busy_s, self.after_s)
        asleep_j = self.idle_w * taken_s + power.power_w * (self.after_s - taken_s)
        late_s = min(condition.busy_s + power.wake_s, self.after_s)
        woken_j = on_j + self.delay_w * late_s + power.wake_j
        return (1.0 - self.last) * asleep_j + self.last * woken_j
