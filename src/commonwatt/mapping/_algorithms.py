"""All algorithms by name: ours, rules without search, and those of others to compare with. A name has one owner."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from commonwatt.mapping._auto import Auto
from commonwatt.mapping._baselines import List
from commonwatt.mapping._exact import BranchAndBound
from commonwatt.mapping._gsharp import GSharp
from commonwatt.mapping._nevergrad_search import NEVERGRAD, Nevergrad
from commonwatt.mapping._reinforcement import LEARNERS, Learner
from commonwatt.mapping._search import Algorithm
from commonwatt.mapping._standard_genetic import StandardGenetic

__all__ = ["ALGORITHMS"]


def _rule(order: str, rule: str) -> Callable[[int], Algorithm]:
    return lambda _: List(order, rule)


ALGORITHMS: dict[str, Callable[[int], Algorithm]] = {
    "auto": Auto,
    "gsharp": GSharp,
    "heft": _rule("longest", "eft"),
    **{f"{o}-{r}": _rule(o, r) for o in ("fcfs", "sjf", "random") for r in ("olb", "met", "rr", "random")},
    "exact": lambda _: BranchAndBound(),
    "standard-ga": StandardGenetic,
    **{name: partial(Nevergrad, name) for name in NEVERGRAD},
    **{name: partial(Learner, name) for name in LEARNERS},
}
"""Each made for a budget of mappings, which rules without search do not use.

``heft`` is longest first, earliest finish. Those of nevergrad need the extra ``search``, ``a2c`` and ``ppo`` ``rl``.
"""
