"""Steady plans: waiting has a price, and what runs is disturbed only where that surely pays. Ours.

Energy and tardiness leave it open which of two jobs in time waits, and plans by them alone are often changed. Here

- each second until a job ends costs ``price / max(its run time, 10 min)``, so that a job of half the length weighs
  twice as much: the price of one unit of slowdown (L. Schrage, Operations Research 16(3), 1968, for the unweighted
  case, where the shortest remaining time goes first);
- orders are by cost of delay over GPU time (W. E. Smith, Naval Research Logistics Quarterly 3, 1956); running jobs come
  first by a large factor, and lose GPUs only to a job that finds no others;
- a move or a stop is charged ``MOVE_FACTOR`` times what restart and lost work cost, as plans are estimates; what is
  still worth it is carried out, so that jobs are consolidated, and grow where they are alone;
- jobs go to nodes that stay on for their whole run, otherwise to the fullest node that fits;
- jobs pay rent for GPU time, at prices at which about as many GPUs of each class are wanted as there are, so that
  those get a class that gain most by it (L. Walras, Elements of Pure Economics, 1874), or nothing: both are tried;
- no job starts in a configuration that takes ``POOR`` times its least run time;
- the waiting cost of jobs that do not start now is that on one pooled GPU with the freed capacity, in order (W.
  Eastman, S. Even and I. Isaacs, Management Science 11(2), 1964). List scheduling jumps when a job moves by a second;
  this does not, so that of two plans the better one is the one with the better start.

Shortest remaining time first is one of the orders, but its schedule as it is, which stops and moves many jobs, is not a
candidate: with it, simulations took 2% more energy, twice the stops, and no less time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.optimize import njit, ranked
from commonwatt.placement._arrays import Candidate, Records, keep, tardiness
from commonwatt.placement._construct import DISPLACE_LAST, NEVER_DISPLACE
from commonwatt.placement._list_schedule import Plan, Room, delay_cost, efforts, start_now
from commonwatt.placement._problem import PlacementProblem, PlacementSearch

__all__ = ["LEAST_RUN_S", "flow_cost", "steady_start"]

LEAST_RUN_S = 600.0  # run time from which a job weighs no more the shorter it is
RUNNING_FIRST = 100.0  # how much more urgent a job must be to take the GPUs of a running one
MOVE_FACTOR = 10.0
POOR = 4.0
CLEARING_ROUNDS, LEAST_ROUNDS, CLEARING_JOBS = 24, 6, 60_000  # fewer with more than 2,500 jobs: so many jobs looked at
RENTS = (0.0, 1.0)  # multiples of the clearing prices
SOON_S, SOON = 300.0, 0.1  # a job presses if its slack is less than this, and this part of its run time
_EXACT = 1e-9


def steady_start(
    problem: PlacementProblem, c: Candidate, slowdown_price: float, gpu_time: tuple[Floats, Floats],
    search: tuple[float, tuple[float, ...]],
) -> PlacementSearch:  # fmt: skip
    """Return the start of the cheapest steady plan found, and what that plan costs.

    Parameters
    ----------
    c
        *problem*, prepared.
    slowdown_price
        Currency for each unit of slowdown.
    gpu_time
        Least GPU time of each job on the best class, [J], and the value of a GPU of each class, [K].
    search
        Base price of GPU time, and the ``k`` of orders by apparent tardiness cost.
    """
    gpu_s, value = gpu_time
    base_price, patience = search
    delay_cost_s = slowdown_price / np.maximum(problem.fastest_s, LEAST_RUN_S)
    effort, room = _efforts(problem, c, value, delay_cost_s), Room.of(c, len(value), problem)
    orders = _orders(problem, gpu_s, delay_cost_s, patience)
    rent = base_price * value + _clearing_prices(problem, c, effort)
    effort["gpu_s"] *= (rent / value)[problem.klass[c.rows["origin"]]]
    prices = np.array(RENTS)
    displace = NEVER_DISPLACE if problem.locked else DISPLACE_LAST
    cost = _try_plans(c, orders, prices, displace, effort, room, value)
    tried = 2 * len(orders) * len(prices)
    return PlacementSearch(replace(c.schedule(room.choice, room.given), weighed=True), float(cost), tried)


def _efforts(problem: PlacementProblem, c: Candidate, value: Floats, delay_cost_s: Floats) -> Records:
    """Costs of each row of *c*, with those of delay and moves, and which rows are poor."""
    out = efforts(problem, c, value)
    job = problem.row_job[c.rows["origin"]]
    out["delay_cost_s"] = delay_cost_s[job]
    out["poor"] = _poor(problem, c, job)
    stay, like, time_s = c.jobs["stay"], c.rows["like_stay"] != 0, c.rows["time_s"]
    runs = stay >= 0
    stays = np.zeros(len(job), dtype=bool)
    stays[stay[runs]] = True
    again_s = np.full(len(stay), np.inf)  # in the same shape, restarted
    np.minimum.at(again_s, job[like & ~stays], time_s[like & ~stays])
    left_s = np.where(runs, time_s[stay], 1.0)
    lost_s = np.where(runs & np.isfinite(again_s), np.maximum(0.0, again_s - left_s), 0.0)
    power = np.where(runs, (out["busy_cost"] + out["share_cost"])[stay], 0.0) / np.maximum(left_s, _EXACT)
    out["busy_cost"] += np.where(stays, 0.0, (MOVE_FACTOR * lost_s * (power + delay_cost_s))[job])
    return out


def _clearing_prices(problem: PlacementProblem, c: Candidate, effort: Records) -> Floats:
    """Return the price of a GPU second of each class at which about as many GPUs are wanted as there are, [K].

    Every job wants the configuration with the least of energy, delay, tardiness and rent. Prices rise where more GPUs
    are wanted than there are, and fall to 0 where some are left over (tatonnement, with steps that become shorter).
    """
    room: Floats = np.bincount(problem.node_class, problem.node_gpus, len(problem.class_gpus)).astype(np.float64)
    spent, gpus = effort["busy_cost"] + effort["share_cost"], c.rows["width"] * c.rows["per_node"]
    step = float(spent.sum()) / max(float((gpus * c.rows["time_s"]).sum()), _EXACT)
    rounds = max(LEAST_ROUNDS, min(CLEARING_ROUNDS, CLEARING_JOBS // len(c.jobs)))
    return _tatonnement(c, effort, room, step, rounds)


@njit(cache=True, nogil=True)
def _tatonnement(c: Candidate, effort: Records, room: Floats, step: float, rounds: int) -> Floats:
    jobs, rows, _, _, _, _, _, _ = c
    cost = np.empty(len(rows))
    for job in jobs:
        for r in range(job.first, job.last):
            cost[r] = effort[r].busy_cost + effort[r].share_cost + delay_cost(effort[r], rows[r].time_s)
            cost[r] += tardiness(job, rows[r].time_s, rows[r].time_s)
    price, mean = np.zeros(len(room)), np.zeros(len(room))
    for i in range(rounds):
        wanted = np.zeros(len(room))
        for job in jobs:
            best, best_cost, best_gpus = -1, np.inf, 0
            for r in range(job.first, job.last):
                k, gpus = rows[r].klass, rows[r].width * rows[r].per_node
                if effort[r].poor or gpus > room[k]:
                    continue
                total = cost[r] + price[k] * gpus * rows[r].time_s
                if total < best_cost:
                    best, best_cost, best_gpus = k, total, gpus
            if best >= 0:
                wanted[best] += best_gpus
        for k in range(len(room)):
            if room[k] > 0.0:
                surplus = (wanted[k] - room[k]) / room[k]
                price[k] = max(0.0, price[k] + step * 2.0 / (2.0 + i) * min(1.0, surplus))
            if i >= rounds // 2:
                mean[k] += price[k] / (rounds - rounds // 2)
    return mean


def _poor(problem: PlacementProblem, c: Candidate, job: Ints) -> Bools:
    """Rows that take much longer than the job's fastest for which there are nodes; not the shape that it runs in."""
    up = np.bincount(problem.node_class, weights=problem.node_gpus > 0, minlength=len(problem.class_gpus))
    time_s = np.where(up[c.rows["klass"]] >= c.rows["width"], c.rows["time_s"], np.inf)
    least = np.minimum.reduceat(time_s, c.jobs["first"])
    return np.asarray((c.rows["time_s"] > POOR * least[job]) & (c.rows["like_stay"] == 0))


