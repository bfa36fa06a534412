"""The scenarios of a study: each row differs from the conservative one by the steps it takes, and by nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from commonwatt.model.scenario import Knowledge, LogWorkload, PolicySpec, Scenario
from commonwatt.model.study_file import StepName, StudyFile, StudyWorkload

__all__ = ["BASELINE", "StudyRow", "rows_of", "scenario_of"]

BASELINE = "as today"
"""Name of the first row of the waterfall."""

ON_ITS_OWN: frozenset[StepName] = frozenset({"thrifty-type", "planning", "switching-off", "one-pool"})
"""Steps that the baseline can take; the others need a scheduler that plans."""

Kind = Literal["baseline", "alternative", "ours", "step", "alone"]


@dataclass(frozen=True)
class StudyRow:
    """One scenario of the study, with one policy.

    Attributes
    ----------
    kind
        ``step``: everything up to ``step``; ``alone``: that step without those before it.
    taken
        Steps that are in force.
    against
        Of ``alone``: the steps of the row it is compared with.
    """

    kind: Kind
    name: str
    policy: PolicySpec
    taken: frozenset[StepName]
    step: StepName | None = None
    against: frozenset[StepName] = frozenset()


def rows_of(file: StudyFile) -> list[StudyRow]:
    """Return every row of *file*; rows with equal scenarios are run once."""
    rows = [StudyRow("baseline", file.baseline.label, _policy(file, frozenset()), frozenset())]
    rows += [StudyRow("alternative", spec.label, _yardstick(spec), _type_choice(spec)) for spec in file.alternatives]
    rows.append(StudyRow("ours", file.ours.label, _policy(file, frozenset({"planning"})), frozenset({"planning"})))
    for step in file.steps:
        before: frozenset[StepName] = frozenset() if step in ON_ITS_OWN else frozenset({"planning"})
        upto = frozenset(file.steps[: file.steps.index(step) + 1])
        alone = before | {step}
        rows.append(StudyRow("step", step, _policy(file, upto), upto, step))
        rows.append(StudyRow("alone", step, _policy(file, alone), alone, step, before))
    return rows


def scenario_of(
    file: StudyFile, row: StudyRow, workload: StudyWorkload, *, names_types: bool, knowledge: Knowledge
) -> Scenario:
    """Return the scenario of *row* for one period of the log.

    *names_types* says whether the log tells which GPU type a job ran on. A job keeps that type unless a step relaxes
    it; without it, today's scheduler gives any type too.
    """
    taken = row.taken
    settings: dict[str, object] = {
        "malleable": "resizing" in taken,
        "other_types": "thrifty-type" in taken or not names_types,
        "largest_growth": file.largest_growth,
        "due_dates": file.due_dates,
    }
    if "one-pool" in taken and isinstance(workload, LogWorkload):
        settings["other_partitions"] = True
    return Scenario(
        name=file.name,
        workload=workload.model_copy(update=settings),
        nodes=file.nodes,
        gpu_types=file.gpu_types,
        tenants=file.tenants,
        qos=file.qos,
        associations=file.associations,
        electricity=file.electricity,
        interval_s=file.interval_s,
        preemption=file.preemption.model_copy(update={"allowed": "preemption" in taken}),
        unused_nodes=file.switched_off if "switching-off" in taken else file.unused_nodes,
        policies=(row.policy,),
        knowledge=knowledge,
        speed_error=file.speed_error,
    )


def _policy(file: StudyFile, taken: frozenset[StepName]) -> PolicySpec:
    """Return the baseline or ours, with what it may choose after the steps *taken*.

    Its name is left out, so that rows that differ by name alone are run once.
    """
    spec = file.ours if "planning" in taken else file.baseline
    stay_on = file.unused_nodes.state is None and "consolidation" not in taken
    update: dict[str, object] = {
        "name": None,
        "idle_power": "sunk" if stay_on else "counted",
        "price": "series" if "price" in taken and file.electricity.series else "mean",
        "preemption": None,
        "power_limits": file.power_limits if {"planning", "power-limits"} <= taken else (),
    }
    if "thrifty-type" in taken:
        update["gpu_type_choice"] = "thrifty"
    return spec.model_copy(update=update)


def _yardstick(spec: PolicySpec) -> PolicySpec:
    update: dict[str, object] = {"name": None, "preemption": None, "price": "mean"}
    if spec.solver == "srtf":  # means nothing without run times
        update["knowledge"] = "oracle"
    return spec.model_copy(update=update)


def _type_choice(spec: PolicySpec) -> frozenset[StepName]:
    """Steps an alternative takes: a thrifty one chooses the type, which users would see."""
    return frozenset({"thrifty-type"}) if spec.gpu_type_choice == "thrifty" else frozenset()
