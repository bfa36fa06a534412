"""Recent usage of tenants, which counts for fair share: GPU seconds that decay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from commonwatt.model.arrays import Floats, Ints

__all__ = ["DecayedUsage"]


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

    def age(self, now_s: float, tenants: int, gpus: Mapping[int, int], tenant_of: Ints) -> None:
        """Decay until *now_s*, and add the GPUs jobs had since the last call.

        Parameters
        ----------
        tenants
            How many there are now.
        gpus, tenant_of
            GPUs by handle of the job, and the tenant of each handle.
        """
        if len(self.gpu_s) < tenants:
            self.gpu_s = np.append(self.gpu_s, np.zeros(tenants - len(self.gpu_s)))
        elapsed_s = now_s - self._at_s
        if elapsed_s > 0:
            self.gpu_s = self.gpu_s * 0.5 ** (elapsed_s / self._half_life_s)
            handles = np.fromiter(gpus.keys(), dtype=np.int64, count=len(gpus))
            counts = np.fromiter(gpus.values(), dtype=float, count=len(gpus))
            self.gpu_s += np.bincount(tenant_of[handles], counts, minlength=len(self.gpu_s)) * elapsed_s
        self._at_s = now_s
