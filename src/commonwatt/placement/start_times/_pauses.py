"""In which pieces of time a job runs at least cost if it may pause, each pause costing a restart. Ours."""

from __future__ import annotations

import numpy as np
from numba import njit

from commonwatt.model.arrays import Bools, Floats

__all__ = ["PAUSED", "RUNNING", "WAITING", "cheapest_pieces"]

PAUSED, RUNNING, WAITING = 0, 1, 2  # what a job did before a piece of time; one that waits was not stopped by us
MOST_PAUSES = 8


@njit(cache=True, nogil=True)
def cheapest_pieces(
    cost: Floats, open_: Bools, need: int, again: int, state: int, delay: float
) -> tuple[float, Bools]:  # fmt: skip
    """Return the least cost of *need* pieces of work, infinity if they do not fit, and the pieces it runs in, [B].

    A dynamic program over pieces, the work left, and what the job did before. To run after a pause adds *again* pieces
    of work; a piece in which it does not run costs *delay*. Of equals, it runs earlier.

    Parameters
    ----------
    cost
        Of running in each piece, [B].
    open_
        Pieces in which it may run, [B].
    state
        ``RUNNING`` if it runs now, else ``WAITING``.
    """
    pieces, most = len(cost), need + again * MOST_PAUSES
    runs = np.zeros((pieces, most + 1, 3), dtype=np.bool_)
    later = np.full((most + 1, 3), np.inf)
    later[0] = 0.0
    for b in range(pieces - 1, -1, -1):
        now = np.full((most + 1, 3), np.inf)
        now[0] = 0.0
        for left in range(1, most + 1):
            for before in range(3):
                off = delay + later[left, WAITING if before == WAITING else PAUSED]
                todo = left + again if before == PAUSED else left
                on = np.inf
                if open_[b] and todo <= most:
                    on = cost[b] + later[todo - 1, RUNNING]
                runs[b, left, before] = on < np.inf and on <= off + 1e-12 * abs(off)
                now[left, before] = on if runs[b, left, before] else off
        later = now
    chosen = np.zeros(pieces, dtype=np.bool_)
    left, before = need, state
    total = later[need, state]
    if total < np.inf:
        for b in range(pieces):
            if left == 0:
                break
            if runs[b, left, before]:
                left = (left + again if before == PAUSED else left) - 1
                chosen[b], before = True, RUNNING
            elif before != WAITING:
                before = PAUSED
    return total, chosen
