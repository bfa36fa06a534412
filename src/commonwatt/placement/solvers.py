"""All solvers in one place, and by name for ``commonwatt place``. A name has one owner."""

from __future__ import annotations

from collections.abc import Callable

from commonwatt.placement._search import KeepGoing, Search, Solver, always
from commonwatt.placement.backfill import Backfill
from commonwatt.placement.exact import Exact
from commonwatt.placement.local_search import LocalSearch
from commonwatt.placement.lookahead import Lookahead
from commonwatt.placement.priority_order import PriorityOrder
from commonwatt.placement.random_greedy import RandomGreedy

__all__ = [
    "SOLVERS",
    "Backfill",
    "Exact",
    "KeepGoing",
    "LocalSearch",
    "Lookahead",
    "PriorityOrder",
    "RandomGreedy",
    "Search",
    "Solver",
    "always",
]

SOLVERS: dict[str, Callable[[int], Solver]] = {
    "random-greedy": lambda iterations: RandomGreedy(iterations=iterations),
    "local-search": lambda iterations: LocalSearch(start=RandomGreedy(iterations=iterations), steps=20 * iterations),
    "lookahead": lambda _: Lookahead(),
    "exact": lambda _: Exact(),
    "fifo": lambda _: PriorityOrder("fifo"),
    "edf": lambda _: PriorityOrder("edf"),
    "priority": lambda _: PriorityOrder("priority"),
    "srtf": lambda _: PriorityOrder("srtf"),
    "easy": lambda _: Backfill(),
    "fair-share": lambda _: Backfill(fair_share_weight=2.0),
}
