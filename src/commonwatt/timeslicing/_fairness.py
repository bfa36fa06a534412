"""How fair a division is (ETF section 6.1), and up to which phi energy can be perfectly fair (section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Bools, Floats
from commonwatt.optimize import ranked
from commonwatt.timeslicing._policies import time_fair_shares
from commonwatt.timeslicing._problem import QuantumProblem

__all__ = ["Fairness", "energy_fair_times", "evenness", "fairness", "phi_fair"]


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
