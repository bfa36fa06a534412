"""Predicts the times of a job in its configurations from measurements of it and of other jobs of its kind.

Measured times are kept. The others come from the best evidence there is, in this order:

1. this job at two counts of the type: Amdahl's law through them;
2. this job at one count of the type: from there by the F of its kind on this type, else its own F on another type,
   else that of its kind;
3. this job on another type: the ratio of the types from jobs of its kind measured on both;
4. the declared time, times the ratio of measured to declared times of this job;
5. this job at one count, its scaling unknown: no gain from more GPUs, full loss from fewer;
6. jobs of its kind: their median;
7. its time limit.

Figures are clipped to bounds, so that they are finite and above 0 whatever was declared or measured.

Training speeds up with GPUs by Amdahl's law, fitted to the measurements of one job and of all jobs of a kind.

An epoch takes ``t(g) = a (1 - F) + a F / g`` seconds on ``g`` GPUs of one type: ``a`` on one GPU, of which a part ``F``
runs in parallel. Every type has its own ``a`` and ``F``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.model.job_file import MOST_GPU_W, Configuration, Figure, Measurement, Source, bounded_s

__all__ = [
    "Curves",
    "JobScaling",
    "KindScaling",
    "ScalingLine",
    "curves_of",
    "fit_line",
    "lines_of",
    "predict",
    "shape",
    "stretch",
]

Curves = Mapping[str, Mapping[int, float]]
"""Seconds of an epoch by GPU type and count."""


@dataclass(frozen=True)
class ScalingLine:
    """Seconds of an epoch, ``serial_s + parallel_s / g``."""

    serial_s: float
    parallel_s: float

    def at(self, gpus: float) -> float:
        """Return the seconds of an epoch on so many GPUs."""
        return self.serial_s + self.parallel_s / gpus

    @property
    def fraction(self) -> float:
        """The part F of the work that runs in parallel."""
        return self.parallel_s / (self.serial_s + self.parallel_s)


def fit_line(gpus: Floats, epoch_s: Floats) -> ScalingLine:
    """Fit Amdahl's law by least squares of relative errors, both parts 0 or more.

    Parameters
    ----------
    gpus, epoch_s
        Counts, of which two differ, and positive seconds. Shapes [M].
    """
    # Least squares in two unknowns. If the solution has a negative part, by convexity the best solution without one
    # has a zero in one of the two places.
    serial, parallel = 1.0 / epoch_s, 1.0 / (gpus * epoch_s)
    ss, sp, pp, s1, p1 = serial @ serial, serial @ parallel, parallel @ parallel, serial.sum(), parallel.sum()
    both = ss * pp - sp * sp
    if both > 0:  # rounding may leave nothing where one epoch took far longer than another
        line = ScalingLine((s1 * pp - p1 * sp) / both, (p1 * ss - s1 * sp) / both)
        if line.serial_s >= 0 and line.parallel_s >= 0 and line.serial_s + line.parallel_s > 0:
            return line
    # The column that explains more of the sum of squares by itself.
    return ScalingLine(s1 / ss, 0.0) if s1 * s1 / ss >= p1 * p1 / pp else ScalingLine(0.0, p1 / pp)


def shape(fraction: float, gpus: float) -> float:
    """Return the time on so many GPUs relative to one."""
    return 1.0 - fraction + fraction / gpus


def stretch(fraction: float | None, measured_gpus: int, gpus: int) -> float:
    """Return the time on *gpus* relative to that on *measured_gpus*; if F is unknown, the most it can be."""
    if fraction is None:
        return max(1.0, measured_gpus / gpus)
    return shape(fraction, gpus) / shape(fraction, measured_gpus)


def curves_of(measured: Iterable[Measurement]) -> dict[str, dict[int, float]]:
    """Return the epochs' seconds of one job by type and count; the latest measurement of each."""
    curves: dict[str, dict[int, float]] = {}
    for m in sorted(measured, key=lambda m: (m.measured_s, m.epochs, m.epoch_s)):
        curves.setdefault(m.gpu_type, {})[m.gpus] = bounded_s(m.epoch_s)
    return curves


def lines_of(curves: Curves) -> dict[str, ScalingLine]:
    """Return the lines of the types that were measured at two counts or more."""
    return {
        gpu_type: fit_line(np.array(list(row), dtype=float), np.array(list(row.values())))
        for gpu_type, row in ((gpu_type, dict(sorted(row.items()))) for gpu_type, row in curves.items())
        if len(row) > 1
    }


@dataclass(frozen=True)
class JobScaling:
    """Measurements of one job, and the lines fitted to them."""

    rows: Sequence[Measurement]
    curves: Curves
    lines: Mapping[str, ScalingLine]

    @classmethod
    def of(cls, rows: Iterable[Measurement]) -> JobScaling:
        """Fit *rows*, measurements of one job."""
        kept = tuple(rows)
        curves = curves_of(kept)
        return cls(kept, curves, lines_of(curves))


