"""Pods of others as jobs: what runs where, what waits for which GPUs, how long what is over took."""

from __future__ import annotations

import pytest

from commonwatt.engines.kubernetes.objects import node_of, pod_of
from commonwatt.engines.kubernetes.snapshot import external_jobs
from commonwatt.model.nodes import Cluster, NodeSpec

CLUSTER = Cluster.of([
    NodeSpec(name="a", gpu_type="A100", gpus=8, idle_w=1, gpu_w=1),
    NodeSpec(name="v", gpu_type="V100", gpus=4, idle_w=1, gpu_w=1),
    NodeSpec(name="w", gpu_type="V100", gpus=4, idle_w=1, gpu_w=1),
    NodeSpec(name="m", host="m", gpus=2, gpu_type="A100-1g.5gb", idle_w=1, gpu_w=1, states=()),
])  # fmt: skip


def node(name, **labels):
    return node_of({"metadata": {"name": name, "labels": labels}, "spec": {}, "status": {}})


NODES = {
    name: node(name, product=product)
    for name, product in {"a": "NVIDIA-A100", "v": "V100", "w": "V100", "m": "NVIDIA-A100"}.items()
}


def pod(name, gpus=1, resource="nvidia.com/gpu", phase="Pending", labels=None, status=None, **spec):
    meta = {"name": name, "uid": f"uid-{name}", "namespace": "team", "creationTimestamp": "2026-11-25T10:00:00Z"}
    container = {"resources": {"limits": {resource: str(gpus)} if gpus else {}}}
    return pod_of({
        "metadata": meta | {"labels": labels or {}}, "spec": {"containers": [container], **spec},
        "status": {"phase": phase, **(status or {})},
    })  # fmt: skip


def jobs(*pods):
    return external_jobs(pods, NODES, CLUSTER, {}, "ours")


SUBMIT_S = 1795600800.0  # 2026-11-25 10:00 UTC


def terminated(start, end):
    times = {"startedAt": f"2026-11-25T{start}Z", "finishedAt": f"2026-11-25T{end}Z"}
    return {"containerStatuses": [{"state": {"terminated": {"exitCode": 0, **times}}}]}


def test_what_runs_is_where_it_runs():
    began = {"containerStatuses": [{"state": {"running": {"startedAt": "2026-11-25T10:01:00Z"}}}]}
    (one,) = jobs(pod("x", 2, phase="Running", status=began, nodeName="v", activeDeadlineSeconds=600))
    assert (one.label, one.user, one.state, one.gpus, one.nodes) == ("team/x", "team", "running", 2, ("v",))
    assert (one.submit_s, one.start_s, one.end_s) == (SUBMIT_S, SUBMIT_S + 60, None)
    assert one.limit_s == 600


def test_what_is_over_says_how_long_it_took():
    (one,) = jobs(pod("x", 1, phase="Succeeded", status=terminated("10:01:00", "11:01:00"), nodeName="v"))
    assert (one.state, one.end_s - one.start_s, one.start_s - one.submit_s) == ("ended", 3600, 60)
    (gone,) = jobs(pod("x", 1, phase="Failed", nodeName="v"))
    assert gone.end_s is None


@pytest.mark.parametrize(
    ("spec", "gpu_type"),
    [
        ({}, None),
        ({"nodeSelector": {"product": "V100"}}, "V100"),
        ({"nodeSelector": {"product": "NVIDIA-A100"}}, "A100"),
        ({"nodeSelector": {"product": "H100"}}, "nvidia.com/gpu"),  # of no node: it is a type the cluster lacks
        (
            {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "product", "operator": "NotIn", "values": ["V100"]}]}]}}}},
            "A100",
        ),
    ],
)  # fmt: skip
def test_what_waits_names_the_type_that_its_rules_leave(spec, gpu_type):
    (one,) = jobs(pod("x", **spec))
    assert (one.state, one.gpu_type, one.nodes, one.start_s) == ("waiting", gpu_type, (), None)


def test_a_slice_is_a_type_of_its_own():
    (one,) = jobs(pod("x", resource="nvidia.com/mig-1g.5gb"))
    assert one.gpu_type == "A100-1g.5gb"


def test_pods_that_start_together_are_one_job():
    labels = {"training.kubeflow.org/job-name": "train"}
    waiting = [pod(f"train-{k}", 4, labels=labels) for k in range(3)]
    (one,) = jobs(*waiting)
    assert (one.label, one.state, one.gpus) == ("team/train", "waiting", 12)
    bound = [pod(f"train-{k}", 4, labels=labels, phase="Running", nodeName="vw"[k]) for k in range(2)]
    (one,) = jobs(*bound, waiting[2])
    assert (one.state, one.gpus, one.nodes, one.most_on_a_node) == ("running", 8, ("v", "w"), 4)
    over = [pod(f"train-{k}", 4, labels=labels, phase="Succeeded", nodeName="v",
                status=terminated("10:01:00", f"1{k + 1}:00:00")) for k in range(2)]  # fmt: skip
    (one,) = jobs(*over)
    assert one.state == "ended"
    assert one.end_s - one.submit_s == 2 * 3600
    retry = pod("train-9", 4, labels=labels)
    (one,) = jobs(*over, retry)
    assert (one.state, one.gpus) == ("waiting", 4)


def test_what_does_not_concern_us_is_left_out():
    assert (
        jobs(
            pod("no-gpu", 0),
            pod("ours", labels={"commonwatt.io/cluster": "ours"}),
            pod("held", schedulingGates=[{"name": "kueue"}]),
            pod("other-device", resource="example.com/fpga"),
        )
        == []
    )


def test_jobs_of_one_name_in_two_namespaces_are_two():
    a, b = jobs(pod("x"), pod_of({
        "metadata": {"name": "x", "uid": "2", "namespace": "other", "creationTimestamp": "2026-11-25T10:00:00Z"},
        "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}, "status": {"phase": "Pending"},
    }))  # fmt: skip
    assert a.id != b.id
    assert {a.label, b.label} == {"team/x", "other/x"}
