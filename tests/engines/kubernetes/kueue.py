"""A stand-in for Kueue in front of a real API server, as far as its documentation says how it behaves to Jobs.

A Job with a queue name is suspended when it is created. It is admitted, in the order of creation, where its GPUs fit
the quota: then the node labels of the flavor become its pods' node selector, and it is resumed, in one change. When it
is evicted, it is suspended; its quota is free once no pod of it is left, and it may be admitted again. What is admitted
and suspended by somebody else is resumed; what runs and is not admitted is suspended, as is a Job whose number of pods
is another than the admitted one, which then queues anew. Kueue's Workloads are kept in memory here.
"""

from __future__ import annotations

import threading

from commonwatt.engines.kubernetes.access import access_of
from commonwatt.engines.kubernetes.api import KubernetesApi, RefusedByServerError, path_of
from commonwatt.model.errors import EngineError

from .site import USERS, until
from .suspending import SuspendingServer

QUEUE = "kueue.x-k8s.io/queue-name"
MULTIKUEUE = "kueue.x-k8s.io/multikueue"


def uid_of(job):
    return job["metadata"]["uid"]


def ended(job):
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions)


def gpus_of(job):
    """The GPUs of all its pods, and how many pods these are."""
    limits = job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    pods = job["spec"]["parallelism"]
    return pods * int(limits["nvidia.com/gpu"]), pods


class Kueue:
    """The stand-in, in a thread between ``start`` and ``stop``.

    ``kubeconfig`` is what the controller under test uses, ``server`` what has its changes of Jobs. Jobs whose uid is in
    ``paused`` are not admitted, as if others came first.
    """

    def __init__(self, kube, folder, quota=4) -> None:
        self.kube, self.quota, self.flavor, self.paused = kube, quota, {}, set()
        self.kubeconfig, own = folder / "suspending.kubeconfig", folder / "kueue.kubeconfig"
        admin = kube.kubeconfig("admin")
        self.server = SuspendingServer(kube.kubeconfig("commonwatt"), admin, self.kubeconfig)
        self._own = SuspendingServer(admin, admin, own)
        self.api = KubernetesApi(access_of(own, None))
        self.admitted: dict[str, tuple[int, int]] = {}  # by uid: GPUs, pods
        self._leaving: set[str] = set()
        self._lock, self._stopping = threading.RLock(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Kueue:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self.api.close()
        self._own.stop()
        self.server.stop()

    # -- what users and administrators do

    def user_job(self, name, *command, queue="q", webhook=True, **more):
        """Create a Job in a queue; its webhook suspends it."""
        labels = {"commonwatt.io/tenant": "a", QUEUE: queue}
        suspend = {"suspend": True} if webhook else {}
        return self.kube.user_job(name, *command, labels=labels, api=self.api, **suspend, **more)

    def job(self, job):
        """A Job as it is now."""
        return self.api.get(self._path(job))

    def is_suspended(self, job) -> bool:
        return self.job(job)["spec"]["suspend"]

    def evict(self, job, *, pause=True) -> None:
        """Preempt an admitted Job; it stays out while it is paused."""
        with self._lock:
            if pause:
                self.paused.add(uid_of(job))
            self._leaving.add(uid_of(job))
            self._change(job, {"suspend": True})

    def admit_again(self, job, flavor=None) -> None:
        with self._lock:
            self.flavor = self.flavor if flavor is None else flavor
            self.paused.discard(uid_of(job))

    # -- what it does by itself

    def _run(self) -> None:
        while not self._stopping.wait(0.1):
            try:
                with self._lock:
                    self._look()
            except EngineError:  # it is asked again
                continue

    def _path(self, job) -> str:
        return path_of("jobs", USERS, job["metadata"]["name"], group="batch/v1")

    def _change(self, job, spec) -> None:
        def done():
            try:
                self.api.merge(self._path(job), {"metadata": {"uid": uid_of(job)}, "spec": spec})
            except RefusedByServerError as error:
                return error.status in (404, 409)
            except EngineError:
                return False
            return True

        until(done)

    def _look(self) -> None:
        jobs = self.api.get(path_of("jobs", USERS, group="batch/v1"))["items"]
        jobs = [job for job in jobs if QUEUE in job["metadata"].get("labels", {}) and "managedBy" not in job["spec"]]
        there = {uid_of(job) for job in jobs if not ended(job)}
        self.admitted = {uid: asked for uid, asked in self.admitted.items() if uid in there}
        jobs.sort(key=lambda job: (job["metadata"]["creationTimestamp"], job["metadata"]["name"]))
        for job in jobs:
            if not ended(job):
                self._step(job)

    def _step(self, job) -> None:
        uid, suspended, asked = uid_of(job), job["spec"]["suspend"], gpus_of(job)
        if uid in self._leaving:
            if not self.kube.pods_of(job):
                self._leaving.discard(uid)
                self.admitted.pop(uid, None)
                self._change(job, {"template": {"spec": {"nodeSelector": None}}})
        elif uid in self.admitted and asked != self.admitted[uid]:
            self._leaving.add(uid)
            self._change(job, {"suspend": True})
        elif uid in self.admitted:
            if suspended:
                self._resume(job)
        elif not suspended:
            self._change(job, {"suspend": True})
        elif uid not in self.paused and sum(gpus for gpus, _ in self.admitted.values()) + asked[0] <= self.quota:
            self.admitted[uid] = asked
            self._resume(job)

    def _resume(self, job) -> None:
        self._change(job, {"suspend": False, "template": {"spec": {"nodeSelector": self.flavor or None}}})
