"""All policies of a scenario, and all seeds, side by side."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from commonwatt import __version__
from commonwatt.model.errors import MissingExtraError
from commonwatt.model.jobs import JobTable
from commonwatt.model.nodes import Cluster
from commonwatt.model.results import PolicyResult, SimulationResult, Spread, SweepPolicy, SweepResult
from commonwatt.model.scenario import PolicySpec, Scenario
from commonwatt.placement.lower_bound import job_bound, load_bound
from commonwatt.simulation.capacity import Past
from commonwatt.simulation.compose import run_policy, slowdowns
from commonwatt.simulation.record import Record
from commonwatt.simulation.summary import record_of
from commonwatt.simulation.warm import warm_up

__all__ = ["Backend", "Listener", "Prepared", "run_seeds", "sweep_result"]

Backend = Literal["loky", "ray"]
T = TypeVar("T")

LOAD_BOUND_ROWS = 500  # configurations up to which the sharper bound takes seconds
SPREAD_OF = (
    "energy_kwh", "energy_cost", "tardiness_cost", "total_cost", "lower_bound_cost", "late_jobs", "mean_jct_s",
    "p95_jct_s", "mean_wait_s", "makespan_s", "preemptions", "migrations", "gpu_utilization",
)  # fmt: skip


class Listener(Protocol):
    """Hears how far the runs are."""

    def at(self, policy: str, time_s: float) -> None:
        """Hear that a run has come to *time_s*; only from runs in this process."""
        ...

    def done(self) -> None:
        """Hear that a run has ended."""
        ...


@dataclass(frozen=True)
class Prepared:
    """A scenario with its jobs and cluster made for one seed."""

    scenario: Scenario
    cluster: Cluster
    table: JobTable
    sentence: str  # where the jobs come from
    seed: int
    past: Past = field(default_factory=Past)

    def digest(self) -> str:
        """SHA-256 of the scenario, wherever its log lies, of the jobs it led to and of the models it forecasts by."""
        said = self.scenario.model_dump(mode="json", exclude={"workload": {"path"}})
        sha = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
        for column in vars(self.table).values():
            sha.update(column.tobytes() if isinstance(column, np.ndarray) else repr(column).encode())
        for demand in self.past.demands.values():
            sha.update(demand.gpus.tobytes())
        for content in self.past.models.values():
            sha.update(content.encode())
        return sha.hexdigest()

    def lower_bound(self) -> float:
        """Lower bound on total cost; the sharper, dearer one where its program stays small."""
        tariff = self.scenario.electricity.tariff()
        slowdown = slowdowns(self.scenario, len(self.table), self.seed)
        if len(self.table.config_time_s) <= LOAD_BOUND_ROWS:
            return load_bound(self.table, self.cluster, tariff, slowdown)
        return float(job_bound(self.table, self.cluster, tariff, slowdown).sum())


def run_seeds(
    prepared: Sequence[Prepared], *, jobs: int = 1, backend: Backend = "loky", listener: Listener | None = None
) -> tuple[list[SimulationResult], list[Record]]:
    """Run every policy of every prepared seed, *jobs* at a time.

    Returns one result per seed, and the records of the first seed. Neither depends on *jobs* or *backend*.
    """
    if backend == "ray":
        _register_ray()
    bounds = _parallel([(Prepared.lower_bound, (p,)) for p in prepared], jobs, backend)
    runs = [
        (p, spec, bound, k == 0)
        for k, (p, bound) in enumerate(zip(prepared, bounds, strict=True))
        for spec in p.scenario.policies
    ]
    if jobs == 1 or len(runs) == 1:
        finished: Iterable[Record | PolicyResult] = (_one(*run, listener) for run in runs)
    else:
        finished = _stream([(_one, run) for run in runs], jobs, backend)
    records: list[Record] = []
    results: list[list[PolicyResult]] = [[] for _ in prepared]
    for k, outcome in enumerate(finished):
        if isinstance(outcome, Record):
            records.append(outcome)
        results[k // len(prepared[0].scenario.policies)].append(
            outcome.result if isinstance(outcome, Record) else outcome
        )
        if listener is not None:
            listener.done()
    return [_result(p, own) for p, own in zip(prepared, results, strict=True)], records


def _one(
    prepared: Prepared, spec: PolicySpec, bound: float, keep: bool, listener: Listener | None = None
) -> Record | PolicyResult:
    label = spec.label
    on_tick = (lambda _: None) if listener is None else (lambda time_s: listener.at(label, time_s))
    warm_up(spec)
    run = run_policy(prepared.scenario, spec, prepared.cluster, prepared.table, prepared.seed, on_tick, prepared.past)
    record = record_of(run, label, prepared.table, bound)
    return record if keep else record.result


def _parallel(tasks: list[tuple[Callable[..., T], tuple[Any, ...]]], jobs: int, backend: Backend) -> list[T]:
    if jobs == 1 or len(tasks) == 1:
        return [function(*arguments) for function, arguments in tasks]
    return list(_stream(tasks, jobs, backend))


def _register_ray() -> None:
    try:
        from ray.util.joblib import register_ray
    except ImportError:
        raise MissingExtraError("ray", "ray") from None
    register_ray()


def _stream(tasks: list[tuple[Callable[..., T], tuple[Any, ...]]], jobs: int, backend: Backend) -> Iterable[T]:
    """Results in the order of *tasks*, each as soon as it and those before it are there."""
    from joblib import Parallel, delayed, parallel_config

    calls = [delayed(function)(*arguments) for function, arguments in tasks]
    with parallel_config(backend=backend, n_jobs=jobs):
        if backend == "ray":  # its backend hands out results all at once
            yield from Parallel()(calls)
        else:
            yield from Parallel(return_as="generator")(calls)


def _result(prepared: Prepared, policies: list[PolicyResult]) -> SimulationResult:
    return SimulationResult(
        version=__version__,
        seed=prepared.seed,
        input_digest=prepared.digest(),
        scenario=prepared.scenario.name,
        workload=prepared.sentence,
        currency=prepared.scenario.electricity.currency,
        jobs=len(prepared.table),
        nodes=len(prepared.cluster),
        gpus=prepared.cluster.total_gpus,
        policies=tuple(policies),
    )


def sweep_result(runs: Sequence[SimulationResult]) -> SweepResult:
    """Mean and spread over the seeds of *runs*."""
    policies = []
    for k, first in enumerate(runs[0].policies):
        own = [run.policies[k] for run in runs]
        spreads = {name: _spread([getattr(result, name) for result in own]) for name in SPREAD_OF}
        policies.append(SweepPolicy(policy=first.policy, **spreads))
    return SweepResult(
        version=__version__,
        seed=runs[0].seed,
        seeds=tuple(run.seed for run in runs),
        input_digest=hashlib.sha256("".join(run.input_digest for run in runs).encode()).hexdigest(),
        scenario=runs[0].scenario,
        currency=runs[0].currency,
        policies=tuple(policies),
        runs=tuple(runs),
    )


def _spread(values: Sequence[float | None]) -> Spread:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return Spread(mean=None, sd=None)
    sd = float(np.std(known, ddof=1)) if len(known) > 1 else None
    return Spread(mean=float(np.mean(known)), sd=sd)
