"""Users' own Jobs in Kubernetes: which there are, how their pods are placed, and how they are held."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from commonwatt.engines.kubernetes.announce import About, post_event
from commonwatt.engines.kubernetes.api import KubernetesApi, RefusedByServerError, path_of
from commonwatt.engines.kubernetes.informer import Informer, Watched
from commonwatt.engines.kubernetes.objects import ATTEMPT, CLUSTER, JOB, RANK, RUN, Pod, pod_of
from commonwatt.engines.kubernetes.settings import SCHEDULER
from commonwatt.engines.kubernetes.user_job import TENANT, UserJob, user_job_of
from commonwatt.engines.kubernetes.user_run import UserJobRun
from commonwatt.model.errors import EngineError

__all__ = ["UserJobs"]

log = logging.getLogger("commonwatt.kubernetes")

_BATCH = "batch/v1"


class UserJobs:
    """The labelled Jobs of some namespaces.

    A Job is held in either of two ways. Its pods name our scheduler, so that nobody places them but us. And where the
    server knows ``suspend`` (by default from 1.22), a Job that was stopped has no pods until it is started again. The
    answer says which it is: it has the field, or has lost it.

    Parameters
    ----------
    label
        Of our pods.
    namespaces
        Where Jobs are taken over.
    """

    def __init__(self, api: KubernetesApi, label: str, namespaces: Collection[str]) -> None:
        self._api, self._label = api, label
        self.watched: list[Watched[UserJob]] = [
            Watched(path_of("jobs", each, group=_BATCH), user_job_of, {"labelSelector": TENANT}) for each in namespaces
        ]
        self.informer: Informer | None = None  # which has them
        self._suspends: bool | None = None  # whether the server knows the field; None: not asked yet

    @property
    def version(self) -> tuple[int, ...]:
        """Another one whenever a Job has changed."""
        return tuple(each.version for each in self.watched)

    def all(self) -> dict[str, UserJob]:
        """Return the Jobs by uid; raises ``EngineError`` if the server does not show them."""
        found: dict[str, UserJob] = {}
        for each in self.watched:
            assert self.informer is not None
            found |= self.informer.look(each)
        return found

    def of(self, run: UserJobRun) -> UserJob | None:
        """Return the Job of a run, ``None`` if it is gone; raises ``EngineError`` as ``all`` does."""
        path = path_of("jobs", run.spec.workload[0], group=_BATCH)
        watched = next((each for each in self.watched if each.path == path), None)
        if watched is None:  # its namespace is not in the configuration any more
            return None
        assert self.informer is not None
        return self.informer.find(watched, run.owner)

    # -- starting

    def resume(self, job: UserJob) -> None:
        """Let Kubernetes make the pods of a Job; raises ``EngineError``."""
        if job.suspended:
            self._patch(job, {"suspend": False})

    def place(self, run: UserJobRun, job: UserJob, pods: Iterable[Pod], hosts: Mapping[int, str]) -> bool:
        """Place the pods of a run once all of them are there; returns whether that is done.

        Which pod has which rank is on disk before the first one is placed: whoever goes on after a crash places the
        same ones. Raises ``EngineError`` if one cannot be placed, as it is gone or somebody else was faster.
        """
        there = {pod.uid: pod for pod in pods if pod.owner == job.uid}
        if not run.has_chosen():
            free = [pod for pod in there.values() if pod.scheduler == SCHEDULER and _waits(pod)]
            if len(free) < len(run.ranks):
                return False
            run.choose(sorted(free, key=lambda pod: pod.name))
        for rank in run.ranks:
            pod = there.get(run.pod_uid(rank))
            if pod is not None and _waits(pod):
                self._bind(run, rank, pod, hosts[run.spec.nodes[rank]])
        return True

    def _bind(self, run: UserJobRun, rank: int, pod: Pod, host: str) -> None:
        path, spec = path_of("pods", pod.namespace, pod.name), run.spec
        notes = {
            CLUSTER: self._label, RUN: run.mark, JOB: str(spec.handle), ATTEMPT: str(spec.attempt), RANK: str(rank),
            "commonwatt.io/nodes": ",".join(spec.node_names),
        }  # fmt: skip
        body = {
            "apiVersion": "v1", "kind": "Binding", "target": {"apiVersion": "v1", "kind": "Node", "name": host},
            "metadata": {"name": pod.name, "uid": pod.uid, "annotations": notes},
        }  # fmt: skip
        if self._api.create_once(f"{path}/binding", body) is not None:
            return
        now = pod_of(self._api.get(path))
        if (now.uid, now.node, now.mark) != (pod.uid, host, run.mark):
            msg = f"pod {pod.name} was placed on {now.node or 'no node'} by somebody else"
            raise EngineError(msg)

    # -- stopping

    def tell(self, job: UserJob, reason: str, message: str, now_s: float) -> None:
        """Write an Event about a Job; raises ``EngineError``."""
        post_event(self._api, About("Job", job.namespace, job.name, job.uid), message, reason, message, now_s)

    def stop(self, run: UserJobRun, pods: Iterable[Pod]) -> None:
        """Stop the *pods* of a run: by suspending its Job, else by deleting them; then others are made, and wait."""
        job = self.of(run)
        if job is not None and not job.over and self._suspend(job):
            return
        for pod in pods:
            if not pod.deleting:
                self._api.delete(path_of("pods", pod.namespace, pod.name), pod.uid)

    def retire(self, job: UserJob) -> None:
        """Have Kubernetes make no pods of a Job any more, without deleting it; raises ``EngineError``.

        It is suspended, or, where the server does not know that, its parallelism becomes 0.
        """
        if not (job.over or job.suspended or job.pods == 0) and not self._suspend(job):
            with suppress(_GoneError):
                self._patch(job, {"parallelism": 0})

    def hold(self, job: UserJob) -> bool:
        """Suspend a Job whose pods others would place; returns whether the server keeps it so."""
        return self._suspend(job)

    def _suspend(self, job: UserJob) -> bool:
        if self._suspends is False:
            return False
        with suppress(_GoneError):
            made = self._patch(job, {"suspend": True})
            self._suspends = bool((made.get("spec") or {}).get("suspend"))
            return self._suspends
        return False

    def _patch(self, job: UserJob, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Change a Job, this one and no other of its name."""
        path = path_of("jobs", job.namespace, job.name, group=_BATCH)
        try:
            return self._api.merge(path, {"metadata": {"uid": job.uid}, "spec": dict(spec)})
        except RefusedByServerError as error:
            if error.status not in (404, 409):
                raise
            msg = f"Job {job.namespace}/{job.name} is gone"
            raise _GoneError(msg) from error


def _waits(pod: Pod) -> bool:
    return not (pod.node or pod.over or pod.deleting)


class _GoneError(EngineError):
    """The Job was deleted; there may be another one of its name."""
