"""The fleet part of a scenario: inference services, jobs of a fraction of a GPU, and how GPUs may be shared.

``Fleet`` is the compiled form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, Protocol

from pydantic import Field, model_validator

from commonwatt.model.arrays import Floats
from commonwatt.model.errors import FieldError
from commonwatt.model.fields import FileModel, quantity
from commonwatt.model.nodes import NodeClass

__all__ = [
    "WHOLE_MILLI",
    "Fleet",
    "FractionalJob",
    "FractionalJobs",
    "FractionalLaw",
    "FractionalModel",
    "FractionalWorkload",
    "GeneratedLoad",
    "Interference",
    "LoadFile",
    "LoadSeries",
    "ModelOnType",
    "Qos",
    "Replicas",
    "RequestLoad",
    "Requests",
    "ServiceLoad",
    "ServiceModel",
    "ServiceProfile",
    "ServiceSpec",
    "ShareMode",
    "SharingSpec",
]

ShareMode = Literal["mig", "time"]
Qos = Literal["LS", "BE", "Burstable", "Guaranteed"]


class ServiceProfile(FileModel):
    """What a request of a service takes on a GPU type, measured, or by the layers of its networks on a platform."""

    request_s: float | None = quantity(
        "GPU time of one request on a whole GPU, batching included; its inverse is the throughput; absent: by "
        "`networks`, on a node type with a `platform`",
        "s", None, gt=0,
    )  # fmt: skip
    networks: tuple[str, ...] | None = quantity(
        "networks of one request, by their names in `map layers`; mapping says what they take on the platform", "-",
        None, min_length=1,
    )  # fmt: skip
    batch: int = quantity("networks: requests mapped together", "-", 1, ge=1, le=64)
    floor_s: float = quantity("latency of a request beyond its GPU time, alone on the GPU", "s", 0.0, ge=0)
    power_w: float | None = quantity("power of a GPU while it works for it; absent: the node's gpu_w", "W", None, ge=0)
    parallel_fraction: float = quantity(
        "F of Amdahl's law over SMs: speed on a MIG instance relative to the GPU", "-", 1.0, ge=0, le=1
    )
    mig_speed: dict[str, float] | None = quantity(
        "speed on each MIG profile, any unit, instead of parallel_fraction; 7g is the whole GPU", "-", None
    )
    memory_gb: float = quantity("memory of a replica", "GB", 0.0, ge=0)

    @model_validator(mode="after")
    def _check(self) -> ServiceProfile:
        if (self.request_s is None) == (self.networks is None):
            given = "both" if self.networks else "neither"
            raise FieldError("either request_s or networks", field="request_s", value=given)
        if self.mig_speed is not None and not self.mig_speed.get("7g", 0.0) > 0:
            raise FieldError(
                "a speed above 0, that of the whole GPU", field="mig_speed.7g", value=str(self.mig_speed.get("7g"))
            )
        for key, speed in (self.mig_speed or {}).items():
            if not speed >= 0:
                raise FieldError("a number, 0 or more", field=f"mig_speed.{key}", value=speed)
        return self


class LoadSeries(FileModel):
    """Requests over time, listed."""

    source: Literal["series"] = quantity("listed here", "-", "series")
    rps: tuple[Annotated[float, Field(ge=0)], ...] = quantity(
        "requests per second in each step, from time 0; none after the last", "1/s", min_length=1
    )
    step_s: float = quantity("length of a step", "s", 300.0, gt=0)


class LoadFile(FileModel):
    """Requests over time, from a file."""

    source: Literal["file"] = quantity("CSV or Parquet with a time column and one of requests per second", "-", "file")
    path: str = quantity("the file, relative to this one", "-", min_length=1)
    column: str = quantity("column of requests per second", "-", "rps", min_length=1)


class GeneratedLoad(FileModel):
    """Requests over time by a law: ``mean * (1 + swing * cos(day)) * burst``, with gamma-distributed bursts."""

    source: Literal["law"] = quantity("generated with the scenario's seed", "-")
    mean_rps: float = quantity("mean requests per second", "1/s", gt=0)
    swing: float = quantity("half of the difference between the busiest and the quietest hour, to mean", "-", 0.5,
                            ge=0, le=1)  # fmt: skip
    peak_h: float = quantity("hour of day of the most requests", "h", 14.0, ge=0, lt=24)
    burst_cv: float = quantity("standard deviation over mean of the burst of a step", "-", 0.1, ge=0, le=2)
    step_s: float = quantity("length of a step", "s", 300.0, gt=0)
    days: float = quantity("length of the load", "days", 1.0, gt=0)


ServiceLoad = Annotated[LoadSeries | LoadFile | GeneratedLoad, Field(discriminator="source")]


class Replicas(FileModel):
    """Fewest and most replicas of a service."""

    min: int = quantity("fewest while the service runs", "-", 1, ge=1)
    max: int = quantity("most", "-", 16, ge=1)

    @model_validator(mode="after")
    def _check(self) -> Replicas:
        if self.max < self.min:
            raise FieldError(f"{self.min} or more, as min is", field="max", value=self.max)
        return self


class ServiceSpec(FileModel):
    """An inference service: its requests, its model by profile, its latency target."""

    name: str = quantity("name of the service", "-", min_length=1)
    tenant: str = quantity("tenant it belongs to", "-", "default", min_length=1)
    load: ServiceLoad = quantity("requests over time")
    profiles: dict[str, ServiceProfile] = quantity("its model, by GPU type", "-", min_length=1)
    latency_s: float = quantity("latency target of a request", "s", gt=0)
    quantile: float = quantity("share of requests that must meet it", "-", 0.95, gt=0, lt=1)
    replicas: Replicas = quantity("number of replicas", "-", Replicas)
    start_s: float = quantity("time from the GPU until a new replica serves", "s", 30.0, ge=0)
    model_file: str | None = quantity(
        "`serve`: its model, an ONNX file (.onnx) or a PyTorch program saved by torch.export (.pt2), relative to this "
        "file; not used by `simulate`",
        "-", None, min_length=1,
    )  # fmt: skip


class FractionalJob(FileModel):
    """A job of a part of a GPU."""

    name: str = quantity("name of the job", "-", min_length=1)
    tenant: str = quantity("tenant it belongs to", "-", "default", min_length=1)
    submit_s: float = quantity("time of submission", "s", ge=0)
    duration_s: float = quantity("run time with the part it asks for, undisturbed", "s", gt=0)
    gpu_milli: int = quantity("thousandths of a GPU it asks for", "GPU/1000", ge=1, le=1000)
    qos: Qos = quantity("class of service: BE may be stopped to make room for a service", "-", "LS")


class FractionalJobs(FileModel):
    """Fractional jobs listed in the scenario."""

    source: Literal["jobs"] = quantity("jobs listed here", "-")
    jobs: tuple[FractionalJob, ...] = quantity("the jobs", "-", min_length=1)


class FractionalLaw(FileModel):
    """Fractional jobs by a law: Poisson submissions that follow the day, lognormal run times."""

    source: Literal["law"] = quantity("generated with the scenario's seed", "-")
    jobs_per_day: float = quantity("mean number of submissions a day", "1/day", gt=0)
    days: float = quantity("length of the period", "days", 1.0, gt=0)
    swing: float = quantity("half of the difference between busiest and quietest hour, to mean", "-", 0.4, ge=0, le=1)
    peak_h: float = quantity("hour of day of the most submissions", "h", 15.0, ge=0, lt=24)
    median_s: float = quantity("median run time", "s", 1800.0, gt=0)
    spread: float = quantity("standard deviation of the logarithm of the run time", "-", 1.0, ge=0, le=3)
    gpu_milli: tuple[Annotated[int, Field(ge=1, le=1000)], ...] = quantity(
        "sizes, equally likely", "GPU/1000", (100, 200, 250, 500), min_length=1
    )
    best_effort: float = quantity("share of jobs of class BE; the others are LS", "-", 0.5, ge=0, le=1)
    tenants: tuple[str, ...] = quantity("tenants, equally likely", "-", ("notebooks",), min_length=1)


FractionalWorkload = Annotated[FractionalJobs | FractionalLaw, Field(discriminator="source")]


class Interference(FileModel):
    """What residents of a time-shared GPU cost each other: steps take ``1 + slowdown * busy share of others``."""

    source: Literal["law", "lucid"] = quantity(
        "law: `slowdown` as stated; lucid: fitted to the measured pairs of Lucid, in the folder of traces", "-", "law"
    )
    slowdown: float = quantity("law: longer steps beside a GPU's worth of other work", "-", 0.1, ge=0, le=10)


class SharingSpec(FileModel):
    """How the controller may share GPUs, within what nodes allow."""

    modes: tuple[ShareMode, ...] = quantity(
        "ways of sharing that may be used; none: services and fractional jobs have whole GPUs", "-", ("mig", "time")
    )
    slices: Literal["etf", "tf", "ef", "equal"] = quantity(
        "how a shared GPU's time is divided: energy-time fairness, by reserved shares, energy fairness, or equal "
        "slices whatever is reserved",
        "-", "etf",
    )  # fmt: skip
    phi: float = quantity(
        "etf: part of the time-fair share that is guaranteed; raised on a GPU where a service would miss its target",
        "-", 0.7, ge=0, le=1,
    )  # fmt: skip
    quantum_s: float = quantity("quantum of a time-shared GPU", "s", 0.02, gt=0)
    burst: float = quantity(
        "most GPU time a fractional job can use, as a multiple of its request; at most a whole GPU", "-", 2.0, ge=1
    )
    interference: Interference = quantity("what residents of a time-shared GPU cost each other", "-", Interference)
    headroom: float = quantity(
        "replicas are sized for the requests of the last step times this; what the next step brings is not known",
        "-", 1.3, ge=1,
    )  # fmt: skip
    relayout_s: float = quantity(
        "least time between MIG layouts that only save GPUs, and for which replicas must have had room on fewer shared "
        "GPUs before they move there; what a service lacks is added at once",
        "s",
        3600.0,
        ge=0,
    )
    drain_s: float = quantity("MIG: time to create instances on a GPU, after those in the way have drained", "s", 10.0,
                              ge=0)  # fmt: skip
    mapping: Literal["auto", "gsharp", "heft", "fcfs-rr"] = quantity(
        "how layers are mapped onto the sub-accelerators of a platform; fcfs-rr: in order, one after another in turn",
        "-", "auto",
    )  # fmt: skip
    preempt: bool = quantity(
        "whether training jobs are stopped for a service that no free GPU has room for",
        "-",
        True,  # noqa: FBT003
    )

    def runs_fractions(self, kind: NodeClass) -> bool:
        """Whether nodes of a class run fractional jobs: on shared GPUs, or on whole ones where time is not shared."""
        return kind.platform is None and ("time" in kind.share or "time" not in self.modes)


# -- compiled

WHOLE_MILLI = 1000
"""Thousandths of a whole GPU."""


class Requests(Protocol):
    """Requests per second of a service over time: of a series, or counted."""

    @property
    def end_s(self) -> float:
        """When the last request may come."""
        ...

    def at(self, time_s: float) -> float:
        """Return the requests per second at *time_s*."""
        ...

    def seen(self, time_s: float) -> float:
        """Return those of the step before *time_s*, which a controller has seen."""
        ...

    def next_s(self, time_s: float) -> float | None:
        """Return when the next step begins; ``None`` after the last."""
        ...


@dataclass(frozen=True)
class RequestLoad:
    """Requests per second in steps of equal length from time 0; none after the last."""

    rps: Floats  # [S]
    step_s: float

    @property
    def end_s(self) -> float:
        """End of the last step."""
        return len(self.rps) * self.step_s

    def at(self, time_s: float) -> float:
        """Return the requests per second at *time_s*."""
        step = int(time_s / self.step_s + 1e-9)
        return float(self.rps[step]) if 0 <= step < len(self.rps) else 0.0

    def seen(self, time_s: float) -> float:
        """Return those of the step before *time_s*, which a controller has seen; in the first step, its own."""
        return self.at(max(0.0, time_s - self.step_s)) if time_s < self.end_s else 0.0

    def next_s(self, time_s: float) -> float | None:
        """Return when the next step begins or the last one ends; ``None`` after that."""
        following = (int(time_s / self.step_s + 1e-9) + 1) * self.step_s
        return following if following <= self.end_s + 1e-9 else None


@dataclass(frozen=True)
class ModelOnType:
    """A service's model on one GPU type.

    Attributes
    ----------
    rate_rps
        Requests per second of a whole GPU.
    floor_s
        Latency of a request beyond its GPU time.
    power_w
        Power of a GPU while it works.
    parallel_fraction, mig_speed
        How speed falls on MIG instances: by Amdahl's law over SMs, or as measured.
    memory_gb
        Memory of a replica.
    """

    rate_rps: float
    floor_s: float
    power_w: float
    parallel_fraction: float = 1.0
    mig_speed: Mapping[str, float] | None = None
    memory_gb: float = 0.0


@dataclass(frozen=True)
class ServiceModel:
    """A service, compiled."""

    name: str
    tenant: str
    load: Requests
    types: Mapping[str, ModelOnType]
    latency_s: float
    quantile: float
    least: int
    most: int
    start_s: float


@dataclass(frozen=True)
class FractionalModel:
    """A job of a part of a GPU: its work is ``duration_s * gpu_milli / 1000`` GPU-seconds."""

    name: str
    tenant: str
    submit_s: float
    duration_s: float
    gpu_milli: int
    qos: Qos

    @property
    def work_gpu_s(self) -> float:
        """Work in seconds of a whole GPU."""
        return self.duration_s * self.gpu_milli / WHOLE_MILLI


@dataclass(frozen=True)
class Fleet:
    """Services and fractional jobs, how GPUs may be shared among them, and what they cost each other.

    *jobs* are in order of submission.
    """

    services: tuple[ServiceModel, ...]
    jobs: tuple[FractionalModel, ...]
    sharing: SharingSpec
    slowdown: float  # of interference, beside a GPU's worth of other work
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    sentence: str = ""

    def most_milli(self, job: FractionalModel) -> int:
        """Return the thousandths of a GPU that a fractional job can use."""
        return min(WHOLE_MILLI, int(self.sharing.burst * job.gpu_milli))
