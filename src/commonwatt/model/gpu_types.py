"""GPU types that a scenario declares: speed relative to another type, and power."""

from __future__ import annotations

import math

from pydantic import model_validator

from commonwatt.model.fields import FileModel, quantity

__all__ = ["REFERENCE_TYPE", "GpuTypeSpec"]

REFERENCE_TYPE = "A100"
"""GPU type that speeds are relative to unless another is named."""


class GpuTypeSpec(FileModel):
    """What a scenario says of a GPU type; it goes before every table."""

    speed: float | dict[str, float] | None = quantity(
        "speed of training on one of its GPUs, as a multiple of `relative_to`: a number, or one for each kind of model "
        "(a class such as resnet50, or a run of the tables); kinds that are not named cannot run on it. Absent: the "
        "tables', if they have the type",
        "-",
        None,
    )
    relative_to: str = quantity(
        "GPU type, declared here or known, that `speed` is a multiple of; more GPUs scale as they do on that type",
        "-",
        REFERENCE_TYPE,
        min_length=1,
    )
    gpu_w: float | dict[str, float] | None = quantity(
        "power added by each of its GPUs while it trains: a number, or one for each kind of model; absent: the node's",
        "W",
        None,
    )
    profile: str | tuple[str, ...] | None = quantity(
        "profiles of trainings on this type (`commonwatt profile`), relative to this file: their kinds are kinds of "
        "model, with the measured epochs and power; where every type of the cluster and the log has one of the same "
        "kind, jobs are of such kinds, as far as their GPU counts were measured",
        "-",
        None,
        min_length=1,
    )
    most_gpus: int | None = quantity(
        "most GPUs of this type that one job can use; absent: no limit, and 1 for a MIG slice", "GPUs", None, ge=1
    )

    @property
    def profiles(self) -> tuple[str, ...]:
        """Paths of its profiles."""
        return (self.profile,) if isinstance(self.profile, str) else self.profile or ()

    @model_validator(mode="after")
    def _check(self) -> GpuTypeSpec:
        for field, given, least in (("speed", self.speed, "above 0"), ("gpu_w", self.gpu_w, "0 or more")):
            figures = given if isinstance(given, dict) else {} if given is None else {"": given}
            if isinstance(given, dict) and not given:
                msg = f"{field}: got {{}}, expected a number, or one for each kind of model"
                raise ValueError(msg)
            for kind, figure in figures.items():
                if not 0 <= figure < math.inf or (field == "speed" and figure == 0):
                    msg = f"{f'{field}.{kind}' if kind else field}: got {figure:g}, expected a number {least}"
                    raise ValueError(msg)
        return self
