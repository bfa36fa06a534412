"""Makes a log's jobs of one size malleable.

A log tells that a job ran for so long on so many GPUs of some type. It does not tell which model was trained, nor how
long it would have taken elsewhere. Both are supplied here:

1. Each job is given a kind of model, drawn with the seed, every kind being equally likely that has a known speed on
   what the job ran on and on a GPU type of the cluster.
2. Its logged run time and that speed fix its amount of work. On g GPUs of a type it takes
   ``logged time * speed(logged type, asked) / speed(type, g)``.
3. Counts (``counts``): a job that asked for up to 8 GPUs may get 1, 2, 4, 8, ... and what it asked for, up to
   ``largest_growth`` times that. A larger one may be doubled within that limit, and halved as long as whole groups of
   8 remain.
4. A count that is not faster than a smaller one on the same type is left out. What the job asked for stays even then:
   schedulers that do not resize jobs give exactly that.
5. Due dates and tardiness weights are drawn as ``DueDates`` says; the weight is per GPU asked for.
6. ``malleable: false`` keeps a job at the count it asked for; ``other_types: false`` at the GPU type it ran on, where
   the cluster has that type; ``other_partitions: true`` lets it leave the nodes of its partition. None of them changes
   what is drawn: the same seed gives a job the same kind, factor and weight.
7. Where policies may limit the power of GPUs, a job also has its configurations with each limit: it takes longer by the
   factor measured on one GPU, also where communication takes a part of the time, and its GPUs draw their part.

The job's owner is taken to have asked for the GPUs the log shows, and for the GPU type it names if the cluster has
it. GPU types are matched whatever their case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from commonwatt.data.log import JobLog
from commonwatt.data.profiles import DEFAULT_LOGGED, Profiles, preferred, types_of_assumed_speed
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError
from commonwatt.model.jobs import JobArrays
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import LogWorkload, WeekWorkload

__all__ = ["APART", "LACKING", "counts", "malleable", "partitions_of", "treatments", "types_ran_on"]


LACKING = "ran on a GPU type the cluster lacks: on any type"
APART = "ran on a GPU type that no node of its partition has: on any type there"
WORTH_LIMITING = 0.98  # energy of a job with a power limit, over that without: at least so little, or it has none
_NODE = 8  # GPUs of the largest common node


def counts(asked: int, largest_growth: float) -> list[int]:
    """Return the possible GPU counts of a job that requested *asked*, increasing.

    >>> counts(2, 2.0), counts(3, 2.0), counts(16, 2.0), counts(12, 1.5)
    ([1, 2, 4], [1, 2, 3, 4], [8, 16, 32], [12])
    """
    limit = int(asked * largest_growth)
    if asked <= _NODE:
        return sorted({asked, *(2**k for k in range(limit.bit_length()) if 2**k <= limit)})
    sizes = {asked}
    larger, smaller = 2 * asked, asked
    while larger <= limit:
        sizes.add(larger)
        larger *= 2
    while smaller % (2 * _NODE) == 0:
        smaller //= 2
        sizes.add(smaller)
    return sorted(sizes)


@dataclass(frozen=True)
class _Template:
    """Configurations of all jobs of one kind that ran on the same type and count."""

    type: Ints  # index into the cluster's types
    gpus: Ints
    time: Floats  # relative to the logged run time
    gpu_w: Floats
    power_limit: Floats  # of a GPU, as a part of its highest


@dataclass(frozen=True)
class _Maker:
    profiles: Profiles
    gpu_types: Sequence[str]  # of the cluster
    spec: LogWorkload | WeekWorkload
    reach: tuple[tuple[int, ...], ...]  # of each partition: the types of its nodes, as indices
    limits: tuple[float, ...] = ()  # power limits of GPUs beside the highest
    node_w: Mapping[str, float] = field(default_factory=dict)  # power of a busy GPU by type, as the nodes say

    def kinds(self, ran_on: str, asked: int, partition: int) -> list[int]:
        """Return the possible kinds of such a job."""
        types = [self.gpu_types[i] for i in self.reach[partition]]
        possible = [
            i
            for i, kind in enumerate(self.profiles.kinds)
            if self.profiles.speed(kind, ran_on, asked)
            and any(self.profiles.speed(kind, name, asked) for name in types)
        ]
        own = preferred(self.profiles)
        return [i for i in possible if self.profiles.kinds[i] in own] or possible

    def template(self, kind: int, ran_on: str, asked: int, partition: int) -> _Template:
        """Return the configurations of such a job of that kind."""
        name = self.profiles.kinds[kind]
        logged = self.profiles.speed(name, ran_on, asked)
        allowed = counts(asked, self.spec.largest_growth) if self.spec.malleable else [asked]
        rows: list[tuple[int, int, float, float, float]] = []
        for index in self._types(ran_on, partition):
            gpu_type = self.gpu_types[index]
            watts = self.profiles.gpu_w(name, gpu_type)
            fastest = 0.0
            for gpus in allowed:
                speed = self.profiles.speed(name, gpu_type, gpus)
                if speed is None or logged is None or (speed <= fastest and gpus != asked):
                    continue
                fastest = max(fastest, speed)
                rows.append((index, gpus, logged / speed, np.nan if watts is None else watts, 1.0))
        rows += [own for row in rows for limit in self.limits if (own := self._limited(name, row, limit)) is not None]
        types, gpus_, times, power, limits = np.array(rows).T
        return _Template(types.astype(np.int64), gpus_.astype(np.int64), times, power, limits)

    def _limited(
        self, kind: str, row: tuple[int, int, float, float, float], limit: float
    ) -> tuple[int, int, float, float, float] | None:
        """Return *row* with a power limit; ``None`` where that saves no energy, or where it is not known."""
        gpu_type, gpus, time, watts, _ = row
        name = self.gpu_types[gpu_type]
        whole_w = self.node_w.get(name, 0.0) if np.isnan(watts) else watts
        factors = self.profiles.limited(kind, name, limit)
        if factors is None or whole_w == 0 or factors[0] * factors[1] >= WORTH_LIMITING:
            return None
        return gpu_type, gpus, time * factors[0], whole_w * factors[1], limit

    def _types(self, ran_on: str, partition: int) -> Sequence[int]:
        """Return the types of the cluster, as indices, on which a job may run that ran on *ran_on*."""
        reach = self.reach[partition] if _keeps_partitions(self.spec) else range(len(self.gpu_types))
        own = [i for i in reach if self.profiles.type_named(self.gpu_types[i]) == ran_on]
        return reach if self.spec.other_types or not own else own


def malleable(
    log: JobLog,
    spec: LogWorkload | WeekWorkload,
    profiles: Profiles,
    gpu_types: Sequence[str],
    rng: np.random.Generator,
    cluster: Cluster | None = None,
    limits: Sequence[float] = (),
) -> JobArrays:
    """Make the jobs of *log* malleable on a cluster with *gpu_types*; the partitions of its nodes are of *cluster*.

    They can run with *limits* of power, too, parts of a GPU's highest limit, where that saves energy: after all other
    configurations of a job. Where only nodes say what a busy GPU draws, a limited one draws its part of their mean.

    Raises ``InputError`` on a GPU type, of the log or the cluster, whose speed is unknown.
    """
    for name in gpu_types:
        profiles.type_named(name, "nodes.gpu_type")
    maker = _Maker(profiles, gpu_types, spec, _reach(log, gpu_types, cluster), tuple(limits), _node_w(cluster))
    ran_on, ran_types = types_ran_on(log, spec, profiles)
    kind = _draw_kinds(maker, log, ran_on, ran_types, rng)
    templates, which = _templates(maker, log, ran_on, ran_types, kind)
    due_s, weight = _due_dates(log, spec, rng)
    sizes = np.array([len(t.type) for t in templates], dtype=np.int64)[which]
    start = np.concatenate(([0], np.cumsum(sizes)))
    first = np.cumsum([0, *(len(t.type) for t in templates[:-1])])
    rows = np.arange(start[-1]) + np.repeat(first[which] - start[:-1], sizes)
    tenants = {name: i for i, name in enumerate(dict.fromkeys(log.tenant))}
    return JobArrays(
        names=log.job,
        tenants=tuple(tenants),
        gpu_types=tuple(gpu_types),
        tenant=np.array([tenants[name] for name in log.tenant], dtype=np.int64),
        submit_s=log.submit_s,
        due_s=due_s,
        tardiness_weight=weight * log.gpus,
        epochs=np.maximum(1, np.rint(log.duration_s / spec.epoch_s)).astype(np.int64),
        requested_gpus=log.gpus,
        requested_type=_requested_types(log, gpu_types, profiles),
        time_limit_s=_limits(log, spec),
        kinds=tuple(profiles.kinds[k] for k in kind),
        start=start,
        series=log.series,
        user=log.user if any(log.qos) else (),
        qos=log.qos,
        known_s=log.known_s,
        after=log.after,
        partition=log.partition if _keeps_partitions(spec) else (),
        config_type=np.concatenate([t.type for t in templates])[rows],
        config_gpus=np.concatenate([t.gpus for t in templates])[rows],
        config_time_s=np.concatenate([t.time for t in templates])[rows] * np.repeat(log.duration_s, sizes),
        config_gpu_w=np.concatenate([t.gpu_w for t in templates])[rows],
        config_power_limit=np.concatenate([t.power_limit for t in templates])[rows] if limits else np.zeros(0),
        cpus_per_gpu=log.cpus / log.gpus if len(log.cpus) else log.cpus,
        memory_gib_per_gpu=log.memory_gib / log.gpus if len(log.memory_gib) else log.memory_gib,
    )


def treatments(
    log: JobLog, spec: LogWorkload | WeekWorkload, profiles: Profiles, gpu_types: Sequence[str],
    cluster: Cluster | None = None,
) -> dict[str, int]:  # fmt: skip
    """Return how many jobs the switches of *spec* do not apply to, by what was done instead."""
    counted: dict[str, int] = {}
    if not spec.other_types:
        own, foreign = {profiles.type_named(name) for name in gpu_types}, types_of_assumed_speed(profiles)
        ran_on, ran_types = types_ran_on(log, spec, profiles)
        lacking = sum(
            ran_types[index] not in own or name in foreign for index, name in zip(ran_on, log.gpu_type, strict=True)
        )
        counted[LACKING] = lacking
        reach = _reach(log, gpu_types, cluster)
        part, _ = partitions_of(log)
        there = [{profiles.type_named(gpu_types[i]) for i in types} for types in reach]
        counted[APART] = sum(
            bool(name) and ran_types[index] in own and ran_types[index] not in there[p]
            for name, index, p in zip(log.gpu_type, ran_on, part, strict=True)
        )
    if spec.due_dates != "none" and spec.due_dates.rule == "time-limit":
        counted["without a time limit: no due date"] = int(np.isinf(_limits(log, spec)).sum())
    if spec.due_dates != "none" and spec.due_dates.rule == "qos":
        counted["of a QOS without a rule for it: no due date"] = int(np.isinf(_by_qos(log, spec)).sum())
    return {how: number for how, number in counted.items() if number}


def types_ran_on(log: JobLog, spec: LogWorkload | WeekWorkload, profiles: Profiles) -> tuple[Ints, tuple[str, ...]]:
    """Return the index of each job's type into the types that jobs ran on, and these types."""
    otherwise = profiles.type_named(spec.logged_gpu_type or DEFAULT_LOGGED, "workload.logged_gpu_type")
    name_of = {n: profiles.type_named(n, "gpu_type", log.path) if n else otherwise for n in dict.fromkeys(log.gpu_type)}
    types = tuple(dict.fromkeys(name_of.values()))
    return np.array([types.index(name_of[name]) for name in log.gpu_type], dtype=np.int64), types


