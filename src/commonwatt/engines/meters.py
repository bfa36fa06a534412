"""Meters of nodes in real time: readings between arrivals and departures of jobs, declared power, and NVML."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from commonwatt.control.engine import Holder, MeterMark, Reading
from commonwatt.engines.run_spec import RunSpec
from commonwatt.model.errors import EngineError, InputError, MissingExtraError
from commonwatt.model.nodes import Cluster
from commonwatt.model.units import MICRO

__all__ = ["DeclaredPower", "Meters", "Since", "catch_up", "holders_of", "nvml_energy_j"]


Since = Mapping[int, MeterMark]
"""How an earlier engine read each node's meter last."""

_JUMP_S = 1.0
"""By how much a clock may differ from a monotonic one before it counts as set."""


class DeclaredPower:
    """Power of nodes as the configuration declares it, where there is no meter."""

    def __init__(self, cluster: Cluster) -> None:
        self._kinds = [cluster.classes[k] for k in cluster.klass]

    def __call__(self, n: int, holders: Sequence[Holder], *, asleep: bool) -> float:
        """Return the power of node *n* in watts; if it is asleep, that of its first state."""
        kind = self._kinds[n]
        if asleep and kind.states and not holders:
            return kind.states[0].power_w
        return kind.idle_w + sum(holder.gpus * holder.gpu_w for holder in holders)


class Meters:
    """The meters of all nodes.

    Parameters
    ----------
    nodes
        Their number.
    energy_j
        Reading of a node's meter in joules.
    power_w
        Declared power, where there is no meter. Without either, energy is unknown.
    now_s
        The time.
    steady_s
        A monotonic clock: where *now_s* jumped, a reading is as long as it really took.
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
        self._kept: set[int] = set()  # nodes some of whose readings were kept back

    def resume(self, n: int, since_s: float, since_j: float | None) -> None:
        """Continue from the last reading of an earlier engine: at *since_s*, of *since_j* if there is a meter."""
        if since_s < self._read_s[n]:
            self._read_at_s[n] -= self._read_s[n] - since_s
            self._read_s[n] = since_s
            if since_j is not None and since_j <= self._read_j[n]:
                self._read_j[n] = since_j

    def mark(self, n: int, *, asleep: bool = False) -> MeterMark:
        """Return how node *n* was read last, for the next engine; what was kept back counts as not read."""
        kept = [reading for reading in self._readings if reading.node == n]
        if n not in self._kept or not kept:
            return MeterMark(self._read_s[n], self._read_j[n] if self._energy_j else None, asleep)
        since_j = self._read_j[n] - sum(reading.energy_uj or 0 for reading in kept) / MICRO
        return MeterMark(kept[0].from_s, since_j if self._energy_j else None, asleep)

    def close(
        self, n: int, holders: Sequence[Holder], *, waking: bool = False, asleep: bool = False,
        at_s: float | None = None,
    ) -> None:  # fmt: skip
        """Close the reading of node *n* now, or at *at_s*; *holders* and its power state were the same since the last.

        The meter is read now: a reading that closes earlier gets energy in proportion to its time.
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

    def amend(self, n: int, holder: Holder, since_s: float, until_s: float) -> None:
        """Add a *holder* to what the readings of node *n* that are still here say of a time."""
        readings, self._readings = self._readings, []
        for r in readings:
            if r.node != n or r.to_s <= since_s or r.from_s >= until_s:
                self._readings.append(r)
                continue
            cuts = sorted({r.from_s, max(r.from_s, since_s), min(r.to_s, until_s), r.to_s})
            spent_uj = [self._part_uj(r, cut_s) for cut_s in cuts]
            for (from_s, to_s), before_uj, after_uj in zip(pairwise(cuts), spent_uj, spent_uj[1:], strict=False):
                energy_uj = None if after_uj is None or before_uj is None else after_uj - before_uj
                if not (since_s <= from_s and to_s <= until_s):
                    self._readings.append(replace(r, from_s=from_s, to_s=to_s, energy_uj=energy_uj))
                    continue
                holders = (*r.holders, holder)
                if self._energy_j is None and self._power_w is not None:
                    energy_uj = round(self._power_w(n, holders, asleep=r.asleep) * MICRO * (to_s - from_s))
                self._readings.append(replace(r, from_s=from_s, to_s=to_s, energy_uj=energy_uj, holders=holders))

    @staticmethod
    def _part_uj(reading: Reading, until_s: float) -> int | None:
        if reading.energy_uj is None:
            return None
        return round(reading.energy_uj * (until_s - reading.from_s) / (reading.to_s - reading.from_s))

    def take(self, but: Collection[int] = ()) -> Sequence[Reading]:
        """Readings closed since the last call, *but* those of some nodes: who had these is not known yet."""
        taken = [reading for reading in self._readings if reading.node not in but]
        self._readings = [reading for reading in self._readings if reading.node in but]
        self._kept = {reading.node for reading in self._readings}
        return taken


