"""How training speeds up with GPUs: Amdahl's law fitted to measurements, of one job and of all jobs of a kind.

An epoch takes ``t(g) = a (1 - F) + a F / g`` seconds on ``g`` GPUs of one type: ``a`` on one of them, of which a part
``F`` is shared out. Every type has its own ``a`` and ``F``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.model.job_profile import Measurement, bounded_s

__all__ = ["Curves", "JobScaling", "KindScaling", "Line", "curves_of", "fit_line", "lines_of", "shape", "stretch"]

Curves = Mapping[str, Mapping[int, float]]
"""Seconds of an epoch by GPU type and count."""


@dataclass(frozen=True)
class Line:
    """Seconds of an epoch, ``serial_s + parallel_s / g``."""

    serial_s: float
    parallel_s: float

    def at(self, gpus: float) -> float:
        """Return the seconds of an epoch on so many GPUs."""
        return self.serial_s + self.parallel_s / gpus

    @property
    def fraction(self) -> float:
        """The part F of the work that is shared out."""
        return self.parallel_s / (self.serial_s + self.parallel_s)


def fit_line(gpus: Floats, epoch_s: Floats) -> Line:
    """Fit Amdahl's law by least squares of relative errors, both parts 0 or more.

    Parameters
    ----------
    gpus, epoch_s
        Counts, of which two differ, and positive seconds. Shapes [M].
    """
    # Columns of a least squares problem in two unknowns. If its solution has a negative part, convexity says that the
    # best one without has a zero instead, in one of the two places.
    serial, parallel = 1.0 / epoch_s, 1.0 / (gpus * epoch_s)
    ss, sp, pp, s1, p1 = serial @ serial, serial @ parallel, parallel @ parallel, serial.sum(), parallel.sum()
    both = ss * pp - sp * sp
    if both > 0:  # rounding may leave nothing where one epoch took far longer than another
        found = Line((s1 * pp - p1 * sp) / both, (p1 * ss - s1 * sp) / both)
        if found.serial_s >= 0 and found.parallel_s >= 0 and found.serial_s + found.parallel_s > 0:
            return found
    # What is explained of the sum of squares by either column alone.
    return Line(s1 / ss, 0.0) if s1 * s1 / ss >= p1 * p1 / pp else Line(0.0, p1 / pp)


def shape(fraction: float, gpus: float) -> float:
    """Return the time on so many GPUs relative to one."""
    return 1.0 - fraction + fraction / gpus


def stretch(fraction: float | None, known_gpus: int, gpus: int) -> float:
    """Return the time on *gpus* relative to that on *known_gpus*; if F is not known, the most it can be."""
    if fraction is None:
        return max(1.0, known_gpus / gpus)
    return shape(fraction, gpus) / shape(fraction, known_gpus)


def curves_of(measured: Iterable[Measurement]) -> dict[str, dict[int, float]]:
    """Return the epochs' seconds of one job by type and count; the latest measurement of each."""
    curves: dict[str, dict[int, float]] = {}
    for m in sorted(measured, key=lambda m: (m.measured_s, m.epochs, m.epoch_s)):
        curves.setdefault(m.gpu_type, {})[m.gpus] = bounded_s(m.epoch_s)
    return curves


def lines_of(curves: Curves) -> dict[str, Line]:
    """Return the lines of the types that were measured at two counts or more."""
    return {
        gpu_type: fit_line(np.array(list(row), dtype=float), np.array(list(row.values())))
        for gpu_type, row in ((gpu_type, dict(sorted(row.items()))) for gpu_type, row in curves.items())
        if len(row) > 1
    }


@dataclass(frozen=True)
class JobScaling:
    """Measurements of one job, and what they tell."""

    rows: Sequence[Measurement]
    curves: Curves
    lines: Mapping[str, Line]

    @classmethod
    def of(cls, rows: Iterable[Measurement]) -> JobScaling:
        """Return what *rows*, of one job, tell."""
        kept = tuple(rows)
        curves = curves_of(kept)
        return cls(kept, curves, lines_of(curves))


class KindScaling:
    """What the jobs of one kind have in common.

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
        """Return what jobs of one kind have in common, from what is known of each."""
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

    def ratio(self, gpu_type: str, known_type: str) -> float | None:
        """Return the time on one GPU of a type relative to another.

        The median over the jobs measured on both; ``None`` if there is none that can be compared.
        """
        known = [self._ratio(job, gpu_type, known_type) for job in self._jobs.values()]
        ratios = [ratio for ratio in known if ratio is not None]
        return float(median(ratios)) if ratios else None

    def epoch_s(self, gpu_type: str, gpus: int) -> float | None:
        """Return the median epoch of its jobs in a configuration, ``None`` if nothing is known of it."""
        times = []
        for job in self._jobs.values():
            known = job.curves.get(gpu_type, {}).get(gpus)
            level_s = self._level_s(job, gpu_type)
            fraction = self.fractions.get(gpu_type, self.any_fraction)
            if known is not None:
                times.append(known)
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
        """Return the epoch of a job on one GPU, as far as that can be told."""
        line = job.lines.get(gpu_type)
        if line is not None:
            return line.at(1)
        fraction = self.fractions.get(gpu_type, self.any_fraction)
        for gpus, known_s in job.curves.get(gpu_type, {}).items():  # there is one at most
            if gpus == 1:
                return known_s
            return None if fraction is None else known_s / shape(fraction, gpus)
        return None

    def _ratio(self, job: JobScaling, gpu_type: str, known_type: str) -> float | None:
        here_s, there_s = self._level_s(job, gpu_type), self._level_s(job, known_type)
        if here_s is not None and there_s is not None:
            return here_s / there_s
        here, there = job.curves.get(gpu_type, {}), job.curves.get(known_type, {})
        common = sorted(here.keys() & there.keys())
        return float(median([here[gpus] / there[gpus] for gpus in common])) if common else None
