"""From a job file to the job the controller schedules: its configurations, times and due date; and its state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import attrgetter, itemgetter
from typing import Any

from commonwatt.model.errors import InputError, JobNeverFitsError
from commonwatt.model.job_file import JobFile, Source
from commonwatt.model.jobs import Job, read_times
from commonwatt.model.live import AccountLimits, TenantLimits
from commonwatt.model.names import did_you_mean
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import Scenario
from commonwatt.model.units import memory_gib, plural
from commonwatt.store.records import JobRow, packed, unpacked

__all__ = [
    "FigureDocuments",
    "GpuNeeds",
    "JobMaker",
    "TimeFigure",
    "TrackedJob",
    "begin_of",
    "capped",
    "due_of",
    "figure_values",
]


@dataclass(frozen=True, slots=True)
class TimeFigure:
    """How long a job takes in one configuration, and the source of that figure."""

    gpu_type: str
    gpus: int
    time_s: float
    gpu_w: float | None
    source: str  # measured, predicted, similar, declared, history, time limit; unknown: the site's default
    earlier_jobs: int | None = None  # where the source is history: how many jobs it comes from
    alike: str | None = None  # what these share: name, kind or tenant
    likely_s: Sequence[float] | None = None  # between which times it is in 8 of 10 cases
    outlived: bool = False  # it has run longer than all of these: only plans need some time

    def document(self) -> dict[str, Any]:
        """Return it as it is written down."""
        return {name: getattr(self, name) for name in self.__slots__}


figure_values = attrgetter(*TimeFigure.__slots__)
"""Values of a figure, of which it is made again."""


class FigureDocuments:
    """Documents of figures, made when they are written down: a controller that begins has those of all jobs at once."""

    __slots__ = ("_packed",)

    def __init__(self, figures: Iterable[TimeFigure]) -> None:
        self._packed = packed([figure_values(figure) for figure in figures])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (TimeFigure(*values).document() for values in unpacked(self._packed))


def due_of(file: JobFile, submit_s: float) -> float | None:
    """Return when a job submitted at *submit_s* is due, ``None`` if never; raises ``InputError`` on an invalid time."""
    if file.due_in_s is not None:
        return submit_s + file.due_in_s
    return None if file.due is None else _moment_s(file.due, "due")


def begin_of(file: JobFile) -> float | None:
    """Return the time before which a job does not start, ``None`` if any; raises ``InputError`` on an invalid time."""
    return None if file.begin is None else _moment_s(file.begin, "begin")


def _moment_s(text: str, field: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise InputError("a time such as 2026-12-01T08:00 (ISO 8601)", field=field, value=text) from None


@dataclass(frozen=True)
class GpuNeeds:
    """CPUs and memory (GiB) that a job needs on a node for each of its GPUs there; 0: none, or unknown."""

    cpus: float = 0.0
    memory_gib: float = 0.0

    @classmethod
    def usual(cls, config: Scenario) -> GpuNeeds:
        """Return what the engine of *config* requests for a job that says nothing."""
        live = config.live
        if config.engine == "slurm":
            return cls(live.slurm.cpus_per_gpu).with_options(live.slurm.options, 1.0)
        if config.engine == "kubernetes":
            return cls(live.kubernetes.cpus_per_gpu, 1e9 * live.kubernetes.memory_gb_per_gpu / 2**30)
        return cls()

    def of(self, file: JobFile) -> GpuNeeds:
        """Return what the job of *file* needs, where this is the usual.

        A batch script asks for tasks on each node, with CPUs for each, and for memory of a node, a CPU or a GPU.
        """
        if (batch := file.batch) is None:
            if file.workload is not None:  # whose pods have what they ask for, and no more
                return GpuNeeds(file.cpus_per_gpu or 0.0, file.memory_gib_per_gpu or 0.0)
            own = {"cpus": file.cpus_per_gpu, "memory_gib": file.memory_gib_per_gpu}
            return replace(self, **{name: value for name, value in own.items() if value is not None})
        gpus_per_node = file.gpus_per_node or file.gpus / max(1, file.nodes)
        cpus = batch.tasks_per_node * self.cpus
        if batch.cpus_per_task is not None:
            cpus = batch.tasks_per_node * batch.cpus_per_task / gpus_per_node
        return replace(self, cpus=cpus).with_options(batch.options, gpus_per_node)

    def with_options(self, options: Sequence[str], gpus_per_node: float) -> GpuNeeds:
        """Return these needs with the memory that *options* of ``sbatch`` ask for; ``--mem=0`` is all of a node."""
        needs = self
        for option in options:
            name, _, value = option.partition("=")
            with suppress(ValueError):  # Slurm will refuse it
                if name in _MEMORY:
                    gib = memory_gib(value)
                    whole = math.inf if name == "--mem" and gib == 0 else gib
                    each = {"--mem": whole / gpus_per_node, "--mem-per-cpu": gib * self.cpus, "--mem-per-gpu": gib}
                    needs = replace(self, memory_gib=each[name])
        return needs


_MEMORY = ("--mem", "--mem-per-cpu", "--mem-per-gpu")


@dataclass(frozen=True)
class JobMaker:
    """Makes jobs for one cluster; ``usual`` is what the site gives a job that asks for no CPUs or memory."""

    cluster: Cluster
    default_time_limit_s: float
    limits_of: Callable[[str], TenantLimits] = lambda _: TenantLimits()  # of a tenant
    usual: GpuNeeds = GpuNeeds()
    accounts_of: Callable[[str], Mapping[str, AccountLimits]] = lambda _: {}  # that a tenant is in

    @classmethod
    def of(cls, config: Scenario, cluster: Cluster) -> JobMaker:
        """Return what makes jobs for the nodes of *cluster*, that of *config*, on which we place jobs."""
        live, usual = config.live, GpuNeeds.usual(config)
        ours = cluster.without([*(live.profiling.nodes if live.profiling else ()), *not_ours(config, cluster)])
        return cls(ours, live.default_time_limit_s, live.limits_of, usual, live.accounts_of)

    def check(self, file: JobFile, *, anew: bool = True) -> list[TimeFigure]:
        """Return the configurations *file* allows, with their times.

        GPU types this cluster lacks are ignored in a job that was accepted earlier (not *anew*): the cluster may have
        changed. Raises ``InputError`` on them otherwise, or if `gpu_types` and `gpu_counts` leave none of the declared
        times, and ``JobNeverFitsError`` if no node can ever run it.
        """
        if not anew:
            file = self._without_missing_types(file)
        types = self._types(file)
        declared = self._declared(file, types)
        if anew and file.times_s is not None and not declared:
            limits = [name for name in ("gpu_types", "gpu_counts") if getattr(file, name) is not None]
            raise InputError(f"a time that {' and '.join(limits)} allow", field="times_s", value=_declared_times(file))
        figures = declared or self._by_limit(file, types)
        where = file.partition, file.width, file.constraint
        shapes = [self.cluster.shapes(f.gpu_type, f.gpus, *where) for f in figures]
        fitting = [figure for figure, ways in zip(figures, shapes, strict=True) if ways]
        needs = self.usual.of(file)
        candidates = [figure for figure, ways in zip(figures, shapes, strict=True) if self._hold(ways, needs)]
        if fitting and not candidates:
            raise JobNeverFitsError(
                "no more CPUs and memory for its GPUs than some node has",
                field="gpus",
                value=_needed(fitting[0], needs),
            )
        if not fitting:
            with_these = any(kind.admits("", file.constraint) for kind in self.cluster.classes)
            if not with_these and any(self.cluster.shapes(f.gpu_type, f.gpus, *where[:2]) for f in figures):
                there = sorted({name for kind in self.cluster.classes for name in kind.features})
                expected = f"features that nodes have ({', '.join(there) or 'no node has any'})"
                raise JobNeverFitsError(expected, field="constraint", value=file.constraint)
            asked = " or ".join(f"{f.gpus} of {f.gpu_type}" for f in figures[:5]) or "a GPU type this cluster lacks"
            asked += f" on {plural(file.nodes, 'node')}" if file.nodes else ""
            asked += f", {file.gpus_per_node} on each node" if file.gpus_per_node else ""
            asked += f" in partition {file.partition}" if file.partition else ""
            asked += f" with {file.constraint}" if file.constraint else ""
            raise JobNeverFitsError("GPUs that one node, or several alike together, have", field="gpus", value=asked)
        return candidates

    def check_for(self, tenant: str, file: JobFile, *, weight_field: str) -> list[TimeFigure]:
        """Return the configurations *file* allows, as ``check`` does, if the limits of *tenant* admit it.

        Raises ``InputError``; what says its tardiness weight is called *weight_field*.
        """
        figures, limits = self.check(file), self.limits_of(tenant)
        least = min(figure.gpus for figure in figures)
        if (most := self.most_gpus(tenant)) is not None and least > most[0]:
            raise InputError(f"at most {most[0]}, the GPUs of {most[1]}", field="gpus", value=least)
        if capped(file.tardiness_weight, limits) < file.tardiness_weight:
            raise InputError(f"at most {limits.tardiness_weight:g}", field=weight_field, value=file.tardiness_weight)
        return figures

    def most_gpus(self, tenant: str) -> tuple[int, str] | None:
        """Return the most GPUs that jobs of *tenant* may have at once, and whose limit that is; ``None``: no limit."""
        limits = [(self.limits_of(tenant).gpus, f"tenant {tenant}")]
        limits += [(account.gpus, f"account {name}") for name, account in self.accounts_of(tenant).items()]
        return min(((gpus, whose) for gpus, whose in limits if gpus is not None), key=itemgetter(0), default=None)

    def _hold(self, shapes: Sequence[tuple[int, int, int]], needs: GpuNeeds) -> bool:
        """Whether nodes of some class have the CPUs and memory; all of a node is what any has."""
        memory_gib = needs.memory_gib if math.isfinite(needs.memory_gib) else 0.0
        return any(self.cluster.classes[k].holds(gpus, needs.cpus, memory_gib) for k, _, gpus in shapes)

    def make(self, row: JobRow, figures: Sequence[TimeFigure]) -> Job:
        """Return the job of *row* as the controller schedules it, in the configurations of *figures*."""
        file = row.file
        limits, most = self.limits_of(row.tenant), self.most_gpus(row.tenant)
        if most is not None:  # larger ones would never start; where there are no others, the job waits
            figures = [figure for figure in figures if figure.gpus <= most[0]] or figures
        times: dict[str, dict[int, float]] = {}
        gpu_w: dict[str, float] = {}
        for figure in figures:
            times.setdefault(figure.gpu_type, {})[figure.gpus] = figure.time_s
            if figure.gpu_w is not None:
                gpu_w[figure.gpu_type] = figure.gpu_w
        needs = self.usual.of(file)
        wished = "" if file.gpu_type is None else self._own(file.gpu_type) or ""
        return Job(
            name=f"{row.id}-{row.name}",
            tenant=row.tenant,
            submit_s=row.submit_s,
            due_s=math.inf if row.due_s is None else max(row.due_s, row.submit_s + (limits.due_after_s or 0.0)),
            tardiness_weight=capped(file.tardiness_weight, limits),
            times_s=times,
            epochs=file.epochs,
            gpu_w=gpu_w,
            requested_gpus=file.gpus,
            requested_type=wished if wished in times else "",
            time_limit_s=math.inf if file.time_limit_s is None else file.time_limit_s,
            kind=file.kind,
            partition=file.partition,
            width=file.width,
            constraint=file.constraint,
            cpus_per_gpu=needs.cpus or math.nan,
            memory_gib_per_gpu=needs.memory_gib or math.nan,
        )

    def _without_missing_types(self, file: JobFile) -> JobFile:
        """Return *file* without the GPU types this cluster lacks; without any type if none is left."""
        changed: dict[str, Any] = {}
        if file.gpu_types is not None:
            changed["gpu_types"] = tuple(name for name in file.gpu_types if self._own(name))
        elif file.gpu_type is not None and file.times_s is None and not self._own(file.gpu_type):
            changed["gpu_types"] = ()
        if file.times_s is not None:
            left = {name: row for name, row in file.times_s.items() if self._own(name)}
            changed |= {"times_s": left} if left else {"gpu_types": ()}
        return file.model_copy(update=changed) if changed else file

    def _types(self, file: JobFile) -> tuple[str, ...]:
        if file.gpu_types is not None:
            return tuple(dict.fromkeys(self._spelt(name, "gpu_types") for name in file.gpu_types))
        if file.gpu_type is not None and file.times_s is None:
            return (self._spelt(file.gpu_type, "gpu_type"),)
        return self.cluster.gpu_types

    def _spelt(self, name: str, field: str) -> str:
        if own := self._own(name):
            return own
        gpu_types = self.cluster.gpu_types
        expected = f"a GPU type of the cluster ({', '.join(gpu_types)}){did_you_mean(name, gpu_types)}"
        raise InputError(expected, field=field, value=name)

    def _own(self, name: str) -> str | None:
        """Return a GPU type as this cluster spells it; ``None`` if it has no such type."""
        return next((own for own in self.cluster.gpu_types if own.casefold() == name.casefold()), None)

    def _declared(self, file: JobFile, types: Sequence[str]) -> list[TimeFigure]:
        if file.times_s is None:
            return []
        declared = {self._spelt(name, "times_s"): row for name, row in read_times(file.times_s, file.name).items()}
        return [
            TimeFigure(gpu_type, gpus, seconds, None, "declared")
            for gpu_type, row in declared.items()
            if gpu_type in types
            for gpus, seconds in row.items()
            if file.gpu_counts is None or gpus in file.gpu_counts
        ]

    def _by_limit(self, file: JobFile, types: Sequence[str]) -> list[TimeFigure]:
        limit_s, source = file.time_limit_s, Source.TIME_LIMIT
        if limit_s is None:  # nothing limits it: only plans need some time
            limit_s, source = self.default_time_limit_s, Source.UNKNOWN
        counts = file.gpu_counts or (file.gpus,)
        return [
            TimeFigure(gpu_type, gpus, limit_s, None, str(source)) for gpu_type in types for gpus in sorted(set(counts))
        ]


def not_ours(config: Scenario, cluster: Cluster) -> list[str]:
    """Return the nodes on which others place jobs: those outside the partitions that are handed over."""
    if not (placed := config.live.slurm.place_in):
        return []
    return [
        name
        for name, k in zip(cluster.names, cluster.klass.tolist(), strict=True)
        if not set(cluster.classes[k].partitions).intersection(placed)
    ]


def capped(weight: float, limits: TenantLimits) -> float:
    """Return the tardiness *weight* that decisions use."""
    return weight if limits.tardiness_weight is None else min(weight, limits.tardiness_weight)


def _needed(figure: TimeFigure, needs: GpuNeeds) -> str:
    """Return what a configuration needs, in words."""
    memory = f" and {needs.memory_gib:g} GiB" if 0 < needs.memory_gib < math.inf else ""
    return f"{plural(figure.gpus, 'GPU')}, with {needs.cpus:g} CPUs{memory} for each"


def _declared_times(file: JobFile) -> str:
    """Return the configurations with times in *file*, in words."""
    times = read_times(file.times_s or {}, file.name)
    unit = {name: "GPU" if list(row) == [1] else "GPUs" for name, row in times.items()}
    return "; ".join(f"{name}: {', '.join(map(str, row))} {unit[name]}" for name, row in times.items())


@dataclass(slots=True)
class TrackedJob:
    """State of an active job that the controller does not have: its runs by the engine's count, and its failures."""

    id: int
    name: str
    attempts: int = 0  # as the engine counts them
    settled: int = 0  # last attempt whose end was processed
    failures: int = 0  # interruptions since it last made progress
    kept_epochs: float = 0.0
    cause: str = ""  # of its failure
    refusals: int = 0  # starts that failed since it last began
    nodes: tuple[int, ...] = ()  # where it ran last
    gpus_per_node: int = 0
