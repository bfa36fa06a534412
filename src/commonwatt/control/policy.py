"""A policy: a solver, and what is done to its schedule before it is carried out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, get_args

import numpy as np

from commonwatt.model.place_file import PlaceFile
from commonwatt.model.scenario import PeerName, PolicyLimits, PolicySpec, PriceWait
from commonwatt.optimize import KeepGoing, always
from commonwatt.placement import PlacementProblem, Schedule, TenantFairness, make_solver
from commonwatt.placement.guarantees import decided, within_cpus_memory

if TYPE_CHECKING:
    from commonwatt.placement import PlacementSolver

__all__ = ["Policy", "warm_up"]


@dataclass(frozen=True)
class Policy:
    """How the controller decides."""

    name: str
    solver: PlacementSolver
    sunk_idle_power: bool = False  # whether nodes are taken to draw idle power whatever is decided
    limits: PolicyLimits | None = None
    wait_for_price: PriceWait | None = None
    by_service: bool = False  # whether it goes by what jobs have received
    fairness: TenantFairness | None = None  # None: tenants are guaranteed nothing

    @classmethod
    def of(cls, spec: PolicySpec) -> Policy:
        """Build the policy a scenario file describes."""
        solver = make_solver(
            spec.solver, iterations=spec.iterations, steps=spec.iterations, placements=spec.placements,
            time_limit_s=spec.time_limit_s, fair_share_weight=spec.fair_share_weight, over_plans=spec.aim == "plan",
            size_weight=spec.size_weight, max_age_s=spec.max_age_s, depth=spec.backfill_depth,
            thrifty=spec.gpu_type_choice == "thrifty", work_conserving=spec.work_conserving,
            objective=spec.objective, queues_gpu_s=spec.queues_gpu_s, tail_power=spec.tail_power,
            slowdown_price=spec.slowdown_price, fairness_power=spec.fairness_power, qos_weight=spec.qos_weight,
        )  # fmt: skip
        by_service = spec.solver in get_args(PeerName)
        fairness = None
        if spec.fairness is not None:
            fairness = TenantFairness(spec.fairness.phi, spec.half_life_s, spec.fairness.memory)
        return cls(
            spec.label, solver, spec.idle_power == "sunk", spec.kept_limits, spec.wait_for_price, by_service, fairness
        )

    def with_phi(self, phi: float) -> Policy:
        """Return the policy with another phi of its guarantee; raises ``ValueError`` if it guarantees nothing."""
        if self.fairness is None:
            msg = f"policy {self.name} guarantees tenants nothing"
            raise ValueError(msg)
        return replace(self, fairness=replace(self.fairness, phi=phi))

    def decide(self, problem: PlacementProblem, rng: np.random.Generator, keep_going: KeepGoing = always) -> Schedule:
        """Return the schedule to carry out."""
        if self.sunk_idle_power:
            problem = problem.with_sunk_idle_power()
        return within_cpus_memory(problem, decided(problem, self.solver, rng, keep_going, self.fairness))


@cache
def warm_up(spec: PolicySpec, *, certain: bool = True) -> None:
    """Compile and load the code of a policy before its time is taken, once in each process: it decides a tiny problem.

    Run times may not be *certain*: other code.
    """
    if spec.solver in get_args(PeerName) and spec.solver != "completion":  # nothing of it is compiled
        return
    times = {"A": [60.0, 40.0]}
    job = {"due_s": 100, "tardiness_weight": 1.0, "times_s": times, "requested_gpus": 1}
    file = PlaceFile.model_validate(
        {
            "nodes": [{"name": "a", "count": 2, "gpu_type": "A", "gpus": 2, "idle_w": 100, "gpu_w": 100}],
            "jobs": [{"name": str(i), **job} for i in range(4)],
        }
    )
    problem = PlacementProblem.of(file)
    if not certain:
        problem = replace(problem, outcomes=np.array([[0.5, 1.5]] * 4))
    Policy.of(spec).decide(problem, np.random.default_rng(0))
