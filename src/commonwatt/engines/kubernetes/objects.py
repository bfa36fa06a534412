"""Pods and nodes as this engine needs them, read from the objects of the API."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from commonwatt.engines.kubernetes.containers import Container, containers_of, counted, moment_s, overused, requests_of

__all__ = [
    "ASLEEP", "ATTEMPT", "CLUSTER", "CORDON", "CPU", "DELETED_THERE", "GATE", "JOB", "MEMORY", "OWN_CONTAINER", "PODS",
    "RANK", "REQUIRED", "RUN", "GpuRequest", "Node", "Pod", "PodSeen", "bound_s", "disrupted", "is_gated", "kept_off",
    "matches", "node_of", "pod_of", "rules_of", "taken_away", "tolerated", "tolerations_of", "whole",
]  # fmt: skip

CLUSTER, JOB, ATTEMPT, RANK = (f"commonwatt.io/{word}" for word in ("cluster", "job", "attempt", "rank"))
"""Labels of our pods; annotations of the pods of users' Jobs, which they get when they are placed."""
RUN, CORDON = "commonwatt.io/run", "commonwatt.io/cordoned-by"
"""Annotations: of our pods, which tells runs of the same number apart; of the nodes we cordon."""
ASLEEP = "commonwatt.io/asleep"
"""Annotation of the nodes we put to sleep: what is under way."""
OWN_CONTAINER = "job"
"""Name of the container of our pods; a webhook may add others."""
GATE = "commonwatt.io/placement"
"""Scheduling gate of the pods that Kubernetes' scheduler is to place where we say."""
CPU, MEMORY, PODS = "cpu", "memory", "pods"

_OVER = frozenset({"Succeeded", "Failed"})
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
"""The part of an affinity that a scheduler has to keep."""
_RULES = ("nodeSelector", "affinity", "tolerations")
_GANGS = (
    "jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name", "leaderworkerset.sigs.k8s.io/name",
    "kueue.x-k8s.io/pod-group-name", "scheduling.x-k8s.io/pod-group", "volcano.sh/job-name",
)  # fmt: skip
"""Labels that name what a pod is a part of and starts with, all at once."""
_AUTOSCALERS = ("karpenter.sh/", "cluster-autoscaler.kubernetes.io/")
_BLOCKING = frozenset({"NoSchedule", "NoExecute"})

