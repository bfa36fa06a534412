"""Solve a problem file: divide every configuration, choose one, and say why.

``sweep`` repeats that for a range of weights of one tenant, to show how the choice changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError, SolverError
from commonwatt.model.fields import stamp
from commonwatt.model.names import MECHANISMS, MIG_MODES, WELFARES, check_choice, check_count, check_number
from commonwatt.model.partition_file import PartitionConfiguration, PartitionFile
from commonwatt.model.partition_results import (
    ConfigurationResult,
    LawUse,
    PartitionResult,
    PartitionSweepResult,
    PartitionTenantResult,
    PlannedSlice,
    SweepPoint,
)
from commonwatt.model.units import welfare_name
from commonwatt.partitioning._comparison import (
    PartitionChoice,
    choose_configuration,
    envy,
    explain,
    sharing_incentive_violation,
    utilization,
    weighted_equal_speedup,
)
from commonwatt.partitioning._market import Market
from commonwatt.partitioning._schedule import laws_of, market_of, run, schedule
from commonwatt.partitioning._solve import Equilibrium, solve

__all__ = ["MECHANISMS", "MIG_MODES", "WELFARES", "Divided", "Mechanism", "divide_all", "solve_file", "sweep"]

_UNITS = 1000
_MOST_PLANNED = 10_000  # slices that are worked out and simulated


class Mechanism(Protocol):
    """A way of dividing a configuration that is not one of ``MECHANISMS``."""

    @property
    def name(self) -> str:
        """Name in the answer."""
        ...

    def __call__(self, market: Market) -> Floats:
        """Return the shares of tenants in PEs. Shape [N, C]."""
        ...


def _checked(market: Market, shares: Floats) -> Floats:
    """Return *shares*; raises ``SolverError`` if they do not divide the PEs."""
    numbers = np.asarray(shares, dtype=float)
    if numbers.shape != market.rate.shape or not np.isfinite(numbers).all() or (numbers < 0).any():
        msg = f"shares are not {market.rate.shape[0]} rows of {market.rate.shape[1]} numbers of PEs, 0 or more"
        raise SolverError(msg)
    if (numbers.sum(axis=0) > market.pe_count * (1 + 1e-9)).any():
        msg = "more PEs of a core cluster are shared out than it has"
        raise SolverError(msg)
    return numbers


@dataclass(frozen=True)
class Divided:
    """A configuration, divided."""

    spec: PartitionConfiguration
    market: Market
    whole: Market | None  # the market of space shares, where shares are of time
    shares: Floats  # in PEs, [N, C]
    equilibrium: Equilibrium | None

    @property
    def utilities(self) -> Floats:
        """The utility of each tenant. Shape [N]."""
        return self.market.total(self.shares)


def solve_file(
    file: PartitionFile, *, mechanism: str | Mechanism = "fisher", welfare: str = "nash", tolerance: float = 1e-9,
    iterations: int | None = None, seed: int = 0,
) -> PartitionResult:  # fmt: skip
    """Divide every configuration of *file* among its tenants, and choose the one with the best welfare.

    Parameters
    ----------
    mechanism
        One of ``MECHANISMS``, or another: what divides a configuration.
    welfare
        One of ``WELFARES``: what chooses the configuration.
    tolerance
        Largest residual of an equilibrium.
    iterations
        Rounds of bidding at most; 30,000 if not given.
    seed
        Recorded in the answer; nothing here is random.

    Raises
    ------
    InputError
        If *mechanism*, *welfare* or the problem is wrong; the message names the field.
    SolverError
        If a market does not reach *tolerance*; the message names the configuration and the residual.
    """
    check_count("seed", seed, 0)
    choice, divided = divide_all(file, mechanism, welfare, tolerance, iterations)
    reason, sentence = _why(file, choice, welfare)
    name = mechanism if isinstance(mechanism, str) else mechanism.name
    return PartitionResult(
        **stamp(file, seed),
        mechanism=name,
        welfare=welfare,
        shares=file.shares,
        chosen=file.configurations[choice.best].name,
        margin=choice.margin if choice.margin is not None and np.isfinite(choice.margin) else None,
        reason=reason,
        sentence=sentence,
        configurations=tuple(
            _result(file, one, name, choice.values[at], choice.order.index(at) + 1) for at, one in enumerate(divided)
        ),
    )


def divide_all(
    file: PartitionFile, mechanism: str | Mechanism, welfare: str, tolerance: float, iterations: int | None
) -> tuple[PartitionChoice, list[Divided]]:
    """Divide every configuration; return the choice among them too. Raises as ``solve_file``."""
    if isinstance(mechanism, str):
        check_choice("mechanism", mechanism, MECHANISMS)
    check_choice("welfare", welfare, WELFARES)
    check_number("tolerance", tolerance, above=True)
    check_count("iterations", iterations)
    divided = [_divide(file, spec, mechanism, tolerance, iterations) for spec in file.configurations]
    return choose_configuration([one.utilities for one in divided], divided[0].market.budgets, welfare), divided


def _divide(
    file: PartitionFile, spec: PartitionConfiguration, mechanism: str | Mechanism, tolerance: float, limit: int | None
) -> Divided:  # fmt: skip
    market, in_space = market_of(file, spec), file.model_copy(update={"shares": "space"})
    whole = market_of(in_space, spec) if file.shares == "time" else None
    if not isinstance(mechanism, str):
        return Divided(spec, market, whole, _checked(market, mechanism(market)), None)
    if mechanism == "entitlement":
        return Divided(spec, market, whole, market.entitlement(), None)
    if mechanism == "weighted-equal-speedup":
        return Divided(spec, market, whole, weighted_equal_speedup(market), None)
    try:
        equilibrium = solve(market, tolerance=tolerance, limit=limit)
    except SolverError as error:
        raise SolverError(f"configuration {spec.name}: {error}") from None
    return Divided(spec, market, whole, equilibrium.shares, equilibrium)


def _why(file: PartitionFile, choice: PartitionChoice, kind: str) -> tuple[str, str]:
    best = file.configurations[choice.best].name
    if choice.margin is None:
        return "only-one", f"{best} is the only configuration."
    second = file.configurations[choice.order[1]].name
    if choice.margin < 1e-9:
        return "tie", f"{best} and {second} have the same {welfare_name(kind)} welfare: the earlier is chosen."
    what = "the weighted geometric mean of speedups" if kind == "nash" else "it"
    above = f"{what} is {100 * choice.margin:.2f}% above {second}'s"
    return "best-welfare", f"{best} has the best {welfare_name(kind)} welfare: {above}."


def _result(file: PartitionFile, one: Divided, mechanism: str, value: float, rank: int) -> ConfigurationResult:
    names = [tenant.name for tenant in file.tenants]
    own, entitled = one.utilities, one.market.total(one.market.entitlement())
    equilibrium, violation = one.equilibrium, sharing_incentive_violation(one.market, one.shares)
    with np.errstate(over="ignore"):
        product = float(own.prod())
    return ConfigurationResult(
        name=one.spec.name,
        core_clusters=one.spec.names(),
        pe_count=tuple(one.market.pe_count.tolist()),
        prices=None if equilibrium is None else tuple(equilibrium.prices.tolist()),
        shares={name: tuple(row) for name, row in zip(names, one.shares.tolist(), strict=True)},
        utilities=dict(zip(names, own.tolist(), strict=True)),
        entitlement_utilities=dict(zip(names, entitled.tolist(), strict=True)),
        nash_welfare=product if np.isfinite(product) else None,
        welfare=value,
        rank=rank,
        iterations=0 if equilibrium is None else equilibrium.iterations,
        rounds=0 if equilibrium is None else equilibrium.rounds,
        residual=None if equilibrium is None else max(0.0, equilibrium.residual),
        price_change=None if equilibrium is None else equilibrium.price_change,
        sharing_incentive=violation <= 1e-6,
        sharing_incentive_violation=violation,
        envy=envy(one.market, one.shares),
        utilization=utilization(one.market, one.shares, one.whole),
        tenants=_tenants(file, one, own / entitled, mechanism),
        schedule=_schedule(one, names),
        price_history=() if equilibrium is None else tuple(tuple(p.tolist()) for p in equilibrium.history[:1000]),
    )


def _tenants(file: PartitionFile, one: Divided, ratios: Floats, mechanism: str) -> tuple[PartitionTenantResult, ...]:
    own, clusters = one.utilities, one.spec.names()
    why = None if one.equilibrium is None else explain(one.market, one.equilibrium, clusters)
    names = [[law.name for law in row] for row in laws_of(file, one.spec)]
    rows = []
    for i, tenant in enumerate(file.tenants):
        small = (one.shares[i] > 0) & (one.shares[i] < 1) & (one.whole is None) & (file.below_one_pe == "as-printed")
        small &= np.array([name == "amdahl" for name in names[i]])
        if why is None:
            reason, sentence = _plain(mechanism, float(ratios[i]), float(one.market.budgets[i]))
        else:
            reason, sentence = why[i].reason, why[i].sentence
        rows.append(
            PartitionTenantResult(
                name=tenant.name, weight=tenant.weight, utility=float(own[i]), entitlement_ratio=float(ratios[i]),
                spent=None if why is None else tuple(why[i].spent.tolist()),
                money_value=None if one.equilibrium is None else float(one.equilibrium.money_values[i]),
                elasticity=None if why is None else why[i].elasticity,
                below_one_pe=tuple(name for name, is_small in zip(clusters, small, strict=True) if is_small),
                laws=tuple(names[i]),
                between=_between(one, i),
                budget_left=None if why is None else max(0.0, 1.0 - float(why[i].spent.sum())),
                reason=reason, sentence=sentence,
            )
        )  # fmt: skip
    return tuple(rows)


def _between(one: Divided, i: int) -> tuple[LawUse, ...]:
    """Return where a tenant's share lies on a chord."""
    curves, lifted = one.market.curves, one.market.lifted
    if curves.endless:
        return ()
    low, high = curves.chords(one.shares)
    uses = []
    for c, name in enumerate(one.spec.names()):
        part = (one.shares[i, c] - low[i, c]) / (high[i, c] - low[i, c])
        if one.shares[i, c] > 0 and 1e-9 < part < 1 - 1e-9:
            ends = {"from_pes": low[i, c], "to_pes": high[i, c]}
            uses.append(LawUse(core_cluster=name, **ends, time_part=part, lifted=bool(lifted[i, c])))
    return tuple(uses)


