"""Forecasting (CUFF): how many GPUs must be on soon? Quantile forecasts, a knob, a plan of node states."""
