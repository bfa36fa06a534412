"""The GPUs that are shared, who is on them, and whose energy that was.

A shared GPU has one row in the ledger of its node. That row is divided among its residents in integers, in proportion
to the power of what they did plus the idle power of what they have reserved; what nobody has reserved is idle. So all
rows still sum to the meter, whatever is shared with whom.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from commonwatt.control.fleet.consolidation import SharedRoom
from commonwatt.control.fleet.interface import DeviceShares, Instance, handle_of
from commonwatt.control.ledger import Account, Ledger
from commonwatt.model.arrays import Floats
from commonwatt.model.fleet import WHOLE_MILLI, ServiceModel
from commonwatt.model.nodes import Cluster

__all__ = ["FRACTIONS", "SERVICES", "GpuMode", "Resident", "SharedGpu", "SharedGpus", "Weight"]

SERVICES, FRACTIONS = "services", "fractional jobs"
"""Rows of the ledger."""


class GpuMode(StrEnum):
    """How a GPU is used that whole jobs do not have."""

    WHOLE = "whole"
    MIG = "mig"
    TIME = "time"


@dataclass(slots=True)
class Resident:
    """A replica of a service, or a fractional job, on a shared GPU.

    Attributes
    ----------
    service, job
        Which; -1: it is of the other kind.
    milli
        Thousandths of the GPU it has reserved; on MIG, of its compute.
    ready_s
        When it begins to work.
    until_s
        When it leaves because another takes its place; infinity: it stays.
    instance
        Its MIG instance; empty: none.
    rate_rps
        What a replica could serve if it had the GPU, or its instance, to itself.
    part, busy
        Its part of the GPU's time, and what it uses of it.
    served_rps, load_rps, wait_s
        What a replica can serve, what it gets, and the turn of others it may wait for.
    power_w
        Power of its GPU for what it does, beyond idle.
    """

    key: int
    gpu: int
    service: int
    job: int
    milli: int
    ready_s: float
    until_s: float = math.inf
    instance: str = ""
    rate_rps: float = 0.0
    part: float = 0.0
    busy: float = 0.0
    served_rps: float = 0.0
    load_rps: float = 0.0
    wait_s: float = 0.0
    power_w: float = 0.0


class Weight(NamedTuple):
    """A resident's part of what its GPU is charged: its power, and its reserved thousandths."""

    service: int
    job: int
    milli: int
    power_w: float


@dataclass(slots=True)
class SharedGpu:
    """A GPU that is shared."""

    gpu: int
    node: int
    gpu_type: str
    ready_s: float
    cut: bool  # by MIG
    residents: list[int] = field(default_factory=list)
    words: tuple[str, ...] = ()  # its MIG instances
    phi: float | None = None
    weights: tuple[Weight, ...] = ()  # how its energy is divided until they are set anew; the rest is idle
    free_w: float = 1.0
    used_as: GpuMode = GpuMode.TIME  # as long as these weights hold


