"""JobSets and PyTorchJobs behind a real API server, with a stand-in for the controllers of their projects.

Their schemas have the fields that matter here, and others are pruned, as by the definitions of the projects. The
stand-in does what they document: no pods while one is suspended, all of them once it is not, their labels and owners,
and the conditions that say how it ended. It deletes the Jobs of a suspended JobSet, which the real one suspends: this
server does not know that. Webhooks are not there.
"""

from __future__ import annotations

import copy
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime

from commonwatt.engines.kubernetes.api import RefusedByServerError, path_of
from commonwatt.engines.kubernetes.user_gang import KINDS
from commonwatt.model.errors import EngineError

from .extension import ANY, ExtensionServer
from .site import USERS, collection, until

JOBSET = {
    "suspend": ANY, "managedBy": ANY, "failurePolicy": {"maxRestarts": ANY},
    "replicatedJobs": [{"name": ANY, "replicas": ANY, "template": ANY}],
}  # fmt: skip
PYTORCHJOB = {
    "runPolicy": {"suspend": ANY, "managedBy": ANY, "cleanPodPolicy": ANY, "activeDeadlineSeconds": ANY},
    "elasticPolicy": {"minReplicas": ANY, "maxReplicas": ANY},
    "pytorchReplicaSpecs": {"*": {"replicas": ANY, "restartPolicy": ANY, "template": ANY}},
}
SCHEMAS = {"JobSet": JOBSET, "PyTorchJob": PYTORCHJOB}


def key_of(kind):
    return (*KINDS[kind].group.split("/"), KINDS[kind].resource)


def path_at(kind, name=""):
    return path_of(KINDS[kind].resource, USERS, name, group=KINDS[kind].group)


def suspended(kind, item):
    spec = item.get("spec") or {}
    return bool((spec if kind == "JobSet" else spec.get("runPolicy") or {}).get("suspend"))


def pod_spec(command, gpus, **more):
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    container = {"name": "main", "image": "none", "command": list(command), "resources": resources}
    own = {"schedulerName": "commonwatt"} if gpus else {}
    return {"terminationGracePeriodSeconds": 1, "containers": [container], **own, **more}


def jobset(name, *parts, labels=None, notes=None, **spec):
    """A JobSet; each of *parts* has name, replicas, pods of each replica, and the spec of its pods."""
    replicated = [
        {
            "name": part, "replicas": replicas,
            "template": {"spec": {
                "parallelism": pods, "completions": pods, "backoffLimit": 0,
                "template": {"spec": {"restartPolicy": "Never", **pod}},
            }},
        } for part, replicas, pods, pod in parts
    ]  # fmt: skip
    meta = {"name": name, "labels": labels or {"commonwatt.io/tenant": "a"}, "annotations": notes or {}}
    spec = {"replicatedJobs": replicated, **spec}
    return {"apiVersion": KINDS["JobSet"].group, "kind": "JobSet", "metadata": meta, "spec": spec}


def pytorchjob(name, *, labels=None, notes=None, policy=None, **parts):
    """A PyTorchJob; each of *parts* (Master, Worker) has replicas, and the spec of its pods."""
    replicas = {
        part: {"replicas": number, "restartPolicy": "Never", "template": {"spec": pod}}
        for part, (number, pod) in parts.items()
    }
    meta = {"name": name, "labels": labels or {"commonwatt.io/tenant": "a"}, "annotations": notes or {}}
    spec = {"runPolicy": policy or {}, "pytorchReplicaSpecs": replicas}
    return {"apiVersion": KINDS["PyTorchJob"].group, "kind": "PyTorchJob", "metadata": meta, "spec": spec}


def made(api, body):
    """Create what a user wants; returns it as the server has it."""
    return api.create(path_at(body["kind"]), body)


def condition(item, kind):
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)


