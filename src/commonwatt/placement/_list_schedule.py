"""A plan to the end of all known jobs, by list scheduling, and what it costs.

The part that starts now is built on the real nodes, by ``start_now``. ``finish`` lets
the other jobs start in the same order as GPUs come free, in a simplified cluster in which the GPUs of a class are one
pool. A job takes the configuration with the least of energy, tardiness and price of the GPU time it takes from others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.optimize import njit
from commonwatt.placement._arrays import (
    Candidate,
    Record,
    Records,
    can_stay,
    end_s,
    give,
    pick,
    reset,
    tardiness,
    withdraw_claim,
)
from commonwatt.placement._construct import DISPLACE, NEVER_DISPLACE, fits
from commonwatt.placement._problem import PlacementProblem

__all__ = ["EFFORT", "REACH", "Plan", "Room", "delay_cost", "efforts", "finish", "start_now"]

REACH = 8  # waiting jobs looked at when GPUs come free
NODES = 32  # looked at for one that is on for longer
THRIFT = 1.1  # energy of a thrifty configuration, relative to the best

EFFORT = np.dtype(
    [
        ("busy_cost", "f8"),  # cost of the row's busy GPUs, over its nodes
        ("idle_cost", "f8"),  # cost of the idle power of one of its nodes, for its run time
        ("share_cost", "f8"),  # the part of idle power its GPUs stand for, over its nodes
        ("gpu_s", "f8"),  # GPU time, weighted by the value of the class
        ("thrifty", "i8"),  # whether it takes little more energy than the job's best
        ("delay_cost_s", "f8"),  # cost of each second until its job ends, beside tardiness
        ("poor", "i8"),  # whether its job would rather wait
    ]
)


def efforts(problem: PlacementProblem, c: Candidate, class_value: Floats) -> Records:
    """Costs of each row of *c*; *class_value* [K] is the value of a GPU relative to the best class."""
    origin = c.rows["origin"]
    out = np.zeros(len(origin), EFFORT)
    for name in ("idle_cost", "busy_cost", "share_cost"):
        out[name] = getattr(problem, name)[origin]
    out["gpu_s"] = (class_value[problem.klass] * problem.width * problem.per_node * problem.time_s)[origin]
    out["thrifty"] = _thrifty(problem, c, out["busy_cost"] + out["share_cost"])
    return out


def _thrifty(problem: PlacementProblem, c: Candidate, energy: Floats) -> Bools:
    """Rows that take little more energy than the job's best on nodes that are up."""
    usable = np.zeros(len(problem.class_gpus), dtype=bool)
    usable[c.nodes["klass"][c.nodes["gpus"] > 0]] = True
    reachable = np.where(usable[c.rows["klass"]], energy, np.inf)
    least = np.minimum.reduceat(reachable, c.jobs["first"]) if len(c.jobs) else np.zeros(0)
    return np.asarray(energy <= THRIFT * np.repeat(least, c.jobs["last"] - c.jobs["first"]))


class Plan(NamedTuple):
    """In which order jobs start, and what decides their configuration."""

    order: Ints  # [J]
    price: float  # of GPU time
    displace: int  # how readily running jobs lose their GPUs to jobs whose turn comes earlier; see ``_construct``
    waits_s: Floats  # [J] time from now for which a job that does not run yet waits for a thrifty configuration
    fill: bool  # whether somebody else is taken to use what a job leaves of a node
    align: bool  # whether jobs go to nodes that are on for as long as they run, instead of those with least room


class Room(NamedTuple):
    """Scratch space of plans, and the best start so far."""

    on_s: Floats  # [N] for which a node is on whatever is decided
    on_until: Floats  # [N]
    free: Ints  # [K]
    end_s: Floats  # [J], with end_row a heap of running jobs by end
    end_row: Ints  # [J]
    queue: Ints  # [J]
    choice: Ints  # [J]
    given: Ints

    @classmethod
    def of(cls, c: Candidate, classes: int, problem: PlacementProblem) -> Room:
        """Return room for plans of *c*, which is *problem* prepared."""
        jobs = len(c.jobs)
        on_s = np.zeros(len(c.nodes)) if problem.background is None else problem.background.on_s[c.nodes["origin"]]
        return cls(
            on_s, np.zeros(len(c.nodes)), np.zeros(classes, dtype=np.int64), np.zeros(jobs),
            np.zeros(jobs, dtype=np.int64), np.zeros(jobs, dtype=np.int64), np.full(jobs, -1),
            np.full(len(c.given), -1),
        )  # fmt: skip


