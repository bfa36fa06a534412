"""Requests and results of the control plane's API. Times are seconds since 1970; unknown is null, never 0."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, model_validator

from commonwatt.model.errors import FieldError
from commonwatt.model.fields import AnswerModel, FileModel, ResultModel, quantity

__all__ = [
    "AuditEntry",
    "AuditPage",
    "BudgetState",
    "CapacityState",
    "ClusterSample",
    "ClusterState",
    "EndedArray",
    "EventEntry",
    "EventPage",
    "FairnessOrder",
    "FairnessState",
    "Health",
    "JobConfiguration",
    "JobDetail",
    "JobExplanation",
    "JobOutput",
    "JobPage",
    "JobState",
    "JobsChanged",
    "LedgerEntry",
    "LedgerPage",
    "LoginOffer",
    "ModeOrder",
    "ModeState",
    "NewToken",
    "NodePage",
    "NodeState",
    "PhiOrder",
    "PhiState",
    "PoolState",
    "ProblemDetail",
    "SamplePage",
    "SavingsState",
    "ServeResult",
    "ServicePage",
    "ServiceState",
    "SubmittedArray",
    "SubmittedJob",
    "TenantOrder",
    "TenantPage",
    "TenantShareState",
    "TenantState",
    "TokenEntry",
    "TokenOrder",
    "TokenPage",
    "TokenRole",
    "WhoAmI",
]  # fmt: skip

JobStatusName = Literal["waiting", "running", "completed", "failed", "cancelled"]

TokenRole = Literal["viewer", "admin"]
_ROLE = "viewer: may only read; admin: may also manage its tenant's tokens; null: an ordinary member, or an operator"


class ProblemDetail(ResultModel):
    """Refusal of a request (RFC 9457)."""

    type: str = quantity("kind of problem, a URI", default="about:blank")
    title: str = quantity("name of the status")
    status: int = quantity("HTTP status")
    detail: str = quantity("the problem, in one line")
    field: str | None = quantity("invalid field or parameter", default=None)
    value: str | None = quantity("its value", default=None)
    expected: str | None = quantity("a valid value, as a phrase", default=None)
    reason: str | None = quantity("typed reason: quota or budget; null: none", default=None)
    frees: str | None = quantity("what makes room for the request, as a phrase", default=None)


class JobConfiguration(ResultModel):
    """A configuration of a job, with its expected run time and power."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    gpu_type: str = quantity("type of GPU")
    gpus: int = quantity("number of GPUs", "GPUs")
    time_s: float | None = quantity("run time of the whole job; null: unknown", "s")
    gpu_w: float | None = quantity("power added by each of its GPUs", "W", None)
    source: str = quantity("measured, predicted, similar, declared, history, time limit or unknown")
    earlier_jobs: int | None = quantity("source history: number of ended jobs it comes from", "-", None)
    alike: Literal["name", "kind", "tenant"] | None = quantity(
        "source history: what these jobs share with this one", "-", None
    )
    likely_s: tuple[float, float] | None = quantity(
        "source history: between which times it is in 8 of 10 cases", "s", None
    )


class JobState(ResultModel):
    """A job."""

    id: int = quantity("number of the job")
    name: str = quantity("name of the job")
    tenant: str = quantity("its tenant")
    status: JobStatusName = quantity("status of the job")
    held: bool = quantity("whether the job is on hold: it does not start until it is released")
    submit_s: float = quantity("time of submission", "s")
    due_s: float | None = quantity("due date; null: none", "s")
    began_s: float | None = quantity("time of its first start; null: never started", "s")
    started_s: float | None = quantity("time of its latest start; null: never started", "s")
    ended_s: float | None = quantity("time of its end; null: active", "s")
    attempts: int = quantity("number of starts")
    nodes: tuple[str, ...] = quantity("allocated nodes")
    gpu_type: str | None = quantity("type of its allocated GPUs; null: not running")
    gpus: int = quantity("allocated GPUs, over all its nodes", "GPUs")
    gpus_asked: int = quantity("requested GPUs", "GPUs")
    epochs: int = quantity("epochs of the whole job")
    done_epochs: float = quantity("epochs done")
    kept_epochs: float = quantity("epochs in a checkpoint")
    reason: str | None = quantity("typed reason of the last decision; null: none yet")
    sentence: str | None = quantity("the reason as a sentence")
    expected_start_s: float | None = quantity("expected start; null: running, or unknown", "s")
    expected_end_s: float | None = quantity("expected end; null: unknown", "s")
    late: bool | None = quantity(
        "whether it ended, is running, or is expected to end after its due date; null: no due date"
    )


