"""The scenario file: a workload, a cluster, and the policies to compare on it (``commonwatt simulate``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from commonwatt.model.accounting import AssociationSpecs, QosSpecs
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.dependencies import Dependency
from commonwatt.model.electricity import Electricity
from commonwatt.model.errors import FieldError
from commonwatt.model.features import check_constraint
from commonwatt.model.fields import FileModel, FileVersion, quantity
from commonwatt.model.fleet import FractionalWorkload, ServiceSpec, SharingSpec
from commonwatt.model.jobs import Tenant
from commonwatt.model.live import LiveSpec
from commonwatt.model.nodes import GpuTypeSpec, NodeSpecs
from commonwatt.model.policies import (
    LIMIT_POWER,
    SOLVER_NAMES,
    Knowledge,
    Objective,
    PeerName,
    PolicyLimits,
    PolicySpec,
    Preemption,
    PriceWait,
    Rounds,
    UnusedNodes,
    default_policies,
)

__all__ = [
    "AndreasWorkload",
    "DueDates",
    "JobsWorkload",
    "Knowledge",
    "LogWorkload",
    "NodeOutage",
    "Objective",
    "PeerName",
    "PolicyLimits",
    "PolicySpec",
    "Preemption",
    "PriceWait",
    "Rounds",
    "Scenario",
    "ScenarioJob",
    "SiaWorkload",
    "UnusedNodes",
    "WeekWorkload",
    "Workload",
]

LogSource = Literal["philly", "alibaba", "helios", "slurm", "swf", "csv"]


class DueDates(FileModel):
    """Due dates and tardiness weights for a log; what is drawn is drawn for each job with the scenario's seed."""

    rule: Literal["drawn", "time-limit", "qos"] = quantity(
        "drawn: from slack_factor and least_slack_s; time-limit: due = submission + limit_factor * time limit of the "
        "job, and no due date without a limit; qos: due = submission + by_qos_s of its QOS, and no due date for others",
        "-",
        "drawn",
    )
    limit_factor: float = quantity("rule time-limit: due date as a multiple of the time limit", "-", 1.0, gt=0)
    by_qos_s: dict[str, float] = quantity(
        "rule qos: how long after its submission a job of each QOS is due", "s", dict
    )  # fmt: skip
    slack_factor: tuple[float, float] = quantity(
        "due = submission + least_slack_s + factor * logged run time, factor uniform between these", "-", (1.5, 4.0)
    )
    least_slack_s: float = quantity("least slack of a job", "s", 600.0, ge=0)
    tardiness_weights: tuple[float, ...] = quantity(
        "cost per second of lateness and requested GPU; one value is drawn for each job", "currency/s",
        (0.0001, 0.0002, 0.0005), min_length=1,
    )  # fmt: skip

    @model_validator(mode="after")
    def _check(self) -> DueDates:
        low, high = self.slack_factor
        if not 1 <= low <= high:
            raise FieldError("1 <= low <= high", field="slack_factor", value=self.slack_factor)
        if (self.rule == "qos") != bool(self.by_qos_s):
            expected = "seconds for at least one QOS" if self.rule == "qos" else "none without `rule: qos`"
            raise FieldError(expected, field="by_qos_s", value=self.by_qos_s or "none")
        for name, seconds in self.by_qos_s.items():
            if not seconds > 0:
                raise FieldError("more than 0", field=f"by_qos_s.{name}", value=seconds)
        if min(self.tardiness_weights) < 0:
            raise FieldError("0 or more", field="tardiness_weights", value=min(self.tardiness_weights))
        return self


def _none_or_fields(value: Any) -> Any:  # noqa: ANN401
    if value != "none" and not isinstance(value, Mapping | DueDates):
        raise FieldError("none, or a mapping of fields", value=value)
    return value


