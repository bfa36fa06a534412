"""How well the GPUs kept on served demand, and what they saved.

Instants with unknown demand count nowhere. Where nothing is left to score, the score is NaN: unknown.
"""

from __future__ import annotations

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints

__all__ = [
    "energy_saving",
    "gpus_served",
    "job_delays_s",
    "kept_on",
    "percentile",
    "shift_for",
    "slots_served",
]


def kept_on(gpus: Floats, most: float | Floats = np.inf) -> Floats:
    """Return the whole GPUs to keep on for demand *gpus*: rounded up, 0 or more, at most *most*."""
    return np.minimum(np.ceil(np.maximum(gpus, 0.0) - 1e-9), most)


def _mean(values: Floats | Bools) -> float:
    return float(np.mean(values, dtype=np.float64)) if len(values) else float("nan")


def slots_served(on: Floats, actual: Floats) -> float:
    """Share of instants with enough GPUs on: one reading of the paper's performance. Shapes [K]."""
    finite = ~np.isnan(actual)
    return _mean(on[finite] >= actual[finite])


def gpus_served(on: Floats, actual: Floats) -> float:
    """Share of the GPUs wanted that were on, over all instants. NaN where none were wanted. Shapes [K]."""
    finite = ~np.isnan(actual)
    wanted = actual[finite].sum()
    return float(np.minimum(on[finite], actual[finite]).sum() / wanted) if wanted > 0 else float("nan")


def job_delays_s(on: Floats, index: Ints, met_gpus: Floats, step_s: float, steps: int) -> Floats:
    """Return how long each job waits for its GPUs to be on, s; NaN where the demand it met is unknown. Shape [J].

    A job waits until as many GPUs are on as were wanted when it came, at most *steps* values: by then the nodes that
    were woken for it are on. Ends in the meantime are ignored, so delays are overestimated.

    Parameters
    ----------
    on
        GPUs on at each value. Shape [K].
    index, met_gpus
        Index into *on* at which each job comes, and demand then, with it. Shape [J].
    """
    waited = np.full(len(index), float(steps))
    for k in range(steps - 1, -1, -1):
        at = index + k
        enough = (at < len(on)) & (on[np.minimum(at, len(on) - 1)] >= met_gpus)
        waited[enough] = k
    return np.where(np.isnan(met_gpus), np.nan, waited * step_s)


def percentile(values: Floats, share: float) -> float:
    """Return the smallest of *values* that a *share* of them does not exceed; NaN if there are none."""
    if not len(values):
        return float("nan")
    return float(np.sort(values)[max(0, int(np.ceil(round(share * len(values), 9))) - 1)])


def energy_saving(on: Floats, total_gpus: float) -> float:
    """Part of the energy saved against all GPUs on: the mean part that is off (CUFF, section 3.3). Shape [K]."""
    return 1 - _mean(np.minimum(on, total_gpus)[~np.isnan(on)]) / total_gpus


def shift_for(share: float, on: Floats, actual: Floats) -> float:
    """Return the fewest whole GPUs (negative: a surplus) that make *on* enough in *share* of the instants.

    It uses the outcome: it compares forecasts at equal performance and is no plan. NaN if nothing is known.
    """
    finite = ~np.isnan(actual)
    short = np.sort(np.ceil(actual[finite] - on[finite]))
    if not len(short):
        return float("nan")
    return float(short[max(0, int(np.ceil(np.round(share * len(short), 9))) - 1)])
