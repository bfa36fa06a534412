"""What the API of the live control plane answers with. Times are seconds since 1970; unknown is null, never 0."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict

from commonwatt.model.fields import AnswerModel, FileModel, ResultModel, quantity

__all__ = [
    "AuditEntry", "AuditPage", "ClusterState", "EventEntry", "EventPage", "Explanation", "Health", "JobConfiguration",
    "JobDetail", "JobLog", "JobPage", "JobState", "JobsChanged", "LedgerEntry", "LedgerPage", "ModeOrder",
    "ModeState", "NewToken", "NodePage", "NodeState", "Problem", "Sample", "SamplePage", "ServeResult",
    "SubmittedJob", "TenantOrder", "TenantPage", "TenantState", "TokenEntry", "TokenOrder", "TokenPage", "WhoAmI",
]  # fmt: skip

JobStatusName = Literal["waiting", "running", "completed", "failed", "cancelled"]


class Problem(ResultModel):
    """Why a request was refused (RFC 9457)."""

    type: str = quantity("kind of problem, an address", default="about:blank")
    title: str = quantity("the status in words")
    status: int = quantity("status of HTTP")
    detail: str = quantity("what is wrong, in one line")
    field: str | None = quantity("field or parameter at fault", default=None)
    value: str | None = quantity("what it held", default=None)
    expected: str | None = quantity("what would have been right", default=None)


class JobConfiguration(ResultModel):
    """GPUs a job may run on, and what it is expected to take there."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    gpu_type: str = quantity("type of GPU")
    gpus: int = quantity("number of GPUs", "GPUs")
    time_s: float = quantity("run time of the whole job", "s")
    gpu_w: float | None = quantity("power each of its GPUs adds", "W", None)
    source: str = quantity("measured, predicted, similar, declared or time limit")


class JobState(ResultModel):
    """A job."""

    id: int = quantity("number of the job")
    name: str = quantity("name its owner gave it")
    tenant: str = quantity("tenant it belongs to")
    status: JobStatusName = quantity("where it is in its life")
    held: bool = quantity("whether it is kept from running until it is released")
    submit_s: float = quantity("when it was accepted", "s")
    due_s: float | None = quantity("when it should be finished; null: no due date", "s")
    began_s: float | None = quantity("when it first ran; null if it has not", "s")
    started_s: float | None = quantity("when its present or last run began; null if it has not run", "s")
    ended_s: float | None = quantity("when it ended; null if it has not", "s")
    attempts: int = quantity("times it was started")
    nodes: tuple[str, ...] = quantity("nodes it runs on")
    gpu_type: str | None = quantity("type of GPU it runs on; null if it does not run")
    gpus: int = quantity("GPUs it holds, over all its nodes", "GPUs")
    gpus_asked: int = quantity("GPUs its owner asks for", "GPUs")
    epochs: int = quantity("epochs it has to do")
    done_epochs: float = quantity("epochs it has done")
    kept_epochs: float = quantity("epochs that are safe in a snapshot")
    reason: str | None = quantity("typed reason of what it got or did not get; null before anything was decided")
    sentence: str | None = quantity("the same in one sentence")
    expected_start_s: float | None = quantity("when it is expected to start; null if it runs or is unknown", "s")
    expected_end_s: float | None = quantity("when it is expected to end", "s")
    late: bool | None = quantity("whether it ended, or is now, or is expected, after its due date; null: no due date")


class SubmittedJob(JobState):
    """A job just accepted."""

    warnings: tuple[str, ...] = quantity("what its owner may not have meant", default=())


class JobDetail(JobState):
    """Everything about one job; of its environment, the names only."""

    command: tuple[str, ...] = quantity("program and arguments")
    image: str | None = quantity("container image")
    folder: str | None = quantity("working directory")
    snapshots: str | None = quantity("folder of its snapshots")
    environment: tuple[str, ...] = quantity("names of the environment variables given")
    kind: str = quantity("label of jobs that scale alike")
    tardiness_weight: float = quantity("cost of each second of lateness", "currency/s")
    time_limit_s: float | None = quantity("longest time it may run", "s")
    configurations: tuple[JobConfiguration, ...] | None = quantity("GPUs it may run on; null before this is known")
    energy_j: float | None = quantity("energy it is charged for so far; null: unknown", "J")
    cost: float | None = quantity("cost of that energy", "currency")
    carbon_g: float | None = quantity("carbon of it", "g")
    gpu_s: float | None = quantity("GPU time it is charged for so far", "GPU s")


class JobPage(ResultModel):
    """Jobs, a page at a time."""

    jobs: tuple[JobState, ...] = quantity("jobs")
    next_cursor: int | None = quantity("`cursor` of the next page; null: this is the last")
    counts: dict[str, int] = quantity("all jobs one may see, by status")


