"""LightGBM's settings by horizon: a random search on earlier parts of four series, then the parts nobody chose by.

Each draw is fitted on the first three, four and five sevenths of a series and judged on the next one: pinball loss at
q = .90, .95, .98, .99, at 5, 15, 30 and 60 steps, rounded up to whole GPUs, relative to last-value (last value plus
quantiles of the last seven days' changes). Each is also judged as a mean with last-value, by several shares of it. The
first two draws are the settings for 5 steps, and the same without level and day of week as features.

The last seventh is not looked at in the search; ``unseen`` says what the package's settings are worth there, and what
those for 5 steps are.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.forecast_search import JUDGED
from commonwatt.data.series_files import read_series
from commonwatt.data.third_party import find
from commonwatt.forecasting import make_predictor
from commonwatt.forecasting._lightgbm_quantile import LightGbmQuantile
from commonwatt.forecasting._trees import StepSettings, settings_of
from commonwatt.forecasting.scores import pinball, whole_gpus
from commonwatt.model.arrays import Floats
from commonwatt.model.demand import LEVELS, DemandSeries

RESULT = Path(__file__).with_name("forecast_horizons.json")
SERIES = {
    "philly": ("philly_demand_1min.csv.gz", "gpus"), "earth": ("earth_demand_1min.csv.gz", "running_gpus"),
    "alibaba": ("alibaba_demand_1min.csv.gz", "gpus"), "alibaba-dlrm": ("alibaba_dlrm_demand_1min.csv.gz", "gpus"),
}  # fmt: skip
HORIZONS = (5, 15, 30, 60)
SHARES = (0.0, 0.25, 0.5, 0.75)
JUDGED_COLUMNS = [int(np.argmin(np.abs(LEVELS - q))) for q in JUDGED]


def drawn(rng: np.random.Generator) -> dict[str, Any]:
    """Draw settings: trees, and parameters of LightGBM."""
    return {
        "trees": int(rng.choice([100, 200, 400])),
        "num_leaves": int(rng.choice([3, 4, 7, 15])),
        "min_data_in_leaf": int(rng.choice([500, 2000, 4000])),
        "learning_rate": float(rng.choice([0.02, 0.03, 0.05])),
        "feature_fraction": float(rng.choice([0.1, 0.3, 0.6])),
        "lambda_l2": float(rng.choice([1.0, 10.0])),
        "level_and_weekday": bool(rng.choice([True, False])),
    }


def seventh(series: DemandSeries, number: int, horizon: int) -> tuple[DemandSeries, DemandSeries, np.ndarray]:
    """Return what lies before a seventh, counted from 0, what lies before its end, and its origins."""
    first, last = int(number * len(series) / 7), int((number + 1) * len(series) / 7)
    origins = np.arange(first, last - horizon)
    return series.between(0, first), series.between(0, last), origins[series.has_value[origins + horizon]]


def loss(series: DemandSeries, origins: np.ndarray, horizon: int, gpus: Floats) -> float:
    """Return the mean pinball loss of forecasts at JUDGED. Shape of *gpus*: [K, m, Q]."""
    actual = series.gpus[origins + horizon]
    on = whole_gpus(gpus[:, horizon - 1])
    return float(np.mean([pinball(q, on[:, column], actual) for q, column in zip(JUDGED, JUDGED_COLUMNS, strict=True)]))


def ratios(
    series: DemandSeries, number: int, horizon: int, settings: dict[str, Any], shares: tuple[float, ...]
) -> list[float]:
    """Return the loss relative to last-value, for each share of last-value."""
    before, seen, origins = seventh(series, number, horizon)
    plain = make_predictor("last-value", horizon=horizon)
    plain.fit(before, np.random.default_rng(0))
    worst = loss(series, origins, horizon, plain.predict_many(seen, origins))
    own = dict(settings)
    trees, both = own.pop("trees", 200), own.pop("level_and_weekday", True)

    def with_share(share: float) -> LightGbmQuantile:
        return LightGbmQuantile(
            horizon=horizon, trees=trees, parameters=own, steps=(horizon,), levels=JUDGED,
            settings=lambda _: StepSettings(both, share),
        )  # fmt: skip

    models = with_share(0.0).learn([before], np.random.default_rng(0))
    losses = []
    for share in shares:
        predictor = with_share(share)
        predictor.take(before, models)
        losses.append(loss(series, origins, horizon, predictor.predict_many(seen, origins)) / worst)
    return losses


def unseen(series: DemandSeries) -> dict[str, Any]:
    """Return the losses relative to last-value on the last seventh: of the settings for 5 steps, and of the step's."""
    rows = {}
    for horizon in HORIZONS:
        own = settings_of(horizon)
        near, *_ = ratios(series, 6, horizon, {}, (0.0,))
        far, *_ = ratios(series, 6, horizon, {"level_and_weekday": own.level_and_weekday}, (own.share,))
        rows[str(horizon)] = {"settings_for_5": round(near, 4), "own": round(far, 4)}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help=f"Write {RESULT.name}.")
    parser.add_argument(
        "--unseen",
        action="store_true",
        help=f"Only judge the package's settings on the last seventh; the search is that of {RESULT.name}.",
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = {name: find(file) for name, (file, _) in SERIES.items()}
    series = {
        name: read_series(path, SERIES[name][1]).series for name, path in found.items() if path is not None
    }  # fmt: skip
    if not series:
        raise SystemExit("no shared traces at hand: set COMMONWATT_DATA")
    kept = json.loads(RESULT.read_text(encoding="utf-8"))["horizons"] if given.unseen else None
    rows = kept or search(series, given)
    document: dict[str, Any] = {"chosen": [chosen(int(horizon), found) for horizon, found in rows.items()]}
    document["unseen"] = {name: unseen(one) for name, one in series.items()}
    if given.keep and not given.unseen:
        whole = {"seed": given.seed, "levels": JUDGED, "horizons": rows}
        RESULT.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document, indent=None if given.json else 1))


def search(series: dict[str, DemandSeries], given: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Return, for each horizon, what each draw and share is worth: the mean over series and parts, and the worst."""
    rng = np.random.default_rng(given.seed)
    settings: list[dict[str, Any]] = [{}, {"level_and_weekday": False}, *(drawn(rng) for _ in range(given.trials - 2))]
    rows: dict[str, list[dict[str, Any]]] = {}
    for horizon in HORIZONS:
        kept = []
        for each in settings:
            by_series = defaultdict(list)
            for name, one in series.items():
                by_series[name] = [ratios(one, number, horizon, each, SHARES) for number in (3, 4, 5)]
            table = np.array(list(by_series.values()))
            for number, share in enumerate(SHARES):
                part = table[:, :, number]
                of = {name: round(float(value), 4) for name, value in zip(by_series, part.mean(axis=1), strict=True)}
                mean, worst = round(float(part.mean()), 4), round(float(part.max()), 4)
                kept.append(
                    {"share": share, "against_last_value": mean, "worst": worst, "series": of, "settings": each}
                )
        rows[str(horizon)] = sorted(kept, key=lambda row: row["against_last_value"])
    return rows


def chosen(horizon: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the settings for 5 steps are worth at a horizon, and what the package's own are, of *rows*."""
    own = settings_of(horizon)
    wanted = {} if own.level_and_weekday else {"level_and_weekday": False}
    near, far = (
        next(row for row in rows if (row["settings"], row["share"]) == pair)
        for pair in (({}, 0.0), (wanted, own.share))
    )  # fmt: skip
    return {"steps": horizon, "near": near, "own": far}


if __name__ == "__main__":
    main()
