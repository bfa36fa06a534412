"""Training jobs and the tenants who submit them.

A job is malleable: ``times_s`` is its run time on each GPU type and GPU count. ``Job`` is a single job; ``JobArrays``
is a table of jobs in columns, for solvers and engines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.dependencies import Dependency
from commonwatt.model.errors import InputError
from commonwatt.model.fields import FileModel, quantity
from commonwatt.model.packing import Packing
from commonwatt.model.units import plural

__all__ = ["Job", "JobArrays", "Received", "Tenant", "Times", "read_times"]

Times = Mapping[str, Mapping[int, float]]


class Tenant(FileModel):
    """A tenant of the cluster."""

    name: str = quantity("name of the tenant", "-", min_length=1)
    weight: float = quantity("weight relative to the other tenants", "-", 1.0, gt=0)


@dataclass(frozen=True)
class Job:
    """One training job.

    Attributes
    ----------
    times_s
        Run time of the whole job in seconds, by GPU type and total GPU count; missing ones are not possible.
    due_s
        Due date; infinity for none.
    tardiness_weight
        Currency per second of lateness (omega of ANDREAS, Table I).
    epochs
        Equal parts of the work; progress is counted in epochs, and a checkpoint is taken after each.
    gpu_w
        Power added by each of its GPUs, by type, where it differs from the node's figure.
    requested_gpus, requested_type
        The owner's request, which schedulers that do not resize jobs allocate exactly. 0 or "" for none.
    time_limit_s
        Declared run time, for schedulers that plan with declared times; infinity for none.
    kind
        Free label, such as the class of models that scale alike.
    partition
        Partitions it may run in, with commas between them; "" for any.
    width
        Nodes it runs on, with equally many GPUs each; 0: as few as possible; negative: as many as have so many each.
    constraint
        Features its nodes must have, joined by & or |; "" for none.
    restart_s
        Time it has its GPUs before it works when it is started again; NaN: what the scenario says.
    iterations
        Training iterations of the whole job; NaN: unknown.
    cpus_per_gpu, memory_gib_per_gpu
        What it needs of a node beside each GPU; NaN: nothing.
    user, qos
        Who submitted it, and its quality of service, which may limit it; "" for none.
    known_s
        When the cluster knew that it would come at ``submit_s`` (a begin time, a reservation); NaN: at ``submit_s``.
    after
        Jobs it waits for, by name, and what of them.
    """

    name: str
    tenant: str
    submit_s: float
    due_s: float
    tardiness_weight: float
    times_s: Times
    epochs: int = 1
    gpu_w: Mapping[str, float] = field(default_factory=dict)
    requested_gpus: int = 0
    requested_type: str = ""
    time_limit_s: float = math.inf
    kind: str = ""
    partition: str = ""
    width: int = 0
    constraint: str = ""
    restart_s: float = math.nan
    iterations: float = math.nan
    cpus_per_gpu: float = math.nan
    memory_gib_per_gpu: float = math.nan
    user: str = ""
    qos: str = ""
    known_s: float = math.nan
    after: Mapping[str, Dependency] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in (("submit_s", self.submit_s), ("tardiness_weight", self.tardiness_weight)):
            if not 0 <= value < math.inf:
                raise InputError("a finite number, 0 or more", field=f"{self.name}.{name}", value=value)
        if not self.due_s >= self.submit_s:
            raise InputError(
                f"a time not before submission ({self.submit_s:g} s)", field=f"{self.name}.due_s", value=self.due_s
            )
        if self.known_s > self.submit_s:
            expected = f"a time not after submission ({self.submit_s:g} s)"
            raise InputError(expected, field=f"{self.name}.known_s", value=self.known_s)
        if self.epochs < 1:
            raise InputError("at least one epoch", field=f"{self.name}.epochs", value=self.epochs)


def read_times(
    written: Mapping[str, Sequence[float | None] | Mapping[int, float]], where: str
) -> dict[str, dict[int, float]]:
    """Normalise times in a file: a list for 1, 2, ... GPUs (null: not possible) or a map by count.

    Raises ``InputError``, naming *where*, on a time that is not positive and finite, a count below 1 or no time at all.
    """
    times: dict[str, dict[int, float]] = {}
    for gpu_type, row in written.items():
        pairs = row.items() if isinstance(row, Mapping) else enumerate(row, start=1)
        kept: dict[int, float] = {}
        for gpus, seconds in pairs:
            if seconds is None:
                continue
            if gpus < 1:
                raise InputError("a GPU count of 1 or more", field=f"{where}.times_s.{gpu_type}", value=gpus)
            if not 0 < seconds < math.inf:
                raise InputError(
                    "a number of seconds above 0",
                    field=f"{where}.times_s.{gpu_type}[{plural(gpus, 'GPU')}]",
                    value=seconds,
                )
            kept[int(gpus)] = float(seconds)
        if kept:
            times[gpu_type] = kept
    if not times:
        raise InputError("a time for at least one GPU type", field=f"{where}.times_s", value=dict(written) or "{}")
    return times


@dataclass(frozen=True)
class JobArrays:
    """Many jobs in columns.

    ``J`` jobs and ``C`` configurations, those of job ``j`` being rows ``start[j]`` to ``start[j + 1]``.
    """

    names: tuple[str, ...]  # [J]
    tenants: tuple[str, ...]  # [T]
    gpu_types: tuple[str, ...]  # [Y]
    tenant: Ints  # [J] index into tenants
    submit_s: Floats  # [J]
    due_s: Floats  # [J] infinity: none
    tardiness_weight: Floats  # [J] currency/s
    epochs: Ints  # [J]
    requested_gpus: Ints  # [J] 0: none
    requested_type: Ints  # [J] index into gpu_types; -1: none
    time_limit_s: Floats  # [J] infinity: none
    kinds: tuple[str, ...]  # [J]
    start: Ints  # [J + 1]
    config_type: Ints  # [C] index into gpu_types
    config_gpus: Ints  # [C] total over all its nodes
    config_time_s: Floats  # [C] the whole job
    config_gpu_w: Floats  # [C] power per GPU; NaN: the node's figure
    series: tuple[str, ...] = ()  # [J] what repeated jobs of an owner share; empty: their names, but for digits
    partition: tuple[str, ...] = ()  # [J] partitions it may run in, with commas between them; empty: any
    width: tuple[int, ...] = ()  # [J] nodes it runs on, 0: as few as possible; empty: of all jobs
    constraint: tuple[str, ...] = ()  # [J] features its nodes must have; empty: none
    restart_s: Floats = field(default_factory=lambda: np.zeros(0))  # [J] NaN: the scenario's; empty: of all jobs
    iterations: Floats = field(default_factory=lambda: np.zeros(0))  # [J] NaN: unknown; empty: of all jobs
    user: tuple[str, ...] = ()  # [J] who submitted it; empty: unknown
    qos: tuple[str, ...] = ()  # [J] its quality of service; empty: none has one
    priority: Floats = field(default_factory=lambda: np.zeros(0))  # [J] factor of its QOS, 0 to 1; empty: 0
    cpus_per_gpu: Floats = field(default_factory=lambda: np.zeros(0))  # [J] NaN: needs none; empty: of all jobs
    memory_gib_per_gpu: Floats = field(default_factory=lambda: np.zeros(0))  # [J] NaN: needs none; empty: of all jobs
    known_s: Floats = field(default_factory=lambda: np.zeros(0))  # [J] when submit_s was known; NaN, or empty: then
    after: tuple[Mapping[str, Dependency], ...] = ()  # [J] jobs it waits for, by name; empty: none waits
    config_power_limit: Floats = field(default_factory=lambda: np.zeros(0))  # [C] part of a GPU's highest; empty: 1
    packing: Packing | None = None  # what says which jobs may share GPUs; None: none do

    @classmethod
    def of(cls, jobs: Iterable[Job], tenants: Sequence[str] = ()) -> JobArrays:
        """Tabulate *jobs*; *tenants* fixes the order of the first tenants. Raises on duplicate names."""
        rows = list(jobs)
        seen: set[str] = set()
        for job in rows:
            if job.name in seen:
                raise InputError("distinct job names", field="jobs.name", value=job.name)
            seen.add(job.name)
        tenant_at = {name: i for i, name in enumerate(dict.fromkeys([*tenants, *(job.tenant for job in rows)]))}
        named = (t for job in rows for t in (*job.times_s, *([job.requested_type] if job.requested_type else [])))
        type_at = {name: i for i, name in enumerate(dict.fromkeys(named))}
        configs = [
            (type_at[gpu_type], gpus, seconds, job.gpu_w.get(gpu_type, math.nan))
            for job in rows
            for gpu_type, by_count in job.times_s.items()
            for gpus, seconds in by_count.items()
        ]
        counts = [sum(len(by_count) for by_count in job.times_s.values()) for job in rows]
        return cls(
            names=tuple(job.name for job in rows),
            tenants=tuple(tenant_at),
            gpu_types=tuple(type_at),
            tenant=_ints(tenant_at[job.tenant] for job in rows),
            submit_s=_floats(job.submit_s for job in rows),
            due_s=_floats(job.due_s for job in rows),
            tardiness_weight=_floats(job.tardiness_weight for job in rows),
            epochs=_ints(job.epochs for job in rows),
            requested_gpus=_ints(job.requested_gpus for job in rows),
            requested_type=_ints(type_at.get(job.requested_type, -1) for job in rows),
            time_limit_s=_floats(job.time_limit_s for job in rows),
            kinds=tuple(job.kind for job in rows),
            start=np.concatenate(([0], np.cumsum(_ints(counts)))).astype(np.int64),
            config_type=_ints(c[0] for c in configs),
            config_gpus=_ints(c[1] for c in configs),
            config_time_s=_floats(c[2] for c in configs),
            config_gpu_w=_floats(c[3] for c in configs),
            partition=tuple(job.partition for job in rows) if any(job.partition for job in rows) else (),
            width=tuple(job.width for job in rows) if any(job.width for job in rows) else (),
            constraint=tuple(job.constraint for job in rows) if any(job.constraint for job in rows) else (),
            restart_s=_column(job.restart_s for job in rows),
            iterations=_column(job.iterations for job in rows),
            cpus_per_gpu=_column(job.cpus_per_gpu for job in rows),
            memory_gib_per_gpu=_column(job.memory_gib_per_gpu for job in rows),
            user=tuple(job.user for job in rows) if any(job.user for job in rows) else (),
            qos=tuple(job.qos for job in rows) if any(job.qos for job in rows) else (),
            known_s=_column(job.known_s for job in rows),
            after=tuple(job.after for job in rows) if any(job.after for job in rows) else (),
        )

    def __len__(self) -> int:
        return len(self.names)

    def partition_of(self, row: int) -> str:
        """Partitions job *row* may run in, with commas between them; "" for any."""
        return self.partition[row] if self.partition else ""

    def nodes_of(self, row: int) -> tuple[str, int, str]:
        """Return what ``Cluster.shapes`` is to know of where job *row* may run: partitions, nodes, features."""
        width, constraint = self.width[row] if self.width else 0, self.constraint[row] if self.constraint else ""
        return self.partition_of(row), width, constraint

    def power_limit_of(self, config: int) -> float:
        """Power limit of GPUs in configuration *config*, as a part of their highest."""
        return float(self.config_power_limit[config]) if len(self.config_power_limit) else 1.0

    def within_power_limits(self, limits: Sequence[float]) -> JobArrays:
        """Return the table without configurations at other power limits than *limits* and the highest."""
        if not len(self.config_power_limit):
            return self
        kept = np.isin(self.config_power_limit, [1.0, *limits])
        before = np.concatenate(([0], np.cumsum(kept)))
        return replace(
            self,
            start=before[self.start].astype(np.int64),
            config_type=self.config_type[kept],
            config_gpus=self.config_gpus[kept],
            config_time_s=self.config_time_s[kept],
            config_gpu_w=self.config_gpu_w[kept],
            config_power_limit=self.config_power_limit[kept] if limits else self.config_power_limit[:0],
        )

    def configs(self, row: int) -> slice:
        """Rows of the configuration columns that belong to job *row*."""
        return slice(int(self.start[row]), int(self.start[row + 1]))


@dataclass(frozen=True)
class Received:
    """For how long jobs had GPUs so far: what schedulers by attained service go by.

    Attributes
    ----------
    job_s
        Seconds each job had GPUs of each class, [J, K].
    gpu_s
        GPU time each job had, [J].
    class_s
        ``job_s`` summed over all jobs there have been, [K].
    jobs
        How many jobs there have been.
    """

    job_s: Floats
    gpu_s: Floats
    class_s: Floats
    jobs: int


def _ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, dtype=np.int64)


def _floats(values: Iterable[float]) -> Floats:
    return np.fromiter(values, dtype=np.float64)


def _column(values: Iterable[float]) -> Floats:
    """Column with NaN for what is unknown; empty if all is."""
    column = _floats(values)
    return column[:0] if np.isnan(column).all() else column
