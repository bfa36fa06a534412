"""Results of ``commonwatt partition``, ``partition mig`` and ``partition characterize``. Unknown is null, never 0."""

from __future__ import annotations

from commonwatt.model.fields import AnswerModel, ResultModel, quantity

__all__ = [
    "CharacterizeResult",
    "ConfigurationResult",
    "FractionResult",
    "KernelResult",
    "LawResult",
    "LawUse",
    "MigAnswer",
    "MigGpuResult",
    "MigInstanceResult",
    "MigPriceResult",
    "MigResult",
    "MigTenantResult",
    "MigUserResult",
    "PartitionResult",
    "PartitionSweepResult",
    "PartitionTenantResult",
    "PlannedSlice",
    "RunResult",
    "SweepPoint",
]


class LawUse(ResultModel):
    """A share on a chord of a law's concave envelope."""

    core_cluster: str = quantity("name of the core cluster")
    from_pes: float = quantity("PEs it has at least", "PEs")
    to_pes: float = quantity("PEs it has for the rest of the time", "PEs")
    time_part: float = quantity("part of the time it has the larger number")
    lifted: bool = quantity("whether the law itself has a dent or a peak, so that the envelope is above it somewhere")


class PartitionTenantResult(ResultModel):
    """What one tenant gets of a configuration, and why."""

    name: str = quantity("name of the tenant")
    weight: float = quantity("entitlement relative to the other tenants")
    utility: float = quantity("speedup over one base PE, summed over core clusters")
    entitlement_ratio: float = quantity("utility over that of its entitlement")
    spent: tuple[float, ...] | None = quantity("part of its budget spent on each core cluster; null: no prices")
    money_value: float | None = quantity("speedup a little more budget would bring, all budgets summing to 1")
    elasticity: float | None = quantity("percent of speedup that one percent more budget would bring")
    below_one_pe: tuple[str, ...] = quantity(
        "core clusters of which it holds less than one PE: eq. (3.2) overstates it"
    )
    laws: tuple[str, ...] = quantity("scaling law on each core cluster: amdahl, usl or table")
    between: tuple[LawUse, ...] = quantity("where it takes turns between numbers of PEs to be as fast as planned")
    budget_left: float | None = quantity("part of its budget it keeps, having all it can use; null: no prices")
    reason: str = quantity("typed reason: all-of-it, specialised, spread-out, sated, entitled or equalised")
    sentence: str = quantity("the same in one sentence")


class PlannedSlice(ResultModel):
    """How a tenant's share of a core cluster is kept: whole PEs, and parts of the time on more."""

    tenant: str = quantity("name of the tenant")
    core_cluster: str = quantity("name of the core cluster")
    pes: int = quantity("PEs it has all the time", "PEs")
    time_part: float = quantity("part of the time it has turn_pes more (space), or the whole core cluster (time)")
    turn_pes: int = quantity("PEs it has more in that time", "PEs")
    speedup: float = quantity("speedup as planned")
    run_speedup: float = quantity("speedup of a simulated run of this schedule")


class ConfigurationResult(ResultModel):
    """A configuration with its shares."""

    name: str = quantity("name of the configuration")
    core_clusters: tuple[str, ...] = quantity("names of its core clusters")
    pe_count: tuple[float, ...] = quantity("PEs of each", "PEs")
    prices: tuple[float, ...] | None = quantity(
        "price of one PE of each, budgets summing to 1; null: no market", "budget"
    )
    shares: dict[str, tuple[float, ...]] = quantity("PEs of each core cluster, by tenant", "PEs")
    utilities: dict[str, float] = quantity("speedup, by tenant")
    entitlement_utilities: dict[str, float] = quantity(
        "speedup with the weight's part of every core cluster, by tenant"
    )
    nash_welfare: float | None = quantity(
        "product of the utilities, without weights (Definition 3.4.6); null: too large for a number"
    )
    welfare: float = quantity("the welfare that chose; for Nash the logarithm of the weighted geometric mean")
    rank: int = quantity("place by welfare, 1 is chosen")
    iterations: int = quantity("rounds of bidding and steps of Newton's method")
    rounds: int = quantity("of them rounds of bidding")
    residual: float | None = quantity("largest relative gain a tenant still has, and error of clearing and budgets")
    price_change: float | None = quantity("largest change of a price in the last round of bidding", "budget")
    sharing_incentive: bool = quantity("whether everybody has at least its entitlement's utility")
    sharing_incentive_violation: float = quantity("largest relative loss against the entitlement")
    envy: float = quantity("largest relative gain from another's shares, scaled by weight")
    utilization: float = quantity("part of all PE time in which a PE does a tenant's work")
    tenants: tuple[PartitionTenantResult, ...] = quantity("what each tenant gets, and why")
    schedule: tuple[PlannedSlice, ...] = quantity("how the shares are kept")
    price_history: tuple[tuple[float, ...], ...] = quantity("prices from the start, the first 1000", "budget")


