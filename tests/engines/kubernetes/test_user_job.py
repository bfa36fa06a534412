"""A user's Job as a job of ours: what is read of it, what is refused, and how it is held on servers that can."""

from __future__ import annotations

import json
import ssl
from dataclasses import replace

import httpx
import pytest

from commonwatt.engines.kubernetes.access import Access
from commonwatt.engines.kubernetes.api import KubernetesApi
from commonwatt.engines.kubernetes.objects import REQUIRED
from commonwatt.engines.kubernetes.user_gang import user_job_of
from commonwatt.engines.kubernetes.user_job import job_file
from commonwatt.engines.kubernetes.user_jobs import UserJobs, quota_of
from commonwatt.model.errors import EngineError, InputError

from .test_external_jobs import CLUSTER, NODES

NOTE = "commonwatt.io/"
QUEUED = {"kueue.x-k8s.io/queue-name": "q"}


def item(*, gpus=1, resource="nvidia.com/gpu", labels=None, notes=None, status=None, pod=None, **spec):
    container = {"resources": {"limits": {resource: str(gpus)} if gpus else {}}}
    template = {"schedulerName": "commonwatt", "containers": [container], **(pod or {})}
    labels = {"commonwatt.io/tenant": "a", **(labels or {})}
    return {
        "metadata": {"namespace": "team-a", "name": "train", "uid": "u1", "labels": labels, "annotations": notes or {}},
        "spec": {"parallelism": 1, "completions": 1, "template": {"spec": template}, **spec}, "status": status or {},
    }  # fmt: skip


def file(**more):
    return job_file(user_job_of(item(**more)), CLUSTER, NODES.values(), {})


def test_a_job_asks_by_its_pods_and_by_annotations():
    made = file(
        gpus=2, parallelism=3, completions=3, activeDeadlineSeconds=7200, pod={"nodeSelector": {"product": "V100"}},
        notes={f"{NOTE}due": "2027-01-01T08:00", f"{NOTE}run-time": "1:30:00", f"{NOTE}tardiness-weight": "0.5",
               f"{NOTE}kind": "resnet", f"{NOTE}reason": "written by us"},
    )  # fmt: skip
    assert (made.gpus, made.nodes, made.gpu_types, made.time_limit_s) == (6, 3, ("V100",), 7200)
    assert (made.due, made.tardiness_weight, made.kind) == ("2027-01-01T08:00", 0.5, "resnet")
    assert made.times_s == {"V100": {6: 5400.0}}
    assert (made.workload.namespace, made.workload.name, made.workload.uid) == ("team-a", "train", "u1")


def test_gpu_types_are_those_on_whose_nodes_its_pods_may_be():
    assert file().gpu_types == ("A100", "V100")
    assert file(resource="nvidia.com/mig-1g.5gb").gpu_types == ("A100-1g.5gb",)
    assert file(notes={f"{NOTE}gpu-types": "v100, H100"}).gpu_types == ("V100",)
    assert file(pod={"nodeSelector": {"product": "NVIDIA-A100"}}).gpu_types == ("A100",)


def test_a_tainted_node_takes_its_type_away_only_if_no_node_of_it_is_left_and_for_good():
    def types(key, *names):
        taint = (key, "", "NoSchedule")
        nodes = [replace(node, taints=(taint,)) if node.name in names else node for node in NODES.values()]
        return job_file(user_job_of(item()), CLUSTER, nodes, {}).gpu_types

    every = [n for n, k in zip(CLUSTER.names, CLUSTER.klass, strict=True) if CLUSTER.classes[k].gpu_type == "V100"]
    assert types("node.kubernetes.io/unschedulable", *every) == types("node.kubernetes.io/not-ready", *every)
    assert types("node.kubernetes.io/not-ready", *every) == ("A100", "V100")
    assert types("example.com/reserved", *every) == ("A100",)
    assert types("example.com/reserved", *every[1:]) == ("A100", "V100")
    with pytest.raises(InputError, match=r"tolerations': .*as for example.com/reserved:NoSchedule of node"):
        types("example.com/reserved", *NODES)


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("spec.template.spec.schedulerName", {"pod": {"schedulerName": "default-scheduler"}}),
        ("spec.template.spec.nodeName", {"pod": {"nodeName": "gpu-0"}}),
        ("spec.completions", {"completions": 5}),
        ("spec.completions", {"parallelism": 2, "completions": None}),
        ("spec.parallelism", {"parallelism": 0, "completions": 0}),
        ("spec.parallelism", {"parallelism": 0, "completions": 2}),
        ("spec.template.spec.containers.resources.limits", {"gpus": 0}),
        ("spec.template.spec.containers.resources.limits", {"resource": "amd.com/gpu"}),
        ("spec.template.spec", {"pod": {"nodeSelector": {"product": "H100"}}}),
        (
            "spec.template.spec.affinity.podAffinity." + REQUIRED,
            {"pod": {"affinity": {"podAffinity": {REQUIRED: [{}]}}}},
        ),
        ("kueue.x-k8s.io/job-min-parallelism", {"notes": {"kueue.x-k8s.io/job-min-parallelism": "1"}}),
        ("spec.backoffLimitPerIndex", {"backoffLimitPerIndex": 0}),
        ("spec.maxFailedIndexes", {"maxFailedIndexes": 1}),
        (
            "spec.podFailurePolicy.rules.action",
            {"podFailurePolicy": {"rules": [{"action": "Ignore"}, {"action": "FailIndex"}]}},
        ),
        ("spec.template.spec.containers[0].resources.limits.nvidia.com/gpu", {"gpus": -1}),
        ("spec.template.spec.overhead.cpu", {"pod": {"overhead": {"cpu": "nan"}}}),
        ("commonwatt.io/gpu-types", {"notes": {f"{NOTE}gpu-types": "H100"}}),
        ("commonwatt.io/run-time", {"notes": {f"{NOTE}run-time": "0"}}),
        ("commonwatt.io/tardiness-weight", {"notes": {f"{NOTE}tardiness-weight": "nan"}}),
    ],
)
def test_what_cannot_be_taken_over_names_the_field(field, more):
    with pytest.raises(InputError) as error:
        file(**more)
    assert error.value.field.endswith(field)


