"""Jobs with configurations left to be measured, for each sort of profiling node.

The configurations of a job do not change, and those that were tried only grow: a job with none left for a sort of node
is dropped. The exception is a job that could not be measured, and then reported its speed at work: its other
configurations can be measured after all. So a job is put in when it comes, and again after every measurement.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

__all__ = ["ProbeQueue", "Sort"]

Sort = tuple[str, int]
"""GPU type and GPUs of a node."""

_LOOKS = 500
"""Jobs examined for a free node in one step; the others follow in the next, so that a step stays short."""


class ProbeQueue:
    """Handles of jobs, in order of arrival.

    Parameters
    ----------
    sorts
        Of the profiling nodes.
    left
        Whether anything of a job is left to be measured on a node of a sort.
    active
        Whether a job is active.
    """

    def __init__(self, sorts: Iterable[Sort], left: Callable[[int, Sort], bool], active: Callable[[int], bool]) -> None:
        self._queues: dict[Sort, OrderedDict[int, None]] = {sort: OrderedDict() for sort in sorts}
        self._left, self._active = left, active

    def put(self, handle: int) -> None:
        """Put in a job that may have something left; one that is in the queue keeps its place."""
        for sort, queue in self._queues.items():
            if handle not in queue and self._left(handle, sort):
                queue[handle] = None

    def waiting(self, sort: Sort) -> int:
        """Return the length of the queue for a sort of node."""
        return len(self._queues[sort])

    def first(self, sort: Sort, may_begin: Callable[[int], bool]) -> int | None:
        """Return the first job that may begin on a node of a sort and has something left; ``None`` if there is none."""
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
