"""The traces CUFF is run on again, and the forecasts of one network on one of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from commonwatt.capacity import Calibrator
from commonwatt.data import locate
from commonwatt.data.generators.week import DemandSpec, generate_demand
from commonwatt.data.series_files import read_series
from commonwatt.forecasting import NetworkPredictor, NetworkSettings, Recipe, Rolled, roll
from commonwatt.forecasting.scores import whole_gpus
from commonwatt.model.arrays import Floats
from commonwatt.model.demand import DemandSeries
from commonwatt.model.units import DAY_S, HOUR_S
from commonwatt.reproduce.topic import Extent

__all__ = [
    "CHOSEN", "COMPARABLE", "CUFF_LEVEL", "HIGH_DEMAND", "KINDS", "MUCH_BETTER", "MUCH_LESS", "TIE", "CuffStudy",
    "Trace", "average_day", "forecasts", "tied", "traces",
]  # fmt: skip

KINDS: dict[Extent, tuple[str, ...]] = {
    "quick": ("gru",),
    "default": ("gru", "bilstm", "cnn"),
    "full": ("gru", "bilstm", "cnn"),
}

_SETTINGS: dict[Extent, NetworkSettings] = {
    "quick": NetworkSettings(members=1, hidden=16, width=32, recipe=Recipe(epochs=3, share=0.5, patience=2)),
    "default": NetworkSettings(members=1, recipe=Recipe(epochs=4, share=0.25, patience=2)),
    "full": NetworkSettings(),
}
HIGH_DEMAND, CUFF_LEVEL, MUCH_LESS = 0.9, 0.90, 0.5
"""High demand begins at this quantile of demand; CUFF's forecast there; "significantly less" is so much or less."""
MUCH_BETTER, COMPARABLE = 0.1, 0.1
"""A network is much better if both its scores are less by this; a saving is comparable if it is not less by more."""
_DIGITS = (1, 2)  # of under-prediction and MAE
CHOSEN = (
    f"Thresholds of ours, CUFF: high demand is the top {1 - HIGH_DEMAND:.0%} of the instants that are scored; CUFF is "
    f"its quantile {CUFF_LEVEL:.2f} there; significantly less is at most {MUCH_LESS:g} times as often; a network is "
    f"much better if both its scores are {MUCH_BETTER:.0%} less; a saving is comparable if it is no more than "
    f"{COMPARABLE:.0%} less; networks come "
    f"out alike if they are the same to {_DIGITS[0]} digit of under-prediction and {_DIGITS[1]} of MAE; forecasts are "
    "rounded up to whole GPUs first. Within 2 points, under 50 GPUs and no case are the paper's."
)
_QUICK_DAYS = 5.0
_WARM_UP_DAYS = 2.0


@dataclass(frozen=True)
class Trace:
    """A demand series, its counterpart in the paper, and whether the two are comparable.

    Parameters
    ----------
    paper
        The paper's name of the trace, empty for one it does not have.
    total_gpus
        GPUs of the cluster; ``None``: ratios to it mean nothing.
    begin
        Index of the first value scored; the values from five to six sevenths of the published series are.
    """

    name: str
    paper: str
    series: DemandSeries
    begin: int
    total_gpus: int | None
    comparable: bool
    note: str

    @property
    def digest(self) -> str:
        """SHA-256 of the values."""
        return hashlib.sha256(self.series.gpus.tobytes()).hexdigest()


@dataclass
class CuffStudy:
    """Forecasts of one trace by all networks: the paper's, which see 120 raw levels, or ours."""

    trace: Trace
    point: dict[str, Rolled] = field(default_factory=dict)
    quantile: dict[str, Rolled] = field(default_factory=dict)
    ours: bool = False

    @property
    def actual(self) -> Floats:
        """Demand of the scored part."""
        return self.trace.series.gpus[self.trace.begin :]

    def scored(self, rolled: Rolled, level: float = 0.5) -> Floats:
        """Forecasts of the scored part at *level*, whole GPUs."""
        return whole_gpus(rolled.at(level))[-len(self.actual) :]

    def calibrated(self, rolled: Rolled, target: float) -> Floats:
        """GPUs kept on for *target* by the calibration, which has first been run before the scored part."""
        calibrator = Calibrator(target, whole_gpus=self.trace.total_gpus, steps=rolled.gpus.shape[1])
        kept = calibrator.follow(self.trace.series.gpus, rolled.origins, rolled.levels, rolled.gpus)
        return kept.gpus[-len(self.actual) :, -1].astype(float)


