"""A stream of batches: the next one is mapped while the one before runs.

Jobs that have ended are gone. A job that runs stays where it is and goes on first, with what is left of its latency by
the clock tau of ``decoder``: it has run at the fraction of full speed that bandwidth allowed. Jobs that have not begun
are decided again, together with the new ones. The search starts from the old places, new jobs longest first where they
end first, after what waits there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from commonwatt.mapping._encoding import Mapping
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._scoring import MappingTimeline, timeline
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError
from commonwatt.model.map_file import FixedMapping, MapFile, MapTable, Rows

__all__ = ["ContinuedMapping", "continue_mapping"]


class ContinuedMapping(NamedTuple):
    """What is to be mapped: jobs of the batch before come first. *start* is where a search may start from."""

    file: MapFile
    start: Mapping


class _Before(NamedTuple):
    """What is left of the batch before: its jobs by number, those that run, and their rows. Shapes [L], [L, A]."""

    file: MapFile
    problem: MappingProblem
    jobs: Ints
    runs: Ints  # sub-accelerator, -1 for jobs that wait
    left: Floats  # part of the latency
    priority: Floats
    accelerator: Ints


def continue_mapping(file: MapFile, before: MapFile, mapping: Mapping, at_cycles: float) -> ContinuedMapping:
    """Return the problem of mapping *file* at *at_cycles* of *mapping*, the running one of *before*.

    Both files have their job tables. Targets of the makespan count from *at_cycles* on; targets of tenants that only
    *before* names are shortened by it. Raises ``InputError`` if the two do not share their sub-accelerators and
    bandwidth, or have a target order.
    """
    old, new = MappingProblem.of(before), MappingProblem.of(file)
    if new.accelerators != old.accelerators:
        expected = f"{old.accelerators} sub-accelerators, as in the schedule that runs"
        raise InputError(expected, field="table.latency_cycles", value=new.accelerators)
    if new.system_bandwidth != old.system_bandwidth:
        expected = f"{old.system_bandwidth:g}, as in the schedule that runs"
        raise InputError(expected, field="system_bandwidth_gbs", value=new.system_bandwidth)
    if file.order is not None:
        raise InputError("no target order for a batch that follows a schedule", field="order", value="one")
    played = timeline(old, mapping)
    jobs = np.flatnonzero(played.end > at_cycles * (1 + 1e-12))
    runs = np.where(played.start[jobs] < at_cycles, mapping.accelerator[jobs], -1)
    part = np.array(
        [
            _left(old, played, mapping, int(j), at_cycles) if a >= 0 else 1.0
            for j, a in zip(jobs.tolist(), runs, strict=True)
        ]
    )
    rest = _Before(before, old, jobs, runs, part, mapping.priority[jobs], mapping.accelerator[jobs])
    return ContinuedMapping(_joined(file, new, rest, at_cycles), _start(new, rest))


def _left(problem: MappingProblem, played: MappingTimeline, mapping: Mapping, job: int, at_cycles: float) -> float:
    """Return the part of a running job's latency that is left at *at_cycles*."""
    speed = np.minimum(1.0, problem.system_bandwidth / np.maximum(played.requested, problem.system_bandwidth))
    low = np.maximum(played.edges[:-1], played.start[job])
    high = np.minimum(played.edges[1:], at_cycles)
    done = float((np.maximum(0.0, high - low) * speed).sum())
    return max(1e-9, 1.0 - done / problem.latency[job, mapping.accelerator[job]])


def _rows(table: Floats, possible: Floats) -> list[tuple[float | None, ...]]:
    return [
        tuple(value if can else None for value, can in zip(row, cans, strict=True))
        for row, cans in zip(table.tolist(), possible.tolist(), strict=True)
    ]


