"""How good are forecasts, and are promises kept: ``python -m benchmarks.forecasting [--test]``.

Without ``--test``: fitted on the first five sevenths of each public series, scored on the sixth; this is what models
were chosen by. With ``--test``: fitted on six sevenths, scored on the last. Three parts, all five steps ahead:

- pinball loss at four levels on Philly and Earth: networks beside last value and LightGBM, with the goals;
- the promise at three targets on Philly, Earth and Venus (steps of 10 minutes): achieved raw and calibrated, saving;
- times of a fit, a forecast and an update, and the memory a year of minutes takes.

``--json`` prints all of it as one document. The traces are read by path (``COMMONWATT_DATA``).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import numpy as np

from commonwatt.capacity import Calibrator
from commonwatt.capacity.scores import energy_saving, shift_for, slots_served
from commonwatt.data import third_party
from commonwatt.data.series_files import read_series
from commonwatt.forecasting import RollingForecasts, forecast_rolling, make_predictor
from commonwatt.forecasting.scores import whole_gpus
from commonwatt.model.demand import HORIZON, DemandSeries, Predictor
from commonwatt.planning.predictors import TimedPredictor, median_ms

LEVELS = (0.90, 0.95, 0.98, 0.99)
TARGETS = (0.90, 0.95, 0.98)
WARM_UP_DAYS = 7
PLAIN = ("last-value", "lightgbm")


@dataclass(frozen=True)
class Trace:
    """A public series."""

    file: str
    column: str
    gpus: int  # of the cluster, from the traces' README


TRACES = {
    "philly": Trace("philly_demand_1min.csv.gz", "gpus", 2490),
    "earth": Trace("earth_demand_1min.csv.gz", "running_gpus", 856),
    "venus": Trace("venus_demand_10min.csv.gz", "running_gpus", 1064),
}


def load(name: str, *, test: bool) -> tuple[DemandSeries, int]:
    """The series that may be looked at, and where its scored part begins."""
    path = third_party.find(TRACES[name].file)
    if path is None:
        sys.exit(f"{TRACES[name].file} is not at hand: set {third_party.VARIABLE}")
    series = read_series(path, TRACES[name].column).series
    train = len(series) * 6 // 7
    return (series, train) if test else (series.between(0, train), len(series) * 5 // 7)


def made(model: str) -> Predictor:
    """LightGBM only for the step and levels that are scored: a fit of all of them is fifteen times as long."""
    if model == "lightgbm":
        return make_predictor(model, steps=(HORIZON,), levels=(0.5, *LEVELS))
    return make_predictor(model)


@dataclass(frozen=True)
class Run:
    """Forecasts of one predictor, and its times."""

    rolled: RollingForecasts  # from seven days before the scored part on
    scored: RollingForecasts
    fit_s: float
    predict_ms: float
    update_ms: float


def run(predictor: Predictor, series: DemandSeries, begin: int, seed: int) -> Run:
    warm_up = min(round(WARM_UP_DAYS * 86400 / series.step_s), begin - predictor.look_back - predictor.horizon)
    timed = TimedPredictor(predictor)
    rolled = forecast_rolling(timed, series, begin - warm_up, np.random.default_rng(seed), fit_before=begin)
    scored = rolled.last(len(series) - begin)
    predict_ms, update_ms = median_ms(timed, series.gpus[begin:])
    return Run(rolled, scored, timed.fits_s[0], predict_ms, update_ms)


def mean_of(one: Run, other: Run) -> Run:
    """The mean of two predictors' quantiles, as the predictor ``gru+lightgbm`` makes it, without fitting again."""

    def mean(a: RollingForecasts, b: RollingForecasts) -> RollingForecasts:
        return RollingForecasts(a.origins, a.levels, np.round((a.gpus + b.gpus) / 2), a.actual, 1)

    return Run(
        mean(one.rolled, other.rolled),
        mean(one.scored, other.scored),
        one.fit_s + other.fit_s,
        one.predict_ms + other.predict_ms,
        one.update_ms + other.update_ms,
    )


def pinballs(name: str, runs: dict[str, Run]) -> dict[str, Any]:
    found = {}
    for model, one in runs.items():
        rows, crps = one.scored.scores(np.array(LEVELS))
        whole = None if "lightgbm" in model else crps  # not all levels fitted: see made
        found[model] = {"pinball": [row.pinball for row in rows], "crps": whole,
                        "coverage_error_pp": [row.coverage_error_pp for row in rows]}  # fmt: skip
        shown = "  ".join(f"{row.pinball:7.3f} ({row.coverage_error_pp:+5.2f})" for row in rows)
        tail = "" if whole is None else f"   CRPS {crps:.3f}"
        print(f"{name:7s} {model:14s} {shown}{tail}", flush=True)
    last, boosted = (np.array(found[model]["pinball"]) for model in PLAIN)
    for model in [model for model in runs if model not in PLAIN and not model.endswith("-point")]:
        own = np.array(found[model]["pinball"])
        print(
            f"{name:7s} {model:14s} below last value by {_percents(1 - own / last)} (goal 12%); below LightGBM by "
            f"{_percents(1 - own / boosted)}, mean {100 * (1 - own / boosted).mean():.1f}% (goal none below 0, mean 5%)"
        )
    return found


def _percents(parts: np.ndarray) -> str:
    return ", ".join(f"{100 * part:.1f}%" for part in parts)