def _plain(mechanism: str, ratio: float, budget: float) -> tuple[str, str]:
    if mechanism == "entitlement":
        return "entitled", f"It has {100 * budget:.3g}% of every core cluster, as its weight says."
    if mechanism != "weighted-equal-speedup":
        return "divided", f"{mechanism} makes it {ratio:.3f} times as fast as its entitlement."
    return "equalised", (
        f"It is as fast for its weight as everybody on each core cluster, {ratio:.3f} times as fast as with its "
        "entitlement."
    )


def _schedule(one: Divided, names: list[str]) -> tuple[PlannedSlice, ...]:
    by_time = one.whole is not None
    if one.shares.size * one.market.pe_count.sum() > _MOST_PLANNED:
        return ()
    try:
        plan = schedule(one.market, one.shares, _UNITS, by_time=by_time)
    except InputError:  # a number of PEs that is not whole: nothing to run
        return ()
    kept = run(one.whole or one.market, plan)
    planned = one.market.speedups(one.shares)
    more = plan.more if plan.more is not None else np.ones_like(plan.turns)
    if by_time:
        more = np.broadcast_to(np.rint(one.market.pe_count).astype(np.int64), plan.turns.shape)
    return tuple(
        PlannedSlice(
            tenant=name, core_cluster=cluster, pes=int(plan.whole[i, c]), time_part=plan.turns[i, c] / _UNITS,
            turn_pes=int(more[i, c]),
            speedup=float(planned[i, c]), run_speedup=float(kept[i, c]),
        )
        for i, name in enumerate(names)
        for c, cluster in enumerate(one.spec.names())
        if one.shares[i, c] > 0
    )  # fmt: skip


