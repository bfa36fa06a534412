"""The files ``commonwatt map`` reads: a job table, and a mapping to be scored."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from commonwatt.model.fields import FileModel, quantity

__all__ = ["MapFile", "MapTable", "MappingFile"]

Rows = tuple[tuple[float | None, ...], ...]


class MapTable(FileModel):
    """What every job asks of every sub-accelerator: one row for each job, one entry for each sub-accelerator."""

    latency_cycles: Rows = quantity(
        "time on each sub-accelerator if bandwidth is free, above 0; null: it cannot run there", "cycles", min_length=1
    )
    bandwidth_gbs: Rows = quantity("bandwidth it asks for meanwhile, 0 or more", "GB/s", min_length=1)


class MapFile(FileModel):
    """A batch of independent jobs on sub-accelerators that share one bandwidth."""

    system_bandwidth_gbs: float = quantity("bandwidth all sub-accelerators share", "GB/s", gt=0)
    table: MapTable = quantity("the job table")

    @model_validator(mode="before")
    @classmethod
    def _check_form(cls, raw: Any) -> Any:  # noqa: ANN401
        for key in ("platform", "jobs"):
            if isinstance(raw, dict) and key in raw:
                msg = f"{key}: expected a job table under 'table'; platforms and layers have no cost model here yet"
                raise ValueError(msg)
        return raw


class MappingFile(FileModel):
    """A mapping: lower priority values run first, ties by the jobs' order."""

    accelerator: tuple[int, ...] = quantity("sub-accelerator of each job, from 0", "-", min_length=1)
    priority: tuple[float, ...] = quantity("priority of each job on its sub-accelerator", "-", min_length=1)
