"""A Job that a user created in Kubernetes (``batch/v1``), and the job that it, or a gang, is for the control plane."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commonwatt.engines.kubernetes.containers import seconds_of
from commonwatt.engines.kubernetes.objects import GATE, Node, matches, whole
from commonwatt.engines.kubernetes.settings import SCHEDULER, resource_of, shown, untolerated
from commonwatt.model.errors import InputError
from commonwatt.model.job_file import MOST_GPUS, JobFile, WorkloadSpec
from commonwatt.model.nodes import Cluster

__all__ = ["DUE", "RUN_TIME", "TENANT", "WEIGHT", "PodGroup", "UserJob", "asked", "by_kueue", "job_file", "left_to"]

TENANT = "commonwatt.io/tenant"
"""Label of the Jobs to be taken over: whose they are."""
DUE, RUN_TIME, WEIGHT, _TYPES, _KIND = (
    f"commonwatt.io/{word}" for word in ("due", "run-time", "tardiness-weight", "gpu-types", "kind")
)
_ASKED = frozenset({DUE, RUN_TIME, WEIGHT, _TYPES, _KIND})
_QUEUE = "kueue.x-k8s.io/queue-name"
_GANGS = frozenset({"JobSet", "PyTorchJob"})
_LIMITS = "containers.resources.limits"
_COMMANDS = {
    "Job": "batch/v1/Job", "JobSet": "jobset.x-k8s.io/v1alpha2/JobSet", "PyTorchJob": "kubeflow.org/v1/PyTorchJob",
}  # fmt: skip
_UNNAMED = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class PodGroup:
    """Pods of a gang that are alike: of a replicated job, or of a replica type.

    Attributes
    ----------
    field
        Where the spec of its pods is, for those who have to put it right.
    gpus
        What each of its *pods* requests, by resource.
    scheduler, rules, requests, ignored, priority_class
        As of ``UserJob``.
    """

    field: str
    pods: int
    gpus: tuple[tuple[str, float], ...]
    scheduler: str
    rules: str = ""
    requests: tuple[tuple[str, float], ...] = ()
    ignored: tuple[str, ...] = ()
    priority_class: str = ""


@dataclass(frozen=True, slots=True)
class UserJob:
    """A Job, JobSet or PyTorchJob; times are seconds since 1970.

    *gpus* are what each of its *pods* requests, by resource. Pods without GPUs of a gang are not counted.

    Attributes
    ----------
    uid
        Another Job of the same name has another one.
    suspended
        Whether Kubernetes makes no pods of it.
    pods, completions
        How many run at once, and how many have to complete; ``None``: as many as it takes.
    end, why
        ``Complete``, ``Failed`` or "", and why it failed.
    timed_out
        Whether it failed because it ran for longer than its limit.
    end_s
        When it ended.
    left_to
        Who else starts it, so that it is left alone; "": nobody.
    queue
        Kueue's queue that it is in: Kueue alone suspends and resumes it; "": it is in none.
    was_suspended
        Whether Kubernetes says that it was suspended at some time.
    stopped
        Of a gang: whether its controller says that it is suspended, and so has its pods deleted.
    notes
        Annotations that say what it asks for.
    rules
        JSON of the node selector, affinity and tolerations of its pods.
    priority_class
        PriorityClass of its pods; "": none. Of a gang, that of the first pods with GPUs.
    kind
        ``Job``, or that of a gang.
    groups
        The pods of a gang that have GPUs; a Job has none.
    requests
        All that each of its pods requests, by resource, as Kubernetes counts it; where they differ, the most of each.
    succeeded
        How many of its pods have succeeded; they are not made again.
    ignored
        Fields of its pods that are wishes which are not kept.
    unfit
        Field, value and what was expected, where it cannot be taken over.
    """

    namespace: str
    name: str
    uid: str
    tenant: str
    deleting: bool
    suspended: bool
    pods: int
    completions: int | None
    gpus: tuple[tuple[str, float], ...]
    scheduler: str
    limit_s: float | None = None
    rules: str = ""
    left_to: str = ""
    queue: str = ""
    was_suspended: bool = False
    stopped: bool = False
    end: str = ""
    why: str = ""
    timed_out: bool = False
    end_s: float | None = None
    notes: tuple[tuple[str, str], ...] = ()
    kind: str = "Job"
    groups: tuple[PodGroup, ...] = ()
    requests: tuple[tuple[str, float], ...] = ()
    succeeded: int = 0
    ignored: tuple[str, ...] = ()
    priority_class: str = ""
    unfit: tuple[str, str, str] | None = None

    @property
    def gang(self) -> bool:
        """Whether another controller makes its pods, all at once, and none while it is suspended."""
        return self.kind != "Job"

    @property
    def path(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    @property
    def over(self) -> bool:
        """Whether it has ended, or is being deleted."""
        return bool(self.end) or self.deleting

    @property
    def ours_to_place(self) -> bool:
        """Whether nobody but commonwatt places its pods, or says where: they name our scheduler, or have our gate."""
        return self.scheduler == SCHEDULER


def asked(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the *meta* data of an object say for its ``UserJob``, of any kind."""
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    return {
        "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"], "tenant": labels.get(TENANT, ""),
        "deleting": "deletionTimestamp" in meta, "queue": labels.get(_QUEUE, ""),
        "notes": tuple(sorted((key, str(notes[key])) for key in _ASKED & notes.keys())),
    }  # fmt: skip


