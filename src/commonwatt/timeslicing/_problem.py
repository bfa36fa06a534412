"""One quantum to divide, in arrays; and a division of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.errors import InputError
from commonwatt.model.timeslice_file import PlanFile

__all__ = ["QuantumProblem"]

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

    def __len__(self) -> int:
        return len(self.weights)

    def unmet(self, slices: Ints) -> Bools:
        """Whether each tenant could use more than its slice. Shape [N]."""
        return (self.demands == self.quantum) | (slices < self.demands)
