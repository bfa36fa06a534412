"""All policies of a scenario, side by side."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from commonwatt import __version__
from commonwatt.model.jobs import JobTable
from commonwatt.model.nodes import Cluster
from commonwatt.model.results import SimulationResult
from commonwatt.model.scenario import PolicySpec, Scenario
from commonwatt.placement.lower_bound import job_bound, load_bound
from commonwatt.simulation.compose import run_policy, slowdowns
from commonwatt.simulation.record import Record
from commonwatt.simulation.summary import record_of

__all__ = ["Prepared", "simulate"]

LOAD_BOUND_ITEMS = 30_000


@dataclass(frozen=True)
class Prepared:
    """A scenario with its jobs and cluster made."""

    scenario: Scenario
    cluster: Cluster
    table: JobTable
    sentence: str  # where the jobs come from
    seed: int

    def digest(self) -> str:
        """SHA-256 of the scenario and of the jobs it led to."""
        sha = hashlib.sha256(json.dumps(self.scenario.model_dump(mode="json"), sort_keys=True).encode())
        for column in vars(self.table).values():
            sha.update(column.tobytes() if isinstance(column, np.ndarray) else repr(column).encode())
        return sha.hexdigest()


def lower_bound(prepared: Prepared) -> float:
    """Lower bound on total cost; the sharper, dearer one where the program stays small."""
    table, cluster = prepared.table, prepared.cluster
    tariff = prepared.scenario.electricity.tariff()
    slowdown = slowdowns(prepared.scenario, len(table), prepared.seed)
    if len(table.config_time_s) * 60 <= LOAD_BOUND_ITEMS:
        return load_bound(table, cluster, tariff, slowdown)
    return float(job_bound(table, cluster, tariff, slowdown).sum())


def _one(prepared: Prepared, spec: PolicySpec, bound: float, on_tick: Callable[[float], None] | None) -> Record:
    done = run_policy(
        prepared.scenario, spec, prepared.cluster, prepared.table, prepared.seed, on_tick or (lambda _: None)
    )
    return record_of(done, spec.label, prepared.table, bound)


def simulate(
    prepared: Prepared, *, jobs: int = 1, on_tick: Callable[[str, float], None] | None = None
) -> tuple[SimulationResult, Sequence[Record]]:
    """Run every policy of the scenario; *jobs* of them at a time, in processes of their own if more than 1.

    *on_tick* hears the policy and the simulated time after every rescheduling point; in other processes nobody listens.
    """
    bound = lower_bound(prepared)
    specs = prepared.scenario.policies
    if jobs == 1 or len(specs) == 1:
        records = []
        for spec in specs:
            listen = None if on_tick is None else (lambda t, label=spec.label: on_tick(label, t))
            records.append(_one(prepared, spec, bound, listen))
    else:
        from joblib import Parallel, delayed

        records = Parallel(n_jobs=jobs)(delayed(_one)(prepared, spec, bound, None) for spec in specs)
    result = SimulationResult(
        version=__version__,
        seed=prepared.seed,
        input_digest=prepared.digest(),
        scenario=prepared.scenario.name,
        workload=prepared.sentence,
        currency=prepared.scenario.electricity.currency,
        jobs=len(prepared.table),
        nodes=len(prepared.cluster),
        gpus=prepared.cluster.total_gpus,
        policies=tuple(record.result for record in records),
    )
    return result, records
