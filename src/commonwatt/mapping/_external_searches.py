"""Searches of other packages on G#'s encoding (section 4.4), with the settings of Table 5.

**nevergrad** (extra ``search``). A mapping is a point of the unit cube with two coordinates for each job: which of the
sub-accelerators it can run on, cut evenly, and its priority. Points are asked for one at a time, as a budget counts
mappings.

As Table 5: DE with F1 = F2 = 0.8; (1+1)-ES; CMA-ES with an elite of one half, which is pycma's own; TBPSA from a
population of 50; PSO with omega 1.6 and 0.8 for both bests; Latin hypercube samples in the Cauchy distribution; Halton
and Hammersley sequences; the passive portfolio of CMA-ES and DE. All else is nevergrad's.

**Reinforcement learning** (extra ``rl``): A2C and PPO of stable-baselines3, on one batch. The paper prints the networks
and rates, not what is seen, done and rewarded. Ours: an episode maps the batch, jobs one after the other, longest
first. Seen are the job's logarithmic latency and its request on each sub-accelerator, how much time each already has,
and how far the episode is. Done is a choice of sub-accelerator and one of ten priorities; a job that cannot run there
goes to where it is fastest. Rewarded is, at the end only, the logarithm of the makespan of a round-robin mapping over
that of the episode's. An episode is one mapping of the budget.

Policy and critic have three layers of 128. A2C: discount 0.99, rate 0.0007, RMSProp. PPO: discount 0.99, clipping 0.2,
rate 0.00025, Adam. These rates are what A2C and PPO2 of the first stable-baselines came with; so is what the paper does
not print: an entropy term of 0.01, for A2C a value term of a quarter and five steps between updates, for PPO 128 steps,
four minibatches and four epochs. Sixteen actors run side by side. All else is stable-baselines3's. PyTorch runs on the
CPU; its seed is set.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from commonwatt.mapping._baselines import List
from commonwatt.mapping._encoding import Mapping
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._scoring import enough, population_costs
from commonwatt.mapping._search import MappingSearch, drive, score
from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError, MissingExtraError
from commonwatt.model.names import one_of
from commonwatt.optimize import Budget, Incumbent, KeepGoing, always, ranked

__all__ = ["LEARNERS", "NEVERGRAD", "Cube", "Episode", "Learner", "Nevergrad"]

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


# -- reinforcement learning


LEARNERS = ("a2c", "ppo")
PRIORITIES = 10
LAYERS = (128, 128, 128)
ACTORS = 16
"""Episodes side by side, so that the policy is asked once for all of them."""
PPO2 = 128, 4, 4
"""Steps of each actor between two updates, minibatches of all of them, and epochs."""
ENTROPY = 0.01


class Episode:
    """One batch mapped job by job: what is seen, and what mapping comes of it."""

    def __init__(self, problem: MappingProblem) -> None:
        self.problem = problem
        can, alone = problem.possible, problem.alone
        self.order = ranked(-alone.min(axis=1))
        self.fastest = alone.argmin(axis=1)
        largest, least = alone[can].max(), alone[can].min()
        self._latency = np.where(can, np.log(np.where(can, alone, largest) / least) / np.log(2 * largest / least), 1.0)
        self._request = np.minimum(problem.bandwidth / problem.system_bandwidth, 1.0)
        self._whole = float(alone.min(axis=1).sum())
        self.begin()

    @property
    def width(self) -> int:
        """Numbers that are seen."""
        return 3 * self.problem.accelerators + 1

    def begin(self) -> Floats:
        """Start over; returns what is seen."""
        jobs = len(self.problem)
        self.mapping = Mapping(np.zeros(jobs, dtype=np.int64), np.zeros(jobs))
        self._load, self._next = np.zeros(self.problem.accelerators), 0
        return self.seen()

    @property
    def is_over(self) -> bool:
        """Whether every job has its place."""
        return self._next == len(self.problem)

    def seen(self) -> Floats:
        """Return what is seen now; of the last job when all is done. Shape [width], within 0 and 1."""
        j = self.order[min(self._next, len(self.order) - 1)]
        load = np.minimum(self._load / self._whole, 1.0)
        return np.concatenate([self._latency[j], self._request[j], load, [self._next / len(self.order)]])

    def place(self, accelerator: int, level: int) -> None:
        """Place the next job, with the priority of *level* of ``PRIORITIES``."""
        j = int(self.order[self._next])
        a = accelerator if self.problem.possible[j, accelerator] else int(self.fastest[j])
        self.mapping.accelerator[j], self.mapping.priority[j] = a, (level + 0.5) / PRIORITIES
        self._load[a] += self.problem.alone[j, a]
        self._next += 1


@contextmanager
def _one_thread(torch: Any) -> Iterator[None]:  # noqa: ANN401
    """Compute on one thread inside: more of them wait for each other at layers this small, for ten times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _environments(problem: MappingProblem, search: Incumbent[Mapping], rng: Generator) -> Any:  # noqa: ANN401
    """Return ``ACTORS`` environments, each with its own episode; all episodes are equally long."""
    from stable_baselines3.common.vec_env import DummyVecEnv

    usual = score(problem, List("fcfs", "rr").solve(problem, rng).best[None])
    return DummyVecEnv([lambda: _environment(problem, search, usual.cost)] * ACTORS)