_PUBLISHED = (
    ("Philly", "Philly", "philly_demand_1min.csv.gz", "gpus", 2490, False,
     "the same log, but requested load from its complete records; which part the paper used is not said"),
    ("Earth", "", "earth_demand_1min.csv.gz", "running_gpus", 856, False,
     "not in the paper: the only Helios cluster public at one minute, beside its Venus"),
    ("Venus", "Venus", "venus_demand_10min.csv.gz", "running_gpus", 1064, False,
     "public at 10 minutes only: five steps are 50 minutes"),
    ("Alibaba", "Alibaba", "alibaba_demand_1min.csv.gz", "gpus_whole", None, False,
     "a sample of some 35 GPUs of the 2023 trace; the paper's is another year's"),
)  # fmt: skip


def traces(extent: Extent, seed: int) -> tuple[Trace, ...]:
    """Return the traces that are available, else a generated one. The last seventh of each is not used."""
    found = []
    for name, paper, file, column, total, comparable, note in _PUBLISHED:
        path = locate.find(file)
        if path is None or (extent == "quick" and name != "Earth"):
            continue
        whole = read_series(path, column).series
        series, begin = whole.between(0, len(whole) * 6 // 7), len(whole) * 5 // 7
        if extent == "quick":
            first = begin - round(_QUICK_DAYS * DAY_S / series.step_s)
            series, begin = series.between(first, begin + round(DAY_S / series.step_s)), begin - first
        found.append(Trace(name, paper, series, begin, total, comparable, note))
    return tuple(found) or (_generated(extent, seed),)


def _generated(extent: Extent, seed: int) -> Trace:
    days = 6.0 if extent == "quick" else 21.0
    series = generate_demand(DemandSpec(days=days), np.random.default_rng(seed))
    total = int(np.nanmax(series.gpus) / 0.8)
    return Trace("generated", "", series, len(series) * 5 // 6, total, comparable=False, note="no public trace here")


def forecasts(trace: Trace, kind: str, extent: Extent, seed: int, *, point: bool, raw: bool) -> Rolled:
    """Fit a network before the scored part and forecast it, and two days before it for the calibration to begin on.

    *raw*: it sees levels themselves, as the paper's do; else changes and a summary of a day.
    """
    chosen = _SETTINGS[extent]
    settings = replace(chosen, raw=raw)
    predictor = NetworkPredictor(kind, point=point, settings=settings)
    first = trace.begin - round(_WARM_UP_DAYS * DAY_S / trace.series.step_s)
    return roll(predictor, trace.series, first, np.random.default_rng(seed), fit_before=trace.begin)


def average_day(trace: Trace) -> list[float | None]:
    """Mean demand by hour of day (UTC, or from the origin of the series)."""
    series = trace.series
    hours = ((series.start_s + series.step_s * np.arange(len(series))) % DAY_S // HOUR_S).astype(int)
    means = [float(np.nanmean(series.gpus[hours == hour])) if (hours == hour).any() else np.nan for hour in range(24)]
    return [mean if np.isfinite(mean) else None for mean in means]


TIE = "a tie: all networks come out alike"


def tied(scores: Mapping[str, tuple[float, float]]) -> bool:
    """Return whether all networks are the same in under-prediction and MAE, as far as digits are shown."""
    return len({(f"{under:.{_DIGITS[0]}f}", f"{mae:.{_DIGITS[1]}f}") for under, mae in scores.values()}) == 1
