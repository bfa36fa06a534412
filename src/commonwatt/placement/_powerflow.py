"""PowerFlow: GPUs and power limits of jobs by what shortens completion most for each joule, within an energy budget.

The budget is a multiple of the least energy that the jobs with GPUs could take to their ends. A job counts with its
busy GPUs and their part of the idle power of their nodes, restart included. At each decision

1. every job gets the configuration of least energy for which there are GPUs: running jobs first, which are not stopped,
   then waiting ones by the GPU time left in theirs, least first;
2. as long as GPUs and budget suffice, the job and configuration are taken that shorten a time to the end most for each
   joule.

Numbers of GPUs are powers of two or whole nodes (buddy allocation), on as few nodes as configurations have.

Source: D. Gu et al., "Energy-efficient GPU clusters scheduling for deep learning" (PowerFlow, arXiv 2304.06381): its
aim, the average completion time under an energy budget, by GPUs and clocks of each job, and its way of placing jobs.
The two steps are a greedy of ours for that aim. Limits of power stand for clocks. Not built: its models of time and
power, which here are the job's table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.optimize import ranked
from commonwatt.placement._problem import PlacementProblem
from commonwatt.placement._resizing import Open, Resizing

__all__ = ["PowerFlow"]

SLACK = 1e-9  # of the budget: rounding


@dataclass(frozen=True)
class PowerFlow(Resizing):
    """PowerFlow, for jobs whose speed and power in each configuration are known.

    Attributes
    ----------
    energy_budget
        Energy that jobs may take to their ends, as a multiple of what step 1 takes; 1 or more.
    """

    energy_budget: float = 1.5

    def allowed(self, problem: PlacementProblem, size: Ints) -> Bools:  # noqa: ARG002
        """Return all configurations: growth has no limit."""
        return np.ones(len(problem.klass), dtype=bool)

    def picked(self, problem: PlacementProblem, among: Open, rng: np.random.Generator) -> Ints:  # noqa: ARG002
        """Start jobs thriftily, then speed them up; returns places in *among*."""
        left_s, able = problem.time_s[among.rows], _buddies(problem, among)
        energy = _energy(problem, among)
        stays = np.flatnonzero(among.rows == problem.stay[among.job])
        chosen = np.full(len(problem), -1, dtype=np.int64)
        chosen[among.job[stays]] = stays
        free = among.room - np.bincount(among.klass[stays], among.size[stays], len(among.room))
        thrifty = np.full(len(problem), fill_value=False)
        for i in _thrifty(problem, among, energy, left_s, able):
            job, has = among.job[i], chosen[among.job[i]]
            own = among.size[has] if has >= 0 and among.klass[has] == among.klass[i] else 0
            if thrifty[job] or among.size[i] > free[among.klass[i]] + own:
                continue
            if has >= 0:
                free[among.klass[has]] += among.size[has]
            free[among.klass[i]] -= among.size[i]
            chosen[job], thrifty[job] = i, True
        budget = (self.energy_budget - 1 + SLACK) * float(energy[chosen[chosen >= 0]].sum())
        able &= chosen[among.job] >= 0
        while True:
            has = chosen[among.job]  # of each place, the one its job has
            own = np.where(among.klass == among.klass[has], among.size[has], 0)
            extra, gain_s = energy - energy[has], left_s[has] - left_s
            fits = able & (gain_s > 0) & (among.size <= free[among.klass] + own) & (extra <= budget)
            if not fits.any():
                return chosen[chosen >= 0]
            worth = np.where(extra > 0, gain_s / np.where(extra > 0, extra, 1.0), np.inf)
            place = np.flatnonzero(fits)[ranked(-worth[fits], -gain_s[fits])[0]]
            old = chosen[among.job[place]]
            free[among.klass[old]] += among.size[old]
            free[among.klass[place]] -= among.size[place]
            budget -= extra[place]
            chosen[among.job[place]] = place


def _energy(problem: PlacementProblem, among: Open) -> Floats:
    """Energy of each of *among* to the end, in units of cost; GPU time by limits, where energy costs nothing. [R]."""
    rows = among.rows
    cost = problem.busy_cost[rows] + problem.share_cost[rows]
    return cost if (cost > 0).all() else problem.time_s[rows] * among.size * problem.limits[rows]


def _buddies(problem: PlacementProblem, among: Open) -> Bools:
    """Whether each of *among* has a power of two of GPUs, whole nodes, what was asked for, or what the job has."""
    size, node = among.size, problem.class_gpus[among.klass]
    buddy = ((size & (size - 1)) == 0) | (size % np.maximum(node, 1) == 0)
    buddy |= problem.asked[among.rows] | (among.rows == problem.stay[among.job])
    none = np.ones(len(problem), dtype=bool)
    none[among.job[buddy]] = False
    return np.asarray(buddy | none[among.job])


def _thrifty(problem: PlacementProblem, among: Open, energy: Floats, left_s: Floats, able: Bools) -> Ints:
    """Places that are *able*: running jobs, then others by the GPU time left in their thriftiest; each by energy."""
    places = np.flatnonzero(able)
    places = places[ranked(among.job[places], energy[places], left_s[places])]
    job = among.job[places]
    first = np.searchsorted(job, job)  # of each place, the thriftiest of its job
    gpu_s = (left_s * among.size)[places[first]]
    return places[ranked(problem.stay[job] < 0, gpu_s, problem.submit_s[job], job, np.arange(len(places)))]
