"""Energy-time fairness over a cluster: what each tenant is entitled to now, and schedules that keep it.

Symbols: ``G`` usable GPUs; per tenant ``w`` its weight, ``D`` the GPUs its jobs ask for, ``u`` its past use in GPUs
(the decayed GPU-seconds over the time they stand for, times ``memory``), ``P`` the power of a GPU that works for it,
``x`` what it is entitled to. Where GPU types have a ``share_weight``, a GPU counts as so many in all of these.

- Fair share of time: ``x = clip(L w - u, 0, D)`` with one level ``L`` for all and ``sum x = min(G, sum D)``: weighted
  max-min of past and present use together, work-conserving.
- phi of it is guaranteed. The rest of the GPUs is given by the same rule to whoever has used least energy over weight:
  ``P (u + x) / w`` is raised to one level. With one quantum, no past and whole units that is Algorithm 1 of ETF.

A schedule is decided in two steps. Jobs within their tenant's entitlement come first: the solver decides about them as
if they were alone. Then it decides about all others with what is left: idle shares are borrowed, and they are reclaimed
when their owner asks for them, by stopping only what stands in the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.optimize import ranked
from commonwatt.placement._problem import POSTPONED, PlacementProblem, Schedule, TenantShares

__all__ = ["TenantFairness", "entitlements", "fair_schedule", "protected", "shares_of", "water_fill"]

HALVINGS = 200


@dataclass(frozen=True)
class TenantFairness:
    """What is guaranteed.

    Attributes
    ----------
    phi
        Part of the fair share of time that is guaranteed.
    half_life_s
        Half-life of ``tenant_usage_gpu_s`` of problems.
    memory
        How much past use counts.
    """

    phi: float
    half_life_s: float
    memory: float = 1.0


def water_fill(total: float, rates: Floats, limits: Floats, before: Floats) -> Floats:
    """Divide *total* so that the level ``(before + x) / rates`` of all that get something is the same. Shapes [T].

    Nobody gets more than its limit, nor less than 0; what is given is the lesser of *total* and all limits together.
    """
    if total >= limits.sum():
        return limits.astype(float)
    low, high = 0.0, float(((before + limits) / rates).max(initial=0.0))
    for _ in range(HALVINGS):
        middle = low + (high - low) / 2
        if middle in (low, high):
            break
        if np.clip(middle * rates - before, 0.0, limits).sum() > total:
            high = middle
        else:
            low = middle
    return np.clip(low * rates - before, 0.0, limits)


def entitlements(problem: PlacementProblem, fairness: TenantFairness) -> Floats:
    """Return the GPUs each tenant is entitled to now, by the weights of their types. Shape [T]."""
    tenants = len(problem.tenant_names)
    demand = np.bincount(problem.tenant, weights=_asked(problem), minlength=tenants).astype(float)
    total = float(problem.counted(problem.node_class, problem.node_gpus).sum())
    weights = np.asarray(problem.tenant_weight, dtype=float)[:tenants]
    used = np.zeros(tenants)
    count = min(tenants, len(problem.tenant_usage_gpu_s))
    used[:count] = problem.tenant_usage_gpu_s[:count] * (math.log(2) / fairness.half_life_s) * fairness.memory
    sure = fairness.phi * water_fill(total, weights, demand, used)
    power = _power(problem, tenants)
    rest = water_fill(total - float(sure.sum()), weights / power, demand - sure, used + sure)
    return np.asarray(sure + rest)


def shares_of(problem: PlacementProblem, fairness: TenantFairness) -> TenantShares | None:
    """Return what tenants are entitled to now, and have used; ``None`` if there is one tenant or no job."""
    tenants = len(problem.tenant_names)
    if tenants < 2 or not len(problem):
        return None
    entitled = entitlements(problem, fairness)
    weights, usage = np.asarray(problem.tenant_weight, dtype=float)[:tenants], np.zeros(tenants)
    count = min(tenants, len(problem.tenant_usage_gpu_s))
    usage[:count] = problem.tenant_usage_gpu_s[:count]
    counts = usage.sum() > 0 and fairness.memory > 0
    used = (usage / usage.sum()) / (weights / weights.sum()) if counts else np.ones(tenants)
    return TenantShares(entitled, used, protected(problem, entitled), fairness.half_life_s)


def _asked(problem: PlacementProblem) -> Ints | Floats:
    """GPUs each job asks for: those it has, else what its owner asked for, else the fewest it can run on. [J].

    By the weights of their types, those of least weight if it could run on several.
    """
    gpus = problem.counted(problem.klass, problem.width * problem.per_node)
    largest = np.iinfo(np.int64).max
    fewest = np.minimum.reduceat(gpus, problem.start[:-1]) if len(problem) else np.zeros(0, dtype=np.int64)
    wished = np.where(problem.asked, gpus, largest)
    asked = np.minimum.reduceat(wished, problem.start[:-1]) if len(problem) else fewest
    demand = np.where(asked < largest, asked, fewest)
    running = problem.stay >= 0
    demand[running] = gpus[problem.stay[running]]
    return np.asarray(demand)


def _power(problem: PlacementProblem, tenants: int) -> Floats:
    """Return the relative power of a GPU that works for each tenant: mean busy cost of its jobs a GPU-second. [T]."""
    gpus = problem.counted(problem.klass, problem.width * problem.per_node)
    each = np.maximum(problem.busy_cost, 0.0) / np.maximum(problem.time_s * gpus, 1e-12)
    total = np.bincount(problem.tenant[problem.row_job], weights=each, minlength=tenants)
    count = np.bincount(problem.tenant[problem.row_job], minlength=tenants)
    mean = total / np.maximum(count, 1)
    usual = float(mean[mean > 0].mean()) if (mean > 0).any() else 1.0
    return np.where(mean > 0, mean / usual, 1.0)


def protected(problem: PlacementProblem, entitled: Floats) -> Bools:
    """Return the jobs within their tenant's entitlement. Shape [J].

    Of a tenant's jobs first those that run, then the most pressing, then the earliest. A job counts as within it from
    half of its GPUs on.
    """
    asked, left = _asked(problem), entitled.copy()
    within = np.zeros(len(problem), dtype=bool)
    for j in ranked(problem.stay < 0, -problem.pressure_s, problem.submit_s):
        room = left[problem.tenant[j]]
        if asked[j] <= 2 * room + 1e-9:
            within[j] = True
            left[problem.tenant[j]] = room - asked[j]
    return within


def fair_schedule(
    problem: PlacementProblem, fairness: TenantFairness, solve: Callable[[PlacementProblem], Schedule]
) -> Schedule:
    """Return a schedule in which jobs within their tenant's entitlement come first; *solve* decides in each step.

    Where running jobs may be neither stopped nor moved, all of them come first.
    """
    if not len(problem) or len(problem.tenant_names) < 2:
        return solve(problem)
    entitled = entitlements(problem, fairness)
    first = protected(problem, entitled)
    if problem.locked:
        first |= problem.stay >= 0
    if first.all() or not first.any():
        return solve(problem)
    choice, nodes = np.full(len(problem), POSTPONED), np.full(int(problem.slot_start[-1]), -1)
    free = problem.node_gpus.copy()
    for among in (first, ~first):
        part = _Part.of(problem, among, free)
        _write(problem, part, solve(part.problem), choice, nodes)
        free = problem.node_gpus - _occupied(problem, Schedule(choice, nodes))
    return Schedule(choice, nodes)


@dataclass(frozen=True)
class _Part:
    """Some jobs of a problem, with what is left of its nodes."""

    problem: PlacementProblem
    jobs: Ints  # of the whole problem
    rows: Ints  # of the whole problem

    @classmethod
    def of(cls, problem: PlacementProblem, among: Bools, free: Ints) -> _Part:
        """Take the jobs *among* ([J]) with *free* GPUs ([N]); those that run where no room is left have to move."""
        evicted = np.zeros(len(problem), dtype=bool)
        room = free.copy()
        for j in np.flatnonzero(among & (problem.stay >= 0))[::-1]:
            nodes, each = problem.nodes_held(j), problem.per_node[problem.stay[j]]
            evicted[j] = bool((room[nodes] < each).any())
            if not evicted[j]:
                np.subtract.at(room, nodes, each)
        out = ~among | (evicted & (np.diff(problem.start) == 1))  # with nowhere else to go, it waits
        part = problem.without(out, free, problem.background)
        jobs, rows = np.flatnonzero(~out), np.flatnonzero(~out[problem.row_job])
        gone = evicted[jobs]
        if gone.any():
            kept = np.ones(len(rows), dtype=bool)
            kept[part.stay[gone]] = False
            staying = np.repeat(~gone, np.diff(part.stay_start))
            part = replace(part, stay=np.where(gone, -1, part.stay), stay_nodes=part.stay_nodes[staying]).only(kept)
            rows = rows[kept]
        return cls(part, jobs, rows)


def _write(problem: PlacementProblem, part: _Part, schedule: Schedule, choice: Ints, nodes: Ints) -> None:
    for k, j in enumerate(part.jobs.tolist()):
        if schedule.choice[k] == POSTPONED:
            continue
        choice[j] = part.rows[schedule.choice[k]]
        given = schedule.nodes_of(part.problem, k)
        nodes[problem.slot_start[j] : problem.slot_start[j] + len(given)] = given


def _occupied(problem: PlacementProblem, schedule: Schedule) -> Ints:
    """GPUs of each node that the schedule gives. Shape [N]."""
    return problem.node_gpus - schedule.free_gpus(problem)
