"""How many GPUs the jobs of a log hold at once, over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.data.log import JobLog
from commonwatt.model.arrays import Floats, Ints

__all__ = ["Usage", "usage"]


@dataclass(frozen=True)
class Usage:
    """A step function: from ``time_s[i]`` on, ``gpus[i]`` GPUs are held; none before the first and after the last."""

    time_s: Floats  # [T] increasing, on the clock of the log
    gpus: Ints  # [T]; the last is 0
    from_starts: bool  # whether the log says when jobs started; else they count from their submission

    def within(self, begin_s: float, end_s: float) -> tuple[Floats, Ints]:
        """Return (seconds, GPUs) of every step between two moments, [S] each; empty if they are one."""
        edges = np.unique(np.clip(np.concatenate((self.time_s, [begin_s, end_s])), begin_s, end_s))
        held = np.concatenate(([0], self.gpus))
        return np.diff(edges), held[np.searchsorted(self.time_s, edges[:-1], side="right")]


def usage(log: JobLog) -> Usage:
    """Return the GPUs in use over time: every job holds its GPUs for its run time from its start."""
    known = np.isfinite(log.start_s)
    from_starts = bool(known.mean() > 0.5)
    begin_s = np.where(known & from_starts, log.start_s, log.submit_s)
    moments = np.concatenate((begin_s, begin_s + log.duration_s))
    time_s, index = np.unique(moments, return_inverse=True)
    change = np.zeros(len(time_s), dtype=np.int64)
    np.add.at(change, index, np.concatenate((log.gpus, -log.gpus)))
    return Usage(time_s, np.cumsum(change), from_starts)
