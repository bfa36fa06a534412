"""Optimisers of nevergrad on G#'s encoding (section 4.4), with the settings of Table 5. Needs the extra ``search``.

A mapping is a point of the unit cube with two coordinates for each job: which of the sub-accelerators it can run on,
cut evenly, and its priority. Points are asked for one at a time, as a budget counts mappings.

As Table 5: DE with F1 = F2 = 0.8; (1+1)-ES; CMA-ES with an elite of one half, which is pycma's own; TBPSA from a
population of 50; PSO with omega 1.6 and 0.8 for both bests; Latin hypercube samples in the Cauchy distribution; Halton
and Hammersley sequences; the passive portfolio of CMA-ES and DE. All else is nevergrad's.
"""

from __future__ import annotations

import warnings
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from commonwatt.mapping._encoding import Mapping
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._search import MappingSearch, drive
from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError, MissingExtraError
from commonwatt.model.names import one_of
from commonwatt.optimize import KeepGoing, always

__all__ = ["NEVERGRAD", "Cube", "Nevergrad"]

NEVERGRAD = ("de", "one-plus-one", "cma", "tbpsa", "pso", "cauchy-lhs", "halton", "hammersley", "portfolio")


class Cube:
    """Points of the unit cube as mappings of a problem: J coordinates for places, then J for priorities."""

    def __init__(self, problem: MappingProblem) -> None:
        self.jobs = len(problem)
        self._count = problem.possible.sum(axis=1)
        self._where = np.argsort(~problem.possible, axis=1, kind="stable")  # those that can run the job first

    def mapping(self, point: Floats) -> Mapping:
        """Return the mapping at *point* ([2 J], each within 0 and 1)."""
        pick = np.minimum((point[: self.jobs] * self._count).astype(np.int64), self._count - 1)
        return Mapping(self._where[np.arange(self.jobs), pick], point[self.jobs :])


class _Asked:
    """One of nevergrad's optimisers, by ask and tell; it hears only of what it asked for."""

    def __init__(self, problem: MappingProblem, optimiser: Any) -> None:  # noqa: ANN401
        self._cube, self._optimiser = Cube(problem), optimiser
        self._open: deque[Any] = deque()

    def ask(self) -> Mapping:
        candidate = self._optimiser.ask()
        self._open.append(candidate)
        return self._cube.mapping(np.clip(candidate.value, 0.0, 1.0))[None]

    def tell(self, mappings: Mapping, makespans: Floats) -> None:
        for worth in makespans[: len(mappings)].tolist():
            if self._open:
                self._optimiser.tell(self._open.popleft(), worth)


def _made(name: str, dimensions: int, budget: int, seed: int) -> Any:  # noqa: ANN401
    try:
        import nevergrad as ng
    except ImportError as error:
        raise MissingExtraError("nevergrad", "search") from error
    families = ng.families
    de = families.DifferentialEvolution(F1=0.8, F2=0.8)
    made = {
        "de": de,
        "one-plus-one": families.ParametrizedOnePlusOne(),
        "cma": families.ParametrizedCMA(),
        "tbpsa": families.ParametrizedTBPSA(naive=False, initial_popsize=50),
        "pso": families.ConfPSO(omega=1.6, phip=0.8, phig=0.8),
        "cauchy-lhs": families.SamplingSearch(sampler="LHS", cauchy=True),
        "halton": families.SamplingSearch(sampler="Halton"),
        "hammersley": families.SamplingSearch(sampler="Hammersley"),
        "portfolio": families.ConfPortfolio(optimizers=[families.ParametrizedCMA(), de]),
    }
    if name not in made:
        raise InputError(one_of(NEVERGRAD, name), field="algorithm", value=name)
    cube = ng.p.Array(init=np.full(dimensions, 0.5), lower=0.0, upper=1.0)
    cube.random_state.seed(seed)
    return made[name](cube, budget=budget, num_workers=1)


@dataclass(frozen=True)
class Nevergrad:
    """An optimiser of nevergrad by one of the names of ``NEVERGRAD``, under a budget of mappings."""

    name: str
    budget: int = 10_000

    def solve(self, problem: MappingProblem, rng: Generator, keep_going: KeepGoing = always) -> MappingSearch:
        """Search; *keep_going* is asked after each mapping. Raises ``MissingExtraError`` without nevergrad."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what it thinks of budgets, and of libraries it would like to have
            made = _made(self.name, 2 * len(problem), self.budget, int(rng.integers(2**31)))
            return drive(problem, _Asked(problem, made), self.budget, keep_going)