_CAUSES = {
    "Evicted": "the kubelet evicted its pod",
    "NodeLost": "its node was lost",
    "NodeShutdown": "its node was shut down",
    "Shutdown": "its node was shut down",
    "Terminated": "its node was shut down",
    "Preempting": "the kubelet gave its place to a critical pod",
    "NodeAffinity": "the kubelet refused its pod",
    "NodePorts": "the kubelet refused its pod, as a host port is taken",
    "UnexpectedAdmissionError": "the kubelet refused its pod",
}
PREEMPTED = "Kubernetes' scheduler gave its place to another pod"
BY_SCHEDULER = ("PreemptionByScheduler", "PreemptionByKubeScheduler")
"""Reasons of the condition DisruptionTarget."""
_DISRUPTIONS = {
    **dict.fromkeys(BY_SCHEDULER, PREEMPTED),
    "DeletionByTaintManager": "a taint of its node evicted its pod",
    "EvictionByEvictionAPI": "its pod was evicted, as when its node is drained",
    "DeletionByPodGC": "its node is gone",
    "TerminationByKubelet": "the kubelet ended its pod",
}
DELETED_THERE = "its pod was deleted in Kubernetes, not by commonwatt"
"""Why a run was interrupted."""
_NO_RECORD = "its pod is not there, and left no record: it was deleted, or never made"


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """What a pod that is not ours requests of a node's devices, and how it went. Times are seconds since 1970."""

    gpus: tuple[tuple[str, float], ...]  # devices by resource, such as nvidia.com/gpu
    gang: str = ""  # name of what it is a part of, if that runs all at once
    submit_s: float | None = None
    start_s: float | None = None
    end_s: float | None = None
    limit_s: float | None = None
    gated: bool = False  # it may not be scheduled yet
    rules: str = ""  # JSON of its node selector, affinity and tolerations, while it is not placed


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod. *requests* are what it takes of its node, by resource: GPUs of all kinds, CPUs, bytes, and others.

    For our own pods *run* is handle, attempt and rank, *mark* the annotation that tells runs apart. *owner* is the uid
    of the Job that made it; such a pod is one of ours once we have placed it. *rules* are JSON of its node selector,
    affinity and tolerations while it is not placed: a server may have added some.
    """

    namespace: str
    name: str
    uid: str
    node: str = ""
    phase: str = ""
    deleting: bool = False
    requests: tuple[tuple[str, float], ...] = ()
    cluster: str = ""
    run: tuple[int, int, int] | None = None
    mark: str = ""
    reason: str = ""
    message: str = ""
    overused: bool = False  # whether it was evicted for what it took itself
    disruption: str = ""  # reason of its condition DisruptionTarget
    container: Container | None = None
    request: GpuRequest | None = None  # of pods that are not ours
    owner: str = ""
    scheduler: str = ""  # who is to place it
    began_s: float | None = None  # when its container began
    gated: bool = False  # whether it has our gate
    nominated: str = ""  # node on which Kubernetes' scheduler makes room for it
    rules: str = ""
    bound_s: float | None = None  # when it was placed on its node

    @property
    def over(self) -> bool:
        """Whether its containers have terminated for good: it takes nothing any more."""
        return self.phase in _OVER


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod of a run: as it was seen last, ``None`` if never, and whether it is gone."""

    pod: Pod | None
    gone: bool = False

    @property
    def over(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.gone or (self.pod is not None and self.pod.over)

    @property
    def deleted(self) -> bool:
        """Whether somebody deleted it."""
        return self.gone or (self.pod is not None and self.pod.deleting)


def bound_s(seen: Mapping[int, PodSeen]) -> float | None:
    """Return when the last pod of a run was placed on its node, by Kubernetes; ``None`` if one was not, as is known."""
    moments = [one.pod.bound_s for one in seen.values() if one.pod is not None]
    times_s = [moment for moment in moments if moment is not None]
    return max(times_s) if times_s and len(times_s) == len(moments) else None


@dataclass(frozen=True, slots=True)
class Node:
    """A node. *ready* is the status of its condition Ready: True, False or Unknown."""

    name: str
    ready: str
    cordoned: bool
    taints: tuple[tuple[str, str, str], ...]  # key, value, effect
    labels: Mapping[str, str]
    allocatable: Mapping[str, float]
    cordoned_by: str = ""
    asleep: str = ""  # our annotation, JSON
    version: str = ""
    autoscaled: str = ""  # a label or annotation of an autoscaler


def pod_of(item: Mapping[str, Any]) -> Pod:
    """Return a pod of the API's object *item*.

    How it is, is read of all pods: one that we have placed goes on being ours if its owner takes our annotations off.
    """
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    labels, notes, conditions = meta.get("labels") or {}, meta.get("annotations") or {}, status.get("conditions") or ()
    phase, node = status.get("phase") or "", spec.get("nodeName") or ""
    owner = next((o["uid"] for o in meta.get("ownerReferences") or () if o.get("controller")), "")
    ours = CLUSTER in labels
    marks = notes if owner and not ours else labels
    numbers = [marks.get(label, "0") for label in (JOB, ATTEMPT, RANK)]
    whole = all(number.isascii() and number.isdigit() and len(number) <= 18 for number in numbers)
    cluster = marks.get(CLUSTER, "")
    return Pod(
        meta.get("namespace", ""), meta["name"], meta["uid"], node, phase, "deletionTimestamp" in meta,
        requests=() if phase in _OVER else tuple(sorted(requests_of(spec).items())),
        cluster=cluster, run=(int(numbers[0]), int(numbers[1]), int(numbers[2])) if cluster and whole else None,
        mark=notes.get(RUN, "") if cluster else "", reason=status.get("reason") or "",
        message=" ".join(str(status.get("message") or "").split())[:400],
        overused=overused(status),
        disruption=next((c.get("reason", "") for c in conditions if c.get("type") == "DisruptionTarget"), ""),
        container=containers_of(status, OWN_CONTAINER if ours else ""),
        request=None if cluster else _request(meta, spec, status),
        owner="" if ours else owner, scheduler=spec.get("schedulerName") or "", began_s=_began_s(status),
        gated=is_gated(spec), rules="" if node else rules_of(spec),
        nominated="" if node else status.get("nominatedNodeName") or "",
        bound_s=_bound_s(conditions) if node else None,
    )  # fmt: skip


def _bound_s(conditions: Iterable[Mapping[str, Any]]) -> float | None:
    return next((moment_s(c.get("lastTransitionTime")) for c in conditions if c.get("type") == "PodScheduled"), None)


def _began_s(status: Mapping[str, Any]) -> float | None:
    states = [each.get("state") or {} for each in status.get("containerStatuses") or ()]
    began = [moment_s((s.get("running") or s.get("terminated") or {}).get("startedAt")) for s in states]
    return min((moment for moment in began if moment is not None), default=None)


def _request(meta: Mapping[str, Any], spec: Mapping[str, Any], status: Mapping[str, Any]) -> GpuRequest | None:
    devices = tuple(sorted((name, amount) for name, amount in requests_of(spec).items() if "/" in name and amount >= 1))
    if not devices:
        return None
    labels, limit = meta.get("labels") or {}, spec.get("activeDeadlineSeconds")
    states = [each.get("state") or {} for each in status.get("containerStatuses") or ()]
    ended = [moment_s((s.get("terminated") or {}).get("finishedAt")) for s in states]
    ends_s = [moment for moment in ended if moment is not None]
    start_s, rules = _began_s(status), "" if spec.get("nodeName") else rules_of(spec)
    return GpuRequest(
        devices, gang=_gang(labels), submit_s=moment_s(meta.get("creationTimestamp")),
        start_s=moment_s(status.get("startTime")) if start_s is None else start_s,
        end_s=max(ends_s) if ends_s and status.get("phase") in _OVER else None,
        limit_s=None if limit is None else float(limit), gated=bool(spec.get("schedulingGates")),
        rules=rules,
    )  # fmt: skip


def is_gated(spec: Mapping[str, Any]) -> bool:
    """Whether the spec of a pod has our scheduling gate; a server that does not know gates has dropped it."""
    return any(gate.get("name") == GATE for gate in spec.get("schedulingGates") or ())


def rules_of(spec: Mapping[str, Any]) -> str:
    """Return the JSON of a pod's node selector, affinity and tolerations; "" if it has none."""
    rules = {key: spec[key] for key in _RULES if spec.get(key)}
    return json.dumps(rules, sort_keys=True) if rules else ""


def _gang(labels: Mapping[str, str]) -> str:
    label = next(((key, labels[key]) for key in _GANGS if labels.get(key)), None)
    if label is None:
        return ""
    index = labels.get("leaderworkerset.sigs.k8s.io/group-index") if label[0].startswith("leaderworkerset") else None
    return label[1] if index is None else f"{label[1]}-{index}"


def node_of(item: Mapping[str, Any]) -> Node:
    """Return a node of the API's object *item*."""
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    ready = next((c.get("status", "") for c in status.get("conditions") or () if c.get("type") == "Ready"), "Unknown")
    taints = tuple((t["key"], t.get("value") or "", t["effect"]) for t in spec.get("taints") or ())
    labels, notes = dict(meta.get("labels") or {}), meta.get("annotations") or {}
    return Node(
        meta["name"], ready, bool(spec.get("unschedulable")), taints, labels,
        counted(status.get("allocatable") or {}), notes.get(CORDON, ""), notes.get(ASLEEP, ""),
        meta.get("resourceVersion") or "", next((key for key in (*labels, *notes) if key.startswith(_AUTOSCALERS)), ""),
    )  # fmt: skip


def tolerated(taints: Iterable[tuple[str, str, str]], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    """Whether pods with *tolerations* may be placed on a node with *taints*."""
    entries = list(tolerations)
    return all(effect not in _BLOCKING or any(_fits(t, key, value, effect) for t in entries)
               for key, value, effect in taints)  # fmt: skip


def tolerations_of(rules: str) -> list[Any]:
    """Return the tolerations within *rules*, which are JSON or ""."""
    return list(json.loads(rules).get("tolerations") or ()) if rules else []


def kept_off(pod: Pod, scheduler: str, node: Node | None, taints: Iterable[tuple[str, str, str]]) -> str:
    """Return why a *node* with these lasting *taints* would not run a *pod* that is for *scheduler*; "": it would."""
    if pod.scheduler not in ("", scheduler) and not pod.gated:
        return f"is for scheduler {pod.scheduler} now, not for {scheduler}"
    if node is None or pod.node:
        return ""
    if not matches(json.loads(pod.rules) if pod.rules else {}, node.labels, node.name):
        return f"may not run on node {node.name}, by its node selector or affinity"
    return "" if tolerated(taints, tolerations_of(pod.rules)) else f"does not tolerate a taint of node {node.name}"


def _fits(toleration: Mapping[str, Any], key: str, value: str, effect: str) -> bool:
    if toleration.get("effect") not in (None, "", effect):
        return False
    exists = toleration.get("operator") == "Exists"
    if toleration.get("key") in (None, ""):
        return exists
    return toleration["key"] == key and (exists or (toleration.get("value") or "") == value)


def matches(pod: Mapping[str, Any], labels: Mapping[str, str], name: str) -> bool:
    """Whether the node selector and the required node affinity of a *pod* spec admit a node of these labels."""
    if any(labels.get(key) != value for key, value in (pod.get("nodeSelector") or {}).items()):
        return False
    affinity = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get(REQUIRED)
    if required is None:
        return True
    return any(
        all(_holds(rule, labels) for rule in term.get("matchExpressions") or ())
        and all(_holds(rule, {"metadata.name": name}) for rule in term.get("matchFields") or ())
        for term in required.get("nodeSelectorTerms") or ()
        if term.get("matchExpressions") or term.get("matchFields")
    )


def _holds(rule: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(rule.get("key", "")), list(rule.get("values") or ())
    match rule.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as which:
            try:
                sign = 1 if which == "Gt" else -1
                return value is not None and sign * (int(value) - int(values[0])) > 0
            except (ValueError, IndexError):
                return False
    return False


def whole(amount: float) -> int:
    """Return how many whole units *amount* has, whatever rounding left of it."""
    return max(0, math.floor(amount + 1e-6))


def disrupted(seen: PodSeen) -> str:
    """Return who took a pod from its node, in words; "" if nobody did."""
    pod = seen.pod
    if pod is None:
        return _NO_RECORD
    if pod.disruption:
        return f"{_DISRUPTIONS.get(pod.disruption, 'its pod was disrupted')} ({pod.disruption})"
    if pod.reason in _CAUSES or pod.reason.startswith("OutOf"):
        cause = _CAUSES.get(pod.reason, "the kubelet refused its pod")
        return f"{cause} ({pod.reason}){f': {pod.message}' if pod.message else ''}"
    if pod.container is not None and pod.container.reason == "ContainerStatusUnknown":
        return "its node lost its container (ContainerStatusUnknown)"
    return DELETED_THERE if seen.deleted else ""


def taken_away(seen: PodSeen) -> bool:
    """Whether somebody deleted a pod, and nothing says more."""
    return disrupted(seen) in (DELETED_THERE, _NO_RECORD)
