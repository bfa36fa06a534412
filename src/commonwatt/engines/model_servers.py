"""Model servers of shared devices: what they are to serve, and how an engine runs them.

A server is ``commonwatt timeslice serve`` with a configuration of its own; every service is its tenant.
"""

from __future__ import annotations

import logging
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

from commonwatt.engines.local.folder import End, RunFolder
from commonwatt.engines.local.run import LocalRun
from commonwatt.engines.run_spec import RunSpec
from commonwatt.model.errors import EngineError
from commonwatt.model.timeslice_file import PolicyName

__all__ = [
    "FIRST_SERVER",
    "HostedService",
    "Hosting",
    "LocalServers",
    "ModelServers",
    "RunT",
    "ServerRun",
    "runs_in",
    "server_settings",
    "stop_front",
    "stop_local",
    "stop_services",
]

log = logging.getLogger("commonwatt.engines")

FIRST_SERVER = 10**15
"""Handles from here on are of model servers where jobs have handles, too: no store has counted so many jobs."""

_DRAIN_S = 5.0
"""Time for a server to answer what it has accepted."""


@dataclass(frozen=True)
class HostedService:
    """A service as a server has it: its model, its latency target, and its power by GPU type."""

    name: str
    model_file: str  # absolute
    latency_s: float
    power_w: Mapping[str, float]


@dataclass(frozen=True)
class Hosting:
    """What devices are shared for: services, how their time is divided, and where the front listens."""

    services: tuple[HostedService, ...]
    policy: PolicyName
    equal: bool  # slices, whatever is reserved
    phi: float
    quantum_s: float
    host: str
    port: int
    threads: int = 1
    segment_s: float | None = 0.002
    python: str = sys.executable  # of the machines with the devices
    image: str | None = None  # where servers run in containers; that of jobs if not given
    addresses: Mapping[str, str] = field(default_factory=dict)  # by node, where the engine does not know better
    device: Literal["cpu", "cuda"] = "cpu"
    key: str | None = field(default=None, repr=False)  # that clients of the front send

    def _device(self) -> dict[str, Any]:
        """Return the device of a server: the only GPU it sees, or a CPU device."""
        own = {"index": 0} if self.device == "cuda" else {"threads": self.threads}
        return {"kind": self.device, **own, "segment_s": self.segment_s}

    def server(
        self, gpu_type: str, keys: Mapping[str, str], operator_key: str, measured: Path, host: str
    ) -> dict[str, Any]:  # fmt: skip
        """Return the configuration of a device's server: every service is its tenant, none is loaded yet.

        Models are cut as in the folder *measured*, so that all servers cut them alike. It listens on *host*.
        """
        tenants = [
            {
                "name": service.name, "key": keys[service.name], "power_w": service.power_w[gpu_type],
                "models": [{"name": service.name, "path": service.model_file, "load_at_start": False}],
            }
            for service in self.services if service.power_w.get(gpu_type)
        ]  # fmt: skip
        return {
            "device": self._device(),
            "policy": self.policy, "phi": self.phi, "quantum_s": self.quantum_s, "tenants": tenants,
            "measured": str(measured),
            "server": {
                "host": host, "rest_port": 0, "grpc_port": None, "operator_key": operator_key,
                "drain_s": _DRAIN_S,
            },
        }  # fmt: skip


def server_settings(hosting: Hosting, milli: Mapping[str, int], phi: float | None) -> dict[str, Any]:
    """Return the settings of a server by which its device is divided among services with *milli* thousandths of it."""
    weights = {name: {"weight": 1.0 if hosting.equal else float(parts)} for name, parts in sorted(milli.items())}
    changed: dict[str, Any] = {"policy": hosting.policy, "quantum_s": hosting.quantum_s, "tenants": weights}
    return changed if phi is None else {**changed, "phi": phi}


class ServerRun(Protocol):
    """The run of a model server."""

    @property
    def folder(self) -> RunFolder:
        """Its records."""
        ...

    @property
    def spec(self) -> RunSpec:
        """What is run."""
        ...


RunT = TypeVar("RunT", bound=ServerRun)


