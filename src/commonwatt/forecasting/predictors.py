"""Predictors by the names they go by on the command line; what they need is imported when one is made."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from commonwatt.forecasting.forecast import HORIZON, LOOK_BACK, Predictor
from commonwatt.model.errors import InputError, MissingExtraError

__all__ = ["PREDICTORS", "PredictorEntry", "make_predictor"]


@dataclass(frozen=True)
class PredictorEntry:
    """Where a predictor is defined, and what it needs.

    Parameters
    ----------
    what
        What it is, in a few words.
    target
        ``module:class``, or a function that makes one; it takes ``look_back`` and ``horizon``, and ``options``.
    options
        Further keywords it is made with.
    packages
        Packages it needs.
    extra
        Extra of this package that installs them.
    learns
        Whether a fit learns what later values do not change, so that it is to be fitted anew now and then.
    least
        Values it has to be fitted on to learn more than how demand is distributed.
    """

    what: str
    target: str
    options: tuple[tuple[str, Any], ...] = ()
    packages: tuple[str, ...] = ()
    extra: str = "forecast"
    learns: bool = True
    least: int = 0


def _network(what: str, kind: str, *, point: bool = False) -> PredictorEntry:
    options = (("kind", kind), ("point", point))
    return PredictorEntry(what, "commonwatt.forecasting.networks:NetworkPredictor", options, ("torch",))


_HERE = "commonwatt.forecasting"
PREDICTORS: dict[str, PredictorEntry] = {
    "gru": _network("GRU encoder-decoder, trained on all quantiles (CUFF)", "gru"),
    "bilstm": _network("Bi-LSTM encoder-decoder, trained on all quantiles (CUFF)", "bilstm"),
    "cnn": _network("CNN encoder-decoder, trained on all quantiles (CUFF)", "cnn"),
    "gru-point": _network("GRU encoder-decoder, trained on squared error (CUFF's point forecast)", "gru", point=True),
    "bilstm-point": _network("Bi-LSTM encoder-decoder, trained on squared error", "bilstm", point=True),
    "cnn-point": _network("CNN encoder-decoder, trained on squared error", "cnn", point=True),
    "last-value": PredictorEntry(
        "last value and quantiles of recent changes", f"{_HERE}.baselines:LastValue", learns=False
    ),
    "seasonal-naive": PredictorEntry("value one season ago", f"{_HERE}.baselines:SeasonalNaive", learns=False),
    "moving-max": PredictorEntry("maximum of a recent window", f"{_HERE}.baselines:MovingMaximum", learns=False),
    "lightgbm": PredictorEntry(
        "LightGBM quantile regression", f"{_HERE}.lightgbm_quantile:LightGbmQuantile", (), ("lightgbm",),
        least=2_000,  # with fewer no leaf can be split
    ),
    "gru+lightgbm": PredictorEntry(
        "mean of the quantiles of both", f"{_HERE}.blend:network_and_trees", (), ("torch", "lightgbm")
    ),
    "auto-ets": PredictorEntry(
        "statsforecast's AutoETS with conformal intervals", f"{_HERE}.auto_ets:AutoEts", (), ("statsforecast",)
    ),
    "chronos": PredictorEntry(
        "a Chronos model of one's own", f"{_HERE}.chronos:ChronosPredictor", (), ("chronos",), "chronos",
        learns=False,
    ),
}  # fmt: skip
"""Every predictor, by name."""


def make_predictor(name: str, look_back: int = LOOK_BACK, horizon: int = HORIZON, **options: Any) -> Predictor:  # noqa: ANN401
    """Make the predictor called *name*, with *options* of its own.

    Raises
    ------
    InputError
        For a name there is none of.
    MissingExtraError
        If a package it needs is not installed.
    """
    if name not in PREDICTORS:
        raise InputError(f"one of {', '.join(PREDICTORS)}", field="model", value=name)
    entry = PREDICTORS[name]
    for package in entry.packages:
        try:
            import_module(package)
        except ImportError:
            raise MissingExtraError(package, entry.extra) from None
    module, _, made = entry.target.partition(":")
    build = getattr(import_module(module), made)
    predictor: Predictor = build(look_back=look_back, horizon=horizon, **dict(entry.options), **options)
    return predictor
