"""Data of a run in columns, from which reports, results and files are made."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.nodes import Cluster
from commonwatt.model.results import PolicyResult
from commonwatt.model.study_results import RunService

__all__ = ["EventColumns", "JobColumns", "Record", "SampleColumns", "Segments"]


@dataclass(frozen=True)
class JobColumns:
    """Jobs, in order of submission."""

    name: tuple[str, ...]
    tenant: tuple[str, ...]
    submit_s: Floats
    due_s: Floats  # infinity: none
    began_s: Floats  # first start
    ended_s: Floats
    tardiness_weight: Floats  # currency/s
    starts: Ints  # including moves and restarts
    energy_j: Floats  # NaN: unknown; without overhead
    energy_cost: Floats  # currency; NaN: unknown
    gpu_s: Floats
    fastest_s: Floats  # shortest possible run time
    why_late: tuple[str, ...]  # one sentence for a late job, else ""

    @property
    def late_s(self) -> Floats:
        """Seconds after the due date, 0 if in time."""
        return np.maximum(0.0, self.ended_s - self.due_s)

    @property
    def tardiness_cost(self) -> Floats:
        """Cost of lateness, currency."""
        return self.tardiness_weight * self.late_s


@dataclass(frozen=True)
class Segments:
    """Allocations over time for the Gantt chart: a row for each job, node and uninterrupted allocation."""

    job: Ints  # row in JobColumns
    node: Ints  # index into the cluster
    gpus: Ints
    from_s: Floats
    to_s: Floats


@dataclass(frozen=True)
class SampleColumns:
    """The cluster after each rescheduling point; values are valid until the next one."""

    time_s: Floats
    busy_gpus: Ints
    power_w: Floats  # NaN: unknown
    running: Ints
    waiting: Ints
    on_gpus: Ints  # of nodes that are on or waking
    wanted_gpus: Ints  # allocated, or requested by waiting jobs that are not held back


@dataclass(frozen=True)
class EventColumns:
    """The event log."""

    time_s: Floats
    kind: tuple[str, ...]
    job: Ints  # row in JobColumns
    nodes: tuple[str, ...]  # names, comma-separated
    gpus: Ints
    reason: tuple[str, ...]
    sentence: tuple[str, ...]
    lost_s: Floats  # work since the last snapshot that is lost; NaN: none can be lost


@dataclass(frozen=True)
class Record:
    """A finished run of one policy."""

    policy: str
    cluster: Cluster
    result: PolicyResult
    jobs: JobColumns
    segments: Segments
    samples: SampleColumns
    events: EventColumns
    slowdown: Floats = field(default_factory=lambda: np.zeros(0))  # bounded slowdown of each job

    def service(self) -> RunService:
        """Return what each job got, which percentiles over several runs need."""
        tenants = tuple(dict.fromkeys(self.jobs.tenant))
        at = {name: k for k, name in enumerate(tenants)}
        return RunService(
            result=self.result,
            tenants=tenants,
            tenant=tuple(at[name] for name in self.jobs.tenant),
            wait_s=tuple((self.jobs.began_s - self.jobs.submit_s).tolist()),
            slowdown=tuple(self.slowdown.tolist()),
        )
