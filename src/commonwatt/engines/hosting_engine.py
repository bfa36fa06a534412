"""What an engine needs that shares GPUs among services: model servers on its nodes, and the front beside it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from commonwatt.control.engine import Holder
from commonwatt.control.fleet.interface import DeviceShares, ServingState, SharedChange
from commonwatt.engines.model_servers import FIRST_SERVER, Hosting, ModelServers, stop_front
from commonwatt.engines.recorded_engine import RecordedEngine, RunT
from commonwatt.engines.replica_supervisor import ReplicaSupervisor
from commonwatt.engines.run_spec import RunSpec
from commonwatt.engines.shared_devices import SharedDevices
from commonwatt.model.errors import EngineError

__all__ = ["HostingEngine"]


class HostingEngine(RecordedEngine[RunT]):
    """An engine on which GPUs can be shared by services, once ``_host`` was called; none are before."""

    supervisor: ReplicaSupervisor | None = None
    _shared: SharedDevices[Any] | None = None

    def _host(self, hosting: Hosting, slots: Sequence[Sequence[int]], servers: ModelServers[Any]) -> None:
        """Share GPUs for *hosting*: the devices of an earlier engine go on. Arguments as of ``SharedDevices``."""
        self._shared = SharedDevices(self._cluster, self._state, hosting, slots, servers, self._now_s)
        self._shared.attach()

    def _supervise(self) -> None:
        """Stop what is not wanted any more; bring the servers in line with what they are to serve, from now on."""
        if self._shared is not None:
            self._shared.stop_unwanted()
            self.supervisor = ReplicaSupervisor(self._shared)

    def _leave_services(self) -> None:
        """Stop looking after servers; they go on."""
        if self._shared is not None:
            self._shared.forget_runs()
        if self.supervisor is not None:
            self.supervisor.close()

    def evict_unplaced(self, *, dry: bool) -> Collection[int]:
        """Stop the front if nothing is hosted any more; model servers of an earlier configuration are swept away."""
        if self._shared is None:
            stop_front(self._state)
        return super().evict_unplaced(dry=dry)

    # -- as of ``ServingEngine``

    def open_gpu(self, gpu: int, node: int) -> float:
        """Share a GPU of *node*; its server starts once one is free. Returns when that may be."""
        self._meter([node])
        return self._devices.open(gpu, node)

    def close_gpu(self, gpu: int) -> None:
        """Stop the server of a shared GPU and give it back."""
        node = self._devices.devices[gpu].node
        self._meter([node])
        self._devices.close(gpu)

    def share_gpu(self, gpu: int, power_w: float, speeds: Mapping[int, float], shares: DeviceShares) -> None:
        """Let a shared GPU serve by *shares*, and count as drawing *power_w*; there are no fractional jobs here."""
        assert not speeds, "fractional jobs are refused with the configuration"
        device = self._devices.devices.get(gpu)
        if device is not None:
            self._meter([device.node])
            self._devices.share(gpu, power_w, shares)

    def start_fraction(self, job: int, gpu: int, work_gpu_s: float, from_s: float) -> None:
        """Refuse: a part of a GPU is not enforced for processes here."""
        msg = f"start fractional job {job} ({work_gpu_s:g} GPU s, from {from_s:g}) on GPU {gpu}: this engine runs none"
        raise EngineError(msg)

    def stop_fraction(self, job: int) -> float:
        """Refuse: there are none."""
        msg = f"stop fractional job {job}: this engine runs none"
        raise EngineError(msg)

    def poll_shared(self) -> Sequence[SharedChange]:
        """What changed on shared GPUs since the last poll."""
        return self._devices.take_changes()

    def serving(self) -> ServingState:
        """Return what the model servers and the front have served."""
        return ServingState() if self.supervisor is None else self.supervisor.state

    def has_shared_news(self) -> bool:
        """Whether ``poll_shared`` has anything to report."""
        return self._shared is not None and self._shared.has_news()

    def busy(self, gpu: int) -> Mapping[int, float] | None:
        """Return the part of a shared GPU's time that each service had when it was measured last."""
        return None if self._shared is None else self._shared.busy(gpu)

    def serves(self, gpu: int, service: int) -> bool:
        """Whether the model of a service is loaded on a shared GPU, at the last look."""
        names = [own.name for own in self._devices.hosting.services]
        return names[service] in self.serving().ready.get(gpu, ())

    def resting(self) -> Collection[int]:
        """Return the nodes whose model servers have failed lately, and are not started again for a while."""
        return () if self._shared is None else self._shared.resting()

    def shared_gpus(self) -> Mapping[int, tuple[int, float]]:
        """Return the node of each shared GPU, and since when it is shared: those of an earlier engine included."""
        return {} if self._shared is None else self._shared.there()

    # -- what the engine asks

    def _free_slots_by(self, free: Callable[[int], int]) -> Callable[[int], list[int]]:
        """Return what numbers the GPUs of a node that a server may have, of which so many are *free*."""

        def numbers(n: int) -> list[int]:
            left = set(range(int(self._cluster.gpus[n]))) - self._devices.taken(n)
            return sorted(left)[: max(0, free(n) + self._devices.waiting(n))]

        return numbers

    def _specs_on(self, n: int) -> Iterable[RunSpec]:
        """Return the specs of jobs on node *n*: model servers are holders of their own."""
        return [spec for spec in super()._specs_on(n) if spec.handle < FIRST_SERVER]

    def _tend_front(self) -> None:
        """Start the front unless it runs; it needs nobody else's answer."""
        if self._shared is not None:
            self._shared.tend_front()

    def _look_at_devices(self) -> None:
        """Notice servers that have ended, and start what is due."""
        if self._shared is not None:
            for device in self._shared.poll():
                self._meter([device.node])

    def _meter(self, nodes: Iterable[int]) -> None:
        there = list(nodes)
        if self._shared is not None and self.supervisor is not None:
            for n in there:
                self._shared.measure(n, self.supervisor.state.device_s)
        super()._meter(there)

    def _service_spans(self) -> list[tuple[float, float, RunSpec]]:
        return [] if self._shared is None else self._shared.spans()

    def _holders(self, n: int) -> list[Holder]:
        own = super()._holders(n)
        return own if self._shared is None else [*own, *self._shared.holders(n)]

    @property
    def _devices(self) -> SharedDevices[Any]:
        if self._shared is None:
            msg = "no GPU is shared here"
            raise EngineError(msg)
        return self._shared
