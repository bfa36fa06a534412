"""Workloads of the public simulator of Sia, from a folder of its tables, with its cluster and its rules of speed.

Source: S. Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling" (SOSP 2023).
Jobs keep the GPUs and the batch they asked for, or (``batch: adaptive``) may have several numbers of GPUs, with the
best batch of every epoch on each. A GPU type is one node to a scheduler, since there a job may have any GPUs of a type;
the simulated engine spreads it over hosts, with the speed the tables have for that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, Field

from commonwatt.data import third_party
from commonwatt.data.files import load_yaml
from commonwatt.data.inventory import board_power
from commonwatt.data.sia_goodput import TYPES, GoodputModel, Placement, read_trainings
from commonwatt.data.table import TextTable, read_table
from commonwatt.model.errors import InputError
from commonwatt.model.jobs import Job, JobArrays
from commonwatt.model.nodes import Hosts, NodeSpec
from commonwatt.model.scenario import SiaWorkload
from commonwatt.model.units import plural

__all__ = ["SiaCase", "read_sia"]

HOST_W = 150.0
"""Power of a host without its busy GPUs: assumed. Busy GPUs draw what their data sheet says."""


class _Kind(BaseModel):
    cluster: str
    nodes: int = Field(ge=1)
    gpus_per_node: int = Field(ge=1)


class _ClusterFile(BaseModel):
    gpu_types: list[_Kind] = Field(min_length=1)
    restart_s: dict[str, float]
    slowdown: dict[str, float] = {}


@dataclass(frozen=True)
class SiaCase:
    """Jobs, nodes and hosts of one workload."""

    nodes: tuple[NodeSpec, ...]
    table: JobArrays
    hosts: Hosts
    source: str


class _Spread(Mapping[tuple[str, str, Placement], float]):
    """Times of trainings by application, GPU type and placement, computed when asked for."""

    def __init__(self, trainings: Mapping[str, GoodputModel]) -> None:
        self._trainings, self._known = trainings, dict[tuple[str, str, Placement], float]()

    def __getitem__(self, key: tuple[str, str, Placement]) -> float:
        if key not in self._known:
            self._known[key] = self._trainings[key[0]].run_time_s(*key[1:])
        if math.isinf(self._known[key]):
            raise KeyError(key)
        return self._known[key]

    def __iter__(self) -> Iterator[tuple[str, str, Placement]]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


@dataclass(frozen=True)
class _Fixed:
    """Jobs as they asked: one size and batch."""

    times_s: Mapping[str, Mapping[str, float]]  # by kind of job and GPU type, on the fewest hosts
    spread_s: Mapping[tuple[str, str, Placement], float]
    iterations: Mapping[str, float]

    def model(self, table: TextTable, row: int, gpus: int) -> _Model:
        application = table.text("application")[row]
        kind = f"{application}/{table.text('batch_size')[row]}/{gpus}"
        if kind not in self.times_s:
            raise table.error(row, "num_gpus", f"a size with a row in rigid_rates.csv for {application}")
        times_s = {gpu_type: {gpus: run_s} for gpu_type, run_s in self.times_s[kind].items()}
        return kind, times_s, self.iterations[kind]


@dataclass(frozen=True)
class _Adaptive:
    """Jobs of any size that Sia considers, or that they asked for, with the best batch of each epoch."""

    trainings: Mapping[str, GoodputModel]
    kinds: tuple[_Kind, ...]

    @cached_property
    def spread_s(self) -> Mapping[tuple[str, str, Placement], float]:
        return _Spread(self.trainings)

    def model(self, table: TextTable, row: int, gpus: int) -> _Model:
        application = table.text("application")[row]
        if application not in self.trainings:
            raise table.error(row, "application", f"one with rows in validation.csv.gz ({', '.join(self.trainings)})")
        times_s: dict[str, dict[int, float]] = {}
        for kind in self.kinds:
            gpu_type = TYPES[kind.cluster]
            sizes = {*_sizes(kind), gpus} if gpus <= kind.nodes * kind.gpus_per_node else _sizes(kind)
            for size in sorted(sizes):
                run_s = self.spread_s.get((application, gpu_type, _compact(size, kind.gpus_per_node)))
                if run_s is not None:
                    times_s.setdefault(gpu_type, {})[size] = run_s
        if not any(gpus in by_size for by_size in times_s.values()):
            raise table.error(row, "num_gpus", f"a size within what was measured of {application}")
        return application, times_s, float(self.trainings[application].progress.sum())


_Model = tuple[str, dict[str, dict[int, float]], float]  # kind, times (s) by GPU type and GPUs, iterations


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
    speeds: _Fixed | _Adaptive
    if spec.batch == "adaptive":
        speeds = _Adaptive(read_trainings(root, cluster.slowdown), tuple(kinds))
    else:
        speeds = _speeds(read_table(root / "throughput" / "rigid_rates.csv"))
    table = read_table(root / "workloads" / f"{spec.workload}.csv")
    nodes = tuple(_node(kind) for kind in kinds)
    hosts = {TYPES[kind.cluster]: (kind.gpus_per_node,) * kind.nodes for kind in kinds}
    jobs = JobArrays.of(_jobs(table, speeds, cluster))
    total = sum(node.gpus for node in nodes)
    source = (
        f"{spec.workload} of the simulator of Sia (SOSP 2023): {plural(len(jobs), 'job')} on {plural(total, 'GPU')}"
        f"{', with batches that adapt' if spec.batch == 'adaptive' else ''}"
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


def _speeds(table: TextTable) -> _Fixed:
    times: dict[str, dict[str, float]] = {}
    spread: dict[tuple[str, str, Placement], float] = {}
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
    return _Fixed(times, spread, iterations)


def _jobs(table: TextTable, speeds: _Fixed | _Adaptive, cluster: _ClusterFile) -> list[Job]:
    submit_s, gpus = table.seconds("submission_s"), table.counts("num_gpus")
    jobs = []
    for row, (name, application) in enumerate(zip(table.text("name"), table.text("application"), strict=True)):
        kind, times_s, iterations = speeds.model(table, row, int(gpus[row]))
        if application not in cluster.restart_s:
            raise table.error(row, "application", f"one with a restart time ({', '.join(cluster.restart_s)})")
        jobs.append(
            Job(
                name=name,
                tenant="default",
                submit_s=float(submit_s[row]),
                due_s=math.inf,
                tardiness_weight=0.0,
                times_s=times_s,
                kind=kind,
                requested_gpus=int(gpus[row]),
                restart_s=cluster.restart_s[application],
                iterations=iterations,
            )
        )
    return jobs


def _sizes(kind: _Kind) -> set[int]:
    """Numbers of GPUs that Sia considers: powers of 2 up to a host, and whole hosts."""
    parts = {2**power for power in range(kind.gpus_per_node.bit_length()) if 2**power < kind.gpus_per_node}
    return parts | {kind.gpus_per_node * hosts for hosts in range(1, kind.nodes + 1)}


def _compact(gpus: int, per_host: int) -> Placement:
    """GPUs on the fewest hosts."""
    whole, rest = divmod(gpus, per_host)
    return (per_host,) * whole + ((rest,) if rest else ())