class GangControllers:
    """The stand-in, in a thread until ``stop``."""

    def __init__(self, api) -> None:
        self.api, self._stopping, self.paused = api, threading.Event(), False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self.api.close()

    def _run(self) -> None:
        while not self._stopping.wait(0.1):
            try:
                if not self.paused:
                    self._look()
            except EngineError:  # it is asked again
                continue

    def _look(self) -> None:
        jobs = self.api.get(path_of("jobs", USERS, group="batch/v1"))["items"]
        pods = self.api.get(path_of("pods", USERS))["items"]
        gangs = {kind: self.api.get(path_at(kind))["items"] for kind in SCHEMAS}
        there = {item["metadata"]["uid"] for items in gangs.values() for item in items}
        for child in (*jobs, *pods):  # what the collection of garbage does, too, but later
            owner = owner_of(child)
            if owner.get("kind") in SCHEMAS and owner["uid"] not in there:
                self._delete(child)
        for item in gangs["JobSet"]:
            self._jobset(item, [job for job in jobs if owner_of(job).get("uid") == item["metadata"]["uid"]])
        for item in gangs["PyTorchJob"]:
            self._pytorchjob(item, [pod for pod in pods if owner_of(pod).get("uid") == item["metadata"]["uid"]])

    def _delete(self, item) -> None:
        if "deletionTimestamp" in item["metadata"]:
            return
        meta = item["metadata"]
        job = "template" in item["spec"]
        path = path_of("jobs" if job else "pods", meta["namespace"], meta["name"], group="batch/v1" if job else "v1")
        body = {"propagationPolicy": "Background", "preconditions": {"uid": meta["uid"]}}
        try:
            self.api.ask("DELETE", path, body)
        except RefusedByServerError as error:
            if error.status not in (404, 409):
                raise

    def _create(self, resource, group, body) -> None:
        try:
            self.api.create(path_of(resource, USERS, group=group), body)
        except RefusedByServerError as error:
            if error.status != 409:  # the one before is not gone yet
                raise

    def _say(self, kind, item, wanted, **status) -> None:
        """Set conditions, by type: status, reason, message."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        own = copy.deepcopy(item.get("status") or {})
        before = {c["type"]: c for c in own.get("conditions") or ()}
        for name, (value, reason, message) in wanted.items():
            if before.get(name, {}).get("status") != value:
                before[name] = {
                    "type": name, "status": value, "reason": reason, "message": message, "lastTransitionTime": now,
                }  # fmt: skip
        after = {**own, "conditions": list(before.values()), **status}
        if after != own:
            path = f"{path_at(kind, item['metadata']['name'])}/status"
            self.api.merge(path, {"metadata": {"uid": item["metadata"]["uid"]}, "status": after})

    # -- JobSet

    def _jobset(self, item, jobs) -> None:
        spec, restarts = item["spec"], (item.get("status") or {}).get("restarts", 0)
        if condition(item, "Completed") or condition(item, "Failed"):
            for job in jobs:
                if not (condition(job, "Complete") or condition(job, "Failed")):
                    self._delete(job)
            return
        if spec.get("suspend"):
            for job in jobs:
                self._delete(job)
            self._say("JobSet", item, {"Suspended": ("True", "SuspendedJobs", "jobset is suspended")})
            return
        if condition(item, "Suspended"):
            self._say("JobSet", item, {"Suspended": ("False", "ResumeJobs", "jobset is resumed")})
            return
        failed = next((job["metadata"]["name"] for job in jobs if condition(job, "Failed")), None)
        if failed is not None:
            if restarts < (spec.get("failurePolicy") or {}).get("maxRestarts", 0):
                self._say("JobSet", item, {}, restarts=restarts + 1)
                for job in jobs:
                    self._delete(job)
                return
            said = f"jobset failed due to one or more job failures (first failed job: {failed})"
            self._say("JobSet", item, {"Failed": ("True", "FailedJobs", said)})
            return
        wanted = self._jobs_of(item, str(restarts))
        current = [
            job for job in jobs if job["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] == str(restarts)
        ]
        if len(current) == len(wanted) and all(condition(job, "Complete") for job in current):
            self._say("JobSet", item, {"Completed": ("True", "AllJobsCompleted", "jobset completed successfully")})
            return
        there = {job["metadata"]["name"] for job in jobs}
        for body in wanted:
            if body["metadata"]["name"] not in there:
                self._create("jobs", "batch/v1", body)

    def _jobs_of(self, item, restart):
        name, uid, found = item["metadata"]["name"], item["metadata"]["uid"], []
        for part in item["spec"]["replicatedJobs"]:
            for index in range(part.get("replicas", 1)):
                labels = {
                    "jobset.sigs.k8s.io/jobset-name": name, "jobset.sigs.k8s.io/replicatedjob-name": part["name"],
                    "jobset.sigs.k8s.io/job-index": str(index), "jobset.sigs.k8s.io/restart-attempt": restart,
                }  # fmt: skip
                spec = copy.deepcopy(part["template"]["spec"])
                spec["template"].setdefault("metadata", {}).setdefault("labels", {}).update(labels)
                owner = {
                    "apiVersion": KINDS["JobSet"].group, "kind": "JobSet", "name": name, "uid": uid, "controller": True,
                }  # fmt: skip
                meta = {"name": f"{name}-{part['name']}-{index}", "labels": labels, "ownerReferences": [owner]}
                found.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec})
        return found

    # -- PyTorchJob

    def _pytorchjob(self, item, pods) -> None:
        policy = item["spec"].get("runPolicy") or {}
        if condition(item, "Succeeded") or condition(item, "Failed"):
            return  # cleanPodPolicy None: pods stay
        if policy.get("suspend"):
            for pod in pods:
                self._delete(pod)
            stopped = ("PyTorchJobSuspended", f"PyTorchJob {item['metadata']['name']} is suspended.")
            self._say("PyTorchJob", item, {"Suspended": ("True", *stopped), "Running": ("False", *stopped)},
                      startTime=None)  # fmt: skip
            return
        start = (item.get("status") or {}).get("startTime")
        if start is None:
            resumed = ("False", "PyTorchJobResumed", "it is resumed")
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            self._say("PyTorchJob", item, {"Suspended": resumed}, startTime=now)
            return
        name, limit = item["metadata"]["name"], policy.get("activeDeadlineSeconds")
        if limit is not None and time.time() > datetime.fromisoformat(start).timestamp() + limit:
            said = f"PyTorchJob {name} has failed because it was active longer than specified deadline"
            self._say("PyTorchJob", item, {"Failed": ("True", "PyTorchJobFailed", said)})
            for pod in pods:
                self._delete(pod)
            return
        there = {pod["metadata"]["name"]: pod for pod in pods}
        wanted = self._pods_of(item)
        phase = {n: (there[n].get("status") or {}).get("phase") if n in there else None for n in wanted}
        if failed := next((n for n, found in phase.items() if found == "Failed"), None):
            said = f"PyTorchJob {name} is failed because pod {failed} failed."
            self._say("PyTorchJob", item, {"Failed": ("True", "PyTorchJobFailed", said)})
            return
        leads = [n for n in wanted if "-master-" in n] or list(wanted)
        if all(phase[n] == "Succeeded" for n in leads):
            said = f"PyTorchJob {name} is successfully completed."
            self._say("PyTorchJob", item, {"Succeeded": ("True", "PyTorchJobSucceeded", said)})
            return
        for n, body in wanted.items():
            if n not in there:
                self._create("pods", "v1", body)

    def _pods_of(self, item):
        name, uid, found = item["metadata"]["name"], item["metadata"]["uid"], {}
        for part, replica in item["spec"]["pytorchReplicaSpecs"].items():
            for index in range(replica.get("replicas", 1)):
                labels = {
                    "training.kubeflow.org/job-name": name, "training.kubeflow.org/replica-type": part.lower(),
                    "training.kubeflow.org/replica-index": str(index),
                }  # fmt: skip
                owner = {
                    "apiVersion": KINDS["PyTorchJob"].group, "kind": "PyTorchJob", "name": name, "uid": uid,
                    "controller": True,
                }  # fmt: skip
                pod = f"{name}-{part.lower()}-{index}"
                own = {**copy.deepcopy(replica["template"]["spec"]), "restartPolicy": replica["restartPolicy"]}
                meta = {"name": pod, "labels": labels, "ownerReferences": [owner]}
                found[pod] = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": own}
        return found


class Gangs:
    """Custom resources, as defined, and what controls them."""

    def __init__(self, kube) -> None:
        self.kube = kube
        resources = {(*key_of(kind), kind): schema for kind, schema in SCHEMAS.items()}
        self.extension = ExtensionServer(kube.api("admin"), kube.folder, resources)
        for body in self.extension.registrations():
            self._put(body)
        until(lambda: all(self._serves(kind) for kind in SCHEMAS))
        self.controllers = GangControllers(kube.api("admin"))

    def _put(self, body) -> None:
        path = f"{collection(body)}/{body['metadata']['name']}"
        try:
            self.kube.admin.create(collection(body), body)
        except RefusedByServerError as error:
            if error.status != 409:
                raise
            self.kube.admin.merge(path, body)

    def _serves(self, kind) -> bool:
        try:
            self.kube.admin.get(path_at(kind))
        except EngineError:
            return False
        return True

    def prune(self, kind, *path) -> None:
        """Take a field out of a schema, as of an older definition."""
        schema = copy.deepcopy(SCHEMAS[kind])
        inner = schema
        for name in path[:-1]:
            inner = inner[name]
        del inner[path[-1]]
        self.extension.resources[key_of(kind)] = kind, schema

    def define(self, kind) -> None:
        """Have the whole schema again."""
        self.extension.resources[key_of(kind)] = kind, SCHEMAS[kind]

    def undefine(self, kind) -> None:
        """Serve a kind no longer."""
        self.extension.resources.pop(key_of(kind), None)

    def tidy(self) -> bool:
        """Delete all gangs; returns whether they, and what was made of them, are gone."""
        left = [item for kind in SCHEMAS for item in self.kube.admin.get(path_at(kind))["items"]]
        for item in left:
            self.kube.admin.delete(path_at(item["kind"], item["metadata"]["name"]), item["metadata"]["uid"])
        made = (*self.kube.jobs(), *self.kube.pods())
        return not left and not [item for item in made if owner_of(item).get("kind") in SCHEMAS]

    def stop(self) -> None:
        self.controllers.stop()
        self.extension.stop()


@contextmanager
def gangs_on(kube):
    """Gangs on a cluster; all are gone afterwards."""
    found = Gangs(kube)
    try:
        yield found
        until(found.tidy)
    finally:
        found.stop()


def owner_of(item):
    return next((o for o in item["metadata"].get("ownerReferences") or () if o.get("controller")), {})