class PartitionResult(AnswerModel):
    """Answer of ``commonwatt partition``."""

    mechanism: str = quantity("mechanism that divides a configuration: fisher, entitlement or weighted-equal-speedup")
    welfare: str = quantity("welfare that the chosen configuration maximizes")
    shares: str = quantity("space or time")
    chosen: str = quantity("name of the chosen configuration")
    margin: float | None = quantity(
        "its relative advantage over the next (for Nash: of the weighted geometric mean); null: there is only one"
    )
    reason: str = quantity("typed reason of the choice: best-welfare, tie or only-one")
    sentence: str = quantity("the same in one sentence")
    configurations: tuple[ConfigurationResult, ...] = quantity("all configurations, in the order of the problem")
    enforcement: str = quantity("how the shares are enforced", default="advisory")


class SweepPoint(ResultModel):
    """What is chosen with one weight of the tenant."""

    weight: float = quantity("weight of the tenant")
    chosen: str = quantity("name of the chosen configuration")
    margin: float | None = quantity("its relative advantage over the next; null: there is none")
    welfare: dict[str, float] = quantity(
        "welfare by configuration; for Nash the logarithm of the weighted geometric mean"
    )
    utilities: dict[str, float] = quantity("speedup by tenant in the chosen configuration")


class PartitionSweepResult(AnswerModel):
    """Answer of ``commonwatt partition --sweep-weight``."""

    mechanism: str = quantity("mechanism that divides a configuration: fisher, entitlement or weighted-equal-speedup")
    welfare: str = quantity("welfare that the chosen configuration maximizes")
    tenant: str = quantity("tenant whose weight changes, the others keeping theirs")
    points: tuple[SweepPoint, ...] = quantity("one for each weight, least first")
    sentence: str = quantity("where the choice changes, in one sentence")


# -- characterize


class RunResult(ResultModel):
    """Runs at one number of threads."""

    threads: int = quantity("threads (or processing elements)")
    runs: int = quantity("number of runs")
    median: float = quantity("median time, in the result's unit", "unit")
    spread: float = quantity("most less least over the median")
    speedup: float = quantity("median at one thread over this median")


class FractionResult(ResultModel):
    """One estimate of the parallel fraction."""

    method: str = quantity("karp-flatt, least-squares or counters")
    parallel_fraction: float = quantity("F")
    standard_error: float | None = quantity(
        "of F, from how runs disagree with the law (counters: with each other; one run: a lower bound); null: too few"
    )
    bootstrap_error: float | None = quantity("of F, from how repeats disagree with each other; null: no repeats")
    misfit: float | None = quantity("root mean square relative error of the speedups it predicts; null: none is known")
    clipped: bool = quantity("whether the formula gave a value outside [0, 1]")


class LawResult(ResultModel):
    """One scaling law fitted."""

    law: str = quantity("amdahl, usl (Universal Scalability Law) or table (as measured)")
    parameters: dict[str, float] = quantity("what was fitted")
    misfit: float = quantity("root mean square relative error of the speedups it was fitted to")
    left_out: float | None = quantity("the same for each count predicted from the others; null: too few counts")


class KernelResult(ResultModel):
    """How one program scales."""

    name: str = quantity("name of the program")
    runs: tuple[RunResult, ...] = quantity("by number of threads")
    fractions: tuple[FractionResult, ...] = quantity("estimates of F")
    laws: tuple[LawResult, ...] = quantity("laws fitted, simplest first")
    chosen: str = quantity("law to use")
    law: dict[str, str | float | tuple[float, ...]] = quantity("the same as a partition problem takes it")
    sentence: str = quantity("why, in one sentence")


