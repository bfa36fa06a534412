"""Capacity (CUFF): how many GPUs stay on, so that a promised performance is kept at the least energy.

A calibrated promise turns forecasts into GPUs to keep on, a knob trades performance against energy, and a planner
chooses the power state of every node. Forecasts come from whatever keeps the ``Predictor`` protocol of
``commonwatt.model.demand``. Scores of a plan are in ``commonwatt.capacity.scores``.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
