"""The files ``commonwatt map`` reads: a job table, and a mapping to be scored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from commonwatt.model.fields import FileModel, quantity
from commonwatt.model.map_platform import AcceleratorSpec, BatchSpec, LayerSpec

__all__ = ["FixedMapping", "MapFile", "MapTable", "MappingFile", "TransferFile"]

Rows = tuple[tuple[float | None, ...], ...]


def _form_of_jobs(value: object) -> str:
    if isinstance(value, (BatchSpec, Mapping)):
        return "a-batch"
    return "a-list" if isinstance(value, (list, tuple)) else "a-file"


# the tags are no identifiers, so that errors do not name them
Jobs = Annotated[
    Annotated[str, Tag("a-file")]
    | Annotated[tuple[LayerSpec, ...], Tag("a-list")]
    | Annotated[BatchSpec, Tag("a-batch")],
    Discriminator(_form_of_jobs),
]


class MapTable(FileModel):
    """What every job asks of every sub-accelerator: one row for each job, one entry for each sub-accelerator."""

    latency_cycles: Rows = quantity(
        "time on each sub-accelerator if bandwidth is free, above 0; null: it cannot run there", "cycles", min_length=1
    )
    bandwidth_gbs: Rows = quantity("bandwidth it asks for meanwhile, 0 or more", "GB/s", min_length=1)
    energy_nj: Rows | None = quantity("energy it takes there, 0 or more", "nJ", None, min_length=1)


class FixedMapping(FileModel):
    """What of a mapping is decided already."""

    accelerator: tuple[Annotated[int, Field(ge=0)] | None, ...] | None = quantity(
        "sub-accelerator each job must run on, from 0; null: any", "-", None
    )
    priority: tuple[float | None, ...] | None = quantity("priority each job must have; null: any", "-", None)


class MapFile(FileModel):
    """A batch of jobs on sub-accelerators that share one bandwidth, and what is asked of a mapping.

    Jobs are told by number from 0, in the order of the table, or by name.
    """

    system_bandwidth_gbs: float = quantity("bandwidth all sub-accelerators share", "GB/s", gt=0)
    table: MapTable | str | None = quantity(
        "the job table, or a file with it, CSV or JSON; instead of platform and jobs", "-", None
    )
    platform: str | tuple[AcceleratorSpec, ...] | None = quantity(
        "a setting of the paper (S1 to S6, S1-flexible, S3-flexible), or sub-accelerators", "-", None, min_length=1
    )
    jobs: Jobs | None = quantity(
        "layers, a CSV file with them, or which to take from the networks of the paper", "-", None
    )
    cost_model: Literal["maestro", "shi", "roofline"] = quantity(
        "what layers cost: the published model, that with SHI where LB stands, or the physically honest one",
        "-",
        "maestro",
    )
    objective: Literal["latency", "energy", "edp", "satisfaction", "tail", "completion"] = quantity(
        "what is made small: makespan, energy, their product, jobs out of the target order, tail latency of tenants, "
        "or mean time of completion",
        "-",
        "latency",
    )
    target_cycles: float | None = quantity(
        "a makespan that is short enough: latency stops there, other objectives pay for what is above it", "cycles",
        None, ge=1e-6,
    )  # fmt: skip
    names: tuple[str, ...] | None = quantity("name of each job", "-", None, min_length=1)
    after: dict[str, tuple[str, ...]] | Literal["tenant"] | None = quantity(
        "the jobs each job comes after; tenant: each comes after the one before it of the same tenant", "-", None
    )
    order: tuple[str, ...] | None = quantity("all jobs in the order in which they should end", "-", None, min_length=1)
    tenants: tuple[str, ...] | None = quantity("whose each job is", "-", None, min_length=1)
    weights: dict[str, Annotated[float, Field(gt=0)]] = quantity(
        "how much each tenant counts for tail and completion; 1 if it is not named", "-", dict
    )
    tail: float = quantity("part of a tenant's jobs that have ended by its tail latency", "-", 0.95, gt=0, le=1)
    fixed: FixedMapping | None = quantity("what of the mapping is decided already", "-", None)

    @model_validator(mode="after")
    def _check_form(self) -> MapFile:
        if self.table is not None:
            for key in ("platform", "jobs"):
                if getattr(self, key) is not None:
                    msg = f"{key}: expected a table, or a platform and jobs, not both"
                    raise ValueError(msg)
        elif self.platform is None and self.jobs is None:
            msg = "table: expected this field to be given, or platform and jobs"
            raise ValueError(msg)
        else:
            for key, other in (("platform", "jobs"), ("jobs", "platform")):
                if getattr(self, key) is None:
                    msg = f"{key}: expected this field to be given beside {other}"
                    raise ValueError(msg)
        return self


class MappingFile(FileModel):
    """A mapping: lower priority values run first, ties by the jobs' order."""

    accelerator: tuple[int, ...] = quantity("sub-accelerator of each job, from 0", "-", min_length=1)
    priority: tuple[float, ...] = quantity("priority of each job on its sub-accelerator", "-", min_length=1)


class TransferFile(FileModel):
    """What ``map --save-transfer`` keeps of a batch: jobs by rank, the longest mean latency first."""

    accelerator: tuple[Annotated[int, Field(ge=0)], ...] = quantity(
        "sub-accelerator of the job of each rank, from 0", "-", min_length=1
    )
    priority: tuple[float, ...] = quantity("priority of the job of each rank; lower runs first", "-", min_length=1)
    latency_cycles: Rows = quantity(
        "its time on each sub-accelerator if bandwidth is free; null: it cannot run there", "cycles", min_length=1
    )
    bandwidth_gbs: Rows = quantity("bandwidth it asks for meanwhile", "GB/s", min_length=1)
    stretch: float = quantity("makespan over a simple lower bound", "-", ge=0)
