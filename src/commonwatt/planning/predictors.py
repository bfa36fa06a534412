"""Predictors by name or from a model file; fitting, saving, and forecasting from a series."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from commonwatt import __version__
from commonwatt.data.forecast_model import read_model, write_model
from commonwatt.data.series_files import SeriesFile, iso_moment
from commonwatt.forecasting import PREDICTORS, NetworkSettings, WrappedPredictor, make_predictor
from commonwatt.model.arrays import Floats
from commonwatt.model.demand import (
    HORIZON,
    LEVELS,
    LOOK_BACK,
    DemandSeries,
    FittedPredictor,
    Predictor,
)
from commonwatt.model.errors import InputError
from commonwatt.model.forecast_file import TREES
from commonwatt.model.forecast_results import ForecastFitResult, ForecastPredictResult, ForecastStep
from commonwatt.model.names import one_of
from commonwatt.model.plugins import one, plugged
from commonwatt.model.units import DAY_S

__all__ = [
    "SavedPredictor",
    "TimedPredictor",
    "calibrated_from",
    "features_of",
    "fit_series",
    "load_predictor",
    "make_savable",
    "median_ms",
    "model_features",
    "predict_series",
]

_REPEATS = 21
_CALIBRATION_DAYS = 7.0  # before what is replayed or scored; the knob and the calibration learn from it


def calibrated_from(series: DemandSeries, predictor: Predictor, begin: int, *, fitted: bool) -> int:
    """Return the index before which *predictor* is fitted: a week before *begin*, later if little lies before that.

    Raises
    ------
    InputError
        If too little lies before *begin*.
    """
    least = predictor.look_back + predictor.horizon
    first = max(
        begin - round(_CALIBRATION_DAYS * DAY_S / series.step_s), least if fitted else (least + begin) // 2,
        series.first_index + predictor.horizon,
    )  # fmt: skip
    if not least <= first < begin:
        expected = f"more than {least} values before it, of which there are {begin}"
        raise InputError(expected, field="test_from", value=begin)
    return first


class SavedPredictor(WrappedPredictor):
    """A predictor from a model file. A fit learns nothing; it checks that the test part was not used for training."""

    def __init__(self, inner: FittedPredictor, path: Path) -> None:
        super().__init__(inner)
        self._path, self._step_s, self._end_s = path, inner.step_s, inner.fitted_until_s

    def fit(self, series: DemandSeries, rng: np.random.Generator) -> None:  # noqa: ARG002
        """Raise ``InputError`` if the model has another step, or was fitted on values after *series*."""
        if abs(series.step_s - self._step_s) > 1e-6 * series.step_s:
            expected = f"values every {self._step_s:g} s, as the model was fitted on"
            raise InputError(expected, field="step_s", value=series.step_s)
        if self._end_s > series.end_s + series.step_s / 2:
            end = iso_moment(self._end_s)
            expected = (
                f"a test part from {end} on, as the model was fitted on what lies before; or a model fitted on less "
                "(`commonwatt forecast fit --train-until`)"
            )
            raise InputError(expected, file=self._path, field="test_from")


class TimedPredictor(WrappedPredictor):
    """A predictor and the duration of its fits, ``fits_s``.

    Parameters
    ----------
    progress
        Called with the part of a fit that is done, within 0 and 1, by predictors that report it.
    clock
        Returns seconds from any origin; one that stands still while Numba compiles leaves that out.
    """

    def __init__(
        self, inner: Predictor, progress: Callable[[float], None] = lambda _: None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:  # fmt: skip
        super().__init__(inner)
        self._progress, self._clock = progress, clock
        self.fits_s: list[float] = []

    def fit(self, series: DemandSeries, rng: np.random.Generator) -> None:
        """Fit the other and record the duration."""
        began = self._clock()
        _fit(self._inner, series, rng, progress=self._progress)
        self.fits_s.append(self._clock() - began)


def _fit(predictor: Predictor, series: DemandSeries, rng: np.random.Generator, **hooks: Callable[..., Any]) -> None:
    """Fit *predictor* with those of *hooks* that it supports."""
    supported = signature(predictor.fit).parameters
    predictor.fit(series, rng, **{name: hook for name, hook in hooks.items() if name in supported})


def median_ms(predictor: Predictor, values: Floats) -> tuple[float, float]:
    """Return the median duration of a forecast and of an update, ms, while observing *values* one by one."""
    forecasts, updates = [], []
    for repeat in range(_REPEATS):
        began = perf_counter()
        predictor.update(float(values[repeat % len(values)]))
        observed = perf_counter()
        predictor.predict()
        updates.append(observed - began)
        forecasts.append(perf_counter() - observed)
    middle = _REPEATS // 2
    return 1e3 * sorted(forecasts)[middle], 1e3 * sorted(updates)[middle]


def features_of(predictor: Predictor) -> tuple[str, ...]:
    """Return the columns beside demand that *predictor* learns from; none for a predictor without any."""
    features: tuple[str, ...] = getattr(predictor, "features", ())
    return features


def load_predictor(
    model: str, look_back: int | None = None, horizon: int | None = None, features: Sequence[str] = ()
) -> Predictor:
    """Return a new predictor called *model*, ours or a plugin, or a ``SavedPredictor`` from the file of that path.

    Parameters
    ----------
    features
        Columns beside demand that it learns from. A model file keeps its own.

    Raises
    ------
    InputError
        For an unknown name, a file that is no model, a look-back, a horizon or features other than the file's, and
        features of a predictor that takes none.
    MissingExtraError
        If a package it needs is not installed.
    """
    plugin = one("forecasters", model, PREDICTORS)
    if plugin is not None:
        _options(model, features)
        made: Predictor = plugged(plugin, look_back=look_back or LOOK_BACK, horizon=horizon or HORIZON)
        return made
    path = Path(model)
    if model in PREDICTORS or not (path.suffix or path.exists()):
        options = _options(model, features) if model in PREDICTORS else {}  # an unknown name is refused as such
        return make_predictor(model, look_back or LOOK_BACK, horizon or HORIZON, **options)
    predictor, _ = read_model(path)
    for field, given, own in (
        ("look_back", look_back, predictor.look_back),
        ("horizon", horizon, predictor.horizon),
    ):
        if given not in (None, own):
            raise InputError(f"{own}, as in the model file", field=field, value=given)
    if features and tuple(features) != features_of(predictor):
        expected = f"{','.join(features_of(predictor)) or 'none'}, as in the model file"
        raise InputError(expected, field="features", value=",".join(features))
    return SavedPredictor(predictor, path)


def _options(model: str, features: Sequence[str]) -> dict[str, Any]:
    """Return the options of our predictor or the plugin *model*; raises ``InputError`` on features if it takes none."""
    if not features:
        return {}
    takers = [name for name, entry in PREDICTORS.items() if entry.takes_features]
    if model not in takers:
        expected = f"none, as {model} learns from demand alone ({' and '.join(takers)} takes columns beside it)"
        raise InputError(expected, field="features", value=",".join(features))
    return {"features": tuple(features)}


def make_savable(
    model: str, look_back: int | None = None, horizon: int | None = None, *, members: int | None = None,
    epochs: int | None = None, held_out: float | None = None, raw_levels: bool = False, features: Sequence[str] = (),
) -> FittedPredictor:  # fmt: skip
    """Return a new predictor that can be saved to a file, with settings of its networks.

    Raises
    ------
    InputError
        For an unknown name, a predictor that cannot be saved, settings of networks without a network, and features of
        a predictor that takes none.
    MissingExtraError
        If a package it needs is not installed.
    """
    names = [name for name, entry in PREDICTORS.items() if entry.savable]
    if model not in names:
        if one("forecasters", model, PREDICTORS) is not None:
            expected = (
                "a model of ours: no file can hold what a plugin has learned; `forecast evaluate` and `forecast plan` "
                "fit it where they use it"
            )
            raise InputError(expected, field="model", value=model)
        expected = f"{one_of(names, model)}; others need no fit: name them in `forecast evaluate` or `forecast plan`"
        raise InputError(expected, field="model", value=model)
    options = _options(model, features)
    if PREDICTORS[model].trains_network:
        settings = NetworkSettings(raw=raw_levels, held_out=held_out or 0.0)
        recipe = settings.recipe if epochs is None else replace(settings.recipe, epochs=epochs)
        options["settings"] = replace(settings, recipe=recipe, members=members or settings.members)
    else:
        given = {"members": members, "epochs": epochs, "held_out": held_out, "raw_levels": raw_levels or None}
        for field, value in given.items():
            if value is not None:
                raise InputError(f"none, as {model} is no network", field=field, value=value)
    made = make_predictor(model, look_back or LOOK_BACK, horizon or HORIZON, **options)
    assert isinstance(made, FittedPredictor)
    return made


def model_features(model: Path) -> tuple[str, ...]:
    """Return the columns beside demand that the model file *model* needs; raises as ``predict_series``."""
    return features_of(read_model(model)[0])


def fit_series(
    file: SeriesFile, predictor: FittedPredictor, out: Path, *, until: int | None = None, seed: int = 0,
    go_on: Callable[[], bool] = lambda: True, progress: Callable[[float], None] = lambda _: None,
    clock: Callable[[], float] = perf_counter,
) -> ForecastFitResult:  # fmt: skip
    """Fit *predictor* on the first *until* values of a series (all if ``None``), and write it to *out*.

    Parameters
    ----------
    predictor
        As ``make_savable`` returns it.
    go_on
        Called before each step of training a network. Once it returns false, training ends and its weights are kept.
    progress
        Called with the part of the work done, within 0 and 1.
    clock
        Returns seconds from any origin; one that stands still while Numba compiles leaves that out.

    Raises
    ------
    InputError
        For a series too short, and a file that cannot be written.
    """
    began, series = clock(), file.series
    until = len(series) if until is None else until
    _fit(predictor, series.between(0, until), np.random.default_rng(seed), go_on=go_on, progress=progress)
    interrupted = predictor.name != TREES and not go_on()
    size = write_model(predictor, out, seed)
    return ForecastFitResult(
        version=__version__,
        seed=seed,
        input_digest=file.digest,
        model=predictor.name,
        out=str(out),
        file_bytes=size,
        n=predictor.look_back,
        m=predictor.horizon,
        step_s=series.step_s,
        first=file.moment(0),
        last=file.moment(until - 1),
        values=until,
        members=predictor.members,
        interrupted=interrupted,
        fit_s=clock() - began,
    )


def predict_series(model: Path, file: SeriesFile, at: int | None = None) -> ForecastPredictResult:
    """Forecast the values after index *at* of a series (after its end if ``None``) by the model file *model*.

    Raises
    ------
    InputError
        For a file that is no model, one of another step, and an index with too few values up to it.
    MissingExtraError
        If a package it needs is not installed.
    """
    predictor, header = read_model(model)
    series = file.series
    origin = len(series) - 1 if at is None else at
    if origin < predictor.look_back - 1:
        expected = f"at least {predictor.look_back} values up to then"
        raise InputError(expected, field="series" if at is None else "at", value=origin + 1)
    if origin < series.first_index:
        raise InputError("a moment with a known value up to then", field="at", value=file.moment(origin))
    predictor.predict_many(series, np.array([origin]))  # compiles and loads
    began = perf_counter()
    gpus = predictor.predict_many(series, np.array([origin]))[0]
    took_ms = 1000 * (perf_counter() - began)
    last = float(series.gpus[origin])
    return ForecastPredictResult(
        version=__version__,
        seed=header.seed,
        input_digest=file.digest,
        model=predictor.name,
        n=predictor.look_back,
        m=predictor.horizon,
        step_s=series.step_s,
        seen_until=file.moment(origin),
        last_gpus=None if np.isnan(last) else last,
        levels=tuple(LEVELS.tolist()),
        steps=tuple(
            ForecastStep(at=file.moment(origin + 1 + h), gpus=tuple(row)) for h, row in enumerate(gpus.tolist())
        ),
        predict_ms=took_ms,
    )
