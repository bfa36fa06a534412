"""Published schedulers that resize jobs: what they have in common, and Sia.

A job may have any of its configurations, GPU type and number of GPUs; under Sia and Pollux it starts with its least
number on a type, and at most doubles what it has. A scheduler picks one for each job, within the GPUs of each class;
nodes follow as for others. Goodput is the speed that a job's table has. Where that has the times with the best batch
size of each configuration (workload ``sia`` with ``batch: adaptive``), batch sizes adapt, too.

Sia: ``G[j, c]`` is the goodput of job ``j`` in configuration ``c``, relative to the least of its own and times its
least number of GPUs. Every job has one configuration or none, and

    minimise  sum over j, c of x[j, c] * (r[j, c] * G[j, c]) ** p  +  lambda * sum over j of (1 - sum over c of x[j, c])

with ``p`` below 0, where more goodput counts less the more a job has, within the GPUs of every type. What is not the
present configuration of a running job is discounted by ``r = (age - restarts * S) / (age + S)``, with ``S`` what a
restart takes: jobs that restarted often, and young ones, rather stay.

Source: S. Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling" (SOSP 2023),
section 3.4. Not built: learning of goodput, so no job is tried where it turns out to be slow; and three rules of the
public simulator: jobs hold their GPUs during a restart, may grow to twice the most they ever had, and are not
discounted while they are younger than a restart.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.optimize import KeepGoing, Program, ranked
from commonwatt.placement._peers import Entry, Menu, Peer
from commonwatt.placement._problem import PlacementProblem

__all__ = ["Open", "Resizing", "Sia", "goodput", "restart_factor"]

GAP = 1e-4  # relative, as in the public simulator
MOST_NODES = 1000  # of the tree: a limit that does not depend on the machine
IDLE, IDLE_MAXIMISED = 1.1, 0.5  # lambda: what a job without GPUs counts for, as there
LEAST_FACTOR = 0.01  # of a restart: a new job would never change


@dataclass(frozen=True)
class Open:
    """Configurations a scheduler may pick from: one for each job, class, number of GPUs and power limit.

    Attributes
    ----------
    rows
        Rows of the problem, by job, class and number of GPUs. Shape [R].
    job, klass, size
        Of each: its job, its class, its GPUs. Shape [R].
    room
        GPUs of each class, [K].
    """

    rows: Ints
    job: Ints
    klass: Ints
    size: Ints
    room: Ints


@dataclass(frozen=True)
class Resizing(Peer):
    """A scheduler that picks a configuration for each job, or none."""

    def menu(self, problem: PlacementProblem, rng: np.random.Generator) -> Menu:
        """Return what was picked for each job: of one class, one configuration."""
        size = problem.width * problem.per_node
        room = np.bincount(problem.node_class, problem.node_gpus, len(problem.class_gpus)).astype(np.int64)
        stays = problem.stay[problem.stay >= 0] if problem.locked else np.zeros(0, dtype=np.int64)
        left = room - np.bincount(problem.klass[stays], size[stays], len(room)).astype(np.int64)
        open_ = (size <= left[problem.klass]) & self.allowed(problem, size)
        open_[np.isin(problem.row_job, problem.row_job[stays])] = False
        rows = _best_of_shape(problem, size, np.flatnonzero(open_))
        among = Open(rows, problem.row_job[rows], problem.klass[rows], size[rows], left)
        picked = self.picked(problem, among, rng) if len(rows) else np.zeros(0, dtype=np.int64)
        return _menu_of(problem, size, np.concatenate((stays, rows[picked])), room)

    def allowed(self, problem: PlacementProblem, size: Ints) -> Bools:
        """Return which configurations a job may have, [C]: the least of each class, and at most twice what it has."""
        anew = np.ones(len(size), dtype=bool)
        anew[problem.stay[problem.stay >= 0]] = False
        least = np.full((len(problem), len(problem.class_gpus)), np.iinfo(np.int64).max)
        np.minimum.at(least, (problem.row_job, problem.klass), size)
        most = np.where(problem.stay >= 0, 2 * size[problem.stay], 0)
        return np.asarray(~anew | (size <= np.maximum(most[problem.row_job], least[problem.row_job, problem.klass])))

    @abstractmethod
    def picked(self, problem: PlacementProblem, among: Open, rng: np.random.Generator) -> Ints:
        """Return places in *among*, at most one of each job, within the room of every class."""

    def entries(
        self, problem: PlacementProblem, menu: Menu, rng: np.random.Generator, keep_going: KeepGoing  # noqa: ARG002
    ) -> Sequence[Entry]:  # fmt: skip
        """What was picked, larger jobs first."""
        job, klass = np.nonzero(menu.row >= 0)
        order = ranked(-menu.gpus[job], problem.submit_s[job])
        return [(int(job[i]), int(klass[i])) for i in order]


@dataclass(frozen=True)
class Sia(Resizing):
    """Sia, for jobs whose speed on each GPU type and number of GPUs is known.

    Attributes
    ----------
    fairness_power
        ``p``: the further below 0, the more the slowest jobs count. Above 0 the sum of powers is maximised, as in the
        public simulator for jobs of fixed size.
    """

    fairness_power: float = -0.5

    def picked(self, problem: PlacementProblem, among: Open, rng: np.random.Generator) -> Ints:  # noqa: ARG002
        """Solve the program."""
        factor = restart_factor(problem, among, waiting=False)
        worth = (factor * goodput(problem, among.rows)) ** self.fairness_power
        program = Program()
        cost = worth - IDLE if self.fairness_power < 0 else -worth - IDLE_MAXIMISED
        x = program.columns(cost, high=1.0, whole=True)
        own, at = np.unique(among.job, return_inverse=True)
        program.rows(at, x, 1.0, np.full(len(own), -np.inf), np.ones(len(own)))
        room = among.room.astype(float)
        program.rows(among.klass, x, among.size.astype(float), np.full(len(room), -np.inf), room)
        solution = program.minimise(gap=GAP, most_nodes=MOST_NODES).x
        return np.zeros(0, dtype=np.int64) if solution is None else np.flatnonzero(solution > 0.5)


def restart_factor(problem: PlacementProblem, among: Open, *, waiting: bool) -> Floats:
    """Return the discount of each of *among* for a restart, [R]; with *waiting*, also where a job starts."""
    stay = problem.stay[among.job]
    runs = stay >= 0
    size = problem.width * problem.per_node
    same = runs & (among.klass == problem.klass[stay]) & (among.size == size[stay])
    same &= problem.limits[among.rows] == problem.limits[stay]
    restart_s = np.zeros(len(problem)) if problem.restart_s is None else problem.restart_s
    starts = np.ones(len(problem)) if problem.starts is None else problem.starts
    age_s = np.maximum(problem.now_s - problem.submit_s, 0.0)
    again_s = np.maximum(starts - 1.0, 0.0) * restart_s
    factor = (age_s - again_s) / np.maximum(age_s + restart_s, 1e-9)
    changes = ~same & (runs | waiting)
    return np.where(changes, np.clip(factor, LEAST_FACTOR, 1.0)[among.job], 1.0)


def goodput(problem: PlacementProblem, rows: Ints) -> Floats:
    """Return the speed of each of *rows*, relative to the slowest of its job, times the least GPUs of its job."""
    size = (problem.width * problem.per_node)[rows]
    whole_s = (problem.time_s if problem.whole_s is None else problem.whole_s)[rows]
    job = problem.row_job[rows]
    slowest_s, least = np.zeros(len(problem)), np.full(len(problem), np.inf)
    np.maximum.at(slowest_s, job, whole_s)
    np.minimum.at(least, job, size)
    return np.asarray(least[job] * slowest_s[job] / whole_s)


def _best_of_shape(problem: PlacementProblem, size: Ints, rows: Ints) -> Ints:
    """Of each job, class, number of GPUs and power limit, the fastest of *rows*, or the one the job runs in."""
    whole_s = problem.time_s if problem.whole_s is None else problem.whole_s
    stays = np.zeros(len(size), dtype=bool)
    stays[problem.stay[problem.stay >= 0]] = True
    shape = np.stack((problem.row_job[rows], problem.klass[rows], size[rows], problem.limits[rows]))
    order = ranked(*shape, ~stays[rows], whole_s[rows])
    keys, order = shape[:, order], rows[order]
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
        alike &= problem.limits[own] == problem.limits[r]
        if alike.any():
            start[j, problem.klass[r]] = own[alike][np.argmin(whole[own[alike]])]
    restart_s = np.zeros(jobs) if problem.restart_s is None else problem.restart_s
    return Menu(row, start, gpus, whole_s, left_s, restart_s, home, room)
