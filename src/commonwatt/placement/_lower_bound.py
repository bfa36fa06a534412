"""What no scheduler can beat: lower bounds on energy plus tardiness cost of running all jobs.

Both bounds hold for schedulers that know the future, split jobs over time and move them for nothing. They charge a job
only its proportional part ``g / G`` of a node's idle power: jobs on one node share it, so charging each the whole is
no bound. The proofs are in docs/explanation/placement.md.

- ``job_bound``: every job alone on the cheapest mixture of its configurations.
- ``load_bound``: a linear program in which jobs also compete for the GPUs, over intervals of time. Sharper where
  there is not room for all of them at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.electricity import Tariff
from commonwatt.model.errors import SolverError
from commonwatt.model.jobs import JobArrays
from commonwatt.model.nodes import Cluster
from commonwatt.optimize import Program

__all__ = ["job_bound", "load_bound", "lower_bound"]

LARGEST_PROGRAM = 500
"""Configurations up to which the linear program takes seconds."""


@dataclass(frozen=True)
class _Rows:
    """Configurations that fit the cluster: job, class, GPUs, run time, energy of the proportional part."""

    job: Ints
    klass: Ints
    gpus: Ints
    time_s: Floats
    energy_j: Floats

    @classmethod
    def of(cls, table: JobArrays, cluster: Cluster, slowdown: Floats | None) -> _Rows:
        found: list[tuple[int, int, int, float, float]] = []
        shapes: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for j in range(len(table)):
            factor = 1.0 if slowdown is None or not len(slowdown) else float(slowdown[j])
            for c in range(int(table.start[j]), int(table.start[j + 1])):
                key = (int(table.config_type[c]), int(table.config_gpus[c]))
                if key not in shapes:
                    shapes[key] = cluster.shapes(table.gpu_types[key[0]], key[1])
                for klass, _, _ in shapes[key]:
                    kind = cluster.classes[klass]
                    own_w = float(table.config_gpu_w[c])
                    gpu_w = kind.gpu_w if np.isnan(own_w) else own_w
                    time_s = float(table.config_time_s[c]) * factor
                    energy_j = key[1] * (gpu_w + kind.idle_w / kind.gpus) * time_s
                    found.append((j, klass, key[1], time_s, energy_j))
        columns = np.array(found, dtype=float).reshape(-1, 5)
        ints = columns[:, :3].astype(np.int64)
        return cls(ints[:, 0], ints[:, 1], ints[:, 2], columns[:, 3], columns[:, 4])


def lower_bound(table: JobArrays, cluster: Cluster, tariff: Tariff, slowdown: Floats | None = None) -> float:
    """Least cost of running all jobs, currency; the sharper ``load_bound`` where its program stays small.

    *slowdown* [J] multiplies run times, where true ones differ from the table's.
    """
    bound = load_bound if len(table.config_time_s) <= LARGEST_PROGRAM else job_bound
    return float(np.sum(bound(table, cluster, tariff, slowdown)))


def job_bound(table: JobArrays, cluster: Cluster, tariff: Tariff, slowdown: Floats | None = None) -> Floats:
    """Least cost of each job alone, [J], currency.

    The least over all mixtures of configurations of energy at the best price from submission on, plus tardiness:
    energy against run time is a convex polygon, tardiness is convex, so the least is at a corner or at the due date.
    """
    rows = _Rows.of(table, cluster, slowdown)
    price = tariff.least_cost_per_j(table.submit_s)
    bounds = np.zeros(len(table))
    start = np.searchsorted(rows.job, np.arange(len(table) + 1))
    for j in range(len(table)):
        own = slice(start[j], start[j + 1])
        if own.start == own.stop:
            continue
        time_s, cost = _lower_hull(rows.time_s[own], rows.energy_j[own] * price[j])
        slack_s = table.due_s[j] - table.submit_s[j]
        corners = cost + table.tardiness_weight[j] * np.maximum(0.0, time_s - slack_s)
        bounds[j] = corners.min()
        if time_s[0] < slack_s < time_s[-1]:
            bounds[j] = min(bounds[j], float(np.interp(slack_s, time_s, cost)))
    return bounds


def _lower_hull(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Corners of the lower convex hull of points, by x."""
    hull: list[tuple[float, float]] = []
    for px, py in sorted(zip(x.tolist(), y.tolist(), strict=True)):
        if hull and hull[-1][0] == px:
            continue
        while len(hull) > 1 and (hull[-1][1] - hull[-2][1]) * (px - hull[-2][0]) >= (py - hull[-2][1]) * (
            hull[-1][0] - hull[-2][0]
        ):
            hull.pop()
        hull.append((px, py))
    points = np.array(hull)
    return points[:, 0], points[:, 1]


