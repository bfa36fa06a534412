"""What services and fractional jobs got: requests late by the stated law, waits, moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from commonwatt.control.fleet.shared_gpus import GpuMode, Resident, SharedGpus
from commonwatt.control.fleet.sizing import late_share, meets_target
from commonwatt.model.fleet import Fleet

__all__ = ["FleetTally", "ServiceTally"]


@dataclass
class ServiceTally:
    """Counts of one service."""

    requests: float = 0.0
    late: float = 0.0
    busy_s: float = 0.0  # with requests
    met_s: float = 0.0  # of it, in which the quantile met the target
    replica_s: float = 0.0
    moves: int = 0


@dataclass
class FleetTally:
    """Counts of a run."""

    fleet: Fleet
    services: list[ServiceTally] = field(default_factory=list)
    began_s: dict[int, float] = field(default_factory=dict)  # of fractional jobs
    ended_s: dict[int, float] = field(default_factory=dict)
    stops: int = 0
    layouts: int = 0
    drained: int = 0
    made_room: int = 0
    unplaced_s: float = 0.0
    phi_s: float = 0.0
    time_shared_s: float = 0.0

    def __post_init__(self) -> None:
        self.services = [ServiceTally() for _ in self.fleet.services]

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
        self.unplaced_s += elapsed_s * sum(lacks.values())
        replicas: dict[int, list[Resident]] = {}
        for resident in gpus.residents.values():
            if resident.service >= 0:
                replicas.setdefault(resident.service, []).append(resident)
        for i, service in enumerate(self.fleet.services):
            own, tally, load = replicas.get(i, []), self.services[i], service.load.at(from_s)
            tally.replica_s += len(own) * elapsed_s
            if load <= 0:
                continue
            late = self._late_rps(gpus, i, own, load)
            tally.requests += load * elapsed_s
            tally.late += late * elapsed_s
            tally.busy_s += elapsed_s
            tally.met_s += elapsed_s * meets_target(service, late / load)
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
