"""What ``commonwatt partition mig`` answers with. Unknown is null, never 0."""

from __future__ import annotations

from commonwatt.model.fields import AnswerModel, ResultModel, quantity

__all__ = [
    "MigAnswer",
    "MigGpuResult",
    "MigInstanceResult",
    "MigPriceResult",
    "MigResult",
    "MigTenantResult",
    "MigUserResult",
]


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
