"""What no scheduler can beat: lower bounds on energy plus tardiness cost of running all jobs.

Both bounds hold for schedulers that know the future, split jobs over time and move them for nothing. They charge a job
only its proportional part ``g / G`` of a node's idle power: jobs on one node share it, so charging each the whole is
no bound. The proofs are in docs/explanation/placement.md.

- ``job_bound``: every job alone on the cheapest mixture of its configurations, at the best times.
- ``load_bound``: a linear program in which jobs also compete for the GPUs, over intervals of time. Sharper where
  there is not room for all of them at once.

Where the price changes, both pay the price of each time. A negative price counts as 0 for jobs; what the cluster could
earn then at most, all nodes busy, is subtracted as a whole.
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
        rows: list[tuple[int, int, int, float, float]] = []
        shapes: dict[tuple[int, int, str, str], list[tuple[int, int, int]]] = {}
        for j in range(len(table)):
            factor = 1.0 if slowdown is None or not len(slowdown) else float(slowdown[j])
            for c in range(int(table.start[j]), int(table.start[j + 1])):
                partition, _, constraint = table.nodes_of(j)
                key = (int(table.config_type[c]), int(table.config_gpus[c]), partition, constraint)
                if key not in shapes:
                    shapes[key] = cluster.shapes(table.gpu_types[key[0]], key[1], partition, constraint=constraint)
                for klass, _, _ in shapes[key]:
                    kind = cluster.classes[klass]
                    own_w = float(table.config_gpu_w[c])
                    gpu_w = kind.gpu_w if np.isnan(own_w) else own_w
                    time_s = float(table.config_time_s[c]) * factor
                    energy_j = key[1] * (gpu_w + kind.idle_w / kind.gpus) * time_s
                    rows.append((j, klass, key[1], time_s, energy_j))
        columns = np.array(rows, dtype=float).reshape(-1, 5)
        ints = columns[:, :3].astype(np.int64)
        return cls(ints[:, 0], ints[:, 1], ints[:, 2], columns[:, 3], columns[:, 4])


def lower_bound(table: JobArrays, cluster: Cluster, tariff: Tariff, slowdown: Floats | None = None) -> float:
    """Least cost of running all jobs, currency; the sharper ``load_bound`` where its program stays small.

    *slowdown* [J] multiplies run times, where true ones differ from the table's.
    """
    bound = load_bound if len(table.config_time_s) <= LARGEST_PROGRAM else job_bound
    least = float(np.sum(bound(table, cluster, tariff, slowdown)))
    if tariff.price.values.min() >= 0 or not len(table):
        return least
    from_s, last_s = float(table.submit_s.min()), float(tariff.price.starts_s[-1])
    edges, values = tariff.price.pieces(from_s, max(from_s, last_s))
    most_w = float(cluster.class_sizes() @ [kind.power_w(kind.gpus) for kind in cluster.classes])
    own_w = np.nan_to_num(table.config_gpu_w)  # a job may draw more than its node's figure says
    most_w += cluster.total_gpus * float(own_w.max(initial=0.0))
    return least - most_w * tariff.per_j * float(np.maximum(0.0, -values) @ np.diff(edges))


def job_bound(table: JobArrays, cluster: Cluster, tariff: Tariff, slowdown: Floats | None = None) -> Floats:
    """Least cost of each job alone, [J], currency.

    The least over all mixtures of configurations and all times to run, plus tardiness. At a constant price, energy
    against run time is a convex polygon, tardiness is convex, so the least is at a corner or at the due date. At one
    that changes, see ``_Times``.
    """
    rows = _Rows.of(table, cluster, slowdown)
    price = np.maximum(0.0, tariff.least_cost_per_j(table.submit_s))
    bounds = np.zeros(len(table))
    start = np.searchsorted(rows.job, np.arange(len(table) + 1))
    for j in range(len(table)):
        own = slice(start[j], start[j + 1])
        if own.start == own.stop:
            continue
        if not tariff.price.is_constant:
            times = _Times(tariff, table.submit_s[j], table.due_s[j], table.tardiness_weight[j])
            bounds[j] = times.least(rows.time_s[own], rows.energy_j[own], float(price[j]))
            continue
        time_s, cost = _lower_hull(rows.time_s[own], rows.energy_j[own] * price[j])
        slack_s = table.due_s[j] - table.submit_s[j]
        corners = cost + table.tardiness_weight[j] * np.maximum(0.0, time_s - slack_s)
        bounds[j] = corners.min()
        if time_s[0] < slack_s < time_s[-1]:
            bounds[j] = min(bounds[j], float(np.interp(slack_s, time_s, cost)))
    return bounds


MOST_STEPS = 2000  # of the price, that a job may end in after its due date


class _Times:
    """When a job alone runs at least cost, where the price changes.

    If it ends by its due date, it runs in the steps of the price until then. Else it ends in one of the later steps:
    each second it runs in that one delays its end, so it costs its weight beside the energy.
    """

    def __init__(self, tariff: Tariff, submit_s: float, due_s: float, weight: float) -> None:
        self.tariff, self.submit_s, self.due_s, self.weight = tariff, submit_s, due_s, weight

    def least(self, time_s: Floats, energy_j: Floats, least_price: float) -> float:
        """Return the least cost in the best mixture of configurations, currency; prices include PUE, per joule."""
        floor = float(energy_j.min()) * least_price
        if self.weight <= 0 or not np.isfinite(self.due_s):
            return floor
        power_w = energy_j / time_s
        best, last_s = np.inf, max(self.submit_s, self.due_s)
        if self.due_s > self.submit_s:
            best = _least_cost(*self._pieces(self.due_s), None, time_s, power_w)
        lengths, prices = self._pieces(last_s)
        for end_s in self._later(last_s)[:MOST_STEPS]:
            already = self.weight * (last_s - self.due_s)
            if already + floor >= best:
                return best
            within_s = last_s if np.isinf(end_s) else 0.5 * (last_s + end_s)
            price = max(0.0, float(self.tariff.price.at(within_s))) * self.tariff.per_j
            lengths, prices = np.append(lengths, end_s - last_s), np.append(prices, price)
            best = min(best, already + _least_cost(lengths, prices, self.weight, time_s, power_w))
            last_s = float(end_s)
        return min(best, self.weight * (last_s - self.due_s) + floor)

    def _pieces(self, to_s: float) -> tuple[Floats, Floats]:
        edges, values = self.tariff.price.pieces(self.submit_s, to_s)
        return np.diff(edges), np.maximum(0.0, values) * self.tariff.per_j

    def _later(self, from_s: float) -> Floats:
        """Ends of the steps of the price from *from_s* on, as many as are looked at; infinity: the last one's."""
        price = self.tariff.price
        if price.period_s is None:
            return np.append(price.changes(from_s, float(price.starts_s[-1]) + 1.0), np.inf)
        return price.changes(from_s, from_s + price.period_s * -(-MOST_STEPS // len(price.values)))


def _least_cost(lengths: Floats, prices: Floats, last_extra: float | None, time_s: Floats, power_w: Floats) -> float:
    """Least cost of one unit of work in pieces of time; infinite if it does not fit.

    A linear program with one row for the work, by its dual: for any value of the work, that value less what the pieces
    would earn at it is a bound, and its greatest is the optimum.

    Parameters
    ----------
    lengths, prices
        Length of each piece, s, and the price of a joule there. Shape [P].
    last_extra
        What each second used of the last piece costs beside the energy.
    time_s, power_w
        Time for the whole work in each configuration, and its power. Shape [K].
    """
    most = float(lengths.sum()) / float(time_s.min())
    if most < 1.0 - 1e-9:
        return np.inf
    second = prices[:, None] * power_w[None, :]  # cost of a second, [P, K]
    if last_extra is not None:
        second[-1] += last_extra
    if len(time_s) == 1:
        order = np.argsort(second[:, 0], kind="stable")
        used_s = np.diff(np.minimum(np.cumsum(lengths[order]), time_s[0]), prepend=0.0)
        return float(used_s @ second[order, 0])
    target = min(1.0, most * (1.0 - 1e-12))

    def earned(value: float) -> tuple[float, float]:
        """Return the work done where it earns something at this *value*, and the dual bound."""
        profit = value / time_s[None, :] - second
        best = profit.argmax(axis=1)
        gain = profit[np.arange(len(best)), best]
        runs = gain > 0
        return float((lengths[runs] / time_s[best[runs]]).sum()), value - float((lengths[runs] * gain[runs]).sum())

    low, high = 0.0, float((second * time_s[None, :]).min(axis=1).max()) * (1.0 + 1e-9) + 1e-300
    while earned(high)[0] < target:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if earned(middle)[0] >= target else (middle, high)
    return max(0.0, earned(low)[1], earned(high)[1])


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
    edges = _edges(table, cluster, rows, intervals, tariff)
    r, b = np.nonzero(edges[None, 1:] > table.submit_s[rows.job][:, None])
    j = rows.job[r]
    from_s = np.maximum(edges[b], table.submit_s[j])
    price = _least_prices(tariff, edges)[b]
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


MOST_CHANGES = 200  # of the price, at which intervals of the linear program begin


def _edges(table: JobArrays, cluster: Cluster, rows: _Rows, intervals: int, tariff: Tariff) -> Floats:
    """Ends of intervals: even until all work can be done, then one without end.

    Where the price changes they reach beyond the last due date, and begin at its changes too, if these are few.
    """
    least = np.full(len(table), np.inf)
    np.minimum.at(least, rows.job, rows.gpus * rows.time_s)
    until_s = float(table.submit_s.max()) + 1.5 * float(least.sum()) / cluster.total_gpus
    until_s = max(until_s, float(np.max(table.submit_s)) + float(np.min(least)) + 1.0)
    first_s = float(table.submit_s.min())
    if tariff.price.is_constant:
        return np.append(np.linspace(first_s, until_s, intervals), np.inf)
    # beyond the last due date: work in the interval without end is charged the lateness of its beginning only
    longest_s = float(np.max(np.minimum.reduceat(rows.time_s, np.flatnonzero(np.diff(rows.job, prepend=-1)))))
    until_s = max(until_s, float(table.due_s[np.isfinite(table.due_s)].max(initial=-np.inf)) + longest_s)
    even, changes = np.linspace(first_s, until_s, intervals), tariff.price.changes(first_s, until_s)
    return np.append(np.union1d(even, changes) if len(changes) <= MOST_CHANGES else even, np.inf)


def _least_prices(tariff: Tariff, edges: Floats) -> Floats:
    """Least price of a joule in each interval, the last of which has no end; 0 where it is below."""
    price, last_s = tariff.price, float(edges[-2])
    least = np.append(price.least_within(edges[:-1]), price.minimum_from(last_s))
    return np.maximum(0.0, least) * tariff.per_j


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
