from ._encoding import Mapping as Mapping
from ._goal import Goal as Goal
from ._gsharp import GSharp as GSharp
from ._gsharp import GSharpSettings as GSharpSettings
from ._lower_bound import lower_bound as lower_bound
from ._problem import MappingProblem as MappingProblem
from ._scoring import MappingTimeline as MappingTimeline
from ._scoring import population_costs as population_costs
from ._scoring import timeline as timeline
from ._solve_file import ALGORITHMS as ALGORITHMS
from ._solve_file import build_schedule as build_schedule
from ._solve_file import evaluate as evaluate
from ._solve_file import solve_file as solve_file
from ._stream import continue_mapping as continue_mapping
from ._transfer import Transfer as Transfer

__all__ = [
    "ALGORITHMS",
    "GSharp",
    "GSharpSettings",
    "Goal",
    "Mapping",
    "MappingProblem",
    "MappingTimeline",
    "Transfer",
    "build_schedule",
    "continue_mapping",
    "evaluate",
    "lower_bound",
    "population_costs",
    "solve_file",
    "timeline",
]
