"""The traces CUFF is run on again, the forecasts of one network on one of them, and how they are drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from commonwatt.capacity import Calibrator
from commonwatt.capacity.scores import energy_saving, slots_served
from commonwatt.data import third_party
from commonwatt.data.generators.week import DemandSpec, generate_demand
from commonwatt.data.series_files import read_series
from commonwatt.forecasting import (
    NetworkPredictor,
    NetworkSettings,
    RollingForecasts,
    TrainingSettings,
    forecast_rolling,
)
from commonwatt.forecasting.scores import whole_gpus
from commonwatt.model.arrays import Floats
from commonwatt.model.demand import LEVELS, DemandSeries
from commonwatt.model.units import DAY_S, HOUR_S
from commonwatt.report.pictures import policy_colour, saved
from commonwatt.reproduce.topic import Extent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "CHOSEN", "COMPARABLE", "CUFF_LEVEL", "HIGH_DEMAND", "KINDS", "MUCH_BETTER", "MUCH_LESS", "OURS", "TIE",
    "CuffStudy", "Trace", "average_day", "draw", "forecasts", "tied", "traces", "under_predicted",
]  # fmt: skip

KINDS: dict[Extent, tuple[str, ...]] = {
    "quick": ("gru",),
    "default": ("gru", "bilstm", "cnn"),
    "full": ("gru", "bilstm", "cnn"),
}

_SETTINGS: dict[Extent, NetworkSettings] = {
    "quick": NetworkSettings(members=1, hidden=16, width=32, recipe=TrainingSettings(epochs=3, share=0.5, patience=2)),
    "default": NetworkSettings(members=1, recipe=TrainingSettings(epochs=4, share=0.25, patience=2)),
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
OURS = ", our networks"
"""How what our networks give is named."""
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
    point: dict[str, RollingForecasts] = field(default_factory=dict)
    quantile: dict[str, RollingForecasts] = field(default_factory=dict)
    ours: bool = False

    @property
    def actual(self) -> Floats:
        """Demand of the scored part."""
        return self.trace.series.gpus[self.trace.begin :]

    def scored(self, rolled: RollingForecasts, level: float = 0.5) -> Floats:
        """Forecasts of the scored part at *level*, whole GPUs."""
        return whole_gpus(rolled.at(level))[-len(self.actual) :]

    def calibrated(self, rolled: RollingForecasts, target: float) -> Floats:
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
    traces = []
    for name, paper, file, column, total, comparable, note in _PUBLISHED:
        path = third_party.find(file)
        if path is None or (extent == "quick" and name != "Earth"):
            continue
        whole = read_series(path, column).series
        series, begin = whole.between(0, len(whole) * 6 // 7), len(whole) * 5 // 7
        if extent == "quick":
            first = begin - round(_QUICK_DAYS * DAY_S / series.step_s)
            series, begin = series.between(first, begin + round(DAY_S / series.step_s)), begin - first
        traces.append(Trace(name, paper, series, begin, total, comparable, note))
    return tuple(traces) or (_generated(extent, seed),)


def _generated(extent: Extent, seed: int) -> Trace:
    days = 6.0 if extent == "quick" else 21.0
    series = generate_demand(DemandSpec(days=days), np.random.default_rng(seed))
    total = int(np.nanmax(series.gpus) / 0.8)
    return Trace("generated", "", series, len(series) * 5 // 6, total, comparable=False, note="no public trace here")


def forecasts(trace: Trace, kind: str, extent: Extent, seed: int, *, point: bool, raw: bool) -> RollingForecasts:
    """Fit a network before the scored part and forecast it, and two days before it for the calibration to begin on.

    *raw*: it sees levels themselves, as the paper's do; else changes and a summary of a day.
    """
    chosen = _SETTINGS[extent]
    settings = replace(chosen, raw=raw)
    predictor = NetworkPredictor(kind, point=point, settings=settings)
    first = trace.begin - round(_WARM_UP_DAYS * DAY_S / trace.series.step_s)
    return forecast_rolling(predictor, trace.series, first, np.random.default_rng(seed), fit_before=trace.begin)


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


def under_predicted(on: Floats, actual: Floats) -> float:
    """Return the percentage of instants with too few GPUs on."""
    return 100 * (1 - slots_served(on, actual))


def draw(pairs: Sequence[tuple[CuffStudy, ...]], path: Path) -> None:
    """Draw a row for each trace, of the paper's networks and of ours; raises ``InputError`` as ``saved``."""
    with saved(path, (12.0, 3.3 * len(pairs))) as figure:
        grid = figure.subplots(len(pairs), 3, squeeze=False)
        for row, (papers, ours) in zip(grid, pairs, strict=True):
            _draw_day(row[0], papers)
            _draw_levels(row[1], papers)
            _draw_knob(row[2], papers, ours)


def _draw_day(axes: Axes, study: CuffStudy) -> None:
    means = [np.nan if mean is None else mean for mean in average_day(study.trace)]
    axes.plot(range(24), means, color=policy_colour(0))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("hour of day")
    axes.set_title(f"Fig. 3: mean demand, GPUs: {study.trace.name}")


def _draw_levels(axes: Axes, study: CuffStudy) -> None:
    levels, actual = LEVELS.tolist(), study.actual
    kept, point = [study.scored(study.quantile["gru"], level) for level in levels], study.scored(study.point["gru"])
    mae = [float(np.nanmean(np.abs(on - actual))) for on in kept]
    axes.plot(levels, mae, "o-", markersize=3, color=policy_colour(3), label="MAE, GPUs")
    axes.axhline(float(np.nanmean(np.abs(point - actual))), color=policy_colour(3), linestyle=":")
    other = axes.twinx()
    under = [under_predicted(on, actual) for on in kept]
    other.plot(levels, under, "s-", markersize=3, color=policy_colour(0), label="under-predicted, %")
    other.axhline(under_predicted(point, actual), color=policy_colour(0), linestyle=":")
    other.grid(visible=False)
    lines = [*axes.get_lines()[:1], *other.get_lines()[:1]]
    axes.legend(lines, [str(line.get_label()) for line in lines], fontsize=7, loc="upper center")
    axes.set_xlabel("level; dotted: point forecast")
    axes.set_title("Fig. 4: GRU on raw levels by level")


def _draw_knob(axes: Axes, papers: CuffStudy, ours: CuffStudy) -> None:
    total, actual = papers.trace.total_gpus, papers.actual
    axes.set_title("Fig. 5: performance against saving, %")
    if total is None:
        axes.text(0.5, 0.5, "size of the cluster says nothing", ha="center", transform=axes.transAxes)
        return

    def at(on: Floats) -> tuple[float, float]:
        return 100 * energy_saving(on, total), 100 * slots_served(on, actual)

    for study, line, fill in ((papers, "o-", "full"), (ours, "o:", "none")):
        point, quantile = study.point["gru"], study.quantile["gru"]
        drawn = {
            "quantiles, GRU": (line, [at(study.scored(quantile, level)) for level in LEVELS.tolist()]),
            "point forecast": ("D", [at(study.scored(point))]),
            "calibrated, target 98%": ("*", [at(study.calibrated(quantile, 0.98))]),
        }
        for place, (label, (style, points)) in enumerate(drawn.items()):
            axes.plot(*zip(*points, strict=True), style, markersize=7 if style == "*" else 4, fillstyle=fill,
                      color=policy_colour(place), label=f"{label}{OURS if study.ours else ''}")  # fmt: skip
    axes.legend(fontsize=6)
    axes.set_xlabel("energy saving, %")
