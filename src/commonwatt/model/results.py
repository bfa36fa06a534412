"""The documents commands answer with. Unknown is null, never 0."""

from __future__ import annotations

from commonwatt.model.fields import AnswerModel, ResultModel, quantity

__all__ = [
    "CapacityResult",
    "DataCheckResult",
    "DataListResult",
    "DatasetRow",
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
    """A job that runs."""

    job: str = quantity("name of the job")
    node: str = quantity("node it runs on; of a gang, the first")
    nodes: tuple[str, ...] = quantity("all nodes it runs on, with equally many GPUs on each")
    gpus: int = quantity("GPUs over all its nodes", "GPUs")


class PlaceDecision(ResultModel):
    """Why a job runs where it does, or waits."""

    job: str = quantity("name of the job")
    reason: str = quantity("typed reason")
    sentence: str = quantity("the same in one sentence")


class PlaceResult(AnswerModel):
    """Answer of ``commonwatt place``."""

    solver: str = quantity("solver used")
    objective: float = quantity("objective (1)", "currency")
    tardiness_cost: float = quantity("tardiness of jobs that run", "currency")
    postponement_cost: float = quantity("worst-case tardiness of postponed jobs, times rho", "currency")
    first_ending_cost: float = quantity("run costs of the first-ending job of every used node", "currency")
    assignments: tuple[PlaceAssignment, ...] = quantity("jobs that run")
    postponed: tuple[str, ...] = quantity("jobs that wait")
    decisions: tuple[PlaceDecision, ...] = quantity("a reason for every job")
    iterations: int = quantity("candidates tried")
    solve_s: float = quantity("time the solver took", "s")
    optimal: bool | None = quantity("whether the schedule is proven optimal; null if nothing is proven")
    bound: float | None = quantity("proven lower bound on the objective; null if there is none", "currency")
    enforcement: str = quantity("what keeps the decision", default="advisory")


class TenantResult(ResultModel):
    """What one tenant got under one policy."""

    tenant: str = quantity("name of the tenant")
    jobs: int = quantity("jobs")
    late_jobs: int = quantity("jobs that ended after their due date")
    energy_kwh: float | None = quantity("energy of its jobs", "kWh")
    energy_cost: float | None = quantity("cost of that energy", "currency")
    tardiness_cost: float = quantity("cost of lateness", "currency")
    gpu_hours: float = quantity("GPU time of its jobs", "GPU h")
    mean_jct_s: float = quantity("mean time from submission to end", "s")
    mean_wait_s: float = quantity("mean time from submission to first start", "s")


class LedgerRow(ResultModel):
    """A row of the ledger: all jobs together, idle, or a kind of overhead. Rows sum to `total` exactly."""

    row: str = quantity("jobs, idle, starting, lost work, waking, asleep or total")
    energy_uj: int | None = quantity("energy", "µJ")
    cost_n: int | None = quantity("cost of that energy", "1e-9 currency")
    carbon_ug: int | None = quantity("carbon", "µg")
    gpu_us: int = quantity("GPU time", "GPU µs")


class CapacityResult(ResultModel):
    """What planning the power states of nodes did."""

    policy: str = quantity("capacity policy")
    forecaster: str | None = quantity("predictor or model file; null if the policy needs none")
    target: float | None = quantity("share of instants promised; null if nothing is promised")
    plans: int = quantity("plans made")
    slots_served: float = quantity("share of plans at which the GPUs on sufficed for what was wanted just then")
    fallback_plans: int = quantity("plans that kept everything on because no promise could be made")
    mean_gpus_on: float = quantity("mean over time, waking ones included", "GPUs")
    mean_gpus_used: float = quantity("mean over time", "GPUs")
    energy_all_on_kwh: float | None = quantity("energy of the same schedule had no node slept", "kWh")
    saving_pct: float | None = quantity("part of that energy saved", "%")
    jobs_delayed: int = quantity("jobs that waited for nodes to wake")
    mean_delay_s: float | None = quantity("mean over these; null if there are none", "s")
    wakes: int = quantity("times a node was woken")


class PolicyResult(ResultModel):
    """What one policy did with the workload."""

    policy: str = quantity("name of the policy")
    energy_kwh: float | None = quantity("energy at the nodes", "kWh")
    energy_cost: float | None = quantity("cost of energy, PUE included", "currency")
    carbon_kg: float | None = quantity("carbon, PUE included", "kg")
    tardiness_cost: float = quantity("cost of lateness", "currency")
    total_cost: float | None = quantity("energy and tardiness", "currency")
    lower_bound_cost: float = quantity("no scheduler can do it for less", "currency")
    jobs: int = quantity("jobs")
    late_jobs: int = quantity("jobs that ended after their due date")
    mean_jct_s: float = quantity("mean time from submission to end", "s")
    p95_jct_s: float = quantity("95th percentile of it", "s")
    mean_wait_s: float = quantity("mean time from submission to first start", "s")
    p95_wait_s: float = quantity("95th percentile of it", "s")
    makespan_s: float = quantity("time from the first submission to the last end", "s")
    preemptions: int = quantity("times a running job was stopped to wait")
    migrations: int = quantity("times a running job was moved or resized")
    gpu_utilization: float = quantity("GPU time held by jobs over GPU time of the cluster until the last end")
    decisions: int = quantity("rescheduling points")
    scheduler_s: float | None = quantity(
        "wall-clock time spent deciding; null in result.json, which does not depend on the machine", "s", None
    )
    tenants: tuple[TenantResult, ...] = quantity("per tenant")
    ledger: tuple[LedgerRow, ...] = quantity("who the energy, cost and GPU time went to")
    capacity: CapacityResult | None = quantity("what planning capacity did; null if it was not planned", "-", None)


class SimulationResult(AnswerModel):
    """Answer of ``commonwatt simulate``."""

    scenario: str = quantity("name of the scenario")
    workload: str = quantity("where the jobs come from, in one sentence")
    currency: str = quantity("currency of all money")
    jobs: int = quantity("jobs")
    nodes: int = quantity("nodes")
    gpus: int = quantity("GPUs", "GPUs")
    enforcement: str = quantity("what keeps the decisions", default="simulated")
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
    tardiness_cost: Spread = quantity("cost of lateness", "currency")
    total_cost: Spread = quantity("energy and tardiness", "currency")
    lower_bound_cost: Spread = quantity("no scheduler can do it for less", "currency")
    late_jobs: Spread = quantity("jobs that ended after their due date")
    mean_jct_s: Spread = quantity("mean time from submission to end", "s")
    p95_jct_s: Spread = quantity("95th percentile of it", "s")
    mean_wait_s: Spread = quantity("mean time from submission to first start", "s")
    makespan_s: Spread = quantity("time from the first submission to the last end", "s")
    preemptions: Spread = quantity("times a running job was stopped to wait")
    migrations: Spread = quantity("times a running job was moved or resized")
    gpu_utilization: Spread = quantity("GPU time held over GPU time of the cluster")


class SweepResult(ResultModel):
    """Answer of ``commonwatt simulate --seeds N``."""

    version: str = quantity("version of commonwatt")
    seed: int = quantity("first seed")
    seeds: tuple[int, ...] = quantity("all seeds")
    input_digest: str = quantity("SHA-256 of the input digests of all runs, in order")
    scenario: str = quantity("name of the scenario")
    currency: str = quantity("currency of all money")
    policies: tuple[SweepPolicy, ...] = quantity("mean and spread of each policy")
    runs: tuple[SimulationResult, ...] = quantity("the results, one for each seed")


class DatasetRow(ResultModel):
    """A public trace or table of profiles."""

    name: str = quantity("name, also of its format; for a log, `source` of a workload")
    kind: str = quantity("job log or profiles")
    what: str = quantity("what it is")
    files: str = quantity("what to get, and in which forms it is read")
    url: str = quantity("where its publishers keep it")
    licence: str = quantity("its licence")
    found: str | None = quantity("where it lies on this machine; null if it is not at hand")


class FormatRow(ResultModel):
    """A format a log of one's own may have."""

    name: str = quantity("name of the format; `source` of a workload")
    what: str = quantity("what it is")


class DataListResult(ResultModel):
    """Answer of ``commonwatt data list``."""

    version: str = quantity("version of commonwatt")
    folder: str | None = quantity("folder of traces; null if there is none")
    datasets: tuple[DatasetRow, ...] = quantity("what is public")
    formats: tuple[FormatRow, ...] = quantity("what else can be read")


class SizeRow(ResultModel):
    """Jobs alike in one respect."""

    value: str = quantity("number of GPUs, GPU type or tenant; empty: not said")
    jobs: int = quantity("jobs")
    gpu_hours: float = quantity("GPU time of these jobs", "GPU h")


class LogSummary(ResultModel):
    """What a job log holds, so that a cluster can be sized for it."""

    tenants: int = quantity("tenants")
    first: str = quantity("first submission; seconds where the log has no dates")
    last: str = quantity("last submission")
    span_days: float = quantity("time between them", "days")
    complete_from: str | None = quantity("before this the log is known to lack jobs; null if nothing is known")
    gpu_hours: float = quantity("GPU time of all jobs", "GPU h")
    gpu_hours_per_day: float | None = quantity("GPU time submitted a day since then; null for an instant", "GPU h/day")
    still_running: int = quantity("jobs whose run time is cut off by the end of the log")
    left_out: dict[str, int] = quantity("records left out, by reason")
    median_run_s: float = quantity("median run time", "s")
    p95_run_s: float = quantity("95th percentile of it", "s")
    median_wait_s: float | None = quantity("median time to the start; null if the log has no starts", "s")
    peak_gpus: int = quantity("most GPUs in use at once", "GPUs")
    peak_at: str = quantity("when that was first")
    p95_gpus: int = quantity("GPUs that were enough 95% of the time from then to the last submission", "GPUs")
    mean_gpus: float | None = quantity("mean GPUs in use in that time; null for an instant", "GPUs")
    in_use_from: str = quantity("starts: jobs hold GPUs from their logged start; submissions: from their submission")
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
    log: LogSummary | None = quantity("what the log holds; null for profiles")


class ReproduceTopic(ResultModel):
    """A figure or table of a paper that can be run again."""

    name: str = quantity("name, for the command line")
    title: str = quantity("what it is")
    paper: str = quantity("where the paper has it")
    compares: str = quantity("what is compared")


class ReproduceListResult(ResultModel):
    """Answer of ``commonwatt reproduce`` without a name."""

    version: str = quantity("version of commonwatt")
    topics: tuple[ReproduceTopic, ...] = quantity("what can be run again")


class ReproduceRow(ResultModel):
    """One finding of a paper, and ours."""

    quantity: str = _field("what was found")
    paper: bool | float | str | None = _field("the paper's value; null if it is not printed", "as in unit")
    ours: bool | float | str | None = _field("our value; null if it is unknown", "as in unit")
    unit: str = _field("unit of both; - for none")
    comparable: bool = _field("whether the two can be held against each other as they are")
    note: str = _field("why not, or what else to know", default="")


class ReproducePoint(ResultModel):
    """A point of a line of the figure."""

    series: str = _field("the line: a method")
    quantity: str = _field("what is measured")
    x: float = _field("where on the horizontal axis", "as in x_name")
    mean: float | None = _field("mean over the seeds", "as in unit")
    sd: float | None = _field("sample standard deviation; null for one seed", "as in unit")
    unit: str = _field("unit of mean and sd")


class ReproduceResult(ResultModel):
    """Answer of ``commonwatt reproduce NAME``."""

    version: str = quantity("version of commonwatt")
    seed: int = quantity("first seed")
    seeds: tuple[int, ...] = quantity("all seeds")
    input_digest: str = quantity("SHA-256 of what was run")
    name: str = quantity("name of the topic")
    title: str = quantity("what it is")
    paper: str = quantity("where the paper has it")
    extent: str = quantity("quick, default or full")
    rows: tuple[ReproduceRow, ...] = quantity("the paper's findings beside ours")
    x_name: str | None = quantity("what the horizontal axis of the figure is; null if there is none")
    points: tuple[ReproducePoint, ...] = quantity("the lines of the figure")
    story: tuple[str, ...] = quantity("what happened, in order, one sentence each")
    notes: tuple[str, ...] = quantity("what is ours where the paper is silent")
    wall_s: float = quantity("time it took", "s")