def promises(name: str, series: DemandSeries, begin: int, runs: dict[str, Run]) -> dict[str, Any]:
    actual, total = series.gpus[begin:], TRACES[name].gpus
    found: dict[str, Any] = {"foresight_saving_pct": 100 * energy_saving(actual, total)}
    print(f"{name:7s} perfect foresight saves {found['foresight_saving_pct']:.1f}% of {total} GPUs")
    for model, one in runs.items():
        found[model] = []
        for target in TARGETS:
            calibrator = Calibrator(target, whole_gpus=total, steps=HORIZON)
            kept = calibrator.follow(series.gpus, one.rolled.origins, one.rolled.levels, one.rolled.gpus)
            on = kept.gpus[-len(actual) :, -1].astype(float)
            raw = whole_gpus(one.scored.at(target))
            equal = raw + shift_for(target, raw, actual)
            row = {
                "target": target, "achieved": slots_served(on, actual), "achieved_raw": slots_served(raw, actual),
                "saving_pct": 100 * energy_saving(on, total), "saving_raw_pct": 100 * energy_saving(raw, total),
                "gpu_hours": float(on.sum()) * series.step_s / 3600,
                "gpu_hours_at_equal_performance": float(np.maximum(equal, 0).sum()) * series.step_s / 3600,
            }  # fmt: skip
            found[model].append(row)
            kept_word = "kept" if -0.005 <= row["achieved"] - target <= 0.015 else "NOT within -0.5 and +1.5 points"
            print(
                f"{name:7s} {model:14s} target {100 * target:.0f}%: raw {100 * row['achieved_raw']:6.2f}%, calibrated "
                f"{100 * row['achieved']:6.2f}% {kept_word}; saves {row['saving_pct']:.1f}% (raw "
                f"{row['saving_raw_pct']:.1f}%); {row['gpu_hours']:,.0f} GPU h, at equal performance "
                f"{row['gpu_hours_at_equal_performance']:,.0f}",
                flush=True,
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--test", action="store_true", help="score the last seventh: look at it once")
    parser.add_argument("--traces", default="philly,earth,venus")
    parser.add_argument("--networks", default="gru", help="gru, bilstm, cnn, gru-point, ...")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with redirect_stdout(sys.stderr if asked.json else sys.stdout):
        document = measured(asked)
    if asked.json:
        print(json.dumps(document, indent=1))


def measured(asked: argparse.Namespace) -> dict[str, Any]:
    """Measure, and print as it goes."""
    networks = [name for name in asked.networks.split(",") if name]
    document: dict[str, Any] = {"part": "test" if asked.test else "validation", "levels": LEVELS, "traces": {}}
    document |= {"scores": [], "promises": []}
    print(f"{document['part']} part; pinball loss, GPUs (coverage error, points), at q = {LEVELS}")
    for name in asked.traces.split(","):
        series, begin = load(name, test=asked.test)
        runs = {}
        for model in (*PLAIN, *networks):
            runs[model] = run(made(model), series, begin, asked.seed)
            one = runs[model]
            print(
                f"{name:7s} {model:14s} fit {one.fit_s:.1f} s, forecast {one.predict_ms:.2f} ms, "
                f"update {one.update_ms:.3f} ms",
                flush=True,
            )
        for model in networks:
            if not model.endswith("-point"):
                runs[f"{model}+lightgbm"] = mean_of(runs[model], runs["lightgbm"])
        scores, kept = pinballs(name, runs), promises(name, series, begin, runs)
        last, boosted = (np.array(scores[model]["pinball"]) for model in PLAIN)
        for model, own in scores.items():
            loss = np.array(own["pinball"])
            document["scores"].append({
                "series": name, "predictor": model, **own,
                "below_last_value": (1 - loss / last).tolist(), "below_lightgbm": (1 - loss / boosted).tolist(),
            })  # fmt: skip
        for model in runs:
            document["promises"] += [{"series": name, "predictor": model, **row} for row in kept[model]]
        document["traces"][name] = {
            "foresight_saving_pct": kept["foresight_saving_pct"],
            "gpus": TRACES[name].gpus,
            "times": {
                m: {"fit_s": r.fit_s, "predict_ms": r.predict_ms, "update_ms": r.update_ms} for m, r in runs.items()
            },
        }
    document["memory"] = year_of_minutes()
    return document


def year_of_minutes() -> dict[str, float]:
    """A process of its own fits a predictor on a year of minutes, and sees another day: its largest memory."""
    code = (
        "import pathlib, numpy as np\n"
        "from commonwatt.forecasting import make_predictor\n"
        "from commonwatt.model.demand import DemandSeries\n"
        "rng = np.random.default_rng(0)\n"
        "gpus = np.maximum(np.cumsum(rng.integers(-3, 4, 525_600)) + 500.0, 0.0)\n"
        "predictor = make_predictor('last-value')\n"
        "predictor.fit(DemandSeries(0.0, 60.0, gpus), rng)\n"
        "[predictor.update(value) for value in gpus[:1440].tolist()]\n"
        "predictor.predict()\n"
        "lines = pathlib.Path('/proc/self/status').read_text().splitlines()\n"
        "print(next(int(line.split()[1]) for line in lines if line.startswith('VmHWM')) / 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = {"mib": float(done.stdout)}
    print(f"a year of minutes in memory, last-value: {found['mib']:.0f} MiB for the whole process (goal 500 MB)")
    return found


if __name__ == "__main__":
    main()
