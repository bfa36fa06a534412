"""The common time axis of a report, and the lanes of a Gantt chart.

A record contains the number of a job's GPUs on a node, not their indices; a job is drawn on the lowest free lanes,
side by side if possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.units import DAY_S, HOUR_S
from commonwatt.simulation.record import Record, Segments

__all__ = ["Bars", "TimeAxis", "end_s", "node_rows", "time_unit", "timeline", "to_bars"]


@dataclass(frozen=True)
class TimeAxis:
    """Origin and unit of the time axis."""

    origin_s: float
    focus_s: float  # end of the initial view, before a long tail of a few jobs
    end_s: float  # of the policy that took longest
    unit: str
    unit_s: float

    @property
    def focused(self) -> bool:
        """Whether the initial view leaves out a long tail."""
        return self.focus_s < self.end_s

    @property
    def title(self) -> str:
        """Label of the axis."""
        return f"{self.unit} since the first submission"

    def to_axis(self, time_s: Floats | float) -> Floats:
        """Return moments as values on the axis."""
        return np.asarray((np.asarray(time_s, dtype=np.float64) - self.origin_s) / self.unit_s)

    def edges_s(self, end_s: float, columns: int = 400) -> Floats:
        """Return borders of *columns* bins until *end_s*; three quarters of them before a long tail."""
        end = end_s if end_s > self.origin_s else self.origin_s + 1.0
        if end <= self.focus_s:
            return np.linspace(self.origin_s, end, columns + 1)
        early = columns * 3 // 4
        first = np.linspace(self.origin_s, self.focus_s, early + 1)
        return np.concatenate([first, np.linspace(self.focus_s, end, columns - early + 1)[1:]])


def timeline(records: Sequence[Record]) -> TimeAxis:
    """Return the time axis for *records*."""
    starts = [float(r.jobs.submit_s.min()) for r in records if len(r.jobs.submit_s)]
    origin = min(starts, default=0.0)
    end = max([end_s(record) for record in records] + [origin])
    focus = max([_focus_s(record, origin) for record in records] + [origin])
    if focus - origin > 0.6 * (end - origin):
        focus = end
    return TimeAxis(origin, focus, end, *time_unit(focus - origin))


def end_s(record: Record) -> float:
    """Return the end of the last job or, without one, the time of the last sample, s."""
    ended = record.jobs.ended_s[np.isfinite(record.jobs.ended_s)]
    if len(ended):
        return float(ended.max())
    return float(record.samples.time_s.max()) if len(record.samples.time_s) else 0.0


def _focus_s(record: Record, origin_s: float) -> float:
    """Return when 99% of the jobs had ended, plus 5%."""
    ended = record.jobs.ended_s[np.isfinite(record.jobs.ended_s)]
    return origin_s + 1.05 * (float(np.quantile(ended, 0.99)) - origin_s) if len(ended) else end_s(record)


def time_unit(span_s: float) -> tuple[str, float]:
    """Return a suitable unit for *span_s*, and its length in seconds."""
    if span_s > 3 * DAY_S:
        return "days", DAY_S
    if span_s > 2 * HOUR_S:
        return "hours", HOUR_S
    return ("minutes", 60.0) if span_s > 120 else ("seconds", 1.0)


_GAP = 0.5  # between nodes, in GPUs


@dataclass(frozen=True)
class Bars:
    """Rectangles: one for a segment, or several if its lanes are not adjacent."""

    segment: Ints  # row in Segments
    lane: Ints  # its first lane, from 0 on each node
    lanes: Ints


def node_rows(gpus: Ints) -> tuple[Floats, Floats]:
    """Return top and bottom of nodes with *gpus* GPUs, one below the other; a GPU has height 1."""
    bottoms = np.cumsum(gpus + _GAP) - _GAP
    return bottoms - gpus, bottoms


def to_bars(gpus: Ints, segments: Segments) -> Bars:
    """Assign lanes to every segment on nodes with *gpus* GPUs each."""
    order = np.lexsort((segments.job, segments.to_s, segments.from_s, segments.node))
    span = float(segments.to_s.max() - segments.from_s.min()) if len(order) else 0.0
    bars: list[tuple[int, int, int]] = []
    for node, rows in groupby(order.tolist(), key=lambda i: int(segments.node[i])):
        free_s = np.full(int(gpus[node]), -np.inf)
        for i in rows:
            lanes = _choose(free_s, float(segments.from_s[i]) + 1e-9 * span, int(segments.gpus[i]))
            free_s[lanes] = segments.to_s[i]
            bars += [(i, first, length) for first, length in _runs(lanes)]
    table = np.array(bars, dtype=np.int64).reshape(-1, 3)
    return Bars(table[:, 0], table[:, 1], table[:, 2])


def _choose(free_s: Floats, now_s: float, wanted: int) -> list[int]:
    """Return *wanted* lanes free at *now_s*: adjacent ones if possible, else the lowest, else the first to be free."""
    wanted = min(wanted, len(free_s))
    free = np.flatnonzero(free_s <= now_s)
    for start in range(len(free) - wanted + 1):
        if free[start + wanted - 1] - free[start] == wanted - 1:
            return [int(lane) for lane in free[start : start + wanted]]
    if len(free) >= wanted:
        return [int(lane) for lane in free[:wanted]]
    return sorted(int(lane) for lane in np.argsort(free_s, kind="stable")[:wanted])


def _runs(lanes: list[int]) -> list[tuple[int, int]]:
    """Return (first, length) of each run of neighbours."""
    runs: list[tuple[int, int]] = []
    for lane in lanes:
        if runs and sum(runs[-1]) == lane:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((lane, 1))
    return runs