def _orders(problem: PlacementProblem, gpu_s: Floats, delay_cost_s: Floats, patience: tuple[float, ...]) -> Ints:
    """Orders of the jobs, one a row; running jobs come first by a factor, but for pressing ones in the first order."""
    factor = np.where(problem.stay >= 0, RUNNING_FIRST, 1.0)
    pressing = problem.pressure_s > -(SOON_S + SOON * problem.fastest_s)
    orders = [ranked(~pressing, -delay_cost_s / gpu_s * factor)]
    slack_s = np.maximum(0.0, -problem.pressure_s)
    mean_s = float(problem.fastest_s.mean())
    for k in patience:
        urgency = problem.weight * np.exp(-slack_s / (k * mean_s)) + delay_cost_s
        orders.append(ranked(-urgency / gpu_s * factor))
    orders.append(ranked(problem.fastest_s / factor, problem.submit_s))
    return np.array(orders)


@njit(cache=True, nogil=True)
def _try_plans(
    c: Candidate, orders: Ints, prices: Floats, displace: int, effort: Records, room: Room, value: Floats
) -> float:
    """Try every order, price and way to count what a job leaves of a node; keep the start of the cheapest plan."""
    best = np.inf
    never = np.full(len(c.jobs), -np.inf)
    for o in range(len(orders)):
        for p in range(len(prices)):
            for fill in (False, True):
                plan = Plan(orders[o], prices[p], displace, never, fill, align=True)
                cost = start_now(c, plan, effort, room)
                cost += flow_cost(c, plan, effort, value)
                if cost < best:
                    best = cost
                    keep(c, room.choice, room.given)
    return best