class EventEntry(ResultModel):
    """A line of the event log."""

    id: int = quantity("number of the event; later ones have larger numbers")
    time_s: float = quantity("when it happened", "s")
    kind: str = quantity("kind of event")
    job: int | None = quantity("number of the job; null: of no job")
    nodes: tuple[str, ...] = quantity("nodes concerned")
    gpus: int = quantity("GPUs concerned", "GPUs")
    reason: str = quantity("typed reason; empty if there is none")
    sentence: str = quantity("the same in one sentence")


class EventPage(ResultModel):
    """Events, a page at a time."""

    events: tuple[EventEntry, ...] = quantity("events, oldest first unless asked for otherwise")
    next_after: int = quantity("`after` of the events that come after these, none so far perhaps")


class Explanation(ResultModel):
    """Why a job runs where it does, or waits."""

    job: int = quantity("number of the job")
    name: str = quantity("name of the job")
    status: JobStatusName = quantity("where it is in its life")
    reason: str = quantity("typed reason")
    sentence: str = quantity("the same in one sentence")
    expected_start_s: float | None = quantity("when it is expected to start; null if it runs or is unknown", "s")
    expected_end_s: float | None = quantity("when it is expected to end; null: unknown", "s")
    due_s: float | None = quantity("when it should be finished; null: no due date", "s")
    configurations: tuple[JobConfiguration, ...] | None = quantity("GPUs it may run on; null before this is known")
    history: tuple[EventEntry, ...] = quantity("what happened to it, oldest first; the last 1,000 events at most")


class TenantState(ResultModel):
    """What a tenant is entitled to, and what it got."""

    name: str = quantity("name of the tenant")
    weight: float = quantity("entitlement relative to the other tenants")
    entitlement: float = quantity("its part of the sum of all weights", "share")
    jobs: dict[str, int] = quantity("its jobs by status")
    energy_j: float | None = quantity("energy of its jobs; null: unknown", "J")
    cost: float | None = quantity("cost of that energy", "currency")
    carbon_g: float | None = quantity("carbon of it", "g")
    gpu_s: float = quantity("GPU time of its jobs", "GPU s")
    energy_share: float | None = quantity("its part of the energy of all jobs; null: unknown or none yet", "share")
    gpu_share: float | None = quantity("its part of the GPU time of all jobs; null: none yet", "share")


class TenantPage(ResultModel):
    """Tenants."""

    tenants: tuple[TenantState, ...] = quantity("tenants one may see, by name")
    currency: str = quantity("currency of costs")


class TenantOrder(FileModel):
    """What a tenant shall be entitled to."""

    weight: float = quantity("entitlement relative to the other tenants", "-", 1.0, gt=0, le=1e9)


class NodeState(ResultModel):
    """A node."""

    name: str = quantity("name of the node")
    gpu_type: str = quantity("type of its GPUs")
    gpus: int = quantity("number of its GPUs", "GPUs")
    usable_gpus: int = quantity("GPUs our jobs may have", "GPUs")
    held_gpus: int = quantity("GPUs our jobs hold", "GPUs")
    state: str = quantity("on, waking, asleep or down")
    drained: bool = quantity("whether it gets no further jobs until it is undrained")
    jobs: tuple[int, ...] = quantity("numbers of the jobs on it that one may see")
    power_w: float | None = quantity("power it draws; null: unknown", "W")


class NodePage(ResultModel):
    """Nodes."""

    nodes: tuple[NodeState, ...] = quantity("all nodes")


class ClusterState(ResultModel):
    """The cluster after the last tick of the controller."""

    time_s: float = quantity("when that was", "s")
    mode: str = quantity("live, or dry-run: decisions are only written down")
    engine: str = quantity("engine jobs run on")
    healthy: bool = quantity("whether the controller works as it should")
    trouble: str | None = quantity("what is wrong, for operators; null: nothing")
    power_w: float | None = quantity("power of all nodes; null: unknown", "W")
    busy_gpus: int = quantity("GPUs jobs hold", "GPUs")
    total_gpus: int = quantity("GPUs of all nodes", "GPUs")
    running: int = quantity("jobs that run; a tenant's own, for a tenant")
    waiting: int = quantity("jobs that wait; a tenant's own, for a tenant")
    tick_s: float | None = quantity("how long the last tick took; null before the first", "s")
    ticks: int = quantity("ticks since the controller was started")
    saved: dict[str, float | str | None] | None = quantity(
        "estimated savings of all jobs against the baseline policy: energy_kwh, cost, baseline (its name), capacity "
        "and baseline_capacity (the plans nodes were on by; null: all were on), no_forecast (why a plan was without "
        "one), ...; null: not known, or asked for by a tenant"
    )
    nodes: tuple[NodeState, ...] = quantity("all nodes")


