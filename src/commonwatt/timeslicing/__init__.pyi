from ._answer import Fairness as Fairness
from ._answer import answer as answer
from ._answer import fairness as fairness
from ._answer import phi_fair as phi_fair
from ._energy import EnergyLedger as EnergyLedger
from ._policies import Etf as Etf
from ._policies import QuantumProblem as QuantumProblem
from ._policies import make as make
from ._scheduler import Charge as Charge
from ._scheduler import FairScheduler as FairScheduler
from ._scheduler import FifoScheduler as FifoScheduler
from ._scheduler import Scheduler as Scheduler
from ._scheduler import Task as Task
from ._scheduler import TenantQueue as TenantQueue
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
    "answer",
    "fairness",
    "make",
    "phi_fair",
]
