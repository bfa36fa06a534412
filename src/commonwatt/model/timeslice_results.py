"""Results of the ``timeslice`` commands. Unknown is null, never 0."""

from __future__ import annotations

from commonwatt.model.fields import AnswerModel, ResultModel, quantity
from commonwatt.model.timeslice_file import ModelProfile

__all__ = [
    "IgnoredField",
    "PlanTenantResult",
    "RunIdle",
    "RunSample",
    "RunTenantResult",
    "ServedModelResult",
    "TimeslicePlanResult",
    "TimesliceProfileResult",
    "TimesliceRunResult",
    "TimesliceServeResult",
]


class PlanTenantResult(ResultModel):
    """A tenant's slice of a quantum."""

    name: str = quantity("name of the tenant")
    weight: float = quantity("weight relative to the other tenants (w)")
    power_w: float = quantity("power of the device while it works for this tenant (P)", "W")
    demand: int | None = quantity("usable time; null: backlogged", "time units")
    guaranteed: int = quantity("guaranteed time", "time units")
    time: int = quantity("time slice", "time units")
    energy_j: float = quantity("energy of the device during the slice", "J")
    reason: str = quantity("typed reason: no-demand, demand-met, guarantee-only or evened-out")
    sentence: str = quantity("the reason as a sentence")


class TimeslicePlanResult(AnswerModel):
    """Answer of ``commonwatt timeslice plan``."""

    policy: str = quantity("policy that divided the quantum")
    phi: float = quantity("time-fair factor")
    quantum: int = quantity("length of the quantum (T)", "time units")
    unit_s: float = quantity("length of a time unit", "s")
    phi_fair: float = quantity("largest phi with perfect energy fairness, for divisible units")
    tenants: tuple[PlanTenantResult, ...] = quantity("slices, in the order of the problem")
    unused: int = quantity("units without demand", "time units")
    time_fairness: float | None = quantity(
        "F_T: smallest over largest time per weight, among tenants with unmet demand; null: fewer than two"
    )
    energy_fairness: float | None = quantity("F_E: the same for energy")
    system_fairness: float | None = quantity("F_S: the smaller of the two")
    enforcement: str = quantity("how the slices are enforced", default="advisory")


class RunTenantResult(ResultModel):
    """Usage and service of a tenant in a run."""

    name: str = quantity("name of the tenant")
    weight: float = quantity("weight relative to the other tenants (w)")
    power_w: float = quantity("power used to compute its slices at the end of the run", "W")
    power_source: str = quantity(
        "source of its energy: measured, profile-measured, profile-modelled, stated or modelled"
    )
    time_s: float = quantity("device time used", "s")
    energy_j: float = quantity("energy of the device in that time", "J")
    time_share: float | None = quantity("share of the time used by all tenants; null: none used")
    planned_time_share: float | None = quantity("share by its slices; null: the policy guarantees nothing")
    energy_share: float | None = quantity("share of the energy used by all tenants")
    planned_energy_share: float | None = quantity("share by its slices, at the planned powers")
    requests: int = quantity("requests answered")
    refused: int = quantity("requests refused because its queue was full")
    throughput_per_s: float = quantity("requests answered per second", "1/s")
    latency_mean_s: float | None = quantity("mean time from arrival to answer; null: no answers", "s")
    latency_p50_s: float | None = quantity("median", "s")
    latency_p99_s: float | None = quantity("99th percentile", "s")


class RunIdle(ResultModel):
    """Idle time and energy."""

    time_s: float = quantity("idle time of the device", "s")
    energy_j: float = quantity("energy during idle time", "J")


class RunSample(ResultModel):
    """Time and energy used so far, by tenant."""

    at_s: float = quantity("time since the start", "s")
    time_s: tuple[float, ...] = quantity("device time used so far, by tenant", "s")
    energy_j: tuple[float, ...] = quantity("energy used so far, by tenant", "J")


class TimesliceRunResult(AnswerModel):
    """Answer of ``commonwatt timeslice run``."""

    device: str = quantity("name of the device")
    device_kind: str = quantity("simulated, cpu or cuda")
    enforcement: str = quantity("how the shares are enforced")
    policy: str = quantity("policy that shared the device")
    phi: float = quantity("time-fair factor")
    quantum_s: float = quantity("length of the quantum", "s")
    duration_s: float = quantity("length of the run", "s")
    tenants: tuple[RunTenantResult, ...] = quantity("usage and service of each tenant")
    idle: RunIdle = quantity("idle time and energy")
    meter_j: float | None = quantity("energy by the device's meter, to which all rows sum; null: no meter", "J")
    time_fairness: float | None = quantity(
        "F_T among tenants backlogged for the whole run; null: fewer than two of them"
    )
    energy_fairness: float | None = quantity("F_E among them")
    system_fairness: float | None = quantity("F_S: the smaller of the two")
    steps: int = quantity("steps run, each after one decision")
    scheduling_share: float | None = quantity("fraction of the busy time spent between steps; null in virtual time")
    timeline: tuple[RunSample, ...] = quantity("usage over time")


class TimesliceProfileResult(AnswerModel):
    """Answer of ``commonwatt timeslice profile``."""

    profile: ModelProfile = quantity("the profile, as written to the file")
    written: str | None = quantity("file of the profile; null: not written")
    wall_s: float = quantity("wall-clock time", "s")


class LanguageResult(ResultModel):
    """How a model generates text."""

    most_tokens: int = quantity("most tokens of a prompt and its answer", "tokens")
    kv_cache_tokens: int = quantity("key-value cache; without turns of all tenants with the model", "tokens")
    kv_cache_mb: float = quantity("memory of that cache when it is full", "MB")
    max_sequences: int = quantity("most requests that generate together", "-")
    step_tokens: int = quantity("most tokens in a step, as measured", "tokens")


class ServedModelResult(ResultModel):
    """A served model."""

    tenant: str = quantity("its tenant")
    model: str = quantity("name of the model")
    version: int = quantity("its version")
    segments: int = quantity("number of segments, between which tenants can be switched")
    longest_segment_s: float = quantity("longest segment, as measured when the model was loaded", "s")
    time_s: float = quantity("time of an inference", "s")
    power_w: float = quantity("power of the device during an inference", "W")
    power_source: str = quantity("source of the power")
    most_rows: int | None = quantity("most rows of a batch, so that no step is too long; null: any number")
    together_rows: int | None = quantity("rows up to which waiting requests run together; null: each runs alone")
    undivided: str | None = quantity("why rows of a request cannot be divided; null: they can")
    language: LanguageResult | None = quantity("how it generates text; null: it does not", "-", None)


class IgnoredField(ResultModel):
    """A field of a model repository that is ignored."""

    tenant: str = quantity("the tenant of the repository")
    model: str = quantity("name of the model")
    field: str = quantity("the field of its config.pbtxt")
    reason: str = quantity("what is done instead")


class TimesliceServeResult(AnswerModel):
    """Report of ``commonwatt timeslice serve`` at its start."""

    device: str = quantity("name of the device")
    enforcement: str = quantity("how the shares are enforced")
    policy: str = quantity("policy that shares the device")
    phi: float = quantity("time-fair factor")
    rest: str | None = quantity("host and port of REST; null: checked only")
    grpc: str | None = quantity("host and port of gRPC; null: not served")
    tls: bool = quantity("whether both are encrypted")
    models: tuple[ServedModelResult, ...] = quantity("models loaded at the start")
    ignored: tuple[IgnoredField, ...] = quantity("fields of model repositories that are ignored", "-", ())
