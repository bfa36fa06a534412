"""What users see in Kubernetes of what is decided here: Events, and annotations of their Jobs and gangs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

from commonwatt.engines.kubernetes.api import KubernetesApi, RefusedByServerError, path_of
from commonwatt.engines.kubernetes.user_gang import KINDS
from commonwatt.model.errors import EngineDownError

__all__ = ["About", "annotate", "pod_named", "pods_of_job", "post_event"]

_LONGEST_MESSAGE = 1024  # of an Event
_LONGEST_NAME = 200
_MOST_PODS = 8
_NOT_THERE = frozenset({404, 409})
_PODS_BY = {
    "Job": "controller-uid={uid}", "JobSet": "jobset.sigs.k8s.io/jobset-name={name}",
    "PyTorchJob": "training.kubeflow.org/job-name={name}",
}  # fmt: skip
"""Labels that select the pods of a Job or gang, for messages about them."""


@dataclass(frozen=True, slots=True)
class About:
    """The object that an Event is about: a Job, a gang, or a Pod."""

    kind: str
    namespace: str
    name: str
    uid: str

    @property
    def group(self) -> str:
        """Its group and version."""
        return KINDS[self.kind].group if self.kind in KINDS else "v1"


def post_event(api: KubernetesApi, about: About, key: str, reason: str, message: str, at_s: float) -> bool:
    """Create an Event; returns whether it is new. Its name follows from *key*: told twice, it is there once.

    A reason that begins with ``Not``, or is ``Failed``, is a warning. Raises ``EngineError`` if the server does not
    answer, or does not allow it.
    """
    told = blake2b(f"{about.uid} {key}".encode(), digest_size=8).hexdigest()
    when = datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    body = {
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": f"{about.name[:_LONGEST_NAME]}.{told}", "namespace": about.namespace},
        "involvedObject": {
            "apiVersion": about.group, "kind": about.kind, "namespace": about.namespace, "name": about.name,
            "uid": about.uid,
        },
        "type": "Warning" if reason.startswith("Not") or reason == "Failed" else "Normal", "reason": reason,
        "message": message[:_LONGEST_MESSAGE], "firstTimestamp": when, "lastTimestamp": when, "count": 1,
        "source": {"component": "commonwatt"}, "reportingComponent": "commonwatt",
    }  # fmt: skip
    path = path_of("events", about.namespace)
    try:
        try:
            api.create(path, body)
        except EngineDownError:
            api.create(path, body)
    except RefusedByServerError as error:
        if error.status not in _NOT_THERE:
            raise
        return False
    return True


def annotate(api: KubernetesApi, about: About, notes: Mapping[str, str | None]) -> None:
    """Set annotations of an object, or remove them (``None``); one that is gone, or another of its name, is left alone.

    Raises ``EngineError`` as ``post_event`` does.
    """
    path = path_of(f"{about.kind.lower()}s", about.namespace, about.name, group=about.group)
    try:
        api.merge(path, {"metadata": {"uid": about.uid, "annotations": dict(notes)}})
    except RefusedByServerError as error:
        another = error.status == 422 and "metadata.uid" in str(error)
        if error.status not in _NOT_THERE and not another:
            raise


def pods_of_job(api: KubernetesApi, job: About) -> list[About]:
    """Return the pods of a Job that wait or run, but few of them; raises ``EngineError`` as ``post_event`` does."""
    selector = _PODS_BY[job.kind].format(uid=job.uid, name=job.name)
    params = {"labelSelector": selector, "limit": str(_MOST_PODS)}
    found = api.get(path_of("pods", job.namespace), **params).get("items") or ()
    return [
        About("Pod", job.namespace, pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in found
        if (pod.get("status") or {}).get("phase") in ("Pending", "Running")
    ]  # fmt: skip


def pod_named(api: KubernetesApi, namespace: str, name: str) -> About | None:
    """Return a pod; ``None`` if there is none of that name. Raises ``EngineDownError``."""
    found: dict[str, Any] = {}
    with suppress(RefusedByServerError):
        found = api.get(path_of("pods", namespace, name))
    return About("Pod", namespace, name, found["metadata"]["uid"]) if found else None
