"""What must hold of a decision."""

from __future__ import annotations

from dataclasses import dataclass

from commonwatt.model.arrays import Bools, Ints

__all__ = ["Guarantees", "Reservation"]


@dataclass(frozen=True)
class Reservation:
    """GPUs kept for the oldest job that cannot start.

    Attributes
    ----------
    job
        The job, by its place in the problem.
    nodes, per_node
        Nodes it will have, and GPUs on each.
    by_s
        Until when other jobs may run on them (s, on the clock of ``now_s``); never moved to a later time.
    expected_s
        When they are free, as is believed now; where run times are certain, no later than ``by_s``.
    oldest
        Whether it is kept whatever comes; that of backfill is for the first in its order, and made anew every time.
    """

    job: int
    nodes: Ints
    per_node: int
    by_s: float
    expected_s: float
    oldest: bool = True


@dataclass(frozen=True)
class Guarantees:
    """What must hold of a decision, whichever solver takes it; see ``schedule_with_guarantees``.

    Attributes
    ----------
    pinned
        Running jobs that are neither stopped nor moved, [J].
    promised
        Running jobs that are not stopped, but may be moved, [J].
    overdue
        Waiting jobs that start as soon as there is room, [J].
    oldest
        Waiting jobs to reserve GPUs for, in this order, until one can have them.
    reservation
        That of an earlier decision; its job is the first of ``oldest``.
    closed
        Nodes on which nothing starts, [N].
    spent
        Of those pinned, jobs that were started as often as ``max_starts``, [J].
    planned
        Of those pinned, jobs that run in the hours planned for them, [J]; the others are so for ``min_run_s``.
    """

    pinned: Bools
    promised: Bools
    overdue: Bools
    oldest: Ints
    reservation: Reservation | None = None
    closed: Bools | None = None
    spent: Bools | None = None
    planned: Bools | None = None