class SubmittedJob(JobState):
    """An accepted job."""

    warnings: tuple[str, ...] = quantity("fields that may have an unintended effect", default=())


class SubmittedArray(ResultModel):
    """Jobs just accepted: the tasks of an array."""

    jobs: tuple[SubmittedJob, ...] = quantity("one for each task, by index")


class JobDetail(JobState):
    """All about one job, except for the values of its environment variables."""

    command: tuple[str, ...] = quantity("program and arguments")
    image: str | None = quantity("container image")
    folder: str | None = quantity("working directory")
    snapshots: str | None = quantity("folder of its checkpoints")
    environment: tuple[str, ...] = quantity("names of its environment variables")
    kind: str = quantity("label of jobs that scale alike")
    tardiness_weight: float = quantity("cost of each second of lateness", "currency/s")
    time_limit_s: float | None = quantity("time limit of a run", "s")
    configurations: tuple[JobConfiguration, ...] | None = quantity("possible configurations; null: not computed yet")
    energy_j: float | None = quantity("energy so far; null: unknown", "J")
    cost: float | None = quantity("cost of that energy; null: unknown", "currency")
    carbon_g: float | None = quantity("carbon emissions of that energy; null: unknown", "g")
    gpu_s: float | None = quantity("GPU time so far", "GPU s")


class EndedArray(ResultModel):
    """Jobs that have ended: the tasks of an array."""

    jobs: tuple[JobDetail, ...] = quantity("one for each task, by index")


class JobPage(ResultModel):
    """A page of jobs."""

    jobs: tuple[JobState, ...] = quantity("jobs")
    next_cursor: int | None = quantity("`cursor` of the next page; null: last page")
    counts: dict[str, int] = quantity("number of visible jobs by status")


class EventEntry(ResultModel):
    """An entry of the event log."""

    id: int = quantity("number of the event; increasing")
    time_s: float = quantity("time of the event", "s")
    kind: str = quantity("kind of event")
    job: int | None = quantity("number of the job; null: none")
    nodes: tuple[str, ...] = quantity("nodes of the event")
    gpus: int = quantity("GPUs of the event", "GPUs")
    reason: str = quantity("typed reason; empty: none")
    sentence: str = quantity("the reason as a sentence")
    lost_s: float | None = quantity("lost work since the last checkpoint; null: none, or unknown", "s", None)
    requester: str | None = quantity("requester of the change: tenant or operator; null: none, or unknown", "-", None)


class EventPage(ResultModel):
    """A page of events."""

    events: tuple[EventEntry, ...] = quantity("events, oldest first by default")
    next_after: int = quantity("`after` of the next page, which may still be empty")


class JobExplanation(ResultModel):
    """The reason why a job runs where it does, or waits."""

    job: int = quantity("number of the job")
    name: str = quantity("name of the job")
    status: JobStatusName = quantity("status of the job")
    reason: str = quantity("typed reason")
    sentence: str = quantity("the reason as a sentence")
    expected_start_s: float | None = quantity("expected start; null: running, or unknown", "s")
    expected_end_s: float | None = quantity("expected end; null: unknown", "s")
    due_s: float | None = quantity("due date; null: none", "s")
    configurations: tuple[JobConfiguration, ...] | None = quantity("possible configurations; null: not computed yet")
    history: tuple[EventEntry, ...] = quantity("its latest events, at most 1,000, oldest first")


