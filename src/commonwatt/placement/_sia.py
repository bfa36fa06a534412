"""Sia: an integer program chooses GPU type and number of GPUs of every job, by goodput.

``G[j, c]`` is the goodput of job ``j`` in configuration ``c``, relative to the least of its own and times its least
number of GPUs. Every job has one configuration or none, and

    minimise  sum over j, c of x[j, c] * (r[j, c] * G[j, c]) ** p  +  lambda * sum over j of (1 - sum over c of x[j, c])

with ``p`` below 0, where more goodput counts less the more a job has, within the GPUs of every type. What is not the
present configuration of a running job is discounted by ``r = (age - restarts * S) / (age + S)``, with ``S`` what a
restart takes: jobs that restarted often, and young ones, rather stay. A job starts with its least number of GPUs, and
at most doubles it in a round.

Source: S. Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling" (SOSP 2023),
section 3.4. Goodput here is the speed that a job's table has. Where the times of the table are those with the best
batch size of each configuration (workload ``sia`` with ``batch: adaptive``), it is goodput of Sia, with batch sizes.
Not built: learning of goodput, so a job is never tried where it turns out to be slow; and three rules of the public
simulator: jobs hold their GPUs during a restart, may grow to twice the most they ever had, and are not discounted
while they are younger than a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.optimize import KeepGoing, Program, ranked
from commonwatt.placement._peers import Entry, Menu, Peer
from commonwatt.placement._problem import PlacementProblem

__all__ = ["Sia"]

GAP = 1e-4  # relative, as in the public simulator
MOST_NODES = 1000  # of the tree: a limit that does not depend on the machine
IDLE, IDLE_MAXIMISED = 1.1, 0.5  # lambda: what a job without GPUs counts for, as there
LEAST_FACTOR = 0.01  # of a restart: a new job would never change


@dataclass(frozen=True)
class Sia(Peer):
    """Sia, for jobs whose speed on each GPU type and number of GPUs is known.

    Attributes
    ----------
    fairness_power
        ``p``: the further below 0, the more the slowest jobs count. Above 0 the sum of powers is maximised, as in the
        public simulator for jobs of fixed size.
    """

    fairness_power: float = -0.5

    def menu(self, problem: PlacementProblem) -> Menu:
        """Return what the program gives each job: of one class, one configuration."""
        size = problem.width * problem.per_node
        room: Floats = np.bincount(problem.node_class, problem.node_gpus, len(problem.class_gpus)).astype(np.float64)
        open_rows = np.flatnonzero((size <= room[problem.klass]) & self._allowed(problem, size))
        rows = _best_of_shape(problem, size, open_rows)
        chosen = rows[self._chosen(problem, rows, size[rows], room)]
        return _menu_of(problem, size, chosen, room.astype(np.int64))

    def entries(
        self, problem: PlacementProblem, menu: Menu, rng: np.random.Generator, keep_going: KeepGoing  # noqa: ARG002
    ) -> Sequence[Entry]:  # fmt: skip
        """What the program gave, larger jobs first."""
        job, klass = np.nonzero(menu.row >= 0)
        order = ranked(-menu.gpus[job], problem.submit_s[job])
        return [(int(job[i]), int(klass[i])) for i in order]

    def _allowed(self, problem: PlacementProblem, size: Ints) -> Bools:
        """Configurations within what a job may grow to, [C]."""
        anew = np.ones(len(size), dtype=bool)
        anew[problem.stay[problem.stay >= 0]] = False
        least = np.full(len(problem), np.iinfo(np.int64).max)
        np.minimum.at(least, problem.row_job, size)
        most = np.where(problem.stay >= 0, 2 * size[problem.stay], least)
        return np.asarray(~anew | (size <= np.maximum(most, least)[problem.row_job]))

    def _chosen(self, problem: PlacementProblem, rows: Ints, size: Ints, room: Floats) -> Ints:
        """Solve the program over *rows*; returns places in *rows*, at most one of each job."""
        job = problem.row_job[rows]
        worth = (self._factor(problem, rows, size) * _goodput(problem, rows, size)) ** self.fairness_power
        program = Program()
        cost = worth - IDLE if self.fairness_power < 0 else -worth - IDLE_MAXIMISED
        x = program.columns(cost, high=1.0, whole=True)
        own, at = np.unique(job, return_inverse=True)
        program.rows(at, x, 1.0, np.full(len(own), -np.inf), np.ones(len(own)))
        program.rows(problem.klass[rows], x, size.astype(float), np.full(len(room), -np.inf), room)
        solution = program.minimise(gap=GAP, most_nodes=MOST_NODES).x
        return np.zeros(0, dtype=np.int64) if solution is None else np.flatnonzero(solution > 0.5)

    def _factor(self, problem: PlacementProblem, rows: Ints, size: Ints) -> Floats:
        """Discount of each of *rows* for a restart."""
        job = problem.row_job[rows]
        stay = problem.stay[job]
        runs = stay >= 0
        same = runs & (problem.klass[rows] == problem.klass[stay]) & (size == (problem.width * problem.per_node)[stay])
        restart_s = np.zeros(len(problem)) if problem.restart_s is None else problem.restart_s
        starts = np.ones(len(problem)) if problem.starts is None else problem.starts
        age_s = np.maximum(problem.now_s - problem.submit_s, 0.0)
        again_s = np.maximum(starts - 1.0, 0.0) * restart_s
        factor = (age_s - again_s) / np.maximum(age_s + restart_s, 1e-9)
        return np.where(runs & ~same, np.clip(factor, LEAST_FACTOR, 1.0)[job], 1.0)


def _goodput(problem: PlacementProblem, rows: Ints, size: Ints) -> Floats:
    """Speed of each of *rows*, relative to the slowest of its job, times the least GPUs of its job."""
    whole_s = (problem.time_s if problem.whole_s is None else problem.whole_s)[rows]
    job = problem.row_job[rows]
    slowest_s, least = np.zeros(len(problem)), np.full(len(problem), np.inf)
    np.maximum.at(slowest_s, job, whole_s)
    np.minimum.at(least, job, size)
    return np.asarray(least[job] * slowest_s[job] / whole_s)


def _best_of_shape(problem: PlacementProblem, size: Ints, rows: Ints) -> Ints:
    """Of each job, class and number of GPUs, the fastest of *rows*; the one a job runs in, where that is one."""
    whole_s = problem.time_s if problem.whole_s is None else problem.whole_s
    stays = np.zeros(len(size), dtype=bool)
    stays[problem.stay[problem.stay >= 0]] = True
    order = rows[ranked(problem.row_job[rows], problem.klass[rows], size[rows], ~stays[rows], whole_s[rows])]
    keys = np.stack((problem.row_job[order], problem.klass[order], size[order]))
    first = np.ones(len(order), dtype=bool)
    first[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    return order[first]


def _menu_of(problem: PlacementProblem, size: Ints, chosen: Ints, room: Ints) -> Menu:
    jobs, classes = len(problem), len(room)
    row, start = np.full((jobs, classes), -1, dtype=np.int64), np.full((jobs, classes), -1, dtype=np.int64)
    gpus, home = np.zeros(jobs, dtype=np.int64), np.full(jobs, -1, dtype=np.int64)
    whole = problem.time_s if problem.whole_s is None else problem.whole_s
    whole_s, left_s = np.full(row.shape, np.inf), np.full(row.shape, np.inf)
    job, klass = problem.row_job[chosen], problem.klass[chosen]
    row[job, klass], gpus[job] = chosen, size[chosen]
    whole_s[job, klass], left_s[job, klass] = whole[chosen], problem.time_s[chosen]
    home[job] = np.where(chosen == problem.stay[job], klass, -1)
    for j, r in zip(job.tolist(), chosen.tolist(), strict=True):
        own = np.arange(problem.start[j], problem.start[j + 1])
        alike = (problem.klass[own] == problem.klass[r]) & (size[own] == size[r]) & (own != problem.stay[j])
        if alike.any():
            start[j, problem.klass[r]] = own[alike][np.argmin(whole[own[alike]])]
    restart_s = np.zeros(jobs) if problem.restart_s is None else problem.restart_s
    return Menu(row, start, gpus, whole_s, left_s, restart_s, home, room)