@njit(cache=True, nogil=True)
def _release(c: Candidate, value: Floats) -> tuple[Floats, Floats, Floats]:
    """When GPUs come free; how many are free then, by value; the free GPU time before. Steps, one more than ends."""
    jobs, rows, _, lists, _, _, _, _ = c
    ends_s, freed = np.empty(len(jobs)), np.empty(len(jobs))
    count = 0
    for j in range(len(jobs)):
        r = jobs[j].choice
        if r >= 0:
            ends_s[count] = rows[r].time_s
            freed[count] = value[rows[r].klass] * rows[r].width * rows[r].per_node
            count += 1
    by_end = np.argsort(ends_s[:count])
    at_s, free, had_s = np.zeros(count + 1), np.zeros(count + 1), np.zeros(count + 1)
    for k in range(len(value)):  # counts of nodes by free GPUs have those too that no job can come to
        for gpus in range(lists.shape[2]):
            free[0] += value[k] * gpus * lists[1, k, gpus]
    for i in range(count):
        k = by_end[i]
        at_s[i + 1] = ends_s[k]
        free[i + 1] = free[i] + freed[k]
        had_s[i + 1] = had_s[i] + free[i] * (ends_s[k] - at_s[i])
    return at_s, free, had_s


@njit(cache=True, nogil=True)
def _first(values: Floats, least: float) -> int:
    """First index at which the rising *values* are at least *least*; their number if there is none."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if values[middle] >= least:
            high = middle
        else:
            low = middle + 1
    return low


@njit(cache=True, nogil=True)
def flow_cost(c: Candidate, plan: Plan, effort: Records, value: Floats) -> float:
    """Cost of the jobs that do not start now, in the order of *plan*, as if one large GPU served them.

    A job ends when it and all before it are served, half of its work taken as done beside theirs, and no earlier than
    its run time after as many GPUs are free as it needs.
    """
    jobs, rows, _, _, _, _, _, _ = c
    order, price, _, _, _, _ = plan
    at_s, free, had_s = _release(c, value)
    total, ahead = 0.0, 0.0
    for j in order:
        job = jobs[j]
        if job.choice >= 0:
            continue
        best, best_score, best_work = -1, np.inf, 0.0
        for r in range(job.first, job.last):
            row = rows[r]
            gpus = value[row.klass] * row.width * row.per_node
            ready = _first(free, gpus - _EXACT)
            if r == job.stay or effort[r].poor or ready == len(free):
                continue
            served = ahead + 0.5 * gpus * row.time_s
            i = max(_first(had_s, served) - 1, 0)
            while free[i] <= 0.0:
                i += 1
            ends_s = at_s[i] + max(0.0, served - had_s[i]) / free[i] + 0.5 * row.time_s
            ends_s = max(ends_s, at_s[ready] + row.time_s)
            score = effort[r].busy_cost + effort[r].share_cost + price * effort[r].gpu_s
            score += tardiness(job, ends_s, row.time_s) + delay_cost(effort[r], ends_s)
            if score < best_score:
                best, best_score, best_work = r, score, gpus * row.time_s
        total += best_score - price * effort[best].gpu_s if best >= 0 else job.postponed
        ahead += best_work
    return total