class ModelServers(ABC, Generic[RunT]):
    """How an engine runs model servers.

    Their handles begin at ``first_handle``. They print their output, too, where it is to be seen elsewhere (``echo``).
    """

    first_handle = 0
    echo = False
    look_s: float | None = None
    """How often a server checks whether it was given up; ``None``: it is our child."""

    @abstractmethod
    def free_slots(self, node: int) -> Sequence[int]:
        """Return the numbers of the GPUs of a node that nobody has."""

    @abstractmethod
    def host(self, node: int) -> str:
        """Return the address on which a server of a node listens."""

    def environment(self, slot: int) -> dict[str, str]:  # noqa: ARG002
        """Return the variables by which a server sees the GPU of a slot alone; none where others see to it."""
        return {}

    @abstractmethod
    def adopt(self, folder: RunFolder, spec: RunSpec) -> RunT:
        """Return the run with these records, which an earlier engine ordered."""

    def give_up(self, folder: RunFolder, spec: RunSpec) -> None:
        """Stop a run of an earlier engine that is not wanted any more, if it is a process of this machine.

        What a scheduler has of ours and nobody wants is cancelled at its next look.
        """
        if spec.handle < FIRST_SERVER:
            stop_local(LocalRun(folder, spec))

    @abstractmethod
    def start(self, folder: RunFolder, spec: RunSpec) -> RunT:
        """Start a run; one that is refused has ended. Raises ``EngineDownError`` if nobody answers."""

    @abstractmethod
    def ended(self, run: RunT) -> End | None:
        """Return how a run ended; ``None``: it has not, as far as is known."""

    @abstractmethod
    def stop(self, run: RunT) -> bool:
        """Stop and release a run; returns whether it is over. One that is not keeps its GPU until it is."""

    @abstractmethod
    def release(self, run: RunT) -> None:
        """Release what is kept for a run that has ended."""


class LocalServers(ModelServers[LocalRun]):
    """Model servers as processes of this machine."""

    def __init__(self, free_slots: Callable[[int], Sequence[int]]) -> None:
        self._free_slots = free_slots

    def free_slots(self, node: int) -> Sequence[int]:
        """Return the slots of a node that nobody has."""
        return self._free_slots(node)

    def host(self, node: int) -> str:  # noqa: ARG002
        """Return the loopback address."""
        return "127.0.0.1"

    def environment(self, slot: int) -> dict[str, str]:
        """Return the variables by which a server sees the GPU of a slot alone."""
        return {"CUDA_VISIBLE_DEVICES": str(slot), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def adopt(self, folder: RunFolder, spec: RunSpec) -> LocalRun:
        """Return the run with these records."""
        return LocalRun(folder, spec)

    def start(self, folder: RunFolder, spec: RunSpec) -> LocalRun:
        """Start a process."""
        run = LocalRun(folder, spec)
        run.launch()
        return run

    def ended(self, run: LocalRun) -> End | None:
        """Return how a run ended."""
        return run.glance()

    def stop(self, run: LocalRun) -> bool:
        """Stop a run and wait for its end; one that cannot be killed is left."""
        return stop_local(run)

    def release(self, run: LocalRun) -> None:
        """Release what is kept for a run."""
        run.close()


def stop_services(state: Path) -> int:
    """Stop all model servers and the front that have records in the engine's folder *state*; returns how many ran.

    The servers have to be processes of this machine.
    """
    running = [*_running(state, "front"), *_running(state, "runs")]
    for run in running:
        run.terminate(signal.SIGTERM)
    for run in running:
        stop_local(run)
    _forget_devices(state)
    return len(running)


def stop_front(state: Path) -> int:
    """Stop the front that has a record in the engine's folder *state*, and forget all devices; returns how many ran."""
    running = _running(state, "front")
    for run in running:
        stop_local(run)
    _forget_devices(state)
    return len(running)


def _forget_devices(state: Path) -> None:
    with suppress(OSError):
        (state / "services" / "shared.json").unlink()


def _running(state: Path, which: str) -> list[LocalRun]:
    runs = runs_in(state / "services" / which)
    return [LocalRun(folder, spec) for folder, spec in runs if folder.end() is None]


def runs_in(folder: Path) -> list[tuple[RunFolder, RunSpec]]:
    """Return the runs of servers or fronts in *folder*; damaged records of one that is alive keep nobody from others.

    They stay where they are: it cannot be told what to stop.
    """
    try:
        return RunFolder.all_in(folder)
    except EngineError as error:
        log.warning("records of model servers cannot be read", extra={"cause": str(error)})
        return []


def stop_local(run: LocalRun) -> bool:
    """Stop a process and wait for its end; returns whether it could be stopped."""
    run.terminate(signal.SIGTERM)
    try:
        run.await_end()
    except EngineError as error:
        log.warning("a model server cannot be stopped", extra={"cause": str(error)})
        return False
    finally:
        run.close()
    return True
