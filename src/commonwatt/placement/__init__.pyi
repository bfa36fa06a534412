from ._answer import answer as answer
from ._cpus_memory import within_cpus_memory as within_cpus_memory
from ._entitlement import TenantFairness as TenantFairness
from ._entitlement import water_fill as water_fill
from ._exact import Exact as Exact
from ._explain import Explainer as Explainer
from ._lower_bound import lower_bound as lower_bound
from ._objective import objective as objective
from ._problem import POSTPONED as POSTPONED
from ._problem import Background as Background
from ._problem import PlacementProblem as PlacementProblem
from ._problem import PlacementSolver as PlacementSolver
from ._problem import Schedule as Schedule
from ._random_greedy import RandomGreedy as RandomGreedy
from ._settle import settled as settled
from ._solvers import make_solver as make_solver

__all__ = [
    "POSTPONED",
    "Background",
    "Exact",
    "Explainer",
    "PlacementProblem",
    "PlacementSolver",
    "RandomGreedy",
    "Schedule",
    "TenantFairness",
    "answer",
    "lower_bound",
    "make_solver",
    "objective",
    "settled",
    "water_fill",
    "within_cpus_memory",
]
