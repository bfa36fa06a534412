"""Results of commands. Unknown is null, never 0."""

from __future__ import annotations

from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from commonwatt.model.fields import AnswerModel, ResultModel, quantity
from commonwatt.model.fleet_results import FleetResult
from commonwatt.model.policies import FairnessResult

__all__ = [
    "CapacityBudgetResult",
    "CapacityPoolResult",
    "CapacityResult",
    "DataCheckResult",
    "DataListResult",
    "DatasetRow",
    "FinishTimeFairness",
    "FormatRow",
    "LedgerRow",
    "LogSummary",
    "PlaceAssignment",
    "PlaceDecision",
    "PlaceResult",
    "PolicyResult",
    "ReproduceListResult",
    "ReproducePoint",
    "ReproduceResult",
    "ReproduceRow",
    "ReproduceTopic",
    "SimulationResult",
    "SizeRow",
    "Spread",
    "SweepPolicy",
    "SweepResult",
    "TenantResult",
]

_field = quantity  # for models with a field called quantity


class PlaceAssignment(ResultModel):
    """Allocation of a job."""

    job: str = quantity("name of the job")
    node: str = quantity("its node; of a gang, the first")
    nodes: tuple[str, ...] = quantity("all its nodes, with equally many GPUs on each")
    gpus: int = quantity("GPUs over all its nodes", "GPUs")


class PlaceDecision(ResultModel):
    """The reason why a job runs where it does, or waits."""

    job: str = quantity("name of the job")
    reason: str = quantity("typed reason")
    sentence: str = quantity("the reason as a sentence")


class PlaceResult(AnswerModel):
    """Answer of ``commonwatt place``."""

    solver: str = quantity("solver used")
    objective: float = quantity("objective (1)", "currency")
    tardiness_cost: float = quantity("tardiness cost of running jobs", "currency")
    postponement_cost: float = quantity("worst-case tardiness of postponed jobs, times rho", "currency")
    first_ending_cost: float = quantity("run costs of the first-ending job of every used node", "currency")
    assignments: tuple[PlaceAssignment, ...] = quantity("running jobs")
    postponed: tuple[str, ...] = quantity("waiting jobs")
    decisions: tuple[PlaceDecision, ...] = quantity("the reason for every job")
    iterations: int = quantity("candidates tried")
    solve_s: float = quantity("time of the solver", "s")
    optimal: bool | None = quantity("whether the schedule is proven optimal; null: not known")
    bound: float | None = quantity("proven lower bound on the objective; null: none", "currency")
    enforcement: str = quantity("how the decision is enforced", default="advisory")


class TenantResult(ResultModel):
    """Usage and service of a tenant under a policy."""

    tenant: str = quantity("name of the tenant")
    jobs: int = quantity("jobs")
    late_jobs: int = quantity("jobs that ended after their due date")
    energy_kwh: float | None = quantity("energy of its jobs", "kWh")
    energy_cost: float | None = quantity("cost of that energy", "currency")
    tardiness_cost: float = quantity("tardiness cost", "currency")
    gpu_hours: float = quantity("GPU time of its jobs", "GPU h")
    mean_jct_s: float = quantity("mean time from submission to end", "s")
    mean_wait_s: float = quantity("mean time from submission to first start", "s")
    p50_wait_s: float = quantity("median of it", "s")
    p95_wait_s: float = quantity("95th percentile", "s")
    p99_wait_s: float = quantity("99th percentile", "s")
    longest_wait_s: float = quantity("longest", "s")


class LedgerRow(ResultModel):
    """A row of the ledger: all jobs together, idle, or a kind of overhead. Rows sum to `total` exactly."""

    row: str = quantity("jobs, idle, starting, lost work, waking, asleep or total")
    energy_uj: int | None = quantity("energy", "µJ")
    cost_n: int | None = quantity("cost of that energy", "1e-9 currency")
    carbon_ug: int | None = quantity("carbon", "µg")
    gpu_us: int = quantity("GPU time", "GPU µs")


