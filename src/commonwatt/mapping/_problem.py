"""The job table: what every job asks of every sub-accelerator, and what all of them share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from commonwatt.mapping._goal import Goal, fixed_of, goal_of
from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.errors import InputError
from commonwatt.model.map_file import MapTable
from commonwatt.model.units import plural

if TYPE_CHECKING:
    from commonwatt.model.map_file import MapFile

__all__ = ["LARGEST", "MappingProblem"]

LARGEST = 1e100
"""No mapping takes longer, so that nothing computed from times overflows."""


@dataclass(frozen=True)
class MappingProblem:
    """A batch of jobs on sub-accelerators that share one bandwidth.

    Parameters
    ----------
    latency
        Cycles each job takes on each sub-accelerator if bandwidth is free, infinite where it cannot run. Shape [J, A].
    bandwidth
        Bandwidth it requests meanwhile, GB/s; 0 where it cannot run. Shape [J, A].
    system_bandwidth
        What all sub-accelerators share, GB/s.
    energy
        What each job takes on each sub-accelerator, nJ; 0 where it cannot run. Shape [J, A], empty if unknown.
    goal
        What a mapping is judged by.
    fixed, priority
        Sub-accelerator each job is bound to, -1 if to none, and priority, NaN if free. Shapes [J], or empty.
        *latency* is infinite wherever else a bound job might run.
    """

    latency: Floats  # [J, A]
    bandwidth: Floats  # [J, A]
    system_bandwidth: float
    energy: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    goal: Goal = field(default_factory=Goal)
    fixed: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    priority: Floats = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        if self.latency.ndim != 2 or self.latency.shape != self.bandwidth.shape or 0 in self.latency.shape:
            shapes = f"{self.latency.shape} and {self.bandwidth.shape}"
            raise InputError("two tables of the same shape, jobs by sub-accelerators", field="table", value=shapes)
        for name in ("latency", "bandwidth", "energy"):  # of one layout, for which everything is compiled once
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name)))
        if not (np.isfinite(self.system_bandwidth) and self.system_bandwidth > 0):
            value = self.system_bandwidth
            raise InputError("a finite number above 0", field="system_bandwidth_gbs", value=value)
        _cells(self.latency, "latency_cycles", ~(self.latency > 0), "a number above 0")
        wrong = self.possible & ~((self.bandwidth >= 0) & np.isfinite(self.bandwidth))
        _cells(self.bandwidth, "bandwidth_gbs", wrong, "a finite number, 0 or more, wherever the job has a latency")
        if self.energy.size:
            wrong = self.possible & ~((self.energy >= 0) & np.isfinite(self.energy))
            _cells(self.energy, "energy_nj", wrong, "a finite number, 0 or more, wherever the job has a latency")
        stuck = np.flatnonzero(~self.possible.any(axis=1))
        if len(stuck):
            raise InputError(
                "a latency on at least one sub-accelerator", field=f"table.latency_cycles.{stuck[0]}", value="none"
            )

        with np.errstate(over="ignore"):
            slowest = np.where(self.possible, self.latency, 0.0).sum() * max(
                1.0, self.bandwidth.sum() / self.system_bandwidth
            )
        if not slowest < LARGEST:
            raise InputError(
                f"a bandwidth with which no makespan is beyond {LARGEST:g} cycles",
                field="system_bandwidth_gbs",
                value=self.system_bandwidth,
            )

    @classmethod
    def of(cls, file: MapFile) -> MappingProblem:
        """Return the problem of a file; raises ``InputError`` on tables that are ragged or contradict themselves.

        The table must be there: ``commonwatt.data.map_problem`` makes it of layers and a platform.
        """
        if not isinstance(file.table, MapTable):
            raise InputError("a job table", field="table", value=file.table)
        latency = _table(file.table.latency_cycles, "latency_cycles")
        possible, energy = ~np.isnan(latency), np.zeros((0, 0))
        bandwidth = _alike(file.table.bandwidth_gbs, "bandwidth_gbs", latency)
        if file.table.energy_nj is not None:
            energy = np.where(possible, _alike(file.table.energy_nj, "energy_nj", latency), 0.0)
        whole = cls(
            np.where(possible, latency, np.inf),
            np.where(possible, bandwidth, 0.0),
            float(file.system_bandwidth_gbs),
            energy,
        )
        return whole.with_goal(goal_of(file, len(whole), has_energy=energy.size > 0), *fixed_of(file, whole.latency))

    def with_goal(self, goal: Goal, fixed: Ints | None = None, priority: Floats | None = None) -> MappingProblem:
        """Return the same batch with a goal, and with jobs bound to the sub-accelerators and priorities given."""
        if fixed is None or priority is None or not len(fixed):
            return replace(self, goal=goal)
        free = (fixed < 0)[:, None] | (np.arange(self.accelerators) == fixed[:, None])
        return replace(
            self,
            latency=np.where(free, self.latency, np.inf),
            bandwidth=np.where(free, self.bandwidth, 0.0),
            goal=goal,
            fixed=fixed,
            priority=priority,
        )

    def __len__(self) -> int:
        return len(self.latency)

    @property
    def accelerators(self) -> int:
        """Number of sub-accelerators."""
        return self.latency.shape[1]

    @property
    def possible(self) -> Bools:
        """Where each job can run. Shape [J, A]."""
        return np.isfinite(self.latency)

    @property
    def volume(self) -> Floats:
        """What each job moves, in cycles times GB/s; infinite where it cannot run. Shape [J, A]."""
        return np.where(self.possible, np.where(self.possible, self.latency, 0.0) * self.bandwidth, np.inf)

    @property
    def alone(self) -> Floats:
        """Cycles each job takes if nothing else runs: longer than its latency if it requests more than there is."""
        return self.latency * np.maximum(1.0, self.bandwidth / self.system_bandwidth)


def _table(rows: tuple[tuple[float | None, ...], ...], name: str) -> Floats:
    width = len(rows[0])
    for j, row in enumerate(rows):
        if len(row) != width:
            raise InputError(
                f"{width} sub-accelerators, as in the first row", field=f"table.{name}.{j}", value=f"{len(row)} of them"
            )
    return np.array([[np.nan if cell is None else cell for cell in row] for row in rows], dtype=np.float64)


def _alike(rows: tuple[tuple[float | None, ...], ...], name: str, latency: Floats) -> Floats:
    table = _table(rows, name)
    if table.shape != latency.shape:
        (jobs, accelerators), (others, places) = latency.shape, table.shape
        expected = f"{plural(jobs, 'job')} on {plural(accelerators, 'sub-accelerator')}, as in latency_cycles"
        raise InputError(expected, field=f"table.{name}", value=f"{others} on {places}")
    return table


def _cells(table: Floats, name: str, wrong: Bools, expected: str) -> None:
    for j, a in np.argwhere(wrong).tolist()[:1]:
        value = "null" if np.isnan(table[j, a]) else table[j, a]
        raise InputError(expected, field=f"table.{name}.{j}.{a}", value=value)
