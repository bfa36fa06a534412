"""A promised performance that is kept: forecasts shifted online until they are right as often as promised.

For each step of the horizon the forecast quantile at the target is shifted by a number of GPUs that follows the
outcomes: up a little less than ``rate`` units after demand exceeded what was kept on, down a very little after it did
not, so that the share of outcomes covered goes to the target whatever the predictor, and however demand drifts (online
quantile tracking: Gibbs and Candes, "Adaptive conformal inference under distribution shift", NeurIPS 2021;
Angelopoulos, Candes and Tibshirani, "Conformal PID control", NeurIPS 2023, section 2.1). An outcome is judged by what
was kept on when it was forecast, some steps ago; nothing later is ever used.

What could not have come out otherwise teaches nothing: no shift falls where nothing is planned any more, none moves
where all there is was on and wanted. Forecasts made while nothing is wanted have shifts of their own, so that a rest,
which is easily covered, does not use up the misses allowed to the work after it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from commonwatt.forecasting.forecast import HORIZON, QuantileForecast
from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.errors import InputError

__all__ = ["Calibrator", "Followed", "PromiseState", "quantile_at"]

RATE = 0.01
"""How far the shift moves, in units of the forecast's spread, times one over the root of the misses allowed."""

MARGIN = 0.05
"""The tracker aims this share of the allowed misses above the target: a promise is a floor."""

MEMORY = 1440
"""Forecasts over which the unit of the shift is averaged."""

ERROR_SPREADS = 3.0
"""The unit is the forecast's mean spread (.99 less median), or this many mean errors of its median if they are more."""

WINDOW = 120
"""Outcomes in which too many misses mean that this has never been seen."""


@dataclass(frozen=True)
class PromiseState:
    """Whether the promise can be kept just now.

    Parameters
    ----------
    kept
        Whether the calibrated forecast is used; else everything stays on.
    sentence
        Why, for a person.
    achieved
        Share of all outcomes so far that were covered, the furthest step's; null before the first.
    """

    kept: bool
    sentence: str
    achieved: float | None


@dataclass(frozen=True)
class Followed:
    """What was kept on along a series.

    Parameters
    ----------
    gpus
        GPUs kept on at the m steps after each origin. Shape [N, m].
    promised
        Whether a promise was made at each origin; else everything was kept on. Shape [N].
    everything
        What everything was at each origin, GPUs. Shape [N].
    """

    gpus: Ints
    promised: Bools
    everything: Ints


def quantile_at(levels: Floats, quantiles: Floats, level: float) -> Floats:
    """Return the quantiles at *level*, interpolated between *levels*, the outermost beyond them.

    *levels* has shape [Q] and *quantiles* [..., Q]; the answer has the shape before Q.
    """
    upper = int(np.clip(np.searchsorted(levels, level), 0, len(levels) - 1))
    lower = max(upper - 1, 0)
    gap = levels[upper] - levels[lower]
    weight = float(np.clip((level - levels[lower]) / gap, 0.0, 1.0)) if gap > 0 else 1.0
    return (1.0 - weight) * quantiles[..., lower] + weight * quantiles[..., upper]