class KindScaling:
    """The scaling that jobs of one kind share.

    Parameters
    ----------
    measured
        Measurements of jobs of one kind.
    """

    def __init__(self, measured: Iterable[Measurement]) -> None:
        by_job: dict[int, list[Measurement]] = {}
        for m in measured:
            by_job.setdefault(m.job, []).append(m)
        self._jobs = {job: JobScaling.of(rows) for job, rows in by_job.items()}

    @classmethod
    def of_jobs(cls, jobs: Mapping[int, JobScaling]) -> KindScaling:
        """Return the scaling of a kind from that of each of its jobs."""
        made = cls(())
        made._jobs = dict(jobs)
        return made

    @cached_property
    def fractions(self) -> dict[str, float]:
        """F by GPU type: the median over its jobs."""
        by_type: dict[str, list[float]] = {}
        for job in self._jobs.values():
            for gpu_type, line in job.lines.items():
                by_type.setdefault(gpu_type, []).append(line.fraction)
        return {gpu_type: float(median(fractions)) for gpu_type, fractions in by_type.items()}

    @cached_property
    def any_fraction(self) -> float | None:
        """F over all types; ``None`` if no job was measured at two counts."""
        return float(median(list(self.fractions.values()))) if self.fractions else None

    def ratio(self, gpu_type: str, base_type: str) -> float | None:
        """Return the time on one GPU of a type relative to another.

        The median over the jobs measured on both; ``None`` if there is none that can be compared.
        """
        values = [self._ratio(job, gpu_type, base_type) for job in self._jobs.values()]
        ratios = [ratio for ratio in values if ratio is not None]
        return float(median(ratios)) if ratios else None

    def epoch_s(self, gpu_type: str, gpus: int) -> float | None:
        """Return the median epoch of its jobs in a configuration, ``None`` if unknown."""
        times = []
        for job in self._jobs.values():
            measured_s = job.curves.get(gpu_type, {}).get(gpus)
            level_s = self._level_s(job, gpu_type)
            fraction = self.fractions.get(gpu_type, self.any_fraction)
            if measured_s is not None:
                times.append(measured_s)
            elif level_s is not None and fraction is not None:
                line = job.lines.get(gpu_type)
                times.append(level_s * shape(fraction if line is None else line.fraction, gpus))
        return float(median(times)) if times else None

    def gpu_w(self, gpu_type: str, gpus: int) -> float | None:
        """Return the median power per GPU in a configuration, else of its type; ``None`` if it was never metered."""
        rows = [m for job in self._jobs.values() for m in job.rows]
        metered = [m for m in rows if m.gpu_type == gpu_type and m.gpu_w is not None]
        there = [m for m in metered if m.gpus == gpus] or metered
        return float(median([m.gpu_w for m in there if m.gpu_w is not None])) if there else None

    def _level_s(self, job: JobScaling, gpu_type: str) -> float | None:
        """Return the epoch of a job on one GPU, ``None`` if unknown."""
        line = job.lines.get(gpu_type)
        if line is not None:
            return line.at(1)
        fraction = self.fractions.get(gpu_type, self.any_fraction)
        for gpus, measured_s in job.curves.get(gpu_type, {}).items():  # there is one at most
            if gpus == 1:
                return measured_s
            return None if fraction is None else measured_s / shape(fraction, gpus)
        return None

    def _ratio(self, job: JobScaling, gpu_type: str, base_type: str) -> float | None:
        here_s, there_s = self._level_s(job, gpu_type), self._level_s(job, base_type)
        if here_s is not None and there_s is not None:
            return here_s / there_s
        here, there = job.curves.get(gpu_type, {}), job.curves.get(base_type, {})
        common = sorted(here.keys() & there.keys())
        return float(median([here[gpus] / there[gpus] for gpus in common])) if common else None


def predict(
    configurations: Sequence[Configuration],
    own: Iterable[Measurement],
    kind: KindScaling | None = None,
    *,
    declared_s: Mapping[Configuration, float] | None = None,
    declared_w: Mapping[str, float] | None = None,
    limit_s: float,
) -> list[Figure]:
    """Return the figures of a job, one for each of *configurations*, in their order.

    Parameters
    ----------
    configurations
        Those of the job.
    own
        Measurements of this job.
    kind
        Scaling of other jobs of its kind; ``None`` if it is of no kind.
    declared_s, declared_w
        Seconds of an epoch by configuration, and watts per GPU by type, as its owner declared them.
    limit_s
        Its time limit, per epoch.
    """
    job = _Evidence(list(own), kind or KindScaling([]), dict(declared_s or {}), dict(declared_w or {}), limit_s)
    return [job.figure(there) for there in configurations]