class TenantShareState(ResultModel):
    """What fairness entitles a tenant to, beside what it has and has used."""

    held_gpus: float = quantity("GPUs of its running jobs", "GPUs")
    entitled_gpus: float = quantity("GPUs it was entitled to at the last decision about all jobs", "GPUs")
    used_gpu_s: float = quantity("its decayed GPU time (half-life `half_life_s` of the policy)", "GPU s")
    used_share: float | None = quantity("its part of the decayed GPU time of all tenants; null: none used yet", "share")
    entitled_share: float = quantity("its part of the weights of all tenants that have submitted jobs", "share")
    debt_gpu_s: float = quantity(
        "decayed GPU time it has had less than its entitled share; below 0: more. 0 in sum over all tenants", "GPU s"
    )


class TenantState(ResultModel):
    """Entitlement and usage of a tenant."""

    name: str = quantity("name of the tenant")
    weight: float = quantity("weight relative to the other tenants")
    entitlement: float | None = quantity(
        "weight over the sum of all weights; null: the policy in force does not divide by weight", "share"
    )
    jobs: dict[str, int] = quantity("its jobs by status")
    energy_j: float | None = quantity("energy of its jobs; null: unknown", "J")
    cost: float | None = quantity("cost of that energy; null: unknown", "currency")
    carbon_g: float | None = quantity("carbon emissions of that energy; null: unknown", "g")
    gpu_s: float = quantity("GPU time of its jobs", "GPU s")
    energy_share: float | None = quantity("share of the energy of all jobs; null: unknown, or none used yet", "share")
    gpu_share: float | None = quantity("share of the GPU time of all jobs; null: none used yet", "share")
    fairness: TenantShareState | None = quantity(
        "its share now; null: the policy has no `fairness`, the tenant has not submitted a job, no job asks for "
        "anything, or there is one tenant",
        "-", None,
    )  # fmt: skip


class TenantPage(ResultModel):
    """Tenants."""

    tenants: tuple[TenantState, ...] = quantity("visible tenants, by name")
    phi: float | None = quantity(
        "guaranteed part of a fair share of GPU time; null: the policy has no `fairness`", "-", None
    )
    currency: str = quantity("currency of costs")


class TenantOrder(FileModel):
    """New weight of a tenant."""

    weight: float = quantity("weight relative to the other tenants", "-", 1.0, gt=0, le=1e9)


class NodeState(ResultModel):
    """A node."""

    name: str = quantity("name of the node")
    gpu_type: str = quantity("type of its GPUs")
    gpus: int = quantity("number of its GPUs", "GPUs")
    usable_gpus: int = quantity("GPUs available to jobs", "GPUs")
    held_gpus: int = quantity("GPUs allocated to jobs", "GPUs")
    state: str = quantity("on, waking, asleep or down")
    drained: bool = quantity("whether no further jobs start on it until it is undrained")
    jobs: tuple[int, ...] = quantity("numbers of its visible jobs")
    power_w: float | None = quantity("its power; null: unknown", "W")
    cause: str = quantity("why it is down, or which fault of a GPU drained it, where that is known", default="")
    drain_reason: str = quantity(
        "why it is drained: operator, gpu-xid, gpu-ecc or gpu-hot; empty: it is not", default=""
    )


class NodePage(ResultModel):
    """Nodes."""

    nodes: tuple[NodeState, ...] = quantity("nodes, all unless a page was requested")
    next_after: int | None = quantity("`after` of the next page; null: this is the last", default=None)


