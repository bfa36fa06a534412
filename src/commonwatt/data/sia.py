"""Workloads of the public simulator of Sia, from a folder of its tables, with its cluster and its rules of speed.

Source: S. Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling" (SOSP 2023).
Jobs keep the GPUs and the batch they asked for. A GPU type is one node to a scheduler, since there a job may have any
GPUs of a type; the simulated engine spreads it over hosts, with the speed the tables have for that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field

from commonwatt.data import third_party
from commonwatt.data.files import load_yaml
from commonwatt.data.inventory import board_power
from commonwatt.data.table import TextTable, read_table
from commonwatt.model.errors import InputError
from commonwatt.model.jobs import Job, JobArrays
from commonwatt.model.nodes import Hosts, NodeSpec
from commonwatt.model.scenario import SiaWorkload
from commonwatt.model.units import plural

__all__ = ["SiaCase", "read_sia"]

HOST_W = 150.0
"""Power of a host without its busy GPUs: assumed. Busy GPUs draw what their data sheet says."""
TYPES = {"aws": "T4", "rtx": "RTX2080Ti", "dgx-ext": "A100"}  # by the name its tables give the cluster


class _Kind(BaseModel):
    cluster: str
    nodes: int = Field(ge=1)
    gpus_per_node: int = Field(ge=1)


class _ClusterFile(BaseModel):
    gpu_types: list[_Kind] = Field(min_length=1)
    restart_s: dict[str, float]


@dataclass(frozen=True)
class SiaCase:
    """Jobs, nodes and hosts of one workload."""

    nodes: tuple[NodeSpec, ...]
    table: JobArrays
    hosts: Hosts
    source: str


@dataclass(frozen=True)
class _Speeds:
    times_s: Mapping[str, Mapping[str, float]]  # by kind of job and GPU type, on the fewest hosts
    spread_s: Mapping[tuple[str, str, tuple[int, ...]], float]
    iterations: Mapping[str, float]


def read_sia(spec: SiaWorkload, folder: Path) -> SiaCase:
    """Read a workload; its path is relative to *folder*. Raises ``InputError`` on whatever is wrong in its files."""
    root = _root(spec, folder)
    cluster = load_yaml(root / "cluster.json", _ClusterFile)
    kinds = sorted(cluster.gpu_types, key=lambda kind: kind.cluster)  # as its simulator goes through them
    for kind in kinds:
        if kind.cluster not in TYPES:
            raise InputError(
                f"one of {', '.join(TYPES)}", file=root / "cluster.json", field="gpu_types.cluster", value=kind.cluster
            )
    speeds = _speeds(read_table(root / "throughput" / "rigid_rates.csv"))
    table = read_table(root / "workloads" / f"{spec.workload}.csv")
    nodes = tuple(_node(kind) for kind in kinds)
    hosts = {TYPES[kind.cluster]: (kind.gpus_per_node,) * kind.nodes for kind in kinds}
    jobs = JobArrays.of(_jobs(table, speeds, cluster))
    total = sum(node.gpus for node in nodes)
    source = (
        f"{spec.workload} of the simulator of Sia (SOSP 2023): {plural(len(jobs), 'job')} on {plural(total, 'GPU')}"
    )
    return SiaCase(nodes, jobs, Hosts(hosts, speeds.spread_s), source)


def _root(spec: SiaWorkload, folder: Path) -> Path:
    root = folder / spec.path if spec.path is not None else third_party.peer_folder("sia")
    if root is None:
        raise InputError(
            f"the path of a folder, or peers/sia beside the folder {third_party.VARIABLE} names", field="workload.path",
            value="none",
        )  # fmt: skip
    if not root.is_dir():
        raise InputError("a folder with cluster.json, workloads/ and throughput/", field="workload.path", value=root)
    return root


def _node(kind: _Kind) -> NodeSpec:
    gpu_type = TYPES[kind.cluster]
    board = board_power(gpu_type)
    return NodeSpec(
        name=gpu_type, gpu_type=gpu_type, gpus=kind.nodes * kind.gpus_per_node, idle_w=kind.nodes * HOST_W,
        gpu_w=0.0 if board is None else board.board_w, states=(),
    )  # fmt: skip


def _speeds(table: TextTable) -> _Speeds:
    times: dict[str, dict[str, float]] = {}
    spread: dict[tuple[str, str, tuple[int, ...]], float] = {}
    iterations: dict[str, float] = {}
    run_s, each_s = table.seconds("run_time_s", blank=0.0), table.seconds("iteration_time_s", blank=0.0)
    names = ("application", "batch_size", "num_gpus", "cluster", "placement", "kind")
    for row, cells in enumerate(zip(*(table.text(name) for name in names), strict=True)):
        application, batch, gpus, cluster, placement, kind = cells
        if run_s[row] <= 0 or cluster not in TYPES:
            continue
        if not all(count.isdecimal() for count in placement.split()):
            raise table.error(row, "placement", "GPUs on each host, such as 4 2")
        job, counts = f"{application}/{batch}/{gpus}", tuple(int(count) for count in placement.split())
        spread[job, TYPES[cluster], counts] = float(run_s[row])
        if kind == "compact":
            times.setdefault(job, {})[TYPES[cluster]] = float(run_s[row])
            iterations[job] = float(run_s[row] / each_s[row]) if each_s[row] > 0 else math.nan
    return _Speeds(times, spread, iterations)


def _jobs(table: TextTable, speeds: _Speeds, cluster: _ClusterFile) -> list[Job]:
    submit_s, gpus = table.seconds("submission_s"), table.counts("num_gpus")
    applications, batches, names = table.text("application"), table.text("batch_size"), table.text("name")
    jobs = []
    for row, application in enumerate(applications):
        kind = f"{application}/{batches[row]}/{gpus[row]}"
        if kind not in speeds.times_s:
            raise table.error(row, "num_gpus", f"a size with a row in rigid_rates.csv for {application}")
        if application not in cluster.restart_s:
            raise table.error(row, "application", f"one with a restart time ({', '.join(cluster.restart_s)})")
        times_s = {gpu_type: {int(gpus[row]): run_s} for gpu_type, run_s in speeds.times_s[kind].items()}
        jobs.append(
            Job(
                name=names[row],
                tenant="default",
                submit_s=float(submit_s[row]),
                due_s=math.inf,
                tardiness_weight=0.0,
                times_s=times_s,
                kind=kind,
                requested_gpus=int(gpus[row]),
                restart_s=cluster.restart_s[application],
                iterations=speeds.iterations[kind],
            )
        )
    return jobs
