"""GPUs that jobs and tenants have, recent usage for fair share, and the attained service that schedulers go by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from commonwatt.control.engine import NodeView
from commonwatt.control.job_registry import JobRegistry
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.jobs import Received

__all__ = ["AllocatedGpus", "DecayedUsage", "OnGpus", "ServiceTimes", "TenantShare"]


class AllocatedGpus(Mapping[int, int]):
    """GPUs of jobs by handle, with their sums: what a tick asks for does not take time in proportion to the jobs.

    Two jobs may have the same GPUs, which the registry says in *beside*: these count once, for each tenant half.
    """

    def __init__(self, weights: Floats | None = None, beside: Mapping[int, int] | None = None) -> None:
        self.total = 0
        self._gpus: dict[int, int] = {}
        self._counted: dict[int, tuple[int, float]] = {}  # tenant, and what they count as
        self._of_tenant: Floats = np.zeros(1)
        self._weights = weights  # of each class of nodes
        self._wanted: Mapping[int, int] = {} if beside is None else beside
        self._beside: dict[int, int] = {}  # jobs that have the same GPUs, by each other

    def __getitem__(self, handle: int) -> int:
        return self._gpus[handle]

    def __iter__(self) -> Iterator[int]:
        return iter(self._gpus)

    def __len__(self) -> int:
        return len(self._gpus)

    def of_tenants(self, tenants: int) -> Floats:
        """Return the GPUs of each of the first *tenants* tenants, by the weights of their types."""
        if len(self._of_tenant) < tenants:
            self._of_tenant = np.append(self._of_tenant, np.zeros(tenants - len(self._of_tenant)))
        return self._of_tenant[:tenants]

    def give(self, handle: int, gpus: int, tenant: int, klass: int = -1) -> None:
        """Let a job of *tenant* have so many GPUs of a class of nodes (-1: unknown), instead of those it may have."""
        self.take(handle)
        counted = gpus * (1.0 if self._weights is None or klass < 0 else float(self._weights[klass]))
        self._gpus[handle], self._counted[handle] = gpus, (tenant, counted)
        self.of_tenants(tenant + 1)[tenant] += counted
        self.total += gpus
        if (other := self._wanted.get(handle)) in self._gpus and other is not None:
            self._beside[handle], self._beside[other] = other, handle
            self._count((handle, other), -1)

    def _count(self, pair: tuple[int, int], sign: int) -> None:
        """Count the GPUs of two jobs once more, or once less."""
        self.total += sign * self._gpus[pair[0]]
        for tenant, counted in (self._counted[handle] for handle in pair):
            self._of_tenant[tenant] += sign * counted / 2

    def take(self, handle: int) -> int:
        """Take all GPUs from a job; returns how many it had."""
        if (other := self._beside.pop(handle, None)) is not None:
            del self._beside[other]
            self._count((handle, other), 1)
        gpus = self._gpus.pop(handle, 0)
        tenant, counted = self._counted.pop(handle, (0, 0.0))
        self._of_tenant[tenant] -= counted
        self.total -= gpus
        return gpus


class OnGpus:
    """GPUs of nodes that are on or waking, counted once for each view of the nodes."""

    def __init__(self) -> None:
        self._seen: tuple[NodeView, int] | None = None

    def of(self, view: NodeView) -> int:
        """Return the usable GPUs of the nodes that are on or waking."""
        if self._seen is None or self._seen[0] is not view:
            self._seen = view, int(view.usable_gpus[view.power_state < 0].sum())
        return self._seen[1]


@dataclass(frozen=True, slots=True)
class TenantShare:
    """What a tenant has and has used, and what fairness entitles it to.

    Attributes
    ----------
    allocated_gpus
        GPUs of its running jobs now. These and all below count by the weights of their types (``share_weight``).
    entitled_gpus
        GPUs it was entitled to at the last decision about all jobs; need not be whole.
    used_gpu_s
        Its decayed GPU time.
    used_share
        Its part of the decayed GPU time of all tenants; ``None``: there is none yet.
    entitled_share
        Its part of all weights.
    debt_gpu_s
        Decayed GPU time it has had less than its entitled share; below 0, more. The sum over all tenants is 0.
    """

    name: str
    allocated_gpus: float
    entitled_gpus: float
    used_gpu_s: float
    used_share: float | None
    entitled_share: float
    debt_gpu_s: float


class DecayedUsage:
    """GPU seconds of each tenant, halved every *half_life_s* seconds; new tenants are added at the end.

    ``entitled`` are the GPUs each was entitled to at the last decision about all jobs; ``None``: nobody to any.
    ``at_s`` is the time up to which use counts.
    """

    def __init__(self, half_life_s: float, now_s: float) -> None:
        self.gpu_s: Floats = np.zeros(0)
        self.entitled: Floats | None = None
        self._half_life_s, self.at_s = half_life_s, now_s

    def by_name(self, tenants: Sequence[str]) -> dict[str, float]:
        """Return the usage of *tenants*, in their order."""
        return dict(zip(tenants, self.gpu_s.tolist(), strict=False))

    def resume(self, tenants: Sequence[str], usage: Mapping[str, float], at_s: float) -> None:
        """Continue from the *usage* of *tenants* at *at_s*."""
        self.gpu_s = np.array([usage.get(name, 0.0) for name in tenants])
        self.at_s = at_s

    def skip_time(self, seconds: float) -> None:
        """Leave out this much time, by which the clock was set ahead."""
        self.at_s += seconds

    def age(self, now_s: float, gpus: Floats) -> None:
        """Decay until *now_s*, and add the *gpus* each tenant had since the last call."""
        if len(self.gpu_s) < len(gpus):
            self.gpu_s = np.append(self.gpu_s, np.zeros(len(gpus) - len(self.gpu_s)))
        elapsed_s = now_s - self.at_s
        if elapsed_s > 0:
            self.gpu_s = self.gpu_s * 0.5 ** (elapsed_s / self._half_life_s)
            self.gpu_s += gpus * elapsed_s
        self.at_s = now_s

    def shares(
        self, tenants: Sequence[str], weights: Mapping[str, float], allocated_gpus: Floats, memory: float
    ) -> tuple[TenantShare, ...]:
        """Return the shares of *tenants*, who have *allocated_gpus*; past use counts *memory* times in their debts."""
        if self.entitled is None:
            return ()
        count = len(self.entitled)  # of those there were at that decision
        used = np.zeros(count)
        used[: len(self.gpu_s)] = self.gpu_s[:count]
        weight = np.array([weights.get(name, 1.0) for name in tenants[:count]])
        part, total = weight / weight.sum(), float(used.sum())
        debt = memory * (part * total - used)
        return tuple(
            TenantShare(
                tenants[k], float(allocated_gpus[k]), float(self.entitled[k]), float(used[k]),
                float(used[k]) / total if total > 0 else None, float(part[k]), float(debt[k]),
            )
            for k in range(count)
        )  # fmt: skip


# -- attained service


class ServiceTimes:
    """Seconds and GPU-seconds of every job, by handle, from one decision to the next.

    A job has its GPUs until the next decision: in rounds nobody else gets them earlier, even if it has ended. Unless it
    is *wanted* nothing is noted, as that takes time in proportion to what runs.
    """

    def __init__(self, registry: JobRegistry, now_s: float, *, wanted: bool = True) -> None:
        self._registry, self._at_s, self._wanted = registry, now_s, wanted
        classes = len(registry.cluster.classes)
        self._job_s, self._gpu_s = np.zeros((0, classes)), np.zeros(0)
        self._class_s, self._before = np.zeros(classes), 0
        self._running: tuple[Ints, Ints, Ints] | None = None  # handle, class and GPUs of what the last decision runs

    def received(self, handles: Ints, now_s: float) -> Received | None:
        """Return what *handles* have received up to *now_s*, when a decision is due; ``None`` if it is not wanted."""
        if not self._wanted:
            return None
        self._age(now_s)
        return Received(
            self._job_s[handles], self._gpu_s[handles], self._class_s.copy(), self._before + len(self._registry)
        )

    def decided(self, now_s: float) -> None:
        """Take note of what runs after a decision."""
        if not self._wanted:
            return
        self._age(now_s)
        registry = self._registry
        handles = np.fromiter(registry.nodes, dtype=np.int64, count=len(registry.nodes))
        rows = registry.job("row")[handles]
        gpus = registry.row("width")[rows] * registry.row("per_node")[rows]
        self._running = handles, registry.row("klass")[rows], gpus

    def by_name(self) -> dict[str, object]:
        """Return what an earlier controller has to leave behind: totals, and the rows of active jobs by name."""
        names, active = self._registry.names, sorted(self._registry.active)
        jobs = {names[h]: [*self._job_s[h].tolist(), float(self._gpu_s[h])] for h in active if h < len(self._gpu_s)}
        return {"classes": self._class_s.tolist(), "jobs": self._before + len(names) - len(active), "received": jobs}

    def resume(self, left: Mapping[str, Any], handles: Mapping[str, int]) -> None:
        """Continue from what ``by_name`` returned, if the cluster has as many classes; *handles* by name."""
        if len(left.get("classes", ())) != len(self._class_s):
            return
        self._grow()
        self._class_s[:], self._before = left["classes"], int(left["jobs"])
        for name, row in left["received"].items():
            if name in handles:
                self._job_s[handles[name]] = row[:-1]
                self._gpu_s[handles[name]] = row[-1]

    def _grow(self) -> None:
        more = len(self._registry) - len(self._gpu_s)
        if more > 0:
            more += len(self._gpu_s)  # by half at least: jobs come one by one
            self._job_s = np.concatenate((self._job_s, np.zeros((more, self._job_s.shape[1]))))
            self._gpu_s = np.append(self._gpu_s, np.zeros(more))

    def _age(self, now_s: float) -> None:
        self._grow()
        elapsed_s = now_s - self._at_s
        self._at_s = now_s
        if self._running is None or elapsed_s <= 0:
            return
        handles, klass, gpus = self._running
        self._job_s[handles, klass] += elapsed_s
        self._gpu_s[handles] += elapsed_s * gpus
        np.add.at(self._class_s, klass, elapsed_s)
