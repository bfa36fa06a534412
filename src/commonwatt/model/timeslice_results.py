"""What the ``timeslice`` commands answer with. Unknown is null, never 0."""

from __future__ import annotations

from commonwatt.model.fields import AnswerModel, ResultModel, quantity
from commonwatt.model.timeslice_profile import ModelProfile

__all__ = [
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
    """What one tenant gets of a quantum."""

    name: str = quantity("name of the tenant")
    weight: float = quantity("entitlement relative to the other tenants (w)")
    power_w: float = quantity("power of the device while it works for this tenant (P)", "W")
    demand: int | None = quantity("time it can use; null: backlogged", "time units")
    guaranteed: int = quantity("time it has for certain", "time units")
    time: int = quantity("its time slice", "time units")
    energy_j: float = quantity("energy the device uses in its slice", "J")
    reason: str = quantity("typed reason: no-demand, demand-met, guarantee-only or evened-out")
    sentence: str = quantity("the same in one sentence")


class TimeslicePlanResult(AnswerModel):
    """Answer of ``commonwatt timeslice plan``."""

    policy: str = quantity("policy that divided the quantum")
    phi: float = quantity("time-fair factor")
    quantum: int = quantity("length of the quantum (T)", "time units")
    unit_s: float = quantity("length of a time unit", "s")
    phi_fair: float = quantity("largest phi at which ETF is still perfectly energy-fair, units being divisible")
    tenants: tuple[PlanTenantResult, ...] = quantity("slices, in the order of the problem")
    unused: int = quantity("units nobody asks for", "time units")
    time_fairness: float | None = quantity(
        "F_T: least over most time by weight, among tenants that want more than they got; null: nothing to compare"
    )
    energy_fairness: float | None = quantity("F_E: the same for energy")
    system_fairness: float | None = quantity("F_S: the smaller of the two")
    enforcement: str = quantity("what keeps the slices", default="advisory")


class RunTenantResult(ResultModel):
    """What one tenant got in a run."""

    name: str = quantity("name of the tenant")
    weight: float = quantity("entitlement relative to the other tenants (w)")
    power_w: float = quantity("power its slices were computed from in the end", "W")
    power_source: str = quantity(
        "where its energy comes from: measured, profile-measured, profile-modelled, stated or modelled"
    )
    time_s: float = quantity("device time it used", "s")
    energy_j: float = quantity("energy of the device in that time", "J")
    time_share: float | None = quantity("part of the time all tenants used; null: none used any")
    planned_time_share: float | None = quantity("the part its slices promised; null: the policy promises nothing")
    energy_share: float | None = quantity("part of the energy all tenants used")
    planned_energy_share: float | None = quantity("the part its slices promised, at the powers of the plan")
    requests: int = quantity("requests answered")
    refused: int = quantity("requests refused because its queue was full")
    throughput_per_s: float = quantity("requests answered each second of the run", "1/s")
    latency_mean_s: float | None = quantity("mean time from arrival to answer; null: no request ended", "s")
    latency_p50_s: float | None = quantity("median of it", "s")
    latency_p99_s: float | None = quantity("99th percentile of it", "s")


class RunIdle(ResultModel):
    """The row of energy that is nobody's."""

    time_s: float = quantity("time the device did nothing", "s")
    energy_j: float = quantity("energy meanwhile", "J")


class RunSample(ResultModel):
    """What tenants had used by some moment."""

    at_s: float = quantity("time since the start", "s")
    time_s: tuple[float, ...] = quantity("device time used so far, by tenant", "s")
    energy_j: tuple[float, ...] = quantity("energy used so far, by tenant", "J")


class TimesliceRunResult(AnswerModel):
    """Answer of ``commonwatt timeslice run``."""

    device: str = quantity("name of the device")
    device_kind: str = quantity("simulated, cpu or cuda")
    enforcement: str = quantity("what keeps the shares")
    policy: str = quantity("policy that shared the device")
    phi: float = quantity("time-fair factor")
    quantum_s: float = quantity("length of the quantum", "s")
    duration_s: float = quantity("length of the run", "s")
    tenants: tuple[RunTenantResult, ...] = quantity("what each tenant got")
    idle: RunIdle = quantity("time and energy that are nobody's")
    meter_j: float | None = quantity("energy by the device's meter, which all rows sum to; null: it has none", "J")
    time_fairness: float | None = quantity(
        "F_T among tenants backlogged for the whole run; null: fewer than two of them"
    )
    energy_fairness: float | None = quantity("F_E among them")
    system_fairness: float | None = quantity("F_S: the smaller of the two")
    steps: int = quantity("steps run, each after one decision")
    scheduling_share: float | None = quantity(
        "part of the busy wall time that was not spent in steps but between them; null in virtual time"
    )
    timeline: tuple[RunSample, ...] = quantity("use over time")


class TimesliceProfileResult(AnswerModel):
    """Answer of ``commonwatt timeslice profile``."""

    profile: ModelProfile = quantity("the profile, as written to the file")
    written: str | None = quantity("file it was written to; null: none was asked for")
    wall_s: float = quantity("time it took", "s")


class ServedModelResult(ResultModel):
    """A model that is served."""

    tenant: str = quantity("tenant it belongs to")
    model: str = quantity("name of the model")
    segments: int = quantity("segments it is cut into, between which tenants may be switched")
    longest_segment_s: float = quantity("time of the longest of them, as measured when it was loaded", "s")
    time_s: float = quantity("time of an inference", "s")
    power_w: float = quantity("power of the device meanwhile", "W")
    power_source: str = quantity("where the power comes from")


class TimesliceServeResult(AnswerModel):
    """What ``commonwatt timeslice serve`` says once it serves."""

    device: str = quantity("name of the device")
    enforcement: str = quantity("what keeps the shares")
    policy: str = quantity("policy that shares the device")
    phi: float = quantity("time-fair factor")
    rest: str | None = quantity("host and port of the REST protocol; null: only checked")
    grpc: str | None = quantity("host and port of the gRPC protocol; null: not served")
    models: tuple[ServedModelResult, ...] = quantity("models loaded at the start")