@njit(cache=True, nogil=True)
def _charge(job: Record, r: int, rows: Records, effort: Records, given: Ints, on_until: Floats) -> float:
    """Energy of running *job* on the nodes it was given, each of which is on until ``on_until`` anyway."""
    cost = effort[r].busy_cost
    time_s = rows[r].time_s
    for slot in range(job.slot, job.slot + rows[r].width):
        n = given[slot]
        if time_s > on_until[n]:
            cost += effort[r].idle_cost * (time_s - on_until[n]) / time_s
            on_until[n] = time_s
    return cost


@njit(cache=True, nogil=True)
def _find(
    job: Record, r: int, rows: Records, nodes: Records, lists: Ints, stay_nodes: Ints, picked: Ints, displace: bool,
    on_until: Floats,
) -> int:  # fmt: skip
    """Do what ``fits`` does, but prefer nodes that are on for as long as the job runs; a job may move to one."""
    row = rows[r]
    if row.width > 1:
        return fits(job, r, rows, nodes, lists, stay_nodes, picked, displace)
    if r == job.stay:
        return r if can_stay(job, rows, nodes, stay_nodes, picked) else -1
    if not pick(row, nodes, lists, picked, displace):
        return -1
    if nodes[picked[0]].room >= row.per_node:
        _align(row, nodes, lists, picked, on_until)
    return r


@njit(cache=True, nogil=True)
def _align(row: Record, nodes: Records, lists: Ints, picked: Ints, on_until: Floats) -> None:
    """Put the node in *picked* that is on longest while a job runs in *row*, among those looked at."""
    most, looked = on_until[picked[0]], 0
    for room in range(row.per_node, lists.shape[2]):
        n = lists[0, row.klass, room]
        while n >= 0:
            if most >= row.time_s or looked == NODES:
                return
            if on_until[n] > most:
                picked[0], most = n, on_until[n]
            looked += 1
            n = nodes[n].after


@njit(cache=True, nogil=True)
def start_now(c: Candidate, plan: Plan, effort: Records, room: Room) -> float:
    """Start the jobs that find room now, as *plan* has it; returns what that costs."""
    reset(c)
    jobs, rows, nodes, lists, stay_nodes, given, picked, _ = c
    order, price, displace, waits_s, fill, align = plan
    on_until = room.on_until
    for n in range(len(on_until)):
        on_until[n] = room.on_s[n]
    total = 0.0
    for j in order:
        job = jobs[j]
        if job.stay >= 0:
            withdraw_claim(job, rows, nodes, lists, stay_nodes)
        best, best_score = -1, np.inf
        thrifty = job.stay < 0 and waits_s[j] > 0.0
        takes = displace == DISPLACE
        while True:
            for r in range(job.first, job.last):
                if (thrifty and not effort[r].thrifty) or effort[r].poor:
                    continue
                score = effort[r].busy_cost + price * effort[r].gpu_s + tardiness(job, rows[r].time_s, rows[r].time_s)
                score += delay_cost(effort[r], rows[r].time_s)
                if score >= best_score:
                    continue
                if align:
                    if _find(job, r, rows, nodes, lists, stay_nodes, picked, takes, on_until) < 0:
                        continue
                elif fits(job, r, rows, nodes, lists, stay_nodes, picked, takes) < 0:
                    continue
                most = effort[r].share_cost / rows[r].width if fill else effort[r].idle_cost
                for i in range(rows[r].width):
                    score += min(most, effort[r].idle_cost * max(0.0, 1.0 - on_until[picked[i]] / rows[r].time_s))
                if score < best_score:
                    best, best_score = r, score
            if best >= 0 or takes or displace == NEVER_DISPLACE:
                break
            takes = True
        job.choice = -1
        if best >= 0:
            if align:
                row = _find(job, best, rows, nodes, lists, stay_nodes, picked, takes, on_until)
            else:
                row = fits(job, best, rows, nodes, lists, stay_nodes, picked, takes)
            total += give(jobs, rows, nodes, lists, given, picked, j, row)
            total += _charge(job, row, rows, effort, given, on_until)
            total += delay_cost(effort[row], end_s(rows[row], nodes, given, job.slot))
    return total


