"""A generated demand series, similar to those of public clusters.

Jobs are drawn as in ``week`` (jumps of up to 32 GPUs at once, days and weeks, bursts), thinned so that the level drifts
upwards; then an outage (everything to 0, and back over hours) and gaps (unknown values) are put in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.data.demand import demand_of
from commonwatt.data.generators.week import generate_week
from commonwatt.data.log import JobLog
from commonwatt.model.arrays import Floats
from commonwatt.model.demand import DemandSeries
from commonwatt.model.errors import InputError
from commonwatt.model.scenario import WeekWorkload
from commonwatt.model.units import DAY_S, HOUR_S

__all__ = ["DemandSpec", "generate_demand"]

_WARM_UP_DAYS = 7.0  # so that the cluster is full when the series begins
START_S = 1_704_067_200.0  # 2024-01-01T00:00:00Z, a Monday


@dataclass(frozen=True)
class DemandSpec:
    """Parameters of a generated series.

    Parameters
    ----------
    drift
        Submissions at the end over those at the beginning.
    outage_h
        Length of the outage, hours; 0: none. It begins after 45% of the period; the level is back to normal twice
        this length after it.
    gaps
        Holes of unknown values, each of 5 to 60 minutes.
    """

    days: float = 14.0
    step_s: float = 60.0
    jobs_per_day: float = 1000.0
    drift: float = 1.4
    outage_h: float = 6.0
    gaps: int = 3

    def __post_init__(self) -> None:
        for name in ("days", "step_s", "jobs_per_day", "drift"):
            if not 0 < getattr(self, name) < 1e6:
                raise InputError("a number above 0", field=name, value=getattr(self, name))


def generate_demand(spec: DemandSpec, rng: np.random.Generator) -> DemandSeries:
    """Generate a series; the same generator state gives the same series."""
    days = spec.days + _WARM_UP_DAYS
    log = generate_week(WeekWorkload(source="week", days=days, jobs_per_day=spec.jobs_per_day), rng)
    begin_s = _WARM_UP_DAYS * DAY_S
    kept = _thinned(log, spec, begin_s, rng)
    counted = demand_of(kept, spec.step_s, begin_s, begin_s + spec.days * DAY_S).running
    gpus = _with_outage(counted.gpus, spec)
    return DemandSeries(START_S, spec.step_s, _with_gaps(gpus, spec, rng))


def _thinned(log: JobLog, spec: DemandSpec, begin_s: float, rng: np.random.Generator) -> JobLog:
    """Drop jobs so that the rate rises (or falls) evenly by the factor ``drift`` over the period."""
    part = np.clip((log.submit_s - begin_s) / (spec.days * DAY_S), 0.0, 1.0)
    rate = (1.0 + (spec.drift - 1.0) * part) / max(1.0, spec.drift)
    keep = rng.random(len(log)) < rate
    keep[0] = True
    return JobLog.of(
        log.source, job=log.job, tenant=log.tenant, submit_s=log.submit_s, duration_s=log.duration_s, gpus=log.gpus,
        reasons={"thinned out": ~keep},
    )  # fmt: skip


def _with_outage(gpus: Floats, spec: DemandSpec) -> Floats:
    length = round(spec.outage_h * HOUR_S / spec.step_s)
    begin = round(0.45 * len(gpus))
    back = np.clip((np.arange(len(gpus)) - begin - length) / max(2 * length, 1), 0.0, 1.0)
    back[:begin] = 1.0
    return np.floor(gpus * back)


def _with_gaps(gpus: Floats, spec: DemandSpec, rng: np.random.Generator) -> Floats:
    left = gpus.copy()
    for _ in range(spec.gaps):
        length = max(1, round(rng.uniform(300.0, HOUR_S) / spec.step_s))
        begin = int(rng.integers(1, max(2, len(gpus) - length - 1)))
        left[begin : min(begin + length, len(gpus) - 1)] = np.nan
    return left
