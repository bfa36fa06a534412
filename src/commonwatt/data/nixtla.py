"""Nixtla's long format, in and out, as a pandas or a polars frame.

Rows are ``unique_id, ds, y``; quantile forecasts are columns ``NAME-q-0.95``; forecasts of a rolling origin carry
``cutoff``, the instant of the last value used. pandas is imported only for a pandas frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
import polars as pl

from commonwatt.data.series_files import LONGEST_GAP_S, step_of
from commonwatt.forecasting import RollingForecasts
from commonwatt.model.arrays import Floats
from commonwatt.model.demand import DemandSeries, QuantileForecast
from commonwatt.model.errors import InputError, MissingExtraError

__all__ = ["Kind", "from_long", "level_of", "quantile_column", "to_cross_validation", "to_forecast", "to_long"]

Kind = Literal["polars", "pandas"]

_MARK = "-q-"


def quantile_column(name: str, level: float) -> str:
    """Return the column of a model's quantile: ``gru-q-0.95``."""
    return f"{name}{_MARK}{level:g}"


def level_of(column: str) -> tuple[str, float] | None:
    """Return model and level of a quantile column; ``None`` for another column."""
    name, mark, level = column.rpartition(_MARK)
    try:
        return (name, float(level)) if mark and name else None
    except ValueError:
        return None


def from_long(
    frame: Any,  # noqa: ANN401
    step_s: float | None = None,
    longest_gap_s: float = LONGEST_GAP_S,
) -> dict[str, DemandSeries]:
    """Return the series of a frame ``unique_id, ds, y``, by ``unique_id``; ``ds`` are datetimes (UTC) or integers.

    Integers count steps of *step_s* (1 s if ``None``). Missing instants become unknown values.

    Parameters
    ----------
    longest_gap_s
        Longest gap between two rows that is filled with unknown values, s.

    Raises
    ------
    InputError
        For missing columns, no rows, a series without a name, an instant that is missing or repeated, instants off the
        grid, a longer gap, and demand that is no number, negative or infinite.
    """
    table = _polars(frame)
    for column in ("unique_id", "ds", "y"):
        if column not in table.columns:
            raise InputError("a frame with unique_id, ds and y", field=column, value=", ".join(table.columns))
    if not len(table):
        raise InputError("at least one row", field="frame", value="none")
    _check_names(table["unique_id"])
    _seconds(table["ds"][:0], 1.0)
    series = {}
    for (name,), rows in table.sort("unique_id", "ds", maintain_order=True).group_by("unique_id", maintain_order=True):
        series[str(name)] = _series(str(name), rows, step_s, longest_gap_s)
    return series


def _check_names(names: pl.Series) -> None:
    if names.dtype == pl.Object:
        raise InputError("texts or numbers", field="unique_id", value=names.dtype)
    if names.null_count() or (names.dtype.is_float() and names.is_nan().any()):
        raise InputError("a name in every row", field="unique_id", value="null")


def _series(name: str, rows: pl.DataFrame, step_s: float | None, longest_gap_s: float) -> DemandSeries:
    if rows["ds"].null_count():
        raise InputError("an instant in every row", field=f"{name}.ds", value="null")
    times_s = _seconds(rows["ds"], 1.0 if step_s is None else step_s)
    gaps = np.diff(times_s)
    if len(gaps) == 0 or (gaps <= 0).any():
        twice = "one row" if len(gaps) == 0 else str(rows["ds"][int(np.argmin(gaps))])
        raise InputError("two instants or more, each once", field=f"{name}.ds", value=twice)
    step = step_of(times_s)
    index = np.rint((times_s - times_s[0]) / step).astype(np.int64)
    if (np.abs(times_s - times_s[0] - index * step) > 0.01 * step).any() or (np.diff(index) == 0).any():
        raise InputError(f"instants {step:g} s apart", field=f"{name}.ds", value="others")
    missing_s = float((np.diff(index) - 1).max()) * step
    if missing_s > longest_gap_s:
        expected = f"no hole longer than {longest_gap_s:g} s; give longest_gap_s or the part on one side of it"
        raise InputError(expected, field=f"{name}.ds", value=f"{missing_s:.15g} s")
    try:
        demand = rows["y"].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    except pl.exceptions.PolarsError:
        raise InputError("numbers, null where unknown", field=f"{name}.y", value=rows["y"].dtype) from None
    gpus = np.full(int(index[-1]) + 1, np.nan)
    gpus[index] = demand
    try:
        return DemandSeries(float(times_s[0]), step, gpus)
    except InputError as error:
        raise InputError(error.expected, field=f"{name}.y", value=error.value) from None


