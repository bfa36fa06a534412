"""A promised performance that is kept: forecasts shifted online until they cover demand as often as promised.

For each step of the horizon the forecast quantile at the target is shifted by a number of GPUs that follows the
outcomes: up by a little less than ``rate`` units after a miss (demand exceeded the plan), down by very little after a
covered outcome. The share of covered outcomes therefore converges to the target for every predictor and every drift
of demand (online quantile tracking: Gibbs and Candes, "Adaptive conformal inference under distribution shift",
NeurIPS 2021; Angelopoulos, Candes and Tibshirani, "Conformal PID control", NeurIPS 2023, section 2.1). An outcome is
compared with what was planned when it was forecast; nothing later is used.

Outcomes that were certain are excluded: a shift does not fall below a plan of zero, and does not move where all GPUs
were on and wanted. Forecasts made while nothing is wanted have shifts of their own, so that an idle period, which is
easily covered, does not use up the misses allowed to the busy one after it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from commonwatt.capacity.scores import kept_on
from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.demand import HORIZON, Arrivals, QuantileForecast, quantile_at
from commonwatt.model.errors import InputError
from commonwatt.model.units import plural

__all__ = ["Calibrator", "Followed", "OnlineCalibrator", "PromiseState", "follow", "unkeepable_reason"]

RATE = 0.01
"""Step of the shift, in units of the forecast's spread, divided by the square root of the misses allowed.

More than ``HORIZON`` steps ahead it is divided by the square root of their ratio: a jump is missed by all forecasts
that overlap it, and each of these misses moves the shift before the first of them has shown an effect.
"""

MARGIN = 0.05
"""Share of the allowed misses by which the tracker aims above the target: a promise is a floor."""

MEMORY = 1440
"""Forecasts over which the unit of the shift is averaged."""

ERROR_SPREADS = 3.0
"""The unit is the larger of the forecast's mean spread (.99 less median) and this many mean errors of its median."""

WINDOW = 120
"""Outcomes among which too many misses mark a regime as unseen."""

REMEMBERED = 84
"""Windows after which the worst window, and the longest rest, are forgotten: a week of minutes."""

FALSE_ALARM = 1e-3
"""Probability that chance alone gives a window more misses than the alarm allows."""


@dataclass(frozen=True)
class PromiseState:
    """Whether the promise can be kept now.

    Parameters
    ----------
    kept
        Whether the calibrated forecast is used; else everything stays on.
    sentence
        The reason, in one sentence.
    achieved
        Share of the outcomes of the furthest step that were covered so far; ``None`` before the first.
    """

    kept: bool
    sentence: str
    achieved: float | None


@dataclass(frozen=True)
class Followed:
    """GPUs kept on along a series.

    Parameters
    ----------
    gpus
        GPUs kept on at the m steps after each origin. Shape [N, m].
    promised
        Whether a promise was made at each origin; else everything stayed on. Shape [N].
    everything
        All GPUs at each origin. Shape [N].
    """

    gpus: Ints
    promised: Bools
    everything: Ints


class OnlineCalibrator(Protocol):
    """Turns forecasts into GPUs to keep on, such that a promise is kept."""

    @property
    def state(self) -> PromiseState:
        """Whether the promise can be kept now, and why not."""
        ...

    @property
    def everything_gpus(self) -> int:
        """All GPUs; the most ever observed or forecast where that is unknown."""
        ...

    @property
    def shift_gpus(self) -> Floats | None:
        """GPUs by which the forecast's quantiles are shifted, [m]; ``None`` if these are not what is calibrated."""
        ...

    def observe(self, gpus: float, arrivals: Arrivals | None = None) -> None:
        """Observe one more value, GPUs (NaN if unknown), and the jobs that came since the value before it."""
        ...

    def keep_on_rows(self, levels: Floats, quantiles: Floats) -> Ints:
        """Return the GPUs to keep on at each step for quantiles at *levels*, shape [m, Q]. Shape [m]."""
        ...

    def follow(
        self, gpus: Floats, origins: Ints, levels: Floats, quantiles: Floats, arrivals: Arrivals | None = None
    ) -> Followed:
        """Run along a series: observe the value at each origin, then keep on what its forecast needs."""
        ...


