"""Runs all policies and seeds of a scenario, in parallel."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Protocol, TypeVar, get_args

import numpy as np

from commonwatt import __version__
from commonwatt.control.policy import warm_up
from commonwatt.data.log import JobLog
from commonwatt.model.arrays import Floats
from commonwatt.model.errors import MissingExtraError
from commonwatt.model.fleet import Fleet, RequestLoad
from commonwatt.model.jobs import JobArrays
from commonwatt.model.nodes import Cluster, Hosts
from commonwatt.model.plugins import one
from commonwatt.model.policies import SOLVER_NAMES, SolverName
from commonwatt.model.results import PolicyResult, SimulationResult, Spread, SweepPolicy, SweepResult
from commonwatt.model.scenario import Knowledge, PolicySpec, Scenario
from commonwatt.model.study_results import RunService
from commonwatt.placement import lower_bound
from commonwatt.planning.capacity import Past
from commonwatt.simulation.record import KeptRuns, Record, code_digest
from commonwatt.simulation.run_setup import due_dates_move, packing_of, run_policy, slowdowns
from commonwatt.simulation.summary import record_of

__all__ = [
    "BACKENDS", "Backend", "Listener", "Prepared", "RunsInterruptedError", "document_of", "keys_of", "run_each",
    "run_seeds", "sweep_result", "warm_up_all", "workers_for",
]  # fmt: skip

Backend = Literal["loky", "ray"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
T = TypeVar("T")

FEW_JOBS = 1000
"""Up to so many jobs, of all runs together, other processes take longer to start than they save."""
_QUICK_SOLVERS = frozenset(get_args(SolverName)) - {"exact", "local-search"}

SPREAD_OF = (
    "energy_kwh", "energy_cost", "tardiness_cost", "total_cost", "lower_bound_cost", "late_jobs", "mean_jct_s",
    "p95_jct_s", "mean_wait_s", "longest_wait_s", "slowdown_p99", "window_energy_kwh", "window_cost",
    "makespan_s", "preemptions", "migrations", "gpu_utilization",
)  # fmt: skip


class Listener(Protocol):
    """Receives the progress of runs."""

    def at(self, policy: str, time_s: float) -> None:
        """Report that the run in this process has reached *time_s*."""
        ...

    def follow(self, times_s: Callable[[], Floats]) -> None:
        """Set the function that returns the times of runs in other processes; 0 before the start and after the end."""
        ...

    def done(self) -> None:
        """Report the end of a run."""
        ...


@dataclass(frozen=True)
class Prepared:
    """A scenario with its jobs and cluster for one seed."""

    scenario: Scenario
    cluster: Cluster
    table: JobArrays
    sentence: str  # source of the jobs
    seed: int
    past: Past = field(default_factory=Past)
    log: JobLog | None = None  # a row for each of the jobs, if they are from a log
    treatments: Mapping[str, int] = field(default_factory=dict)
    hosts: Hosts | None = None
    fleets: Mapping[str, Fleet] = field(default_factory=dict)  # by name of the policy
    speeds: str = ""  # source of how fast jobs of a log are on each GPU type

    def digest(self) -> str:
        """Return the SHA-256 of the scenario (without paths of its log and profiles), its jobs and forecast models."""
        paths: dict[str, Any] = {
            "workload": {"path": True, "jobs": {"__all__": {"profile"}}},
            "gpu_types": {"__all__": {"profile"}},
            "live": {"services"},  # of `serve` alone
        }
        document = _as_before(self.scenario.model_dump(mode="json", exclude=paths))
        if self.scenario.knowledge == "oracle":
            del document["knowledge"]
        sha = hashlib.sha256(json.dumps(document, sort_keys=True).encode())
        for name, column in vars(self.table).items():
            if name in _LATER and (column is None or not len(column)):  # not there before jobs had one
                continue
            sha.update(column.tobytes() if isinstance(column, np.ndarray) else repr(column).encode())
        for policy in self.scenario.policies:
            if (packing := packing_of(policy, self.cluster, self.table)) is not None:
                sha.update(repr(packing).encode())
        for past in (self.past, *self.past.pools.values()):
            for demand in past.demands.values():
                sha.update(demand.gpus.tobytes())
        for content in self.past.models.values():
            sha.update(content.encode())
        for fleet in self.fleets.values():
            sha.update(repr(fleet.jobs).encode())
            for service in fleet.services:
                sha.update(repr(service.types).encode())
                if isinstance(service.load, RequestLoad):
                    sha.update(service.load.rps.tobytes())
        return sha.hexdigest()

    def key(self, spec: PolicySpec) -> str:
        """Return the SHA-256 of all that decides the result of running *spec* alone, the code included."""
        alone = replace(self, scenario=self.scenario.model_copy(update={"policies": (spec,)}))
        plugin = one("solvers", spec.solver, SOLVER_NAMES)
        whose = "" if plugin is None else f" {plugin.sentence}"
        return hashlib.sha256(f"{__version__} {code_digest()} {self.seed} {alone.digest()}{whose}".encode()).hexdigest()

    def lower_bound(self) -> float:
        """Return the lower bound on total cost.

        Where a policy lets two jobs have the same GPUs, it is the bound of a cluster with two GPUs of half the power in
        place of each: two jobs on one GPU draw no less than the mean of what each draws alone, and are no faster.
        """
        tariff = self.scenario.electricity.tariff()
        slowdown = slowdowns(self.scenario, len(self.table), self.seed)
        table, dates = self.table, due_dates_move(self.scenario)
        if table.after and dates:  # they count from a time that depends on the policy
            free = np.array([bool(own) for own in table.after])
            weight = np.where(free, 0.0, table.tardiness_weight)
            table = replace(table, due_s=np.where(free, np.inf, table.due_s), tardiness_weight=weight)
        cluster = self.cluster
        if any(packing_of(policy, cluster, table) is not None for policy in self.scenario.policies):
            halved = [replace(kind, gpus=2 * kind.gpus, gpu_w=kind.gpu_w / 2) for kind in cluster.classes]
            cluster = replace(cluster, classes=tuple(halved))
            table = replace(table, config_gpu_w=table.config_gpu_w / 2)
        return lower_bound(table, cluster, tariff, slowdown)


_LATER = (
    "partition", "user", "qos", "priority", "cpus_per_gpu", "memory_gib_per_gpu", "after", "config_power_limit",
    "packing",
)  # fmt: skip
"""Columns of jobs added since 0.1.0."""
_ADDED: dict[str, object] = {
    "malleable": True, "other_types": True, "rule": "drawn", "limit_factor": 1.0, "preemption": None,
    "size_weight": 0.0, "max_age_s": 604800.0, "backfill_depth": 1000, "gpu_type_choice": "fastest",
    "idle_power": "counted", "price": "series", "work_conserving": False, "knowledge": None, "speed_error": 0.0,
    "gpu_types": {}, "host": None, "limits": None, "other_partitions": False, "partitions": [], "partition": "",
    "wait_for_price": None, "power_cap_w": None, "daily": {},
    "rounds": None, "first_start": False, "objective": "max-min",
    "queues_gpu_s": [3600.0, 36000.0], "restart_s": None, "iterations": None, "tail_power": 1.5, "slowdown_price": 0.0,
    "qos_weight": 0.0, "user": "", "fairness_power": None, "energy_budget": 1.5, "auction": False, "resize": False,
    "fairness_knob": 0.8,
    "cpus": None, "memory_gib": None, "cpus_per_gpu": None, "memory_gib_per_gpu": None,
    "services": [], "fractional": None, "sharing": None, "share": [], "platform": None, "fractions": "whole",
    "fairness": None, "model_file": None, "pools": None, "power_kw": None, "delay_price": None, "after": {},
    "associations": [], "max_gpus_of": {}, "max_gpus_per_account_of": {}, "max_gpus_per_user_of": {},
    "max_gpus_per_job": None, "max_gpus_per_job_of": {}, "preempts": [], "preempt_mode": "requeue", "exempt_s": 0.0,
    "grace_s": 0.0, "power_limits": [], "kind": "",
}  # fmt: skip
"""Fields added since 0.1.0 with their defaults: where they have these, the digest is that of a file without them."""


def _as_before(document: Any) -> Any:  # noqa: ANN401
    if isinstance(document, dict):
        kept = {key: value for key, value in document.items() if key not in _ADDED or value != _ADDED[key]}
        if not kept.get("qos", True):  # a list in a scenario, a name in a job
            del kept["qos"]
        if "submit_s" in kept and "known_s" in kept and kept["known_s"] is None:  # of a job, not of a policy
            del kept["known_s"]
        return {key: _as_before(value) for key, value in kept.items()}
    return [_as_before(value) for value in document] if isinstance(document, list) else document


class RunsInterruptedError(KeyboardInterrupt):
    """Ctrl-C during runs; *results* and *records* are those finished before, as of ``run_seeds``.

    Of one seed these are the policies that had ended; of several, the seeds of which every policy had.
    """

    def __init__(self, results: list[SimulationResult], records: list[Record]) -> None:
        self.results, self.records = results, records
        super().__init__()


def workers_for(prepared: Sequence[Prepared], jobs: int | None, backend: Backend = "loky", *, runs: int) -> int:
    """Return how many of the *runs* of *prepared* to do at a time: *jobs*, else one per CPU; one if all are short."""
    if jobs is None and backend == "loky" and _are_short(prepared):
        return 1
    return min(runs, jobs or os.cpu_count() or 1)


def _are_short(prepared: Sequence[Prepared]) -> bool:
    runs = [(p, spec) for p in prepared for spec in p.scenario.policies]
    return sum(len(p.table) for p, _ in runs) <= FEW_JOBS and all(
        spec.solver in _QUICK_SOLVERS
        and (spec.capacity is None or spec.capacity.forecaster == "last-value")
        and not p.fleets
        for p, spec in runs
    )


def run_seeds(
    prepared: Sequence[Prepared], *, jobs: int = 1, backend: Backend = "loky", listener: Listener | None = None,
    kept: KeptRuns | None = None,
) -> tuple[list[SimulationResult], list[Record]]:  # fmt: skip
    """Run every policy of every prepared seed, *jobs* at a time.

    Runs that end are *kept*, where there are several, and those kept by an earlier call are not run again. Returns one
    result per seed, and the records of the first seed. Neither depends on *jobs*, *backend* or what was kept. Raises
    ``RunsInterruptedError`` on Ctrl-C.
    """
    if backend == "ray":
        _register_ray()
    bounds = _parallel([(Prepared.lower_bound, (p,)) for p in prepared], jobs, backend)
    runs = [
        (p, spec, bound, _whole if k == 0 else _result_of)
        for k, (p, bound) in enumerate(zip(prepared, bounds, strict=True))
        for spec in p.scenario.policies
    ]
    keys = [""] * len(runs) if kept is None else keys_of(prepared)
    outcomes: dict[int, Any] = {}
    for k, (p, _, _, keep) in enumerate(runs):
        kept_run = kept.find(keys[k], p.cluster) if kept is not None and keys[k] else None
        if kept_run is not None and (isinstance(kept_run, Record) or keep is _result_of):
            outcomes[k] = keep(kept_run) if isinstance(kept_run, Record) else kept_run
    left = [k for k in range(len(runs)) if k not in outcomes]
    try:
        if listener is not None:
            for _ in outcomes:
                listener.done()
        todo: list[tuple[Prepared, PolicySpec, float, Callable[[Record], Any]]] = [runs[k] for k in left]
        for i, outcome in _finished(todo, jobs, backend, listener):
            outcomes[left[i]] = outcome
            if kept is not None and keys[left[i]]:
                kept.keep(keys[left[i]], outcome)
    except KeyboardInterrupt:
        raise RunsInterruptedError(*_collected(prepared, outcomes)) from None
    return _collected(prepared, outcomes)


def document_of(results: Sequence[SimulationResult]) -> SimulationResult | SweepResult:
    """Return the document of runs of one seed, or of several."""
    return results[0] if len(results) == 1 else sweep_result(list(results))


def keys_of(prepared: Sequence[Prepared]) -> list[str]:
    """Return what the runs of ``run_seeds`` are kept under, in order; empty: a single run is not kept."""
    keys = [p.key(spec) for p in prepared for spec in p.scenario.policies]
    return keys if len(keys) > 1 else [""]


def run_each(
    prepared: Sequence[Prepared], *, jobs: int = 1, listener: Listener | None = None
) -> Iterator[tuple[int, RunService]]:
    """Run the first policy of each of *prepared*, which may differ in everything; yields them as they finish.

    Yields the index into *prepared* and the result with what each job got; its lower bound is 0: it is not computed.
    """
    yield from _finished([(p, p.scenario.policies[0], 0.0, Record.service) for p in prepared], jobs, "loky", listener)


def _finished(
    runs: Sequence[tuple[Prepared, PolicySpec, float, Callable[[Record], T]]], jobs: int, backend: Backend,
    listener: Listener | None,
) -> Iterator[tuple[int, T]]:  # fmt: skip
    """Yield what is kept of each run as it ends, with its index."""
    with ExitStack() as stack:
        if jobs == 1 or len(runs) == 1:
            finished: Iterator[tuple[int, T]] = (
                (k, _one(*run, on_tick=_on_tick(listener, run[1].label))) for k, run in enumerate(runs)
            )
        else:
            board = Path(stack.enter_context(TemporaryDirectory())) / "times_s"
            np.zeros(len(runs)).tofile(board)
            if listener is not None:
                listener.follow(partial(np.fromfile, board))
            tasks = [(_elsewhere, (k, board, *run)) for k, run in enumerate(runs)]
            finished = _pool(tasks, jobs, backend, ordered=False)
        for k, outcome in finished:
            yield k, outcome
            if listener is not None:
                listener.done()


def _collected(
    prepared: Sequence[Prepared], outcomes: dict[int, Record | PolicyResult]
) -> tuple[list[SimulationResult], list[Record]]:
    """Return results of the seeds with all policies (of a single seed, any), and the records of the first seed."""
    policies = len(prepared[0].scenario.policies)
    results = []
    for s, p in enumerate(prepared):
        ended = [outcomes[k] for k in range(s * policies, (s + 1) * policies) if k in outcomes]
        if len(ended) == policies or (ended and len(prepared) == 1):
            results.append(_result(p, [run.result if isinstance(run, Record) else run for run in ended]))
        elif s == 0:
            return [], []
    records = [outcomes[k] for k in range(policies) if k in outcomes]
    return results, [record for record in records if isinstance(record, Record)]


def _on_tick(listener: Listener | None, label: str) -> Callable[[float], None]:
    return (lambda _: None) if listener is None else partial(listener.at, label)


def _elsewhere(
    k: int, board: Path, prepared: Prepared, spec: PolicySpec, bound: float, keep: Callable[[Record], T]
) -> tuple[int, T]:
    """Run in a process of a pool, which ignores Ctrl-C so that the parent can collect finished runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not board.exists():  # another machine
        return k, _one(prepared, spec, bound, keep)
    times_s = np.memmap(board, dtype=float, mode="r+")
    try:
        return k, _one(prepared, spec, bound, keep, on_tick=partial(times_s.__setitem__, k))
    finally:
        times_s[k] = 0.0


