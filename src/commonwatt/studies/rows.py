"""The scenarios of a study: each row differs from the conservative one by the steps it takes, and by nothing else.

And the scheduler of today by Slurm's configuration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from commonwatt.data.readers.slurm import duration_s
from commonwatt.model.errors import InputError
from commonwatt.model.scenario import Knowledge, LogWorkload, PolicySpec, Scenario
from commonwatt.model.study_file import StepName, StudyFile, StudyWorkload

__all__ = ["BASELINE", "SlurmPreemption", "StudyRow", "configured", "preemption_of", "rows_of", "scenario_of"]

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


# -- today's scheduler, by ``scontrol show config``

_BESIDE_AGE = {"fair_share_weight": "FairShare", "size_weight": "JobSize", "qos_weight": "QOS"}
_LITTLE = (
    1e-6  # weight of age beside the least other, where it has none: of equals, Slurm takes the one that came first
)
_FOR_EVER_S = 1e12
_DEPTHS = {"bf_max_job_test": 500, "default_queue_depth": 100}  # of Slurm, where nothing is said


@dataclass(frozen=True)
class SlurmPreemption:
    """What Slurm's configuration says of preemption, for QOS that do not say so themselves."""

    by_qos: bool
    mode: str
    exempt_s: float
    notes: tuple[str, ...] = ()


def configured(spec: PolicySpec, config: Mapping[str, str], path: Path) -> tuple[PolicySpec, tuple[str, ...]]:
    """Return *spec*, a baseline, with the weights of *config*, and what of them is not modelled.

    Raises ``InputError`` on a value that cannot be one.
    """
    notes, multifactor = list[str](), config["PriorityType"].endswith("multifactor")
    weights = {name: _weight(config, key, path) if multifactor else 0 for name, key in _BESIDE_AGE.items()}
    if weights["size_weight"] and config.get("PriorityFavorSmall", "No").casefold() == "yes":
        weights["size_weight"] = 0
        notes.append("that small jobs come first (PriorityFavorSmall) is not modelled")
    age = _weight(config, "Age", path) if multifactor else 1
    unit = age or min((weight for weight in weights.values() if weight), default=1) * _LITTLE
    others = [key for key in ("Assoc", "Partition", "TRES") if config.get(f"PriorityWeight{key}", "0") not in ("", "0")]
    if others and multifactor:
        notes.append(f"not modelled of the priority: {', '.join(f'PriorityWeight{key}' for key in others)}")
    if not config.get("SchedulerType", "sched/backfill").endswith("backfill"):
        notes.append(f"SchedulerType {config['SchedulerType']} is taken for sched/backfill")
    found = {name: re.search(rf"\b{name}=(\d+)", config["SchedulerParameters"]) for name in _DEPTHS}
    depth = max(int(told[1]) if (told := found[name]) else usual for name, usual in _DEPTHS.items())
    update = {
        **{name: weight / unit for name, weight in weights.items()}, "solver": "fair-share",
        "half_life_s": _time_s(config, "PriorityDecayHalfLife", path, 7 * 86400.0) or _FOR_EVER_S,
        "max_age_s": _time_s(config, "PriorityMaxAge", path, 7 * 86400.0) or 1.0, "backfill_depth": max(1, depth),
    }  # fmt: skip
    return spec.model_copy(update=update), tuple(notes)


def preemption_of(config: Mapping[str, str], path: Path) -> SlurmPreemption:
    """Return what *config* says of preemption; raises ``InputError``."""
    by_qos = config.get("PreemptType", "preempt/none").endswith("/qos")
    mode = config.get("PreemptMode", "OFF").casefold().partition(",")[0]
    notes = []
    if "youngest_first" in config["SchedulerParameters"] + config.get("PreemptParameters", "") and by_qos:
        notes.append("that the youngest are preempted first is not modelled: those of the lowest priority are")
    exempt_s = _time_s(config, "PreemptExemptTime", path, 0.0)
    return SlurmPreemption(by_qos and mode != "off", mode, exempt_s, tuple(notes))


def _weight(config: Mapping[str, str], key: str, path: Path) -> int:
    name = f"PriorityWeight{key}"
    if not (value := config.get(name, "0")).isdecimal():
        raise InputError("a whole number, 0 or more", file=path, field=name, value=value)
    return int(value)


def _time_s(config: Mapping[str, str], name: str, path: Path, usual_s: float) -> float:
    if (value := config.get(name, "")) in ("", "NONE", "-1"):
        return usual_s
    try:
        return duration_s(value)
    except ValueError:
        raise InputError("a time, such as 7-00:00:00", file=path, field=name, value=value) from None
