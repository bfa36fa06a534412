"""Solve a MIG problem file in both modes, and say what was decided and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError, SolverError
from commonwatt.model.fields import stamp
from commonwatt.model.names import MIG_MODES, WELFARES, check_choice, check_count, check_number, one_of
from commonwatt.model.partition_file import MigFile
from commonwatt.model.partition_results import (
    MigAnswer,
    MigGpuResult,
    MigInstanceResult,
    MigPriceResult,
    MigResult,
    MigTenantResult,
    MigUserResult,
)
from commonwatt.partitioning._solve import Equilibrium
from commonwatt.partitioning.mig._layouts import gpu_type, parse_layout
from commonwatt.partitioning.mig._modes import solve_integer, solve_market
from commonwatt.partitioning.mig._plan import CRUMB, GpuPlan, gpu_sentence, plan_gpus, tenant_sentence
from commonwatt.partitioning.mig._problem import MigProblem

__all__ = ["solve_file", "with_instances", "with_result"]


def solve_file(
    file: MigFile, *, clock: Callable[[], float], mode: str = "market", welfare: str = "nash",
    time_limit_s: float = 60.0, seed: int = 0,
) -> MigResult:  # fmt: skip
    """Choose how to divide the GPUs of *file*, and who gets which instances.

    Parameters
    ----------
    clock
        Returns seconds from any origin, as ``time.perf_counter`` does.
    mode
        ``MIG_MODES``: time shares with prices, or whole instances. The other mode is solved for comparison.
    welfare
        One of ``commonwatt.partitioning.WELFARES``.
    time_limit_s
        For each mode, in seconds. What is not proven by then has a bound.
    seed
        Recorded in the answer; nothing here is random.

    Raises
    ------
    InputError
        If an argument or the problem is wrong, or a tenant does not fit.
    SolverError
        If a market does not reach its tolerance.
    """
    check_choice("mode", mode, MIG_MODES)
    check_choice("welfare", welfare, WELFARES)
    check_number("time_limit_s", time_limit_s, above=True)
    check_count("seed", seed, 0)
    compiled = MigProblem.of(file)
    chosen = _solve(compiled, mode, welfare, time_limit_s, clock)
    other, refusal = None, None
    try:
        other = _solve(compiled, next(m for m in MIG_MODES if m != mode), welfare, time_limit_s, clock)
    except (InputError, SolverError) as error:
        refusal = str(error)
    advantage = None
    if other is not None and welfare == "nash":
        market, whole = (chosen, other) if mode == "market" else (other, chosen)
        advantage = max(0.0, float(np.exp(market.welfare - whole.welfare) - 1.0))
    return MigResult(
        **stamp(file, seed), mode=mode, welfare_kind=welfare, chosen=chosen, other=other, other_refusal=refusal,
        market_advantage=advantage,
    )  # fmt: skip


def with_instances(file: MigFile, counts: Sequence[Mapping[str, int] | None], field: str) -> MigFile:
    """Return *file* with the instances each GPU has now.

    Parameters
    ----------
    counts
        Instances by profile of each GPU, in the order of the file; ``None`` leaves a GPU as it is.
    field
        Where the counts come from, for the error.

    Raises
    ------
    InputError
        If the instances of a GPU do not fit on it.
    """
    gpus = []
    for place, (gpu, has) in enumerate(zip(file.gpus, counts, strict=True)):
        if has is None:
            gpus.append(gpu)
            continue
        words = [profile for profile, count in has.items() for _ in range(min(count, 8))]
        parse_layout(gpu_type(gpu.type, f"gpus.{gpu.name}.type"), words, f"{field} (GPU {place})")
        gpus.append(gpu.model_copy(update={"present": tuple(words)}))
    return file.model_copy(update={"gpus": tuple(gpus)})


def with_result(file: MigFile, result: MigResult) -> MigFile:
    """Return *file* with the instances that GPUs have once they are divided as *result* says.

    GPUs are matched by name; one that *result* does not divide stays as it is.

    Raises
    ------
    InputError
        If *result* divides a GPU that *file* has not, or one of another type, or its instances do not fit.
    """
    has = {gpu.name: gpu for gpu in file.gpus}
    changed = {}
    for gpu in result.chosen.gpus:
        field = f"chosen.gpus.{gpu.name}"
        if gpu.name not in has:
            raise InputError(one_of(has, gpu.name), field="chosen.gpus", value=gpu.name)
        if gpu.type != has[gpu.name].type:
            raise InputError(f"{has[gpu.name].type}, as in the problem", field=f"{field}.type", value=gpu.type)
        words = tuple(f"{instance.profile}@{instance.start}" for instance in gpu.instances)
        parse_layout(gpu_type(gpu.type), words, f"{field}.instances")
        changed[gpu.name] = has[gpu.name].model_copy(update={"present": words})
    return file.model_copy(update={"gpus": tuple(changed.get(name, gpu) for name, gpu in has.items())})


def _solve(problem: MigProblem, mode: str, welfare: str, limit_s: float, clock: Callable[[], float]) -> MigAnswer:
    began = clock()

    def left_s() -> float:
        return limit_s - (clock() - began)

    market, tried = None, None
    if mode == "market":
        timed = solve_market(problem, welfare, left_s)
        picked, value, bound, optimal = timed.picked, timed.value, timed.bound, timed.optimal
        market, tried, shares, utilities = timed.market, timed.tried, timed.market.shares, timed.market.utilities
    else:
        whole = solve_integer(problem, welfare, left_s)
        picked, value, bound, optimal = whole.picked, whole.value, whole.bound, whole.optimal
        shares, utilities = whole.instances.astype(float), whole.utilities
    solve_s = clock() - began
    plans = plan_gpus(problem, picked, shares)
    stated = [plan for plan in plans if plan.group.present is not None]
    return MigAnswer(
        mode=mode, welfare=value, bound=bound, gap=max(0.0, bound - value), optimal=optimal, tried=tried,
        residual=None if market is None else market.residual,
        prices=() if market is None else _prices(problem, market, problem.totals(picked).tolist()),
        gpus=tuple(_gpu(problem, plan) for plan in plans), tenants=_tenants(problem, shares, utilities, market),
        drained=sum(len(plan.drained) for plan in stated) if stated else None, solve_s=solve_s,
    )  # fmt: skip


def _prices(problem: MigProblem, market: Equilibrium, counts: list[int]) -> tuple[MigPriceResult, ...]:
    return tuple(
        MigPriceResult(instance=f"{name}/{profile.name}", count=count, price=price)
        for (name, profile), count, price in zip(problem.classes, counts, market.prices.tolist(), strict=True)
    )


def _tenants(
    problem: MigProblem, shares: Floats, utilities: Floats, market: Equilibrium | None
) -> tuple[MigTenantResult, ...]:
    rows = []
    for i, name in enumerate(problem.tenants):
        reason, sentence = tenant_sentence(problem, i, shares[i], float(utilities[i]), market)
        has = {f"{t}/{p.name}": float(s) for (t, p), s in zip(problem.classes, shares[i], strict=True) if s > CRUMB}
        spent = None if market is None else float(shares[i] @ market.prices)
        rows.append(
            MigTenantResult(
                name=name, weight=float(problem.weights[i]), utility=float(utilities[i]),
                speed=float(problem.speeds[i] @ shares[i]), instances=has, spent=spent, reason=reason,
                sentence=sentence,
            )
        )  # fmt: skip
    return tuple(rows)


def _gpu(problem: MigProblem, plan: GpuPlan) -> MigGpuResult:
    reason, sentence = gpu_sentence(plan)
    kind = gpu_type(plan.group.type)
    return MigGpuResult(
        name=problem.gpus[plan.gpu],
        type=plan.group.type,
        certainty=kind.certainty,
        instances=tuple(
            MigInstanceResult(
                profile=kind.profile(instance.placed.profile).name,
                start=instance.placed.start,
                stays=instance.stays,
                users=tuple(MigUserResult(tenant=problem.tenants[i], share=share) for i, share in instance.users),
            )
            for instance in plan.instances
        ),
        drained=None if plan.group.present is None else tuple(map(str, plan.drained)),
        reason=reason,
        sentence=sentence,
    )
