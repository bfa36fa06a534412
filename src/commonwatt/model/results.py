"""The documents commands answer with. Unknown is null, never 0."""

from __future__ import annotations

from commonwatt.model.fields import ResultModel, quantity

__all__ = [
    "LedgerRow",
    "PlaceAssignment",
    "PlaceDecision",
    "PlaceResult",
    "PolicyResult",
    "SimulationResult",
    "Spread",
    "SweepPolicy",
    "SweepResult",
    "TenantResult",
]


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


class PlaceResult(ResultModel):
    """Answer of ``commonwatt place``."""

    version: str = quantity("version of commonwatt")
    seed: int = quantity("seed of the random choices")
    input_digest: str = quantity("SHA-256 of the problem as validated")
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

    row: str = quantity("jobs, idle, starting, lost work, waking or total")
    energy_uj: int | None = quantity("energy", "µJ")
    cost_n: int | None = quantity("cost of that energy", "1e-9 currency")
    carbon_ug: int | None = quantity("carbon", "µg")
    gpu_us: int = quantity("GPU time", "GPU µs")


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


class SimulationResult(ResultModel):
    """Answer of ``commonwatt simulate``."""

    version: str = quantity("version of commonwatt")
    seed: int = quantity("seed of everything random")
    input_digest: str = quantity("SHA-256 of the scenario as validated and of the jobs it led to")
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
