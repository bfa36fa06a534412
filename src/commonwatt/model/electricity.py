"""Electricity: price and carbon intensity, constant or changing over time, and the site's PUE.

``Electricity`` is part of a file. ``Tariff`` is its compiled form; it integrates over time, so that a job running
across a change of price pays each part at its own price.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import model_validator

from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError
from commonwatt.model.fields import FileModel, quantity
from commonwatt.model.units import J_PER_KWH

__all__ = ["Electricity", "ElectricityPoint", "StepIntegral", "Tariff"]


class ElectricityPoint(FileModel):
    """Price and carbon intensity from one moment until the next point."""

    from_s: float = quantity("start of these values, on the scenario's clock", "s")
    price_per_kwh: float = quantity("price of electricity", "currency/kWh", ge=0)
    carbon_g_per_kwh: float | None = quantity("carbon intensity; absent: unknown", "g/kWh", None, ge=0)


class Electricity(FileModel):
    """Price and carbon intensity of electricity at this site."""

    price_per_kwh: float = quantity("price of electricity, without a series", "currency/kWh", 0.172, ge=0)
    pue: float = quantity("power usage effectiveness: facility energy over IT energy", "-", 1.33, ge=1)
    carbon_g_per_kwh: float | None = quantity("carbon intensity; absent: unknown", "g/kWh", None, ge=0)
    currency: str = quantity("currency of all costs", "-", "EUR", min_length=1)
    series: tuple[ElectricityPoint, ...] = quantity(
        "price and carbon intensity over time, in order; replaces the constants", "-", ()
    )
    series_file: str | None = quantity(
        "CSV with the columns of `series`, relative to this file; instead of `series`", "-", None
    )
    repeat_s: float | None = quantity("period after which the series repeats (86400: daily)", "s", None, gt=0)

    @model_validator(mode="after")
    def _check_series(self) -> Electricity:
        starts = [point.from_s for point in self.series]
        if any(later <= earlier for earlier, later in pairwise(starts)):
            msg = "series: expected strictly increasing from_s"
            raise ValueError(msg)
        if self.series and self.series_file:
            msg = "series_file: expected either `series` or `series_file`, not both"
            raise ValueError(msg)
        if self.repeat_s is not None:
            if not (self.series or self.series_file):
                msg = "repeat_s: expected only together with a series"
                raise ValueError(msg)
            if starts and (starts[0] != 0 or starts[-1] >= self.repeat_s):
                msg = f"series: expected to begin at 0 and end before repeat_s = {self.repeat_s:g}"
                raise ValueError(msg)
        return self

    def tariff(self) -> Tariff:
        """Compile. Raises ``InputError`` if ``series_file`` has not been read into ``series``."""
        if self.series_file and not self.series:
            raise InputError("a series read from its file", field="electricity.series_file", value=self.series_file)
        if not self.series:
            price = StepIntegral.constant(self.price_per_kwh)
            carbon = None if self.carbon_g_per_kwh is None else StepIntegral.constant(self.carbon_g_per_kwh)
            return Tariff(price, carbon, self.pue)
        starts = np.array([point.from_s for point in self.series])
        price = StepIntegral.of(starts, [p.price_per_kwh for p in self.series], self.repeat_s)
        grams = [p.carbon_g_per_kwh for p in self.series]
        known = all(g is not None for g in grams)
        carbon = StepIntegral.of(starts, [g or 0.0 for g in grams], self.repeat_s) if known else None
        return Tariff(price, carbon, self.pue)

    def seen_from(self, moment_s: float) -> Electricity:
        """Return the same electricity on a clock that starts at *moment_s* of this one."""
        if not self.series:
            return self
        shifted = [point.model_copy(update={"from_s": point.from_s - moment_s}) for point in self.series]
        if self.repeat_s is not None:
            shifted = [point.model_copy(update={"from_s": point.from_s % self.repeat_s}) for point in shifted]
            shifted.sort(key=lambda point: point.from_s)
            if shifted[0].from_s > 0:
                shifted.insert(0, shifted[-1].model_copy(update={"from_s": 0.0}))
        return self.model_copy(update={"series": tuple(shifted)})


@dataclass(frozen=True)
class StepIntegral:
    """A step function of time and its integral from time 0.

    Before the first step the first value holds; after the last, the last one; with ``period_s`` the steps
    from 0 to ``period_s`` repeat for ever.
    """

    starts_s: Floats  # [S]
    values: Floats  # [S]
    areas: Floats  # [S] integral from starts_s[0] to starts_s[k]
    period_s: float | None = None

    @classmethod
    def constant(cls, value: float) -> StepIntegral:
        """Return a constant function."""
        return cls(np.zeros(1), np.array([float(value)]), np.zeros(1))

    @classmethod
    def of(cls, starts_s: ArrayLike, values: ArrayLike, period_s: float | None = None) -> StepIntegral:
        """Return steps that start at *starts_s* [S], increasing, with *values* [S]."""
        starts = np.asarray(starts_s, dtype=float)
        steps = np.asarray(values, dtype=float)
        areas = np.concatenate(([0.0], np.cumsum(steps[:-1] * np.diff(starts))))
        return cls(starts, steps, areas, period_s)

    @property
    def is_constant(self) -> bool:
        """Whether there is only one value."""
        return len(self.values) == 1

    def integral(self, from_s: ArrayLike, to_s: ArrayLike) -> Floats:
        """Integrate from *from_s* to *to_s* (broadcast)."""
        if self.is_constant:
            return np.asarray((np.asarray(to_s, dtype=float) - from_s) * self.values[0])
        return self._upto(np.asarray(to_s, dtype=float)) - self._upto(np.asarray(from_s, dtype=float))

    def minimum_from(self, from_s: ArrayLike) -> Floats:
        """Return the smallest value at or after each of *from_s*."""
        times = np.asarray(from_s, dtype=float)
        if self.period_s is not None or self.is_constant:
            return np.full(times.shape, self.values.min())
        suffix = np.minimum.accumulate(self.values[::-1])[::-1]
        return np.asarray(suffix[self._step(times)])

    def _upto(self, times: Floats) -> Floats:
        if self.period_s is None:
            return self._within(times)
        whole = np.floor(times / self.period_s)
        return whole * self._within(np.array(self.period_s)) + self._within(times - whole * self.period_s)

    def _within(self, times: Floats) -> Floats:
        step = self._step(times)
        return np.asarray(self.areas[step] + (times - self.starts_s[step]) * self.values[step])

    def _step(self, times: Floats) -> NDArray[np.intp]:
        return np.asarray(np.clip(np.searchsorted(self.starts_s, times, side="right") - 1, 0, None))


@dataclass(frozen=True)
class Tariff:
    """Cost and carbon of power over time, including PUE."""

    price: StepIntegral  # currency per kWh
    carbon: StepIntegral | None  # grams per kWh; None: unknown
    pue: float

    def cost(self, power_w: ArrayLike, from_s: ArrayLike, to_s: ArrayLike) -> Floats:
        """Return the cost of *power_w* from *from_s* to *to_s* (broadcast): ``P * pue * integral of price``."""
        return np.asarray(np.asarray(power_w) * self.price.integral(from_s, to_s) * (self.pue / J_PER_KWH))

    def flat(self, from_s: float, to_s: float) -> Tariff:
        """Return this tariff with the mean price from *from_s* to *to_s* at all times."""
        to_s = max(to_s, from_s + 1.0)
        mean = float(self.price.integral(from_s, to_s)) / (to_s - from_s)
        return Tariff(StepIntegral.constant(mean), self.carbon, self.pue)

    def carbon_g(self, power_w: ArrayLike, from_s: ArrayLike, to_s: ArrayLike) -> Floats | None:
        """Return the grams of CO2 for the same; ``None`` if the intensity is unknown."""
        if self.carbon is None:
            return None
        return np.asarray(np.asarray(power_w) * self.carbon.integral(from_s, to_s) * (self.pue / J_PER_KWH))

    def least_cost_per_j(self, from_s: ArrayLike) -> Floats:
        """Return the lowest price of a joule at or after *from_s*, including PUE."""
        return self.price.minimum_from(from_s) * (self.pue / J_PER_KWH)
