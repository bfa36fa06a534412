"""Jobs of a part of a GPU: listed, by a law, or from a log."""

from __future__ import annotations

import numpy as np

from commonwatt.data.fitting import only_rows
from commonwatt.data.log import JobLog
from commonwatt.model.arrays import Bools
from commonwatt.model.errors import InputError
from commonwatt.model.fleet import FractionalJobs, FractionalLaw, FractionalModel, FractionalWorkload, Qos
from commonwatt.model.units import DAY_S, HOUR_S

__all__ = ["fractional_jobs", "fractions_of", "without_fractions"]


def fractional_jobs(spec: FractionalWorkload, rng: np.random.Generator) -> tuple[FractionalModel, ...]:
    """Return the fractional jobs of a scenario, in order of submission."""
    if isinstance(spec, FractionalJobs):
        names = [job.name for job in spec.jobs]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError("distinct job names", field="fractional.jobs.name", value=twice)
        listed = [FractionalModel(j.name, j.tenant, j.submit_s, j.duration_s, j.gpu_milli, j.qos) for j in spec.jobs]
        return tuple(sorted(listed, key=lambda job: job.submit_s))
    return _by_law(spec, rng)


def _by_law(spec: FractionalLaw, rng: np.random.Generator) -> tuple[FractionalModel, ...]:
    length_s, most = spec.days * DAY_S, spec.jobs_per_day / DAY_S * (1 + spec.swing)
    at_s = np.sort(rng.uniform(0.0, length_s, rng.poisson(most * length_s)))
    day = 1.0 + spec.swing * np.cos(2 * np.pi * (at_s - spec.peak_h * HOUR_S) / DAY_S)
    at_s = at_s[rng.random(len(at_s)) * (1 + spec.swing) < day]  # thinned
    count = len(at_s)
    duration_s = spec.median_s * np.exp(rng.normal(0.0, spec.spread, count))
    milli = rng.choice(np.array(spec.gpu_milli), count)
    tenants = rng.integers(len(spec.tenants), size=count)
    best_effort = rng.random(count) < spec.best_effort
    digits = len(str(count))
    return tuple(
        FractionalModel(
            f"fraction-{i:0{digits}}", spec.tenants[tenants[i]], float(at_s[i]), float(duration_s[i]), int(milli[i]),
            "BE" if best_effort[i] else "LS",
        )
        for i in range(count)
    )  # fmt: skip


_QOS: dict[str, Qos] = {"LS": "LS", "BE": "BE", "Burstable": "Burstable", "Guaranteed": "Guaranteed"}


def fractions_of(log: JobLog) -> tuple[FractionalModel, ...]:
    """Return the jobs of *log* that ask for a part of a GPU."""
    found = []
    for j in np.flatnonzero(_is_fraction(log)).tolist():
        found.append(
            FractionalModel(
                log.job[j], log.tenant[j], float(log.submit_s[j]), float(log.duration_s[j]), int(log.gpu_milli[j]),
                _QOS.get(log.tenant[j], "LS"),
            )
        )  # fmt: skip
    return tuple(found)


def without_fractions(log: JobLog) -> JobLog:
    """Return *log* without these jobs. Raises ``InputError`` if none is left."""
    rows = np.flatnonzero(~_is_fraction(log)).tolist()
    if not rows:
        raise InputError("a log with a job of a whole GPU", file=log.path, field="gpu_milli", value="none")
    return only_rows(log, rows)


def _is_fraction(log: JobLog) -> Bools:
    if not len(log.gpu_milli):
        raise InputError("a log that says what part of a GPU jobs ask for (alibaba)", file=log.path,
                         field="workload.fractions", value="share")  # fmt: skip
    return np.asarray((log.gpus == 1) & (log.gpu_milli > 0) & (log.gpu_milli < 1000))