@njit(cache=True, nogil=True)
def delay_cost(effort: Record, ends_s: float) -> float:
    """Cost of ending *ends_s* from now, beside tardiness."""
    return effort.delay_cost_s * ends_s if effort.delay_cost_s > 0.0 else 0.0


@njit(cache=True, nogil=True)
def finish(c: Candidate, plan: Plan, effort: Records, room: Room) -> float:
    """Cost of the jobs that do not start now, started in the order of *plan* as GPUs come free."""
    jobs, rows, _, lists, _, _, _, _ = c
    order, price, _, waits_s, _, _ = plan
    _, _, free, end_s, end_row, queue, _, _ = room
    for k in range(len(free)):
        free[k] = 0
        for gpus in range(lists.shape[2]):
            free[k] += gpus * lists[1, k, gpus]
    running, waiting = 0, 0
    for j in order:
        if jobs[j].choice >= 0:
            running = _push(end_s, end_row, running, rows[jobs[j].choice].time_s, jobs[j].choice)
        else:
            queue[waiting] = j
            waiting += 1
    total = 0.0
    head = 0
    now_s = 0.0
    stuck = False
    while head < waiting and not stuck:
        stuck = running == 0  # the last chance of those who wait for a thrifty configuration
        now_s = now_s if stuck else end_s[0]
        while running > 0 and end_s[0] <= now_s:
            row = rows[end_row[0]]
            free[row.klass] += row.width * row.per_node
            running = _pop(end_s, end_row, running)
        looked, i = 0, head
        while i < waiting and looked < REACH:
            j = queue[i]
            if j >= 0:
                thrifty = not stuck and waits_s[j] > now_s
                r, score = _best_in_pool(jobs[j], rows, effort, free, price, now_s, thrifty)
                looked += 1
                if r >= 0:
                    total += score - price * effort[r].gpu_s
                    free[rows[r].klass] -= rows[r].width * rows[r].per_node
                    running = _push(end_s, end_row, running, now_s + rows[r].time_s, r)
                    queue[i] = -1
                    looked = 0
                    stuck = False
            i += 1
        while head < waiting and queue[head] < 0:
            head += 1
    for i in range(head, waiting):
        if queue[i] >= 0:
            total += jobs[queue[i]].postponed
    return total


@njit(cache=True, nogil=True)
def _best_in_pool(
    job: Record, rows: Records, effort: Records, free: Ints, price: float, now_s: float, thrifty: bool
) -> tuple[int, float]:
    best, best_score = -1, np.inf
    for r in range(job.first, job.last):
        if r == job.stay or free[rows[r].klass] < rows[r].width * rows[r].per_node:
            continue
        if thrifty and not effort[r].thrifty:
            continue
        score = (
            effort[r].busy_cost + effort[r].share_cost + price * effort[r].gpu_s
            + tardiness(job, now_s + rows[r].time_s, rows[r].time_s)
        )  # fmt: skip
        if score < best_score:
            best, best_score = r, score
    return best, best_score


@njit(cache=True, nogil=True)
def _push(end_s: Floats, end_row: Ints, size: int, time_s: float, row: int) -> int:
    i = size
    while i > 0 and end_s[(i - 1) >> 1] > time_s:
        end_s[i], end_row[i] = end_s[(i - 1) >> 1], end_row[(i - 1) >> 1]
        i = (i - 1) >> 1
    end_s[i], end_row[i] = time_s, row
    return size + 1


@njit(cache=True, nogil=True)
def _pop(end_s: Floats, end_row: Ints, size: int) -> int:
    size -= 1
    time_s, row = end_s[size], end_row[size]
    i = 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and end_s[child + 1] < end_s[child]:
            child += 1
        if end_s[child] >= time_s:
            break
        end_s[i], end_row[i] = end_s[child], end_row[child]
        i = child
    end_s[i], end_row[i] = time_s, row
    return size