def _joined(file: MapFile, new: MappingProblem, rest: _Before, at_cycles: float) -> MapFile:
    old, jobs = rest.problem, rest.jobs
    assert isinstance(file.table, MapTable)
    assert isinstance(rest.file.table, MapTable)
    own = (rest.runs < 0)[:, None] | (np.arange(old.accelerators) == rest.runs[:, None])
    possible = own & old.possible[jobs]
    latency = _rows(np.where(possible, old.latency[jobs], 0.0) * rest.left[:, None], possible)
    bandwidth = _rows(old.bandwidth[jobs], possible)
    energy: Rows | None = None
    if file.table.energy_nj is not None and rest.file.table.energy_nj is not None:
        energy = (*_rows(old.energy[jobs] * rest.left[:, None], possible), *file.table.energy_nj)
    names = [str(j) for j in range(len(new))] if file.names is None else list(file.names)
    earlier = _named(rest, set(names))
    return file.model_copy(
        update={
            "table": MapTable(
                latency_cycles=(*latency, *file.table.latency_cycles),
                bandwidth_gbs=(*bandwidth, *file.table.bandwidth_gbs),
                energy_nj=energy,
            ),
            "names": (*earlier, *names),
            "after": _after(new, rest, names, earlier),
            **_tenants(file, rest, len(new), at_cycles),
            "fixed": _fixed(new, rest),
        }
    )


def _named(rest: _Before, taken: set[str]) -> list[str]:
    """Return the names of earlier jobs, with as many primes as make them differ from the new ones."""
    names, new_names = rest.file.names, []
    for j in rest.jobs.tolist():
        name = str(j) if names is None else names[j]
        while name in taken:
            name += "'"
        taken.add(name)
        new_names.append(name)
    return new_names


def _after(
    new: MappingProblem, rest: _Before, names: list[str], earlier: list[str]
) -> dict[str, tuple[str, ...]] | None:
    after: dict[str, list[str]] = {}
    for graph, of in (
        (rest.problem.goal.precedence, dict(zip(rest.jobs.tolist(), earlier, strict=True))),
        (new.goal.precedence, dict(enumerate(names))),
    ):
        for j, name in of.items():
            for k in graph.after(j):
                after.setdefault(of[k], []).append(name)
    return {name: tuple(others) for name, others in after.items()} or None


def _tenants(file: MapFile, rest: _Before, jobs: int, at_cycles: float) -> dict[str, object]:
    if file.tenants is None and rest.file.tenants is None:
        return {}
    old = ["-"] * len(rest.jobs) if rest.file.tenants is None else [rest.file.tenants[j] for j in rest.jobs.tolist()]
    tenants = (*old, *(file.tenants or ("-",) * jobs))
    left = {name: max(1e-6, target - at_cycles) for name, target in rest.file.targets.items()}
    return {
        "tenants": tenants,
        "weights": {name: w for name, w in {**rest.file.weights, **file.weights}.items() if name in tenants},
        "targets": {name: t for name, t in {**left, **file.targets}.items() if name in tenants},
    }


def _fixed(new: MappingProblem, rest: _Before) -> FixedMapping:
    """Return where running jobs are, first of all, and what the problems fix."""
    jobs, old = rest.jobs, rest.problem
    at = np.where(rest.runs >= 0, rest.runs, old.fixed[jobs] if len(old.fixed) else -1)
    priority = old.priority[jobs] if len(old.priority) else np.full(len(jobs), np.nan)
    theirs = new.priority if len(new.priority) else np.full(len(new), np.nan)
    first = np.nanmin(np.concatenate([[0.0], rest.priority, priority, theirs])) - 1.0
    priority = np.where(rest.runs >= 0, first, priority)
    places = [*at.tolist(), *(new.fixed.tolist() if len(new.fixed) else [-1] * len(new))]
    values = [*priority.tolist(), *theirs.tolist()]
    return FixedMapping(
        accelerator=tuple(None if a < 0 else a for a in places),
        priority=tuple(None if np.isnan(p) else p for p in values),
    )


def _start(new: MappingProblem, rest: _Before) -> Mapping:
    """Return old places with the new jobs behind them."""
    load = np.zeros(new.accelerators)
    np.add.at(load, rest.accelerator, rest.left * rest.problem.latency[rest.jobs, rest.accelerator])
    accelerator, priority = np.zeros(len(new), dtype=np.int64), np.zeros(len(new))
    last = max(1.0, float(rest.priority.max(initial=0.0)))
    for turn, j in enumerate(np.argsort(-new.alone.min(axis=1), kind="stable").tolist()):
        a = int(np.argmin(load + new.latency[j]))
        accelerator[j], priority[j] = a, last + turn + 1.0
        load[a] += new.latency[j, a]
    first = float(rest.priority.min(initial=0.0)) - 1.0
    earlier = np.where(rest.runs >= 0, first, rest.priority)
    return Mapping(np.concatenate([rest.accelerator, accelerator]), np.concatenate([earlier, priority]))
