"""A policy: a solver, and what is done to its schedule before it is carried out.

A solver may be a plugin. In a simulation its failure ends the run; a live controller has a *fallback*, which decides
where the plugin raises or gives no valid answer, and the event log says so.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from commonwatt.control.events import Event, EventKind, EventLog
from commonwatt.model.errors import PluginError
from commonwatt.model.place_file import PlaceFile
from commonwatt.model.plugins import Plugin, one, plugged
from commonwatt.model.policies import SOLVER_NAMES
from commonwatt.model.scenario import PeerName, PolicyLimits, PolicySpec, PriceWait
from commonwatt.optimize import KeepGoing, SearchResult, always
from commonwatt.placement import PlacementProblem, Schedule, TenantFairness
from commonwatt.placement.guarantees import (
    in_few_domains,
    schedule_with_guarantees,
    validated_schedule,
    within_cpus_memory,
)

if TYPE_CHECKING:
    from commonwatt.placement import PlacementSolver

__all__ = ["FALLBACK", "Policy", "warm_up"]

_says = logging.getLogger("commonwatt.policy")
FALLBACK = "fifo"
"""Decides while a plugin fails: running jobs stay, and waiting jobs start in order of arrival. It has no settings."""


class _PluggedSolver:
    """A plugin's solver, whose answers are checked before anything is done with them."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin, self._inner = plugin, plugged(plugin)
        self.plans, self.leaves_room = (self._flag(name) for name in ("plans", "leaves_room"))

    def _flag(self, name: str) -> bool:
        with self._plugin.blamed("could not be made"):
            return bool(getattr(self._inner, name, False))

    def solve(
        self, problem: PlacementProblem, rng: np.random.Generator, keep_going: KeepGoing = always
    ) -> SearchResult[Schedule]:
        """Return the plugin's schedule; raises ``PluginError`` for one that cannot be carried out."""
        answer: SearchResult[Any] = self._inner.solve(problem, rng, keep_going)
        with self._plugin.blamed("gave no valid answer"):
            return replace(answer, best=validated_schedule(problem, answer.best))


@dataclass
class _Health:
    """What the solver failed with at its last decision; ``None``: it did not."""

    trouble: str | None = None

    def now(self, trouble: str | None, solver: str, now_s: float, log: EventLog | None) -> None:
        """Say the first of equal failures, and that the solver works again; in the event log too, if there is one."""
        if trouble == self.trouble:
            return
        self.trouble = trouble
        if trouble is None:
            kind, text = EventKind.SOLVER_WORKS, f"{solver} decides again"
        else:
            kind, text = EventKind.SOLVER_FAILED, f"{trouble}; {FALLBACK} decides until it works"
        _says.warning("%s: %s", kind, text)
        if log is not None:
            log.append(Event(now_s, kind, -1, reason=str(kind), text=text))


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
    fallback: PlacementSolver | None = None  # decides where a plugin fails; None: what it raised is raised
    _health: _Health = field(default_factory=_Health, repr=False, compare=False)

    @classmethod
    def of(cls, spec: PolicySpec, *, live: bool = False) -> Policy:
        """Build the policy a scenario file describes; a *live* one falls back where a plugin fails.

        Raises ``PluginError`` for a plugin that cannot be loaded or made, live too.
        """
        from commonwatt.placement import make_solver

        plugin = one("solvers", spec.solver, SOLVER_NAMES)
        solver: Any = _ours(spec) if plugin is None else _PluggedSolver(plugin)
        by_service = spec.solver in get_args(PeerName)
        fairness = None
        if spec.fairness is not None:
            fairness = TenantFairness(spec.fairness.phi, spec.half_life_s, spec.fairness.memory)
        fallback = make_solver(FALLBACK) if live and plugin else None
        return cls(
            spec.label, solver, spec.idle_power == "sunk", spec.kept_limits, spec.wait_for_price, by_service, fairness,
            fallback,
        )  # fmt: skip

    def with_phi(self, phi: float) -> Policy:
        """Return the policy with another phi of its guarantee; raises ``ValueError`` if it guarantees nothing."""
        if self.fairness is None:
            msg = f"policy {self.name} guarantees tenants nothing"
            raise ValueError(msg)
        return replace(self, fairness=replace(self.fairness, phi=phi))

    def decide(
        self, problem: PlacementProblem, rng: np.random.Generator, keep_going: KeepGoing = always,
        log: EventLog | None = None,
    ) -> Schedule:  # fmt: skip
        """Return the schedule to carry out; a failure of a plugin, and its end, go to *log*.

        Raises ``PluginError`` if a plugin fails and there is no fallback.
        """
        if self.sunk_idle_power:
            problem = problem.with_sunk_idle_power()
        if self.solver.plans or getattr(self.solver, "by_objective", False):
            problem = problem.with_weighed_due_dates()
        trouble = None
        try:
            schedule = schedule_with_guarantees(problem, self.solver, rng, keep_going, self.fairness)
        except PluginError as error:
            if self.fallback is None:
                raise
            trouble = str(error)
            schedule = schedule_with_guarantees(problem, self.fallback, rng, keep_going, self.fairness)
        if self.fallback is not None:
            self._health.now(trouble, self.name, problem.now_s, log)
        return in_few_domains(problem, within_cpus_memory(problem, schedule))


def _ours(spec: PolicySpec) -> PlacementSolver:
    from commonwatt.placement import make_solver

    return make_solver(
        spec.solver, iterations=spec.iterations, steps=spec.iterations, placements=spec.placements,
        time_limit_s=spec.time_limit_s, fair_share_weight=spec.fair_share_weight, over_plans=spec.aim == "plan",
        size_weight=spec.size_weight, max_age_s=spec.max_age_s, depth=spec.backfill_depth,
        thrifty=spec.gpu_type_choice == "thrifty", work_conserving=spec.work_conserving,
        objective=spec.objective, queues_gpu_s=spec.queues_gpu_s, tail_power=spec.tail_power,
        slowdown_price=spec.slowdown_price, fairness_power=spec.fairness_power,
        energy_budget=spec.energy_budget, auction=spec.auction, resize=spec.resize, fairness_knob=spec.fairness_knob,
        qos_weight=spec.qos_weight,
    )  # fmt: skip


@cache
def warm_up(spec: PolicySpec, *, certain: bool = True) -> None:
    """Compile and load the code of a policy before its time is taken, once in each process: it decides a tiny problem.

    Run times may not be *certain*: other code.
    """
    if spec.solver in get_args(PeerName) and spec.solver not in ("pollux", "completion"):  # nothing of it is compiled
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
    for each in (spec, PolicySpec(solver=FALLBACK)) if one("solvers", spec.solver, SOLVER_NAMES) else (spec,):
        Policy.of(each, live=True).decide(problem, np.random.default_rng(0))
