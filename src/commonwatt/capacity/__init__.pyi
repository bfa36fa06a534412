from ._demand_forecasters import DemandForecaster as DemandForecaster
from ._demand_forecasters import ExpectedDemand as ExpectedDemand
from ._demand_forecasters import calibration_steps as calibration_steps
from ._demand_forecasters import make_demand_forecaster as make_demand_forecaster
from ._knob import KnobHistory as KnobHistory
from ._knob import KnobPoint as KnobPoint
from ._knob import fit_knob as fit_knob
from ._planner import CapacityPlan as CapacityPlan
from ._planner import CapacityPlanner as CapacityPlanner
from ._planner import NodePowers as NodePowers
from ._planner import PoolDemand as PoolDemand
from ._planner import check_spec as check_spec
from ._promise import Calibrator as Calibrator
from ._promise import unkeepable_reason as unkeepable_reason
from ._waiting import make_calibrator as make_calibrator

__all__ = [
    "Calibrator",
    "CapacityPlan",
    "CapacityPlanner",
    "DemandForecaster",
    "ExpectedDemand",
    "KnobHistory",
    "KnobPoint",
    "NodePowers",
    "PoolDemand",
    "calibration_steps",
    "check_spec",
    "fit_knob",
    "make_calibrator",
    "make_demand_forecaster",
    "unkeepable_reason",
]
