"""A simulated cluster on which GPUs can be shared among replicas and jobs of a part of a GPU.

A shared GPU holds one GPU of its node under a handle of its own, and draws the power that the controller sets.
Fractional jobs there work at the speeds it sets; their work is kept every ``KEPT_EVERY_S`` seconds of it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from commonwatt.control.engine import Holder
from commonwatt.control.fleet.interface import DeviceShares, FractionEnded, GpuLost, SharedChange, handle_of
from commonwatt.engines.simulated.engine import SimulatedEngine, World
from commonwatt.engines.simulated.events import Priority, Scheduled
from commonwatt.model.errors import EngineError
from commonwatt.model.jobs import JobArrays
from commonwatt.model.nodes import Cluster

__all__ = ["KEPT_EVERY_S", "SharingCluster"]

KEPT_EVERY_S = 600.0
"""Work of a fractional job between two checkpoints, in seconds of a whole GPU."""


@dataclass(slots=True)
class _Fraction:
    gpu: int
    work_gpu_s: float  # in all
    done_gpu_s: float  # at since_s
    kept_gpu_s: float  # when it was started here
    from_s: float
    since_s: float
    speed: float = 0.0
    version: int = 0


class SharingCluster(SimulatedEngine):
    """A ``SharingEngine`` in virtual time."""

    def __init__(self, cluster: Cluster, jobs: JobArrays, world: World, *, now_s: float = 0.0) -> None:
        self._shared: list[SharedChange] = []
        self._node_of: dict[int, int] = {}
        self._fractions: dict[int, _Fraction] = {}
        self._kept: dict[int, float] = {}  # work of fractional jobs that were stopped
        super().__init__(cluster, jobs, world, now_s=now_s)

    def open_gpu(self, gpu: int, node: int) -> float:
        """Take a free GPU of *node*; raises ``EngineError`` if none is free."""
        if self._free[node] < 1:
            msg = f"share a GPU of node {self._cluster.names[node]}: none is free"
            raise EngineError(msg)
        ready_s = self._wake(node)
        self._meter(node)
        self._free[node] -= 1
        self._node_of[gpu] = node
        self._nodes[node].holders.append(Holder(handle_of(gpu), 1, 0.0, ready_s))
        self._draw(node)
        return ready_s

    def close_gpu(self, gpu: int) -> None:
        """Give a shared GPU back."""
        node = self._node_of.pop(gpu)
        self._meter(node)
        own = self._nodes[node]
        own.holders = [holder for holder in own.holders if holder.handle != handle_of(gpu)]
        self._free[node] += 1
        self._draw(node)
        if not own.holders:
            self._left_alone(node)

    def share_gpu(
        self, gpu: int, power_w: float, speeds: Mapping[int, float], shares: DeviceShares,  # noqa: ARG002
    ) -> None:  # fmt: skip
        """Let a shared GPU draw *power_w*, and fractional jobs there work at *speeds*."""
        node = self._node_of[gpu]
        own = self._nodes[node]
        place = next(k for k, holder in enumerate(own.holders) if holder.handle == handle_of(gpu))
        current = own.holders[place]
        self._meter(node)
        own.holders[place] = Holder(current.handle, 1, power_w, current.work_from_s)
        self._draw(node)
        for job, speed in speeds.items():
            self._set_speed(job, self._fractions[job], speed)

    def start_fraction(self, job: int, gpu: int, work_gpu_s: float, from_s: float) -> None:
        """Put a fractional job on a shared GPU, from what it has kept."""
        done = self._kept.pop(job, 0.0)
        self._fractions[job] = _Fraction(gpu, work_gpu_s, done, done, from_s, max(from_s, self.now_s))

    def stop_fraction(self, job: int) -> float:
        """Take a fractional job off its GPU; returns the GPU-seconds of work that are kept."""
        fraction = self._fractions.pop(job)
        self._progress(fraction)
        snapshots = math.floor((fraction.done_gpu_s - fraction.kept_gpu_s) / KEPT_EVERY_S + 1e-9)
        kept = fraction.kept_gpu_s + KEPT_EVERY_S * snapshots if self._world.lose_work else fraction.done_gpu_s
        self._kept[job] = kept
        return kept

    def busy(self, gpu: int) -> Mapping[int, float] | None:  # noqa: ARG002
        """Return ``None``: the controller's own laws say what is simulated."""
        return None

    def serves(self, gpu: int, service: int) -> bool:  # noqa: ARG002
        """Return true: what is placed here serves when the controller expects it to."""
        return True

    def resting(self) -> Collection[int]:
        """Return no nodes: nothing fails to serve here."""
        return ()

    def shared_gpus(self) -> Mapping[int, tuple[int, float]]:
        """Return the node of each shared GPU, and when it can be used."""
        work_from_s = {holder.handle: holder.work_from_s for own in self._nodes for holder in own.holders}
        return {gpu: (node, work_from_s[handle_of(gpu)]) for gpu, node in self._node_of.items()}

    def poll_shared(self) -> Sequence[SharedChange]:
        """What changed on shared GPUs since the last poll."""
        changes, self._shared = self._shared, []
        return changes

    def _has_news(self) -> bool:
        return bool(self._shared) or super()._has_news()

    def _progress(self, fraction: _Fraction) -> None:
        elapsed_s = self.now_s - max(fraction.since_s, fraction.from_s)
        if elapsed_s > 0:
            fraction.done_gpu_s = min(fraction.work_gpu_s, fraction.done_gpu_s + elapsed_s * fraction.speed)
        fraction.since_s = max(fraction.since_s, self.now_s)

    def _set_speed(self, job: int, fraction: _Fraction, speed: float) -> None:
        if fraction.speed == speed:
            return
        self._progress(fraction)
        fraction.speed = speed
        self._version += 1
        fraction.version = self._version
        if speed > 0:
            left_s = (fraction.work_gpu_s - fraction.done_gpu_s) / speed
            at_s = max(self.now_s, fraction.from_s) + left_s
            self._queue.push(at_s, Priority.JOB_END, handle_of(job), fraction.version)

    def _happen(self, event: Scheduled) -> None:
        if event.priority != Priority.JOB_END or event.subject >= 0:
            super()._happen(event)
            return
        job = handle_of(event.subject)  # its own inverse
        fraction = self._fractions.get(job)
        if fraction is not None and fraction.version == event.version:
            del self._fractions[job]
            self._shared.append(FractionEnded(job, self.now_s))

    def _fail(self, n: int) -> None:
        lost = sorted(gpu for gpu, node in self._node_of.items() if node == n)
        for gpu in lost:
            for job in [job for job, fraction in self._fractions.items() if fraction.gpu == gpu]:
                self.stop_fraction(job)
            self.close_gpu(gpu)
            self._shared.append(GpuLost(gpu, self.now_s, f"node {self._cluster.names[n]} went down"))
        super()._fail(n)
