from ._layouts import mig_memory_gb as mig_memory_gb
from ._layouts import mig_types as mig_types
from ._modes import TimeShares as TimeShares
from ._modes import WholeInstances as WholeInstances
from ._modes import solve_integer as solve_integer
from ._modes import solve_market as solve_market
from ._plan import plan_gpus as plan_gpus
from ._problem import MigDecision as MigDecision
from ._problem import MigProblem as MigProblem
from ._solve_file import solve_file as solve_file
from ._solve_file import with_instances as with_instances
from ._solve_file import with_result as with_result

__all__ = [
    "MigDecision",
    "MigProblem",
    "TimeShares",
    "WholeInstances",
    "mig_memory_gb",
    "mig_types",
    "plan_gpus",
    "solve_file",
    "solve_integer",
    "solve_market",
    "with_instances",
    "with_result",
]
