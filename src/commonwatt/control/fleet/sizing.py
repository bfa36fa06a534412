"""Requests to replicas, and latency from a slice: the law by which services are sized and judged.

A replica with a part ``f`` of a GPU that serves ``mu`` requests per second as a whole works at ``f * mu``. Requests
come at random (Poisson) and take random times (exponential): the time in the system is exponential with rate
``f * mu - lambda`` (M/M/1), plus the floor of the model, plus at most one turn of the others on a GPU that is shared in
time. Real services with steadier times do better; requests that come in bursts shorter than a step do worse.

The counters at the end hold what services and fractional jobs got: late requests by that law, waits, moves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from commonwatt.control.fleet.interface import ReplicaDemand
from commonwatt.control.fleet.shared_gpus import GpuMode, Resident, SharedGpus
from commonwatt.model.fleet import WHOLE_MILLI, Fleet, ModelOnType, ServiceModel

__all__ = ["CapCounters", "FleetCounters", "ReplicaSizer", "ServiceCounters", "late_share", "meets_target", "spare_rps"]


def spare_rps(service: ServiceModel, model: ModelOnType, wait_s: float) -> float:
    """Return the requests per second a replica must be faster than its load to meet the target; infinity: it cannot."""
    left_s = service.latency_s - model.floor_s - wait_s
    return -math.log(1.0 - service.quantile) / left_s if left_s > 0 else math.inf


def late_share(service: ServiceModel, model: ModelOnType, served_rps: float, load_rps: float, wait_s: float) -> float:
    """Return the share of requests later than the target on a replica that could serve *served_rps*."""
    left_s = service.latency_s - model.floor_s - wait_s
    if load_rps >= served_rps or left_s <= 0:
        return 1.0
    return math.exp(-(served_rps - load_rps) * left_s)


def meets_target(service: ServiceModel, late: float) -> bool:
    """Whether a share of late requests is within the target's quantile."""
    return late <= 1.0 - service.quantile + 1e-9


class ReplicaSizer:
    """Sizes the replicas of services.

    Parameters
    ----------
    shared
        Whether GPUs may be shared in time; else every replica has a whole GPU.
    quantum_s
        The longest turn of others on a shared GPU.
    headroom
        Factor on the requests seen.
    slowdown
        Longer steps beside a GPU's worth of other work.
    """

    def __init__(self, *, shared: bool, quantum_s: float, headroom: float, slowdown: float) -> None:
        self.shared, self.quantum_s, self.headroom, self.slowdown = shared, quantum_s, headroom, slowdown

    def milli(self, service: ServiceModel, model: ModelOnType, load_rps: float) -> int | None:
        """Return the thousandths of a GPU a replica needs for *load_rps*; ``None``: a whole GPU is not enough."""
        alone = load_rps + spare_rps(service, model, 0.0)
        if alone > model.rate_rps:
            return None
        needed = load_rps + spare_rps(service, model, self.quantum_s)
        if not self.shared or needed >= model.rate_rps:
            return WHOLE_MILLI
        # f * mu / (1 + slowdown * (1 - f)) = needed: the others may fill the rest of the GPU
        part = needed * (1.0 + self.slowdown) / (model.rate_rps + needed * self.slowdown)
        return min(WHOLE_MILLI, max(1, math.ceil(WHOLE_MILLI * part - 1e-9)))

    def demand(self, index: int, service: ServiceModel, now_s: float) -> ReplicaDemand:
        """Return the fewest replicas that meet the target, on the GPU type that needs least; the most, if none do."""
        rate = service.load.seen(now_s) * self.headroom
        by_type: dict[str, tuple[int, int]] = {}
        for gpu_type, model in service.types.items():
            for replicas in range(service.least, service.most + 1):
                milli = self.milli(service, model, rate / replicas)
                if milli is not None:
                    by_type[gpu_type] = replicas, milli
                    break
        if not by_type:
            whole = dict.fromkeys(service.types, WHOLE_MILLI)
            return ReplicaDemand(index, rate, service.most, whole)
        replicas = min(by_type.values(), key=lambda pair: (pair[0] * pair[1], pair[0]))[0]
        sizes = {
            gpu_type: milli
            for gpu_type, model in service.types.items()
            if (milli := self.milli(service, model, rate / replicas)) is not None
        }
        return ReplicaDemand(index, rate, replicas, sizes)


