"""How fast simulated time passes, for progress: day, jobs, rate, time left."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from commonwatt.cli.output import RunProgress

__all__ = ["pace_of"]

DAY_S = 86400.0


def pace_of(submit_s: Sequence[float]) -> Callable[[RunProgress, float, float], str]:
    """Return what tells the pace of runs whose jobs are submitted at *submit_s*, in order.

    What it returns takes the progress, the runs (and parts) that are left, and the seconds spent.
    """
    length_s = max(submit_s[-1], 1e-9)

    def pace(progress: RunProgress, left: float, spent_s: float) -> str:
        at_s = progress.furthest_s
        parts = [
            f"day {at_s / DAY_S:.1f} of {length_s / DAY_S:.1f}",
            f"{bisect_right(submit_s, at_s):,} of {len(submit_s):,} jobs",
        ]
        done = progress.completed
        if done > 0 and spent_s > 0:
            parts += [f"{done * length_s / DAY_S / spent_s:.2g} days/s", f"{_span(spent_s * left / done)} left"]
        return ", ".join(parts)

    return pace


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
