"""Fits the figures of ``week`` to the Philly log.

``python -m commonwatt.data.generators.week_fit`` prints them. The period is the six whole weeks from Monday 2017-10-02
(56,266 jobs), times in UTC.

- Hours and days: medians over the 42 days of the submissions in an hour, and over the six weeks of those in a day,
  divided by their mean. Medians, because sweeps of hundreds of jobs within an hour would decide the mean.
- Bursts: the submissions of an hour are Poisson with a rate that is gamma-distributed about the profile; its shape by
  the method of moments.
- Run times: mixtures of lognormals by expectation maximisation, from equal quantiles, 500 rounds.
- Tenants: exponents of Zipf's law by maximum likelihood over the virtual clusters.
"""

from __future__ import annotations

import sys
from collections import Counter
from datetime import datetime
from itertools import pairwise

import numpy as np

from commonwatt.data import third_party
from commonwatt.data.generators.week import WeekModel
from commonwatt.data.log import JobLog, window
from commonwatt.data.readers import read_log
from commonwatt.model.arrays import Bools, Floats
from commonwatt.model.errors import InputError
from commonwatt.model.units import DAY_S, HOUR_S

__all__ = ["fit_week", "main", "philly_weeks"]


BEGIN, WEEKS = "2017-10-02", 6
COMPONENTS = {1: 5, 2: 3, 4: 3, 8: 3}  # lognormals for jobs of at least so many GPUs
_SIZES = (1, 2, 4, 8, 16, 32)
_ROUNDS = 500


def philly_weeks() -> JobLog:
    """Return the period of the fit; raises ``InputError`` if the log is not available."""
    path = third_party.find("philly_jobs.csv.gz")
    if path is None:
        raise InputError(f"philly_jobs.csv.gz in the folder {third_party.VARIABLE} names", value="none")
    return window(read_log("philly", path), BEGIN, 7.0 * WEEKS, carry_in=False)


def fit_week(log: JobLog) -> WeekModel:
    """Fit to a log of whole weeks that begins on a Monday."""
    weeks = round(float(log.submit_s[-1]) / (7 * DAY_S))
    hourly = np.bincount((log.submit_s // HOUR_S).astype(int), minlength=weeks * 168)[: weeks * 168].astype(float)
    hour = _relative(np.median(hourly.reshape(-1, 24), axis=0))
    day = _relative(np.median(hourly.reshape(weeks, 7, 24).sum(axis=2), axis=0))
    sizes = np.array([(log.gpus == size).sum() for size in _SIZES], dtype=float)
    groups = sorted(COMPONENTS)
    of_group = np.searchsorted(groups, log.gpus, side="right") - 1
    run_time = {low: mixture(np.log(log.duration_s[of_group == i]), COMPONENTS[low]) for i, low in enumerate(groups)}
    return WeekModel(
        hour=tuple(hour),
        day=tuple(day),
        burst_shape=_burst_shape(hourly, (day[:, None] * hour).ravel()),
        gpus=dict(zip(_SIZES, (sizes / sizes.sum()).tolist(), strict=True)),
        run_time=run_time,
        zipf_one=_zipf(log, log.gpus == 1),
        zipf_several=_zipf(log, log.gpus > 1),
    )


def _relative(values: Floats) -> Floats:
    return values / values.mean()


def _burst_shape(hourly: Floats, profile: Floats) -> float:
    expected = hourly.mean() * np.tile(profile, len(hourly) // len(profile))
    return float((expected**2).sum() / ((hourly - expected) ** 2 - expected).sum())


def mixture(logs: Floats, components: int) -> tuple[tuple[float, float, float], ...]:
    """Share, mean and standard deviation of each normal in a mixture fitted to *logs*, by mean."""
    edges = np.quantile(logs, np.linspace(0, 1, components + 1))
    parts = [logs[(logs >= low) & (logs <= high)] for low, high in pairwise(edges)]
    mean = np.array([part.mean() for part in parts])
    deviation = np.full(components, logs.std() / components)
    share = np.full(components, 1 / components)
    for _ in range(_ROUNDS):
        likely = np.log(share) - np.log(deviation) - 0.5 * ((logs[:, None] - mean) / deviation) ** 2
        belongs = np.exp(likely - likely.max(axis=1, keepdims=True))
        belongs /= belongs.sum(axis=1, keepdims=True)
        total = belongs.sum(axis=0)
        share, mean = total / len(logs), belongs.T @ logs / total
        spread = (belongs * (logs[:, None] - mean) ** 2).sum(axis=0) / total
        deviation = np.maximum(np.sqrt(spread), 0.05)  # else a component collapses onto one repeated run time
    order = np.argsort(mean)
    return tuple((float(share[i]), float(mean[i]), float(deviation[i])) for i in order)


def _zipf(log: JobLog, rows: Bools) -> float:
    """Return the exponent s of share ~ rank**-s with the largest likelihood of the tenants' job counts."""
    names = Counter(log.tenant[i] for i in np.flatnonzero(rows))
    count = np.array(sorted(names.values(), reverse=True), dtype=float)
    rank = np.log(np.arange(1, len(count) + 1))
    trial = np.linspace(0.0, 4.0, 4001)
    likely = -trial * (count @ rank) - count.sum() * np.log(np.exp(-np.outer(trial, rank)).sum(axis=1))
    return float(trial[likely.argmax()])


def main() -> None:
    """Print the figures in the form of ``week``."""
    log = philly_weeks()
    model = fit_week(log)
    begin = datetime.fromisoformat(BEGIN)
    write = sys.stdout.write
    write(f"{len(log)} jobs from {begin:%A}\n")
    for title, values in (("hour", model.hour), ("day", model.day)):
        write(f"    {title}=({', '.join(f'{v:.2f}' for v in values)}),\n")
    write(f"    burst_shape={model.burst_shape:.2f},\n")
    write(f"    gpus={{{', '.join(f'{size}: {share:.4f}' for size, share in model.gpus.items())}}},\n")
    for low, parts in model.run_time.items():
        write(f"    {low}: ({', '.join(f'({w:.3f}, {m:.2f}, {s:.2f})' for w, m, s in parts)}),\n")
    write(f"    zipf_one={model.zipf_one:.2f},\n    zipf_several={model.zipf_several:.2f},\n")


if __name__ == "__main__":
    main()