class SharedGpus:
    """All shared GPUs and their residents, by number."""

    def __init__(self, cluster: Cluster) -> None:
        self.gpus: dict[int, SharedGpu] = {}
        self.residents: dict[int, Resident] = {}
        self.service_accounts: dict[int, Account] = {}
        self.job_accounts: dict[int, Account] = {}
        self._gone: dict[str, Any] = {}  # accounts of services that there are no more
        self.gpu_us = dict.fromkeys(GpuMode, 0)  # of GPUs, by how they were used
        self.reserved_us = 0
        self._cluster = cluster
        self._next_gpu = self._next_resident = 0

    def open(self, node: int, gpu_type: str, ready_s: float, *, cut: bool) -> SharedGpu:
        """Add a GPU of *node*."""
        gpu = SharedGpu(self._next_gpu, node, gpu_type, ready_s, cut)
        self.gpus[gpu.gpu] = gpu
        self._next_gpu += 1
        return gpu

    @property
    def next_gpu(self) -> int:
        """Number of the GPU that is opened next."""
        return self._next_gpu

    def enter(self, gpu: int, milli: int, ready_s: float, *, service: int = -1, job: int = -1) -> Resident:
        """Put a replica or a fractional job on a GPU."""
        resident = Resident(self._next_resident, gpu, service, job, milli, ready_s)
        self._next_resident += 1
        self.residents[resident.key] = resident
        self.gpus[gpu].residents.append(resident.key)
        return resident

    def leave(self, key: int) -> Resident:
        """Take a resident off its GPU."""
        resident = self.residents.pop(key)
        self.gpus[resident.gpu].residents.remove(key)
        return resident

    def on(self, gpu: SharedGpu) -> list[Resident]:
        """Return the residents of a GPU, in order of arrival."""
        return [self.residents[key] for key in gpu.residents]

    def of_service(self, service: int) -> Iterator[Resident]:
        """Yield the replicas of a service, the oldest first."""
        return (r for r in self.residents.values() if r.service == service)

    def free_milli(self, gpu: SharedGpu) -> int:
        """Return the thousandths of a GPU nobody has reserved; none of one that is cut."""
        return 0 if gpu.cut else WHOLE_MILLI - sum(r.milli for r in self.on(gpu))

    def mode(self, gpu: SharedGpu) -> GpuMode:
        """Return how a GPU is used."""
        if gpu.cut:
            return GpuMode.MIG
        alone = len(gpu.residents) == 1 and self.residents[gpu.residents[0]].milli >= WHOLE_MILLI
        return GpuMode.WHOLE if alone else GpuMode.TIME

    def is_draining(self, gpu: SharedGpu) -> bool:
        """Whether a resident of a GPU leaves as another takes its place."""
        return any(r.until_s < math.inf for r in self.on(gpu))

    def instances(self, gpu: SharedGpu) -> tuple[Instance, ...]:
        """Return the MIG instances of a GPU with what is on them."""
        by_word = {r.instance: r for r in self.on(gpu)}
        return tuple(
            Instance(word, -1, 0.0, 0.0)
            if (r := by_word.get(word)) is None
            else Instance(word, r.service, r.milli / WHOLE_MILLI, r.rate_rps)
            for word in gpu.words
        )

    def room(self, gpu: SharedGpu, now_s: float) -> SharedRoom:
        """Return what is on a GPU that is shared in time: replicas that may move, and the others."""
        own = self.on(gpu)
        free = [r for r in own if r.service >= 0 and r.ready_s <= now_s and r.until_s == math.inf]
        others_milli = sum(r.milli for r in own) - sum(r.milli for r in free)
        return SharedRoom(gpu.gpu, gpu.gpu_type, tuple((r.key, r.service, r.milli) for r in free), others_milli)

    def shares(self, gpu: SharedGpu) -> DeviceShares:
        """Return by what the time of a GPU is divided among services."""
        milli: dict[int, int] = {}
        for resident in self.on(gpu):
            if resident.service >= 0:
                milli[resident.service] = milli.get(resident.service, 0) + resident.milli
        return DeviceShares(milli, gpu.phi)

    def reserved(self, resident: Resident) -> float:
        """Return the part of its GPU a resident has reserved."""
        return resident.milli / WHOLE_MILLI

    def power_w(self) -> Floats:
        """Return what the shared GPUs of each node draw beyond its idle power, W. Shape [N]."""
        drawn_w = np.zeros(len(self._cluster))
        for resident in self.residents.values():
            drawn_w[self.gpus[resident.gpu].node] += resident.power_w
        return drawn_w

    def weigh(self, gpu: SharedGpu, power_w: Mapping[int, float]) -> None:
        """Set how the energy of a GPU is divided from now on, by the power of what each resident does."""
        kind = self._cluster.classes[self._cluster.klass[gpu.node]]
        idle_w = kind.idle_w / kind.gpus
        residents = self.on(gpu)
        gpu.weights = tuple(
            Weight(r.service, r.job, r.milli, power_w.get(r.key, 0.0) + idle_w * self.reserved(r)) for r in residents
        )
        gpu.free_w = max(0.0, 1.0 - sum(self.reserved(r) for r in residents)) * idle_w
        gpu.used_as = self.mode(gpu)

    def weigh_measured(
        self, services: Sequence[ServiceModel], busy_of: Callable[[int], Mapping[int, float] | None]
    ) -> None:
        """Set how energy is divided by the part of each GPU's time that services really have, where that is known."""
        for gpu in self.gpus.values():
            if gpu.cut or (busy := busy_of(gpu.gpu)) is None:
                continue
            milli = self.shares(gpu).milli
            power_of = {
                r.key: busy.get(r.service, 0.0) * r.milli / max(1, milli[r.service])
                * services[r.service].types[gpu.gpu_type].power_w
                for r in self.on(gpu) if r.service >= 0
            }  # fmt: skip
            self.weigh(gpu, power_of)

    # -- for another controller to go on from

    def state(self, services: Sequence[ServiceModel]) -> dict[str, Any]:
        """Return the shared GPUs, the replicas on them, and the accounts of services, by names; no fractional jobs."""
        names = [service.name for service in services]
        replicas = [r for r in self.residents.values() if r.service >= 0]
        return {
            "next": [self._next_gpu, self._next_resident],
            "gpus": [
                {
                    "gpu": gpu.gpu, "free_w": gpu.free_w,
                    "weights": [[names[w.service], w.milli, w.power_w] for w in gpu.weights if w.service >= 0],
                }
                for gpu in self.gpus.values()
            ],
            "replicas": [
                {
                    "key": r.key, "gpu": r.gpu, "service": names[r.service], "milli": r.milli, "ready_s": r.ready_s,
                    "until_s": None if r.until_s == math.inf else r.until_s,
                }
                for r in replicas
            ],
            "accounts": self._gone
            | {names[i]: vars(account).copy() for i, account in sorted(self.service_accounts.items())},
        }  # fmt: skip

    def resume(
        self, state: Mapping[str, Any], services: Sequence[ServiceModel], there: Mapping[int, tuple[int, float]]
    ) -> None:
        """Continue from a ``state``: with GPUs that are *there* (node, and when it can be used), and known services."""
        at = {service.name: i for i, service in enumerate(services)}
        self._next_gpu, self._next_resident = state.get("next", (0, 0))
        self._next_gpu = max([self._next_gpu, *(gpu + 1 for gpu in there)])
        for number, (node, ready_s) in sorted(there.items()):
            gpu_type = self._cluster.classes[self._cluster.klass[node]].gpu_type
            self.gpus[number] = SharedGpu(number, node, gpu_type, ready_s, cut=False)
        for row in state.get("gpus", ()):
            if row["gpu"] in there:
                gpu = self.gpus[row["gpu"]]
                weights = [(at[name], milli, power_w) for name, milli, power_w in row["weights"] if name in at]
                gpu.weights = tuple(Weight(i, -1, milli, power_w) for i, milli, power_w in weights)
                gpu.free_w = row["free_w"]
        for row in state.get("replicas", ()):
            i, shared = at.get(row["service"]), self.gpus.get(row["gpu"])
            if i is None or shared is None or shared.gpu_type not in services[i].types:
                continue
            until_s = math.inf if row["until_s"] is None else row["until_s"]
            resident = Resident(row["key"], shared.gpu, i, -1, row["milli"], row["ready_s"], until_s)
            resident.rate_rps = services[i].types[shared.gpu_type].rate_rps
            self.residents[resident.key] = resident
            shared.residents.append(resident.key)
        accounts = state.get("accounts", {})
        self.service_accounts = {at[n]: Account(**row) for n, row in accounts.items() if n in at}
        self._gone = {n: row for n, row in accounts.items() if n not in at}

    def divide(self, ledger: Ledger) -> None:
        """Divide what shared GPUs were charged since the last call among those that were on them."""
        for gpu in self.gpus.values():
            account = ledger.jobs.pop(handle_of(gpu.gpu), None)
            if account is not None:
                self._divide(gpu, account, ledger)

    def _divide(self, gpu: SharedGpu, left: Account, ledger: Ledger) -> None:
        whole_us, remaining = left.gpu_us, sum(weight.power_w for weight in gpu.weights) + gpu.free_w
        self.gpu_us[gpu.used_as] += whole_us
        for weight in gpu.weights:
            part = left.take(min(1.0, weight.power_w / remaining)) if remaining > 0 else Account()
            gpu_us = whole_us * weight.milli // WHOLE_MILLI
            left.gpu_us += part.gpu_us - gpu_us
            part.gpu_us = gpu_us
            self.reserved_us += gpu_us
            remaining -= weight.power_w
            own, key, row = (
                (self.service_accounts, weight.service, SERVICES)
                if weight.service >= 0
                else (self.job_accounts, weight.job, FRACTIONS)
            )
            own.setdefault(key, Account()).add(part)
            ledger.overhead[row].add(part)
        ledger.idle.add(left)