def partitions_of(log: JobLog) -> tuple[Ints, tuple[str, ...]]:
    """Return the index of each job's partition into the partitions jobs name ("": any), and these."""
    names = tuple(dict.fromkeys(log.partition)) or ("",)
    at = {name: i for i, name in enumerate(names)}
    return np.array([at[name] for name in log.partition] or [0] * len(log), dtype=np.int64), names


def _keeps_partitions(spec: LogWorkload | WeekWorkload) -> bool:
    return isinstance(spec, LogWorkload) and not spec.other_partitions


def _reach(log: JobLog, gpu_types: Sequence[str], cluster: Cluster | None) -> tuple[tuple[int, ...], ...]:
    classes = () if cluster is None else cluster.classes
    reached = ({kind.gpu_type for kind in classes if kind.admits(name)} for name in partitions_of(log)[1])
    return tuple(tuple(i for i, name in enumerate(gpu_types) if name in own or not classes) for own in reached)


def _draw_kinds(maker: _Maker, log: JobLog, ran_on: Ints, types: Sequence[str], rng: np.random.Generator) -> Ints:
    draw = rng.random(len(log))
    kind = np.zeros(len(log), dtype=np.int64)
    part, _ = partitions_of(log)
    for index, asked, partition in np.unique(np.stack((ran_on, log.gpus, part)), axis=1).T:
        possible = maker.kinds(types[index], int(asked), partition)
        if not possible:
            where = f"{asked} {types[index]}"
            expected = (
                f"a GPU type on which some kind of model has a known speed, and on {', '.join(maker.gpu_types)} too"
            )
            raise InputError(expected, file=log.path, field="gpu_type", value=where)
        own = (ran_on == index) & (log.gpus == asked) & (part == partition)
        kind[own] = np.array(possible)[(draw[own] * len(possible)).astype(np.int64)]
    return kind


