"""Demand for GPUs over time, from a job log.

*Running* demand counts a job from its start to its end, *wanted* demand from its submission to its end. If a log has no
start times, jobs count as started when they were submitted, and the two are equal: the load requested, not what a
scheduler granted. A job that waits for others is submitted, in this sense, when these have started or ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.data.log import JobLog, eligible_s
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.demand import Arrivals, DemandSeries, Notices
from commonwatt.model.dependencies import notices
from commonwatt.model.errors import InputError

__all__ = ["GpuUse", "LogDemand", "demand_of", "usage"]


@dataclass(frozen=True)
class GpuUse:
    """A step function: ``gpus[i]`` GPUs are in use from ``time_s[i]`` on; none before the first and after the last."""

    time_s: Floats  # [T] increasing, on the clock of the log
    gpus: Ints  # [T]; the last is 0
    from_starts: bool  # whether the log has start times; else jobs count from their submission

    def within(self, begin_s: float, end_s: float) -> tuple[Floats, Ints]:
        """Return (seconds, GPUs) of every step between two moments, [S] each; empty if they are one."""
        edges = np.unique(np.clip(np.concatenate((self.time_s, [begin_s, end_s])), begin_s, end_s))
        in_use = np.concatenate(([0], self.gpus))
        return np.diff(edges), in_use[np.searchsorted(self.time_s, edges[:-1], side="right")]


def usage(log: JobLog) -> GpuUse:
    """Return the GPUs in use over time: every job uses its GPUs for its run time from its start."""
    has_start = np.isfinite(log.start_s)
    from_starts = bool(has_start.mean() > 0.5)
    _, begin_s = eligible_s(log, from_starts=from_starts)
    moments = np.concatenate((begin_s, begin_s + log.duration_s))
    time_s, index = np.unique(moments, return_inverse=True)
    change = np.zeros(len(time_s), dtype=np.int64)
    np.add.at(change, index, np.concatenate((log.gpus, -log.gpus)))
    return GpuUse(time_s, np.cumsum(change), from_starts)


_MOST_VALUES = 50_000_000


@dataclass(frozen=True)
class LogDemand:
    """Both demands of a log at the same instants, on the clock of the log's dates if it has them.

    Parameters
    ----------
    started, submitted
        The jobs that begin in the period as running and as wanted demand count them: they say which jobs are served
        when too few GPUs are on.
    """

    running: DemandSeries
    wanted: DemandSeries
    from_starts: bool
    dated: bool
    started: Arrivals
    submitted: Arrivals


def demand_of(log: JobLog, step_s: float = 60.0, begin_s: float | None = None, end_s: float | None = None) -> LogDemand:
    """Count GPUs at whole steps: a value at t is the sum over jobs with ``begin <= t < end``, not capped.

    A job that begins and ends between two instants is not counted.

    Parameters
    ----------
    begin_s, end_s
        Period on the clock of the log: ``[begin_s, end_s)``. By default from where the log is complete to its last
        submission.

    Raises
    ------
    InputError
        For a period without an instant.
    """
    origin_s = 0.0 if log.origin is None else log.origin.timestamp()
    use = usage(log)
    first_s = log.whole_from_s if begin_s is None else begin_s
    last_s = log.span_s[1] if end_s is None else end_s
    first = int(np.ceil((first_s + origin_s) / step_s - 1e-9))
    stop = int(np.ceil((last_s + origin_s) / step_s - 1e-9))
    if not first < stop <= first + _MOST_VALUES:
        value = f"{log.moment(first_s)} to {log.moment(last_s)}"
        raise InputError(f"a period of 1 to {_MOST_VALUES:,} steps of {step_s:g} s", field="period", value=value)
    at_s: Floats = step_s * np.arange(first, stop, dtype=np.float64) - origin_s
    counts = np.concatenate(([0], use.gpus))
    running = counts[np.searchsorted(use.time_s, at_s, side="right")].astype(float)
    come_s, begins_s = eligible_s(log, from_starts=use.from_starts)
    wanted = running + _waiting(come_s, begins_s, log.gpus, at_s)
    start_s = step_s * first
    own, all_of_them = DemandSeries(start_s, step_s, running), DemandSeries(start_s, step_s, wanted)
    ends_s = begins_s + log.duration_s
    said = _notices(log, begins_s, at_s) if log.after else None
    return LogDemand(
        running=own,
        wanted=all_of_them,
        from_starts=use.from_starts,
        dated=log.origin is not None,
        started=_arrivals(
            own, at_s, begins_s, ends_s, log.gpus, *((np.zeros(0), None) if use.from_starts else (log.known_s, said))
        ),
        submitted=_arrivals(all_of_them, at_s, come_s, ends_s, log.gpus, log.known_s, said),
    )


def _notices(log: JobLog, begins_s: Floats, at_s: Floats) -> Notices | None:
    """Return what was known at instants *at_s* of the jobs that wait for others."""
    at = {name: i for i, name in enumerate(log.job)}
    rows = [{at[name]: kind for name, kind in own.items()} for own in log.after]
    spans = notices(rows, log.submit_s, begins_s, begins_s + log.duration_s, log.time_limit_s, log.gpus)
    if not spans:
        return None
    from_s, until_s, comes_s, gpus = np.array(spans).T
    first, stop, index = (np.searchsorted(at_s, times_s).astype(np.int64) for times_s in (from_s, until_s, comes_s))
    return Notices(first, stop, index, gpus)


def _arrivals(
    series: DemandSeries, at_s: Floats, come_s: Floats, ends_s: Floats, gpus: Ints, known_s: Floats,
    said: Notices | None,
) -> Arrivals:  # fmt: skip
    """Return the jobs that come in the period and are there at an instant of it, by the time they come.

    *known_s* is when that time was known; empty: when they come.
    """
    first = np.searchsorted(at_s, come_s)
    inside = (come_s > at_s[0] - series.step_s) & (first < len(at_s)) & (ends_s > _at(at_s, first))
    order = np.flatnonzero(inside)[np.argsort(come_s[inside], kind="stable")]
    notice_index = np.searchsorted(at_s, known_s[order]).astype(np.int64) if len(known_s) else None
    return Arrivals.of(series, first[order].astype(np.int64), gpus[order], notice_index, said)


def _at(at_s: Floats, index: np.ndarray) -> Floats:
    return at_s[np.minimum(index, len(at_s) - 1)]


def _waiting(come_s: Floats, begins_s: Floats, gpus: Ints, at_s: Floats) -> Floats:
    """GPUs of jobs that have come but not started. Shape [T]."""
    change = np.zeros(len(at_s) + 1)
    waits = begins_s > come_s
    np.add.at(change, np.searchsorted(at_s, come_s[waits]), gpus[waits])
    np.add.at(change, np.searchsorted(at_s, begins_s[waits]), -gpus[waits])
    return np.cumsum(change)[:-1]
