"""What each job would take as its owner asked for it: the yardstick that is the same for every policy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.data.profiles import DEFAULT_LOGGED, type_name
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.jobs import JobArrays
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import LogWorkload, Scenario, WeekWorkload

__all__ = ["ReferenceRuns", "reference_runs"]


@dataclass(frozen=True)
class ReferenceRuns:
    """Every job in its reference configuration, alone, without waiting. Shapes [J], by row of the table.

    Attributes
    ----------
    run_s
        True run time, s.
    gpus
        GPUs.
    energy_j
        Energy of its GPUs over that time, and of its share of its nodes' idle power, J; without PUE.
    """

    run_s: Floats
    gpus: Ints
    energy_j: Floats


def reference_runs(
    scenario: Scenario | None, cluster: Cluster, table: JobArrays, slowdown: Floats | None = None
) -> ReferenceRuns:
    """Return the jobs of *table* in their reference configurations.

    It has the GPUs the job requested, or if it requested none, the fewest it can run on; on the GPU type it requested,
    or if it requested none, the type its log ran on. Where the cluster or the job has no such configuration, the count
    comes before the type, and then the fastest is taken. *slowdown* is true over expected run time, [J].
    """
    index = np.repeat(np.arange(len(table)), np.diff(table.start))
    gpus_per_node, idle_w, gpu_w = _nodes_of(cluster, table)
    usable = gpus_per_node > 0
    asked = table.requested_gpus[index]
    fewest = np.full(len(table), np.iinfo(np.int64).max)
    np.minimum.at(fewest, index[usable], table.config_gpus[usable])
    asked = np.where(asked > 0, asked, fewest[index])
    wished = _wished_types(scenario, table)[index]
    order = np.lexsort((table.config_time_s, table.config_type != wished, table.config_gpus != asked, ~usable, index))
    chosen = order[table.start[:-1]]
    own_w = table.config_gpu_w[chosen]
    each_w = np.where(np.isnan(own_w), gpu_w[chosen], own_w) + idle_w[chosen] / np.maximum(1, gpus_per_node[chosen])
    run_s = table.config_time_s[chosen] * (1.0 if slowdown is None or not len(slowdown) else slowdown)
    gpus = table.config_gpus[chosen]
    return ReferenceRuns(run_s, gpus, run_s * gpus * each_w)


def _nodes_of(cluster: Cluster, table: JobArrays) -> tuple[Ints, Floats, Floats]:
    """Return GPUs, idle power and GPU power of the nodes each configuration runs on, [C]; 0 GPUs: on none."""
    pairs, which = np.unique(np.stack((table.config_type, table.config_gpus)), axis=1, return_inverse=True)
    rows = []
    for gpu_type, gpus in pairs.T:
        shapes = cluster.shapes(table.gpu_types[gpu_type], int(gpus))
        kind = cluster.classes[shapes[0][0]] if shapes else None
        rows.append((kind.gpus, kind.idle_w, kind.gpu_w) if kind else (0, 0.0, 0.0))
    columns = np.array(rows, dtype=float).reshape(-1, 3)[which.reshape(-1)].T
    return columns[0].astype(np.int64), columns[1], columns[2]


def _wished_types(scenario: Scenario | None, table: JobArrays) -> Ints:
    if scenario is None or not isinstance(scenario.workload, LogWorkload | WeekWorkload):
        return table.requested_type
    specs = scenario.gpu_types
    logged = type_name(scenario.workload.logged_gpu_type or DEFAULT_LOGGED, specs)
    at = next((i for i, name in enumerate(table.gpu_types) if type_name(name, specs) == logged), -1)
    return np.where(table.requested_type >= 0, table.requested_type, at)
