"""The file of one shared device: what ``commonwatt timeslice run`` tries and ``commonwatt timeslice serve`` serves."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from commonwatt.model.fields import FileModel, quantity

__all__ = [
    "BackloggedLoad",
    "CpuDevice",
    "CudaDevice",
    "DeviceSpec",
    "Load",
    "PeriodicLoad",
    "PoissonLoad",
    "PolicyName",
    "PowerModelSpec",
    "ServedModel",
    "ServerSpec",
    "SharingTenant",
    "SimulatedDevice",
    "TimesliceConfig",
]

PolicyName = Literal["etf", "tf", "ef", "etf-energy", "fifo"]


class PowerModelSpec(FileModel):
    """A stated model of power where there is no meter: idle power, plus so many joules for each piece of work."""

    idle_w: float = quantity("power while nothing runs", "W", 10.0, ge=0)
    busy_w: float = quantity("power that any work adds", "W", 5.0, ge=0)
    joules_per_gflop: float = quantity("energy of 10^9 floating-point operations", "J", 0.1, ge=0)
    joules_per_gb: float = quantity("energy of moving 10^9 bytes of weights and activations", "J", 0.5, ge=0)


class SimulatedDevice(FileModel):
    """A device in virtual time whose kernels take what profiles say."""

    kind: Literal["simulated"] = quantity("a simulated device", "-")
    idle_w: float = quantity("power while nothing runs", "W", 0.0, ge=0)
    kernel_level: bool = quantity(
        "take every kernel of a profile as a step, where the profile has kernels; false: a whole inference is one step",
        "-", default=True,
    )  # fmt: skip


class CpuDevice(FileModel):
    """The CPU of this machine, with ONNX Runtime or PyTorch."""

    kind: Literal["cpu"] = quantity("this machine's CPU", "-")
    threads: int = quantity("threads that compute one request", "-", 1, ge=1, le=1024)
    segment_s: float | None = quantity(
        "models are cut into segments of about this long, between which tenants may be switched; null: never cut",
        "s", 0.002, gt=0,
    )  # fmt: skip
    power: PowerModelSpec = quantity("model of its power, as it has no meter", "-", PowerModelSpec)


class CudaDevice(FileModel):
    """An NVIDIA GPU, with ONNX Runtime or PyTorch."""

    kind: Literal["cuda"] = quantity("an NVIDIA GPU", "-")
    index: int = quantity("index of the GPU", "-", 0, ge=0)
    segment_s: float | None = quantity(
        "models are cut into segments of about this long, between which tenants may be switched; null: never cut",
        "s", 0.002, gt=0,
    )  # fmt: skip
    power: PowerModelSpec = quantity("model of its power, until its meter has been read", "-", PowerModelSpec)


DeviceSpec = Annotated[SimulatedDevice | CpuDevice | CudaDevice, Field(discriminator="kind")]


class BackloggedLoad(FileModel):
    """Always something to do: each queue holds so many requests, and a finished one is replaced at once."""

    kind: Literal["backlogged"] = quantity("always something to do", "-", "backlogged")
    depth: int = quantity("requests kept waiting or running in each queue", "-", 2, ge=1, le=10_000)


class PeriodicLoad(FileModel):
    """A request every so often, whatever happened to the last one."""

    kind: Literal["periodic"] = quantity("a request every interval", "-")
    interval_s: float = quantity("time between requests", "s", gt=0)


class PoissonLoad(FileModel):
    """Requests at random, independent of each other."""

    kind: Literal["poisson"] = quantity("requests at random", "-")
    rate_per_s: float = quantity("mean requests a second", "1/s", gt=0)


Load = Annotated[BackloggedLoad | PeriodicLoad | PoissonLoad, Field(discriminator="kind")]


class ServedModel(FileModel):
    """A model of a tenant."""

    name: str = quantity("name of the model, as in URLs", "-", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    path: str | None = quantity(
        "ONNX file (.onnx) or PyTorch program saved by torch.export (.pt2), relative to this file; "
        "absent on a simulated device",
        "-", None,
    )  # fmt: skip
    profile: str | None = quantity(
        "profile file made by `timeslice profile`, relative to this file, or a profile known by name "
        "(tx2-resnet18, tx2-resnet50)",
        "-", None,
    )  # fmt: skip
    load_at_start: bool = quantity("load it when the server starts", "-", default=True)


class SharingTenant(FileModel):
    """A tenant of the device."""

    name: str = quantity("name of the tenant", "-", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    weight: float = quantity("entitlement relative to the other tenants (w)", "-", 1.0, gt=0)
    models: tuple[ServedModel, ...] = quantity("its models", "-", min_length=1)
    clock_mhz: float | None = quantity("clock its work runs at; absent: the device's own", "MHz", None, gt=0)
    power_w: float | None = quantity(
        "power of the device while it works for this tenant, where that is known; otherwise profile or model", "W",
        None, gt=0,
    )  # fmt: skip
    queues: int = quantity("its queues, each first come, first served (like CUDA streams)", "-", 1, ge=1, le=64)
    queue_limit: int = quantity("requests that may wait in each queue before more are refused", "-", 64, ge=1)
    key: str | None = quantity("API key (serve)", "-", None, min_length=8)
    key_env: str | None = quantity("environment variable that holds its API key (serve)", "-", None, min_length=1)
    load: Load = quantity("the load it puts on the device (run)", "-", BackloggedLoad)
    from_s: float = quantity("when its load begins (run)", "s", 0.0, ge=0)
    until_s: float | None = quantity("when its load ends (run); absent: at the end", "s", None, gt=0)

    @model_validator(mode="after")
    def _check(self) -> SharingTenant:
        if self.key is not None and self.key_env is not None:
            msg = "key_env: got key as well, expected one of the two"
            raise ValueError(msg)
        if self.until_s is not None and self.until_s <= self.from_s:
            msg = f"until_s: got {self.until_s:g}, expected after from_s ({self.from_s:g})"
            raise ValueError(msg)
        return self


class ServerSpec(FileModel):
    """Where and how ``timeslice serve`` listens."""

    host: str = quantity("address to listen on", "-", "127.0.0.1", min_length=1)
    rest_port: int = quantity("port of the REST protocol; 0: any free one", "-", 8000, ge=0, le=65535)
    grpc_port: int | None = quantity(
        "port of the gRPC protocol; 0: any free one; null: no gRPC", "-", 8001, ge=0, le=65535
    )
    operator_key: str | None = quantity("key for metrics and settings", "-", None, min_length=8)
    operator_key_env: str | None = quantity(
        "environment variable that holds the operator's key", "-", None, min_length=1
    )
    drain_s: float = quantity("longest time to finish queued requests after a signal to stop", "s", 30.0, ge=0)
    largest_request_mb: float = quantity("requests larger than this are refused", "MB", 64.0, gt=0)


class TimesliceConfig(FileModel):
    """One shared device and its tenants."""

    device: DeviceSpec = quantity("the device", "-")
    policy: PolicyName = quantity(
        "etf, tf (time-fair), ef (energy-fair), etf-energy (guaranteed energy, then even time) or fifo (no sharing)",
        "-", "etf",
    )  # fmt: skip
    phi: float = quantity("time-fair factor: the part of a fair share that is guaranteed", "-", 0.7, ge=0, le=1)
    quantum_s: float = quantity("length of the quantum (T)", "s", 0.1, gt=0)
    duration_s: float = quantity("how long to run (run)", "s", 10.0, gt=0)
    tenants: tuple[SharingTenant, ...] = quantity("tenants that share the device", "-", min_length=1)
    server: ServerSpec = quantity("where to listen (serve)", "-", ServerSpec)

    @model_validator(mode="after")
    def _check(self) -> TimesliceConfig:
        names: set[str] = set()
        keys: set[str] = set()
        for place, tenant in enumerate(self.tenants):
            if tenant.name in names:
                msg = f"tenants.{place}.name: got {tenant.name!r} twice, expected each name once"
                raise ValueError(msg)
            names.add(tenant.name)
            if tenant.key in keys:
                msg = f"tenants.{place}.key: got the key of another tenant, expected each key once"
                raise ValueError(msg)
            keys |= {tenant.key} - {None} if tenant.key else set()
            self._check_models(place, tenant)
        return self

    def without_keys(self) -> TimesliceConfig:
        """Return the same without any key: what may be shown, and what digests are made of."""
        tenants = tuple(tenant.model_copy(update={"key": None}) for tenant in self.tenants)
        return self.model_copy(
            update={"tenants": tenants, "server": self.server.model_copy(update={"operator_key": None})}
        )

    def _check_models(self, place: int, tenant: SharingTenant) -> None:
        models: set[str] = set()
        for number, model in enumerate(tenant.models):
            field = f"tenants.{place}.models.{number}"
            if model.name in models:
                msg = f"{field}.name: got {model.name!r} twice, expected each name once"
                raise ValueError(msg)
            models.add(model.name)
            if self.device.kind == "simulated" and model.profile is None:
                msg = f"{field}.profile: got none, expected a profile, as a simulated device has nothing else"
                raise ValueError(msg)
            if self.device.kind != "simulated" and (model.path is None or not re.search(r"\.(onnx|pt2)$", model.path)):
                msg = f"{field}.path: got {model.path!r}, expected a file that ends in .onnx or .pt2"
                raise ValueError(msg)
