from ._entitlement import TenantFairness as TenantFairness
from ._entitlement import water_fill as water_fill
from ._exact import Exact as Exact
from ._explain import Explainer as Explainer
from ._lower_bound import lower_bound as lower_bound
from ._needless_moves import drop_needless_moves as drop_needless_moves
from ._objective import objective as objective
from ._problem import POSTPONED as POSTPONED
from ._problem import Background as Background
from ._problem import PlacementProblem as PlacementProblem
from ._problem import PlacementSolver as PlacementSolver
from ._problem import Schedule as Schedule
from ._random_greedy import RandomGreedy as RandomGreedy
from ._solve_file import solve_file as solve_file
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
    "drop_needless_moves",
    "lower_bound",
    "make_solver",
    "objective",
    "solve_file",
    "water_fill",
]