def sweep(
    file: PartitionFile, tenant: str, weights: Sequence[float], *, mechanism: str | Mechanism = "fisher",
    welfare: str = "nash", tolerance: float = 1e-9, iterations: int | None = None, seed: int = 0,
) -> PartitionSweepResult:  # fmt: skip
    """Divide and choose for every weight of *tenant*, the other tenants keeping theirs.

    Parameters
    ----------
    weights
        Positive, in ascending order.
    mechanism, welfare, tolerance, iterations, seed
        As in ``solve_file``.

    Raises
    ------
    InputError
        If there is no such tenant, or a weight or the problem is wrong.
    SolverError
        If a market does not reach *tolerance*.
    """
    names, tenants = [one.name for one in file.configurations], [one.name for one in file.tenants]
    check_choice("tenant", tenant, tenants)
    if not len(weights) or not all(0 < weight < np.inf for weight in weights):
        raise InputError("at least one weight, each above 0", field="weights", value=list(weights))
    points = []
    for weight in weights:
        changed = tuple(
            one.model_copy(update={"weight": float(weight)}) if one.name == tenant else one for one in file.tenants
        )
        choice, divided = divide_all(
            file.model_copy(update={"tenants": changed}), mechanism, welfare, tolerance, iterations
        )
        utilities = divided[choice.best].utilities.tolist()
        points.append(
            SweepPoint(
                weight=float(weight), chosen=names[choice.best],
                margin=choice.margin if choice.margin is not None and np.isfinite(choice.margin) else None,
                welfare=dict(zip(names, choice.values, strict=True)),
                utilities=dict(zip(tenants, utilities, strict=True)),
            )
        )  # fmt: skip
    return PartitionSweepResult(
        **stamp(file, seed), mechanism=mechanism if isinstance(mechanism, str) else mechanism.name,
        welfare=welfare, tenant=tenant, points=tuple(points),
        sentence=_sweep_sentence(tenant, points),
    )  # fmt: skip


def _sweep_sentence(tenant: str, points: list[SweepPoint]) -> str:
    changes = [
        f"{after.chosen} from {after.weight:.3g} on"
        for before, after in pairwise(points)
        if before.chosen != after.chosen
    ]
    first, least, most = points[0].chosen, points[0].weight, points[-1].weight
    if not changes:
        return f"{first} is chosen for every weight of {tenant} from {least:.3g} to {most:.3g}."
    return f"With the weight of {tenant} at {least:.3g} {first} is chosen, {', '.join(changes)}."