class _FromLog(FileModel):
    """How jobs with one logged size and run time become malleable."""

    logged_gpu_type: str | None = quantity(
        "GPU type of the logged run times, where the log does not name one; absent: P100, or the cluster's if that is "
        "one type without a measured speed",
        "-",
        None,
        min_length=1,
    )
    profiles: Literal["auto", "measured", "law"] = quantity(
        "speeds on other GPU types and counts: measured tables, fitted scaling laws, or (auto) the tables if they "
        "are available",
        "-",
        "auto",
    )
    malleable: bool = quantity(
        "whether a job may run on other GPU counts than it requested",
        "-",
        True,  # noqa: FBT003
    )
    other_types: bool = quantity(
        "whether a job may run on another GPU type than it ran on; if not, only one whose type the cluster lacks does",
        "-",
        True,  # noqa: FBT003
    )
    largest_growth: float = quantity("largest number of GPUs of a job, as a multiple of its request", "-", 2.0, ge=1)
    due_dates: Annotated[DueDates | Literal["none"], BeforeValidator(_none_or_fields)] = quantity(
        "due dates and tardiness weights; none: no due date, and weight 0", "-", DueDates
    )
    epoch_s: float = quantity("time between checkpoints, in logged run time", "s", 600.0, gt=0)


class LogWorkload(_FromLog):
    """Jobs from the log of a real cluster."""

    source: LogSource = quantity("format of the log", "-")
    path: str | None = quantity(
        "path of the log, relative to this file; absent: a public trace under COMMONWATT_DATA", "-", None
    )
    stand_in: bool = quantity(
        "generate a similar period of the same length if the public Philly log is not available, and report it",
        "-",
        False,  # noqa: FBT003
    )
    begin: str | None = quantity(
        "start (ISO 8601), or seconds from the log's origin; absent: its first submission", "-", None
    )
    days: float = quantity("length of the period", "days", 7.0, gt=0)
    carry_in: bool = quantity("include jobs running at the start of the period, with their remaining time", "-", True)  # noqa: FBT003
    columns: dict[str, str] = quantity(
        "csv: the columns for job, tenant, submit_s, duration_s (or start_s and end_s), gpus, gpu_type, time_limit_s, "
        "nodes, partition, user, qos, energy_j, cpus, memory_gib, known_s, after",
        "-",
        dict,
    )
    other_partitions: bool = quantity(
        "whether a job may run on nodes of other partitions than its log names; if not, only one whose partition no "
        "node is in does",
        "-",
        False,  # noqa: FBT003
    )
    fractions: Literal["whole", "share"] = quantity(
        "jobs of a part of a GPU (alibaba) have a whole one, or share GPUs with others as `fractional` jobs do", "-",
        "whole",
    )  # fmt: skip
    time_limit_factor: float | None = quantity(
        "time limit of jobs without a declared one, as a multiple of their run time", "-", None, ge=1
    )

    @model_validator(mode="after")
    def _check(self) -> LogWorkload:
        if self.stand_in and (self.source != "philly" or self.path is not None):
            raise FieldError("false, except for source philly without a path", field="stand_in", value="true")
        return self


class WeekWorkload(_FromLog):
    """A generated week similar to Philly: arrivals by hour, run times and GPU counts are fitted to it."""

    source: Literal["week"] = quantity("generated, similar to Philly", "-")
    jobs_per_day: float = quantity("mean number of submissions a day", "1/day", 1100.0, gt=0)
    days: float = quantity("length of the period", "days", 7.0, gt=0)
    tenants: int = quantity("number of tenants", "-", 12, ge=1)


class AndreasWorkload(FileModel):
    """The generator of ANDREAS section V-B: J = 10 N training jobs on N nodes; it brings its own nodes."""

    source: Literal["andreas"] = quantity("the paper's generator", "-")
    nodes: int = quantity("N: number of nodes, half V100 and half T4", "-", 10, ge=2)
    scenario: Literal[1, 2] = quantity("1: nodes of 2 V100 or 1 T4; 2: nodes of 4 V100 or 2 T4", "-", 1)
    load: float = quantity("offered load: submitted work over the capacity of the cluster", "-", 1.0, gt=0)
    jobs: int | None = quantity("J: number of jobs; 10 N if absent", "-", None, ge=1)


