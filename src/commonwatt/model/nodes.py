"""Nodes, GPU types and power.

A node draws ``idle_w + sum of the GPU power of its busy GPUs`` while any GPU is used, ``idle_w`` while it is on
and unused, and the power of its state when it sleeps or is off. ``Cluster`` is the compiled form: nodes
of equal type, size and power form one class, and solvers work on classes.

A machine with GPUs of two types is two nodes to a scheduler, ``NAME:TYPE`` for each type, which have its idle power in
proportion to their GPUs. They have no low-power states: the machine cannot sleep by halves.

``GpuTypeSpec`` is a GPU type that a scenario declares: its speed relative to another type, and its power.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import FieldError, InputError
from commonwatt.model.features import FEATURE, meets
from commonwatt.model.fields import FileModel, quantity

__all__ = [
    "REFERENCE_TYPE",
    "Cluster",
    "GpuTypeSpec",
    "Hosts",
    "MixedNodeSpec",
    "NodeClass",
    "NodeSpec",
    "NodeSpecs",
    "PowerState",
    "expanded",
    "numbered",
]

REFERENCE_TYPE = "A100"
"""GPU type that speeds are relative to unless another is named."""


class GpuTypeSpec(FileModel):
    """What a scenario says of a GPU type; it overrides every table."""

    speed: float | dict[str, float] | None = quantity(
        "speed of training on one of its GPUs, as a multiple of `relative_to`: a number, or one for each kind of model "
        "(a class such as resnet50, or a run of the tables); kinds that are not named cannot run on it. Absent: the "
        "tables', if they have the type",
        "-",
        None,
    )
    relative_to: str = quantity(
        "GPU type, declared here or known, that `speed` is a multiple of; more GPUs scale as they do on that type",
        "-",
        REFERENCE_TYPE,
        min_length=1,
    )
    gpu_w: float | dict[str, float] | None = quantity(
        "power added by each of its GPUs while it trains: a number, or one for each kind of model; absent: the node's",
        "W",
        None,
    )
    profile: str | tuple[str, ...] | None = quantity(
        "profiles of trainings on this type (`commonwatt profile`), relative to this file: their kinds are kinds of "
        "model, with the measured epochs and power; where every type of the cluster and the log has one of the same "
        "kind, jobs are of such kinds, as far as their GPU counts were measured",
        "-",
        None,
        min_length=1,
    )
    most_gpus: int | None = quantity(
        "most GPUs of this type that one job can use; absent: no limit, and 1 for a MIG slice", "GPUs", None, ge=1
    )

    @property
    def profiles(self) -> tuple[str, ...]:
        """Paths of its profiles."""
        return (self.profile,) if isinstance(self.profile, str) else self.profile or ()

    @model_validator(mode="after")
    def _check(self) -> GpuTypeSpec:
        for field, given, least in (("speed", self.speed, "above 0"), ("gpu_w", self.gpu_w, "0 or more")):
            figures = given if isinstance(given, dict) else {} if given is None else {"": given}
            if isinstance(given, dict) and not given:
                raise FieldError("a number, or one for each kind of model", field=field, value="{}")
            for kind, figure in figures.items():
                if not 0 <= figure < math.inf or (field == "speed" and figure == 0):
                    raise FieldError(
                        f"a number {least}", field=f"{field}.{kind}" if kind else field, value=f"{figure:g}"
                    )
        return self


class PowerState(FileModel):
    """A low-power state an unused node can be put into."""

    name: str = quantity("name of the state, such as sleep or off", "-", min_length=1)
    power_w: float = quantity("power in this state", "W", 0.0, ge=0)
    enter_s: float = quantity("time to enter the state, at idle power", "s", 0.0, ge=0)
    wake_s: float = quantity("time to wake, at idle power", "s", 0.0, ge=0)
    wake_j: float = quantity("energy of waking beyond idle power", "J", 0.0, ge=0)


OFF = PowerState(name="off")
_Feature = Annotated[str, Field(pattern=f"^{FEATURE}$")]
_PATH = r"^[^/\s]+(/[^/\s]+)*$"
FEATURES = "features it has, as Slurm has them, for jobs that ask for some (`constraint`)"
PARTITIONS = "partitions it is in, as Slurm has them; none: it runs jobs of every partition"
DOMAIN = (
    "where it is in the network, from wide to narrow with slashes between, such as block-1/rack-2: a switch, an NVLink "
    "domain; of nodes that are otherwise equal, a job of several takes those in the fewest domains"
)
SHARE_WEIGHT = (
    "how many GPUs each of its GPUs counts as in the use and the shares of tenants (`fair-share`, `fairness`), such as "
    "its price or its speed over that of another type (Slurm's TRESBillingWeights)"
)


class NodeSpec(FileModel):
    """A node, or `count` equal nodes."""

    name: str = quantity("name of the node; with `count`, the prefix of the numbered names", "-", min_length=1)
    count: int = quantity(
        "number of equal nodes; more than one are named NAME-1, NAME-2, ...", "-", 1, ge=1, le=1_000_000
    )
    gpu_type: str = quantity("type of its GPUs", "-", min_length=1)
    gpus: int = quantity("number of its GPUs", "GPUs", ge=1, le=1024)
    idle_w: float = quantity("power of the node while on, without its busy GPUs", "W", ge=0)
    gpu_w: float = quantity("power added by each busy GPU", "W", ge=0)
    states: tuple[PowerState, ...] = quantity("low-power states of an unused node; none: it stays on", "-", (OFF,))
    host: str | None = quantity(
        "machine that this node is a part of, where it has GPUs of several types; such a part has no low-power states",
        "-", None, min_length=1,
    )  # fmt: skip
    partitions: tuple[str, ...] = quantity(PARTITIONS, "-", ())
    features: tuple[_Feature, ...] = quantity(FEATURES, "-", ())
    domain: str | None = quantity(DOMAIN, "-", None, pattern=_PATH)
    cpus: int | None = quantity("its CPUs, for jobs that ask for some; absent: not limited", "CPUs", None, ge=1)
    memory_gib: float | None = quantity(
        "its memory, for jobs that ask for some; absent: not limited", "GiB", None, gt=0
    )
    share: tuple[Literal["mig", "time"], ...] = quantity(
        "ways in which its GPUs may be shared: cut by MIG, or in time; none: they are whole", "-", ()
    )
    platform: str | None = quantity(
        "its GPUs are multi-core accelerators: a setting of `map` (S1 to S6), on which mapping says how fast the "
        "networks of a service are",
        "-", None,
    )  # fmt: skip
    share_weight: float = quantity(SHARE_WEIGHT, "GPUs", 1.0, gt=0, lt=math.inf)

    @model_validator(mode="before")
    @classmethod
    def _stay_on(cls, raw: Any) -> Any:  # noqa: ANN401
        part = isinstance(raw, Mapping) and raw.get("host") is not None and "states" not in raw
        return {**raw, "states": ()} if part else raw

    @model_validator(mode="after")
    def _check(self) -> NodeSpec:
        if self.host is not None and self.count > 1:
            raise FieldError(f"1, as it is a part of {self.host}", field="count", value=self.count)
        if self.host is not None and self.states:
            raise FieldError(
                f"none, as a part of {self.host} cannot sleep alone", field="states", value=self.states[0].name
            )
        return self


_Weight = Annotated[float, Field(gt=0, lt=math.inf)]


class MixedNodeSpec(FileModel):
    """A node with GPUs of several types, or `count` equal ones."""

    name: str = quantity("name of the node; with `count`, the prefix of the numbered names", "-", min_length=1)
    count: int = quantity("number of equal nodes", "-", 1, ge=1, le=100_000)
    gpus: dict[str, Annotated[int, Field(ge=1, le=1024)]] = quantity(
        "number of its GPUs by type; each type becomes a node NAME:TYPE", "GPUs", min_length=1
    )
    idle_w: float = quantity(
        "power of the node while on, without its busy GPUs; its parts have it in proportion to their GPUs", "W", ge=0
    )
    gpu_w: Annotated[float, Field(ge=0)] | dict[str, Annotated[float, Field(ge=0)]] = quantity(
        "power added by each busy GPU: one number, or one for each type", "W"
    )
    partitions: tuple[str, ...] = quantity(PARTITIONS, "-", ())
    features: tuple[_Feature, ...] = quantity(FEATURES, "-", ())
    domain: str | None = quantity(DOMAIN, "-", None, pattern=_PATH)
    share_weight: _Weight | dict[str, _Weight] = quantity(
        f"{SHARE_WEIGHT}: one number, or one for each type", "GPUs", 1.0
    )

    @model_validator(mode="after")
    def _check(self) -> MixedNodeSpec:
        for field, given in (("gpu_w", self.gpu_w), ("share_weight", self.share_weight)):
            if isinstance(given, dict) and given.keys() != self.gpus.keys():
                raise FieldError(
                    f"one for each of {', '.join(self.gpus)}", field=field, value=", ".join(given) or "none"
                )
        return self

    def parts(self) -> list[NodeSpec]:
        """Return a node for each machine and type."""
        total = sum(self.gpus.values())
        return [
            NodeSpec(
                name=f"{host}:{gpu_type}", host=host, gpu_type=gpu_type, gpus=gpus, idle_w=self.idle_w * gpus / total,
                gpu_w=self.gpu_w[gpu_type] if isinstance(self.gpu_w, dict) else self.gpu_w, partitions=self.partitions,
                features=self.features, domain=self.domain,
                share_weight=self.share_weight[gpu_type] if isinstance(self.share_weight, dict) else self.share_weight,
            )
            for host in numbered(self.name, self.count)
            for gpu_type, gpus in self.gpus.items()
        ]  # fmt: skip


def numbered(name: str, count: int) -> list[str]:
    """Return the names of *count* nodes: NAME, or NAME-1, NAME-2, ... with equally many digits."""
    width = len(str(count))
    return [name] if count == 1 else [f"{name}-{i:0{width}}" for i in range(1, count + 1)]


def expanded(specs: Iterable[NodeSpec | MixedNodeSpec]) -> tuple[NodeSpec, ...]:
    """Return *specs* with a node for each type of a machine that has several."""
    return tuple(part for spec in specs for part in ([spec] if isinstance(spec, NodeSpec) else spec.parts()))


def _sort(raw: Any) -> str:  # noqa: ANN401
    gpus = raw.get("gpus") if isinstance(raw, Mapping) else getattr(raw, "gpus", None)
    return "several types" if isinstance(gpus, Mapping) else "one type"


if TYPE_CHECKING:
    NodeSpecs = tuple[NodeSpec, ...]
else:  # what is read may have several types on a node; what code sees has one
    NodeSpecs = Annotated[
        tuple[
            Annotated[
                Annotated[NodeSpec, Tag("one type")] | Annotated[MixedNodeSpec, Tag("several types")],
                Discriminator(_sort),
            ],
            ...,
        ],
        AfterValidator(expanded),
    ]


@dataclass(frozen=True)
class NodeClass:
    """Nodes of one GPU type, size and power, in the same partitions, with the same features."""

    gpu_type: str
    gpus: int
    idle_w: float
    gpu_w: float
    states: tuple[PowerState, ...] = (OFF,)
    partitions: tuple[str, ...] = ()
    share: tuple[str, ...] = ()
    platform: str | None = None
    cpus: int | None = None
    memory_gib: float | None = None
    share_weight: float = 1.0
    features: tuple[str, ...] = ()

    def admits(self, partition: str, constraint: str = "") -> bool:
        """Whether jobs of *partition*, or of one of several with commas between them, run on these nodes.

        They also need the features of *constraint*; "": none.
        """
        inside = not (partition and self.partitions) or any(name in self.partitions for name in partition.split(","))
        return inside and (not constraint or meets(constraint, self.features))

    def holds(self, gpus: int, cpus_per_gpu: float, memory_gib_per_gpu: float) -> bool:
        """Whether a node has the CPUs and the memory that so many GPUs need; a node without a figure has enough."""
        return (self.cpus is None or gpus * cpus_per_gpu <= self.cpus) and (
            self.memory_gib is None or gpus * memory_gib_per_gpu <= self.memory_gib
        )

    def power_w(self, gpus: int) -> float:
        """Return the power with *gpus* busy GPUs."""
        return self.idle_w + gpus * self.gpu_w

    def deepest(self, names: Collection[str] | None = None) -> PowerState | None:
        """Return the state that draws least, of those called *names* if given; ``None`` if there is none."""
        allowed = (state for state in self.states if names is None or state.name in names)
        return min(allowed, key=lambda state: state.power_w, default=None)

    def state(self, name: str) -> PowerState:
        """Return the low-power state called *name*; raises ``InputError`` if there is none."""
        for state in self.states:
            if state.name == name:
                return state
        states = ", ".join(state.name for state in self.states) or "no state"
        raise InputError(f"a power state of its nodes ({states})", field="unused_nodes.state", value=name)


@dataclass(frozen=True)
class Hosts:
    """Nodes whose GPUs are on several hosts, and what it does to a job how its GPUs are spread over them.

    A scheduler sees such a node as one. The simulated engine says which GPUs a job gets: larger jobs first, the same
    as before if they are free, else the first free ones; a job whose GPUs per host change is started again.

    Attributes
    ----------
    gpus
        GPUs of each host, by name of the node.
    times_s
        Run time of a whole job by its ``kind``, GPU type and GPUs on each host, in order; where it is absent, the
        job's time for so many GPUs.
    """

    gpus: Mapping[str, tuple[int, ...]]
    times_s: Mapping[tuple[str, str, tuple[int, ...]], float]


@dataclass(frozen=True)
class Cluster:
    """All nodes by index, and their classes in order of first appearance."""

    names: tuple[str, ...]  # [N]
    klass: Ints  # [N] index into classes
    classes: tuple[NodeClass, ...]  # [K]
    domain: Ints | None = None  # [N, levels] domain of each level, wide to narrow, that a node is in; None: not known

    @classmethod
    def of(cls, specs: Iterable[NodeSpec]) -> Cluster:
        """Expand counts; raises ``InputError`` on a duplicate name or an empty cluster."""
        names: list[str] = []
        klass: list[int] = []
        paths: list[str | None] = []
        classes: dict[NodeClass, int] = {}
        for spec in specs:
            kind = NodeClass(
                spec.gpu_type, spec.gpus, spec.idle_w, spec.gpu_w, spec.states, tuple(sorted(set(spec.partitions))),
                tuple(sorted(set(spec.share))), spec.platform, spec.cpus, spec.memory_gib,
                spec.share_weight, tuple(sorted(set(spec.features))),
            )  # fmt: skip
            index = classes.setdefault(kind, len(classes))
            names += numbered(spec.name, spec.count)
            klass += [index] * spec.count
            paths += [spec.domain] * spec.count
        if not names:
            raise InputError("at least one node", field="nodes", value="none")
        seen: set[str] = set()
        for name in names:
            if name in seen:
                raise InputError("distinct node names", field="nodes.name", value=name)
            seen.add(name)
        return cls(tuple(names), np.array(klass, dtype=np.int64), tuple(classes), _domains(paths))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def gpus(self) -> Ints:
        """GPUs of each node, [N]."""
        return np.array([kind.gpus for kind in self.classes], dtype=np.int64)[self.klass]

    @property
    def total_gpus(self) -> int:
        """GPUs of the whole cluster."""
        return int(self.gpus.sum())

    @property
    def share_weights(self) -> Floats | None:
        """GPUs that a GPU of each class counts as in shares of tenants, [K]; ``None``: all count alike, as one."""
        weights = [kind.share_weight for kind in self.classes]
        return None if all(weight == 1 for weight in weights) else np.array(weights)

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """GPU types present, in order of first appearance."""
        return tuple(dict.fromkeys(kind.gpu_type for kind in self.classes))

    def by_name(self) -> dict[str, tuple[int, ...]]:
        """Return the nodes of each name, as indices; a machine with several GPU types has all its parts."""
        nodes: dict[str, tuple[int, ...]] = {name: (n,) for n, name in enumerate(self.names)}
        for n, name in enumerate(self.names):
            host = name.rpartition(":")[0]
            if host:
                nodes[host] = (*nodes.get(host, ()), n)
        return nodes

    def without(self, names: Collection[str]) -> Cluster:
        """Return the cluster of the other nodes, with the same classes, some of which may be empty."""
        kept = [n for n, name in enumerate(self.names) if name not in names]
        domain = None if self.domain is None else self.domain[kept]
        return Cluster(tuple(self.names[n] for n in kept), self.klass[kept], self.classes, domain)

    def class_sizes(self) -> Ints:
        """Number of nodes of each class, [K]."""
        return np.array(self._sizes, dtype=np.int64)

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(np.bincount(self.klass, minlength=len(self.classes)).tolist())

    def shapes(
        self, gpu_type: str, gpus: int, partition: str = "", width: int = 0, constraint: str = ""
    ) -> list[tuple[int, int, int]]:  # fmt: skip
        """Return the ways to allocate *gpus* GPUs of *gpu_type*: ``(class, nodes, GPUs on each)``.

        One node if they fit; else a gang: the fewest nodes of one class with equally many GPUs each; *width* nodes if
        that is not 0, as many as have *-width* GPUs each if it is negative. Only nodes that admit jobs of *partition*
        with *constraint* count.
        """
        sizes = self._sizes
        shapes = []
        for index, kind in enumerate(self.classes):
            if kind.gpu_type != gpu_type or not kind.admits(partition, constraint):
                continue
            fewest, most = max(1, -(-gpus // kind.gpus)), min(gpus, sizes[index])
            wanted = width if width >= 0 else -(gpus // width) if gpus % width == 0 else most + 1
            widths = range(fewest, most + 1) if not width else (wanted,) if fewest <= wanted <= most else ()
            nodes = next((k for k in widths if gpus % k == 0), 0)
            if nodes:
                shapes.append((index, nodes, gpus // nodes))
        return shapes


def _domains(paths: Sequence[str | None]) -> Ints | None:
    """Return the domain of each level that a node with each of *paths* is in, [N, levels]; ``None``: all are unknown.

    A node of which no domain is known at a level is in one of its own.
    """
    if not any(paths):
        return None
    parts: list[tuple[str | int, ...]] = [tuple(path.split("/")) if path else () for path in paths]
    levels = max(map(len, parts))
    ids: dict[tuple[str | int, ...], int] = {}
    return np.array(
        [[ids.setdefault((*own, n)[: level + 1], len(ids)) for level in range(levels)] for n, own in enumerate(parts)],
        dtype=np.int64,
    )
