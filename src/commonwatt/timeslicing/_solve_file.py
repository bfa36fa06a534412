"""Divide the quantum of a problem file: slices, their fairness, a typed reason and one sentence for each tenant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.fields import stamp
from commonwatt.model.names import check_count, check_number
from commonwatt.model.timeslice_file import PlanFile
from commonwatt.model.timeslice_results import PlanTenantResult, TimeslicePlanResult
from commonwatt.model.units import plural
from commonwatt.optimize import ranked
from commonwatt.timeslicing._policies import QuantumProblem, SharingPolicy, make_policy, time_fair_shares

__all__ = [
    "Fairness",
    "Reason",
    "SliceExplanation",
    "energy_fair_times",
    "evenness",
    "explain",
    "fairness",
    "phi_fair",
    "solve_file",
]

Reason = Literal["no-demand", "demand-met", "guarantee-only", "evened-out"]


@dataclass(frozen=True)
class SliceExplanation:
    """Why a tenant's slice is as long as it is."""

    reason: Reason
    guaranteed: int  # units
    sentence: str


def explain(problem: QuantumProblem, policy: SharingPolicy, slices: Ints) -> tuple[SliceExplanation, ...]:
    """Explain *slices*, the answer of *policy* to *problem*."""
    guarantee = policy.guarantee(problem)
    what = "energy" if policy.name in {"etf", "ef"} else "time"
    return tuple(_explain(problem, what, i, int(guarantee[i]), int(slices[i])) for i in range(len(problem)))


def _explain(problem: QuantumProblem, what: str, i: int, sure: int, got: int) -> SliceExplanation:
    demand, quantum = int(problem.demands[i]), problem.quantum
    if demand == 0:
        return SliceExplanation("no-demand", 0, "It has no demand.")
    if got == demand < quantum:
        return SliceExplanation("demand-met", sure, f"It gets its whole demand of {plural(demand, 'unit')}.")
    if got == sure:
        return SliceExplanation(
            "guarantee-only", sure,
            f"It gets its guarantee of {plural(sure, 'unit')}: other tenants have used less {what} per weight.",
        )  # fmt: skip
    return SliceExplanation(
        "evened-out", sure,
        f"It gets its guarantee of {plural(sure, 'unit')} and {got - sure} more, to even out {what} per weight.",
    )  # fmt: skip


def solve_file(
    file: PlanFile, *, policy: str | SharingPolicy = "etf", phi: float | None = None, seed: int = 0
) -> TimeslicePlanResult:
    """Divide one quantum among the tenants of *file*.

    Parameters
    ----------
    policy
        ``etf``, ``tf`` (time-fair), ``ef`` (energy-fair) or ``etf-energy`` (energy is guaranteed, time evened out), or
        a policy; the answer has its ``name``.
    phi
        Time-fair factor, 0 to 1; the file's if ``None``.
    seed
        Recorded in the answer; nothing here is random.

    Raises
    ------
    InputError
        If something is wrong in the problem or an argument; the message names it.
    """
    check_count("seed", seed, 0)
    if phi is not None:
        check_number("phi", phi, most=1)
        file = file.model_copy(update={"phi": phi})
    problem = QuantumProblem.of(file)
    chosen = make_policy(policy, file.phi) if isinstance(policy, str) else policy
    slices = problem.checked(chosen.slices(problem))
    why = explain(problem, chosen, slices)
    energies = slices * file.unit_s * problem.powers_w
    fair = fairness(slices.astype(float), energies, problem.weights, ~problem.unmet(slices))
    return TimeslicePlanResult(
        **stamp(file, seed),
        policy=chosen.name,
        phi=file.phi,
        quantum=file.quantum,
        unit_s=file.unit_s,
        phi_fair=phi_fair(problem),
        tenants=tuple(
            PlanTenantResult(
                name=t.name, weight=t.weight, power_w=t.power_w, demand=t.demand, guaranteed=e.guaranteed, time=units,
                energy_j=joules, reason=e.reason, sentence=e.sentence,
            )
            for t, units, joules, e in zip(file.tenants, slices.tolist(), energies.tolist(), why, strict=True)
        ),
        unused=file.quantum - int(slices.sum()),
        time_fairness=fair.time,
        energy_fairness=fair.energy,
        system_fairness=fair.system,
    )  # fmt: skip


@dataclass(frozen=True)
class Fairness:
    """Least over most among tenants, by weight; 1 is perfectly fair. ``None`` where there is nothing to compare."""

    time: float | None  # F_T
    energy: float | None  # F_E

    @property
    def system(self) -> float | None:
        """The smaller of the two, F_S."""
        return None if self.time is None or self.energy is None else min(self.time, self.energy)


def evenness(amounts: Floats) -> float | None:
    """Return least over most of *amounts* ([N], 0 or more), ``None`` if there are none or all are 0."""
    if not len(amounts) or not amounts.max() > 0:
        return None
    return float(amounts.min() / amounts.max())


def fairness(times: Floats, energies: Floats, weights: Floats, limited: Bools | None = None) -> Fairness:
    """Return F_T and F_E of *times* and *energies* ([N], any unit), normalised by *weights*.

    Tenants for whom *limited* is true got all they asked for; having less than others is no unfairness to them,
    and they are left out.
    """
    counted = np.ones(len(weights), bool) if limited is None else ~limited
    return Fairness(
        evenness(times[counted] / weights[counted]),
        evenness(energies[counted] / weights[counted]),
    )


def energy_fair_times(problem: QuantumProblem) -> Floats:
    """Return the units each tenant gets when energy is fair and units are divisible, within demands. Shape [N].

    All tenants whose demand is not met have the same energy per weight.
    """
    rates = problem.weights / problem.powers_w  # units for one joule per weight
    full = problem.demands / rates  # level at which a demand is met
    order = ranked(full)
    left, share = float(problem.quantum), float(rates.sum())
    times = problem.demands.astype(float)
    for place, i in enumerate(order):
        level = left / share if share > 0 else np.inf
        if level < full[i]:
            rest = order[place:]
            times[rest] = rates[rest] * level
            return times
        left -= float(problem.demands[i])
        share = float(rates[order[place + 1 :]].sum())
    return times


def phi_fair(problem: QuantumProblem) -> float:
    """Return the largest phi at which ETF is still perfectly energy-fair, the solution of eq. (15).

    For backlogged tenants: min_i T_i^EF / T_i^TF = sum_k w_k / (max_i P_i * sum_k w_k/P_k), whatever T is. A
    tenant whose demand is met either way sets no limit; 1 if no tenant does.
    """
    times = energy_fair_times(problem)
    fair = time_fair_shares(problem.weights) * problem.quantum
    unmet = problem.demands > times * (1 + 1e-12)
    return float(min(1.0, (times[unmet] / fair[unmet]).min(initial=1.0)))