class CharacterizeResult(AnswerModel):
    """Answer of ``commonwatt partition characterize``."""

    unit: str = quantity("unit of times: s or cycles")
    cpus: int | None = quantity("CPUs this process may use; null: measured elsewhere")
    kernels: tuple[KernelResult, ...] = quantity("programs")
    warnings: tuple[str, ...] = quantity("reasons to doubt the measurements")


# -- MIG


class MigUserResult(ResultModel):
    """A tenant on an instance."""

    tenant: str = quantity("name of the tenant")
    share: float = quantity("part of the instance's time")


class MigInstanceResult(ResultModel):
    """One instance of a GPU."""

    profile: str = quantity("name of the profile")
    start: int = quantity("memory slice it begins at")
    stays: bool = quantity("whether the GPU has it now")
    users: tuple[MigUserResult, ...] = quantity("who uses it; shares below 1 are taken in turns")


class MigGpuResult(ResultModel):
    """How one GPU is cut."""

    name: str = quantity("name of the GPU")
    type: str = quantity("type of GPU")
    certainty: str = quantity("how sure the figures of this type are")
    instances: tuple[MigInstanceResult, ...] = quantity("instances from left to right")
    drained: tuple[str, ...] | None = quantity(
        "present instances that cannot stay; null: its present layout is unknown"
    )
    reason: str = quantity("typed reason: new, unchanged, extended or reconfigured")
    sentence: str = quantity("the same in one sentence")


class MigTenantResult(ResultModel):
    """What one tenant gets."""

    name: str = quantity("name of the tenant")
    weight: float = quantity("budget, all budgets summing to 1")
    utility: float = quantity("its speed in units of its best single instance")
    speed: float = quantity("its speed in its own unit (relative to one SM or slice, if from a parallel fraction)")
    instances: dict[str, float] = quantity("instances of each kind it has, as TYPE/PROFILE; parts are shares of time")
    spent: float | None = quantity("part of all budgets that it pays; null: no prices")
    reason: str = quantity("typed reason: whole-instances, time-shares or at-limit")
    sentence: str = quantity("the same in one sentence")


class MigPriceResult(ResultModel):
    """Price of a kind of instance."""

    instance: str = quantity("TYPE/PROFILE")
    count: int = quantity("number of instances")
    price: float = quantity("price of one, all budgets summing to 1; where there is none: the value of the first")


class MigAnswer(ResultModel):
    """Layouts and who has what, in one mode."""

    mode: str = quantity("market: time shares; integer: whole instances")
    welfare: float = quantity("welfare reached, less the penalty of draining")
    bound: float = quantity("no layout has a larger welfare")
    gap: float = quantity("bound less welfare")
    optimal: bool = quantity("whether the gap is closed")
    tried: int | None = quantity("layouts whose market was solved; null: not counted")
    residual: float | None = quantity("largest relative gain left at the prices, and clearing error; null: no prices")
    prices: tuple[MigPriceResult, ...] = quantity("prices of kinds of instances; none in mode integer")
    gpus: tuple[MigGpuResult, ...] = quantity("GPUs in the order of the problem")
    tenants: tuple[MigTenantResult, ...] = quantity("tenants in the order of the problem")
    drained: int | None = quantity("instances that must drain; null: no present layout is known")
    solve_s: float = quantity("time to solve", "s")


class MigResult(AnswerModel):
    """Answer of ``commonwatt partition mig``."""

    mode: str = quantity("mode of the answer that is chosen")
    welfare_kind: str = quantity("nash, utilitarian or egalitarian")
    chosen: MigAnswer = quantity("the answer in the requested mode")
    other: MigAnswer | None = quantity("the answer in the other mode; null: it has none")
    other_refusal: str | None = quantity("why the other mode has none")
    market_advantage: float | None = quantity(
        "how much more utility time shares give than whole instances, 0.1 being 10% in the weighted geometric mean;"
        " null: not both, or not Nash welfare"
    )  # fmt: skip
    enforcement: str = quantity("how the shares are enforced", default="MIG")
