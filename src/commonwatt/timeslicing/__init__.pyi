from ._energy import EnergyLedger as EnergyLedger
from ._policies import Etf as Etf
from ._policies import QuantumProblem as QuantumProblem
from ._policies import make_policy as make_policy
from ._scheduler import Charge as Charge
from ._scheduler import FairScheduler as FairScheduler
from ._scheduler import FifoScheduler as FifoScheduler
from ._scheduler import Scheduler as Scheduler
from ._scheduler import Task as Task
from ._scheduler import TenantQueue as TenantQueue
from ._solve_file import Fairness as Fairness
from ._solve_file import fairness as fairness
from ._solve_file import phi_fair as phi_fair
from ._solve_file import solve_file as solve_file
from ._tokens import VtcScheduler as VtcScheduler

__all__ = [
    "Charge",
    "EnergyLedger",
    "Etf",
    "FairScheduler",
    "Fairness",
    "FifoScheduler",
    "QuantumProblem",
    "Scheduler",
    "Task",
    "TenantQueue",
    "VtcScheduler",
    "fairness",
    "make_policy",
    "phi_fair",
    "solve_file",
]
