"""The file ``commonwatt place`` reads: one rescheduling point, as ANDREAS section IV-A describes it."""

from __future__ import annotations

from pydantic import model_validator

from commonwatt.model.electricity import Electricity
from commonwatt.model.fields import FileModel, quantity
from commonwatt.model.nodes import NodeSpec

__all__ = ["CurrentPlacement", "PlaceFile", "PlaceJob", "PlaceTenant"]


class CurrentPlacement(FileModel):
    """Where a running job runs now, and how long it still takes if it is left alone."""

    nodes: tuple[str, ...] = quantity("nodes it runs on, with equally many GPUs on each", "-", min_length=1)
    gpus: int = quantity("GPUs it holds over all its nodes", "GPUs", ge=1)
    remaining_s: float = quantity("time to its end if it is left where it is", "s", gt=0)


class PlaceJob(FileModel):
    """A job that runs or waits at this rescheduling point."""

    name: str = quantity("name of the job", "-", min_length=1)
    tenant: str = quantity("tenant it belongs to", "-", "default", min_length=1)
    submit_s: float = quantity("when it was submitted; 0 if it does not matter", "s", 0.0, ge=0)
    due_s: float | None = quantity("when it should be finished; never late if absent", "s", None)
    tardiness_weight: float = quantity("cost of each second of lateness (omega)", "currency/s", ge=0)
    times_s: dict[str, tuple[float | None, ...] | dict[int, float]] = quantity(
        "remaining time if it is started now, by GPU type: a list for 1, 2, ... GPUs (null: not possible) or a map "
        "from GPU count; for a running job this includes its restart and the work lost since its last snapshot",
        "s",
    )
    gpu_w: dict[str, float] = quantity("power each of its GPUs adds, by type, where it differs", "W", dict)
    current: CurrentPlacement | None = quantity("where it runs now; absent if it waits", "-", None)
    requested_gpus: int = quantity("GPUs its owner asked for; 0 for no wish", "GPUs", 0, ge=0)
    requested_gpu_type: str = quantity("GPU type its owner asked for; empty for no wish", "-", "")
    time_limit_s: float | None = quantity("run time its owner declared, from now", "s", None, gt=0)


class PlaceTenant(FileModel):
    """A tenant, for solvers that share by tenant."""

    name: str = quantity("name of the tenant", "-", min_length=1)
    weight: float = quantity("entitlement relative to the other tenants", "-", 1.0, gt=0)
    usage_gpu_s: float = quantity("GPU time it has used, decayed by the half-life", "GPU s", 0.0, ge=0)


class PlaceFile(FileModel):
    """A placement problem."""

    now_s: float = quantity("current time (T_c)", "s", 0.0)
    interval_s: float = quantity("time to the next rescheduling point (H)", "s", 300.0, gt=0)
    postponement_penalty: float = quantity(
        "weight of the worst-case tardiness of postponed jobs (rho)", "-", 100.0, ge=0
    )
    use_every_node: bool = quantity("force min(nodes, jobs) nodes into use, constraint (4n)", "-", False)  # noqa: FBT003
    electricity: Electricity = quantity("what electricity costs", "-", Electricity)
    nodes: tuple[NodeSpec, ...] = quantity("the cluster", "-", min_length=1)
    jobs: tuple[PlaceJob, ...] = quantity("running and waiting jobs", "-")
    tenants: tuple[PlaceTenant, ...] = quantity("tenants with a weight other than 1, or usage", "-", ())

    @model_validator(mode="after")
    def _check_due_dates(self) -> PlaceFile:
        for job in self.jobs:
            if job.due_s is not None and job.due_s < job.submit_s:
                msg = f"jobs.{job.name}.due_s: got {job.due_s:g}, expected not before submission ({job.submit_s:g})"
                raise ValueError(msg)
        return self