class ScenarioJob(FileModel):
    """A job listed in the scenario."""

    name: str = quantity("name of the job", "-", min_length=1)
    tenant: str = quantity("tenant it belongs to", "-", "default", min_length=1)
    submit_s: float = quantity("time of submission", "s", ge=0)
    due_s: float | None = quantity("due date; absent: none", "s", None)
    tardiness_weight: float = quantity("cost of each second of lateness (omega)", "currency/s", 0.0, ge=0)
    times_s: dict[str, tuple[float | None, ...] | dict[int, float]] | None = quantity(
        "run time of the whole job by GPU type: a list for 1, 2, ... GPUs (null: not possible) or a map from GPU "
        "count; absent: from `profile`",
        "s",
        None,
    )
    profile: str | tuple[str, ...] | None = quantity(
        "instead of `times_s`: a profile of the training (`commonwatt profile`), or one for each GPU type, relative to "
        "this file; `epochs` times its epoch, with its power",
        "-",
        None,
        min_length=1,
    )
    epochs: int = quantity("number of epochs; a checkpoint is taken after each", "-", 1, ge=1)
    gpu_w: dict[str, float] = quantity(
        "power added by each of its GPUs, by type, where it differs from the node's", "W", dict
    )
    requested_gpus: int = quantity("requested GPUs; 0: none", "GPUs", 0, ge=0)
    requested_gpu_type: str = quantity("requested GPU type; empty: none", "-", "")
    time_limit_s: float | None = quantity("declared run time", "s", None, gt=0)
    partition: str = quantity("partitions it may run in, with commas between them; empty: any", "-", "")
    constraint: Annotated[str, AfterValidator(check_constraint)] = quantity(
        "features that its nodes must have, joined by & or |, with parentheses where both are; empty: none", "-", "",
        max_length=512,
    )  # fmt: skip
    restart_s: float | None = quantity("its own `restart_s`; absent: that of `preemption`", "s", None, ge=0)
    user: str = quantity("who submits it, for limits per user; empty: unknown", "-", "")
    qos: str = quantity("its quality of service; empty: none", "-", "")
    cpus_per_gpu: float | None = quantity(
        "CPUs it needs for each GPU; absent: none. It waits for them where nodes have `cpus`", "CPUs", None, gt=0
    )
    memory_gib_per_gpu: float | None = quantity(
        "memory it needs for each GPU; absent: none. It waits for it where nodes have `memory_gib`", "GiB", None, gt=0
    )
    known_s: float | None = quantity(
        "when the cluster knows that it will come at submit_s (a begin time, a reservation), for a capacity plan; "
        "absent: at submit_s", "s", None,
    )  # fmt: skip
    after: dict[str, Dependency] = quantity(
        "jobs it waits for, by name, as in a job file: until they have started (after), ended (afterany), completed "
        "(afterok) or failed (afternotok); its waiting counts from then", "-", dict,
    )  # fmt: skip
    iterations: float | None = quantity(
        "training iterations of the whole job, by which `gavel` with objective max-sum counts; absent: unknown",
        "-", None, gt=0,
    )  # fmt: skip
    kind: str = quantity(
        "class of its model, such as resnet50, by which `lucid` knows what it uses of a GPU; empty: unknown, it shares "
        "no GPU", "-", "",
    )  # fmt: skip

    @property
    def profiles(self) -> tuple[str, ...]:
        """Paths of its profiles."""
        return (self.profile,) if isinstance(self.profile, str) else self.profile or ()

    @model_validator(mode="after")
    def _check(self) -> ScenarioJob:
        if (self.times_s is None) == (self.profile is None):
            both = self.times_s is not None
            raise FieldError("either times_s or profile", field="times_s", value="both" if both else "neither")
        return self


class JobsWorkload(FileModel):
    """Jobs listed in the scenario."""

    source: Literal["jobs"] = quantity("jobs listed here", "-")
    jobs: tuple[ScenarioJob, ...] = quantity("the jobs", "-", min_length=1)