def _environment(problem: MappingProblem, search: Incumbent[Mapping], usual: float) -> Any:  # noqa: ANN401
    import gymnasium

    episode = Episode(problem)

    class Environment(gymnasium.Env):  # type: ignore[misc,unused-ignore]
        action_space = gymnasium.spaces.MultiDiscrete([problem.accelerators, PRIORITIES])
        observation_space = gymnasium.spaces.Box(0.0, 1.0, (episode.width,), np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ANN401
            super().reset(seed=seed, options=options)
            return episode.begin().astype(np.float32), {}

        def step(self, action: Any) -> Any:  # noqa: ANN401
            episode.place(int(action[0]), int(action[1]))
            reward = 0.0
            if episode.is_over and search.goes_on():
                worth = float(population_costs(problem, episode.mapping[None])[0])
                search.offer(episode.mapping, worth)
                reward = float(np.log(usual / worth))
            return episode.seen().astype(np.float32), reward, episode.is_over, False, {}

    return Environment()


def _learner(name: str, environments: Any, seed: int) -> Any:  # noqa: ANN401
    import torch
    from stable_baselines3 import A2C, PPO

    policy: dict[str, Any] = {"net_arch": {"pi": list(LAYERS), "vf": list(LAYERS)}}
    shared: dict[str, Any] = {
        "gamma": 0.99, "ent_coef": ENTROPY, "policy_kwargs": policy, "seed": seed, "device": "cpu", "verbose": 0,
    }  # fmt: skip
    if name == "a2c":
        return A2C("MlpPolicy", environments, learning_rate=0.0007, use_rms_prop=True, vf_coef=0.25, **shared)
    policy["optimizer_class"] = torch.optim.Adam
    steps, parts, epochs = PPO2
    return PPO(
        "MlpPolicy", environments, learning_rate=0.00025, clip_range=0.2, n_steps=steps,
        batch_size=steps * ACTORS // parts, n_epochs=epochs, **shared,
    )  # fmt: skip


@dataclass(frozen=True)
class Learner:
    """A2C or PPO under a budget of episodes, each of them one mapping."""

    name: str
    budget: int = 10_000

    def solve(self, problem: MappingProblem, rng: Generator, keep_going: KeepGoing = always) -> MappingSearch:
        """Learn; *keep_going* is asked after each episode. Raises ``MissingExtraError`` without stable-baselines3."""
        if self.name not in LEARNERS:
            raise InputError(one_of(LEARNERS, self.name), field="algorithm", value=self.name)
        try:
            import stable_baselines3  # noqa: F401
            import torch
        except ImportError as error:
            raise MissingExtraError("stable_baselines3", "rl") from error
        search = Incumbent[Mapping](Budget(max(1, self.budget), keep_going, enough(problem)))
        with warnings.catch_warnings(), _one_thread(torch):
            warnings.simplefilter("ignore")
            learner = _learner(self.name, _environments(problem, search, rng), int(rng.integers(2**31)))
            learner.learn(10**12, callback=lambda _local, _global: search.goes_on())
        return search.result()
