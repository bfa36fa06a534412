"""The objective every solver is judged by, and what makes a schedule feasible.

ANDREAS, eq. (1), with the meaning of its terms as constraints (4i) to (4m) intend them:

- a placed job costs ``omega_j * max(0, T_c + t_jng - d_j)``;
- a postponed job costs ``rho * omega_j * max(0, T_c + H + M_j - d_j)``, ``M_j`` its slowest possible time;
- every used node costs the run cost ``t_jng * c_ng`` of its first-ending job (ties: the job listed first).

A gang charges each of its nodes the cost of running there; one node is the paper's case. Where run times are uncertain
(``outcomes``), lateness is its mean over the outcomes, and what a job runs is what it is expected to run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.model.errors import SolverError
from commonwatt.placement._problem import POSTPONED, PlacementProblem, Schedule

__all__ = ["Objective", "check", "end_times_s", "objective"]


@dataclass(frozen=True)
class Objective:
    """The three parts of eq. (1), in currency."""

    tardiness: float
    postponement: float
    first_ending: float

    @property
    def total(self) -> float:
        """f_OBJ."""
        return self.tardiness + self.postponement + self.first_ending


def end_times_s(problem: PlacementProblem, schedule: Schedule) -> Floats:
    """Time from now until each job ends, waking of its nodes included, [J]; infinity if it is postponed."""
    ends = np.full(len(problem), np.inf)
    for job in np.flatnonzero(schedule.choice != POSTPONED):
        wait_s = problem.node_wait_s[schedule.nodes_of(problem, job)].max(initial=0.0)
        ends[job] = problem.time_s[schedule.choice[job]] + wait_s
    return ends


def objective(problem: PlacementProblem, schedule: Schedule) -> Objective:
    """Evaluate *schedule*. Plain and slow on purpose: solvers that keep running totals are tested against it."""
    ends = end_times_s(problem, schedule)
    placed = schedule.choice != POSTPONED
    time_s = problem.time_s[schedule.choice] if len(problem.time_s) else ends
    late_s = problem.late_s(np.arange(len(problem)), problem.now_s + np.where(placed, ends, 0.0), time_s)
    late_s = np.where(placed, late_s, 0.0)
    first_end = np.full(len(problem.node_names), np.inf)
    first_cost = np.zeros(len(problem.node_names))
    for job in np.flatnonzero(placed):
        for node in schedule.nodes_of(problem, job):
            if ends[job] < first_end[node]:
                first_end[node] = ends[job]
                first_cost[node] = problem.node_cost[schedule.choice[job]]
    return Objective(
        tardiness=float(np.sum(problem.weight * late_s)),
        postponement=float(np.sum(problem.postponed_cost[~placed])),
        first_ending=float(np.sum(first_cost)),
    )


def check(problem: PlacementProblem, schedule: Schedule) -> None:
    """Raise ``SolverError`` unless *schedule* can be carried out."""
    for job in np.flatnonzero(schedule.choice != POSTPONED):
        row = int(schedule.choice[job])
        name = problem.job_names[int(job)]
        if not problem.start[job] <= row < problem.start[job + 1]:
            msg = f"job {name} was given a configuration of another job"
            raise SolverError(msg)
        nodes = schedule.nodes_of(problem, job)
        if len(set(nodes.tolist())) != problem.width[row] or nodes.min() < 0:
            msg = f"job {name} was not given {problem.width[row]} different nodes"
            raise SolverError(msg)
        if np.any(problem.node_class[nodes] != problem.klass[row]):
            msg = f"job {name} was given a node of the wrong class"
            raise SolverError(msg)
        if row == problem.stay[job] and set(nodes.tolist()) != set(problem.nodes_held(job).tolist()):
            msg = f"job {name} was to stay where it is but was moved"
            raise SolverError(msg)
    for job in np.flatnonzero(schedule.packed()):
        _check_pair(problem, schedule, int(job))
    used = problem.node_gpus - schedule.free_gpus(problem)
    for node in np.flatnonzero(used > problem.node_gpus):
        msg = f"node {problem.node_names[int(node)]} was given {used[node]} of its {problem.node_gpus[node]} GPUs"
        raise SolverError(msg)


def _check_pair(problem: PlacementProblem, schedule: Schedule, job: int) -> None:
    assert schedule.beside is not None
    other = int(schedule.beside[job])
    alike = (
        schedule.beside[other] == job != other
        and problem.per_node[schedule.choice[job]] == problem.per_node[schedule.choice[other]]
    )
    if not alike or set(schedule.nodes_of(problem, job)) != set(schedule.nodes_of(problem, other)):
        msg = f"job {problem.job_names[job]} was not given the GPUs of the one other job beside which it was to run"
        raise SolverError(msg)