class Calibrator:
    """GPUs to keep on, such that they suffice at the target share of all instants.

    Call ``observe`` with each value as it becomes known, ``keep_on`` with each forecast. Before a window of outcomes
    has been seen, after a window mostly unknown, and from a window with more misses than any before it (by half) and
    more than chance explains until one with no more than promised, nothing can be promised: ``state`` says so and
    ``keep_on`` answers with everything.

    Parameters
    ----------
    target
        Share of instants at which the GPUs on must suffice, above 0, at most 1. 1 keeps everything on.
    whole_gpus
        All GPUs there are, more than which is never wanted; unknown if not given: "everything" is then the most ever
        seen or forecast.
    steps
        Steps forecast (m); each has a shift of its own.
    rate
        See ``RATE``.
    window
        Outcomes judged together when a regime is called unseen.

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
        self._worst: deque[int] = deque([0], maxlen=window + 1)  # most misses of a window, by the end of each outcome
        self._unseen = False
        self._outcomes = self._covered = 0

    @property
    def shift_gpus(self) -> Floats:
        """GPUs added at each step to a forecast made now. Shape [m]."""
        return self._shifts[self._busy].copy()

    @property
    def state(self) -> PromiseState:
        """Whether the promise can be kept just now, and why not."""
        wrong = self._what_is_wrong()
        return PromiseState(
            kept=wrong is None,
            sentence=wrong or f"calibrated on {self._outcomes} outcomes",
            achieved=self._covered / self._outcomes if self._outcomes else None,
        )

    def _what_is_wrong(self) -> str | None:
        seen, need = len(self._recent), self._recent.maxlen or 0
        if self.target >= 1:
            return "a target of 100% keeps everything on"
        if seen < need:
            return f"only {seen} of the {need} outcomes needed have been seen"
        if 2 * self._unknown_now > seen:
            return f"demand is unknown at {self._unknown_now} of the last {seen} instants"
        if self._unseen:
            often, most = f"demand exceeded the plan in {self._misses_now} of the last {seen} instants", self._worst[0]
            lately = "" if self._misses_now > most else "and lately "
            return f"{often}, {lately}more than ever before while promised ({most})"
        return None

    def _most_misses(self) -> float:
        """Misses in a window that are still within what has been seen, or within chance."""
        count, share = len(self._recent), 1.0 - self.target
        chance = count * share + 4.0 * math.sqrt(count * share * self.target)
        return max(1.5 * self._worst[0], chance)

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
        planned = self._whole(base + self._shifts[self._busy])
        self._issued.appendleft((self._busy, base, planned, min(float(median[-1]), self._all)))
        if self.state.kept:
            return planned
        return np.full(len(base), self.everything_gpus, dtype=np.int64)

    @property
    def everything_gpus(self) -> int:
        """All GPUs; the most ever seen or forecast where that is unknown."""
        return math.ceil(self._most) if self.whole_gpus is None else self.whole_gpus

    def _whole(self, gpus: Floats) -> Ints:
        rounded = np.ceil(np.maximum(gpus, 0.0) - 1e-9)
        return np.asarray(rounded if self.whole_gpus is None else np.minimum(rounded, self.whole_gpus), dtype=np.int64)

    def observe(self, gpus: float) -> None:
        """See one more value of the series, GPUs; NaN if it is not known, which moves nothing."""
        known = not math.isnan(gpus)
        if known:
            self._most = max(self._most, gpus)
            gpus = min(gpus, self._all)
            self._busy = int(gpus > 0)
        last = self._shifts.shape[1] - 1
        step = self._rate * max(1.0, self._spread, ERROR_SPREADS * self._error)
        for ago, (row, base, planned, median) in enumerate(self._issued):
            missed = known and gpus > planned[ago]
            if known and not gpus == planned[ago] == self._all:
                moved = self._shifts[row, ago] + step * (self._aim if missed else self._aim - 1.0)
                self._shifts[row, ago] = max(moved, -base[ago])
            if ago == last:
                self._count(int(missed) if known else -1)
                if known and not (gpus == median and gpus in (0.0, self._all)):
                    self._errors += 1
                    self._error += (abs(gpus - median) - self._error) / min(self._errors, MEMORY)

    def _count(self, outcome: int) -> None:
        """Take note of an outcome of the furthest step."""
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
        # While nothing is promised nothing is learnt of how bad it may become while something is.
        self._worst.append(self._worst[-1] if self._unseen else max(self._worst[-1], self._misses_now))

    def follow(self, gpus: Floats, origins: Ints, levels: Floats, quantiles: Floats) -> Ints:
        """Return what ``followed`` keeps on. Shape [N, m]."""
        return self.followed(gpus, origins, levels, quantiles).gpus

    def followed(self, gpus: Floats, origins: Ints, levels: Floats, quantiles: Floats) -> Followed:
        """Go through a series: keep on by the forecast of each origin, observing every value before the next one.

        Outcomes are judged only where origins follow one another without a gap: forecasts of others are not for the
        instants observed.

        Parameters
        ----------
        gpus
            The series, NaN where unknown. Shape [T].
        origins
            Rising indices of the last value each forecast saw. Shape [N].
        levels
            Levels of the quantiles. Shape [Q].
        quantiles
            Forecasts, GPUs. Shape [N, m, Q].

        Raises
        ------
        InputError
            For origins more or less than one apart.
        """
        if len(origins) > 1 and (np.diff(origins) != 1).any():
            raise InputError("origins that follow one another", field="origins", value="others")
        kept = np.zeros(quantiles.shape[:2], dtype=np.int64)
        promised, everything = np.zeros(len(origins), dtype=np.bool_), np.zeros(len(origins), dtype=np.int64)
        for row, origin in enumerate(origins):
            self.observe(float(gpus[origin]))
            kept[row] = self.keep_on_rows(levels, quantiles[row])
            promised[row], everything[row] = self.state.kept, self.everything_gpus
        return Followed(kept, promised, everything)