class ModeOrder(FileModel):
    """Which mode to change to."""

    mode: Literal["live", "dry-run"] = quantity("live, or dry-run: decisions are only written down")


class ModeState(ResultModel):
    """Mode of the controller."""

    mode: str = quantity("mode asked for; the controller takes it up with its next tick")


class JobLog(ResultModel):
    """What a job printed."""

    job: int = quantity("number of the job")
    text: str = quantity("the end of it; what is not UTF-8 is replaced")


class LedgerEntry(ResultModel):
    """Energy, cost, carbon and GPU time of a row of the ledger; of one tenant's jobs, or of no job."""

    row: str = quantity("job, segment (jobs that still run), idle, starting, lost work, waking, asleep or meter")
    tenant: str | None = quantity("tenant; null: of no job")
    energy_uj: int | None = quantity("energy; null: unknown", "µJ")
    cost_n: int | None = quantity("cost of that energy; null: unknown", "1e-9 currency")
    carbon_ug: int | None = quantity("carbon; null: unknown", "µg")
    gpu_us: int = quantity("GPU time", "GPU µs")


class LedgerPage(ResultModel):
    """The ledger; a tenant sees the rows of its own jobs."""

    ledger: tuple[LedgerEntry, ...] = quantity("rows")
    currency: str = quantity("currency of costs")


class Sample(ResultModel):
    """The cluster right after a tick."""

    time_s: float = quantity("when that was", "s")
    busy_gpus: int = quantity("GPUs jobs held", "GPUs")
    power_w: float | None = quantity("power of all nodes; null: unknown", "W")
    running: int | None = quantity("jobs that ran; null: asked for by a tenant")
    waiting: int | None = quantity("jobs that waited; null: asked for by a tenant")
    on_gpus: int = quantity("GPUs of nodes that were on", "GPUs")
    wanted_gpus: int | None = quantity("GPUs all jobs asked for; null: asked for by a tenant", "GPUs")
    tick_s: float = quantity("how long the tick took", "s")


class SamplePage(ResultModel):
    """The cluster over time."""

    samples: tuple[Sample, ...] = quantity("samples, oldest first")


class AuditEntry(ResultModel):
    """Who changed what, or tried to."""

    id: int = quantity("number of the entry")
    at_s: float = quantity("when", "s")
    actor: str = quantity("whose token it was, and its number; on the store itself, the user who did it")
    action: str = quantity("what was asked for")
    target: str = quantity("what it was about")
    outcome: str = quantity("done, or refused with a status of HTTP")
    detail: dict[str, Any] | None = quantity("more about it")


class AuditPage(ResultModel):
    """The audit log, a page at a time."""

    audit: tuple[AuditEntry, ...] = quantity("entries, oldest first")
    next_after: int = quantity("`after` of the next page, which may be empty so far")


class TokenEntry(ResultModel):
    """A token, without its secret."""

    id: int = quantity("number of the token")
    tenant: str | None = quantity("tenant it belongs to; null: an operator's")
    label: str = quantity("what it is for")
    created_s: float = quantity("when it was made", "s")
    revoked_s: float | None = quantity("when it was revoked; null if it was not", "s")


class TokenPage(ResultModel):
    """Tokens."""

    tokens: tuple[TokenEntry, ...] = quantity("tokens")


class TokenOrder(FileModel):
    """A token to be made."""

    tenant: str | None = quantity("tenant it shall belong to; null: an operator's", "-", min_length=1, max_length=128)
    label: str = quantity("what it is for", "-", "unnamed", min_length=1, max_length=100)


class WhoAmI(ResultModel):
    """Whose token it is."""

    token: int = quantity("number of the token")
    label: str = quantity("what it is for")
    tenant: str | None = quantity("tenant it belongs to; null: an operator's")
    operator: bool = quantity("whether it may see and do everything")


class JobsChanged(ResultModel):
    """Jobs something was asked for."""

    jobs: tuple[JobState, ...] = quantity("the jobs as they were just then")


class NewToken(ResultModel):
    """A token just made."""

    id: int = quantity("number of the token")
    tenant: str | None = quantity("tenant it belongs to; null: an operator's")
    label: str = quantity("what it is for")
    token: str = quantity("the token itself; it is shown once and kept nowhere")


class Health(ResultModel):
    """Whether the service works."""

    status: Literal["ok", "failing"] = quantity("ok or failing")
    version: str = quantity("version of commonwatt")


class ServeResult(AnswerModel):
    """What ``commonwatt serve`` says of itself once it takes requests."""

    url: str = quantity("where it is served")
    public_url: str | None = quantity("address people reach it by, if the configuration says so; null if it does not")
    engine: str = quantity("engine that runs the jobs")
    nodes: int = quantity("number of nodes")