class SiaWorkload(FileModel):
    """Jobs of the public simulator of Sia, by its tables; it brings its own nodes.

    Each GPU type is one node whose GPUs are on several hosts, as that simulator lets a job have any of them.
    """

    source: Literal["sia"] = quantity("reference folder of the simulator of Sia (SOSP 2023)", "-")
    path: str | None = quantity(
        "the folder, relative to this file, with cluster.json, workloads/ and throughput/; absent: peers/sia beside "
        "the folder that COMMONWATT_DATA names",
        "-", None,
    )  # fmt: skip
    workload: str = quantity("name of a file in workloads/, without .csv", "-", "core-1", pattern=r"^[\w-]+$")
    batch: Literal["fixed", "adaptive"] = quantity(
        "`fixed`: jobs keep the GPUs and the batch they asked for; `adaptive`: they may also have the numbers of GPUs "
        "that Sia considers, and on any of them train each epoch with its best batch",
        "-", "fixed",
    )  # fmt: skip


Workload = Annotated[
    LogWorkload | WeekWorkload | AndreasWorkload | JobsWorkload | SiaWorkload, Field(discriminator="source")
]


class NodeOutage(FileModel):
    """An outage of a node, whose jobs return to their last checkpoints."""

    node: str = quantity("name of the node", "-")
    from_s: float = quantity("start of the outage", "s", ge=0)
    to_s: float = quantity("end of the outage", "s", ge=0)

    @model_validator(mode="after")
    def _check(self) -> NodeOutage:
        if self.to_s <= self.from_s:
            raise FieldError(f"a time after from_s ({self.from_s:g})", field="to_s", value=f"{self.to_s:g}")
        return self