class ServiceState(ResultModel):
    """An inference service now, and what its clients got since it was first served."""

    name: str = quantity("name of the service, and of its model in URLs")
    tenant: str = quantity("tenant it belongs to")
    url: str | None = quantity("where clients reach it; null: nowhere yet")
    replicas: int = quantity("replicas that were placed")
    ready: int = quantity("shared GPUs on which its model is loaded")
    nodes: tuple[str, ...] = quantity("node of each shared GPU it is on")
    gpus: float = quantity("GPUs it has reserved, parts included", "GPUs")
    phi: float | None = quantity("largest phi in force on its GPUs; null: none", "share")
    requests_per_s: float = quantity("requests of the last step, by which replicas are sized", "1/s")
    requests: int = quantity("requests")
    late: int = quantity("requests later than the target, or not answered")
    late_share: float | None = quantity("late requests over all; null: none yet", "share")
    unanswered: int = quantity("requests that no replica has answered")
    latency_target_s: float = quantity("latency target", "s")
    quantile: float = quantity("share of requests that must meet it", "share")
    p50_s: float | None = quantity("median latency of answered requests, to 10%; null: unknown", "s")
    p99_s: float | None = quantity("99th percentile of the same", "s")
    energy_j: float | None = quantity("energy of its replicas; null: unknown", "J")
    cost: float | None = quantity("cost of that energy; null: unknown", "currency")
    trouble: str | None = quantity("why its model cannot be loaded; null: it can")
    enforcement: Literal["time-sliced"] = quantity("how its share is kept", "-", "time-sliced")
    sentence: str = quantity("why it has these replicas, as a sentence")


class ServicePage(ResultModel):
    """Services."""

    services: tuple[ServiceState, ...] = quantity("visible services, in the order of the configuration")
    currency: str = quantity("currency of costs")


class PhiOrder(FileModel):
    """New phi of shared GPUs."""

    phi: float = quantity("guaranteed part of the time-fair share of each service", "share", ge=0, le=1)


class PhiState(ResultModel):
    """Phi of shared GPUs, effective at the next tick; raised where a service would miss its target."""

    phi: float = quantity("guaranteed part of the time-fair share of each service", "share")


class FairnessOrder(FileModel):
    """New phi of what the policy guarantees tenants."""

    phi: float = quantity("guaranteed part of a tenant's fair share of GPU time", "share", ge=0, le=1)


class FairnessState(ResultModel):
    """Phi of what the policy guarantees tenants, effective at the next tick."""

    phi: float = quantity("guaranteed part of a tenant's fair share of GPU time", "share")


class ClusterState(ResultModel):
    """The cluster after the last tick of the controller."""

    time_s: float = quantity("time of the tick", "s")
    mode: str = quantity("live, or dry-run: decisions are only recorded")
    engine: str = quantity("engine of the jobs")
    healthy: bool = quantity("whether the last tick succeeded")
    role: Literal["active", "standby"] = quantity("standby: another controller is active, and this shows what it wrote")
    trouble: str | None = quantity("the problem of an unhealthy controller, for operators; null: none")
    power_w: float | None = quantity("power of all nodes; null: unknown", "W")
    busy_gpus: int = quantity("GPUs allocated to jobs", "GPUs")
    total_gpus: int = quantity("GPUs of all nodes", "GPUs")
    running: int = quantity("running jobs; for a tenant its own")
    waiting: int = quantity("waiting jobs; for a tenant its own")
    tick_s: float | None = quantity("duration of the last tick; null before the first", "s")
    ticks: int = quantity("ticks since the start of the controller")
    saved: dict[str, float | str | None] | None = quantity(
        "estimated savings of all jobs against the baseline policy: energy_kwh, cost, baseline (its name), capacity "
        "and baseline_capacity (the capacity plans; null: all nodes stay on), no_forecast (why a plan has no "
        "forecast), ...; null: unknown, or hidden from tenants"
    )
    nodes: tuple[NodeState, ...] = quantity("all nodes; none if they were not requested")


class ModeOrder(FileModel):
    """New mode."""

    mode: Literal["live", "power", "dry-run"] = quantity(
        "live; dry-run: decisions are only recorded; or power: only those of the capacity plan are carried out"
    )


class ModeState(ResultModel):
    """Mode of the controller."""

    mode: str = quantity("requested mode, in effect from the controller's next tick")


