"""Readings of nodes between comings and goings, in real time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from commonwatt.control.engine import Holder, Reading
from commonwatt.engines.local.folder import RunOrder
from commonwatt.model.nodes import Cluster
from commonwatt.model.units import MICRO

__all__ = ["DeclaredPower", "Mark", "Meters", "Since", "catch_up", "holders_of"]


class Mark(NamedTuple):
    """When a node was read last, what its meter said then, joules, and whether it slept."""

    read_s: float
    read_j: float | None = None
    asleep: bool = False


Since = Mapping[int, Mark]
"""How nodes were left by an engine before this one."""

_JUMP_S = 1.0
"""How far a clock may be off what a steady one says before it is taken to have been set."""


class DeclaredPower:
    """Power of nodes as their configuration declares it: what stands in for a meter where there is none."""

    def __init__(self, cluster: Cluster) -> None:
        self._kinds = [cluster.classes[k] for k in cluster.klass]

    def __call__(self, n: int, holders: Sequence[Holder], *, asleep: bool) -> float:
        """Return the power of node *n* in watts; of a sleeping one that of its first state."""
        kind = self._kinds[n]
        if asleep and kind.states and not holders:
            return kind.states[0].power_w
        return kind.idle_w + sum(holder.gpus * holder.gpu_w for holder in holders)


class Meters:
    """The meters of all nodes.

    Parameters
    ----------
    nodes
        How many.
    energy_j
        Reading of a node's meter in joules.
    power_w
        Power of a node in watts by who is on it, where there is no meter. Without either, energy is unknown.
    now_s
        The time.
    steady_s
        A clock nobody sets, by which time passes: where *now_s* jumped, a reading is as long as it really took.
    """

    def __init__(
        self, nodes: int, energy_j: Callable[[int], float] | None = None, power_w: DeclaredPower | None = None, *,
        now_s: Callable[[], float] = time.time, steady_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._energy_j, self._power_w = energy_j, power_w
        self.now_s, self._steady_s = now_s, steady_s
        self._read_s = [now_s()] * nodes
        self._read_at_s = [steady_s()] * nodes
        self._read_j = [energy_j(n) if energy_j else 0.0 for n in range(nodes)]
        self._readings: list[Reading] = []

    def resume(self, n: int, since_s: float, since_j: float | None) -> None:
        """Go on with a node that an earlier engine read at *since_s*, when its meter, if it has one, said *since_j*."""
        if since_s < self._read_s[n]:
            self._read_at_s[n] -= self._read_s[n] - since_s
            self._read_s[n] = since_s
            if since_j is not None and since_j <= self._read_j[n]:
                self._read_j[n] = since_j

    def mark(self, n: int, *, asleep: bool = False) -> Mark:
        """Return when node *n* was read last, what its meter said, and whether it sleeps, for who comes after us."""
        return Mark(self._read_s[n], self._read_j[n] if self._energy_j else None, asleep)

    def close(
        self, n: int, holders: Sequence[Holder], *, waking: bool = False, asleep: bool = False,
        at_s: float | None = None,
    ) -> None:  # fmt: skip
        """Close the reading of node *n* now, or at *at_s*; *holders* and its power state were so since the last.

        A meter is read now: of a reading that closes earlier, energy is what is due to its part of the time.
        """
        now_s, steady_s = self.now_s(), self._steady_s()
        passed_s = steady_s - self._read_at_s[n]
        if abs(now_s - self._read_s[n] - passed_s) > _JUMP_S:
            self._read_s[n] = now_s - passed_s
        to_s = now_s if at_s is None else min(at_s, now_s)
        from_s = self._read_s[n]
        if to_s <= from_s:
            return
        energy_uj = None
        if self._energy_j is not None:
            read_j = self._energy_j(n)
            read_j = self._read_j[n] + (read_j - self._read_j[n]) * (to_s - from_s) / max(now_s - from_s, to_s - from_s)
            energy_uj = max(0, round((read_j - self._read_j[n]) * MICRO))
            self._read_j[n] = read_j
        elif self._power_w is not None:
            energy_uj = round(self._power_w(n, holders, asleep=asleep) * MICRO * (to_s - from_s))
        self._readings.append(Reading(n, from_s, to_s, energy_uj, tuple(holders), waking, asleep))
        self._read_s[n], self._read_at_s[n] = to_s, steady_s - (now_s - to_s)

    def take(self) -> Sequence[Reading]:
        """Readings closed since the last call."""
        readings, self._readings = self._readings, []
        return readings


def holders_of(cluster: Cluster, n: int, orders: Iterable[RunOrder]) -> list[Holder]:
    """Return who of *orders* is on node *n*."""
    gpu_w = cluster.classes[cluster.klass[n]].gpu_w
    return [Holder(o.handle, o.gpus_per_node, gpu_w, o.started_s) for o in orders if n in o.nodes]


def catch_up(
    meters: Meters, cluster: Cluster, since: Since, spans: Sequence[tuple[float, float, RunOrder]],
    asleep: Collection[int] = (),
) -> None:  # fmt: skip
    """Close the readings of the time in which there was no engine.

    *spans* are the runs ever ordered, each with its beginning and its end, infinite if it runs; *asleep* are the nodes
    that slept meanwhile.
    """
    now_s = meters.now_s()
    for n, (since_s, since_j, _) in since.items():
        meters.resume(n, since_s, since_j)
        own = [span for span in spans if n in span[2].nodes and span[1] > since_s]
        for to_s in sorted({t for span in own for t in span[:2] if since_s < t < now_s} | {now_s}):
            there = [order for begin_s, end_s, order in own if begin_s < to_s <= end_s]
            meters.close(n, holders_of(cluster, n, there), asleep=n in asleep and not there, at_s=to_s)
