"""GPUs that jobs and tenants have, and recent usage of tenants, which counts for fair share: GPU seconds that decay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from commonwatt.model.arrays import Floats

__all__ = ["AllocatedGpus", "DecayedUsage"]


class AllocatedGpus(Mapping[int, int]):
    """GPUs of jobs by handle, with their sums: what a tick asks for does not take time in proportion to the jobs."""

    def __init__(self) -> None:
        self.total = 0
        self._gpus: dict[int, int] = {}
        self._tenant: dict[int, int] = {}
        self._of_tenant: Floats = np.zeros(1)

    def __getitem__(self, handle: int) -> int:
        return self._gpus[handle]

    def __iter__(self) -> Iterator[int]:
        return iter(self._gpus)

    def __len__(self) -> int:
        return len(self._gpus)

    def of_tenants(self, tenants: int) -> Floats:
        """Return the GPUs of each of the first *tenants* tenants."""
        if len(self._of_tenant) < tenants:
            self._of_tenant = np.append(self._of_tenant, np.zeros(tenants - len(self._of_tenant)))
        return self._of_tenant[:tenants]

    def give(self, handle: int, gpus: int, tenant: int) -> None:
        """Let a job of *tenant* have so many GPUs, instead of those it may have."""
        self.take(handle)
        self._gpus[handle], self._tenant[handle] = gpus, tenant
        self.of_tenants(tenant + 1)[tenant] += gpus
        self.total += gpus

    def take(self, handle: int) -> int:
        """Take all GPUs from a job; returns how many it had."""
        gpus = self._gpus.pop(handle, 0)
        self._of_tenant[self._tenant.pop(handle, 0)] -= gpus
        self.total -= gpus
        return gpus


class DecayedUsage:
    """GPU seconds of each tenant, halved every *half_life_s* seconds; new tenants are added at the end."""

    def __init__(self, half_life_s: float, now_s: float) -> None:
        self.gpu_s: Floats = np.zeros(0)
        self._half_life_s, self._at_s = half_life_s, now_s

    def by_name(self, tenants: Sequence[str]) -> dict[str, float]:
        """Return the usage of *tenants*, in their order."""
        return dict(zip(tenants, self.gpu_s.tolist(), strict=False))

    def resume(self, tenants: Sequence[str], usage: Mapping[str, float], at_s: float) -> None:
        """Continue from the *usage* of *tenants* at *at_s*."""
        self.gpu_s = np.array([usage.get(name, 0.0) for name in tenants])
        self._at_s = at_s

    def skip_time(self, seconds: float) -> None:
        """Leave out this much time."""
        self._at_s += seconds

    def age(self, now_s: float, gpus: Floats) -> None:
        """Decay until *now_s*, and add the *gpus* each tenant had since the last call."""
        if len(self.gpu_s) < len(gpus):
            self.gpu_s = np.append(self.gpu_s, np.zeros(len(gpus) - len(self.gpu_s)))
        elapsed_s = now_s - self._at_s
        if elapsed_s > 0:
            self.gpu_s = self.gpu_s * 0.5 ** (elapsed_s / self._half_life_s)
            self.gpu_s += gpus * elapsed_s
        self._at_s = now_s