def _templates(
    maker: _Maker, log: JobLog, ran_on: Ints, types: Sequence[str], kind: Ints
) -> tuple[list[_Template], Ints]:
    """Return a template for each combination that occurs, and the template of each job."""
    part, _ = partitions_of(log)
    different, which = np.unique(np.stack((kind, ran_on, log.gpus, part)), axis=1, return_inverse=True)
    return [maker.template(int(k), types[t], int(g), p) for k, t, g, p in different.T], which.reshape(-1)


def _node_w(cluster: Cluster | None) -> dict[str, float]:
    """Power of a busy GPU by type, the mean over the nodes, W."""
    if cluster is None:
        return {}
    gpus = cluster.class_sizes() * [kind.gpus for kind in cluster.classes]
    watts = np.array([kind.gpu_w for kind in cluster.classes])
    types = np.array([kind.gpu_type for kind in cluster.classes])
    return {name: float(np.average(watts[types == name], weights=gpus[types == name])) for name in cluster.gpu_types}


def _requested_types(log: JobLog, gpu_types: Sequence[str], profiles: Profiles) -> Ints:
    at = {profiles.type_named(name): i for i, name in reversed(list(enumerate(gpu_types)))}
    of_name = {name: at.get(profiles.type_named(name), -1) if name else -1 for name in dict.fromkeys(log.gpu_type)}
    return np.array([of_name[name] for name in log.gpu_type], dtype=np.int64)


