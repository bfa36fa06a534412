from ._compiled import njit as njit
from ._program import Program as Program
from ._program import Solution as Solution
from ._search import Budget as Budget
from ._search import Incumbent as Incumbent
from ._search import KeepGoing as KeepGoing
from ._search import SearchResult as SearchResult
from ._search import Solver as Solver
from ._search import always as always
from ._search import ranked as ranked
from ._search import seeded as seeded
from ._search import within as within

__all__ = [
    "Budget",
    "Incumbent",
    "KeepGoing",
    "Program",
    "SearchResult",
    "Solution",
    "Solver",
    "always",
    "njit",
    "ranked",
    "seeded",
    "within",
]
