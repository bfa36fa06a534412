from ._answer import MECHANISMS as MECHANISMS
from ._answer import MIG_MODES as MIG_MODES
from ._answer import WELFARES as WELFARES
from ._answer import answer as answer
from ._answer import sweep as sweep
from ._characterize import characterize as characterize
from ._comparison import choose as choose
from ._comparison import utilization as utilization
from ._comparison import weighted_equal_speedup as weighted_equal_speedup
from ._market import Market as Market
from ._market import law_of as law_of
from ._paths import bid as bid
from ._solve import Equilibrium as Equilibrium
from ._solve import residual as residual
from ._solve import solve as solve

__all__ = [
    "MECHANISMS",
    "MIG_MODES",
    "WELFARES",
    "Equilibrium",
    "Market",
    "answer",
    "bid",
    "characterize",
    "choose",
    "law_of",
    "residual",
    "solve",
    "sweep",
    "utilization",
    "weighted_equal_speedup",
]
