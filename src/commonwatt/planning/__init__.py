"""Forecasts and capacity plans from files: what forecasting, capacity, data and the controller do together.

- ``series``: demand from a series file, a job log or a query.
- ``predictors``: predictors by name or from a model file; fitting, saving and forecasting.
- ``evaluation``: how good a predictor is on a series, and whether its promise was kept.
- ``replay``: a capacity plan for the end of a series, and its replay over the recent past.
- ``capacity``: the capacity plan of a controller, simulated or live, from past demand.
"""