class SavingsState(ResultModel):
    """What the policy saves against the baseline, by an estimate."""

    mode: str = quantity("mode of the controller: in a dry run, these are savings that were not made")
    currency: str = quantity("currency of costs")
    saved: dict[str, float | str | None] | None = quantity(
        "as `saved` of the cluster; null: there is no estimate yet, or it is hidden from tenants"
    )


class JobOutput(ResultModel):
    """Output of a job."""

    job: int = quantity("number of the job")
    text: str = quantity("end of the output; invalid UTF-8 is replaced")
    errors: str | None = quantity(
        "end of the standard error, where it goes to a file of its own that can be read; null: it does not", "-", None
    )


class LedgerEntry(ResultModel):
    """A row of the ledger: energy, cost, carbon and GPU time of one tenant's jobs, or outside jobs."""

    row: str = quantity("job, segment (running jobs), idle, starting, lost work, waking, asleep or meter")
    tenant: str | None = quantity("tenant; null: outside jobs")
    energy_uj: int | None = quantity("energy; null: unknown", "µJ")
    cost_n: int | None = quantity("cost of that energy; null: unknown", "1e-9 currency")
    carbon_ug: int | None = quantity("carbon; null: unknown", "µg")
    gpu_us: int = quantity("GPU time", "GPU µs")


class LedgerPage(ResultModel):
    """The ledger; a tenant sees the rows of its own jobs."""

    ledger: tuple[LedgerEntry, ...] = quantity("rows")
    currency: str = quantity("currency of costs")


class PoolState(ResultModel):
    """A pool of nodes at the last capacity plan."""

    name: str | None = quantity("name of the pool; null: all nodes are one pool")
    gpus: int = quantity("GPUs of its nodes", "GPUs")
    on_gpus: int = quantity("GPUs of its nodes that were on, or waking", "GPUs")
    wanted_gpus: int = quantity("GPUs of running jobs, and those that waiting jobs ask for", "GPUs")
    promised_gpus: int = quantity("GPUs the plan keeps on for the next step", "GPUs")
    kept: bool = quantity("whether the promise is being kept")
    sentence: str | None = quantity("why not; null: it is")


class BudgetState(ResultModel):
    """The power budget of the capacity plan."""

    limit_w: float | None = quantity("the budget now; null: none now", "W")
    counted_w: float = quantity("what all nodes count for: those that are on with all GPUs busy", "W")
    nodes_off: int = quantity("nodes that the plan would have kept on, but for the budget")
    waiting_jobs: int = quantity("jobs that wait for power")


class CapacityState(ResultModel):
    """Which GPUs the capacity plan keeps on, and what it did lately."""

    policy: str | None = quantity("policy of the plan; null: there is none, and nodes stay on")
    target: str | None = quantity("what is promised, as it is typed: 0.98, jobs:0.98; null: nothing, or by price")
    pools: tuple[PoolState, ...] = quantity("pools at the last plan; empty: there was none yet")
    budget: BudgetState | None = quantity("power budget; null: none")
    period_s: float = quantity("length of the period that the figures below are of", "s")
    total_gpus: int = quantity("GPUs of the cluster", "GPUs")
    mean_on_gpus: float | None = quantity("GPUs that were on, mean over time; null: unknown", "GPUs")
    mean_wanted_gpus: float | None = quantity("GPUs that were wanted, mean over time; null: unknown", "GPUs")
    served_share: float | None = quantity("share of time with enough GPUs on; null: unknown", "share")


class ClusterSample(ResultModel):
    """The cluster after a tick."""

    time_s: float = quantity("time of the tick", "s")
    busy_gpus: int = quantity("GPUs allocated to jobs", "GPUs")
    power_w: float | None = quantity("power of all nodes; null: unknown", "W")
    running: int | None = quantity("running jobs; null: hidden from tenants")
    waiting: int | None = quantity("waiting jobs; null: hidden from tenants")
    on_gpus: int = quantity("GPUs of nodes that are on", "GPUs")
    wanted_gpus: int | None = quantity("GPUs requested by all jobs; null: hidden from tenants", "GPUs")
    tick_s: float = quantity("duration of the tick", "s")


