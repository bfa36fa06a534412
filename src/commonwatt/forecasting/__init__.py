"""Forecasting (CUFF): quantiles of the demand for GPUs over the next steps.

``make_predictor`` makes a predictor by its name in ``PREDICTORS``; ``forecast_rolling`` tests one on a series, from
every instant.
Metrics are in ``commonwatt.forecasting.scores``; series, quantiles and the protocols of predictors are in
``commonwatt.model.demand``.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