def _seconds(ds: pl.Series, step_s: float) -> Floats:
    if isinstance(ds.dtype, pl.Datetime):
        return ds.dt.epoch("us").to_numpy() / 1e6
    if ds.dtype == pl.Date:
        return ds.cast(pl.Datetime("us")).dt.epoch("us").to_numpy() / 1e6
    if ds.dtype.is_integer():
        return ds.to_numpy().astype(np.float64) * step_s
    raise InputError("datetimes or integers", field="ds", value=ds.dtype)


def to_long(series: Mapping[str, DemandSeries], kind: Kind = "polars") -> Any:  # noqa: ANN401
    """Return a frame ``unique_id, ds, y`` with datetimes in UTC; unknown values are null.

    Raises ``InputError`` if there is no series.
    """
    if not series:
        raise InputError("at least one series", field="series", value="none")
    parts = [
        pl.DataFrame({"unique_id": [name] * len(one), "ds": _moments(one, np.arange(len(one))), "y": one.gpus})
        for name, one in series.items()
    ]
    return _as(pl.concat(parts).with_columns(pl.col("y").fill_nan(None)), kind)


def to_forecast(
    name: str, unique_id: str, series: DemandSeries, forecast: QuantileForecast, kind: Kind = "polars"
) -> Any:  # noqa: ANN401
    """Return a frame ``unique_id, ds, NAME, NAME-q-...`` of the forecast after *series*; ``NAME`` is the median."""
    steps = np.arange(len(series), len(series) + len(forecast.gpus))
    frame = pl.DataFrame({"unique_id": [unique_id] * len(steps), "ds": _moments(series, steps), name: forecast.at(0.5)})
    columns = [pl.Series(quantile_column(name, float(q)), forecast.gpus[:, i]) for i, q in enumerate(forecast.levels)]
    return _as(frame.with_columns(columns), kind)


def to_cross_validation(
    unique_id: str, series: DemandSeries, models: Mapping[str, RollingForecasts], kind: Kind = "polars"
) -> Any:  # noqa: ANN401
    """Return a frame ``unique_id, ds, cutoff, y, NAME, NAME-q-...`` of rolling forecasts, all from the same origins.

    Raises ``InputError`` for no models, and for models whose origins or horizons differ.
    """
    rolled = list(models.values())
    if not rolled or any(not np.array_equal(r.origins, rolled[0].origins) for r in rolled):
        raise InputError("models forecast from the same origins", field="models", value=", ".join(models) or "none")
    if len({r.gpus.shape[1] for r in rolled}) > 1:
        raise InputError("models of the same horizon", field="models", value=", ".join(models))
    horizon = rolled[0].gpus.shape[1]
    origins = np.repeat(rolled[0].origins, horizon)
    steps = origins + np.tile(np.arange(1, horizon + 1), len(rolled[0].origins))
    columns: dict[str, Sequence[Any] | Floats] = {
        "unique_id": [unique_id] * len(steps), "ds": _moments(series, steps), "cutoff": _moments(series, origins),
        "y": rolled[0].actual.ravel(),
    }  # fmt: skip
    for name, one in models.items():
        columns[name] = one.gpus[:, :, int(np.argmin(np.abs(one.levels - 0.5)))].ravel()
        for i, q in enumerate(one.levels):
            columns[quantile_column(name, float(q))] = one.gpus[:, :, i].ravel()
    return _as(pl.DataFrame(columns).with_columns(pl.col("y").fill_nan(None)), kind)


def _moments(series: DemandSeries, index: np.ndarray) -> list[datetime]:
    times_s = series.start_s + series.step_s * index
    return [datetime.fromtimestamp(t, tz=UTC).replace(tzinfo=None) for t in times_s.tolist()]


def _polars(frame: Any) -> pl.DataFrame:  # noqa: ANN401
    if isinstance(frame, pl.DataFrame):
        return frame
    pandas = _pandas()
    if not isinstance(frame, pandas.DataFrame):
        raise InputError("a polars or pandas frame", field="frame", value=type(frame).__name__)
    flat = frame if "unique_id" in frame.columns else frame.reset_index()
    return pl.DataFrame({str(name): _column(flat[name]) for name in flat.columns})


def _column(column: Any) -> pl.Series:  # noqa: ANN401
    """Convert through NumPy: conversion through Arrow needs another package."""
    values = column.to_numpy()
    if values.dtype.kind == "M":
        return pl.Series(values.astype("datetime64[us]"))
    try:
        return pl.Series(values.tolist())
    except TypeError:
        raise InputError("values of one kind", field=column.name, value=values.dtype) from None


def _as(frame: pl.DataFrame, kind: Kind) -> Any:  # noqa: ANN401
    if kind == "polars":
        return frame
    if kind != "pandas":
        raise InputError("polars or pandas", field="kind", value=kind)
    return _pandas().DataFrame({name: frame[name].to_numpy() for name in frame.columns})


def _pandas() -> Any:  # noqa: ANN401
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtraError("pandas", "forecast") from None
    return pd
