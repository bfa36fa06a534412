from ._answer import ALGORITHMS as ALGORITHMS
from ._answer import answer as answer
from ._answer import evaluate as evaluate
from ._answer import scheduled as scheduled
from ._encoding import Mapping as Mapping
from ._goal import Goal as Goal
from ._gsharp import GSharp as GSharp
from ._gsharp import GSharpSettings as GSharpSettings
from ._lower_bound import lower_bound as lower_bound
from ._problem import MappingProblem as MappingProblem
from ._scoring import MappingTimeline as MappingTimeline
from ._scoring import costs_of as costs_of
from ._scoring import timeline as timeline
from ._stream import continued as continued
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
    "answer",
    "continued",
    "costs_of",
    "evaluate",
    "lower_bound",
    "scheduled",
    "timeline",
]
