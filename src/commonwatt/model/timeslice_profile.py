"""A profile: what one inference of a model takes on a device, kernel by kernel, at each clock (ETF section 5)."""

from __future__ import annotations

from typing import Literal

from commonwatt.model.fields import FileModel, quantity

__all__ = ["KernelProfile", "ModelProfile", "ProfilePoint"]


class KernelProfile(FileModel):
    """A kernel, or a segment that is run as one."""

    name: str = quantity("name of the kernel", "-", min_length=1)
    time_s: float = quantity("mean service time", "s", gt=0)
    power_w: float | None = quantity("mean power while it runs; null: not known by kernel", "W", None, gt=0)


class ProfilePoint(FileModel):
    """One inference at one clock."""

    clock_mhz: float | None = quantity("clock of the device; null: its own", "MHz", None, gt=0)
    time_s: float = quantity("mean service time of an inference", "s", gt=0)
    power_w: float = quantity("mean power of the device meanwhile", "W", gt=0)
    power_source: Literal["measured", "modelled"] = quantity("where the power comes from", "-")
    coefficient_of_variation: float | None = quantity(
        "standard deviation over mean of the service times; null: not known", "-", None, ge=0
    )
    runs: int | None = quantity("inferences measured; null: not known", "-", None, ge=1)
    kernels: tuple[KernelProfile, ...] = quantity("its kernels in order of execution; empty: not known", "-", ())


class ModelProfile(FileModel):
    """A model on a device."""

    model: str = quantity("name of the model", "-", min_length=1)
    model_digest: str | None = quantity("SHA-256 of the model file; null: not known", "-", None)
    device: str = quantity("name of the device", "-", min_length=1)
    idle_w: float | None = quantity("power of the device while nothing runs; null: not known", "W", None, ge=0)
    source: str = quantity("where the figures come from", "-", "")
    points: tuple[ProfilePoint, ...] = quantity("one for each clock", "-", min_length=1)
