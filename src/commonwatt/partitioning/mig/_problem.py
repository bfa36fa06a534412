"""GPUs to cut up and tenants to share them, in arrays, and the program over layouts that solvers add to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError
from commonwatt.model.partition_file import MigFile, MigTenant
from commonwatt.optimize import Program, Solution
from commonwatt.partitioning._market import together
from commonwatt.partitioning.mig._layouts import PLAIN, Layout, Profile, count_vectors, gpu_type, parse_layout

__all__ = ["GpuGroup", "LayoutChoice", "LayoutProgram", "MigDecision", "MigProblem"]

LEAST = 1e-6
"""Of a GPU, or an instance, that counts where GPUs are cut in parts."""


@dataclass(frozen=True)
class LayoutChoice:
    """One way to cut a GPU: how many instances of each class, and the placement that drains least."""

    counts: Ints  # [K]
    layout: Layout
    drained: int


@dataclass(frozen=True)
class GpuGroup:
    """GPUs that are alike in type and present layout."""

    type: str
    present: Layout | None
    members: tuple[int, ...]
    choices: tuple[LayoutChoice, ...]


@dataclass(frozen=True)
class MigProblem:
    """A problem compiled.

    Attributes
    ----------
    weights
        Budgets, scaled to sum to 1. Shape [N].
    speeds
        Speed of each tenant on an instance of each class, 0 where it does not fit. Shape [N, K].
    rates
        The same relative to its best class, so that 1 is as fast as it can be on one instance. Shape [N, K].
    limits
        Most instances at a time, infinity for any number. Shape [N].
    classes
        Type of GPU and profile of each class of instances.
    """

    tenants: tuple[str, ...]
    gpus: tuple[str, ...]
    weights: Floats
    speeds: Floats
    rates: Floats
    limits: Floats
    classes: tuple[tuple[str, Profile], ...]
    groups: tuple[GpuGroup, ...]
    drain_penalty: float

    @classmethod
    def of(cls, file: MigFile) -> MigProblem:
        """Compile a problem file; raises ``InputError`` naming what is wrong, or who does not fit."""
        keys = PLAIN if file.profiles == "plain" else ("1g", "1g.x2", *PLAIN[1:])
        types = list(dict.fromkeys(gpu.type for gpu in file.gpus))
        for gpu in file.gpus:
            gpu_type(gpu.type, f"gpus.{gpu.name}.type")
        classes = tuple((name, gpu_type(name).profile(key)) for name in types for key in keys)
        _check_keys(file, types)
        speeds = np.array([[_speed(file, t, *c) for c in classes] for t in file.tenants])
        for tenant, row in zip(file.tenants, speeds, strict=True):
            if not row.any():
                raise _refusal(file, tenant, classes)
        weights = np.array([t.weight for t in file.tenants])
        together(weights, "tenants.weight")
        return cls(
            tuple(t.name for t in file.tenants),
            tuple(g.name for g in file.gpus),
            weights / weights.sum(),
            speeds,
            speeds / speeds.max(axis=1, keepdims=True),
            np.array([np.inf if t.max_instances is None else t.max_instances for t in file.tenants], dtype=float),
            classes,
            _groups(file, classes, keys),
            file.drain_penalty,
        )

    def totals(self, picked: list[list[int]]) -> Ints:
        """Return how many instances of each class there are, given how many GPUs of each group take each choice."""
        counts = np.zeros(len(self.classes), dtype=np.int64)
        for group, numbers in zip(self.groups, picked, strict=True):
            for choice, number in zip(group.choices, numbers, strict=True):
                counts += number * choice.counts
        return counts

    def penalty(self, picked: list[list[int]]) -> float:
        """Return what the draining costs, given how many GPUs of each group take each choice."""
        drained = sum(
            number * choice.drained
            for group, numbers in zip(self.groups, picked, strict=True)
            for choice, number in zip(group.choices, numbers, strict=True)
        )
        return self.drain_penalty * drained


@dataclass(frozen=True)
class MigDecision:
    """How all GPUs are cut, and how good that is.

    Attributes
    ----------
    picked
        How many GPUs of each group take each choice.
    value, bound
        Welfare less the penalty of draining, and what no decision exceeds.
    optimal
        Whether bound and value are the same, up to rounding.
    """

    picked: list[list[int]]
    value: float
    bound: float
    optimal: bool


def _check_keys(file: MigFile, types: list[str]) -> None:
    keys = {n for t in types for p in gpu_type(t).profiles for n in (p.key, p.name, f"{t}/{p.key}", f"{t}/{p.name}")}
    for tenant in file.tenants:
        for key in tenant.speed or {}:
            if key not in keys:
                raise InputError(
                    f"a profile of these GPUs, such as {', '.join(sorted(n for n in keys if '/' not in n))}",
                    field=f"tenants.{tenant.name}.speed", value=key,
                )  # fmt: skip
        for key in tenant.gpu_speed:
            gpu_type(key, f"tenants.{tenant.name}.gpu_speed")


def _fits(file: MigFile, tenant: MigTenant, profile: Profile) -> bool:
    return tenant.memory_gb + file.memory_reserve_gb <= profile.memory_gb


def _speed(file: MigFile, tenant: MigTenant, name: str, profile: Profile) -> float:
    """Return the speed on one instance; 0 where the tenant's memory does not fit or nothing is said."""
    if not _fits(file, tenant, profile):
        return 0.0
    factor = tenant.gpu_speed.get(name, 1.0)
    if tenant.speed is None:
        parallel = float(tenant.parallel_fraction or 0.0)
        n = profile.sms if file.parallel_over == "sms" else profile.compute
        return factor * n / (n * (1 - parallel) + parallel)
    for key in (f"{name}/{profile.key}", f"{name}/{profile.name}", profile.name, profile.key):
        if key in tenant.speed:
            return factor * tenant.speed[key]
    return 0.0