def _one(
    prepared: Prepared, spec: PolicySpec, bound: float, keep: Callable[[Record], T],
    on_tick: Callable[[float], None] = lambda _: None,
) -> T:  # fmt: skip
    warm_up(spec)
    run = run_policy(
        prepared.scenario, spec, prepared.cluster, prepared.table, prepared.seed, on_tick, prepared.past,
        hosts=prepared.hosts, fleet=prepared.fleets.get(spec.label),
    )  # fmt: skip
    return keep(record_of(run, spec.label, prepared.table, bound))


def _whole(record: Record) -> Record:
    return record


def _result_of(record: Record) -> PolicyResult:
    return record.result


def _parallel(tasks: list[tuple[Callable[..., T], tuple[Any, ...]]], jobs: int, backend: Backend) -> list[T]:
    if jobs == 1 or len(tasks) == 1:
        return [function(*arguments) for function, arguments in tasks]
    return list(_pool(tasks, jobs, backend, ordered=True))


def _register_ray() -> None:
    try:
        from ray.util.joblib import register_ray
    except ImportError:
        raise MissingExtraError("ray", "ray") from None
    register_ray()


def _pool(
    tasks: Sequence[tuple[Callable[..., T], tuple[Any, ...]]], jobs: int, backend: Backend, *, ordered: bool
) -> Iterator[T]:
    """Yield the results of *tasks*, in order or as they finish."""
    from joblib import Parallel, delayed, parallel_config

    calls = [delayed(function)(*arguments) for function, arguments in tasks]
    with parallel_config(backend=backend, n_jobs=jobs):
        if backend == "ray":  # returns all results at once
            yield from Parallel()(calls)
        else:
            yield from Parallel(return_as="generator" if ordered else "generator_unordered")(calls)


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
        treatments=dict(prepared.treatments),
        policies=tuple(policies),
    )


def sweep_result(runs: Sequence[SimulationResult]) -> SweepResult:
    """Return mean and spread over the seeds of *runs*."""
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
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        return Spread(mean=None, sd=None)
    sd = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None
    return Spread(mean=float(np.mean(numbers)), sd=sd)


def warm_up_all(specs: Iterable[PolicySpec], knowledge: Knowledge = "oracle") -> None:
    """Compile and load the code of each solver of *specs*, so that no process does what another does at that time.

    *knowledge* is the scenario's.
    """
    choices = [(spec, (spec.knowledge or knowledge) in ("oracle", "user-limit")) for spec in specs]
    for spec, certain in {(spec.solver, spec.aim, certain): (spec, certain) for spec, certain in choices}.values():
        warm_up(spec, certain=certain)
