from ._knob import KnobHistory as KnobHistory
from ._knob import KnobPoint as KnobPoint
from ._knob import learn_knob as learn_knob
from ._outlooks import ExpectedDemand as ExpectedDemand
from ._outlooks import Outlook as Outlook
from ._outlooks import calibration_steps as calibration_steps
from ._outlooks import make_outlook as make_outlook
from ._planner import CapacityPlan as CapacityPlan
from ._planner import CapacityPlanner as CapacityPlanner
from ._planner import NodePowers as NodePowers
from ._planner import PoolDemand as PoolDemand
from ._planner import check_spec as check_spec
from ._promise import Calibrator as Calibrator
from ._promise import beyond_total as beyond_total
from ._waiting import make_calibrator as make_calibrator

__all__ = [
    "Calibrator",
    "CapacityPlan",
    "CapacityPlanner",
    "ExpectedDemand",
    "KnobHistory",
    "KnobPoint",
    "NodePowers",
    "Outlook",
    "PoolDemand",
    "beyond_total",
    "calibration_steps",
    "check_spec",
    "learn_knob",
    "make_calibrator",
    "make_outlook",
]
