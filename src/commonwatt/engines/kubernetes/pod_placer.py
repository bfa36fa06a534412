"""Creates the pods of runs and places them on their nodes; many at once, as each takes a few requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from commonwatt.engines.kubernetes.api import DENIED, KubernetesApi, path_of, send_all
from commonwatt.engines.kubernetes.informer import Informer, Watched
from commonwatt.engines.kubernetes.node_control import PodAllocations
from commonwatt.engines.kubernetes.objects import Pod, pod_of
from commonwatt.engines.kubernetes.run import KubernetesRun, StartRequest
from commonwatt.engines.kubernetes.settings import pod_name
from commonwatt.engines.kubernetes.snapshot import KubernetesSnapshot
from commonwatt.engines.kubernetes.user_jobs import UserJobs
from commonwatt.engines.kubernetes.user_requests import Pauses
from commonwatt.engines.run_spec import RunSpec
from commonwatt.model.errors import EngineError

__all__ = ["AT_ONCE", "PodPlacer"]

AT_ONCE = 8  # requests under way


class PodPlacer:
    """Creates and places pods.

    Parameters
    ----------
    label, namespace
        Of our pods.
    pauses
        Of requests that do not work for a while.
    allocations
        The nodes, and our runs on them.
    users
        Jobs of users, which delete pods.
    informer, pods
        What is told of new pods.
    """

    def __init__(
        self, api: KubernetesApi, label: str, namespace: str, pauses: Pauses, allocations: PodAllocations,
        users: UserJobs, informer: Informer, pods: Watched[Pod],
    ) -> None:  # fmt: skip
        self._api, self._label, self._namespace, self._pauses = api, label, namespace, pauses
        self._allocations, self._users, self._informer, self._pods = allocations, users, informer, pods

    def place(self, requests: Mapping[int, StartRequest], snapshot: KubernetesSnapshot) -> None:
        """Create the pods of *requests* that are not there, and place them; ``LateError``: some may have yet to be."""
        steps: tuple[Callable[[StartRequest], Sequence[Callable[[], None]]], ...] = (
            lambda own: [partial(self._create, own.run, *pod) for pod in own.pods() if pod[0] not in own.run.uids],
            lambda own: [partial(self._check_pods, own.run, snapshot)] if own.run.unbound else [],
            lambda own: [partial(self._bind, own.run, rank) for rank in own.run.unbound if not own.waits],
        )
        for step in steps:  # all calls of one at once; what refused one of a request, the first of them, is its error
            due = [(request, call) for request in requests.values() if request.error is None for call in step(request)]
            for request, error in send_all(due, AT_ONCE):
                request.error = request.error or error

    def _check_pods(self, run: KubernetesRun, snapshot: KubernetesSnapshot) -> None:
        pods = {rank: self._informer.find(self._pods, run.uids.get(rank, "")) for rank in run.unbound}
        self._allocations.check_pods(run, pods, snapshot)

    def _create(self, run: KubernetesRun, rank: int, spec: RunSpec, body: Mapping[str, Any]) -> None:
        """Write down and create a pod; one whose creation was not answered is there already."""
        if rank:
            run.write_rank(rank, spec)
        namespace, name = self._namespace, body["metadata"]["name"]
        path = path_of("pods", namespace)
        made = self._pauses.ask((namespace, "pods", "create"), self._api.create_once, path, body, about=name)
        pod = pod_of(made or self._api.get(path_of("pods", namespace, name)))
        if pod.mark != run.mark:
            with suppress(*DENIED):
                self._users.delete(pod, 0 if pod.over else None)
            msg = f"pod {name} of an earlier run is still there; it is being deleted"
            raise EngineError(msg)
        run.uids[rank] = pod.uid
        self._informer.put(self._pods, pod.uid, pod)

    def _bind(self, run: KubernetesRun, rank: int) -> None:
        """Place a pod on its node; if that was done already, which may not have been answered, it is in order."""
        namespace, host = self._namespace, self._allocations.hosts[run.node_of(rank)]
        name = pod_name(self._label, run.spec.handle, run.spec.attempt, rank)
        path = path_of("pods", namespace, name)
        meta = {"name": name, "annotations": {"commonwatt.io/nodes": ",".join(run.spec.node_names)}}
        made = self._pauses.ask((namespace, "pods", "bind"), self._api.bind_once, path, host, meta, about=name)
        if not made and pod_of(self._api.get(path)).node != host:
            msg = f"pod {name} was placed on another node by somebody else"
            raise EngineError(msg)
        run.bound.add(rank)
