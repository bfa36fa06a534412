"""The validation of ANDREAS on ARMIDA (section V-C): three nodes of Table II, the eight jobs of Table V.

Table V's due dates count from submission: J1 is submitted at 6,000 s with 5,600 in the due-date column, so an absolute
date would lie before it, while the paper says that all jobs were completed within their due dates. Run times and power
are ours, see ``families``; tardiness weights are the paper's times ``WEIGHT_EUR_S``. The nodes are taken to stay on.
"""

from __future__ import annotations

from typing import NamedTuple

from commonwatt.data.generators.families import FAMILIES, WEIGHT_EUR_S, node
from commonwatt.model.electricity import Electricity
from commonwatt.model.nodes import NodeSpec
from commonwatt.model.scenario import JobsWorkload, PolicySpec, Scenario, ScenarioJob, UnusedNodes

__all__ = ["NODES", "TABLE_V", "Row", "armida_scenario"]


class Row(NamedTuple):
    """A row of Table V."""

    job: str
    application: str
    epochs: int
    batch_size: int
    submit_s: float  # S_j
    due_after_s: float  # d_j, from submission
    weight: int  # omega_j


TABLE_V = (
    Row("J6", "EfficientNet", 80, 4096, 0, 3600, 4),
    Row("J9", "ConvNet", 160, 8192, 1200, 2600, 2),
    Row("J10", "ConvNet", 80, 8192, 2400, 7600, 3),
    Row("J7", "LSTM-big", 160, 8192, 3600, 17600, 3),
    Row("J8", "LSTM-small", 160, 8192, 4800, 7600, 3),
    Row("J1", "LSTM-big", 60, 8192, 6000, 5600, 5),
    Row("J2", "LSTM-small", 60, 8192, 7200, 12600, 2),
    Row("J3", "EfficientNet", 60, 4096, 8400, 11600, 1),
)

NODES: tuple[NodeSpec, ...] = (  # Table II; armida-04 only profiled
    node("armida-05", "V100", 1),
    node("armida-06", "V100", 2),
    node("armida-07", "T4", 1),
)


def armida_scenario(policies: tuple[PolicySpec, ...] = (PolicySpec(solver="random-greedy"),)) -> Scenario:
    """Return the experiment as a scenario: H = 300 s, rho = 100, 0.172 EUR/kWh, PUE 1.33."""
    return Scenario(
        name="armida",
        workload=JobsWorkload(source="jobs", jobs=tuple(_job(row) for row in TABLE_V)),
        nodes=NODES,
        electricity=Electricity(price_per_kwh=0.172, pue=1.33, currency="EUR"),
        interval_s=300.0,
        postponement_penalty=100.0,
        unused_nodes=UnusedNodes(state=None),
        policies=policies,
    )


def _job(row: Row) -> ScenarioJob:
    family = FAMILIES[row.application]
    most = {"V100": 2, "T4": 1}
    return ScenarioJob(
        name=row.job,
        submit_s=row.submit_s,
        due_s=row.submit_s + row.due_after_s,
        tardiness_weight=row.weight * WEIGHT_EUR_S,
        times_s={
            gpu_type: {g: family.time_s(gpu_type, g, row.epochs, row.batch_size) for g in range(1, gpus + 1)}
            for gpu_type, gpus in most.items()
        },
        epochs=row.epochs,
    )
