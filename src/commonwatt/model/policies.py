"""The policies of a scenario: solvers, what they know, the limits that hold under each; fairness, and its results."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field

from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.errors import FieldError
from commonwatt.model.fields import FileModel, PluginName, ResultModel, quantity
from commonwatt.model.fleet import SharingSpec
from commonwatt.model.plugins import valid_name
from commonwatt.model.units import DAY_S

__all__ = [
    "LIMIT_POWER",
    "RESIZING",
    "SOLVER_NAMES",
    "WEIGH_ENERGY",
    "FairnessResult",
    "FairnessSpec",
    "Knowledge",
    "Objective",
    "PeerName",
    "PolicyLimits",
    "PolicySpec",
    "PowerLimits",
    "Preemption",
    "PriceWait",
    "Rounds",
    "SolverChoice",
    "SolverName",
    "TenantShareResult",
    "UnusedNodes",
    "default_policies",
]

SolverName = Literal[
    "lookahead", "local-search", "random-greedy", "exact", "fifo", "edf", "priority", "srtf", "easy", "fair-share"
]
PeerName = Literal["las", "gavel", "themis", "qssf", "lucid", "drf", "sia", "pollux", "powerflow", "completion"]
SOLVER_NAMES: tuple[str, ...] = (*get_args(SolverName), *get_args(PeerName))


def _installed(name: str) -> str:
    return valid_name("solvers", name, SOLVER_NAMES)


SolverChoice = Annotated[SolverName | PeerName | PluginName, AfterValidator(_installed)]
"""A solver of ours, or the name of a plugin that is installed."""
Objective = Literal["max-min", "finish-time", "min-jct", "makespan", "max-sum", "fifo"]
Knowledge = Literal["oracle", "user-limit", "predicted", "none"]


class Preemption(FileModel):
    """Cost of stopping and moving a job."""

    allowed: bool = quantity("whether running jobs can be stopped or moved", "-", True)  # noqa: FBT003
    restart_s: float = quantity("time from allocation until a restarted job makes progress", "s", 60.0, ge=0)
    lose_work: bool = quantity(
        "whether the work since the last checkpoint is lost; false, with restart_s 0, is the simulator of ANDREAS",
        "-",
        True,  # noqa: FBT003
    )
    first_start: bool = quantity("whether the first start of a job takes `restart_s` too", "-", False)  # noqa: FBT003


class Rounds(FileModel):
    """Rounds: decisions only at multiples of their length, after time 0; GPUs freed in between wait for the next."""

    length_s: float = quantity("length of a round; it is also the `interval_s` of decisions", "s", gt=0)


class UnusedNodes(FileModel):
    """Power state of unused nodes."""

    state: str | None = quantity("low-power state (a name in the node's `states`); null: the node stays on", "-", "off")
    after_s: float = quantity("time without jobs before it enters the state", "s", 0.0, ge=0)


class PolicyLimits(FileModel):
    """What a policy guarantees, whichever solver it uses: limits on waiting, and on being stopped and moved."""

    reserve_after_s: float | None = quantity(
        "time since submission after which GPUs are reserved for the oldest waiting job; what starts later may not "
        "delay it, and once started it is not stopped, though it may be moved; null: no reservation",
        "s", None, ge=0,
    )  # fmt: skip
    max_deliberate_wait_s: float | None = quantity(
        "time a job may wait although it could run, over its life; then it starts at the next decision that finds "
        "room; backfill keeps its own reservation; null: no limit",
        "s", None, ge=0,
    )  # fmt: skip
    max_starts: int | None = quantity(
        "starts and moves of a job; it is not stopped or moved after the last; null: no limit", "-", None, ge=1
    )
    min_run_s: float | None = quantity("time a job runs before it may be stopped or moved; null: none", "s", None, ge=0)


class PriceWait(FileModel):
    """Waiting for a lower price: jobs are held until they cost least, of all times at which they end in time."""

    minimise: Literal["cost", "carbon"] = quantity("what a job waits to have less of", "-", "cost")
    carbon_price_per_kg: float = quantity(
        "what a kilogram of CO2 counts for beside the price, in this plan only", "currency/kg", 0.0, ge=0
    )
    may_wait_s: float = quantity(
        "time since submission that a job without a due date may wait; 0: it does not wait", "s", 0.0, ge=0
    )
    margin_s: float = quantity("time before its due date by which a job that waited must end", "s", 600.0, ge=0)
    sure: float = quantity("probability with which it does, where run times are not certain", "-", 0.9, gt=0, le=1)
    least_saving: float = quantity(
        "part of the cost of its energy that a job must save by waiting", "-", 0.05, ge=0, lt=1
    )
    delay_cost_per_h: float = quantity(
        "what an hour of waiting counts for, for each job; above 0, a job may wait longer than "
        "`limits.max_deliberate_wait_s` where it saves more than that",
        "currency/h", 0.0, ge=0,
    )  # fmt: skip
    preempt: bool = quantity(
        "whether jobs also pause while the price is high, where that saves more than their restart and the work since "
        "the last checkpoint cost",
        "-",
        False,  # noqa: FBT003
    )
    known_s: float | None = quantity(
        "how far ahead prices are known; null: to the end of the series, whose last value then holds", "s", None, gt=0
    )


def _increasing(limits: tuple[float, ...]) -> tuple[float, ...]:
    for earlier, later in pairwise(limits):
        if later <= earlier:
            raise FieldError("increasing numbers", value=f"{later:g} after {earlier:g}")
    return limits


PowerLimits = Annotated[tuple[Annotated[float, Field(ge=0.5, lt=1)], ...], AfterValidator(_increasing)]


class PolicySpec(FileModel):
    """A policy to run the workload under."""

    solver: SolverChoice = quantity(
        "solver that places jobs, one of these or an installed plugin; las, gavel, themis, qssf, lucid and drf are "
        "published schedulers, which do not resize jobs (lucid puts two on the same GPUs, in simulations only), sia, "
        "pollux and powerflow are some that do, and completion plans completion times",
        "-",
    )
    name: str | None = quantity("name in the results; absent: the solver's name", "-", None)
    iterations: int = quantity("randomized greedy: candidates (MaxIt_RG); local search: steps", "-", 1000, ge=1)
    placements: int | None = quantity(
        "randomized greedy: limit of job placements per decision, over all candidates; counted rather than timed, so "
        "that results do not depend on the machine (10,000 take a few milliseconds); null: no limit",
        "-", 10_000, ge=1,
    )  # fmt: skip
    aim: Literal["plan", "objective"] = quantity(
        "local search: the cost of a plan to the end of all jobs, or eq. (1) of ANDREAS", "-", "plan"
    )
    time_limit_s: float | None = quantity(
        "exact: time limit of a decision, which makes results depend on the machine", "s", 10.0, gt=0
    )
    fair_share_weight: float = quantity("fair-share: weight of the fair-share factor; age has weight 1", "-", 2.0, ge=0)
    half_life_s: float = quantity("fair-share: half-life of a tenant's usage", "s", 7 * 86400.0, gt=0)
    preemption: Preemption | None = quantity("overrides the scenario's", "-", None)
    unused_nodes: UnusedNodes | None = quantity("overrides the scenario's", "-", None)
    capacity: CapacitySpec | None = quantity("overrides the scenario's", "-", None)
    size_weight: float = quantity(
        "fair-share: weight of the size factor, the part of all GPUs a job asks for (PriorityWeightJobSize)", "-", 0.0,
        ge=0,
    )  # fmt: skip
    qos_weight: float = quantity(
        "fair-share: weight of the QOS factor, a job's `qos.priority` over the highest of all (PriorityWeightQOS)", "-",
        0.0, ge=0,
    )  # fmt: skip
    max_age_s: float = quantity("fair-share: age at which the age factor is 1 (PriorityMaxAge)", "s", 7 * 86400.0, gt=0)
    backfill_depth: int = quantity("easy, fair-share: waiting jobs examined (bf_max_job_test)", "jobs", 1000, ge=1)
    work_conserving: bool = quantity(
        "lookahead, local-search: whether a job starts as soon as a configuration it may have is free, instead of "
        "waiting for one of less energy until its due date presses; without due dates it would wait for ever",
        "-",
        False,  # noqa: FBT003
    )
    slowdown_price: float = quantity(
        "lookahead: what it costs in a plan if a job takes once more its run time (of at least 10 min), beside energy "
        "and tardiness; 0: nothing. The larger, the less jobs wait and the more energy they take",
        "currency", 0.0, ge=0,
    )  # fmt: skip
    gpu_type_choice: Literal["fastest", "thrifty"] = quantity(
        "easy, fair-share: of the free GPU types, the fastest that was asked for, or the one that takes least energy "
        "for the requested size",
        "-", "fastest",
    )  # fmt: skip
    idle_power: Literal["counted", "sunk"] = quantity(
        "whether the solver counts the idle power of the nodes it uses, or takes it as drawn anyway, as it is where "
        "unused nodes stay on",
        "-", "counted",
    )  # fmt: skip
    price: Literal["series", "mean"] = quantity(
        "price of electricity the solver sees: as it changes over time, or its mean; costs are always as it changes",
        "-", "series",
    )  # fmt: skip
    knowledge: Knowledge | None = quantity("overrides the scenario's", "-", None)
    rounds: Rounds | None = quantity("overrides the scenario's", "-", None)
    objective: Objective = quantity(
        "gavel: what its linear program optimises: max-min (least speed against an equal share), finish-time (worst "
        "finish-time fairness), min-jct (mean completion), makespan, max-sum (iterations per second), fifo (order of "
        "arrival)",
        "-", "max-min",
    )  # fmt: skip
    tail_power: float = quantity(
        "completion: power to which completion times count: 1 for their mean, more for the longest",
        "-",
        1.5,
        ge=1,
        le=4,
    )
    resize: bool = quantity(
        "completion: whether it also chooses the number of GPUs of a job",
        "-",
        False,  # noqa: FBT003
    )
    fairness_power: float | None = quantity(
        "sia, pollux: power to which the goodput of a job counts: the further below 0, the more the slowest jobs; "
        "above 0, fast ones; null: -0.5 for sia, -1 for pollux",
        "-", None, ge=-4, le=4,
    )  # fmt: skip
    energy_budget: float = quantity(
        "powerflow: energy that jobs may take to their ends, as a multiple of the least they could", "-", 1.5, ge=1
    )
    auction: bool = quantity(
        "themis: whether GPUs are auctioned every round, as its authors do; false: Gavel's statement of it",
        "-",
        False,  # noqa: FBT003
    )
    fairness_knob: float = quantity(
        "themis with auction: part of the jobs, those nearest to their fair finish time, that is not offered GPUs", "-",
        0.8, ge=0, lt=1,
    )  # fmt: skip
    queues_gpu_s: Annotated[tuple[Annotated[float, Field(gt=0)], ...], AfterValidator(_increasing)] = quantity(
        "las: GPU time at which a job leaves each queue for the next; the last queue has no end", "GPU-s",
        (3600.0, 36_000.0),
    )  # fmt: skip
    power_limits: PowerLimits = quantity(
        "lookahead, local-search, random-greedy, exact, powerflow: power limits that may be set for the GPUs of a job "
        "when it starts, as parts of their highest; only in simulations; []: none",
        "-", (),
    )  # fmt: skip
    limits: PolicyLimits | None = quantity(
        "limits on waiting, and on being stopped and moved, which hold for every solver; {}: none; null: lookahead, "
        "local-search, random-greedy and exact reserve GPUs for a job that has waited for a day, others have no "
        "limits",
        "-", None,
    )  # fmt: skip

    wait_for_price: PriceWait | None = quantity(
        "hold jobs that can wait until a lower price of electricity or less carbon, under any solver; null: hold none",
        "-", None,
    )  # fmt: skip

    sharing: SharingSpec | None = quantity("overrides the scenario's", "-", None)
    fairness: FairnessSpec | None = quantity(
        "what tenants are guaranteed, under any solver that decides about all jobs; null: nothing", "-", None
    )

    @property
    def label(self) -> str:
        """Name in the results."""
        return self.name or self.solver

    @property
    def kept_limits(self) -> PolicyLimits | None:
        """The limits that hold: those given, else those of the solver. Published rules stay as they were published."""
        if self.limits is not None:
            return self.limits
        return PolicyLimits(reserve_after_s=DAY_S) if self.solver in WEIGH_ENERGY else None


WEIGH_ENERGY = ("lookahead", "local-search", "random-greedy", "exact")
"""Solvers of ours that weigh configurations of a job by energy and time."""
LIMIT_POWER = (*WEIGH_ENERGY, "powerflow")
"""Solvers that choose power limits of GPUs."""
RESIZING = ("sia", "pollux", "powerflow")
"""Published schedulers that choose the number of GPUs of a job."""


def default_policies() -> tuple[PolicySpec, ...]:
    """Return the policies of a scenario that names none."""
    return tuple(PolicySpec(solver=s) for s in ("lookahead", "random-greedy", "easy", "fair-share", "fifo"))


# -- fairness


class FairnessSpec(FileModel):
    """Energy-time fairness among tenants: what each is entitled to comes before what costs least."""

    phi: float = quantity(
        "part of a tenant's fair share of GPU time that is guaranteed; the rest evens out energy over weight. 1: fair "
        "share, 0: energy fairness",
        "-", 1.0, ge=0, le=1,
    )  # fmt: skip
    memory: float = quantity(
        "how much use in the past counts, with the half-life of the policy: 1: as much as use now, 0: not at all", "-",
        1.0, ge=0, le=10,
    )  # fmt: skip


class TenantShareResult(ResultModel):
    """What one tenant received of what it was entitled to. GPUs count by the `share_weight` of their nodes."""

    tenant: str = quantity("name of the tenant")
    weight: float = quantity("its weight")
    entitled_gpu_hours: float = quantity("weighted max-min share of the GPUs under the demands of each moment", "GPU h")
    received_gpu_hours: float = quantity("GPU time of its training jobs", "GPU h")
    kept_share: float = quantity("part of its entitlement that it had when it was entitled to it")


class FairnessResult(ResultModel):
    """GPU time received against entitled, over tenants, without memory; the same for every policy."""

    worst_share: float = quantity("least kept share of a tenant")
    mean_share: float = quantity("mean kept share")
    evenness: float | None = quantity("Jain's index of kept shares; null: fewer than two tenants")
    tenants: tuple[TenantShareResult, ...] = quantity("per tenant")