def holders_of(cluster: Cluster, n: int, specs: Iterable[RunSpec]) -> list[Holder]:
    """Return the runs of *specs* that are on node *n*, as holders."""
    gpu_w = cluster.classes[cluster.klass[n]].gpu_w
    return [
        Holder(s.handle, s.gpus_per_node, gpu_w if s.gpu_w is None else s.gpu_w, s.started_s)
        for s in specs if n in s.nodes
    ]  # fmt: skip


def catch_up(
    meters: Meters, cluster: Cluster, since: Since, spans: Sequence[tuple[float, float, RunSpec]],
    asleep: Collection[int] = (), unseen: Collection[int] = (),
) -> None:  # fmt: skip
    """Close the readings of the time in which there was no engine.

    *spans* are all runs, each with its start and its end, infinite if it runs; *asleep* are the nodes that were asleep
    meanwhile. On those *unseen* a run may be over: their last reading stays open until that is known.
    """
    now_s = meters.now_s()
    for n, (since_s, since_j, _) in since.items():
        meters.resume(n, since_s, since_j)
        own = [span for span in spans if n in span[2].nodes and span[1] > since_s]
        moments_s = {t for span in own for t in span[:2] if since_s < t < now_s}
        for to_s in sorted(moments_s if n in unseen else moments_s | {now_s}):
            there = [spec for begin_s, end_s, spec in own if begin_s < to_s <= end_s]
            meters.close(n, holders_of(cluster, n, there), asleep=n in asleep and not there, at_s=to_s)


_FIELD = "live.local.meter"


def nvml_energy_j(
    cluster: Cluster, slots: Sequence[Sequence[int]], now_s: Callable[[], float] = time.time
) -> Callable[[int], float]:
    """Return a function that reads the meter of a node, in joules since some moment.

    For node *n* it adds the energy counters of the GPUs *slots[n]* (NVML indices) and the declared idle power of the
    node since 1970: only differences count. The counters have the idle power of GPUs, so ``idle_w`` should not.

    Raises
    ------
    MissingExtraError
        Without nvidia-ml-py.
    InputError
        If there are no such GPUs, or they have no energy counter (before Volta).
    EngineError
        Later, from the function returned, if the driver does not answer any more.
    """
    try:
        import pynvml
    except ImportError as error:
        raise MissingExtraError("nvidia-ml-py", "gpu") from error
    try:
        pynvml.nvmlInit()
        handles = [[pynvml.nvmlDeviceGetHandleByIndex(slot) for slot in own] for own in slots]
        for own in handles:
            for handle in own:
                pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError as error:
        expected = f"GPUs {sorted({slot for own in slots for slot in own})} with energy counters (NVML says: {error})"
        raise InputError(expected, field=_FIELD, value="nvml") from None
    idle_w = [cluster.classes[k].idle_w for k in cluster.klass]

    def read(n: int) -> float:
        try:
            gpus_mj = sum(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles[n])
        except pynvml.NVMLError as error:
            msg = f"energy counters of node {cluster.names[n]}: NVML says: {error}"
            raise EngineError(msg) from error
        return float(gpus_mj) / 1000 + idle_w[n] * now_s()

    return read
