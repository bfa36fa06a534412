"""What ``commonwatt partition`` answers with. Unknown is null, never 0."""

from __future__ import annotations

from commonwatt.model.fields import AnswerModel, ResultModel, quantity

__all__ = [
    "ConfigurationResult",
    "LawUse",
    "PartitionResult",
    "PartitionSweepResult",
    "PartitionTenantResult",
    "PlannedSlice",
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