def unkeepable_reason(actual: Floats, target: float, total_gpus: int) -> str | None:
    """Return why no plan keeps the promise: demand exceeded all GPUs too often, in *actual* or its last ``WINDOW``.

    ``None`` if it did not. *actual* has known values only. Shape [K].
    """
    for wanted, part in ((actual, "instants replayed"), (actual[-WINDOW:], "last instants")):
        count = int((wanted > total_gpus).sum())
        if count > (1.0 - target) * len(wanted) + 1e-9:
            return f"more was wanted than all GPUs ({total_gpus:,}) at {count:,} of the {len(wanted):,} {part}"
    return None


class _RecentMaximum:
    """Maximum of the last *length* numbers pushed; 0 before the first."""

    def __init__(self, length: int) -> None:
        self._length, self._pushed = length, 0
        self._falling: deque[tuple[int, int]] = deque()  # numbers that no later one reaches, and when they were pushed

    @property
    def value(self) -> int:
        return self._falling[0][1] if self._falling else 0

    def push(self, number: int) -> None:
        while self._falling and self._falling[-1][1] <= number:
            self._falling.pop()
        self._falling.append((self._pushed, number))
        self._pushed += 1
        if self._falling[0][0] < self._pushed - self._length:
            self._falling.popleft()


def _by_chance(count: int, steps: int, share: float) -> int:
    """Return the most misses among *count* outcomes that chance explains, each missed with probability *share*.

    Forecasts *steps* ahead overlap: a jump that none of them saw is missed as many times in a row. So runs of *steps*
    misses come by chance (a Poisson number of them), not misses. Two jumps are no regime.
    """
    mean, runs = count * share / steps, 0
    left = 1.0 - math.exp(-mean)  # probability of more runs
    term = math.exp(-mean)
    while left > FALSE_ALARM:
        runs += 1
        term *= mean / runs
        left -= term
    return max(2, runs) * steps