def _due_dates(log: JobLog, spec: LogWorkload | WeekWorkload, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return due dates and tardiness weights per GPU."""
    if spec.due_dates == "none":
        return np.full(len(log), np.inf), np.zeros(len(log))
    rule = spec.due_dates
    slack = rng.uniform(*rule.slack_factor, size=len(log))
    weight = rng.choice(np.array(rule.tardiness_weights), size=len(log))
    if rule.rule == "time-limit":
        return log.submit_s + rule.limit_factor * _limits(log, spec), weight
    if rule.rule == "qos":
        if not any(log.qos):
            raise InputError(
                "a log that says which QOS jobs had", file=log.path, field="workload.due_dates.rule", value="qos"
            )
        return log.submit_s + _by_qos(log, spec), weight
    return log.submit_s + rule.least_slack_s + slack * log.duration_s, weight


def _by_qos(log: JobLog, spec: LogWorkload | WeekWorkload) -> Floats:
    by_qos_s = {} if spec.due_dates == "none" else spec.due_dates.by_qos_s
    return np.array([by_qos_s.get(name, np.inf) for name in log.qos or ("",) * len(log)])


def _limits(log: JobLog, spec: LogWorkload | WeekWorkload) -> Floats:
    factor = getattr(spec, "time_limit_factor", None)
    otherwise = np.full(len(log), np.inf) if factor is None else factor * log.duration_s
    return np.where(np.isnan(log.time_limit_s), otherwise, log.time_limit_s)
