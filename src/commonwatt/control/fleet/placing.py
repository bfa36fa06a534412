"""Replicas and fractional jobs on GPUs: a placement problem whose nodes are single GPUs of a thousand parts.

The policy's own solver decides, as it does for training jobs. A GPU already in use adds no idle power;
one more GPU costs its share of the idle power of a node that is on, or all of the node's if that sleeps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from commonwatt.control.fleet.interface import Placing
from commonwatt.control.policy import Policy
from commonwatt.model.arrays import Bools, Ints
from commonwatt.model.electricity import Tariff
from commonwatt.model.fleet import WHOLE_MILLI
from commonwatt.model.nodes import Cluster
from commonwatt.placement import POSTPONED, PlacementProblem

__all__ = ["OpenGpu", "ResidentPlacer", "UnplacedResident"]


@dataclass(frozen=True)
class OpenGpu:
    """A GPU that is shared in time, with the thousandths of it that are free."""

    gpu: int
    node: int
    free_milli: int


@dataclass(frozen=True)
class UnplacedResident:
    """A replica or fractional job without a place.

    Attributes
    ----------
    resident
        Its number.
    submit_s
        Since when it waits.
    milli
        Thousandths of a GPU it needs, by GPU type.
    time_s
        How long it is expected to stay.
    power_w
        Power of the whole GPU while it works, by type.
    weight
        Currency for a second of waiting; 0: it can wait.
    """

    resident: int
    tenant: int
    submit_s: float
    milli: Mapping[str, int]
    time_s: float
    power_w: Mapping[str, float]
    weight: float


@dataclass(frozen=True)
class _Kind:
    """GPUs that are alike to a resident."""

    gpu_type: str
    idle_w: float
    gpu_w: float
    shared: bool  # it is shared already
    may_share: bool


class ResidentPlacer:
    """Places residents on the GPUs of a cluster by a policy's solver."""

    def __init__(self, cluster: Cluster, policy: Policy, tariff: Tariff) -> None:
        self._cluster, self._policy, self._tariff = cluster, policy, tariff

    def place(
        self, now_s: float, waiting: Sequence[UnplacedResident], shared: Sequence[OpenGpu], free_gpus: Ints, on: Bools,
        wait_s: Sequence[float], tenants: Sequence[str], rng: np.random.Generator,
    ) -> list[Placing]:  # fmt: skip
        """Return places for those *waiting*, as far as there is room.

        Parameters
        ----------
        shared
            GPUs that are shared in time now.
        free_gpus
            GPUs of each node that nobody has, [N].
        on
            Whether each node is on, [N]; one that is not has to wake first.
        wait_s
            Time until each could run something, [N].
        """
        if not waiting:
            return []
        nodes, kinds, places = self._nodes(waiting, shared, free_gpus, on)
        problem, kept = self._problem(now_s, waiting, nodes, kinds, places, wait_s, tenants)
        if not kept:
            return []
        schedule = self._policy.decide(problem, rng)
        placings = []
        for j, which in enumerate(kept):
            if schedule.choice[j] != POSTPONED:
                at = int(schedule.nodes_of(problem, j)[0])
                gpu, node = places[at]
                milli = int(problem.per_node[schedule.choice[j]])
                placings.append(Placing(waiting[which].resident, gpu if gpu >= 0 else -1 - at, node, milli))
        return placings

    def _nodes(
        self, waiting: Sequence[UnplacedResident], shared: Sequence[OpenGpu], free_gpus: Ints, on: Bools
    ) -> tuple[list[tuple[int, int]], list[_Kind], list[tuple[int, int]]]:
        """Return class and free parts of each GPU, the classes, and which GPU and node each is."""
        kinds: dict[_Kind, int] = {}
        rows: list[tuple[int, int]] = []
        places: list[tuple[int, int]] = []

        def add(gpu: int, node: int, free: int, *, idle_w: float, is_shared: bool) -> None:
            own = self._cluster.classes[self._cluster.klass[node]]
            kind = _Kind(own.gpu_type, idle_w, own.gpu_w, is_shared, "time" in own.share)
            rows.append((kinds.setdefault(kind, len(kinds)), free))
            places.append((gpu, node))

        for gpu in shared:
            if gpu.free_milli > 0:
                add(gpu.gpu, gpu.node, gpu.free_milli, idle_w=0.0, is_shared=True)
        wanted = {gpu_type for candidate in waiting for gpu_type in candidate.milli}
        most = len(waiting)
        for awake in (True, False):
            there = [n for n in np.flatnonzero(free_gpus > 0).tolist() if bool(on[n]) is awake]
            used: dict[int, int] = {}
            for n in sorted(there, key=lambda n: (int(free_gpus[n]), n)):  # the fullest node first
                k = int(self._cluster.klass[n])
                own = self._cluster.classes[k]
                if own.gpu_type not in wanted:
                    continue
                for _ in range(min(int(free_gpus[n]), most - used.get(k, 0))):
                    used[k] = used.get(k, 0) + 1
                    add(-1, n, WHOLE_MILLI, idle_w=own.idle_w / (own.gpus if awake else 1), is_shared=False)
        return rows, list(kinds), places

    def _problem(
        self, now_s: float, waiting: Sequence[UnplacedResident], nodes: Sequence[tuple[int, int]],
        kinds: Sequence[_Kind], places: Sequence[tuple[int, int]], wait_s: Sequence[float], tenants: Sequence[str],
    ) -> tuple[PlacementProblem, list[int]]:  # fmt: skip
        rows: list[tuple[int, int, float, float]] = []  # class, parts, time, power
        start, kept = [0], []
        for which, candidate in enumerate(waiting):
            for k, kind in enumerate(kinds):
                milli = candidate.milli.get(kind.gpu_type)
                if milli is not None and (kind.may_share or (milli == WHOLE_MILLI and not kind.shared)):
                    watts = kind.idle_w + candidate.power_w.get(kind.gpu_type, kind.gpu_w) * milli / WHOLE_MILLI
                    rows.append((k, milli, candidate.time_s, watts))
            if len(rows) > start[-1]:
                start.append(len(rows))
                kept.append(which)
        columns = np.array(rows, dtype=float).reshape(-1, 4)
        own = [waiting[which] for which in kept]
        time_s = np.maximum(1.0, columns[:, 2])
        table = np.array(nodes, dtype=np.int64).reshape(-1, 2)
        idle_w = np.array([kind.idle_w for kind in kinds])
        return PlacementProblem(
            now_s=now_s, interval_s=300.0, postponement_penalty=100.0,
            node_names=tuple(str(n) for n in range(len(nodes))), node_class=table[:, 0], node_gpus=table[:, 1],
            node_wait_s=np.array([0.0 if gpu >= 0 else wait_s[node] for gpu, node in places]),
            class_gpus=np.full(len(kinds), WHOLE_MILLI, dtype=np.int64),
            class_types=[kind.gpu_type for kind in kinds],
            class_idle_cost_s=self._tariff.cost(idle_w, now_s, now_s + 1.0),
            job_names=[str(candidate.resident) for candidate in own],
            submit_s=np.array([candidate.submit_s for candidate in own]),
            due_s=np.array([candidate.submit_s if candidate.weight > 0 else math.inf for candidate in own]),
            weight=np.array([candidate.weight for candidate in own]),
            tenant=np.array([candidate.tenant for candidate in own], dtype=np.int64),
            limit_s=np.full(len(own), math.inf), start=np.array(start, dtype=np.int64),
            klass=columns[:, 0].astype(np.int64), width=np.ones(len(rows), dtype=np.int64),
            per_node=columns[:, 1].astype(np.int64), time_s=time_s,
            node_cost=self._tariff.cost(columns[:, 3], now_s, now_s + time_s), asked=np.ones(len(rows), dtype=bool),
            stay=np.full(len(own), -1, dtype=np.int64), stay_nodes=np.zeros(0, dtype=np.int64),
            tenant_names=tuple(tenants), tenant_weight=np.ones(len(tenants)),
            tenant_usage_gpu_s=np.zeros(len(tenants)), locked=True,
        ), kept  # fmt: skip
