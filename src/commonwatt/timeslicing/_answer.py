"""Divide the quantum of a problem file, with a typed reason and one sentence for each tenant's slice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from commonwatt.model.arrays import Ints
from commonwatt.model.fields import stamp
from commonwatt.model.timeslice_file import PlanFile
from commonwatt.model.timeslice_results import PlanTenantResult, TimeslicePlanResult
from commonwatt.timeslicing._fairness import fairness, phi_fair
from commonwatt.timeslicing._policies import SharingPolicy, make
from commonwatt.timeslicing._problem import QuantumProblem

__all__ = ["Reason", "SliceExplanation", "answer", "explain"]

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
        return SliceExplanation("demand-met", sure, f"It gets its whole demand of {demand} units.")
    if got == sure:
        return SliceExplanation(
            "guarantee-only", sure,
            f"It gets its guarantee of {sure} units: other tenants have used less {what} per weight.",
        )  # fmt: skip
    return SliceExplanation(
        "evened-out", sure,
        f"It gets its guarantee of {sure} units and {got - sure} more, to even out {what} per weight.",
    )  # fmt: skip


def answer(file: PlanFile, *, policy: str = "etf", phi: float | None = None, seed: int = 0) -> TimeslicePlanResult:
    """Divide one quantum among the tenants of *file*.

    Parameters
    ----------
    policy
        ``etf``, ``tf`` (time-fair), ``ef`` (energy-fair) or ``etf-energy`` (energy is guaranteed, time evened out).
    phi
        Time-fair factor, 0 to 1; the file's if ``None``.
    seed
        Recorded in the answer; nothing here is random.

    Raises
    ------
    InputError
        If something is wrong in the problem, or no policy has that name; the message names the field.
    """
    file = file if phi is None else file.model_copy(update={"phi": phi})
    problem, chosen = QuantumProblem.of(file), make(policy, file.phi)
    slices = chosen.slices(problem)
    why = explain(problem, chosen, slices)
    energies = slices * file.unit_s * problem.powers_w
    fair = fairness(slices.astype(float), energies, problem.weights, ~problem.unmet(slices))
    return TimeslicePlanResult(
        **stamp(file, seed),
        policy=policy,
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
