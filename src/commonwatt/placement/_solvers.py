"""All solvers by name. A name has one owner. Peers are policies of a run: they go by what jobs received in it."""

from __future__ import annotations

from typing import get_args

from commonwatt.model.errors import ArgumentError
from commonwatt.model.names import one_of
from commonwatt.model.policies import Objective, PeerName, SolverName
from commonwatt.model.units import WEEK_S
from commonwatt.placement._backfill import Backfill
from commonwatt.placement._completion import Completion, ResizingCompletion
from commonwatt.placement._exact import Exact
from commonwatt.placement._gavel import Gavel
from commonwatt.placement._local_search import LocalSearch
from commonwatt.placement._lookahead import MAY_WAIT, NEVER_WAIT, Lookahead
from commonwatt.placement._lucid import Lucid
from commonwatt.placement._peers import DominantShare, LeastAttainedService, ShortestService
from commonwatt.placement._pollux import Pollux
from commonwatt.placement._powerflow import PowerFlow
from commonwatt.placement._priority_order import PriorityOrder
from commonwatt.placement._problem import PlacementSolver
from commonwatt.placement._random_greedy import RandomGreedy
from commonwatt.placement._resizing import Sia
from commonwatt.placement._themis import Themis

__all__ = ["PEERS", "SOLVERS", "make_solver"]

SOLVERS: tuple[str, ...] = get_args(SolverName)
PEERS: tuple[str, ...] = get_args(PeerName)
PLAN_MOVES = 200  # of a local search over plans


def make_solver(
    name: str, *, iterations: int = 1000, steps: int | None = None, placements: int | None = None,
    time_limit_s: float | None = None, fair_share_weight: float = 2.0, over_plans: bool = False,
    size_weight: float = 0.0, max_age_s: float = WEEK_S, depth: int = 1000, thrifty: bool = False,
    work_conserving: bool = False, objective: Objective = "max-min",
    queues_gpu_s: tuple[float, ...] = (3600.0, 36_000.0), tail_power: float = 1.5, slowdown_price: float = 0.0,
    qos_weight: float = 0.0,
    fairness_power: float | None = None, energy_budget: float = 1.5,
    auction: bool = False, resize: bool = False, fairness_knob: float = 0.8,
) -> PlacementSolver:  # fmt: skip
    """Return the solver *name*; settings that are not its own are ignored.

    Parameters
    ----------
    iterations, placements
        Of the randomized greedy, from which the local search starts.
    steps
        Of the local search; 20 for each iteration if ``None``.
    over_plans
        Whether the local search improves plans (see ``Lookahead``) instead of the objective.
    work_conserving
        Of plans: whether no job waits for a configuration of less energy.
    slowdown_price
        Of ``lookahead``: what it costs in a plan if a job takes once more its run time, currency.
    size_weight, qos_weight, max_age_s, depth, thrifty
        Of backfill.
    time_limit_s
        Of ``exact``, which reads the clock itself.
    objective
        Of Gavel.
    queues_gpu_s
        Of least attained service.
    tail_power, resize
        Of plans of completion times.
    fairness_power
        Of Sia and Pollux; their own if ``None``.
    energy_budget
        Of PowerFlow.
    auction, fairness_knob
        Of Themis: without its auction it is Gavel's finish-time fairness.

    Raises
    ------
    InputError
        If no solver is called *name*.
    """
    greedy = RandomGreedy(iterations=iterations, placements=placements)
    match name:
        case "random-greedy":
            return greedy
        case "local-search" if not over_plans:
            return LocalSearch(start=greedy, steps=20 * iterations if steps is None else steps)
        case "lookahead" | "local-search":
            styles = NEVER_WAIT if work_conserving else MAY_WAIT
            if name == "local-search":
                return Lookahead(moves=PLAN_MOVES, styles=styles)
            return Lookahead(styles=styles, slowdown_price=slowdown_price)
        case "exact":
            return Exact(time_limit_s=time_limit_s)
        case "easy":
            return Backfill(depth=depth, thrifty=thrifty)
        case "fair-share":
            return Backfill(
                fair_share_weight=fair_share_weight, size_weight=size_weight, max_age_s=max_age_s, depth=depth,
                thrifty=thrifty, qos_weight=qos_weight,
            )  # fmt: skip
        case "fifo" | "edf" | "priority" | "srtf":
            return PriorityOrder(name)
        case "las":
            return LeastAttainedService(queues_gpu_s)
        case "themis" if auction:
            return Themis(fairness_knob)
        case "gavel" | "themis":
            return Gavel("finish-time" if name == "themis" else objective)
        case "qssf":
            return ShortestService()
        case "lucid":
            return Lucid()
        case "drf":
            return DominantShare()
        case "sia":
            return Sia() if fairness_power is None else Sia(fairness_power)
        case "pollux":
            return Pollux() if fairness_power is None else Pollux(fairness_power)
        case "powerflow":
            return PowerFlow(energy_budget)
        case "completion" if resize:
            return ResizingCompletion(tail_power)
        case "completion":
            return Completion(tail_power)
    raise ArgumentError(one_of((*SOLVERS, *PEERS), name), field="solver", value=name)