class Scenario(FileModel):
    """A simulation: the workload, the cluster, the policies."""

    version: FileVersion = quantity("version of this format", "-", 1)
    name: str = quantity("name of the scenario", "-", "scenario", min_length=1)
    engine: Literal["simulated", "local", "slurm", "kubernetes"] = quantity(
        "engine of `serve`; `simulate` always uses a simulated cluster",
        "-",
        "simulated",
    )
    live: LiveSpec = quantity("settings of `serve`", "-", LiveSpec)
    workload: Workload | None = quantity("the jobs; not used by `serve`, where users submit them", "-", None)
    nodes: NodeSpecs = quantity("the nodes; empty only if the workload defines them", "-", ())
    gpu_types: dict[str, GpuTypeSpec] = quantity(
        "GPU types by name: speed relative to another type, and power; needed for types that are not known, where the "
        "cluster or the log has several",
        "-",
        dict,
    )
    tenants: tuple[Tenant, ...] = quantity("tenants with a weight other than 1", "-", ())
    qos: QosSpecs = quantity("qualities of service: priority, and limits of the jobs that have them", "-", ())
    associations: AssociationSpecs = quantity(
        "accounts (tenants) and their users: limits of their jobs, and shares, by which tenants weigh that have no "
        "weight in `tenants`", "-", (),
    )  # fmt: skip
    electricity: Electricity = quantity("price and carbon intensity of electricity", "-", Electricity)
    interval_s: float = quantity(
        "time between rescheduling points (H), besides submissions and completions", "s", 300.0, gt=0
    )
    postponement_penalty: float = quantity(
        "weight of the worst-case tardiness of postponed jobs (rho)", "-", 100.0, ge=0
    )
    preemption: Preemption = quantity("cost of stopping and moving a job", "-", Preemption)
    unused_nodes: UnusedNodes = quantity("power state of unused nodes", "-", UnusedNodes)
    capacity: CapacitySpec | None = quantity(
        "capacity plan of the nodes that stay on; replaces `unused_nodes`", "-", None
    )
    runtime_error: float = quantity(
        "standard deviation of the logarithm of true over expected run time", "-", 0.0, ge=0, le=2
    )
    knowledge: Knowledge = quantity(
        "what schedulers know of run times in advance: all (oracle), the declared limit (without one: the largest "
        "declared so far), what jobs that have ended tell (predicted), or nothing; `serve` takes predicted (default) "
        "or user-limit",
        "-",
        "oracle",
    )
    speed_error: float = quantity(
        "standard deviation of the logarithm of true over believed relative speed of a configuration that was not "
        "requested",
        "-", 0.0, ge=0, le=2,
    )  # fmt: skip
    outages: tuple[NodeOutage, ...] = quantity("outages of nodes", "-", ())
    rounds: Rounds | None = quantity(
        "decide in rounds only, as many published schedulers do; null: at every event", "-", None
    )
    services: tuple[ServiceSpec, ...] = quantity("inference services on the same cluster", "-", ())
    fractional: FractionalWorkload | None = quantity(
        "jobs of a part of a GPU on the same cluster; null: none", "-", None
    )
    sharing: SharingSpec | None = quantity(
        "how GPUs may be shared by services and fractional jobs; null: the defaults, where there are any", "-", None
    )
    policies: tuple[PolicySpec, ...] = quantity(
        "policies to compare; the first is the one under study", "-", default_policies, min_length=1
    )

    @model_validator(mode="after")
    def _check(self) -> Scenario:
        labels = [policy.label for policy in self.policies]
        twice = [label for label in labels if labels.count(label) > 1]
        if twice:
            raise FieldError("distinct names", field="policies", value=f"{twice[0]!r} twice")
        for policy in self.policies:
            self._check_peer(policy)
        self._check_fleet()
        self._check_cpus()
        self._check_fairness()
        self._check_power_limits()
        if isinstance(self.workload, AndreasWorkload | SiaWorkload):
            if self.nodes:
                raise FieldError(f"none, as workload {self.workload.source} defines its nodes", field="nodes")
        elif not self.nodes:
            raise FieldError("at least one node", field="nodes")
        return self

    @property
    def power_limits(self) -> tuple[float, ...]:
        """Power limits of GPUs that some policy may set, as parts of their highest, increasing."""
        return tuple(sorted({limit for policy in self.policies for limit in policy.power_limits}))

    @property
    def has_fleet(self) -> bool:
        """Whether anything else than training jobs may run."""
        shares = isinstance(self.workload, LogWorkload) and self.workload.fractions == "share"
        return bool(self.services) or self.fractional is not None or shares

    def why_not_power_alone(self) -> str | None:
        """Return why nothing but the power of nodes can be switched (mode ``power``); ``None``: it can."""
        if self.engine != "slurm":
            return f"under engine {self.engine}, nobody else places jobs; mode power is for engine slurm"
        if self.policies[0].capacity is None and self.capacity is None:
            return "without a capacity plan there is nothing to switch: set `capacity`"
        if not self.live.slurm.power:
            return "no node may be powered down: set live.slurm.power"
        return "services are placed on nodes" if self.services else None

    def _check_fairness(self) -> None:
        """Raise if tenants are guaranteed something under a scheduler that has its own idea of fairness."""
        for policy in self.policies:
            if policy.fairness is not None and policy.solver in get_args(PeerName):
                raise FieldError(
                    f"none, as {policy.solver} has its own fairness", field=f"policies.{policy.label}.fairness"
                )

    def _check_power_limits(self) -> None:
        """Raise if a policy may limit the power of GPUs where nothing says what that does to jobs."""
        for policy in self.policies:
            where = f"policies.{policy.label}.power_limits"
            if policy.power_limits and policy.solver in set(SOLVER_NAMES).difference(LIMIT_POWER):
                expected = f"none, as {policy.solver} does not weigh energy against time; {', '.join(LIMIT_POWER)} do"
                raise FieldError(expected, field=where, value=list(policy.power_limits))
            if policy.power_limits and not isinstance(self.workload, LogWorkload | WeekWorkload):
                raise FieldError(
                    "none without jobs of a log or a generated week, whose models have measured limits",
                    field=where,
                    value=list(policy.power_limits),
                )

    def _check_cpus(self) -> None:
        """Raise if CPUs or memory of nodes are given beside what does not know of them."""
        limited = next((node.name for node in self.nodes if node.cpus or node.memory_gib), None)
        if limited is not None and self.has_fleet:
            raise FieldError(
                "none beside services and fractional jobs", field="nodes", value=f"cpus or memory_gib of {limited}"
            )

    def _check_fleet(self) -> None:
        """Raise if services and fractional jobs do not fit what else the scenario says."""
        names = [service.name for service in self.services]
        if twice := [name for name in names if names.count(name) > 1]:
            raise FieldError("distinct names", field="services", value=f"{twice[0]!r} twice")
        if not self.has_fleet:
            return
        for policy in self.policies:
            if policy.solver in get_args(PeerName):
                raise FieldError(
                    "another beside services", field=f"policies.{policy.label}.solver", value=policy.solver
                )
        if (
            isinstance(self.workload, LogWorkload)
            and self.workload.fractions == "share"
            and self.fractional is not None
        ):
            raise FieldError("none, as the workload has fractional jobs (fractions: share)", field="fractional")

    def _check_peer(self, policy: PolicySpec) -> None:
        """Raise if a published scheduler is not defined under the rules of this scenario."""
        for field, given, own in (("auction", policy.auction, "themis"), ("resize", policy.resize, "completion")):
            if given and policy.solver != own:
                raise FieldError(
                    f"false: only {own} has it", field=f"policies.{policy.label}.{field}",
                    value=f"true with {policy.solver}",
                )  # fmt: skip
        if policy.solver not in get_args(PeerName):
            return
        if policy.fairness_power == 0 and policy.solver in ("sia", "pollux"):
            raise FieldError(
                "another number: all goodput would be alike", field=f"policies.{policy.label}.fairness_power", value="0"
            )
        preemption, knowledge = policy.preemption or self.preemption, policy.knowledge or self.knowledge
        shares = policy.solver in ("gavel", "themis")
        if shares and (policy.rounds or self.rounds) is None:
            raise FieldError(
                f"rounds, over which {policy.solver} shares GPUs", field=f"policies.{policy.label}.rounds", value="none"
            )
        if shares and preemption.lose_work:
            raise FieldError(
                f"false: {policy.solver} stops jobs at the end of rounds, with a checkpoint, and jobs that lost their "
                "work each time would never end",
                field=f"policies.{policy.label}.preemption.lose_work",
                value="true",
            )
        if policy.solver not in ("qssf", "lucid", "drf", "completion") and not preemption.allowed:
            raise FieldError(
                f"true: {policy.solver} stops jobs", field=f"policies.{policy.label}.preemption.allowed", value="false"
            )
        if policy.solver == "lucid":
            self._check_lucid(policy)
        objective = "finish-time" if policy.solver == "themis" else policy.objective
        timed = policy.solver in ("qssf", "lucid") or (shares and objective not in ("max-min", "fifo"))
        if timed and knowledge == "none":
            raise FieldError(
                "another, as it goes by run times", field=f"policies.{policy.label}.knowledge", value="none"
            )
        if shares and objective == "max-sum" and knowledge != "oracle":
            raise FieldError(
                "oracle: max-sum goes by iterations", field=f"policies.{policy.label}.knowledge", value=knowledge
            )

    def _check_lucid(self, policy: PolicySpec) -> None:
        """Raise if something would have to know that two jobs share their GPUs, and does not."""
        where, plan = f"policies.{policy.label}", policy.capacity or self.capacity
        caps = [self.electricity.power_cap_w, *(step.power_cap_w for step in self.electricity.series)]
        limited = next((node.name for node in self.nodes if node.cpus or node.memory_gib), None)
        preempts = next((qos.name for qos in self.qos if qos.preempts), None)
        for field, given in (
            (f"{where}.limits", (policy.limits and ", ".join(policy.limits.model_dump(exclude_none=True))) or None),
            (f"{where}.wait_for_price", "a price to wait for" if policy.wait_for_price is not None else None),
            (f"{where}.capacity", f"a plan ({plan.policy})" if plan is not None else None),
            ("electricity.power_cap_w", next((f"{cap:g}" for cap in caps if cap is not None), None)),
            ("nodes", limited and f"cpus or memory_gib of {limited}"),
            ("qos", preempts and f"preempts of {preempts}"),
        ):
            if given is not None:
                raise FieldError("none, as lucid lets two jobs have the same GPUs", field=field, value=given)
        if isinstance(self.workload, SiaWorkload):
            raise FieldError("one whose nodes are single hosts, for lucid", field="workload.source", value="sia")