def load_bound(
    table: JobArrays, cluster: Cluster, tariff: Tariff, slowdown: Floats | None = None, intervals: int = 60
) -> float:
    """Least cost of all jobs together, currency: never below the sum of ``job_bound``.

    A linear program over fractions ``x`` of each job done in each configuration in each of *intervals* of time.
    Work of job j done at time t costs ``omega_j * h_j(t)``, with ``h_j(t) = f * ceil(max(0, t - d_j) / f)`` and ``f``
    its least run time: averaged over any way to finish at C that is at most ``max(0, C - d_j)``.
    """
    alone = job_bound(table, cluster, tariff, slowdown)
    rows = _Rows.of(table, cluster, slowdown)
    fastest_s = np.full(len(table), np.inf)
    np.minimum.at(fastest_s, rows.job, rows.time_s)
    edges = _edges(table, cluster, rows, intervals)
    r, b = np.nonzero(edges[None, 1:] > table.submit_s[rows.job][:, None])
    j = rows.job[r]
    from_s = np.maximum(edges[b], table.submit_s[j])
    price = tariff.least_cost_per_j(from_s)
    late_s = np.maximum(0.0, from_s - table.due_s[j])
    steps = fastest_s[j] * np.ceil(np.round(late_s / fastest_s[j], 9))
    items, jobs = len(r), len(table)
    cost = np.concatenate((rows.energy_j[r] * price, np.ones(jobs)))
    program = Program()
    own = program.columns(cost, high=np.append(np.ones(items), np.full(jobs, np.inf)))[items:]
    weight = table.tardiness_weight
    _add_grouped(program, j, np.ones(items), np.ones(jobs), np.ones(jobs))
    _add_grouped(program, j, -weight[j] * steps, np.zeros(jobs), np.full(jobs, np.inf), own=own)
    finite = np.where(np.isfinite(table.due_s), table.due_s, 1e300)
    floor = np.where(weight > 0, weight * (table.submit_s - finite), -np.inf)
    _add_grouped(program, j, -weight[j] * rows.time_s[r], floor, np.full(jobs, np.inf), own=own)
    last = len(edges) - 2
    spans = np.diff(edges)
    capacity = cluster.class_sizes() * np.array([kind.gpus for kind in cluster.classes])
    group = rows.klass[r] * (last + 1) + b
    room = (capacity[:, None] * spans[None, :]).ravel()
    _add_grouped(program, group, rows.gpus[r] * rows.time_s[r], np.full(len(room), -np.inf), room)
    group = j * (last + 1) + b
    length = np.minimum(spans[None, :], np.maximum(0.0, edges[None, 1:] - table.submit_s[:, None])).ravel()
    _add_grouped(program, group, rows.time_s[r], np.full(len(length), -np.inf), length)
    try:
        together = program.minimise(method="ipm", tolerance=1e-7).bound
    except SolverError:  # numbers too far apart for HiGHS
        return float(alone.sum())
    return max(float(alone.sum()), together)


def _edges(table: JobArrays, cluster: Cluster, rows: _Rows, intervals: int) -> Floats:
    """Ends of intervals: even until all work can be done, then one without end."""
    least = np.full(len(table), np.inf)
    np.minimum.at(least, rows.job, rows.gpus * rows.time_s)
    until_s = float(table.submit_s.max()) + 1.5 * float(least.sum()) / cluster.total_gpus
    until_s = max(until_s, float(np.max(table.submit_s)) + float(np.min(least)) + 1.0)
    return np.append(np.linspace(float(table.submit_s.min()), until_s, intervals), np.inf)


def _add_grouped(
    program: Program, group: Ints, values: Floats, lower: Floats, upper: Floats, own: Ints | None = None
) -> None:
    """Add one row per group over the items of the group, and its column in *own* with coefficient 1, if given.

    Groups without items and without bounds get no row.
    """
    kept = (np.bincount(group, minlength=len(lower)) > 0) & (np.isfinite(lower) | np.isfinite(upper))
    place = np.cumsum(kept) - 1
    items = np.flatnonzero(kept[group])
    row, column, value = place[group[items]], items, values[items]
    if own is not None:
        row, column = np.append(row, place[kept]), np.append(column, own[kept])
        value = np.append(value, np.ones(int(kept.sum())))
    program.rows(row, column, value, lower[kept], upper[kept])
