"""The time of a shared GPU, divided by a timeslicing policy; raised to more fairness in time where latency needs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from commonwatt.control.fleet.interface import TimeSlices
from commonwatt.control.fleet.shared_gpus import Resident, SharedGpu, SharedGpus
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.fleet import WHOLE_MILLI, Fleet, SharingSpec
from commonwatt.model.nodes import Cluster
from commonwatt.timeslicing import QuantumProblem, make_policy

__all__ = ["GpuSlicer", "GpuWork", "Sharer", "slices_of"]

UNITS = 100 * WHOLE_MILLI
"""Units of a quantum: a hundredth of a thousandth of it each."""
STEPS = 5
"""Values of phi that are tried between the stated one and 1."""


@dataclass(frozen=True)
class Sharer:
    """A resident as the division of time sees it.

    Attributes
    ----------
    milli
        Reserved thousandths of the GPU: its weight.
    most_milli
        Thousandths it can use.
    power_w
        Power of the GPU while it works for it.
    needs
        Least part of the GPU's time it needs to keep what it was promised; 0 for a job.
    """

    milli: int
    most_milli: int
    power_w: float
    needs: float = 0.0


def slices_of(sharers: Sequence[Sharer], spec: SharingSpec) -> TimeSlices:
    """Divide a quantum among *sharers* as *spec* says.

    With ``etf``, phi is the stated one, or the least of a few values up to 1 at which every service has what it needs;
    at 1 each has its reserved part at least.
    """
    if not sharers:
        return TimeSlices.empty()
    equal = spec.slices == "equal"
    problem = QuantumProblem.make(
        UNITS,
        [1.0 if equal else float(sharer.milli) for sharer in sharers],
        [max(1.0, sharer.power_w) for sharer in sharers],
        [sharer.most_milli * UNITS // WHOLE_MILLI for sharer in sharers],
    )
    if spec.slices != "etf":
        return TimeSlices(_parts(make_policy("tf" if equal else spec.slices, 1.0).slices, problem), None)
    needs = np.array([sharer.needs for sharer in sharers])
    for phi in np.linspace(spec.phi, 1.0, STEPS + 1).tolist():
        parts = _parts(make_policy("etf", phi).slices, problem)
        if (parts >= needs - 1e-9).all():
            break
    return TimeSlices(parts, phi)


def _parts(divide: Callable[[QuantumProblem], Ints], problem: QuantumProblem) -> Floats:
    return np.asarray(divide(problem), dtype=float) / UNITS


@dataclass
class GpuWork:
    """What a shared GPU does from now on: its power, that of each resident, and the speed of each fractional job."""

    power_of: dict[int, float] = field(default_factory=dict)
    speeds: dict[int, float] = field(default_factory=dict)

    @property
    def power_w(self) -> float:
        """Power of the whole GPU beyond idle."""
        return sum(self.power_of.values())


class GpuSlicer:
    """Divides the time of shared GPUs, and says what that gives: latency of services, speed of jobs, power.

    What a service has reserved and does not use goes to the fractional jobs beside it, up to what they can use.
    """

    def __init__(self, fleet: Fleet, cluster: Cluster, gpus: SharedGpus) -> None:
        self._fleet, self._cluster, self._gpus = fleet, cluster, gpus
        self.sharing = fleet.sharing

    def slice(self, numbers: Sequence[int], loads: Mapping[int, float], now_s: float) -> dict[int, GpuWork]:
        """Return what the GPUs *numbers* do from now on, with *loads* of services in requests per second.

        All replicas of a service on these GPUs share its requests in proportion to what they can serve.
        """
        ready: dict[int, list[Resident]] = {}
        for number in numbers:
            gpu = self._gpus.gpus[number]
            ready[number] = self._divide(gpu, now_s)
        self._spread(ready, loads)
        return {number: self._work(self._gpus.gpus[number], residents) for number, residents in ready.items()}

    def _divide(self, gpu: SharedGpu, now_s: float) -> list[Resident]:
        """Give each resident that is ready its part of the time; returns these."""
        ready = []
        for resident in self._gpus.on(gpu):
            resident.part = resident.busy = resident.served_rps = resident.load_rps = resident.wait_s = 0.0
            if resident.ready_s <= now_s:
                ready.append(resident)
        gpu.phi = None
        if gpu.cut:
            for resident in ready:
                resident.part, resident.served_rps = self._gpus.reserved(resident), resident.rate_rps
            return ready
        slices = slices_of([self._sharer(gpu, resident) for resident in ready], self.sharing)
        gpu.phi = slices.phi
        for resident, part in zip(ready, slices.parts.tolist(), strict=True):
            resident.part = part
            resident.served_rps = part * resident.rate_rps
            resident.wait_s = self._fleet.sharing.quantum_s * (float(slices.parts.sum()) - part)
        return ready

    def _sharer(self, gpu: SharedGpu, resident: Resident) -> Sharer:
        if resident.service >= 0:
            model = self._fleet.services[resident.service].types[gpu.gpu_type]
            return Sharer(resident.milli, resident.milli, model.power_w, self._gpus.reserved(resident))
        return Sharer(resident.milli, self._most_milli(resident.job), self._gpu_w(gpu))

    def _most_milli(self, job: int) -> int:
        return self._fleet.most_milli(self._fleet.jobs[job])

    def _gpu_w(self, gpu: SharedGpu) -> float:
        return self._cluster.classes[self._cluster.klass[gpu.node]].gpu_w

    def spare_w(self) -> float:
        """Return how much more shared GPUs would draw if all on them used what they may, W."""
        spare_w = 0.0
        for gpu in self._gpus.gpus.values():
            spare_w += max(0.0, self._most_w(gpu) - sum(r.power_w for r in self._gpus.on(gpu)))
        return spare_w

    def _most_w(self, gpu: SharedGpu) -> float:
        """Return what a shared GPU draws beyond idle if all on it use what they may, W."""
        most = [(r.milli, self._fleet.services[r.service].types[gpu.gpu_type].power_w) if r.service >= 0 else
                (self._most_milli(r.job), self._gpu_w(gpu)) for r in self._gpus.on(gpu)]  # fmt: skip
        together_w = sum(milli * power_w for milli, power_w in most) / WHOLE_MILLI
        return min(together_w, max((power_w for _, power_w in most), default=0.0))

    def job_w(self, job: int, node: int) -> float:
        """Return what a fractional job draws on a GPU of *node* if it uses what it may, W."""
        return self._most_milli(job) * self._cluster.classes[self._cluster.klass[node]].gpu_w / WHOLE_MILLI

    def _spread(self, ready: Mapping[int, list[Resident]], loads: Mapping[int, float]) -> None:
        """Spread the requests of each service over its replicas."""
        replicas: dict[int, list[Resident]] = {}
        for residents in ready.values():
            for resident in residents:
                if resident.service >= 0:
                    replicas.setdefault(resident.service, []).append(resident)
        for service, own in replicas.items():
            can = sum(resident.served_rps for resident in own)
            for resident in own:
                resident.load_rps = loads[service] * resident.served_rps / can if can > 0 else 0.0

    def _work(self, gpu: SharedGpu, residents: Sequence[Resident]) -> GpuWork:
        """Set what each resident uses, slowed down by the others, and return what the GPU does."""
        for resident in residents:
            used = resident.load_rps / resident.served_rps if resident.served_rps > 0 else 0.0
            resident.busy = resident.part if resident.job >= 0 else resident.part * min(1.0, used)
        if not gpu.cut:
            self._give_unused(residents)
        total = sum(resident.busy for resident in residents)
        slower = {r.key: 1.0 if gpu.cut else 1.0 + self._fleet.slowdown * (total - r.busy) for r in residents}
        for resident in residents:
            if resident.service >= 0:
                resident.served_rps /= slower[resident.key]
                resident.busy = min(resident.part, resident.busy * slower[resident.key])
        if not gpu.cut:
            _take_back(residents)
        work = GpuWork()
        for resident in residents:
            if resident.service >= 0:
                model = self._fleet.services[resident.service].types[gpu.gpu_type]
                work.power_of[resident.key] = resident.busy * model.power_w
            else:
                work.speeds[resident.job] = resident.busy / slower[resident.key]
                work.power_of[resident.key] = resident.busy * self._gpu_w(gpu)
            resident.power_w = work.power_of[resident.key]
        return work

    def _give_unused(self, residents: Sequence[Resident]) -> None:
        """Give the time that services do not use to the jobs, in proportion to what they have reserved."""
        left = 1.0 - sum(resident.busy for resident in residents)
        hungry = [r for r in residents if r.job >= 0 and r.busy < self._most_milli(r.job) / WHOLE_MILLI]
        while left > 1e-9 and hungry:
            reserved = sum(r.milli for r in hungry)
            most = {r.key: self._most_milli(r.job) / WHOLE_MILLI for r in hungry}
            share = {r.key: min(most[r.key] - r.busy, left * r.milli / reserved) for r in hungry}
            for r in hungry:
                r.busy += share[r.key]
            left -= sum(share.values())
            hungry = [r for r in hungry if r.busy < most[r.key] - 1e-12]


def _take_back(residents: Sequence[Resident]) -> None:
    """Take time beyond a whole GPU from what jobs have beyond their part: slowed by them, services need more."""
    excess = sum(resident.busy for resident in residents) - 1.0
    extra = {r.key: max(0.0, r.busy - r.part) for r in residents if r.job >= 0}
    given = sum(extra.values())
    if excess > 0 and given > 0:
        for resident in residents:
            resident.busy -= extra.get(resident.key, 0.0) * min(1.0, excess / given)
