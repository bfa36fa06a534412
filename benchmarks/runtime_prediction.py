"""Run times predicted at submission, from the jobs that have ended by then.

Pinball loss of the decimal logarithm mean over the quantiles 10, 25, 50, 75 and 90%;
log-likelihood of the natural logarithm, nats per job, more is better. The first 70% of each log is only learned from:
the settings were chosen on it (`--tune` prints its second half instead). Needs COMMONWATT_DATA.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from time import perf_counter

import numpy as np

from commonwatt.data.readers import READERS
from commonwatt.data.third_party import find
from commonwatt.model.arrays import Floats, Ints
from commonwatt.runtimes import JobFeatures, RuntimeDistribution, RuntimePredictor, Shrinkage, predict_at_submission

LOGS = {"Philly": ("philly", "philly_jobs.csv.gz"), "Alibaba v2023": ("alibaba", "alibaba_jobs.csv.gz")}
SHARES = np.array([0.1, 0.25, 0.5, 0.75, 0.9])
BINS = 70
LN_BIN = math.log(10) / 10


class Nothing(RuntimePredictor):
    """Nothing is known: any time from a minute to a week."""

    def learn(self, groups: Ints, run_time_s: Floats) -> None:
        """Learn nothing."""

    def predict(self, groups: Ints) -> RuntimeDistribution:
        """Return the same for all."""
        return RuntimeDistribution.unknown(len(groups))


class Everybody(RuntimePredictor):
    """All jobs that have ended, alike."""

    def predict(self, groups: Ints) -> RuntimeDistribution:
        """Return what the most general group says."""
        everybody = np.repeat(groups[:, :1], groups.shape[1], axis=1)
        return super().predict(everybody)


class Template(RuntimePredictor):
    """The most specific group of at least ten jobs, as it is, without shrinkage (Smith, Foster and Taylor 1998)."""

    def predict(self, groups: Ints) -> RuntimeDistribution:
        """Return the histogram of that group, over a thousandth of what is believed of any job."""
        prior = RuntimeDistribution.unknown(1).probability[0]
        out = np.empty((len(groups), BINS))
        for j, own in enumerate(groups):
            seen = prior
            for group in own[::-1]:
                if self._counts[group].sum() >= 10:
                    seen = self._counts[group]
                    break
            out[j] = 0.999 * seen / seen.sum() + 0.001 * prior
        return RuntimeDistribution(out)


class LogNormal(RuntimePredictor):
    """A lognormal per group, mean and variance shrunk to those of the group above (empirical Bayes)."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])

    def learn(self, groups: Ints, run_time_s: Floats) -> None:
        """Add to the moments."""
        for own, y in zip(groups.tolist(), np.log10(np.maximum(run_time_s, 1.0)).tolist(), strict=True):
            for group in own:
                total = self.sums[group]
                total[0], total[1], total[2] = total[0] + 1, total[1] + y, total[2] + y * y

    def predict(self, groups: Ints) -> RuntimeDistribution:
        """Return lognormals, in bins."""
        from scipy.stats import norm

        mean, square = np.full(len(groups), 3.5), np.full(len(groups), 3.5**2 + 1.0)
        for level in range(groups.shape[1]):
            n, one, two = np.array([self.sums[g] for g in groups[:, level].tolist()]).reshape(-1, 3).T
            mean, square = (one + 10 * mean) / (n + 10), (two + 10 * square) / (n + 10)
        deviation = np.sqrt(np.maximum(square - mean**2, 0.05))
        edges = np.arange(BINS + 1) / 10
        below = norm.cdf((edges - mean[:, None]) / deviation[:, None])
        mass = np.diff(below, axis=1) + 1e-6
        return RuntimeDistribution(mass / mass.sum(axis=1, keepdims=True))


ESTIMATORS = {
    "nothing known": Nothing,
    "everybody alike": Everybody,
    "most specific group of 10": Template,
    "shrunk lognormal": LogNormal,
    "shrunk histogram, never forgets": lambda: RuntimePredictor(Shrinkage(memory=math.inf, own_memory=math.inf)),
    "shrunk histogram, weak shrinkage": lambda: RuntimePredictor(Shrinkage(strength=1.0)),
    "shrunk histogram (ours)": RuntimePredictor,
}


def features(source: str, file: str) -> tuple[list[JobFeatures], Floats, Floats]:
    path = find(file)
    if path is None:
        raise SystemExit(f"{file} is not there: set COMMONWATT_DATA to the folder of traces")
    log = READERS[source](path)
    kept = np.flatnonzero(~log.censored)
    jobs = [JobFeatures(log.tenant[j], log.job[j], log.gpu_type[j], int(log.gpus[j])) for j in kept]
    return jobs, log.submit_s[kept], log.duration_s[kept]


def scores(said: RuntimeDistribution, run_time_s: Floats) -> dict[str, float]:
    quantiles = np.log10(said.quantiles(np.zeros(len(said)), SHARES))
    miss = np.log10(np.maximum(run_time_s, 1.0))[:, None] - quantiles
    loss = np.maximum(SHARES * miss, (SHARES - 1) * miss)
    inside = (miss[:, 0] >= 0) & (miss[:, -1] <= 0)
    return {
        "pinball": float(loss.mean()),
        "log-likelihood": float(said.log_likelihood(run_time_s).mean()),
        "inside 80%": float(inside.mean()),
    }


def rows(logs: Sequence[str], *, tune: bool) -> list[dict[str, object]]:
    table: list[dict[str, object]] = []
    for name in logs:
        jobs, submit_s, run_s = features(*LOGS[name])
        part = slice(int(0.35 * len(jobs)), int(0.7 * len(jobs))) if tune else slice(int(0.7 * len(jobs)), None)
        for label, make in ESTIMATORS.items():
            began = perf_counter()
            said = predict_at_submission(make(), jobs, submit_s, submit_s + run_s, run_s)
            took_s = perf_counter() - began
            own = scores(RuntimeDistribution(said.probability[part]), run_s[part])
            table.append({"log": name, "jobs": len(jobs), "estimator": label, **own, "s": round(took_s, 1)})
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tune", action="store_true", help="score the part the settings were chosen on")
    parser.add_argument("--log", choices=LOGS, action="append")
    options = parser.parse_args()
    found = rows(options.log or list(LOGS), tune=options.tune)
    if options.json:
        print(json.dumps({"rows": found}, indent=2))
        return
    for row in found:
        print(
            f"{row['log']:<14} {row['estimator']:<34} pinball {row['pinball']:.4f}  "
            f"log-likelihood {row['log-likelihood']:8.3f}  inside 80% {row['inside 80%']:.1%}  {row['s']} s"
        )


if __name__ == "__main__":
    main()
