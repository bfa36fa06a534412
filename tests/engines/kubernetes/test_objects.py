"""Pods and nodes as the API shows them, and what is concluded from them; documents after Kubernetes' own formats."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.control.engine import Start
from commonwatt.engines.kubernetes.containers import containers_of, moment_s, quantity_of
from commonwatt.engines.kubernetes.node_control import PodAllocations, PodNeeds
from commonwatt.engines.kubernetes.objects import (
    CLUSTER,
    GATE,
    Node,
    kept_off,
    matches,
    node_of,
    pod_of,
    tolerated,
    whole,
)
from commonwatt.engines.kubernetes.power import HostPower
from commonwatt.engines.kubernetes.run import KubernetesRun
from commonwatt.engines.kubernetes.settings import KubernetesSettings, resource_of
from commonwatt.engines.kubernetes.snapshot import KubernetesSnapshot
from commonwatt.engines.kubernetes.user_job import UserJob
from commonwatt.engines.kubernetes.user_requests import Pauses
from commonwatt.engines.local.folder import RunFolder
from commonwatt.engines.run_spec import JobWork, RunSpec
from commonwatt.model.errors import EngineError
from commonwatt.model.nodes import Cluster, NodeSpec

GPU = "nvidia.com/gpu"


def pod(spec=None, status=None, **meta):
    return pod_of({
        "metadata": {"name": "p", "namespace": "n", "uid": "u", **meta}, "spec": spec or {}, "status": status or {},
    })  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "message", "itself"),
    [
        ("Evicted", 'Usage of EmptyDir volume "x" exceeds the limit "1Gi". ', True),
        (
            "Evicted",
            "The node was low on\nresource: memory. Container a used 3Gi, which exceeds its request",
            False,
        ),
        ("Evicted", "", False),
        ("DeadlineExceeded", "it exceeds its time", False),
    ],
)
def test_whether_it_was_evicted_for_what_it_took_itself(reason, message, itself):
    assert pod(status={"reason": reason, "message": message}).overused is itself


def container(requests=None, limits=None, **more):
    return {"resources": {"requests": requests or {}, "limits": limits or {}}, **more}


@pytest.mark.parametrize(
    ("text", "amount"),
    [("2", 2), ("500m", 0.5), ("1.5", 1.5), ("16Gi", 16 * 2**30), ("1e3", 1000), ("2k", 2000), ("100M", 1e8), (4, 4),
     ("1Ei", 2**60), ("8E", 8e18), ("", 0), ("many", 0), ("5Q", 0), (None, 0), ("1.2.3", 0),
     ("nan", 0), ("1e400", 2**63), ("-1e400", -(2**63)), ("12E", 2**63)],
)  # fmt: skip
def test_quantities(text, amount):
    assert quantity_of(text) == amount


@given(st.integers(0, 10**6))
def test_milli_units_are_thousandths(amount):
    assert quantity_of(f"{amount}m") == pytest.approx(amount / 1000)
    assert whole(amount * 0.1 / 0.1) == amount


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({}, ""),
        ({"schedulerName": "commonwatt"}, ""),
        ({"schedulerName": "yunikorn"}, "is for scheduler yunikorn now, not for commonwatt"),
        ({"schedulerName": "default-scheduler", "schedulingGates": [{"name": GATE}]}, ""),
        ({"nodeSelector": {"pool": "other"}}, "may not run on node a, by its node selector or affinity"),
        ({"nodeSelector": {"pool": "other"}, "nodeName": "a"}, ""),  # it is there
        ({"nodeSelector": {"pool": "gpu"}}, ""),
    ],
)
def test_what_a_server_adds_to_a_pod_is_seen_before_it_is_placed(spec, why):
    """The kubelet refused such a pod, which counted as a failure of its Job."""
    node = node_of({"metadata": {"name": "a", "labels": {"pool": "gpu"}}})
    assert kept_off(pod(spec), "commonwatt", node, ()) == why
    tainted = kept_off(pod(spec), "commonwatt", node, [("team", "b", "NoSchedule")])
    assert tainted == (why or ("" if "nodeName" in spec else "does not tolerate a taint of node a"))


def test_a_pod_takes_the_sum_of_its_containers():
    seen = pod({"containers": [container({"cpu": "1"}, {GPU: "2"}), container({"cpu": "500m"}, {GPU: "1"})]})
    assert dict(seen.requests) == {"cpu": 1.5, GPU: 3}


def test_init_containers_count_where_they_take_more_and_sidecars_beside_all():
    spec = {
        "initContainers": [
            container({"cpu": "1"}, restartPolicy="Always"),  # goes on beside the others
            container({"cpu": "3"}, {GPU: "4"}),
        ],
        "containers": [container({"cpu": "2"}, {GPU: "1"})],
        "overhead": {"cpu": "250m"},
    }
    assert dict(pod(spec).requests) == {"cpu": 4.25, GPU: 4}  # 3 + 1 while it is initialized; 2 + 1 afterwards


def test_what_a_pod_requests_as_a_whole_is_in_place_of_its_containers():
    spec = {
        "containers": [container({"cpu": 2, "memory": "1Gi"}), container({"cpu": 1, GPU: 1})],
        "resources": {"requests": {"cpu": 8}, "limits": {"cpu": 16, "memory": "9Gi"}},
        "overhead": {"cpu": "250m"},
    }
    assert dict(pod(spec).requests) == {"cpu": 8.25, "memory": 2**30, GPU: 1}


def state(kind, **more):
    return {"state": {kind: more}}


def over(code, at, reason=""):
    return state("terminated", exitCode=code, reason=reason, finishedAt=f"2026-11-25T{at}Z")


def test_a_pod_ends_with_its_last_container_and_as_the_one_that_failed():
    both = {"containerStatuses": [over(0, "09:01:00"), over(0, "09:50:00")]}
    assert containers_of(both).finished_s == moment_s("2026-11-25T09:50:00Z")
    failed = containers_of({"containerStatuses": [over(0, "09:01:00"), over(3, "09:10:00"), over(137, "09:09:00")]})
    assert (failed.exit_code, failed.finished_s) == (3, moment_s("2026-11-25T09:10:00Z"))
    killed = [over(1, "09:01:00", "Error"), over(137, "09:10:00", "OOMKilled")]
    assert containers_of({"containerStatuses": killed}).reason == "OOMKilled"


def test_a_pod_runs_while_any_container_does_and_is_stuck_where_any_is():
    running, pull = state("running"), state("waiting", reason="ImagePullBackOff")
    assert containers_of({"containerStatuses": [over(0, "09:01:00"), running]}).running
    assert containers_of({"containerStatuses": [running, pull]}).waiting == "ImagePullBackOff"
    crash = state("waiting", reason="CrashLoopBackOff")
    assert containers_of({"containerStatuses": [crash, running]}).running
    assert containers_of({"containerStatuses": [over(0, "09:01:00"), crash]}).waiting == "CrashLoopBackOff"
    assert containers_of({}) is None


def test_a_pod_whose_init_containers_run_has_started():
    waits = [state("waiting", reason="PodInitializing")]

    def found(*first):
        return containers_of({"containerStatuses": waits, "initContainerStatuses": list(first)})

    assert found(over(0, "09:01:00"), state("running")).running
    assert found(state("waiting", reason="ImagePullBackOff")).waiting == "ImagePullBackOff"
    assert found(over(4, "09:01:00", "Error")).exit_code == 4
    assert found(over(0, "09:01:00")).waiting == "PodInitializing"


def test_a_limit_of_a_pod_as_a_whole_is_its_request_where_no_container_requests_that():
    spec = {"containers": [container({"cpu": 2})], "resources": {"limits": {"cpu": 16, "memory": "9Gi"}}}
    assert dict(pod(spec).requests) == {"cpu": 2, "memory": 9 * 2**30}


def test_requests_outweigh_limits_and_all_that_nodes_run_out_of_counts():
    spec = {"containers": [container({"cpu": "1", "ephemeral-storage": "1Gi"}, {"cpu": "4", "memory": "1Gi"})]}
    assert dict(pod(spec).requests) == {"cpu": 1, "memory": 2**30, "ephemeral-storage": 2**30}
    spec = {"containers": [container(limits={"hugepages-2Mi": "1Gi", "rdma/hca": "1", "odd": "7"})]}
    assert dict(pod(spec).requests) == {"hugepages-2Mi": 2**30, "rdma/hca": 1}


@pytest.mark.parametrize(
    ("phase", "over"), [("Pending", False), ("Running", False), ("Succeeded", True), ("Failed", True)]
)
def test_a_pod_that_is_over_takes_nothing_and_a_terminating_one_does(phase, over):
    spec = {"containers": [container(limits={GPU: "1"})], "nodeName": "a"}
    seen = pod(spec, {"phase": phase}, deletionTimestamp="2026-01-01T00:00:00Z")
    assert seen.over is over
    assert bool(seen.requests) is not over
    assert seen.deleting


def test_what_is_ours_is_known_by_labels_and_odd_ones_are_of_no_run():
    labels = {CLUSTER: "x", "commonwatt.io/job": "7", "commonwatt.io/attempt": "2", "commonwatt.io/rank": "1"}
    assert pod(labels=labels).run == (7, 2, 1)
    assert pod(labels={**labels, "commonwatt.io/job": "-7"}).run is None
    assert pod(labels={"commonwatt.io/job": "7"}).run is None


def test_a_node_is_read():
    node = node_of({
        "metadata": {"name": "a", "labels": {"zone": "1"}},
        "spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {GPU: "8", "cpu": "31500m", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })  # fmt: skip
    assert (node.ready, node.cordoned, node.taints) == ("True", True, (("k", "", "NoSchedule"),))
    assert node.allocatable == {GPU: 8, "cpu": 31.5, "pods": 110}
    assert node_of({"metadata": {"name": "new"}}).ready == "Unknown"


TAINT = ("k", "v", "NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        ({"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "k", "value": "w"}, False),
        ({"key": "k", "value": "v", "effect": "NoExecute"}, False),
        ({"key": "", "value": "v"}, False),
    ],
)
def test_taints_are_tolerated_as_kubernetes_does(toleration, fits):
    assert tolerated([TAINT], [toleration]) is fits
    assert tolerated([("k", "v", "PreferNoSchedule")], [])
    assert not tolerated([TAINT], [])


def required(*rules, fields=()):
    term = {"matchExpressions": list(rules), "matchFields": list(fields)}
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    }


@pytest.mark.parametrize(
    ("operator", "values", "fits"),
    [("In", ["1", "2"], True), ("In", ["2"], False), ("NotIn", ["1"], False), ("Exists", [], True),
     ("DoesNotExist", [], False), ("Gt", ["0"], True), ("Gt", ["1"], False), ("Lt", ["2"], True), ("Odd", [], False)],
)  # fmt: skip
def test_selectors_and_required_affinity(operator, values, fits):
    rule = {"key": "zone", "operator": operator, "values": values}
    assert matches(required(rule), {"zone": "1"}, "a") is fits
    assert matches({"nodeSelector": {"zone": "1"}}, {"zone": "1"}, "a")
    assert not matches({"nodeSelector": {"zone": "2"}}, {"zone": "1"}, "a")
    name = {"key": "metadata.name", "operator": "In", "values": ["a"]}
    assert matches(required(fields=[name]), {}, "a")
    assert not matches(required(fields=[name]), {}, "b")
    assert not matches(required(), {}, "a")  # a term without rules admits none


def test_resources_of_gpu_types():
    assert resource_of("V100", {}) == GPU
    assert resource_of("A100-1g.5gb", {}) == "nvidia.com/mig-1g.5gb"
    assert resource_of("H100-1g.10gb.me", {}) == "nvidia.com/mig-1g.10gb.me"
    assert resource_of("MI300X", {"MI300X": "amd.com/gpu"}) == "amd.com/gpu"


def ready(name, **more):
    fields = {"ready": "True", "cordoned": False, "taints": (), "labels": {}, "allocatable": {GPU: 4.0, "cpu": 32.0}}
    return Node(name, **{**fields, **more})


def allocations(*specs, needs=None, **settings):
    cluster = Cluster.of(specs)
    power = HostPower(None, cluster, "us", KubernetesSettings(), Path(), Pauses(None))
    return PodAllocations(cluster, KubernetesSettings(**settings), power, needs)


def snapshot(*nodes, **others):
    return KubernetesSnapshot({node.name: node for node in nodes}, {}, (), others)


TWO = [NodeSpec(name=name, gpu_type="V100", gpus=4, idle_w=1, gpu_w=1) for name in ("a", "b")]


class Users:
    """Jobs of users, by uid."""

    version = (1,)

    def __init__(self, **jobs):
        self._jobs = jobs

    def all(self):
        return self._jobs

    def find(self, uid):
        return self._jobs.get(uid)


def needs(settings, *, users=None, **work):
    own = JobWork(("x",), **work)
    return PodNeeds(KubernetesSettings(**settings), {GPU}, lambda _: own, users or Users())


def left_of(room, n):
    return dict(zip(room.resources, room.left[n].tolist(), strict=True))


def needed(room, c=0):
    return dict(zip(room.resources, room.needs[c].tolist(), strict=True))


def test_what_others_take_is_not_usable():
    nodes = allocations(*TWO)
    view = nodes.view(snapshot(ready("a"), ready("b"), a={GPU: 3.0}, b={"cpu": 30.5}))
    assert view.usable_gpus.tolist() == [1, 4]  # CPUs count for each job by itself
    assert view.in_use.tolist() == [True, False]


def test_the_room_beside_gpus_is_what_others_leave_and_what_our_pods_would_take():
    site = {"cpus_per_gpu": 2.0, "memory_gb_per_gpu": 2.0}
    there = {GPU: 4.0, "cpu": 32.0, "memory": 64 * 2.0**30, "pods": 10.0}
    seen = snapshot(ready("a", allocatable=there), ready("b", allocatable=there), b={"cpu": 30.5, "pods": 3.0})
    room = allocations(*TWO, needs=needs(site), **site).room([(1, "1-j", 2), (1, "1-j", 1)], seen)
    assert left_of(room, 0) == {"cpu": 32.0, "memory": 64.0, "pods": 10.0}
    assert left_of(room, 1) == {"cpu": 1.5, "memory": 64.0, "pods": 7.0}
    assert needed(room) == {"cpu": 4.0, "memory": pytest.approx(4e9 / 2**30), "pods": 1.0}
    assert needed(room, 1)["cpu"] == 2.0
    init = {"initContainers": [container({"cpu": "8"})], "overhead": {"cpu": "500m", "memory": "1Gi"}}
    more = allocations(*TWO, needs=needs({**site, "pod": init})).room([(1, "1-j", 1)], seen)
    assert needed(more) == {"cpu": 8.5, "memory": pytest.approx(2e9 / 2**30 + 1), "pods": 1.0}
    asked = allocations(*TWO, needs=needs(site, cpus_per_gpu=5.0, memory_gib_per_gpu=0.5)).room([(1, "1-j", 2)], seen)
    assert needed(asked) == {"cpu": 10.0, "memory": 1.0, "pods": 1.0}


def user_job(**more):
    fields = {
        "namespace": "n", "name": "j", "uid": "u1", "tenant": "a", "deleting": False, "suspended": False, "pods": 2,
        "completions": 2, "gpus": ((GPU, 2.0),), "scheduler": "commonwatt",
    }  # fmt: skip
    return UserJob(**{**fields, **more})


def test_a_users_job_takes_what_its_pods_request_and_no_more():
    own = user_job(requests=(("cpu", 6.0), ("hugepages-2Mi", 2.0**30), (GPU, 2.0), ("rdma/hca", 1.0)))
    known = needs({}, users=Users(u1=own), workload=("n", "j", "u1", "2"))
    seen = snapshot(ready("a"), ready("b", allocatable={GPU: 4.0, "cpu": 32.0, "rdma/hca": 3.0}))
    room = allocations(*TWO, needs=known).room([(1, "1-j", 4)], seen)  # two pods on each node
    assert needed(room) == {"cpu": 12.0, "hugepages-2Mi": 2.0, "pods": 2.0, "rdma/hca": 2.0}
    assert left_of(room, 0)["rdma/hca"] == 0
    assert left_of(room, 1) == {"cpu": 32.0, "hugepages-2Mi": 0.0, "pods": float("inf"), "rdma/hca": 3.0}


def test_what_a_server_adds_to_pods_is_known_the_next_time():
    known = needs({"cpus_per_gpu": 1.0})
    known.learn(1, "1-j", 2, {"cpu": 2.5, "memory": 2.0**30, "pods": 1.0})
    assert known.of(1, "1-j", 2) == {"cpu": 2.5, "memory": 2.0**30, "pods": 1.0}
    assert known.of(1, "1-j", 4) == {"cpu": 4.5, "memory": 2.0**30, "pods": 1.0}
    assert known.of(2, "2-j", 2) == {"cpu": 2.0, "pods": 1.0}


def test_a_taint_opens_a_node_to_the_jobs_that_tolerate_it_alone():
    tolerations = json.dumps({"tolerations": [{"key": "k", "operator": "Exists"}]})
    jobs = {"u1": user_job(rules=tolerations), "u2": user_job(uid="u2")}
    works = {"1-x": JobWork(("x",), workload=("n", "x", "u1")), "2-y": JobWork(("x",), workload=("n", "y", "u2"))}
    known = PodNeeds(KubernetesSettings(), {GPU}, lambda name: works.get(name, JobWork(("x",))), Users(**jobs))
    nodes = allocations(*TWO, needs=known)
    seen = snapshot(ready("a", taints=(TAINT,)), ready("b"))
    assert nodes.view(seen).usable_gpus.tolist() == [4, 4]
    room = nodes.room([(1, "1-x", 1), (2, "2-y", 1), (3, "3-ours", 1)], seen)
    assert room.conditions == 1
    assert room.resources[-1] == "taint k=v:NoSchedule"
    assert room.left[:, -1].tolist() == [0, float("inf")]
    assert room.needs[:, -1].tolist() == [0, 1, 1]
    passing = (("node.kubernetes.io/not-ready", "", "NoExecute"), TAINT)
    assert nodes.view(snapshot(ready("a", taints=passing), ready("b"))).usable_gpus.tolist() == [0, 4]
    without = PodNeeds(KubernetesSettings(), {GPU}, works.get, Users(u2=jobs["u2"]))
    assert allocations(*TWO, needs=without).view(seen).usable_gpus.tolist() == [0, 4]


@pytest.mark.parametrize(
    "change",
    [{"cordoned": True}, {"taints": (TAINT,)}, {"ready": "False"}, {"allocatable": {}}],
    ids=["cordoned", "tainted", "not ready", "without GPUs"],
)
def test_nodes_that_admit_nothing_new(change):
    assert allocations(*TWO).view(snapshot(ready("a", **change), ready("b"))).usable_gpus.tolist() == [0, 4]


def test_a_lost_node_is_down_but_not_all_at_once():
    nodes = allocations(*TWO, lost_s=0.0)
    gone = snapshot(ready("a", ready="Unknown"), ready("b"))
    assert nodes.lost(gone) == {"a": "Unknown"}
    assert nodes.view(gone).up.tolist() == [False, True]
    assert nodes.lost(snapshot(ready("b"))) == {"a": None}
    assert nodes.lost(snapshot(ready("a", ready="Unknown"), ready("b", ready="Unknown"))) == {}
    later = allocations(*TWO, dark_s=-1.0, lost_s=0.0)
    assert set(later.lost(snapshot())) == {"a", "b"}
    assert allocations(*TWO, lost_s=60.0).lost(gone) == {}
    assert nodes.lost(replace(gone, steady_s=time.monotonic())) == {}  # nodes have not had time to say that they live


def test_parts_of_a_node_have_resources_of_their_own_and_share_its_cpus():
    mig = {GPU: 2.0, "nvidia.com/mig-1g.5gb": 7.0, "cpu": 8.0}
    parts = [
        NodeSpec(name="a:A100", host="a", gpu_type="A100", gpus=2, idle_w=1, gpu_w=1),
        NodeSpec(name="a:A100-1g.5gb", host="a", gpu_type="A100-1g.5gb", gpus=7, idle_w=1, gpu_w=1),
    ]
    nodes = allocations(*parts)
    seen = snapshot(ready("a", allocatable=mig), a={GPU: 1.0, "nvidia.com/mig-1g.5gb": 2.0, "cpu": 4.0})
    assert nodes.view(seen).usable_gpus.tolist() == [1, 5]
    known = needs({"cpus_per_gpu": 1.0})
    nodes = allocations(*parts, needs=known)
    assert nodes.room([(1, "1-j", 1)], seen).left[:, 0].tolist() == [4, 4]
    spec = RunSpec(1, 1, "1-j", (0,), 1, ((),), 0.0, 0.0, ("x",), "/", {}, 5.0)
    nodes.enter(KubernetesRun(RunFolder(Path("/none")), spec))
    room = nodes.room([(2, "2-j", 1)], seen)
    assert room.left[:, 0].tolist() == [4, 3]  # the first part still counts its own
    nodes.check(Start(2, "2-j", (1,), 3), seen)
    with pytest.raises(EngineError, match="node a has 3 CPUs left, and its pods need 4 CPUs"):
        nodes.check(Start(2, "2-j", (1,), 4), seen)
    assert nodes.has_room((1,), 3, 2, seen)
    assert not nodes.has_room((1,), 4, 2, seen)


def test_a_pod_of_a_job_is_ours_by_the_annotations_of_its_binding_and_of_others_before():
    owners = [{"uid": "other"}, {"uid": "u1", "controller": True}]
    spec = {"schedulerName": "commonwatt", "containers": [container(limits={GPU: "1"})]}
    waits = pod(spec, ownerReferences=owners)
    assert (waits.owner, waits.scheduler, waits.cluster, waits.run) == ("u1", "commonwatt", "", None)
    assert waits.request is not None
    notes = {CLUSTER: "x", "commonwatt.io/job": "7", "commonwatt.io/attempt": "2", "commonwatt.io/run": "7-2-1.0"}
    placed = pod({**spec, "nodeName": "a"}, ownerReferences=owners, annotations=notes)
    assert (placed.cluster, placed.run, placed.mark) == ("x", (7, 2, 0), "7-2-1.0")
    assert pod(spec, annotations=notes).cluster == ""  # of no Job: annotations say nothing
