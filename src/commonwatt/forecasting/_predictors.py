"""Predictors by name; the packages one needs are imported when it is made."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from commonwatt.model.demand import HORIZON, LOOK_BACK, FittedPredictor, Predictor
from commonwatt.model.errors import InputError, MissingExtraError
from commonwatt.model.forecast_file import TREES, TREES_TOO
from commonwatt.model.names import one_of

__all__ = ["PREDICTORS", "PredictorEntry", "make_predictor", "restore_predictor"]


@dataclass(frozen=True)
class PredictorEntry:
    """Where a predictor is defined, and what it needs.

    Parameters
    ----------
    what
        A description of a few words.
    target
        ``module:class``, or a function that makes one; it takes ``look_back`` and ``horizon``, and ``options``.
    options
        Further keywords it is made with.
    packages
        Packages it needs.
    extra
        Extra of this package that installs them.
    learns
        Whether later values leave what a fit learned unchanged, so that it must be refitted now and then.
    least
        Values it must be fitted on to learn more than the distribution of demand.
    takes_features
        Whether it learns from columns beside demand, too.
    """

    what: str
    target: str
    options: tuple[tuple[str, Any], ...] = ()
    packages: tuple[str, ...] = ()
    extra: str = "forecast"
    learns: bool = True
    least: int = 0
    takes_features: bool = False

    @property
    def trains_network(self) -> bool:
        """Whether a network is trained, which takes minutes and may be interrupted."""
        return "torch" in self.packages

    @property
    def savable(self) -> bool:
        """Whether it can be saved to a file once fitted."""
        return not {"torch", "lightgbm"}.isdisjoint(self.packages)


def _network(what: str, kind: str, *, point: bool = False) -> PredictorEntry:
    options = (("kind", kind), ("point", point))
    return PredictorEntry(what, "commonwatt.forecasting._networks:NetworkPredictor", options, ("torch",))


_HERE = "commonwatt.forecasting"
PREDICTORS: dict[str, PredictorEntry] = {
    "gru": _network("GRU encoder-decoder, trained on all quantiles (CUFF)", "gru"),
    "bilstm": _network("Bi-LSTM encoder-decoder, trained on all quantiles (CUFF)", "bilstm"),
    "cnn": _network("CNN encoder-decoder, trained on all quantiles (CUFF)", "cnn"),
    "gru-point": _network("GRU encoder-decoder, trained on squared error (CUFF's point forecast)", "gru", point=True),
    "bilstm-point": _network("Bi-LSTM encoder-decoder, trained on squared error", "bilstm", point=True),
    "cnn-point": _network("CNN encoder-decoder, trained on squared error", "cnn", point=True),
    "last-value": PredictorEntry(
        "last value and quantiles of recent changes", f"{_HERE}._baselines:LastValue", learns=False
    ),
    "seasonal-naive": PredictorEntry("value one season ago", f"{_HERE}._baselines:SeasonalNaive", learns=False),
    "moving-max": PredictorEntry("maximum of a recent window", f"{_HERE}._baselines:MovingMaximum", learns=False),
    "lightgbm": PredictorEntry(
        "LightGBM quantile regression", f"{_HERE}._lightgbm_quantile:LightGbmQuantile", (), ("lightgbm",),
        least=2_000,  # with fewer no leaf can be split
        takes_features=True,
    ),
    "gru+lightgbm": PredictorEntry(
        "mean of the quantiles of both", f"{_HERE}._blend:network_and_trees", (), ("torch", "lightgbm")
    ),
    "auto-ets": PredictorEntry(
        "statsforecast's AutoETS with conformal intervals", f"{_HERE}._peers:AutoEts", (), ("statsforecast",)
    ),
    "chronos": PredictorEntry(
        "a Chronos model you provide", f"{_HERE}._peers:ChronosPredictor", (), ("chronos",), "chronos",
        learns=False,
    ),
}  # fmt: skip
"""Every predictor, by name."""


def make_predictor(name: str, look_back: int = LOOK_BACK, horizon: int = HORIZON, **options: Any) -> Predictor:  # noqa: ANN401
    """Make the predictor called *name*, with *options* of its own.

    Raises
    ------
    InputError
        For an unknown name.
    MissingExtraError
        If a package it needs is not installed.
    """
    if name not in PREDICTORS:
        raise InputError(one_of(PREDICTORS, name), field="model", value=name)
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


def restore_predictor(about: dict[str, Any], arrays: dict[str, np.ndarray]) -> FittedPredictor:
    """Return the predictor whose ``state`` returned *about* and *arrays*.

    Raises
    ------
    InputError
        If arrays are missing, of other shapes, or do not belong to *about*.
    ImportError
        If a package it needs is not installed.
    """
    from commonwatt.forecasting._blend import NetworkAndTrees
    from commonwatt.forecasting._lightgbm_quantile import LightGbmQuantile
    from commonwatt.forecasting._networks import NetworkPredictor

    if about["kind"] == TREES:
        return LightGbmQuantile.restored(about, arrays)
    if about["kind"].endswith(TREES_TOO):
        return NetworkAndTrees.restored(about, arrays)
    return NetworkPredictor.restored(about, arrays)