class SamplePage(ResultModel):
    """The cluster over time."""

    samples: tuple[ClusterSample, ...] = quantity("samples, oldest first")


class AuditEntry(ResultModel):
    """A change, or an attempted change."""

    id: int = quantity("number of the entry")
    at_s: float = quantity("time of the request", "s")
    actor: str = quantity("owner and number of the token; for changes on the store itself, the operating system's user")
    action: str = quantity("the requested action")
    target: str = quantity("its target")
    outcome: str = quantity("done, or refused with an HTTP status")
    detail: dict[str, Any] | None = quantity("details of the action")


class AuditPage(ResultModel):
    """A page of the audit log."""

    audit: tuple[AuditEntry, ...] = quantity("entries, oldest first")
    next_after: int = quantity("`after` of the next page, which may still be empty")


class TokenEntry(ResultModel):
    """A token, without its secret."""

    id: int = quantity("number of the token")
    tenant: str | None = quantity("its tenant; null: an operator's token")
    label: str = quantity("label of the token")
    created_s: float = quantity("time of creation", "s")
    revoked_s: float | None = quantity("time of revocation; null: active", "s")
    role: TokenRole | None = quantity(_ROLE, "-", None)
    expires_s: float | None = quantity("time from which it is not accepted; null: never", "s", None)


class TokenPage(ResultModel):
    """Tokens."""

    tokens: tuple[TokenEntry, ...] = quantity("tokens")


class TokenOrder(FileModel):
    """A token to be created."""

    tenant: str | None = quantity("its tenant; null: an operator's token", "-", min_length=1, max_length=128)
    label: str = quantity("label of the token", "-", "unnamed", min_length=1, max_length=100)
    role: TokenRole | None = quantity(_ROLE, "-", None)
    expires_in_s: float | None = quantity("time until it expires; null: never", "s", None, gt=0, le=1e10)

    @model_validator(mode="after")
    def _of_a_tenant(self) -> TokenOrder:
        if self.role == "admin" and self.tenant is None:
            raise FieldError("a tenant with it; an operator's token needs no role", field="role", value="admin")
        return self


class WhoAmI(ResultModel):
    """Who makes a request: the owner of a token, a person of the identity provider, a Unix user."""

    token: int | None = quantity("number of the token; null: no token of the control plane")
    label: str = quantity("label of the token; else subject and name of the person, or name of the Unix user")
    tenant: str | None = quantity("their tenant; null: all tenants")
    operator: bool = quantity("whether they see what operators see")
    role: TokenRole | None = quantity(_ROLE, "-", None)
    via: Literal["token", "oidc", "socket"] = quantity("what vouches for them", "-", "token")


class LoginOffer(ResultModel):
    """Where people sign in."""

    issuer: str = quantity("URL of the identity provider")
    client_id: str = quantity("client to sign in as")
    scopes: tuple[str, ...] = quantity("scopes to ask for")
    token: Literal["id", "access"] = quantity("which token to send")


class JobsChanged(ResultModel):
    """Jobs that a request changed."""

    jobs: tuple[JobState, ...] = quantity("state of the jobs at the time of the request")


class NewToken(ResultModel):
    """A new token."""

    id: int = quantity("number of the token")
    tenant: str | None = quantity("its tenant; null: an operator's token")
    label: str = quantity("label of the token")
    token: str = quantity("the secret, which is shown once and not stored")
    role: TokenRole | None = quantity(_ROLE, "-", None)
    expires_s: float | None = quantity("time from which it is not accepted; null: never", "s", None)


class Health(ResultModel):
    """Whether the service works."""

    status: Literal["ok", "standby", "failing"] = quantity("ok; standby: another controller is active; failing")
    version: str = quantity("version of commonwatt")


class ServeResult(AnswerModel):
    """Report of ``commonwatt serve`` at its start."""

    url: str = quantity("URL of the server")
    public_url: str | None = quantity("URL for users from the configuration; null: none")
    engine: str = quantity("engine of the jobs")
    nodes: int = quantity("number of nodes")
