"""Results of ``commonwatt study``. Unknown is null, never 0."""

from __future__ import annotations

from typing import Literal

from commonwatt.model.fields import AnswerModel, ResultModel, quantity
from commonwatt.model.results import PolicyResult

__all__ = [
    "STEP_NAMES",
    "Assumption",
    "RunService",
    "SavingInterval",
    "StudyLog",
    "StudyPolicy",
    "StudyResult",
    "StudyTenant",
    "WaterfallStep",
]

Role = Literal["as-logged", "baseline", "alternative", "ours"]


class LoggedEnergy(ResultModel):
    """Energy the log has, and the model's of the same jobs at the same times and places."""

    jobs: int = quantity("jobs whose energy the log has, and which began and ended in a period")
    logged_kwh: float = quantity("their energy in the log", "kWh")
    modelled_kwh: float = quantity(
        "their energy in the row as logged, with their part of idle power; mean of seeds", "kWh"
    )


class StudyLog(ResultModel):
    """Who the study is about."""

    source: str = quantity("source of the jobs, as a sentence")
    begin: tuple[str, ...] = quantity("start of each period")
    days: float = quantity("length of a period", "days")
    weeks: int = quantity("periods")
    seeds: tuple[int, ...] = quantity("seeds of each period")
    jobs: int = quantity("jobs of all periods")
    tenants: int = quantity("tenants")
    nodes: int = quantity("nodes")
    gpus: int = quantity("GPUs", "GPUs")
    gpu_types: tuple[str, ...] = quantity("GPU types of the cluster")
    names_gpu_types: bool = quantity("whether the log tells on which GPU type jobs ran")
    window_s: float = quantity("window of a period: from its first to its last submission; mean", "s")
    treatments: dict[str, int] = quantity("jobs not taken as the log has them, by what was done")
    left_out: dict[str, int] = quantity(
        "those of the above that were left out, as the cluster cannot run them, by why", "-", dict
    )
    energy: LoggedEnergy | None = quantity("how far the model's energy is off; null: the log has no energy", "-", None)


class SavingInterval(ResultModel):
    """A confidence interval of a saving: delete-one jackknife, t distribution (Tukey 1958)."""

    low: float = quantity("lower end", "%")
    high: float = quantity("upper end", "%")
    level: float = quantity("confidence level")
    over: Literal["weeks", "seeds"] = quantity(
        "weeks: periods of the log; seeds: only what is drawn, in one period: says nothing of other weeks"
    )
    units: int = quantity("number of them")


STEP_NAMES = {
    "thrifty-type": "thrifty GPU type", "planning": "planning", "consolidation": "consolidation",
    "switching-off": "switching off", "resizing": "resizing", "preemption": "preemption", "price": "price",
    "one-pool": "one pool", "power-limits": "power limits",
}  # fmt: skip
"""Names of steps as people read them."""


class WaterfallStep(ResultModel):
    """A step of the waterfall: everything up to it, and it alone."""

    step: str = quantity("name of the step; `as today` is what is compared with")
    energy_kwh: float | None = quantity("energy in the window with this step and all before it", "kWh")
    cost: float | None = quantity("its cost, PUE included", "currency")
    saved_pct: float | None = quantity("energy saved against the baseline with this step and all before it", "%")
    cost_saved_pct: float | None = quantity("the same of the cost", "%")
    alone_pct: float | None = quantity("energy saved by this step alone, against `alone_against`", "%")
    alone_cost_pct: float | None = quantity("the same of the cost", "%")
    alone_against: str | None = quantity("baseline, or planning for a step the baseline cannot take; null: not run")
    p95_wait_s: float | None = quantity("95th percentile of waiting with this step and all before it", "s")
    longest_wait_s: float | None = quantity("longest waiting with this step and all before it", "s")
    switch: str = quantity("setting that takes the step")
    assumes: str = quantity("what has to be true")


