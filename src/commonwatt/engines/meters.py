"""Readings of nodes between comings and goings, in real time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from commonwatt.control.engine import Holder, Reading
from commonwatt.model.units import MICRO

__all__ = ["Meters"]


class Meters:
    """The meters of all nodes; without *energy_j*, the reading of a node's meter in joules, energy is unknown."""

    def __init__(self, nodes: int, energy_j: Callable[[int], float] | None) -> None:
        self._energy_j = energy_j
        self._read_s = [time.time()] * nodes
        self._read_j = [energy_j(n) if energy_j else 0.0 for n in range(nodes)]
        self._readings: list[Reading] = []

    def close(self, n: int, holders: Sequence[Holder], *, waking: bool = False, asleep: bool = False) -> None:
        """Close the reading of node *n* at this moment; *holders* and its power state were so since the last."""
        now_s = time.time()
        if now_s <= self._read_s[n]:
            return
        energy_uj = None
        if self._energy_j is not None:
            read_j = self._energy_j(n)
            energy_uj = max(0, round((read_j - self._read_j[n]) * MICRO))
            self._read_j[n] = read_j
        self._readings.append(Reading(n, self._read_s[n], now_s, energy_uj, tuple(holders), waking, asleep))
        self._read_s[n] = now_s

    def take(self) -> Sequence[Reading]:
        """Readings closed since the last call."""
        readings, self._readings = self._readings, []
        return readings
