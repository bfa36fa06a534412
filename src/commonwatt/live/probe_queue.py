"""Jobs that have something left to be measured, for each sort of profiling node.

What a job may get does not change, and what was measured of it, or could not be, only grows: a job of which nothing is
left for a sort of node is dropped for good. The exception is a job that could not be measured, and then told its speed
at work: what is left of it can be measured after all. So a job is put in (again) when it comes, and whenever something
was learnt of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

__all__ = ["ProbeQueue", "Sort"]

Sort = tuple[str, int]
"""GPU type and GPUs of a node."""

_LOOKS = 500
"""Jobs looked at for a free node, so that deciding does not wait for it; the others the next time."""


class ProbeQueue:
    """Handles of jobs, in the order in which they came.

    Parameters
    ----------
    sorts
        Of the profiling nodes.
    left
        Whether something is left to be measured of a job on a node of a sort.
    active
        Whether a job is not over.
    """

    def __init__(self, sorts: Iterable[Sort], left: Callable[[int, Sort], bool], active: Callable[[int], bool]) -> None:
        self._queues: dict[Sort, OrderedDict[int, None]] = {sort: OrderedDict() for sort in sorts}
        self._left, self._active = left, active

    def put(self, handle: int) -> None:
        """Take in a job of which something may be left; one that is in keeps its place."""
        for sort, queue in self._queues.items():
            if handle not in queue and self._left(handle, sort):
                queue[handle] = None

    def waiting(self, sort: Sort) -> int:
        """Return how many jobs have something left for a sort of node, as far as was looked."""
        return len(self._queues[sort])

    def first(self, sort: Sort, may_begin: Callable[[int], bool]) -> int | None:
        """Return the first job that may begin on a node of a sort, and has something left; ``None`` if none is seen."""
        queue, found, looks = self._queues[sort], None, 0
        over, passed = [], []
        for handle in queue:
            if not self._active(handle):
                over.append(handle)
                continue
            if looks == _LOOKS:
                break
            looks += 1
            if not may_begin(handle):
                passed.append(handle)
            elif self._left(handle, sort):
                found = handle
                break
            else:
                over.append(handle)
        for handle in over:
            del queue[handle]
        if found is None and looks == _LOOKS:  # others come first the next time
            for handle in passed:
                queue.move_to_end(handle)
        return found