class _Evidence:
    """All evidence on one job."""

    def __init__(
        self, own: Sequence[Measurement], kind: KindScaling, declared_s: Mapping[Configuration, float],
        declared_w: Mapping[str, float], limit_s: float,
    ) -> None:  # fmt: skip
        self._own, self._kind = own, kind
        self._declared_s = {there: bounded_s(epoch_s) for there, epoch_s in declared_s.items()}
        self._declared_w, self._limit_s = declared_w, limit_s
        self._curves = curves_of(own)
        self._lines = lines_of(self._curves)
        self._own_fraction = float(median([line.fraction for line in self._lines.values()])) if self._lines else None

    def figure(self, there: Configuration) -> Figure:
        """Return time and power in one configuration."""
        epoch_s, source = self._epoch_s(there)
        gpu_w = self._gpu_w(there)
        return Figure(there, bounded_s(epoch_s), None if gpu_w is None else min(gpu_w, MOST_GPU_W), source)

    def _gpu_w(self, there: Configuration) -> float | None:
        """Return watts per GPU: metered there, else on that type; of its kind; declared; else unknown."""
        metered = sorted(
            (m.gpus, m.measured_s, m.gpu_w) for m in self._own if m.gpu_type == there.gpu_type and m.gpu_w is not None
        )
        if metered:
            here = [gpu_w for gpus, _, gpu_w in metered if gpus == there.gpus]
            return here[-1] if here else float(median([gpu_w for _, _, gpu_w in metered]))
        similar_w = self._kind.gpu_w(there.gpu_type, there.gpus)
        return similar_w if similar_w is not None else self._declared_w.get(there.gpu_type)

    def _epoch_s(self, there: Configuration) -> tuple[float, Source]:
        row = self._curves.get(there.gpu_type)
        if row is not None and there.gpus in row:
            return row[there.gpus], Source.MEASURED
        if there.gpu_type in self._lines:
            return self._lines[there.gpu_type].at(there.gpus), Source.PREDICTED
        prediction = self._along(there) if row else self._across(there)
        if prediction is not None:
            return prediction
        declared_s = self._declared_s.get(there)
        if declared_s is not None:
            return declared_s * self._off(there.gpu_type), Source.DECLARED
        if row:
            ((measured_gpus, measured_s),) = row.items()
            return measured_s * stretch(None, measured_gpus, there.gpus), Source.PREDICTED
        if not self._curves:
            similar_s = self._kind.epoch_s(there.gpu_type, there.gpus)
            if similar_s is not None:
                return similar_s, Source.SIMILAR
        return self._limit_s, Source.TIME_LIMIT

    def _along(self, there: Configuration) -> tuple[float, Source] | None:
        """Predict from the one count it was measured at on this type."""
        ((measured_gpus, measured_s),) = self._curves[there.gpu_type].items()
        fraction, source = self._fraction(there.gpu_type)
        return None if fraction is None else (measured_s * stretch(fraction, measured_gpus, there.gpus), source)

    def _across(self, there: Configuration) -> tuple[float, Source] | None:
        """Predict from other types it was measured on."""
        fraction, _ = self._fraction(there.gpu_type)
        times_s = []
        for base_type, row in sorted(self._curves.items()):
            ratio = self._kind.ratio(there.gpu_type, base_type)
            if ratio is None:
                continue
            base_gpus, base_s = min(row.items())
            base_fraction, _ = self._fraction(base_type)
            if base_type in self._lines:
                base_gpus, base_s, base_fraction = 1, self._lines[base_type].at(1), 0.0
            if fraction is None or base_fraction is None:  # unknown for one of the two types
                times_s.append(ratio * base_s * stretch(None, base_gpus, there.gpus))
            else:
                times_s.append(ratio * base_s / shape(base_fraction, base_gpus) * shape(fraction, there.gpus))
        return (float(median(times_s)), Source.SIMILAR) if times_s else None

    def _fraction(self, gpu_type: str) -> tuple[float | None, Source]:
        """Return F on a type, ``None`` if unknown."""
        of_kind = self._kind.fractions.get(gpu_type)
        if of_kind is not None:
            return of_kind, Source.SIMILAR
        if self._own_fraction is not None:
            return self._own_fraction, Source.PREDICTED
        return self._kind.any_fraction, Source.SIMILAR

    def _off(self, gpu_type: str) -> float:
        """Return the ratio of measured to declared times: on this type if it was measured there, else on any."""
        off = {
            (measured_type, gpus): measured_s / self._declared_s[Configuration(measured_type, gpus)]
            for measured_type, row in self._curves.items()
            for gpus, measured_s in row.items()
            if Configuration(measured_type, gpus) in self._declared_s
        }
        here = [value for (measured_type, _), value in off.items() if measured_type == gpu_type] or list(off.values())
        return float(median(here)) if here else 1.0
