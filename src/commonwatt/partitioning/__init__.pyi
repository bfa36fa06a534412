from ._characterize import characterize as characterize
from ._comparison import choose_configuration as choose_configuration
from ._comparison import utilization as utilization
from ._comparison import weighted_equal_speedup as weighted_equal_speedup
from ._market import Market as Market
from ._market import make_law as make_law
from ._paths import run_bidding as run_bidding
from ._solve import Equilibrium as Equilibrium
from ._solve import residual as residual
from ._solve import solve as solve
from ._solve_file import MECHANISMS as MECHANISMS
from ._solve_file import MIG_MODES as MIG_MODES
from ._solve_file import WELFARES as WELFARES
from ._solve_file import solve_file as solve_file
from ._solve_file import sweep as sweep

__all__ = [
    "MECHANISMS",
    "MIG_MODES",
    "WELFARES",
    "Equilibrium",
    "Market",
    "characterize",
    "choose_configuration",
    "make_law",
    "residual",
    "run_bidding",
    "solve",
    "solve_file",
    "sweep",
    "utilization",
    "weighted_equal_speedup",
]
