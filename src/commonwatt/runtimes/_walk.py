"""A log as it goes by: each job is predicted at its submission from the jobs that had ended by then."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.runtimes._distribution import BINS, RuntimeDistribution
from commonwatt.runtimes._predictor import JobFeatures, RuntimePredictor

__all__ = ["predict_at_submission"]


def predict_at_submission(
    predictor: RuntimePredictor, jobs: Sequence[JobFeatures], submit_s: Floats, end_s: Floats, run_time_s: Floats
) -> RuntimeDistribution:
    """Return what *predictor* said of each job when it was submitted; it has learned the whole log afterwards.

    A prediction at time t has learned the jobs with ``end_s`` <= t, in order of their ends, ties by position. Arrays
    have shape [J]; infinite ends are never learned.
    """
    groups = predictor.groups(jobs)
    by_submit = np.argsort(submit_s, kind="stable")
    by_end = np.argsort(end_s, kind="stable")
    by_end = by_end[np.isfinite(end_s[by_end])]
    ended = np.searchsorted(end_s[by_end], submit_s[by_submit], side="right")
    out = np.empty((len(jobs), BINS))
    upto, k = 0, 0
    while k < len(by_submit):
        last = int(np.searchsorted(ended, ended[k], side="right"))  # nothing ends between these submissions
        learned = by_end[upto : ended[k]]
        predictor.learn(groups[learned], run_time_s[learned])
        upto = int(ended[k])
        asked = by_submit[k:last]
        out[asked] = predictor.predict(groups[asked]).probability
        k = last
    rest = by_end[upto:]
    predictor.learn(groups[rest], run_time_s[rest])
    return RuntimeDistribution(out)