class Calibrator:
    """GPUs to keep on, such that they suffice at the target share of all instants.

    Call ``observe`` with each value as it becomes known, and ``keep_on`` with each forecast. No promise is made, and
    ``keep_on`` returns all GPUs, in these cases, which ``state`` names: before a window of outcomes is complete; after
    a window that is mostly unknown; and from a window with half again as many misses as any in the week before it, and
    more than chance explains, until a window with no more misses than promised.

    A rest (no demand) of a window or more that is longer than any of the week before it is an outage: when demand
    returns cannot be foreseen, so nothing is promised and nothing is kept on for it. After it a window of outcomes has
    to be seen anew.

    Parameters
    ----------
    target
        Share of instants at which the GPUs on must suffice, above 0, at most 1. 1 keeps everything on.
    whole_gpus
        All GPUs; demand beyond them is cut. If ``None``, "everything" is the most ever observed or forecast.
    steps
        Steps forecast (m); each has a shift of its own.
    rate
        See ``RATE``.
    window
        Outcomes judged together to call a regime unseen.

    Raises
    ------
    InputError
        For a target that is not above 0 and at most 1.
    """

    def __init__(
        self, target: float, *, whole_gpus: int | None = None, steps: int = HORIZON, rate: float = RATE,
        window: int = WINDOW,
    ) -> None:  # fmt: skip
        if not 0 < target <= 1:
            raise InputError("a share above 0, at most 1", field="target", value=target)
        self.target = target
        self.whole_gpus = whole_gpus
        self._all = math.inf if whole_gpus is None else float(whole_gpus)
        self._aim = target + MARGIN * (1.0 - target)
        self._rate = rate / math.sqrt(1.0 - target) if target < 1 else 0.0
        # [m] part of the rate, by steps ahead
        self._part: Floats = np.minimum(1.0, np.sqrt(HORIZON / np.arange(1, steps + 1)))
        # [2, m] GPUs: for forecasts made while nothing is wanted; for others
        self._shifts: Floats = np.zeros((2, steps))
        self._busy = 1  # row for the next forecast
        self._spread = self._error = 0.0  # GPUs, means over MEMORY forecasts
        self._forecasts = self._errors = 0
        self._most = 0.0
        # Newest first: row of the shifts, forecast, kept on but for the fallback, median of the furthest step
        self._issued: deque[tuple[int, Floats, Ints, float]] = deque(maxlen=steps)
        self._recent: deque[int] = deque(maxlen=window)  # 1 missed, 0 covered, -1 unknown
        self._misses_now = self._unknown_now = 0
        self._windows: deque[int] = deque(maxlen=window)  # misses of the windows that overlap the next one
        self._worst = _RecentMaximum(REMEMBERED * window)  # misses of earlier windows
        self._allowed = _by_chance(window, steps, 1.0 - target)
        self._unseen = self._out = False
        self._was_busy = False
        self._rest = 0  # outcomes since anything was wanted
        self._rests = _RecentMaximum(REMEMBERED)  # lengths of earlier rests
        self._outcomes = self._covered = 0

    @property
    def shift_gpus(self) -> Floats:
        """GPUs added at each step to a forecast made now. Shape [m]."""
        return self._shifts[self._busy].copy()

    @property
    def state(self) -> PromiseState:
        """Whether the promise can be kept now, and why not."""
        wrong = self._obstacle()
        return PromiseState(
            kept=wrong is None,
            sentence=wrong or f"calibrated on {plural(self._outcomes, 'outcome')}",
            achieved=self._covered / self._outcomes if self._outcomes else None,
        )

    def _obstacle(self) -> str | None:
        seen, need = len(self._recent), self._recent.maxlen or 0
        if self.target >= 1:
            return "a target of 100% keeps everything on"
        if self._out:
            return f"nothing was wanted in the last {self._rest} instants: a return after an outage cannot be foreseen"
        if seen < need:
            return f"only {seen} of the {need} outcomes needed have been seen"
        if 2 * self._unknown_now > seen:
            return f"demand is unknown at {self._unknown_now} of the last {seen} instants"
        if self._unseen:
            often = f"demand exceeded the plan in {self._misses_now} of the last {seen} instants"
            most = self._worst.value
            lately = "" if self._misses_now > most else "and lately "
            return f"{often}, {lately}more than ever before while promised ({most})"
        return None

    def _most_misses(self) -> float:
        """Most misses in a window that earlier windows, or chance, explain."""
        return max(1.5 * self._worst.value, self._allowed)

    def keep_on(self, forecast: QuantileForecast) -> Ints:
        """Return the GPUs to keep on at each step of *forecast*, whole, at most all there are. Shape [m]."""
        return self.keep_on_rows(forecast.levels, forecast.gpus)

    def keep_on_rows(self, levels: Floats, quantiles: Floats) -> Ints:
        """Return what ``keep_on`` does for quantiles at *levels*, shape [m, Q]."""
        base = quantile_at(levels, quantiles, self.target)
        median = quantile_at(levels, quantiles, 0.5)
        spread = float(np.mean(quantiles[:, -1] - median))
        if quantiles.any() and median[-1] < self._all:
            self._forecasts += 1
            self._spread += (spread - self._spread) / min(self._forecasts, MEMORY)
        self._most = max(self._most, float(quantiles.max()))
        planned = kept_on(base + self._shifts[self._busy], self._all).astype(np.int64)
        self._issued.appendleft((self._busy, base, planned, min(float(median[-1]), self._all)))
        if self._out:
            return np.zeros(len(base), dtype=np.int64)
        if self.state.kept:
            return planned
        return np.full(len(base), self.everything_gpus, dtype=np.int64)

    @property
    def everything_gpus(self) -> int:
        """All GPUs; the most ever observed or forecast where that is unknown."""
        return math.ceil(self._most) if self.whole_gpus is None else self.whole_gpus

    def observe(self, gpus: float, arrivals: Arrivals | None = None) -> None:  # noqa: ARG002
        """Observe one more value of the series, GPUs; NaN if it is unknown, which moves no shift."""
        has_value = not math.isnan(gpus)
        if has_value:
            self._most = max(self._most, gpus)
            gpus = min(gpus, self._all)
            self._busy = int(gpus > 0)
            self._count_rest()
        last = self._shifts.shape[1] - 1
        step = self._rate * max(1.0, self._spread, ERROR_SPREADS * self._error)
        for ago, (row, base, planned, median) in enumerate(self._issued):
            missed = has_value and gpus > planned[ago]
            if has_value and not gpus == planned[ago] == self._all:
                part = self._part[ago]
                moved = self._shifts[row, ago] + step * part * (self._aim if missed else self._aim - 1.0)
                self._shifts[row, ago] = max(moved, -base[ago])
            if ago == last:
                self._count(int(missed) if has_value else -1)
                if has_value and not (gpus == median and gpus in (0.0, self._all)):
                    self._errors += 1
                    self._error += (abs(gpus - median) - self._error) / min(self._errors, MEMORY)

    def _count_rest(self) -> None:
        """Count an instant as one of a rest, or as the end of it."""
        if self._busy:
            if self._out:  # nothing that was seen before says how demand returns
                self._recent.clear()
                self._windows.clear()
                self._misses_now = self._unknown_now = 0
                self._unseen = self._out = False
            if self._rest:
                self._rests.push(self._rest)
            self._rest, self._was_busy = 0, True
        elif self._was_busy:
            self._rest += 1
            self._out = self._rest > max(self._recent.maxlen or 0, self._rests.value)

    def _count(self, outcome: int) -> None:
        """Count an outcome of the furthest step."""
        if outcome >= 0:
            self._outcomes += 1
            self._covered += 1 - outcome
        if len(self._recent) == self._recent.maxlen:
            gone = self._recent[0]
            self._misses_now -= gone == 1
            self._unknown_now -= gone == -1
        self._recent.append(outcome)
        self._misses_now += outcome == 1
        self._unknown_now += outcome == -1
        if len(self._recent) == self._recent.maxlen:
            promised = (1.0 - self.target) * len(self._recent) + 1e-9
            self._unseen = self._misses_now > (promised if self._unseen else self._most_misses())
        if len(self._windows) == self._windows.maxlen:
            self._worst.push(self._windows[0])
        # The worst window is learned only while a promise stands.
        self._windows.append(0 if self._unseen or self._out else self._misses_now)

    def follow(
        self, gpus: Floats, origins: Ints, levels: Floats, quantiles: Floats, arrivals: Arrivals | None = None
    ) -> Followed:
        """Run along a series: observe the value at each origin, then keep on what its forecast needs.

        Parameters
        ----------
        gpus
            The series, NaN where unknown. Shape [T].
        origins
            Rising indices of the last value before each forecast, one apart. Shape [N].
        levels
            Levels of the quantiles. Shape [Q].
        quantiles
            Forecasts, GPUs. Shape [N, m, Q].
        arrivals
            All jobs of the series, for a promise about jobs.

        Raises
        ------
        InputError
            For origins that are not one apart.
        """
        return follow(self, gpus, origins, levels, quantiles, arrivals)


def follow(
    calibrator: OnlineCalibrator,
    gpus: Floats,
    origins: Ints,
    levels: Floats,
    quantiles: Floats,
    arrivals: Arrivals | None,
) -> Followed:
    """Let *calibrator* run along a series, as ``Calibrator.follow`` says."""
    if len(origins) > 1 and (np.diff(origins) != 1).any():
        raise InputError("origins that follow one another", field="origins", value="others")
    kept = np.zeros(quantiles.shape[:2], dtype=np.int64)
    promised, everything = np.zeros(len(origins), dtype=np.bool_), np.zeros(len(origins), dtype=np.int64)
    for row, origin in enumerate(origins):
        calibrator.observe(float(gpus[origin]), None if arrivals is None else arrivals.at(int(origin)))
        kept[row] = calibrator.keep_on_rows(levels, quantiles[row])
        promised[row], everything[row] = calibrator.state.kept, calibrator.everything_gpus
    return Followed(kept, promised, everything)
