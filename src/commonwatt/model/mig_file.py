"""The file ``commonwatt partition mig`` reads: GPUs that can be cut up by MIG, and the tenants that want a part."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from commonwatt.model.fields import FileModel, quantity

__all__ = ["MigFile", "MigGpu", "MigTenant"]


class MigGpu(FileModel):
    """A GPU in MIG mode."""

    name: str = quantity("name of the GPU", "-", min_length=1)
    type: str = quantity("type: A100-40GB, A100-80GB, H100-80GB or H200-141GB", "-")
    present: tuple[str, ...] | None = quantity(
        "instances it has now, each as PROFILE@SLICE (the memory slice it begins at) or all without; absent: unknown",
        "-", None,
    )  # fmt: skip


class MigTenant(FileModel):
    """A tenant: what it runs, and how fast that is on an instance."""

    name: str = quantity("name of the tenant", "-", min_length=1)
    weight: float = quantity("budget relative to the other tenants", "-", 1.0, gt=0)
    memory_gb: float = quantity("memory each of its programs needs, in GB as in the names of profiles", "GB", 0.0, ge=0)
    parallel_fraction: float | None = quantity(
        "F of Amdahl's law over SMs or slices; or else speed", "-", None, ge=0, le=1
    )
    speed: dict[str, float] | None = quantity(
        "speed on each profile (1g, 3g.40gb or H100-80GB/3g), any unit; profiles left out are never used", "-", None
    )
    gpu_speed: dict[str, float] = quantity("factor on its speed for each type of GPU; 1 if absent", "-", dict)
    max_instances: int | None = quantity(
        "most instances it can use at a time; absent: any number", "instances", None, ge=1
    )

    @model_validator(mode="after")
    def _check_speed(self) -> MigTenant:
        if (self.parallel_fraction is None) == (self.speed is None):
            given = "neither" if self.speed is None else "both"
            msg = f"got '{given}', expected either parallel_fraction or speed"
            raise ValueError(msg)
        for key, value in (self.speed or {}).items():
            if not value >= 0:
                msg = f"speed.{key}: got {value!r}, expected a number, 0 or more"
                raise ValueError(msg)
        for key, value in self.gpu_speed.items():
            if not value > 0:
                msg = f"gpu_speed.{key}: got {value!r}, expected a number above 0"
                raise ValueError(msg)
        return self


class MigFile(FileModel):
    """GPUs to cut up and tenants to share them."""

    gpus: tuple[MigGpu, ...] = quantity("GPUs that can be cut up", "-", min_length=1)
    tenants: tuple[MigTenant, ...] = quantity("tenants that share them", "-", min_length=1)
    parallel_over: Literal["sms", "slices"] = quantity(
        "what parallel_fraction counts: SMs or compute slices", "-", "sms"
    )
    profiles: Literal["plain", "all"] = quantity(
        "plain: 1g, 2g, 3g, 4g, 7g; all: also 1g with twice the memory", "-", "plain"
    )
    memory_reserve_gb: float = quantity("memory of each instance that programs cannot use", "GB", 0.0, ge=0)
    drain_penalty: float = quantity(
        "what one drained instance costs, as a part of welfare; the default only breaks ties", "-", 1e-6, ge=0, le=100
    )

    @model_validator(mode="after")
    def _check_names(self) -> MigFile:
        for field, entries in (("gpus", self.gpus), ("tenants", self.tenants)):
            names = [entry.name for entry in entries]
            for place, name in enumerate(names):
                if name in names[:place]:
                    msg = f"{field}.{place}.name: got {name!r} twice, expected each name once"
                    raise ValueError(msg)
        return self
