"""Pollux: a genetic search for the configurations with the largest mean speed-up, by a power that favours slow jobs.

The speed-up of a job is its goodput over that with a fair share: ``GPUs / jobs`` of each class, rounded up. Of all
choices of one configuration or none for each job, within the GPUs of each class, it looks for the one with the largest

    (mean over jobs of (r * speedup + e) ** p) ** (1 / p),    p = -1,    e = 0.001

Where the choice is not what a job has now, ``r = (age - restarts * S) / (age + S)``, with ``S`` what a restart takes.

The search is as in the public code: a population of choices, crossover at one point in the order of jobs, mutations
that bring back what runs, take GPUs away, or give others; a repair cuts jobs to what is free, in order of GPU time
received. It differs in this: it chooses among the configurations of a job instead of GPUs on each node, keeps the best
of parents and children, and starts from what runs and from random choices, as nothing is kept from one decision to the
next. Interference between jobs that span nodes is not avoided, since no engine here has any.

Source: A. Qiao et al., "Pollux: Co-adaptive cluster scheduling for goodput-optimized deep learning" (OSDI 2021),
section 4.2, for GPUs of one type; several are treated as above. Not built: learning of goodput, autoscaling.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from commonwatt.model.arrays import Floats, Ints
from commonwatt.optimize import njit, ranked
from commonwatt.placement._peers import received_by
from commonwatt.placement._problem import PlacementProblem
from commonwatt.placement._resizing import Open, Resizing, restart_factor

__all__ = ["Pollux", "speedups"]

SMALL = 1e-3  # e: what a job without GPUs counts as
BACK, AWAY = 0.1, 0.01  # probabilities of a job in a mutation: it gets what it has now, or nothing


@dataclass(frozen=True)
class Pollux(Resizing):
    """Pollux, for jobs whose speed on each GPU type and number of GPUs is known.

    Attributes
    ----------
    fairness_power
        ``p``: the further below 0, the more the slowest jobs count; above 0, fast ones; not 0.
    population, generations
        Of the search, as in the public code.
    """

    fairness_power: float = -1.0
    population: int = 100
    generations: int = 100

    def picked(self, problem: PlacementProblem, among: Open, rng: Generator) -> Ints:
        """Search; returns places in *among*."""
        order = ranked(received_by(problem).gpu_s, problem.submit_s)
        first = np.searchsorted(among.job, np.arange(len(problem) + 1))
        speedup = restart_factor(problem, among, waiting=True) * speedups(problem, among)
        sign = 1.0 if self.fairness_power < 0 else -1.0
        cost = sign * (speedup + SMALL) ** self.fairness_power
        runs = among.rows == problem.stay[among.job]
        now = np.full(len(problem), -1, dtype=np.int64)
        now[among.job[runs]] = np.flatnonzero(runs)
        best = _search(
            order, first, among.klass, among.size, among.room, cost, sign * SMALL**self.fairness_power,
            _smaller(among), now, self.population, self.generations, rng,
        )  # fmt: skip
        return np.asarray(best[best >= 0])


def speedups(problem: PlacementProblem, among: Open) -> Floats:
    """Return the goodput of each of *among* over that of a fair share of all GPUs, [R].

    A fair share has ``GPUs / jobs`` of each class, rounded up; a job has it on one class, and all classes count by
    their GPUs. A job that takes more than that at least has a part of its least speed.
    """
    whole_s = problem.time_s if problem.whole_s is None else problem.whole_s
    size = problem.width * problem.per_node
    fair = np.ceil(among.room / max(1, len(problem)))
    rate = np.zeros((len(problem), len(among.room)))
    own = np.flatnonzero(size <= among.room[problem.klass])
    for r in own[ranked(size[own])]:  # the largest within the share counts, or else the least
        j, k = problem.row_job[r], problem.klass[r]
        if size[r] <= fair[k] or rate[j, k] == 0:
            rate[j, k] = min(1.0, fair[k] / size[r]) / whole_s[r]
    usual = (rate * among.room).sum(axis=1) / max(1, among.room.sum())
    return np.asarray(1.0 / whole_s[among.rows] / usual[among.job])


def _smaller(among: Open) -> Ints:
    """For each of *among*, the place of the next smaller of its job and class; -1: there is none. Shape [R]."""
    previous = np.arange(len(among.rows)) - 1
    alike = np.zeros(len(among.rows), dtype=bool)
    alike[1:] = (among.job[1:] == among.job[:-1]) & (among.klass[1:] == among.klass[:-1])
    return np.where(alike, previous, -1)


@njit(cache=True)
def _repair(choice: Ints, order: Ints, klass: Ints, size: Ints, room: Ints, smaller: Ints) -> None:
    """Cut jobs, in *order*, to what is free of their class."""
    free = room.copy()
    for j in order:
        r = choice[j]
        while r >= 0 and size[r] > free[klass[r]]:
            r = smaller[r]
        choice[j] = r
        if r >= 0:
            free[klass[r]] -= size[r]


@njit(cache=True)
def _cost_of(choice: Ints, cost: Floats, nothing: float) -> float:
    total = 0.0
    for r in choice:
        total += cost[r] if r >= 0 else nothing
    return total


@njit(cache=True)
def _search(
    order: Ints, first: Ints, klass: Ints, size: Ints, room: Ints, cost: Floats, nothing: float, smaller: Ints,
    now: Ints, population: int, generations: int, rng: Generator,
) -> Ints:  # fmt: skip
    """Return the choice of least cost found: for each job a place in the columns, or -1. Shape [J]."""
    jobs = len(order)
    people = np.empty((2 * population, jobs), dtype=np.int64)
    costs = np.empty(2 * population)
    for i in range(population):
        for j in range(jobs):
            options = first[j + 1] - first[j]
            people[i, j] = first[j] + int(rng.random() * options) if options else -1
        if i == 0:
            people[i] = now
        _repair(people[i], order, klass, size, room, smaller)
        costs[i] = _cost_of(people[i], cost, nothing)
    for _ in range(generations):
        for i in range(population, 2 * population):
            parents = np.empty(2, dtype=np.int64)
            for p in range(2):
                one, other = int(rng.random() * population), int(rng.random() * population)
                parents[p] = one if costs[one] <= costs[other] else other
            point = int(rng.random() * jobs)
            for place in range(jobs):
                j = order[place]
                r = people[parents[0] if place < point else parents[1], j]
                draw = rng.random()
                if draw < BACK:
                    r = now[j]
                elif draw < BACK + AWAY:
                    r = -1
                options = first[j + 1] - first[j]
                if options and rng.random() * jobs < 1.0:
                    r = first[j] + int(rng.random() * options)
                people[i, j] = r
            _repair(people[i], order, klass, size, room, smaller)
            costs[i] = _cost_of(people[i], cost, nothing)
        best = np.argsort(costs, kind="mergesort")[:population]
        people[:population], costs[:population] = people[best], costs[best]
    return people[0]
