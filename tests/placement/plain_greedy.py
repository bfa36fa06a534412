"""Algorithm 1 of ANDREAS without its random choices, written down plainly: the reference of the compiled loops."""

from __future__ import annotations

import numpy as np

from commonwatt.placement._problem import PlacementProblem, Schedule


def plain_greedy(problem: PlacementProblem) -> Schedule:
    """Jobs by pressure; cheapest configuration in time, else fastest; best-fitting nodes; else the next."""
    schedule = Schedule.empty(problem)
    free = problem.node_gpus.copy()
    for job in sorted(range(len(problem)), key=lambda j: (-problem.pressure_s[j], j)):
        rows = list(range(problem.start[job], problem.start[job + 1]))
        in_time = [r for r in rows if problem.now_s + problem.time_s[r] < problem.due_s[job]]
        late = [r for r in rows if r not in in_time]
        in_time.sort(key=lambda r: problem.run_cost[r])
        late.sort(key=lambda r: problem.time_s[r])
        for row in in_time + late:
            able = [
                n
                for n in range(len(free))
                if problem.node_class[n] == problem.klass[row] and free[n] >= problem.per_node[row]
            ]
            if len(able) < problem.width[row]:
                continue
            able.sort(key=lambda n: free[n])
            nodes = np.array(able[: problem.width[row]])
            free[nodes] -= problem.per_node[row]
            schedule.choice[job] = row
            schedule.nodes[problem.slot_start[job] : problem.slot_start[job] + len(nodes)] = nodes
            break
    return schedule
