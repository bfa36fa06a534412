"""Demand for GPUs over time, from a job log.

Two demands, by name: *running* counts a job from its start to its end, *wanted* from its submission to its end, that
is while it runs or waits. Where a log does not tell starts, jobs count as started when they were submitted, and the
two are one: the load that was asked for, not what a scheduler granted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.data.log import JobLog
from commonwatt.data.usage import usage
from commonwatt.forecasting.series import DemandSeries
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError

__all__ = ["LogDemand", "demand_of"]

_MOST_VALUES = 50_000_000


@dataclass(frozen=True)
class LogDemand:
    """Both demands of a log at the same instants, on the clock of the log's dates if it has them.

    Parameters
    ----------
    starts, sizes
        Index of the first value that counts each job, and its GPUs, for the jobs that begin within; they say who is
        served when too few GPUs are on. Shape [J].
    """

    running: DemandSeries
    wanted: DemandSeries
    from_starts: bool
    dated: bool
    starts: Ints  # [J]
    sizes: Ints  # [J]


def demand_of(log: JobLog, step_s: float = 60.0, begin_s: float | None = None, end_s: float | None = None) -> LogDemand:
    """Count GPUs at whole steps: a value at t is the sum over jobs with ``begin <= t < end``, not capped.

    A job that begins and ends between two instants does not show.

    Parameters
    ----------
    begin_s, end_s
        Period on the clock of the log: ``[begin_s, end_s)``. If ``None`` from where the log is complete, until its last
        submission, after which it thins out.

    Raises
    ------
    InputError
        For a period without an instant.
    """
    origin_s = 0.0 if log.origin is None else log.origin.timestamp()
    held = usage(log)
    first_s = log.whole_from_s if begin_s is None else begin_s
    last_s = log.span_s[1] if end_s is None else end_s
    first = int(np.ceil((first_s + origin_s) / step_s - 1e-9))
    stop = int(np.ceil((last_s + origin_s) / step_s - 1e-9))
    if not first < stop <= first + _MOST_VALUES:
        value = f"{log.moment(first_s)} to {log.moment(last_s)}"
        raise InputError(f"a period of 1 to {_MOST_VALUES:,} steps of {step_s:g} s", field="period", value=value)
    at_s: Floats = step_s * np.arange(first, stop, dtype=np.float64) - origin_s
    counts = np.concatenate(([0], held.gpus))
    running = counts[np.searchsorted(held.time_s, at_s, side="right")].astype(float)
    begins_s = np.where(np.isfinite(log.start_s) & held.from_starts, log.start_s, log.submit_s)
    wanted = running + _waiting(log, begins_s, at_s)
    start_s = step_s * first
    begun = np.searchsorted(at_s, begins_s)
    inside = (begins_s > at_s[0] - step_s) & (begun < len(at_s)) & (begins_s + log.duration_s > _at(at_s, begun))
    order = np.flatnonzero(inside)[np.argsort(begins_s[inside], kind="stable")]
    return LogDemand(
        running=DemandSeries(start_s, step_s, running),
        wanted=DemandSeries(start_s, step_s, wanted),
        from_starts=held.from_starts,
        dated=log.origin is not None,
        starts=begun[order].astype(np.int64),
        sizes=log.gpus[order],
    )


def _at(at_s: Floats, index: np.ndarray) -> Floats:
    return at_s[np.minimum(index, len(at_s) - 1)]


def _waiting(log: JobLog, begins_s: Floats, at_s: Floats) -> Floats:
    """GPUs of jobs that are submitted and have not begun. Shape [T]."""
    change = np.zeros(len(at_s) + 1)
    waits = begins_s > log.submit_s
    np.add.at(change, np.searchsorted(at_s, log.submit_s[waits]), log.gpus[waits])
    np.add.at(change, np.searchsorted(at_s, begins_s[waits]), -log.gpus[waits])
    return np.cumsum(change)[:-1]
