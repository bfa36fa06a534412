"""The goal of a problem file, its jobs by name or number, as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commonwatt.mapping.goal import Goal, Precedence
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError

if TYPE_CHECKING:
    from commonwatt.model.map_file import MapFile

__all__ = ["fixed_of", "goal_of"]


class _Names:
    """Jobs by name, else by number from 0."""

    def __init__(self, names: tuple[str, ...], jobs: int) -> None:
        if names and len(names) != jobs:
            raise InputError(f"one for each of the {jobs} jobs", field="names", value=f"{len(names)} of them")
        self.jobs, self.of = jobs, {name: j for j, name in enumerate(names)}
        if len(self.of) < len(names):
            twice = next(name for j, name in enumerate(names) if self.of[name] != j)
            raise InputError("each name once", field="names", value=twice)

    def index(self, name: str, field: str) -> int:
        if name in self.of:
            return self.of[name]
        if name.isascii() and name.isdigit() and int(name) < self.jobs:
            return int(name)
        said = f"a job from 0 to {self.jobs - 1}" + (" or one of 'names'" if self.of else "")
        raise InputError(said, field=field, value=name)


def goal_of(file: MapFile, jobs: int, *, has_energy: bool, names: tuple[str, ...] = ()) -> Goal:
    """Return the goal of a file of so many jobs; *names* are theirs if the file gives none.

    Raises ``InputError`` for jobs and tenants there are not, cyclic dependencies, and an objective without its keys.
    """
    known = _Names(file.names or names, jobs)
    if file.objective in {"energy", "edp"} and not has_energy:
        expected = f"energies with the objective {file.objective}, as 'table.energy_nj'"
        raise InputError(expected, field="objective", value=file.objective)
    if file.objective == "satisfaction" and file.order is None:
        expected = "a target order with the objective satisfaction, as 'order'"
        raise InputError(expected, field="objective", value=file.objective)
    return Goal(
        objective=file.objective,
        precedence=_precedence(file, known),
        tenant=_tenants(file, jobs),
        weights=_weights(file),
        tail=file.tail,
        place=_places(file, known),
        target_cycles=np.inf if file.target_cycles is None else file.target_cycles,
    )


def _precedence(file: MapFile, known: _Names) -> Precedence:
    after: list[list[int]] = [[] for _ in range(known.jobs)]
    if file.after == "tenant":
        if file.tenants is None:
            raise InputError("'tenants' with 'after: tenant'", field="after", value="tenant")
        last: dict[str, int] = {}
        for j, tenant in enumerate(file.tenants[: known.jobs]):
            after[j] = [last[tenant]] if tenant in last else []
            last[tenant] = j
    elif file.after is not None:
        for name, earlier in file.after.items():
            j = known.index(name, f"after.{name}")
            after[j] += [known.index(other, f"after.{name}.{i}") for i, other in enumerate(earlier)]
    return Precedence.of(known.jobs, after)


def _tenants(file: MapFile, jobs: int) -> Ints:
    if file.tenants is None:
        return np.zeros(0, dtype=np.int64)
    if len(file.tenants) != jobs:
        raise InputError(f"one for each of the {jobs} jobs", field="tenants", value=f"{len(file.tenants)} of them")
    number = {tenant: t for t, tenant in enumerate(dict.fromkeys(file.tenants))}
    return np.array([number[tenant] for tenant in file.tenants], dtype=np.int64)


def _weights(file: MapFile) -> Floats:
    tenants = list(dict.fromkeys(file.tenants or ("",)))
    for tenant in file.weights:
        if tenant not in tenants or file.tenants is None:
            raise InputError("a tenant of 'tenants'", field=f"weights.{tenant}", value=tenant)
    return np.array([file.weights.get(tenant, 1.0) for tenant in tenants])


def _places(file: MapFile, known: _Names) -> Ints:
    if file.order is None:
        return np.zeros(0, dtype=np.int64)
    jobs = [known.index(name, f"order.{i}") for i, name in enumerate(file.order)]
    place = np.full(known.jobs, -1, dtype=np.int64)
    for i, j in enumerate(jobs):
        if place[j] >= 0:
            raise InputError("each job once", field=f"order.{i}", value=file.order[i])
        place[j] = i
    if len(jobs) < known.jobs:
        raise InputError(f"all {known.jobs} jobs", field="order", value=f"none for job {int(np.argmin(place))}")
    return place


def fixed_of(file: MapFile, latency: Floats) -> tuple[Ints, Floats]:
    """Return the sub-accelerator each job is bound to, -1 if to none, and its priority, NaN if free.

    Raises ``InputError`` where a job is bound to a sub-accelerator that there is not, or that it cannot run on.
    """
    if file.fixed is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    jobs, accelerators = latency.shape
    for name, genes in (("accelerator", file.fixed.accelerator), ("priority", file.fixed.priority)):
        if genes is not None and len(genes) != jobs:
            expected = f"one entry for each of the {jobs} jobs"
            raise InputError(expected, field=f"fixed.{name}", value=f"{len(genes)} of them")
    at = np.array([-1 if a is None else a for a in file.fixed.accelerator or (None,) * jobs], dtype=np.int64)
    for j, a in enumerate(at.tolist()):
        if a >= accelerators or (a >= 0 and not np.isfinite(latency[j, a])):
            there = ", ".join(map(str, np.flatnonzero(np.isfinite(latency[j])).tolist()))
            raise InputError(
                f"a sub-accelerator job {j} can run on ({there}), or null", field=f"fixed.accelerator.{j}", value=a
            )
    priority = [np.nan if p is None else p for p in file.fixed.priority or (None,) * jobs]
    return at, np.array(priority, dtype=np.float64)
