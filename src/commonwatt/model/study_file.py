"""The study file: a log, the cluster it ran on, and what is compared on it (``commonwatt study``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from commonwatt.model.accounting import AssociationSpecs, QosSpecs
from commonwatt.model.electricity import Electricity
from commonwatt.model.errors import FieldError
from commonwatt.model.fields import FileModel, FileVersion, quantity
from commonwatt.model.jobs import Tenant
from commonwatt.model.nodes import GpuTypeSpec, NodeSpecs
from commonwatt.model.policies import PowerLimits
from commonwatt.model.scenario import DueDates, LogWorkload, PolicySpec, Preemption, UnusedNodes, WeekWorkload

__all__ = ["STEPS", "StepName", "StudyFile", "StudyKnowledge", "StudyWorkload", "left_to_study", "refuse_set"]

StepName = Literal[
    "thrifty-type", "planning", "consolidation", "switching-off", "resizing", "preemption", "price", "one-pool",
    "power-limits",
]  # fmt: skip
STEPS: tuple[StepName, ...] = (
    "thrifty-type", "planning", "consolidation", "switching-off", "resizing", "preemption", "price",
)  # fmt: skip
"""Steps of the waterfall, in the order of the default."""

SET_BY_STUDY = {
    "workload.malleable": "the step resizing of `steps`", "workload.other_types": "the step thrifty-type of `steps`",
    "workload.due_dates": "`due_dates` of the study", "workload.largest_growth": "`largest_growth` of the study",
    "preemption.allowed": "the step preemption of `steps`",
    **{
        f"{policy}.{field}": f"the step {step} of `steps`"
        for policy in ("baseline", "ours")
        for field, step in (
            ("idle_power", "consolidation"), ("price", "price"), ("preemption", "preemption"),
            ("power_limits", "power-limits"),
        )
    },
}  # fmt: skip
"""Fields of scenarios that a study file may not have, and what stands in for them."""

StudyKnowledge = Literal["auto", "oracle", "user-limit", "predicted", "none"]
StudyWorkload = Annotated[LogWorkload | WeekWorkload, Field(discriminator="source")]


def _runs_today() -> PolicySpec:
    return PolicySpec(solver="fair-share", name="as today")


def _alternatives() -> tuple[PolicySpec, ...]:
    return (
        PolicySpec(solver="easy", name="EASY"),
        PolicySpec(solver="easy", name="thrifty EASY", gpu_type_choice="thrifty", idle_power="sunk"),
        PolicySpec(solver="srtf", name="SRTF"),
    )


def _ours() -> PolicySpec:
    return PolicySpec(solver="lookahead", name="commonwatt", work_conserving=True)


def _off() -> UnusedNodes:
    return UnusedNodes(state="off", after_s=600.0)


def _on() -> UnusedNodes:
    return UnusedNodes(state=None)


class StudyFile(FileModel):
    """A study: what another scheduler would have saved, first with every job as its owner asked for it.

    Jobs keep their size, and the GPU type their log names, and are never stopped; how long they wait may change. The
    steps of the waterfall relax that, one after the other.
    """

    version: FileVersion = quantity("version of this format", "-", 1)
    name: str = quantity("name of the study", "-", "study", min_length=1)
    workload: StudyWorkload = quantity(
        "the log; `malleable`, `other_types` and `due_dates` are set by the study, not here"
    )
    nodes: NodeSpecs = quantity("the nodes", min_length=1)
    gpu_types: dict[str, GpuTypeSpec] = quantity(
        "GPU types by name: speed relative to another type or a profile, and power; needed for unknown types",
        "-", dict,
    )  # fmt: skip
    tenants: tuple[Tenant, ...] = quantity("tenants with a weight other than 1", "-", ())
    qos: QosSpecs = quantity(
        "qualities of service, whose limits hold for every scheduler; priority counts for the baseline", "-", ()
    )
    associations: AssociationSpecs = quantity(
        "accounts and their users, whose limits hold for every scheduler; by their shares tenants weigh that have no "
        "weight in `tenants`", "-", (),
    )  # fmt: skip
    electricity: Electricity = quantity("price and carbon intensity of electricity", "-", Electricity)
    interval_s: float = quantity(
        "time between rescheduling points, besides submissions and completions", "s", 300.0, gt=0
    )
    weeks: int = quantity(
        "periods of the workload's `days`, one after the other from its `begin`", "-", 1, ge=1, le=520
    )
    seeds: int = quantity("seeds of each period; what is drawn differs between them", "-", 1, ge=1, le=1000)
    knowledge: StudyKnowledge = quantity(
        "what the schedulers know of run times; auto: the declared limits where the log has them, else predictions "
        "from its past",
        "-", "auto",
    )  # fmt: skip
    speed_error: float = quantity(
        "standard deviation of the logarithm of true over believed relative speed of a configuration that was not "
        "requested",
        "-", 0.0, ge=0, le=2,
    )  # fmt: skip
    due_dates: DueDates | Literal["none"] = quantity("due dates, if there are any", "-", "none")
    unused_nodes: UnusedNodes = quantity("what unused nodes do today", "-", _on)
    baseline: PolicySpec = quantity("what the cluster runs today, with its own weights", "-", _runs_today)
    alternatives: tuple[PolicySpec, ...] = quantity(
        "other schedulers that could run there today; srtf is run with known run times", "-", _alternatives
    )
    ours: PolicySpec = quantity("the scheduler under study", "-", _ours)
    steps: tuple[StepName, ...] = quantity("steps of the waterfall, in their order", "-", STEPS)
    switched_off: UnusedNodes = quantity("what unused nodes do from the step switching-off on", "-", _off)
    largest_growth: float = quantity(
        "largest number of GPUs of a job from the step resizing on, as a multiple of its request", "-", 2.0, ge=1
    )
    power_limits: PowerLimits = quantity(
        "power limits of GPUs that may be set for a job from the step power-limits on, as parts of their highest", "-",
        (0.6, 0.8),
    )  # fmt: skip
    assumed: tuple[str, ...] = quantity("what was assumed when this file was drafted; shown in the report", "-", ())
    preemption: Preemption = quantity("cost of stopping and moving a job, from the step preemption on", "-", Preemption)

    @model_validator(mode="after")
    def _check(self) -> StudyFile:
        for path, instead in SET_BY_STUDY.items():
            name, field = path.split(".")
            part = getattr(self, name)
            if (value := getattr(part, field)) != _usual(type(part), field):
                raise FieldError(f"nothing here: {instead} says that", field=path, value=value)
        if len(set(self.steps)) < len(self.steps):
            twice = next(step for step in self.steps if self.steps.count(step) > 1)
            raise FieldError("each step once", field="steps", value=f"{twice!r} twice")
        needed = {"consolidation", "resizing", "preemption", "price", "power-limits"} & set(self.steps)
        if needed and "planning" not in self.steps:
            raise FieldError(f"planning too, as the baseline knows no {sorted(needed)[0]}", field="steps")
        labels = [policy.label for policy in (self.baseline, *self.alternatives, self.ours)]
        if again := [label for label in labels if labels.count(label) > 1]:
            raise FieldError("distinct names", field="alternatives", value=f"the name {again[0]!r} twice")
        for name, policy in (("baseline", self.baseline), ("ours", self.ours)):
            if policy.unused_nodes is not None or policy.capacity is not None:
                raise FieldError("no unused_nodes and no capacity, as the study sets them", field=name)
        return self


def refuse_set(document: Mapping[str, Any]) -> None:
    """Raise ``FieldError`` if the content of a study file says what the study sets itself, even as by default."""
    for path, instead in SET_BY_STUDY.items():
        name, field = path.split(".")
        part = document.get(name)
        if isinstance(part, Mapping) and field in part:
            raise FieldError(f"nothing here: {instead} says that", field=path, value=part[field])


def left_to_study(part: BaseModel, name: str) -> dict[str, Any]:
    """Return the defaults of the fields that the study sets itself of its *part* of this name, by field."""
    fields = [path.split(".")[1] for path in SET_BY_STUDY if path.startswith(f"{name}.")]
    return {field: _usual(type(part), field) for field in fields}


def _usual(model: type[BaseModel], field: str) -> object:
    return model.model_fields[field].get_default(call_default_factory=True)
