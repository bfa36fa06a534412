"""Load that tenants put on a device in a run: who submits what, when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

import numpy as np

from commonwatt.model.timeslice_config import BackloggedLoad, PeriodicLoad, SharingTenant

__all__ = ["LoadGenerator"]

Submit = Callable[[str, int], None]


class LoadGenerator:
    """Arrivals of all tenants in order of time; backlogged tenants answer each end with another request.

    Parameters
    ----------
    submit
        Called with tenant and queue whenever a request arrives.
    end_ns
        Nothing arrives from then on.
    """

    def __init__(
        self, tenants: tuple[SharingTenant, ...], submit: Submit, end_ns: int, rng: np.random.Generator
    ) -> None:
        self._tenants = {tenant.name: tenant for tenant in tenants}
        self._submit = submit
        self._events: list[tuple[int, int, SharingTenant]] = []
        self._until = {
            tenant.name: end_ns if tenant.until_s is None else min(end_ns, round(tenant.until_s * 1e9))
            for tenant in tenants
        }
        self._gaps: dict[str, Iterator[int]] = {}
        self._turn = dict.fromkeys(self._tenants, 0)
        seeds = rng.spawn(len(tenants))
        for number, (tenant, own) in enumerate(zip(tenants, seeds, strict=True)):
            self._gaps[tenant.name] = _gaps(tenant, own)
            heappush(self._events, (round(tenant.from_s * 1e9), number, tenant))

    def next_ns(self) -> int | None:
        """Return when the next request arrives; ``None`` if none does unless another ends."""
        return self._events[0][0] if self._events else None

    def arrive(self, now_ns: int) -> None:
        """Submit all that has arrived by *now_ns*."""
        while self._events and self._events[0][0] <= now_ns:
            at_ns, number, tenant = heappop(self._events)
            if at_ns >= self._until[tenant.name]:
                continue
            load = tenant.load
            if isinstance(load, BackloggedLoad):
                for queue in range(tenant.queues):
                    for _ in range(load.depth):
                        self._submit(tenant.name, queue)
                continue
            self._submit(tenant.name, self._turn[tenant.name])
            self._turn[tenant.name] = (self._turn[tenant.name] + 1) % tenant.queues
            heappush(self._events, (at_ns + next(self._gaps[tenant.name]), number, tenant))

    def ended(self, name: str, queue: int, now_ns: int) -> None:
        """Hear that a request has ended; a backlogged tenant sends the next."""
        if isinstance(self._tenants[name].load, BackloggedLoad) and now_ns < self._until[name]:
            self._submit(name, queue)


def _gaps(tenant: SharingTenant, rng: np.random.Generator) -> Iterator[int]:
    load = tenant.load
    while True:
        if isinstance(load, PeriodicLoad):
            yield max(1, round(load.interval_s * 1e9))
        elif not isinstance(load, BackloggedLoad):
            yield max(1, round(rng.exponential(1 / load.rate_per_s) * 1e9))
        else:
            return
