"""The problem file of ``commonwatt place``: one rescheduling point of ANDREAS, section IV-A."""

from __future__ import annotations

from pydantic import model_validator

from commonwatt.model.electricity import Electricity
from commonwatt.model.errors import FieldError
from commonwatt.model.fields import FileModel, quantity
from commonwatt.model.nodes import NodeSpec

__all__ = ["CurrentPlacement", "PlaceFile", "PlaceJob", "PlaceTenant"]


class CurrentPlacement(FileModel):
    """Current allocation of a running job, and its remaining time there."""

    nodes: tuple[str, ...] = quantity("its nodes, with equally many GPUs on each", "-", min_length=1)
    gpus: int = quantity("allocated GPUs, over all its nodes", "GPUs", ge=1)
    remaining_s: float = quantity("remaining time in this allocation", "s", gt=0)


class PlaceJob(FileModel):
    """A job that runs or waits at this rescheduling point."""

    name: str = quantity("name of the job", "-", min_length=1)
    tenant: str = quantity("tenant it belongs to", "-", "default", min_length=1)
    submit_s: float = quantity("time of submission; 0 if irrelevant", "s", 0.0, ge=0)
    due_s: float | None = quantity("due date; absent: none", "s", None)
    tardiness_weight: float = quantity("cost of each second of lateness (omega)", "currency/s", ge=0)
    times_s: dict[str, tuple[float | None, ...] | dict[int, float]] = quantity(
        "remaining time if started now, by GPU type: a list for 1, 2, ... GPUs (null: not possible) or a map "
        "from GPU count; for a running job this includes its restart and the work lost since its last checkpoint",
        "s",
    )
    gpu_w: dict[str, float] = quantity(
        "power added by each of its GPUs, by type, where it differs from the node's", "W", dict
    )
    current: CurrentPlacement | None = quantity("current allocation; absent for a waiting job", "-", None)
    requested_gpus: int = quantity("requested GPUs; 0: none", "GPUs", 0, ge=0)
    requested_gpu_type: str = quantity("requested GPU type; empty: none", "-", "")
    time_limit_s: float | None = quantity("declared run time, from now on", "s", None, gt=0)


class PlaceTenant(FileModel):
    """A tenant, for solvers that share by tenant."""

    name: str = quantity("name of the tenant", "-", min_length=1)
    weight: float = quantity("weight relative to the other tenants", "-", 1.0, gt=0)
    usage_gpu_s: float = quantity("GPU time used, decayed by the half-life", "GPU s", 0.0, ge=0)


class PlaceFile(FileModel):
    """A placement problem."""

    now_s: float = quantity("current time (T_c)", "s", 0.0)
    interval_s: float = quantity("time to the next rescheduling point (H)", "s", 300.0, gt=0)
    postponement_penalty: float = quantity(
        "weight of the worst-case tardiness of postponed jobs (rho)", "-", 100.0, ge=0
    )
    use_every_node: bool = quantity("force min(nodes, jobs) nodes into use, constraint (4n)", "-", False)  # noqa: FBT003
    electricity: Electricity = quantity("price and carbon intensity of electricity", "-", Electricity)
    nodes: tuple[NodeSpec, ...] = quantity("nodes of the cluster", "-", min_length=1)
    jobs: tuple[PlaceJob, ...] = quantity("running and waiting jobs", "-")
    tenants: tuple[PlaceTenant, ...] = quantity("tenants with a weight other than 1, or usage", "-", ())

    @model_validator(mode="after")
    def _check_cap(self) -> PlaceFile:
        caps_w = [self.electricity.power_cap_w, *(point.power_cap_w for point in self.electricity.series)]
        if cap_w := next((cap_w for cap_w in caps_w if cap_w is not None), None):
            raise FieldError(
                "none: simulate and serve keep a cap, place does not",
                field="electricity.power_cap_w",
                value=f"{cap_w:g}",
            )
        return self

    @model_validator(mode="after")
    def _check_due_dates(self) -> PlaceFile:
        for job in self.jobs:
            if job.due_s is not None and job.due_s < job.submit_s:
                raise FieldError(
                    f"not before submission ({job.submit_s:g})", field=f"jobs.{job.name}.due_s", value=f"{job.due_s:g}"
                )
        return self
