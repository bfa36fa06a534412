"""The power budget of a plan: which nodes may be on together.

A node that is on, or waking, counts with the power it draws with all its GPUs busy, or while it wakes if that is more.
So the budget holds whatever is placed on nodes that are on. A node that enters a state draws idle power until then.
Nodes in use are never put to sleep. A budget below what they draw wakes no node.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commonwatt.capacity._power_plan import NodePowers
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.electricity import NO_CAP_W, StepIntegral
from commonwatt.model.errors import InputError
from commonwatt.model.nodes import Cluster, PowerState

__all__ = ["NodePowerBudget"]

_ROUNDING_W = 1e-6


class NodePowerBudget:
    """A limit of power, and what nodes count for.

    Parameters
    ----------
    states
        States nodes of each class may be put into. Length K.
    limit_w
        The constant limit, W; infinity for none.
    cap_w
        The limit over time, W; ``None`` for none.

    Raises
    ------
    InputError
        For a limit below what nodes draw in their deepest states, and with all GPUs busy where they have none.
    """

    def __init__(
        self, cluster: Cluster, states: Sequence[tuple[PowerState, ...]], limit_w: float, cap_w: StepIntegral | None
    ) -> None:
        self._limit_w, self._cap_w = limit_w, cap_w
        kinds, self._klass = cluster.classes, cluster.klass
        waking_w = [max((s.wake_j / s.wake_s for s in own if s.wake_s > 0), default=0.0) for own in states]
        self._full_w: Floats = np.array(
            [kind.idle_w + max(kind.gpus * kind.gpu_w, more) for kind, more in zip(kinds, waking_w, strict=True)]
        )[self._klass]
        self._idle_w: Floats = np.array([kind.idle_w for kind in kinds])[self._klass]
        self._kinds = kinds
        self._deepest = [kind.deepest([state.name for state in own]) for kind, own in zip(kinds, states, strict=True)]
        self._enter_s = max((state.enter_s for own in states for state in own), default=0.0)
        least = [own.power_w if own else np.inf for own in self._deepest]  # one without states is always on
        least_w = float(np.minimum(np.array(least)[self._klass], self._full_w).sum())
        if limit_w < least_w:
            expected = f"{least_w / 1000:g} kW or more: what nodes draw in their deepest states, and all GPUs of those "
            expected += "that have none"
            raise InputError(expected, field="capacity.power_kw", value=f"{limit_w / 1000:g}")

    def at(self, now_s: float, step_s: float) -> float:
        """Return the least limit, W, until nodes sleep that the plan after the one of *now_s* puts to sleep."""
        if self._cap_w is None:
            return self._limit_w
        until_s = now_s + step_s + self._enter_s
        cap_w = float(self._cap_w.least_within(np.array([now_s, until_s]))[0])
        return min(self._limit_w, cap_w if cap_w < NO_CAP_W else np.inf)

    def counted_w(self, nodes: NodePowers) -> Floats:
        """Return what each node counts for now, W. Shape [N]."""
        return np.array([self._counts_w(n, nodes, {})[0] for n in range(len(nodes.busy))])

    def more_w(self, nodes: NodePowers) -> Floats:
        """Return what waking adds to what each node counts for, W. Shape [N]."""
        return self._full_w - self.counted_w(nodes)

    def bounded(
        self, changes: dict[int, str | None], nodes: NodePowers, worth: Ints, limit_w: float
    ) -> tuple[dict[int, str | None], Ints]:
        """Return *changes* within *limit_w*, and the nodes that power keeps off.

        Parameters
        ----------
        changes
            State each node is to enter, by index; ``None`` to wake.
        worth
            Nodes, the most needed first. Shape [N].
        """
        kept: dict[int, str | None] = dict(changes)
        counts = np.array([self._counts_w(n, nodes, kept) for n in range(len(worth))])  # [N, 2]
        soon_w, later_w = counts.sum(axis=0).tolist()
        on = (nodes.power_state < 0) & (nodes.wait_s <= 0)  # one that wakes cannot be stopped

        def change(n: int) -> tuple[float, float]:
            """Return both sums after what node *n* is to do was changed."""
            before_w, counts[n] = counts[n].copy(), self._counts_w(n, nodes, kept)
            more_w = counts[n] - before_w
            return soon_w + float(more_w[0]), later_w + float(more_w[1])

        for n in reversed(worth.tolist()):
            if later_w <= limit_w + _ROUNDING_W:
                break
            deepest = self._deepest[self._klass[n]]
            if n in kept and kept[n] is None:
                del kept[n]
                soon_w, later_w = change(n)
            elif on[n] and nodes.usable_gpus[n] and not nodes.busy[n] and deepest:
                kept[n] = deepest.name  # or deeper than it would have gone
                soon_w, later_w = change(n)
        for n in reversed(worth.tolist()):  # nodes that fall asleep have to be asleep before others wake
            if soon_w <= limit_w + _ROUNDING_W:
                break
            if n in kept and kept[n] is None:
                del kept[n]
                soon_w, later_w = change(n)
        off = [n for n in sorted({*changes, *kept}) if changes.get(n, "") != kept.get(n, "")]
        return kept, np.array(off, dtype=np.int64)

    def _counts_w(self, n: int, nodes: NodePowers, changes: dict[int, str | None]) -> tuple[float, float]:
        """Return what node *n* counts for right after *changes*, and once it has entered its state, W."""
        kind, at = self._kinds[self._klass[n]], int(nodes.power_state[n])
        idle_w, full_w = float(self._idle_w[n]), float(self._full_w[n])
        if n in changes:
            name = changes[n]
            if name is None:
                return full_w, full_w
            state = kind.state(name)
            return (idle_w if state.enter_s > 0 else state.power_w), state.power_w
        if at >= 0:
            state = kind.states[at]
            entering = nodes.wait_s[n] > state.wake_s + 1e-6
            return (idle_w if entering else state.power_w), state.power_w
        own_w = full_w if nodes.busy[n] or nodes.usable_gpus[n] > 0 else idle_w
        return own_w, own_w
