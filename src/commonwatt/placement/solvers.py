"""All solvers, by name. A name has one owner."""

from __future__ import annotations

from collections.abc import Callable

from commonwatt.placement._search import KeepGoing, Search, Solver, always
from commonwatt.placement.backfill import Backfill
from commonwatt.placement.exact import Exact
from commonwatt.placement.priority_order import PriorityOrder
from commonwatt.placement.random_greedy import RandomGreedy

__all__ = ["SOLVERS", "KeepGoing", "Search", "Solver", "always"]

SOLVERS: dict[str, Callable[..., Solver]] = {
    "random-greedy": RandomGreedy,
    "exact": Exact,
    "fifo": lambda: PriorityOrder("fifo"),
    "edf": lambda: PriorityOrder("edf"),
    "priority": lambda: PriorityOrder("priority"),
    "srtf": lambda: PriorityOrder("srtf"),
    "easy": Backfill,
    "fair-share": Backfill,
}