def _refusal(file: MigFile, tenant: MigTenant, classes: tuple[tuple[str, Profile], ...]) -> InputError:
    largest = max((profile for _, profile in classes), key=lambda p: p.memory_gb)
    if not _fits(file, tenant, largest):
        reserve = f" less {file.memory_reserve_gb:g} GB in reserve" if file.memory_reserve_gb else ""
        return InputError(
            f"at most the memory of the largest instance, {largest.name} with {largest.memory_gb:g} GB{reserve}",
            field=f"tenants.{tenant.name}.memory_gb", value=f"{tenant.memory_gb:g}",
        )  # fmt: skip
    return InputError(
        f"a speed above 0 on a profile with {tenant.memory_gb:g} GB",
        field=f"tenants.{tenant.name}.speed", value=tenant.speed,
    )  # fmt: skip


def _groups(file: MigFile, classes: tuple[tuple[str, Profile], ...], keys: tuple[str, ...]) -> tuple[GpuGroup, ...]:
    alike: dict[tuple[str, Layout | None], list[int]] = {}
    for place, gpu in enumerate(file.gpus):
        words = gpu.present
        present = None if words is None else parse_layout(gpu_type(gpu.type), words, f"gpus.{gpu.name}.present")
        alike.setdefault((gpu.type, present), []).append(place)
    return tuple(
        GpuGroup(name, present, tuple(members), _choices(name, present, classes, keys))
        for (name, present), members in alike.items()
    )


def _choices(
    name: str, present: Layout | None, classes: tuple[tuple[str, Profile], ...], keys: tuple[str, ...]
) -> tuple[LayoutChoice, ...]:
    now = Counter(present or ())
    choices = []
    for same in count_vectors(name, keys).values():
        best = max(same, key=lambda layout: len(set(layout) & set(now)))
        counts = Counter(placed.profile for placed in best)
        vector = np.array([counts[p.key] if t == name else 0 for t, p in classes], dtype=np.int64)
        choices.append(LayoutChoice(vector, best, len(now) - len(set(best) & set(now))))
    return tuple(choices)


class LayoutProgram(Program):
    """How many GPUs of each group take each layout, with the least penalty of draining.

    The first columns are layouts, and each GPU takes one.
    A gain is a negative cost, so that ``-Solution.bound`` is what no decision exceeds.
    """

    def __init__(self, problem: MigProblem) -> None:
        super().__init__()
        self._groups = problem.groups
        self._counts = np.array([choice.counts for group in problem.groups for choice in group.choices], dtype=float)
        self.penalties: Floats = problem.drain_penalty * np.array(
            [choice.drained for group in problem.groups for choice in group.choices], dtype=float
        )
        self._ends = np.cumsum([len(group.choices) for group in self._groups])
        for group, penalties in zip(problem.groups, np.split(self.penalties, self._ends[:-1]), strict=True):
            size = len(group.members)
            self.row(self.columns(penalties, high=size, whole=True), np.ones(len(penalties)), size, size)

    def supply(self, prices: Floats) -> tuple[Ints, Floats]:
        """Return columns and values that add up to ``prices @ totals``, the worth of all instances."""
        return np.arange(len(self._counts)), self._counts @ prices

    def picked(self, x: Floats) -> list[list[int]]:
        """Return how many GPUs of each group take each layout in the solution *x*."""
        return [part.tolist() for part in np.split(np.rint(x[: self._ends[-1]]).astype(int), self._ends[:-1])]

    def parts(self, x: Floats) -> tuple[Floats, Floats]:
        """Return how many GPUs take each layout in *x*, in parts, and how many instances of each class that makes."""
        numbers = np.maximum(x[: self._ends[-1]], 0.0)
        supply = self._counts.T @ numbers
        return numbers, np.where(supply > LEAST, supply, 0.0)

    def rounded(self, numbers: Floats) -> list[list[int]]:
        """Return whole numbers of GPUs near *numbers*, as many in each group: the largest remainders are rounded up."""
        picked = []
        for group, part in zip(self._groups, np.split(numbers, self._ends[:-1]), strict=True):
            down = np.floor(part + LEAST)
            missing = len(group.members) - int(down.sum())
            down[np.argsort(down - part, kind="stable")[:missing]] += 1
            picked.append(down.astype(int).tolist())
        return picked

    def solve(self, time_limit_s: float | None = None, gap: float = 1e-10) -> Solution:
        """Solve to a relative *gap*; raises ``SolverError`` if HiGHS fails."""
        return self.minimise(time_limit_s=time_limit_s, gap=gap)