class RunService(ResultModel):
    """A run as a study keeps it: its result, and what each job got."""

    result: PolicyResult = quantity("the result")
    tenants: tuple[str, ...] = quantity("tenants")
    tenant: tuple[int, ...] = quantity("index of each job's tenant")
    wait_s: tuple[float, ...] = quantity("time from submission to first start of each job", "s")
    slowdown: tuple[float, ...] = quantity("bounded slowdown of each job")


class StudyTenant(ResultModel):
    """How long the jobs of a tenant waited under a policy: all its jobs of all periods and seeds together."""

    tenant: str = quantity("name of the tenant")
    jobs: float = quantity("jobs of all periods, mean of the seeds")
    p50_wait_s: float = quantity("median", "s")
    p95_wait_s: float = quantity("95th percentile", "s")
    p99_wait_s: float = quantity("99th percentile", "s")
    longest_wait_s: float = quantity("longest", "s")


class StudyPolicy(ResultModel):
    """A policy on all periods under the conservative settings.

    Waits and slowdowns are of all jobs of all periods and seeds together; energy and cost are means of the periods.
    """

    policy: str = quantity("name of the policy")
    role: Role = quantity("what it is here")
    solver: str | None = quantity("its solver; null: the log itself")
    relaxes: str | None = quantity("what of today's rules it does not keep; null: it keeps them all", "-", None)
    energy_kwh: float | None = quantity("energy in the window", "kWh")
    cost: float | None = quantity("its cost, PUE included", "currency")
    saved_pct: float | None = quantity("energy saved against the baseline", "%")
    unfinished_pct: float | None = quantity("part of that energy that is unfinished work: valued, not metered", "%")
    gpu_utilization: float | None = quantity("allocated GPU time over GPU time of the cluster, in the window")
    mean_wait_s: float = quantity("mean time from submission to first start", "s")
    p50_wait_s: float = quantity("median", "s")
    p95_wait_s: float = quantity("95th percentile", "s")
    p99_wait_s: float = quantity("99th percentile", "s")
    longest_wait_s: float = quantity("longest", "s")
    mean_total_wait_s: float = quantity("mean wait, also after preemption", "s")
    slowdown_p50: float = quantity("median of completion time over run time as requested")
    slowdown_p99: float = quantity("99th percentile of it")
    unfairness_worst: float | None = quantity("worst finish-time fairness; above 1 is worse than its share")
    most_starts: float = quantity("most starts of a job")
    tail_s: float = quantity("time from the end of the window to the last end", "s")
    tenants: tuple[StudyTenant, ...] = quantity("waiting by tenant, most jobs first")


class Assumption(ResultModel):
    """Something the numbers rest on."""

    what: str = quantity("what is assumed")
    value: str = quantity("what it is here")
    drawn: bool = quantity("whether it is drawn with the seed, and not from the log")
    switch: str = quantity("setting that changes it")


class StudyResult(AnswerModel):
    """Answer of ``commonwatt study``."""

    study: str = quantity("name of the study")
    currency: str = quantity("currency of all costs")
    about: StudyLog = quantity("who it is about")
    baseline: str = quantity("name of the policy compared with")
    knowledge: str = quantity("what the schedulers know of run times")
    conservative_saving_pct: float | None = quantity(
        "energy saved in the window by planning alone: sizes, GPU types and nodes as today", "%"
    )
    conservative_against: Literal["baseline", "thrifty baseline"] = quantity(
        "what it is saved against; thrifty: the baseline choosing GPU types by energy, where the log names none, every "
        "scheduler chooses, and that takes less",
        "-", "baseline",
    )  # fmt: skip
    conservative_cost_saving_pct: float | None = quantity("the same of the cost", "%")
    conservative_saving_interval: SavingInterval | None = quantity(
        "its interval; null: one period and one seed", "-", None
    )
    waterfall: tuple[WaterfallStep, ...] = quantity("what each step brings")
    policies: tuple[StudyPolicy, ...] = quantity("as logged, as today, the alternatives, ours")
    assumptions: tuple[Assumption, ...] = quantity("what the numbers rest on")
    notes: tuple[str, ...] = quantity("what to bear in mind, as sentences")
    finished: bool = quantity("whether all runs were done; false: interrupted", "-", default=True)