# -- what was served


@dataclass
class ServiceCounters:
    """Counts of one service."""

    requests: float = 0.0
    late: float = 0.0
    busy_s: float = 0.0  # with requests
    met_s: float = 0.0  # of it, in which the quantile met the target
    replica_s: float = 0.0
    moves: int = 0


@dataclass
class CapCounters:
    """Counts under a power cap.

    Attributes
    ----------
    over_w
        By how much the cap is exceeded now; 0: it is not.
    jobs_left
        Whether jobs run that may not be stopped.
    alone_s, beside_jobs_s
        Time above the cap by services alone, and beside such jobs.
    most_over_w
        The most by which it was exceeded.
    stopped_jobs, stopped_fractions
        Jobs and fractional jobs that were stopped to stay below it.
    """

    over_w: float = 0.0
    jobs_left: bool = False
    alone_s: float = 0.0
    beside_jobs_s: float = 0.0
    most_over_w: float = 0.0
    stopped_jobs: int = 0
    stopped_fractions: int = 0

    def settle(self, elapsed_s: float) -> None:
        """Count the time since the last decision."""
        if self.over_w <= 0:
            return
        self.beside_jobs_s += elapsed_s if self.jobs_left else 0.0
        self.alone_s += 0.0 if self.jobs_left else elapsed_s


@dataclass
class FleetCounters:
    """Counts of a run."""

    fleet: Fleet
    services: list[ServiceCounters] = field(default_factory=list)
    began_s: dict[int, float] = field(default_factory=dict)  # of fractional jobs
    ended_s: dict[int, float] = field(default_factory=dict)
    stops: int = 0
    layouts: int = 0
    drained: int = 0
    made_room: int = 0
    unplaced_s: float = 0.0
    phi_s: float = 0.0
    time_shared_s: float = 0.0
    cap: CapCounters = field(default_factory=CapCounters)

    def __post_init__(self) -> None:
        self.services = [ServiceCounters() for _ in self.fleet.services]

    def ended(self, job: int, at_s: float) -> None:
        """A fractional job has done its work."""
        self.ended_s[job] = at_s

    def moved(self, service: int) -> None:
        """A replica is started again elsewhere."""
        self.services[service].moves += 1

    def settle(self, from_s: float, to_s: float, gpus: SharedGpus, lacks: Mapping[int, int]) -> None:
        """Count what happened from *from_s* to *to_s*, in which nothing has changed."""
        elapsed_s = to_s - from_s
        if elapsed_s <= 0:
            return
        self.cap.settle(elapsed_s)
        self.unplaced_s += elapsed_s * sum(lacks.values())
        replicas: dict[int, list[Resident]] = {}
        for resident in gpus.residents.values():
            if resident.service >= 0:
                replicas.setdefault(resident.service, []).append(resident)
        for i, service in enumerate(self.fleet.services):
            own, counters, load = replicas.get(i, []), self.services[i], service.load.at(from_s)
            counters.replica_s += len(own) * elapsed_s
            if load <= 0:
                continue
            late = self._late_rps(gpus, i, own, load)
            counters.requests += load * elapsed_s
            counters.late += late * elapsed_s
            counters.busy_s += elapsed_s
            counters.met_s += elapsed_s * meets_target(service, late / load)
        for gpu in gpus.gpus.values():
            if gpu.phi is not None and gpu.used_as is GpuMode.TIME:
                self.time_shared_s += elapsed_s
                self.phi_s += elapsed_s * gpu.phi

    def _late_rps(self, gpus: SharedGpus, index: int, replicas: list[Resident], load_rps: float) -> float:
        service = self.fleet.services[index]
        late = load_rps - sum(r.load_rps for r in replicas)  # nobody is there to serve these
        for r in replicas:
            model = service.types[gpus.gpus[r.gpu].gpu_type]
            late += r.load_rps * late_share(service, model, r.served_rps, r.load_rps, r.wait_s)
        return max(0.0, min(load_rps, late))
