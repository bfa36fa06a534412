"""One quantum to divide, and policies to divide it: what is guaranteed to each tenant, and what is evened out.

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

Algorithm 1's second step: unit after unit to whoever has used least, in time that does not depend on T.

The literal loop gives each remaining unit to the tenant whose level ``slice * rate / weight`` is lowest, the earlier
tenant where two are level. Tenant *i*'s units thus have levels ``s * rate_i / w_i`` for s = its slice, slice + 1, ...,
and the loop takes the R lowest of all tenants in order. A level below which at most R units lie is found by
bisection; those units are given at once, and the few that are left (at most about one for each tenant) one by one
from a heap. Levels are computed by the same two operations as in the loop, so that ties fall the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Protocol

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.errors import InputError, SolverError
from commonwatt.model.names import check_choice, check_number
from commonwatt.model.timeslice_file import PlanFile
from commonwatt.optimize import njit

__all__ = [
    "Ef",
    "Etf",
    "EtfEnergy",
    "QuantumProblem",
    "SharingPolicy",
    "Tf",
    "energy_fair_shares",
    "give_least",
    "guaranteed",
    "make_policy",
    "time_fair_shares",
]

# -- the quantum


LONGEST = 2**50
"""Most units of a quantum: counts of units are exact in double precision."""


@dataclass(frozen=True)
class QuantumProblem:
    """A quantum of ``quantum`` indivisible units and the tenants that share it (ETF section 4.2).

    Attributes
    ----------
    quantum
        T, in time units.
    weights, powers_w
        w_i and P_i, both positive. Shape [N].
    demands
        d_i, units a tenant can use; nobody can use more than T. Shape [N].
    """

    quantum: int
    weights: Floats  # [N]
    powers_w: Floats  # [N]
    demands: Ints  # [N]

    @classmethod
    def of(cls, file: PlanFile) -> QuantumProblem:
        """Compile a problem file; raises ``InputError``."""
        tenants = file.tenants
        return cls.make(
            file.quantum,
            [tenant.weight for tenant in tenants],
            [tenant.power_w for tenant in tenants],
            [tenant.demand for tenant in tenants],
        )

    @classmethod
    def make(
        cls,
        quantum: int,
        weights: Sequence[float],
        powers_w: Sequence[float],
        demands: Sequence[int | None] | None = None,
    ) -> QuantumProblem:
        """Make a problem of sequences; a demand of ``None`` is backlogged.

        Raises ``InputError`` for no tenants, or a weight, power, demand or quantum out of range.
        """
        if not 1 <= quantum <= LONGEST:
            raise InputError(f"from 1 to {LONGEST} time units", field="quantum", value=quantum)
        if not len(weights):
            raise InputError("at least one tenant", field="tenants", value="none")
        wanted = [None] * len(weights) if demands is None else demands
        for field, values in (("weight", weights), ("power_w", powers_w)):
            for place, value in enumerate(values):
                if not 1e-100 <= value <= 1e100:
                    raise InputError("a positive number", field=f"tenants.{place}.{field}", value=value)
        for place, demand in enumerate(wanted):
            if demand is not None and demand < 0:
                raise InputError("0 or more time units", field=f"tenants.{place}.demand", value=demand)
        return cls(
            quantum,
            np.array(weights, dtype=float),
            np.array(powers_w, dtype=float),
            np.array([quantum if demand is None else min(demand, quantum) for demand in wanted], dtype=np.int64),
        )

    def checked(self, units: Ints) -> Ints:
        """Return *units*, slices of a solver; raises ``SolverError`` unless they divide the quantum. Shape [N]."""
        slices = np.asarray(units)
        if slices.shape != self.demands.shape or not np.issubdtype(slices.dtype, np.integer):
            msg = f"slices are not {len(self)} whole numbers of units"
            raise SolverError(msg)
        if (slices < 0).any() or (slices > self.demands).any():
            msg = "a slice is below 0 or above its tenant's demand"
            raise SolverError(msg)
        if int(slices.sum()) != min(self.quantum, int(self.demands.sum())):
            msg = f"slices sum to {int(slices.sum())}, not to the quantum or all demand"
            raise SolverError(msg)
        return slices

    def __len__(self) -> int:
        return len(self.weights)

    def unmet(self, slices: Ints) -> Bools:
        """Whether each tenant could use more than its slice. Shape [N]."""
        return (self.demands == self.quantum) | (slices < self.demands)


# -- policies


def guaranteed(shares: Floats, demands: Ints) -> Ints:
    """Round *shares* (units, [N]) down to whole units, but none above its demand (Algorithm 1, line 1).

    A share that is whole but for rounding in double precision (0.7 * 30 / 3) counts as whole.
    """
    nearest = np.rint(shares)
    is_whole = np.abs(shares - nearest) <= np.minimum(1e-9 + 1e-15 * shares, 0.49)
    return np.minimum(np.where(is_whole, nearest, np.floor(shares)).astype(np.int64), demands)


@njit(cache=True)
def _level(units: int, rate: float, weight: float) -> float:
    return units * rate / weight


@njit(cache=True)
def _below(level: float, start: int, stop: int, rate: float, weight: float) -> int:
    """First of the units start..stop whose level is not below *level*; levels never fall."""
    guess = level / rate * weight
    s = stop if guess >= stop else max(start, int(guess))
    while s < stop and _level(s, rate, weight) < level:
        s += 1
    while s > start and _level(s - 1, rate, weight) >= level:
        s -= 1
    return s


@njit(cache=True)
def give_least(slices: Ints, left: int, rates: Floats, weights: Floats, demands: Ints) -> Ints:
    """Give *left* units to the tenants that have least (Algorithm 1, lines 2 to 9); returns the slices.

    Parameters
    ----------
    slices
        Units each tenant has already. Shape [N], whole, at most *demands*.
    rates
        What one unit costs: the power for energy, 1 for time. Shape [N], positive.
    """
    n = len(slices)
    slices = slices.copy()
    room = (demands - slices).sum()
    left = min(left, room)
    if left == room:
        return demands.copy()
    low, high = 0.0, 0.0
    for i in range(n):
        high = max(high, _level(demands[i], rates[i], weights[i]))
    while True:  # at most *left* units lie below `low`, all of them below `high`
        middle = low + (high - low) / 2
        if middle <= low or middle >= high:
            break
        below = 0
        for i in range(n):
            below += _below(middle, slices[i], demands[i], rates[i], weights[i]) - slices[i]
        if below > left:
            high = middle
        else:
            low = middle
            if left - below <= n:
                break
    for i in range(n):
        upto = _below(low, slices[i], demands[i], rates[i], weights[i])
        left -= upto - slices[i]
        slices[i] = upto
    heap = [(_level(slices[i], rates[i], weights[i]), i) for i in range(n) if slices[i] < demands[i]]
    heapify(heap)
    while left > 0:
        _, i = heappop(heap)
        slices[i] += 1
        left -= 1
        if slices[i] < demands[i]:
            heappush(heap, (_level(slices[i], rates[i], weights[i]), i))
    return slices


def time_fair_shares(weights: Floats) -> Floats:
    """Return the parts of the time each tenant has when time is fair, eq. (5): w_i / sum_k w_k. Shape [N]."""
    return weights / weights.sum()


def energy_fair_shares(weights: Floats, powers_w: Floats) -> Floats:
    """Return the parts of the time each tenant has when energy is fair, eq. (3): (w_i/P_i) / sum_k (w_k/P_k).

    Equation (2) as printed gives this for two tenants of equal weight only. Shape [N].
    """
    rates = weights / powers_w
    return rates / rates.sum()


class SharingPolicy(Protocol):
    """Divides a quantum."""

    @property
    def name(self) -> str:
        """What it is called in files and commands."""
        ...

    def guarantee(self, problem: QuantumProblem) -> Ints:
        """Return the units each tenant has for certain. Shape [N]."""
        ...

    def slices(self, problem: QuantumProblem) -> Ints:
        """Return the units each tenant gets. Shape [N]; they sum to min(T, sum of demands)."""
        ...


def _divide(problem: QuantumProblem, guarantee: Ints, rates: Floats) -> Ints:
    left = problem.quantum - int(guarantee.sum())
    return give_least(guarantee, left, rates, problem.weights, problem.demands)


@dataclass(frozen=True)
class Etf:
    """Energy-time fairness, Algorithm 1."""

    phi: float
    name: str = "etf"

    def guarantee(self, problem: QuantumProblem) -> Ints:
        """Return phi * w_i / sum_k w_k * T, eq. (7), in whole units."""
        return guaranteed(time_fair_shares(problem.weights) * problem.quantum * self.phi, problem.demands)

    def slices(self, problem: QuantumProblem) -> Ints:
        """Even out energy per weight over the guarantee."""
        return _divide(problem, self.guarantee(problem), problem.powers_w)


@dataclass(frozen=True)
class Ef:
    """Energy fairness: ETF at phi = 0."""

    name: str = "ef"

    def guarantee(self, problem: QuantumProblem) -> Ints:
        """Return zeros."""
        return np.zeros(len(problem), np.int64)

    def slices(self, problem: QuantumProblem) -> Ints:
        """Even out energy per weight."""
        return _divide(problem, self.guarantee(problem), problem.powers_w)


@dataclass(frozen=True)
class Tf:
    """Time fairness: what fair-share schedulers do; units not divisible go by time, not energy."""

    name: str = "tf"

    def guarantee(self, problem: QuantumProblem) -> Ints:
        """Return the fair share of time, eq. (5), in whole units."""
        return guaranteed(time_fair_shares(problem.weights) * problem.quantum, problem.demands)

    def slices(self, problem: QuantumProblem) -> Ints:
        """Even out time per weight."""
        return _divide(problem, self.guarantee(problem), np.ones(len(problem)))


@dataclass(frozen=True)
class EtfEnergy:
    """The dual: phi of the energy-fair energy is guaranteed, then time is evened out."""

    phi: float
    name: str = "etf-energy"

    def guarantee(self, problem: QuantumProblem) -> Ints:
        """Return the whole units in which a tenant uses at most phi of its energy-fair energy."""
        shares = energy_fair_shares(problem.weights, problem.powers_w)
        return guaranteed(shares * problem.quantum * self.phi, problem.demands)

    def slices(self, problem: QuantumProblem) -> Ints:
        """Even out time per weight over the guarantee."""
        return _divide(problem, self.guarantee(problem), np.ones(len(problem)))


def make_policy(name: str, phi: float) -> SharingPolicy:
    """Return the policy called *name*; raises ``InputError`` for another name or a phi outside [0, 1]."""
    check_number("phi", phi, most=1)
    policies: dict[str, SharingPolicy] = {"etf": Etf(phi), "ef": Ef(), "tf": Tf(), "etf-energy": EtfEnergy(phi)}
    check_choice("policy", name, policies)
    return policies[name]