class CapacityPoolResult(ResultModel):
    """Effect of capacity planning in one pool. Means are over the plans."""

    name: str = quantity("name of the pool")
    gpus: int = quantity("GPUs its jobs may use; those of nodes of several pools count in each", "GPUs")
    promise: str | None = quantity("what is promised, as it is typed; null: nothing")
    mean_wanted_gpus: float = quantity("mean GPUs of running and waiting jobs", "GPUs")
    mean_promised_gpus: float = quantity("mean GPUs promised for the next step", "GPUs")
    mean_gpus_on: float = quantity("mean GPUs on, including waking nodes", "GPUs")
    slots_served: float = quantity("share of plans at which enough GPUs were on for the demand")
    fallback_plans: int = quantity("plans that kept all its nodes on because no promise was possible")
    jobs: int = quantity("its jobs that started")
    jobs_delayed: int = quantity("those that waited for nodes to wake")
    mean_delay_s: float | None = quantity("mean delay of these; null: none", "s")


class CapacityBudgetResult(ResultModel):
    """Effect of the power budget of a capacity plan."""

    power_kw: float | None = quantity("the constant limit; null: only that of the electricity over time", "kW")
    binding: int = quantity("plans that it kept from having as many nodes on as they would have")
    jobs_delayed: int = quantity("jobs that waited for power")
    mean_delay_s: float | None = quantity("mean time these waited for it; null: none", "s")
    sentence: str = quantity("when it bound, and who waited")


class CapacityResult(ResultModel):
    """Effect of capacity planning."""

    policy: str = quantity("capacity policy")
    forecaster: str | None = quantity("predictor or model file; null: none needed")
    target: float | None = quantity("promised share, or GPU hours of waiting a day; null: no promise")
    promise_of: str | None = quantity("instants, jobs, delay_s or delayed_gpu_h; null: no promise")
    plans: int = quantity("plans made")
    slots_served: float = quantity("share of plans at which enough GPUs were on for the demand")
    fallback_plans: int = quantity("plans that kept all nodes on because no promise was possible")
    mean_gpus_on: float = quantity("mean GPUs on over time, including waking nodes", "GPUs")
    mean_gpus_used: float = quantity("mean GPUs allocated over time", "GPUs")
    energy_all_on_kwh: float | None = quantity("energy of the same schedule with all nodes on", "kWh")
    saving_pct: float | None = quantity("saving, relative to that energy", "%")
    jobs_delayed: int = quantity("jobs that waited for nodes to wake")
    mean_delay_s: float | None = quantity("mean delay of these jobs; null: none", "s")
    wakes: int = quantity("number of wakes of nodes")
    jobs_served: float | None = quantity("share of started jobs that waited for no node to wake; null: none started")
    p95_delay_s: float | None = quantity("delay that 95% of started jobs did not exceed; null: none started", "s")
    p99_delay_s: float | None = quantity("delay that 99% of started jobs did not exceed; null: none started", "s")
    pools: tuple[CapacityPoolResult, ...] = quantity("each pool; empty: there is one pool", "-", ())
    budget: CapacityBudgetResult | None = quantity("effect of the power budget; null: there is none", "-", None)


class FinishTimeFairness(ResultModel):
    """Time to finish under the policy over time to finish with 1/n of the cluster (rho of Themis, NSDI 2020), per job.

    Above 1: the job would have ended earlier had its tenant had that part of the cluster to itself. There its jobs run
    in order of submission, with what they requested; n is the same for all policies.
    """

    worst: float = quantity("largest over all jobs")
    mean: float = quantity("mean over all jobs")
    active_tenants: float = quantity("n: mean number of tenants with a job to run, over the time with any")
    gpus_of_each: int = quantity("GPUs of 1/n of the cluster", "GPUs")