def test_one_whose_template_names_a_node_is_not_ours_to_place():
    assert user_job_of(item()).ours_to_place
    assert not user_job_of(item(pod={"nodeName": "gpu-0"})).ours_to_place  # its kubelet starts it at once


def test_one_that_somebody_else_starts_is_left_alone():
    assert (
        user_job_of(item(labels=QUEUED, managedBy="kueue.x-k8s.io/multikueue")).left_to == "kueue.x-k8s.io/multikueue"
    )
    assert user_job_of(item(labels=QUEUED)).left_to == ""
    assert user_job_of(item(managedBy="kubernetes.io/job-controller")).left_to == ""


def test_one_in_a_queue_of_kueue_is_known_by_it_and_by_having_been_suspended():
    suspended = {"conditions": [{"type": "Suspended", "status": "False", "reason": "JobResumed"}]}
    assert [(user_job_of(i).queue, user_job_of(i).was_suspended) for i in (item(), item(labels=QUEUED))] == [
        ("", False), ("q", False),
    ]  # fmt: skip
    assert user_job_of(item(labels=QUEUED, status=suspended)).was_suspended
    left = UserJobs(None, "ours", ["team-a"], kueue=False).watched[0].read
    assert left(item(labels=QUEUED)).left_to == "Kueue (queue q)"
    assert left(item(labels=QUEUED, managedBy="other")).left_to == "other"
    assert left(item()).left_to == ""


def test_how_one_has_ended_is_its_condition():
    failed = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "it was\nactive too long"}
    ended = user_job_of(item(status={"conditions": [{"type": "Suspended", "status": "False"}, failed]}))
    assert (ended.end, ended.why, ended.over) == ("Failed", "DeadlineExceeded: it was active too long", True)
    assert ended.timed_out
    other = {**failed, "reason": "BackoffLimitExceeded", "message": "DeadlineExceeded"}
    assert not user_job_of(item(status={"conditions": [other]})).timed_out
    assert not user_job_of(item(status={"conditions": [{**failed, "status": "False"}]})).over


