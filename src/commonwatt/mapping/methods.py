"""Every way to map a problem by its name: our own algorithms, and those of others to compare with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from commonwatt.mapping.algorithms import ALGORITHMS
from commonwatt.mapping.exact import Exact
from commonwatt.mapping.nevergrad_search import NEVERGRAD, Nevergrad
from commonwatt.mapping.reinforcement import LEARNERS, Learner
from commonwatt.mapping.search import Algorithm
from commonwatt.mapping.standard_genetic import StandardGenetic

__all__ = ["METHODS"]

METHODS: dict[str, Callable[[int], Algorithm]] = {
    **ALGORITHMS,
    "exact": lambda _: Exact(),
    "standard-ga": StandardGenetic,
    **{name: partial(Nevergrad, name) for name in NEVERGRAD},
    **{name: partial(Learner, name) for name in LEARNERS},
}
"""Each made for a budget of mappings. Those of nevergrad need the extra ``search``, ``a2c`` and ``ppo`` ``rl``."""