class PolicyResult(ResultModel):
    """Results of one policy on the workload."""

    policy: str = quantity("name of the policy")
    energy_kwh: float | None = quantity("energy at the nodes", "kWh")
    energy_cost: float | None = quantity("cost of energy, PUE included", "currency")
    carbon_kg: float | None = quantity("carbon, PUE included", "kg")
    tardiness_cost: float = quantity("tardiness cost", "currency")
    total_cost: float | None = quantity("energy and tardiness", "currency")
    lower_bound_cost: float = quantity("lower bound on the total cost of any scheduler", "currency")
    jobs: int = quantity("jobs")
    late_jobs: int = quantity("jobs that ended after their due date")
    mean_jct_s: float = quantity("mean time from submission to end", "s")
    p95_jct_s: float = quantity("95th percentile", "s")
    mean_wait_s: float = quantity("mean time from submission to first start", "s")
    p50_wait_s: float = quantity("median", "s")
    p95_wait_s: float = quantity("95th percentile", "s")
    p99_wait_s: float = quantity("99th percentile", "s")
    longest_wait_s: float = quantity("longest time from submission to first start", "s")
    mean_total_wait_s: float = quantity("mean time without GPUs from submission to end, after preemptions too", "s")
    p99_total_wait_s: float = quantity("99th percentile", "s")
    longest_total_wait_s: float = quantity("longest", "s")
    slowdown_p50: float = quantity(
        "median of the bounded slowdown: time from submission to end, over run time in the requested configuration of "
        "at least 10 s; 1 at least (Feitelson and Rudolph, JSSPP 1998)"
    )
    slowdown_p99: float = quantity("99th percentile")
    finish_time_fairness: FinishTimeFairness = quantity("finish-time fairness of the jobs")
    most_starts: int = quantity("largest number of starts of a job, moves and restarts included")
    makespan_s: float = quantity("time from the first submission to the last end", "s")
    preemptions: int = quantity("number of times a running job was stopped to wait")
    migrations: int = quantity("number of times a running job was moved or resized")
    gpu_utilization: float = quantity("allocated GPU time over GPU time of the cluster until the last end")
    window_energy_kwh: float | None = quantity(
        "energy from the first submission to the last, and of the work unfinished then; null: unknown", "kWh"
    )
    window_cost: float | None = quantity("cost of that energy, PUE included", "currency")
    window_gpu_utilization: float | None = quantity(
        "allocated GPU time over GPU time of the cluster in that time; null: it has no length"
    )
    unfinished_energy_kwh: float | None = quantity(
        "of window_energy_kwh, unfinished work: remaining share of each job x its energy as requested", "kWh"
    )
    tail_s: float = quantity("time from the last submission to the last end", "s")
    tail_energy_kwh: float | None = quantity("energy metered in that time, which window_energy_kwh leaves out", "kWh")
    decisions: int = quantity("rescheduling points")
    scheduler_s: float | None = quantity(
        "wall-clock time spent deciding; null in result.json, which does not depend on the machine", "s", None
    )
    tenants: tuple[TenantResult, ...] = quantity("per tenant")
    ledger: tuple[LedgerRow, ...] = quantity("distribution of energy, cost and GPU time")
    capacity: CapacityResult | None = quantity("effect of capacity planning; null: not planned", "-", None)
    fleet: FleetResult | None = quantity(
        "services, fractional jobs and shared GPUs; absent: the scenario has none", "-", None
    )

    fairness: FairnessResult | None = quantity(
        "GPU time received against entitled; absent: no policy of the scenario has `fairness`", "-", None
    )

    @model_serializer(mode="wrap")
    def _without_fleet(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = handler(self)
        for name in ("fleet", "fairness"):
            if getattr(self, name) is None:
                document.pop(name, None)
        return document


class SimulationResult(AnswerModel):
    """Answer of ``commonwatt simulate``."""

    scenario: str = quantity("name of the scenario")
    workload: str = quantity("source of the jobs, as a sentence")
    currency: str = quantity("currency of all costs")
    jobs: int = quantity("jobs")
    nodes: int = quantity("nodes")
    gpus: int = quantity("GPUs", "GPUs")
    enforcement: str = quantity("how the decisions are enforced", default="simulated")
    treatments: dict[str, int] = quantity(
        "jobs left out, or not taken as the log has them, and nodes without power: how many, by what was done",
        "-",
        dict,
    )
    policies: tuple[PolicyResult, ...] = quantity("one for each policy, in the order of the scenario")


class Spread(ResultModel):
    """A number over several seeds."""

    mean: float | None = quantity("mean over the seeds", "of the number")
    sd: float | None = quantity("sample standard deviation over the seeds", "of the number")


class SweepPolicy(ResultModel):
    """One policy over several seeds; the numbers are those of `PolicyResult`."""

    policy: str = quantity("name of the policy")
    energy_kwh: Spread = quantity("energy at the nodes", "kWh")
    energy_cost: Spread = quantity("cost of energy", "currency")
    tardiness_cost: Spread = quantity("tardiness cost", "currency")
    total_cost: Spread = quantity("energy and tardiness", "currency")
    lower_bound_cost: Spread = quantity("lower bound on the total cost of any scheduler", "currency")
    late_jobs: Spread = quantity("jobs that ended after their due date")
    mean_jct_s: Spread = quantity("mean time from submission to end", "s")
    p95_jct_s: Spread = quantity("95th percentile", "s")
    mean_wait_s: Spread = quantity("mean time from submission to first start", "s")
    longest_wait_s: Spread = quantity("longest", "s")
    slowdown_p99: Spread = quantity("99th percentile of the bounded slowdown")
    window_energy_kwh: Spread = quantity("energy in the common window", "kWh")
    window_cost: Spread = quantity("cost of that energy", "currency")
    makespan_s: Spread = quantity("time from the first submission to the last end", "s")
    preemptions: Spread = quantity("number of times a running job was stopped to wait")
    migrations: Spread = quantity("number of times a running job was moved or resized")
    gpu_utilization: Spread = quantity("allocated GPU time over GPU time of the cluster")


class SweepResult(ResultModel):
    """Answer of ``commonwatt simulate --seeds N``."""

    version: str = quantity("version of commonwatt")
    seed: int = quantity("first seed")
    seeds: tuple[int, ...] = quantity("all seeds")
    input_digest: str = quantity("SHA-256 of the input digests of all runs, in order")
    scenario: str = quantity("name of the scenario")
    currency: str = quantity("currency of all costs")
    policies: tuple[SweepPolicy, ...] = quantity("mean and spread of each policy")
    runs: tuple[SimulationResult, ...] = quantity("the results, one for each seed")


class DatasetRow(ResultModel):
    """A public trace or table of profiles."""

    name: str = quantity("name of the dataset and its format; for a log, the `source` of a workload")
    kind: str = quantity("job log or profiles")
    what: str = quantity("what it is")
    files: str = quantity("files to download, and the formats that are read")
    url: str = quantity("URL of the publisher")
    licence: str = quantity("its licence")
    found: str | None = quantity("path on this machine; null: not available")


class FormatRow(ResultModel):
    """A format for your own logs."""

    name: str = quantity("name of the format; `source` of a workload")
    what: str = quantity("what it is")


class DataListResult(ResultModel):
    """Answer of ``commonwatt data list``."""

    version: str = quantity("version of commonwatt")
    folder: str | None = quantity("folder of traces; null: none")
    datasets: tuple[DatasetRow, ...] = quantity("public datasets")
    formats: tuple[FormatRow, ...] = quantity("other readable formats")


class SizeRow(ResultModel):
    """Jobs of equal size, type or tenant."""

    value: str = quantity("number of GPUs, GPU type or tenant; empty: unknown")
    jobs: int = quantity("jobs")
    gpu_hours: float = quantity("GPU time of these jobs", "GPU h")


class LogSummary(ResultModel):
    """Summary of a job log, for sizing a cluster."""

    tenants: int = quantity("tenants")
    first: str = quantity("first submission; seconds where the log has no dates")
    last: str = quantity("last submission")
    span_days: float = quantity("time between them", "days")
    complete_from: str | None = quantity("time before which the log lacks jobs; null: not known")
    gpu_hours: float = quantity("GPU time of all jobs", "GPU h")
    gpu_hours_per_day: float | None = quantity(
        "GPU time submitted per day since then; null for an instant", "GPU h/day"
    )
    still_running: int = quantity("jobs still running at the end of the log")
    left_out: dict[str, int] = quantity("records left out, by reason")
    treated: dict[str, int] = quantity("jobs not taken as the log has them, by what was done")
    median_run_s: float = quantity("median run time", "s")
    p95_run_s: float = quantity("95th percentile", "s")
    median_wait_s: float | None = quantity("median wait; null: no start times, or none but the submissions", "s")
    peak_gpus: int = quantity("most GPUs in use at once", "GPUs")
    peak_at: str = quantity("first time of that peak")
    p95_gpus: int = quantity("GPUs that were enough 95% of the time from complete_from to the last submission", "GPUs")
    mean_gpus: float | None = quantity("mean GPUs in use in that time; null for an instant", "GPUs")
    in_use_from: str = quantity("starts: GPUs count from the logged start of a job; submissions: from its submission")
    by_gpus: tuple[SizeRow, ...] = quantity("by GPUs of a job, fewest first")
    by_gpu_type: tuple[SizeRow, ...] = quantity("by GPU type, most GPU time first")
    by_tenant: tuple[SizeRow, ...] = quantity("by tenant, most GPU time first")
    workload: str = quantity("workload of a scenario for the week of most GPU time, as YAML")


class DataCheckResult(ResultModel):
    """Answer of ``commonwatt data check``."""

    version: str = quantity("version of commonwatt")
    input_digest: str = quantity("SHA-256 of the file")
    file: str = quantity("the file")
    format: str = quantity("the format it was read as")
    rows: int = quantity("jobs, or profiles of a model at a batch size")
    gpu_types: tuple[str, ...] = quantity("GPU types named")
    log: LogSummary | None = quantity("summary of the log; null for profiles")


class ReproduceTopic(ResultModel):
    """A figure or table of a paper that can be reproduced."""

    name: str = quantity("name, for the command line")
    title: str = quantity("what it is")
    paper: str = quantity("place in the paper")
    compares: str = quantity("compared quantities")


class ReproduceListResult(ResultModel):
    """Answer of ``commonwatt reproduce`` without a name."""

    version: str = quantity("version of commonwatt")
    topics: tuple[ReproduceTopic, ...] = quantity("topics")


class ReproduceRow(ResultModel):
    """A finding of a paper beside the reproduced one."""

    quantity: str = _field("the quantity")
    paper: bool | float | str | None = _field("the paper's value; null: not published", "as in unit")
    ours: bool | float | str | None = _field("the reproduced value; null: unknown", "as in unit")
    unit: str = _field("unit of both; - for none")
    comparable: bool = _field("whether the two values can be compared directly")
    note: str = _field("why not, or other remarks", default="")
    held_pct: float | None = _field(
        "part of the draws of unpublished inputs for which it is yes; null: not drawn", "%", default=None
    )


class ReproducePoint(ResultModel):
    """A point of a line of the figure."""

    series: str = _field("the line: a method")
    quantity: str = _field("what is measured")
    x: float = _field("position on the horizontal axis", "as in x_name")
    mean: float | None = _field("mean over the seeds", "as in unit")
    sd: float | None = _field("sample standard deviation; null for one seed", "as in unit")
    unit: str = _field("unit of mean and sd")


class ReproduceResult(ResultModel):
    """Answer of ``commonwatt reproduce NAME``."""

    version: str = quantity("version of commonwatt")
    seed: int = quantity("first seed")
    seeds: tuple[int, ...] = quantity("all seeds")
    input_digest: str = quantity("SHA-256 of the inputs")
    name: str = quantity("name of the topic")
    title: str = quantity("what it is")
    paper: str = quantity("place in the paper")
    extent: str = quantity("quick, default or full")
    rows: tuple[ReproduceRow, ...] = quantity("the paper's findings beside ours")
    x_name: str | None = quantity("quantity on the horizontal axis; null: none")
    points: tuple[ReproducePoint, ...] = quantity("the lines of the figure")
    story: tuple[str, ...] = quantity("events in order, as sentences")
    notes: tuple[str, ...] = quantity("assumptions where the paper gives no values")
    wall_s: float = quantity("wall-clock time", "s")
