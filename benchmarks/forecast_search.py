"""A random search for the networks' settings, on a cut inside the training part; its result is kept beside this file.

One network of each draw is trained on the first five sevenths of the shared series and judged on the sixth: pinball
loss at q = .90, .95, .98, .99 five steps ahead, rounded up to whole GPUs, against last value plus quantiles of the last
seven days' changes. The last seventh is not looked at. The first draw is the
package's own settings of the day; the package now has those of the best draw in the kept result.

A search as small as this, with one seed of one network per draw, tells bad settings from good ones, not good ones from
each other: two seeds of the same settings differ by about half a percent.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from commonwatt.data.series_files import read_series
from commonwatt.data.third_party import find
from commonwatt.forecasting import NetworkPredictor, NetworkSettings, make_predictor
from commonwatt.model.demand import LEVELS, DemandSeries, Predictor

RESULT = Path(__file__).with_name("forecast_search.json")
SERIES = {"philly": ("philly_demand_1min.csv.gz", "gpus"), "earth": ("earth_demand_1min.csv.gz", "running_gpus")}
JUDGED = (0.90, 0.95, 0.98, 0.99)


def drawn(rng: np.random.Generator) -> NetworkSettings:
    """Draw settings."""
    usual = NetworkSettings(members=1)
    recipe = replace(
        usual.recipe,
        epochs=int(rng.choice([3, 4, 6])),
        rate=float(rng.choice([1e-3, 2e-3, 4e-3])),
        decay=float(rng.choice([0.3, 1.0, 3.0])),
        batch=int(rng.choice([512, 1024])),
    )
    return replace(
        usual,
        recipe=recipe,
        hidden=int(rng.choice([4, 8, 16])),
        width=int(rng.choice([16, 32, 64])),
        dropout=float(rng.choice([0.1, 0.3])),
        ignored=float(rng.choice([0.0, 0.1, 0.3])),
        held_out=float(rng.choice([0.0, 0.1])),
    )


def losses(predictor: Predictor, series: DemandSeries, seed: int) -> np.ndarray:
    """Fit on five sevenths and return the pinball losses on the sixth, at JUDGED."""
    sevenths = len(series) / 7
    first, last = int(5 * sevenths), int(6 * sevenths)
    predictor.fit(series.between(0, first), np.random.default_rng(seed))
    seen = series.between(0, last)
    origins = np.arange(first, last - 5)
    columns = [int(np.argmin(np.abs(LEVELS - q))) for q in JUDGED]
    off = series.gpus[origins + 5][:, None] - np.ceil(predictor.predict_many(seen, origins)[:, 4][:, columns])
    q = np.array(JUDGED)
    return np.maximum(q * off, (q - 1) * off).mean(axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--kind", default="gru")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help=f"Write {RESULT.name}.")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = {name: find(file) for name, (file, _) in SERIES.items()}
    paths = {name: path for name, path in found.items() if path is not None}
    if not paths:
        raise SystemExit("no shared traces at hand: set COMMONWATT_DATA")
    series = {name: read_series(path, SERIES[name][1]).series for name, path in paths.items()}
    plain = {name: losses(make_predictor("last-value"), one, 0) for name, one in series.items()}
    rng = np.random.default_rng(given.seed)
    settings = [NetworkSettings(members=1), *(drawn(rng) for _ in range(given.trials - 1))]
    rows = []
    for each in settings:
        began = process_time()
        by_series = {name: losses(NetworkPredictor(given.kind, settings=each), one, 0) for name, one in series.items()}
        ratio = float(np.mean([by_series[name] / plain[name] for name in series]))
        rows.append(
            {
                "against_last_value": round(ratio, 4),
                "pinball": {name: [round(float(x), 3) for x in loss] for name, loss in by_series.items()},
                "cpu_s": round(process_time() - began, 1),
                "settings": asdict(each),
            }
        )
        if not given.json:
            print(f"{ratio:.4f}", rows[-1]["pinball"], rows[-1]["cpu_s"])
            chosen = {key: value for key, value in asdict(each).items() if key not in ("recipe", "members", "raw")}
            recipe = {key: asdict(each.recipe)[key] for key in ("epochs", "rate", "decay", "batch")}
            print(chosen | recipe, flush=True)
        document = _document(given.kind, given.seed, plain, rows)
        if given.keep:
            RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if given.json:
        print(json.dumps(document))


def _document(kind: str, seed: int, plain: dict[str, np.ndarray], rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "kind": kind, "seed": seed, "levels": JUDGED, "last_value": {
            name: [round(float(x), 3) for x in loss] for name, loss in plain.items()
        }, "trials": sorted(rows, key=lambda row: row["against_last_value"]),
    }  # fmt: skip


if __name__ == "__main__":
    main()