class Server:
    """Answers as documented: with ``suspend``, or (before 1.22) without, as the field is dropped in silence."""

    def __init__(self, *, suspends: bool, uid: str = "u1") -> None:
        self.suspends, self.uid, self.patched = suspends, uid, []
        access = Access("https://server", "default", ssl.create_default_context(), token="t")
        self.jobs = UserJobs(KubernetesApi(access, transport=httpx.MockTransport(self.answer)), "ours", ["team-a"])

    def answer(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        if body["metadata"]["uid"] != self.uid:
            conflict = {"message": "Precondition failed: UID in precondition", "reason": "Conflict"}
            return httpx.Response(409, json=conflict)
        self.patched.append(body["spec"])
        spec = body["spec"] if self.suspends else {k: v for k, v in body["spec"].items() if k != "suspend"}
        return httpx.Response(200, json={"spec": spec})


def test_one_is_retired_by_suspending_it_or_by_its_parallelism_where_that_field_is_dropped():
    new, old, job = Server(suspends=True), Server(suspends=False), user_job_of(item())
    new.jobs.retire(job)
    old.jobs.retire(job)
    old.jobs.retire(job)
    assert new.patched == [{"suspend": True}]
    assert old.patched == [{"suspend": True}, {"parallelism": 0}, {"parallelism": 0}]  # it asks once what it knows
    new.jobs.retire(user_job_of(item(suspend=True)))
    assert len(new.patched) == 1
    another = Server(suspends=False, uid="u2")
    another.jobs.retire(job)
    assert another.patched == []


def test_one_is_resumed_only_if_it_is_the_same_job():
    server = Server(suspends=True)
    server.jobs.resume(user_job_of(item(suspend=True)))
    server.jobs.resume(user_job_of(item()))
    assert server.patched == [{"suspend": False}]
    another = Server(suspends=True, uid="u2")
    with pytest.raises(EngineError, match="team-a/train is gone"):
        another.jobs.resume(user_job_of(item(suspend=True)))
    assert another.patched == []


def test_suspension_in_a_queue_of_kueue_is_never_written():
    server = Server(suspends=True)
    runs, waits = user_job_of(item(labels=QUEUED)), user_job_of(item(labels=QUEUED, suspend=True))
    with pytest.raises(EngineError, match="has suspended its Job"):
        server.jobs.resume(waits)
    server.jobs.resume(runs)
    assert not server.jobs.hold(runs)
    assert server.patched == []
    for job in (runs, waits, user_job_of(item(labels=QUEUED, parallelism=0))):
        server.jobs.retire(job)
    assert server.patched == [{"parallelism": 0}] * 2


def quota(hard, used=None, **spec):
    return quota_of({
        "metadata": {"namespace": "team-a", "name": "q"}, "spec": {"hard": hard, **spec},
        "status": {} if used is None else {"hard": hard, "used": used},
    })  # fmt: skip


@pytest.mark.parametrize(
    ("hard", "used", "lacks"),
    [
        ({"requests.nvidia.com/gpu": "4"}, {"requests.nvidia.com/gpu": "2"}, ""),
        ({"requests.nvidia.com/gpu": "4"}, {"requests.nvidia.com/gpu": "3"}, "1 of nvidia.com/gpu left"),
        ({"requests.nvidia.com/gpu": "2"}, {"requests.nvidia.com/gpu": "1"}, "1 of nvidia.com/gpu left"),
        ({"requests.nvidia.com/gpu": "1"}, None, "allows 1 of nvidia.com/gpu in all"),  # not counted yet
        ({"cpu": "8"}, {"cpu": "4500m"}, "3.5 CPUs left, and its pods need 4 CPUs"),
        ({"requests.memory": "16Gi"}, {"requests.memory": "13Gi"}, "3 GiB of memory left"),
        ({"limits.cpu": "0", "count/jobs.batch": "0", "services": "0"}, None, ""),  # not what pods request
        ({"pods": "5"}, {"pods": "5"}, "0 "),
        ({"count/pods": "5"}, {"count/pods": "5"}, "0 "),
    ],
)
def test_what_a_quota_lacks_for_the_pods_of_a_job(hard, used, lacks):
    said = quota(hard, used).lacks({"nvidia.com/gpu": 2.0, "cpu": 4.0, "memory": 4.0 * 2**30, "pods": 1.0})
    assert lacks in said
    assert bool(said) == bool(lacks)


def test_a_quota_that_a_job_never_fits_says_so_whatever_is_left():
    needs = {"nvidia.com/gpu": 2.0}  # one of two pods is there
    half = quota({"requests.nvidia.com/gpu": "2"}, {"requests.nvidia.com/gpu": "2"}).lacks(needs, 0.5)
    assert half.endswith("allows 2 of nvidia.com/gpu in all, and its pods need 4 of nvidia.com/gpu: it never starts")
    half = quota({"requests.nvidia.com/gpu": "4"}, {"requests.nvidia.com/gpu": "3"}).lacks(needs, 0.5)
    assert "has 1 of nvidia.com/gpu left, and its pods need 2" in half


@pytest.mark.parametrize(
    ("spec", "counts"),
    [
        ({}, True),
        ({"scopes": ["NotTerminating"]}, True),
        ({"scopes": ["Terminating"]}, False),
        ({"scopes": ["BestEffort"]}, False),
        ({"scopes": ["NotBestEffort", "NotTerminating"]}, True),
        ({"scopes": ["CrossNamespacePodAffinity"]}, False),
        ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "Exists"}]}}, True),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["low"]}]
                }
            },
            False,
        ),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "NotIn", "values": ["low"]}]
                }
            },
            True,
        ),
    ],
)
def test_of_which_jobs_a_quota_counts_the_pods(spec, counts):
    job = replace(user_job_of(item()), requests=(("cpu", 1.0),), priority_class="high")
    assert quota({"pods": "1"}, **spec).counts(job) is counts
    assert not quota({"pods": "1"}, **spec).counts(replace(job, namespace="elsewhere"))
