"""The cluster at one moment: nodes, our pods, and what others have; and the jobs of others."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from commonwatt.control.external_jobs import ExternalJob
from commonwatt.engines.kubernetes.api import KubernetesApi, RefusedByServerError, path_of
from commonwatt.engines.kubernetes.objects import PODS, Node, Pod, PodSeen, matches, pod_of, tolerated, whole
from commonwatt.engines.kubernetes.run import KubernetesRun
from commonwatt.engines.kubernetes.settings import pod_name, resource_of
from commonwatt.engines.local.folder import End
from commonwatt.model.errors import EngineError
from commonwatt.model.nodes import Cluster

__all__ = ["KubernetesSnapshot", "PodFinder", "Strays", "external_jobs", "lost", "refused", "snapshot_of"]

TypesOf = Callable[[str, str], Collection[str]]
_MOST_DELETED = 100  # strays in one poll


@dataclass(frozen=True)
class KubernetesSnapshot:
    """The cluster at one moment: nodes by name, our pods by handle, attempt and rank, and what others take."""

    nodes: Mapping[str, Node]
    own: Mapping[tuple[int, int, int], Pod]
    stray: tuple[Pod, ...]  # ours, and of no run that goes on
    others: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by node and resource, strays included
    steady_s: float = -1e18  # since when the server answers without interruption
    nominated: Collection[str] = ()  # nodes on which Kubernetes' scheduler makes room

    def there(self, hosts: Iterable[str]) -> list[Node]:
        """Return those of *hosts* that are nodes."""
        return [node for host in hosts if (node := self.nodes.get(host)) is not None]


def snapshot_of(
    pods: Collection[Pod], nodes: Iterable[Node], runs: Iterable[KubernetesRun], label: str, namespace: str,
    steady_s: float, users: Collection[str] = (), left: Collection[str] = (),
) -> KubernetesSnapshot:  # fmt: skip
    """Return the cluster with these *pods* and *nodes*.

    Ours are those with our *label* in our *namespace*, and those of users' Jobs that we have placed: it is on disk
    which these are, so that what somebody writes on them, or on others in the namespaces of *users*, changes nothing.
    Of a run that has ended, those in *left* have to go.
    """
    chosen: dict[str, tuple[int, int, int]] = {}
    marks: dict[tuple[int, int, int], tuple[str, str]] = {}
    for run in runs:
        for rank in run.ranks:
            if uid := run.pod_uid(rank):
                chosen[uid] = run.key(rank)
            else:
                marks[run.key(rank)] = run.mark, run.owner
    own: dict[tuple[int, int, int], Pod] = {}
    stray: list[Pod] = []
    others: dict[str, dict[str, float]] = {}
    for pod in pods:
        if pod.uid in chosen:
            own |= {chosen[pod.uid]: pod} if pod.node else {}
            continue
        labelled = pod.cluster == label and (
            pod.node and pod.namespace in users if pod.owner else pod.namespace == namespace
        )
        if labelled and pod.run is not None and marks.get(pod.run) == (pod.mark, pod.owner):
            own[pod.run] = pod
            continue
        if labelled if pod.over and not pod.owner else not pod.over and (labelled or pod.uid in left):
            stray.append(pod)  # those of Jobs that are over Kubernetes keeps
        if (host := pod.node or pod.nominated) and not pod.over:
            taken = others.setdefault(host, {})
            for name, amount in ((PODS, 1.0), *pod.requests):
                taken[name] = taken.get(name, 0.0) + amount
    room_for = {pod.nominated for pod in pods if not pod.over}
    return KubernetesSnapshot({node.name: node for node in nodes}, own, tuple(stray), others, steady_s, room_for)


class PodFinder:
    """Finds the pods of runs: listed, known to be deleted, or asked for by name.

    Parameters
    ----------
    put
        Takes note of a pod that was asked for, by its uid.
    gone
        Returns the pods that are known to be deleted, by uid.
    """

    def __init__(
        self, api: KubernetesApi, label: str, namespace: str, put: Callable[[str, Pod], None],
        gone: Callable[[], Mapping[str, Pod]],
    ) -> None:  # fmt: skip
        self._api, self._label, self._namespace, self._put, self._gone = api, label, namespace, put, gone
        self._absent: set[tuple[int, int, int, str]] = set()  # pods that the server does not have

    def forget(self, handle: int) -> None:
        """Forget what is known of a job whose run is over."""
        self._absent = {key for key in self._absent if key[0] != handle}

    def find(self, run: KubernetesRun, rank: int, snapshot: KubernetesSnapshot, *, may_come: bool) -> PodSeen:
        """Return a pod of a run; one that is neither listed nor known to be deleted *may come* yet."""
        pod = snapshot.own.get(run.key(rank))
        if pod is not None:
            run.uids[rank] = pod.uid
            return PodSeen(pod)
        if (last := self._gone().get(run.uids.get(rank, ""))) is not None:
            return PodSeen(last, gone=True)
        if may_come and rank not in run.uids:
            return PodSeen(None)
        if (*run.key(rank), run.mark) in self._absent:
            return PodSeen(None, gone=True)
        name = pod_name(self._label, run.spec.handle, run.spec.attempt, rank)
        try:
            pod_by_name = pod_of(self._api.get(path_of("pods", self._namespace, name)))
        except RefusedByServerError as error:
            if error.status != 404:
                raise
            pod_by_name = None
        if pod_by_name is None or pod_by_name.mark != run.mark:
            self._absent.add((*run.key(rank), run.mark))
            return PodSeen(None, gone=True)
        run.uids[rank] = pod_by_name.uid
        self._put(pod_by_name.uid, pod_by_name)
        return PodSeen(pod_by_name)


class Strays:
    """Our pods that are of no run that goes on: since when they are over."""

    def __init__(self) -> None:
        self._over_s: dict[str, float] = {}

    def due(self, snapshot: KubernetesSnapshot, keep_s: float) -> list[Pod]:
        """Return those to delete: at once, or *keep_s* after they are over; not all at a time."""
        now_s, uids = time.monotonic(), {pod.uid for pod in snapshot.stray}
        self._over_s = {uid: since_s for uid, since_s in self._over_s.items() if uid in uids}
        due = []
        for pod in snapshot.stray:
            if pod.over and now_s < self._over_s.setdefault(pod.uid, now_s) + keep_s:
                continue
            if not pod.deleting or pod.over:
                due.append(pod)
        return due[:_MOST_DELETED]


def external_jobs(
    pods: Iterable[Pod], nodes: Mapping[str, Node], cluster: Cluster, resources: Mapping[str, str], ours: str = ""
) -> list[ExternalJob]:
    """Return the jobs of others among *pods*; pods of one gang are one job, whose GPUs count as spread evenly.

    Leaves out pods that request no GPU of the *cluster*, or of several kinds, and those that may not be scheduled yet.

    Parameters
    ----------
    nodes
        By name.
    resources
        Resource of a GPU type, as in ``live.kubernetes``.
    ours
        Label of our own pods.
    """
    declared = {
        (name.partition(":")[0], resource_of(cluster.classes[k].gpu_type, resources)): (
            name,
            cluster.classes[k].gpu_type,
        )
        for name, k in zip(cluster.names, cluster.klass, strict=True)
    }
    gpu_resources = {resource for _, resource in declared}
    gangs: dict[tuple[str, str, str], list[Pod]] = {}
    for pod in pods:
        if pod.request is not None and not (ours and pod.cluster == ours):
            group = pod.request.gang
            gangs.setdefault((pod.namespace, group or pod.name, "" if group else pod.uid), []).append(pod)
    types = _TypesOf(declared, nodes)
    jobs = (_job(own, f"{space}/{name}", declared, gpu_resources, types) for (space, name, _), own in gangs.items())
    return [job for job in jobs if job is not None]


def _job(
    pods: Sequence[Pod], label: str, declared: Mapping[tuple[str, str], tuple[str, str]],
    gpu_resources: Collection[str], types: TypesOf,
) -> ExternalJob | None:  # fmt: skip
    going = [pod for pod in pods if not pod.over]
    bound = [pod for pod in going if pod.node]
    counted = bound or going or pods
    requests = [pod.request for pod in counted if pod.request is not None]
    kinds = {name for request in requests for name, _ in request.gpus if name in gpu_resources}
    submits_s = [request.submit_s for request in requests if request.submit_s is not None]
    if len(kinds) != 1 or not submits_s:
        return None
    if going and not bound and (any(pod.deleting for pod in going) or any(request.gated for request in requests)):
        return None
    (resource,) = kinds
    starts_s = [request.start_s for request in requests if request.start_s is not None]
    ends_s = [request.end_s for request in requests]
    limits_s = [request.limit_s for request in requests]
    gpu_type = None
    if going and not bound:
        allowed = types(requests[0].rules, resource)
        gpu_type = None if len(allowed) > 1 else next(iter(allowed), resource)
    return ExternalJob(
        id=int.from_bytes(blake2b(min(pod.uid for pod in counted).encode(), digest_size=6).digest(), "big"),
        name=label, user=counted[0].namespace, state="running" if bound else "waiting" if going else "ended",
        submit_s=min(submits_s), start_s=min(starts_s, default=None) if bound or not going else None,
        end_s=None if going or None in ends_s else max(end for end in ends_s if end is not None),
        limit_s=None if None in limits_s else max(limit for limit in limits_s if limit is not None),
        gpus=sum(whole(amount) for request in requests for name, amount in request.gpus if name == resource),
        gpu_type=gpu_type,
        nodes=tuple(sorted({declared.get((pod.node, resource), (pod.node,))[0] for pod in counted if pod.node})),
    )  # fmt: skip


class _TypesOf:
    """GPU types of the declared nodes that pods with given rules may be placed on; few rules are different."""

    def __init__(self, declared: Mapping[tuple[str, str], tuple[str, str]], nodes: Mapping[str, Node]) -> None:
        self._declared, self._nodes = declared, nodes
        self._types: dict[tuple[str, str], frozenset[str]] = {}

    def __call__(self, rules: str, resource: str) -> frozenset[str]:
        if (rules, resource) not in self._types:
            spec = json.loads(rules) if rules else {}
            self._types[rules, resource] = frozenset(
                gpu_type
                for (host, own), (_, gpu_type) in self._declared.items()
                if own == resource and (node := self._nodes.get(host)) is not None
                and matches(spec, node.labels, node.name) and tolerated(node.taints, spec.get("tolerations") or ())
            )  # fmt: skip
        return self._types[rules, resource]


def lost(node: str, ready: str | None, now_s: float) -> End:
    """Return the end of a run one of whose nodes is lost."""
    said = "it is not in Kubernetes any more" if ready is None else f"its kubelet does not answer (Ready={ready})"
    return End(None, stopped=False, at_s=now_s, cause=f"node {node} is lost: {said}")


def refused(error: EngineError, now_s: float) -> End:
    """Return the end of a run that could not be placed."""
    return End(None, stopped=False, at_s=now_s, cause=str(error))