def left_to(meta: Mapping[str, Any], managed_by: object, own: str) -> str:
    """Return who else starts an object: whoever *managed_by* names besides its *own* controller, or a gang."""
    for owner in meta.get("ownerReferences") or ():
        if owner.get("controller") and owner.get("kind") in _GANGS:  # it is taken over as a part of that, or not at all
            return f"{owner['kind']} {owner.get('name', '')}"
    return "" if (managed_by or own) == own else str(managed_by)


def by_kueue(queue: str) -> str:
    """Return Kueue with its *queue*, in words; "" without one."""
    return f"Kueue (queue {queue})" if queue else ""


def job_file(job: UserJob, cluster: Cluster, nodes: Iterable[Node], resources: Mapping[str, str]) -> JobFile:
    """Return what is submitted for *job*: one that starts all its pods at once.

    Each pod of a Job is on a node of its own. Those of a gang share nodes: as many on each, on as few as possible.
    *nodes* are those of Kubernetes, *resources* those of GPU types, as in ``live.kubernetes``.

    Raises
    ------
    InputError
        If it cannot be taken over, naming the field of the Job.
    """
    notes = dict(job.notes)
    if job.unfit is not None:
        raise InputError(job.unfit[2], field=job.unfit[0], value=job.unfit[1])
    if not job.ours_to_place:
        expected = f"{SCHEDULER}, or the scheduling gate {GATE} where the server has those"
        raise InputError(expected, field=f"{_spec_of(job)}.schedulerName", value=job.scheduler or "none")
    if job.pods < 1:
        raise InputError("at least 1", field="spec.parallelism", value=job.pods)
    if not job.gang and job.completions != job.pods and not (job.pods == 1 and job.completions is None):
        expected = f"{job.pods} (spec.parallelism), as all pods start at once"
        raise InputError(expected, field="spec.completions", value=job.completions)
    there = {node.name: node for node in nodes}
    resource, each = _gpus(job, {resource_of(kind.gpu_type, resources) for kind in cluster.classes})
    types = _types(job, cluster, there, resources, resource)
    if wished := [name.strip() for name in notes.get(_TYPES, "").split(",") if name.strip()]:
        types = _wished(wished, types)
    gpus = job.pods * each
    if gpus > MOST_GPUS:
        field = job.groups[0].field if job.gang else "spec.parallelism"
        raise InputError(f"at most {MOST_GPUS} GPUs in all", field=field, value=f"{job.pods} pods with {each} each")
    beside = {name: amount for name, amount in job.requests if name != resource and amount}
    together, types = _Fitting(job, each, beside, cluster, there).shape(types)
    run_s = None if RUN_TIME not in notes else seconds_of(notes[RUN_TIME], f"metadata.annotations.{RUN_TIME}")
    return JobFile(
        name=_UNNAMED.sub("-", job.name)[:100].strip("-_."),
        command=(_COMMANDS[job.kind], f"{job.namespace}/{job.name}"),
        gpus=gpus, nodes=job.pods // together, gpu_types=tuple(types), due=notes.get(DUE), time_limit_s=job.limit_s,
        tardiness_weight=_weight(notes), kind=notes.get(_KIND, "")[:100],
        cpus_per_gpu=beside.get("cpu", 0.0) / each or None,
        memory_gib_per_gpu=beside.get("memory", 0.0) / 2**30 / each or None,
        times_s=None if run_s is None else {name: {gpus: run_s} for name in types},
        workload=WorkloadSpec(
            namespace=job.namespace, name=job.name, uid=job.uid, kind=job.kind, pods=job.pods if job.gang else None
        ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Fitting:
    """Whether nodes are large enough for the pods of a job, with *each* GPUs and what is *beside* them in a pod."""

    job: UserJob
    each: int
    beside: Mapping[str, float]
    cluster: Cluster
    there: Mapping[str, Node]

    def shape(self, types: Sequence[str]) -> tuple[int, list[str]]:
        """Return how many pods share a node, the most that have room, and those of *types* with nodes for that.

        Raises ``InputError`` if GPUs would suffice, and something beside them does not.
        """
        pods = self.job.pods
        counts = [n for n in range(pods, 0, -1) if pods % n == 0 and (self.job.gang or n == 1)]
        for n in counts:
            large = [t for t in types if len(self._hosts([t], n, self.beside)) >= pods // n]
            if large:
                return n, [t for t in types if t in large or len(self._hosts([t], n, {})) < pods // n]
        with_gpus = next((n for n in counts if self._hosts(types, n, {})), 1)
        if not any(len(self._hosts([t], n, {})) >= pods // n for t in types for n in counts):
            return with_gpus, list(types)  # GPUs are too few: who submits it says so
        hosts = [node for node in self._hosts(types, 1, {}) if node is not None]
        for name, amount in self.beside.items():
            most = max((node.allocatable.get(name, 0.0) for node in hosts), default=0.0)
            if amount > most + 1e-6:
                expected = f"at most {shown(name, most)}, all that the largest node with GPUs for it has"
                raise InputError(expected, field=_spec_of(self.job), value=f"a pod that requests {shown(name, amount)}")
        asked = ", ".join(shown(name, amount) for name, amount in self.beside.items())
        expected = "no more than enough nodes with GPUs for it have, together on each"
        raise InputError(expected, field=_spec_of(self.job), value=f"a pod that requests {asked}")

    def _hosts(self, types: Collection[str], pods: int, beside: Mapping[str, float]) -> list[Node | None]:
        """Return the nodes of *types* that have GPUs for so many pods, and what is *beside* them, while unused."""
        nodes = []
        for name, klass in zip(self.cluster.names, self.cluster.klass, strict=True):
            kind, node = self.cluster.classes[klass], self.there.get(name.partition(":")[0])
            if kind.gpu_type in types and kind.gpus >= pods * self.each:
                has = {} if node is None else node.allocatable
                if node is None or all(pods * n <= has.get(k, 0.0) + 1e-6 for k, n in beside.items()):
                    nodes.append(node)
        return nodes


def _gpus(job: UserJob, gpu_resources: Collection[str]) -> tuple[str, int]:
    """Return the resource that its pods request, of those in *gpu_resources* if there are any, and how many each."""
    field = f"{_spec_of(job)}.{_LIMITS}"
    requests = [each for each in job.gpus if each[0] in gpu_resources] or list(job.gpus)
    if len(requests) != 1:
        named = ", ".join(name for name, _ in requests) or "none"
        raise InputError("one resource that is GPUs, such as nvidia.com/gpu", field=field, value=named)
    ((resource, amount),) = requests
    if whole(amount) != amount:
        raise InputError("whole GPUs", field=field, value=amount)
    return resource, whole(amount)


def _types(
    job: UserJob, cluster: Cluster, there: Mapping[str, Node], resources: Mapping[str, str], resource: str
) -> list[str]:
    """Return the GPU types that are this resource and whose nodes, all of them, its pods select.

    Taints may keep them off some of these nodes: that is seen at each decision.
    """
    every_rule = [json.loads(text) if text else {} for text in ([group.rules for group in job.groups] or [job.rules])]
    selected: dict[str, bool] = {}
    closed: dict[str, str | None] = {}  # by this taint of a node; None: some node is open
    for name, klass in zip(cluster.names, cluster.klass, strict=True):
        gpu_type, node = cluster.classes[klass].gpu_type, there.get(name.partition(":")[0])
        if resource_of(gpu_type, resources) == resource:
            here = node is None or all(matches(rules, node.labels, node.name) for rules in every_rule)
            selected[gpu_type] = selected.get(gpu_type, True) and here
            if closed.get(gpu_type, "") is not None:
                closed[gpu_type] = None if node is None else untolerated(node, every_rule)
    if not selected:
        raise InputError("GPUs of a node of the configuration", field=f"{_spec_of(job)}.{_LIMITS}", value=resource)
    if not (types := [gpu_type for gpu_type, every in selected.items() if every]):
        expected = f"a node selector and an affinity that all nodes of a GPU type admit ({', '.join(selected)})"
        named = ", ".join(dict.fromkeys(name for rules in every_rule for name in rules if name != "tolerations"))
        raise InputError(expected, field=_spec_of(job), value=named)
    if open_types := [gpu_type for gpu_type in types if closed[gpu_type] is None]:
        return open_types
    expected = f"one that opens a node with {' or '.join(types)}, as for {closed[types[0]]}"
    raise InputError(expected, field=f"{_spec_of(job)}.tolerations", value="none for these")


def _spec_of(job: UserJob) -> str:
    """Return the name of the field with the spec of its pods; of a gang, of those that are wrong, or of the first."""
    wrong = (group.field for group in job.groups if group.scheduler != SCHEDULER)
    return next(wrong, job.groups[0].field) if job.groups else "spec.template.spec"


def _wished(wished: Sequence[str], types: Collection[str]) -> list[str]:
    folded = {name.casefold() for name in wished}
    if gpu_types := [name for name in types if name.casefold() in folded]:
        return gpu_types
    expected = f"GPU types its pods may be placed on ({', '.join(types)})"
    raise InputError(expected, field=f"metadata.annotations.{_TYPES}", value=", ".join(wished))


def _weight(notes: Mapping[str, str]) -> float:
    try:
        weight = float(notes.get(WEIGHT, "0"))
    except ValueError:
        weight = -1.0
    if not 0 <= weight <= 1e9:
        raise InputError("a number from 0 to 1e9", field=f"metadata.annotations.{WEIGHT}", value=notes[WEIGHT])
    return weight
