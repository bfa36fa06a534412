"""The shortest job first, each where it costs least among the nodes that still have room."""

from __future__ import annotations

import numpy as np

from commonwatt.optimize import KeepGoing, SearchResult, always
from commonwatt.placement import PlacementProblem, Schedule, objective

__all__ = ["ShortestFirst"]


class ShortestFirst:
    """Places jobs by their fastest possible run time; jobs without room are postponed."""

    plans = False  # it does not weigh moves of running jobs against each other
    leaves_room = False  # it never postpones a job beside GPUs that it could use

    def solve(
        self, problem: PlacementProblem, rng: np.random.Generator, keep_going: KeepGoing = always
    ) -> SearchResult[Schedule]:
        """Return the schedule; nothing in it is random."""
        schedule, free = Schedule.empty(problem), problem.node_gpus.copy()
        for job in np.argsort(problem.fastest_s, kind="stable"):
            rows = np.arange(problem.start[job], problem.start[job + 1])
            for row in rows[np.argsort(problem.run_cost[rows], kind="stable")]:
                nodes = self._nodes(problem, int(job), int(row), free)
                if len(nodes):
                    schedule.choice[job] = row
                    first = problem.slot_start[job]
                    schedule.nodes[first : first + len(nodes)] = nodes
                    free[nodes] -= problem.per_node[row]
                    break
        return SearchResult(schedule, objective(problem, schedule).total)

    @staticmethod
    def _nodes(problem: PlacementProblem, job: int, row: int, free: np.ndarray) -> np.ndarray:
        """Return the nodes for a configuration: those with room, or, if it means to stay, those the job has."""
        if row == problem.stay[job]:
            held = problem.nodes_held(job)
            return held if (free[held] >= problem.per_node[row]).all() else held[:0]
        return problem.room(row, free)[: problem.width[row]]
