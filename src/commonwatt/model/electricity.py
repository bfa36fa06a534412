"""Electricity: price and carbon intensity, constant or changing over time, and the site's PUE.

``Electricity`` is part of a file. ``Tariff`` is its compiled form; it integrates over time, so that a job running
across a change of price pays each part at its own price.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import model_validator

from commonwatt.model.arrays import Floats
from commonwatt.model.errors import FieldError, InputError
from commonwatt.model.fields import FileModel, quantity
from commonwatt.model.units import DAY_S, J_PER_KWH

__all__ = ["NO_CAP_W", "Electricity", "ElectricityPoint", "StepIntegral", "Tariff"]

NO_CAP_W = 1e15
"""A cap that nothing reaches, at times without one."""


class ElectricityPoint(FileModel):
    """Price and carbon intensity from one moment until the next point."""

    from_s: float = quantity("start of these values, on the scenario's clock", "s")
    price_per_kwh: float = quantity(
        "price of electricity; may be below 0 in a series that does not repeat, but for its last step", "currency/kWh"
    )
    carbon_g_per_kwh: float | None = quantity("carbon intensity; absent: unknown", "g/kWh", None, ge=0)
    power_cap_w: float | None = quantity("most that all nodes may draw together; absent: no limit", "W", None, gt=0)


class Electricity(FileModel):
    """Price and carbon intensity of electricity at this site."""

    price_per_kwh: float = quantity("price of electricity, without a series", "currency/kWh", 0.172, ge=0)
    pue: float = quantity("power usage effectiveness: facility energy over IT energy", "-", 1.33, ge=1)
    carbon_g_per_kwh: float | None = quantity("carbon intensity; absent: unknown", "g/kWh", None, ge=0)
    power_cap_w: float | None = quantity(
        "most that all nodes may draw together, by their power models and without PUE; absent: no limit", "W", None,
        gt=0,
    )  # fmt: skip
    currency: str = quantity("currency of all costs", "-", "EUR", min_length=1)
    series: tuple[ElectricityPoint, ...] = quantity(
        "price and carbon intensity over time, in order; replaces the constants", "-", ()
    )
    series_file: str | None = quantity(
        "CSV with the columns of `series`, relative to this file; instead of `series`", "-", None
    )
    daily: dict[str, float] = quantity(
        "price by time of day, HH:MM to price, each until the next, every day; time 0 is midnight; read into `series`",
        "currency/kWh", dict,
    )  # fmt: skip
    repeat_s: float | None = quantity("period after which the series repeats (86400: daily)", "s", None, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _read_daily(cls, raw: Any) -> Any:  # noqa: ANN401
        daily = raw.get("daily") if isinstance(raw, Mapping) else None
        if not isinstance(daily, Mapping) or not daily:
            return raw
        if other := next((name for name in ("series", "series_file", "repeat_s") if raw.get(name)), None):
            raise FieldError(f"either `daily` or `{other}`, not both", field="daily")
        prices = sorted((_second_of_day(at), at, price) for at, price in daily.items())
        for _, at, price in prices:
            if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < math.inf:
                raise FieldError("a price, 0 or more", field="daily", value=f"{price!r} at {at}")
        if prices[0][0] > 0:  # the day begins at the price of the evening before
            prices.insert(0, (0, "", prices[-1][2]))
        carbon = raw.get("carbon_g_per_kwh")
        points = [{"from_s": at, "price_per_kwh": price, "carbon_g_per_kwh": carbon} for at, _, price in prices]
        return {**raw, "daily": {}, "series": points, "repeat_s": DAY_S}

    @model_validator(mode="after")
    def _check_series(self) -> Electricity:
        starts = [point.from_s for point in self.series]
        for k, (earlier, later) in enumerate(pairwise(starts), start=1):
            if later <= earlier:
                raise FieldError(
                    "strictly increasing times", field=f"series.{k}.from_s", value=f"{later:.15g} after {earlier:.15g}"
                )
        self._check_negative()
        if self.series and self.series_file:
            raise FieldError("either `series` or `series_file`, not both", field="series_file")
        if self.repeat_s is not None:
            if not (self.series or self.series_file):
                raise FieldError("only together with a series", field="repeat_s")
            if starts and (starts[0] != 0 or starts[-1] >= self.repeat_s):
                raise FieldError(f"to begin at 0 and end before repeat_s = {self.repeat_s:g}", field="series")
        return self

    def _check_negative(self) -> None:
        """Refuse prices below 0 for ever: nodes that only stand idle would earn without end."""
        for k, point in enumerate(self.series):
            for_ever = self.repeat_s is not None or k == len(self.series) - 1
            if point.price_per_kwh < 0 and for_ever:
                where = "a series that repeats" if self.repeat_s is not None else "its last step, which holds for ever"
                raise FieldError(
                    f"0 or more in {where}", field=f"series.{k}.price_per_kwh", value=f"{point.price_per_kwh:g}"
                )

    def tariff(self) -> Tariff:
        """Compile. Raises ``InputError`` if ``series_file`` has not been read into ``series``."""
        if self.series_file and not self.series:
            raise InputError("a series read from its file", field="electricity.series_file", value=self.series_file)
        if not self.series:
            price = StepIntegral.constant(self.price_per_kwh)
            carbon = None if self.carbon_g_per_kwh is None else StepIntegral.constant(self.carbon_g_per_kwh)
            cap_w = None if self.power_cap_w is None else StepIntegral.constant(self.power_cap_w)
            return Tariff(price, carbon, self.pue, cap_w, self.currency)
        starts = np.array([point.from_s for point in self.series])
        price = StepIntegral.of(starts, [p.price_per_kwh for p in self.series], self.repeat_s)
        grams = [p.carbon_g_per_kwh for p in self.series]
        has_carbon = all(g is not None for g in grams)
        carbon = StepIntegral.of(starts, [g or 0.0 for g in grams], self.repeat_s) if has_carbon else None
        cap_w = None if self.power_cap_w is None else StepIntegral.constant(self.power_cap_w)
        if any(p.power_cap_w is not None for p in self.series):
            caps_w = [p.power_cap_w or self.power_cap_w or NO_CAP_W for p in self.series]
            cap_w = StepIntegral.of(starts, caps_w, self.repeat_s)
        return Tariff(price, carbon, self.pue, cap_w, self.currency)

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


def _second_of_day(at: object) -> float:
    """Seconds since midnight of a time of day: HH:MM, or minutes, as YAML reads some of these."""
    if isinstance(at, int) and 0 <= at < 1440:
        return 60.0 * at
    hours, _, minutes = str(at).partition(":")
    if not (hours.isdecimal() and minutes.isdecimal() and len(minutes) == 2 and int(hours) < 24 and int(minutes) < 60):
        raise FieldError("times of day from 00:00 to 23:59", field="daily", value=at)
    return 3600.0 * int(hours) + 60.0 * int(minutes)


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

    @cached_property
    def constant_value(self) -> float | None:
        """The only value; ``None`` if there are several."""
        return float(self.values[0]) if self.is_constant else None

    def over(self, from_s: float, to_s: float) -> float:
        """Integrate from *from_s* to *to_s*, two numbers."""
        value = self.constant_value
        return float(self.integral(from_s, to_s)) if value is None else (to_s - from_s) * value

    def at(self, time_s: ArrayLike) -> Floats:
        """Return the value at each of *time_s*."""
        times = np.asarray(time_s, dtype=float)
        if self.period_s is not None and not self.is_constant:
            times = times - np.floor(times / self.period_s) * self.period_s
        return np.asarray(self.values[self._step(times)])

    def changes(self, from_s: float, to_s: float) -> Floats:
        """Return when steps begin after *from_s* and before *to_s*, both finite; in order."""
        if self.is_constant or not from_s < to_s:
            return np.zeros(0)
        starts = self.starts_s[1:]
        if self.period_s is not None:
            rounds = np.arange(np.floor(from_s / self.period_s), np.floor(to_s / self.period_s) + 1)
            starts = (rounds[:, None] * self.period_s + self.starts_s[None, :]).ravel()
        return starts[(starts > from_s) & (starts < to_s)]

    def pieces(self, from_s: float, to_s: float) -> tuple[Floats, Floats]:
        """Return the steps from *from_s* to *to_s*, both finite: their edges [P + 1] and values [P]."""
        edges = np.concatenate(([from_s], self.changes(from_s, to_s), [to_s]))
        return edges, self.at(0.5 * (edges[:-1] + edges[1:]))  # a multiple of a period may be rounded down

    def least_within(self, edges_s: Floats) -> Floats:
        """Return the least value in each interval between *edges_s*, finite and increasing, [B + 1]."""
        if self.is_constant:
            return np.full(len(edges_s) - 1, self.values[0])
        cuts = np.union1d(edges_s, self.changes(float(edges_s[0]), float(edges_s[-1])))
        values = self.at(0.5 * (cuts[:-1] + cuts[1:]))
        return np.asarray(np.minimum.reduceat(values, np.searchsorted(cuts, edges_s[:-1])))

    def integral(self, from_s: ArrayLike, to_s: ArrayLike) -> Floats:
        """Integrate from *from_s* to *to_s* (broadcast)."""
        if self.is_constant:
            return np.asarray((np.asarray(to_s, dtype=float) - from_s) * self.values[0])
        return self._upto(np.asarray(to_s, dtype=float)) - self._upto(np.asarray(from_s, dtype=float))

    def times(self, factor: float) -> StepIntegral:
        """Return this function times *factor*."""
        return replace(self, values=self.values * factor, areas=self.areas * factor)

    def plus(self, other: StepIntegral) -> StepIntegral:
        """Return the sum of two functions, of which one is constant or both have the same steps."""
        if self.is_constant and not other.is_constant:
            return other.plus(self)
        if not other.is_constant and not np.array_equal(self.starts_s, other.starts_s):
            msg = "functions of the same steps"
            raise ValueError(msg)
        return StepIntegral.of(self.starts_s, self.values + other.values, self.period_s)

    def at_most(self, limit: float) -> StepIntegral:
        """Return this function, nowhere above *limit*."""
        return StepIntegral.of(self.starts_s, np.minimum(self.values, limit), self.period_s)

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
    cap_w: StepIntegral | None = None  # most that all nodes may draw together; None: no limit
    currency: str = ""

    def cost(self, power_w: ArrayLike, from_s: ArrayLike, to_s: ArrayLike) -> Floats:
        """Return the cost of *power_w* from *from_s* to *to_s* (broadcast): ``P * pue * integral of price``."""
        return np.asarray(np.asarray(power_w) * self.price.integral(from_s, to_s) * self.per_j)

    def metered(self, power_w: float, from_s: float, to_s: float) -> tuple[float, float | None]:
        """Return cost and grams of CO2 of *power_w* from *from_s* to *to_s*, as ``cost`` and ``carbon_g`` do."""
        grams = None if self.carbon is None else power_w * self.carbon.over(from_s, to_s) * self.per_j
        return power_w * self.price.over(from_s, to_s) * self.per_j, grams

    def planned_by(self, minimise: Literal["cost", "carbon"], carbon_price_per_kg: float) -> StepIntegral:
        """Return what a joule counts for in a plan, PUE included: currency, or kg of CO2 where that is minimised.

        Raises ``InputError`` where it takes a carbon intensity that is unknown.
        """
        if minimise == "cost" and carbon_price_per_kg == 0:
            return self.price.times(self.per_j)
        if self.carbon is None:
            expected = "a carbon intensity at all times, as a policy's wait_for_price counts carbon"
            raise InputError(expected, field="electricity.carbon_g_per_kwh", value="none")
        if minimise == "carbon":
            return self.carbon.times(self.per_j / 1000)
        return self.price.plus(self.carbon.times(carbon_price_per_kg / 1000)).times(self.per_j)

    def never_negative(self) -> Tariff:
        """Return this tariff with prices of at least 0, as solvers take them."""
        if self.price.values.min() >= 0:
            return self
        price = StepIntegral.of(self.price.starts_s, np.maximum(0.0, self.price.values), self.price.period_s)
        return replace(self, price=price)

    def flat(self, from_s: float, to_s: float) -> Tariff:
        """Return this tariff with the mean price from *from_s* to *to_s* at all times."""
        to_s = max(to_s, from_s + 1.0)
        mean = float(self.price.integral(from_s, to_s)) / (to_s - from_s)
        return replace(self, price=StepIntegral.constant(mean))

    def carbon_g(self, power_w: ArrayLike, from_s: ArrayLike, to_s: ArrayLike) -> Floats | None:
        """Return the grams of CO2 for the same; ``None`` if the intensity is unknown."""
        if self.carbon is None:
            return None
        return np.asarray(np.asarray(power_w) * self.carbon.integral(from_s, to_s) * self.per_j)

    @property
    def per_j(self) -> float:
        """Cost of a joule at a price of 1 a kWh, including PUE."""
        return self.pue / J_PER_KWH

    def least_cost_per_j(self, from_s: ArrayLike) -> Floats:
        """Return the lowest price of a joule at or after *from_s*, including PUE."""
        return self.price.minimum_from(from_s) * self.per_j
