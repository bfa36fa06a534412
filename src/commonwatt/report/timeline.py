"""The common time axis of a report: hours or days since the first submission."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.model.units import DAY_S, HOUR_S
from commonwatt.simulation.record import Record

__all__ = ["Timeline", "end_s", "time_unit", "timeline"]


@dataclass(frozen=True)
class Timeline:
    """Origin and unit of the time axis."""

    origin_s: float
    focus_s: float  # what is shown at first ends here: before a long tail of a few jobs
    end_s: float  # of the policy that took longest
    unit: str
    unit_s: float

    @property
    def focused(self) -> bool:
        """Whether a long tail is left out at first."""
        return self.focus_s < self.end_s

    @property
    def title(self) -> str:
        """What stands below the axis."""
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


def timeline(records: Sequence[Record]) -> Timeline:
    """Return the time axis that suits *records*."""
    starts = [float(r.jobs.submit_s.min()) for r in records if len(r.jobs.submit_s)]
    origin = min(starts, default=0.0)
    end = max([end_s(record) for record in records] + [origin])
    focus = max([_focus_s(record, origin) for record in records] + [origin])
    if focus - origin > 0.6 * (end - origin):
        focus = end
    return Timeline(origin, focus, end, *time_unit(focus - origin))


def end_s(record: Record) -> float:
    """Return when the last job ended or, if none did, the last sample was taken, s."""
    ended = record.jobs.ended_s[np.isfinite(record.jobs.ended_s)]
    if len(ended):
        return float(ended.max())
    return float(record.samples.time_s.max()) if len(record.samples.time_s) else 0.0


def _focus_s(record: Record, origin_s: float) -> float:
    """Return when all but 1% of the jobs had ended, and a little more."""
    ended = record.jobs.ended_s[np.isfinite(record.jobs.ended_s)]
    return origin_s + 1.05 * (float(np.quantile(ended, 0.99)) - origin_s) if len(ended) else end_s(record)


def time_unit(span_s: float) -> tuple[str, float]:
    """Return the unit in which *span_s* is best counted, and how many seconds it is."""
    if span_s > 3 * DAY_S:
        return "days", DAY_S
    if span_s > 2 * HOUR_S:
        return "hours", HOUR_S
    return ("minutes", 60.0) if span_s > 120 else ("seconds", 1.0)
