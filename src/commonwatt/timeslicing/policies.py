"""Policies: what is guaranteed to each tenant, and what is evened out with the rest.

======================  ==============================  =====================
policy                  guaranteed                      evened out
======================  ==============================  =====================
``Etf(phi)``            phi of the time-fair time       energy per weight
``Ef``                  nothing                         energy per weight
``Tf``                  the time-fair time              time per weight
``EtfEnergy(phi)``      phi of the energy-fair energy   time per weight
======================  ==============================  =====================

``EtfEnergy`` is the dual that closes ETF section 4.1. All of them are work-conserving: units a tenant cannot use go
to the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError
from commonwatt.timeslicing.problem import Problem
from commonwatt.timeslicing.slices import give_least, guaranteed

__all__ = ["Ef", "Etf", "EtfEnergy", "Policy", "Tf", "energy_fair_shares", "make", "time_fair_shares"]


def time_fair_shares(weights: Floats) -> Floats:
    """Return the parts of the time each tenant has when time is fair, eq. (5): w_i / sum_k w_k. Shape [N]."""
    return weights / weights.sum()


def energy_fair_shares(weights: Floats, powers_w: Floats) -> Floats:
    """Return the parts of the time each tenant has when energy is fair, eq. (3): (w_i/P_i) / sum_k (w_k/P_k).

    Equation (2) as printed gives this for two tenants of equal weight only. Shape [N].
    """
    rates = weights / powers_w
    return rates / rates.sum()


class Policy(Protocol):
    """Divides a quantum."""

    @property
    def name(self) -> str:
        """What it is called in files and commands."""
        ...

    def guarantee(self, problem: Problem) -> Ints:
        """Return the units each tenant has for certain. Shape [N]."""
        ...

    def slices(self, problem: Problem) -> Ints:
        """Return the units each tenant gets. Shape [N]; they sum to min(T, sum of demands)."""
        ...


def _divide(problem: Problem, guarantee: Ints, rates: Floats) -> Ints:
    left = problem.quantum - int(guarantee.sum())
    return give_least(guarantee, left, rates, problem.weights, problem.demands)


@dataclass(frozen=True)
class Etf:
    """Energy-time fairness, Algorithm 1."""

    phi: float
    name: str = "etf"

    def guarantee(self, problem: Problem) -> Ints:
        """Return phi * w_i / sum_k w_k * T, eq. (7), in whole units."""
        return guaranteed(time_fair_shares(problem.weights) * problem.quantum * self.phi, problem.demands)

    def slices(self, problem: Problem) -> Ints:
        """Even out energy per weight over the guarantee."""
        return _divide(problem, self.guarantee(problem), problem.powers_w)


@dataclass(frozen=True)
class Ef:
    """Energy fairness: ETF at phi = 0."""

    name: str = "ef"

    def guarantee(self, problem: Problem) -> Ints:
        """Return zeros."""
        return np.zeros(len(problem), np.int64)

    def slices(self, problem: Problem) -> Ints:
        """Even out energy per weight."""
        return _divide(problem, self.guarantee(problem), problem.powers_w)


@dataclass(frozen=True)
class Tf:
    """Time fairness: what fair-share schedulers do; units not divisible go by time, not energy."""

    name: str = "tf"

    def guarantee(self, problem: Problem) -> Ints:
        """Return the fair share of time, eq. (5), in whole units."""
        return guaranteed(time_fair_shares(problem.weights) * problem.quantum, problem.demands)

    def slices(self, problem: Problem) -> Ints:
        """Even out time per weight."""
        return _divide(problem, self.guarantee(problem), np.ones(len(problem)))


@dataclass(frozen=True)
class EtfEnergy:
    """The dual: phi of the energy-fair energy is guaranteed, then time is evened out."""

    phi: float
    name: str = "etf-energy"

    def guarantee(self, problem: Problem) -> Ints:
        """Return the whole units in which a tenant uses at most phi of its energy-fair energy."""
        shares = energy_fair_shares(problem.weights, problem.powers_w)
        return guaranteed(shares * problem.quantum * self.phi, problem.demands)

    def slices(self, problem: Problem) -> Ints:
        """Even out time per weight over the guarantee."""
        return _divide(problem, self.guarantee(problem), np.ones(len(problem)))


def make(name: str, phi: float) -> Policy:
    """Return the policy called *name*; raises ``InputError`` for another name or a phi outside [0, 1]."""
    if not 0 <= phi <= 1:
        raise InputError("a number from 0 to 1", field="phi", value=phi)
    policies: dict[str, Policy] = {"etf": Etf(phi), "ef": Ef(), "tf": Tf(), "etf-energy": EtfEnergy(phi)}
    if name not in policies:
        raise InputError(f"one of {', '.join(policies)}", field="policy", value=name)
    return policies[name]
