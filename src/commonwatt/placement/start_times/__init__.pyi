from ._cap import under_cap as under_cap
from ._plan import StartPlan as StartPlan
from ._plan import StartRules as StartRules
from ._plan import plan_starts as plan_starts
from ._timetable import Power as Power

__all__ = ["Power", "StartPlan", "StartRules", "plan_starts", "under_cap"]
