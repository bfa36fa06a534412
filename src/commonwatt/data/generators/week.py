"""A generated week of jobs, similar to Philly, and a demand series of such jobs.

Submissions are Poisson within each hour; the rate of an hour is the profile (hour of day times day of week) times a
gamma-distributed burst, drawn anew each hour. GPU count, run time (a mixture of lognormals for the count) and tenant
are drawn for each job. Tenants' shares follow Zipf's law, with one order of tenants for jobs of one GPU and another,
drawn, for larger jobs: as in Philly, who submits most is not who holds most GPUs.

The figures are fitted to the public Philly log (github.com/msr-fiddle/philly-traces, CC BY 4.0; see ``week_fit`` for
how, and for the period). Not modelled: sweeps of one user's equal jobs, how long bursts last, a cluster that is
already full when the week begins, and the 11 jobs of 12 or 24 GPUs. Time 0 is a Monday, 00:00 UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from commonwatt.data.demand import demand_of
from commonwatt.data.log import JobLog, plural
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.demand import DemandSeries
from commonwatt.model.errors import InputError
from commonwatt.model.scenario import WeekWorkload
from commonwatt.model.units import DAY_S, HOUR_S

__all__ = ["PHILLY", "DemandSpec", "WeekModel", "generate_demand", "generate_week"]

LONGEST_S = 60 * DAY_S  # the longest job of the log ran for 54 days


@dataclass(frozen=True)
class WeekModel:
    """Figures of the generator."""

    hour: tuple[float, ...]  # [24] submissions by hour of day, UTC, relative to their mean
    day: tuple[float, ...]  # [7] by day of week, from Monday
    burst_shape: float  # shape of the gamma distribution of an hour's rate; 1/shape is its squared variation
    gpus: Mapping[int, float]  # share of jobs by GPU count
    run_time: Mapping[int, tuple[tuple[float, float, float], ...]]
    """By least GPU count: share, mean and deviation of ln(run time in s) of each lognormal."""
    zipf_one: float  # exponent of the tenants' shares of one-GPU jobs
    zipf_several: float  # of larger jobs


# fmt: off
PHILLY = WeekModel(
    hour=(
        1.20, 0.89, 0.98, 0.84, 0.84, 1.67, 1.81, 1.34, 1.17, 1.00, 0.89, 0.72,
        0.67, 0.67, 0.61, 0.61, 0.86, 1.14, 1.09, 0.84, 1.11, 0.92, 1.06, 1.06,
    ),
    day=(1.09, 0.99, 1.05, 1.17, 1.68, 0.52, 0.50),
    burst_shape=0.43,
    gpus={1: 0.9410, 2: 0.0184, 4: 0.0225, 8: 0.0164, 16: 0.0013, 32: 0.0005},
    run_time={
        1: ((0.147, 4.15, 0.18), (0.109, 5.62, 1.29), (0.384, 7.49, 0.63), (0.052, 7.86, 0.05), (0.307, 8.03, 1.91)),
        2: ((0.587, 2.76, 0.31), (0.199, 3.72, 1.50), (0.214, 11.82, 1.05)),
        4: ((0.349, 5.59, 1.08), (0.506, 10.51, 1.51), (0.145, 11.69, 0.43)),
        8: ((0.343, 5.72, 1.09), (0.213, 9.49, 1.03), (0.443, 12.13, 0.80)),
    },
    zipf_one=1.71,
    zipf_several=0.82,
)
# fmt: on


def generate_week(spec: WeekWorkload, rng: np.random.Generator, model: WeekModel = PHILLY) -> JobLog:
    """Generate ``spec.days`` days with ``spec.jobs_per_day`` submissions a day on average."""
    submit_s = _submissions(spec, rng, model)
    count = len(submit_s)
    if not count:
        expected = "enough jobs a day and days for one job"
        raise InputError(expected, field="workload.jobs_per_day", value=spec.jobs_per_day)
    shares = np.array(list(model.gpus.values()))
    gpus = rng.choice(np.array(list(model.gpus)), size=count, p=shares / shares.sum())
    tenant = _tenants(gpus, spec.tenants, rng, model)
    digits = len(str(spec.tenants))
    return JobLog.of(
        f"generated, similar to Philly: {plural(count, 'job')} in {plural(spec.days, 'day')}",
        job=[f"job-{i:0{len(str(count))}}" for i in range(1, count + 1)],
        tenant=[f"tenant-{i + 1:0{digits}}" for i in tenant],
        submit_s=submit_s,
        duration_s=_run_times(gpus, rng, model),
        gpus=gpus,
    )


def _submissions(spec: WeekWorkload, rng: np.random.Generator, model: WeekModel) -> Floats:
    hours = np.arange(int(np.ceil(spec.days * 24)))
    profile = np.array(model.hour)[hours % 24] * np.array(model.day)[hours // 24 % 7]
    burst = rng.gamma(model.burst_shape, 1 / model.burst_shape, size=len(hours))
    arrived = rng.poisson(spec.jobs_per_day / 24 * profile * burst)
    times = (np.repeat(hours, arrived) + rng.random(arrived.sum())) * HOUR_S
    return np.sort(times[times < spec.days * DAY_S])


def _run_times(gpus: Ints, rng: np.random.Generator, model: WeekModel) -> Floats:
    lows = sorted(model.run_time)
    of_group = np.searchsorted(lows, gpus, side="right") - 1
    times = np.empty(len(gpus))
    for group, low in enumerate(lows):
        rows = np.flatnonzero(of_group == group)
        share, mean, deviation = np.array(model.run_time[low]).T
        part = rng.choice(len(share), size=len(rows), p=share / share.sum())
        times[rows] = np.exp(rng.normal(mean[part], deviation[part]))
    return np.clip(np.rint(times), 1.0, LONGEST_S)


def _tenants(gpus: Ints, tenants: int, rng: np.random.Generator, model: WeekModel) -> Ints:
    order = rng.permutation(tenants)
    one = rng.choice(tenants, size=len(gpus), p=_zipf(tenants, model.zipf_one))
    several = order[rng.choice(tenants, size=len(gpus), p=_zipf(tenants, model.zipf_several))]
    return np.where(gpus == 1, one, several)


def _zipf(tenants: int, exponent: float) -> Floats:
    share = np.arange(1, tenants + 1, dtype=float) ** -exponent
    return share / share.sum()


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
