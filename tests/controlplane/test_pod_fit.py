"""What pods ask for besides GPUs, and where they may be: kept by the whole control plane, on a real Kubernetes.

The simulated kubelets refuse a pod for GPUs alone. So what the pods of a node request is added up here.
"""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.engines.kubernetes.api import path_of
from commonwatt.engines.kubernetes.objects import REQUIRED, node_of, pod_of
from tests.engines.kubernetes.site import USERS, until

from .chaos import controller, kill, ledger_problems, running, store_of, witness
from .test_over_kubernetes import config_over
from .test_user_jobs import command, ended, lines, of, told, without_preemption

pytestmark = pytest.mark.long

NONE = {"name": "main", "image": "none", "command": ["true"]}
HOST = "kubernetes.io/hostname"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@pytest.fixture
def plane(kube, tmp_path):
    path = config_over(kube, tmp_path, jobs={USERS: ["a", "b"]})
    without_preemption(path)
    return path, store_of(path, tenants="ab")


def asking(requests, *work, gpus=1, **more):
    """The spec of a pod that requests more than GPUs."""
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}, "requests": requests}
    return {"containers": [{"name": "main", "image": "none", "command": list(work), "resources": resources}], **more}


def hog(kube, node, **requests):
    """A pod of somebody else, without GPUs."""
    spec = asking(requests, "sleep", "600")
    del spec["containers"][0]["resources"]["limits"]
    body = {"restartPolicy": "Never", "nodeName": node, "terminationGracePeriodSeconds": 1, **spec}
    meta = {"name": f"hog-{node}"}
    return kube.admin.create(
        path_of("pods", "default"), {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": body}
    )


def overbooked(kube):
    """What the pods of each node request beyond what it has, by node and resource."""
    found = {}
    for item in kube.admin.get(path_of("nodes"))["items"]:
        node, taken = node_of(item), {}
        for pod in map(pod_of, kube.pods()):
            if pod.node == node.name:
                for name, amount in pod.requests:
                    taken[name] = taken.get(name, 0.0) + amount
        over = {name: amount for name, amount in taken.items() if amount > node.allocatable.get(name, 0.0) + 1e-6}
        found |= {node.name: over} if over else {}
    return found


def node_names(kube, job):
    return sorted(pod["spec"].get("nodeName", "") for pod in kube.pods_of(job))


def said(store, job):
    """What the events of a job say."""
    return "; ".join(event.sentence or "" for event in store.events(job=job))


def until_kept(kube, true):
    """Wait for something, and see that no node has more pods than it has room for meanwhile."""

    def looked():
        assert overbooked(kube) == {}
        return true()

    return until(looked)


def test_a_node_whose_cpus_others_have_gets_no_pod_that_lacks_them(plane, kube, tmp_path):
    path, store = plane
    for node in ("gpu-0", "gpu-1"):
        hog(kube, node, cpu="24")
    wide = kube.user_job("wide", pod=asking({"cpu": "16"}, *command(tmp_path, "wide", 0.5)))
    with running(path):
        until_kept(kube, lambda: (row := of(store, wide)) and row.reason == "cpus-or-memory")
        assert "gpu-0 has 8 CPUs left, and it needs 16 CPUs there" in said(store, of(store, wide).id)
        own = store.submit("b", witness("own", tmp_path, 0.2, cpus_per_gpu=16.0), time.time())[0].id
        small = kube.user_job("small", pod=asking({"cpu": "2"}, *command(tmp_path, "small", 0.2)))
        until_kept(kube, lambda: of(store, small) and of(store, small).status == "completed")
        until_kept(kube, lambda: store.job(own).reason == "cpus-or-memory")
        assert node_names(kube, wide) == [""]
        assert "GiB" not in until(lambda: told(kube, wide).get("Waiting"))
        for pod in kube.pods():
            if pod["metadata"]["name"] == "hog-gpu-1":
                kube.remove(pod)
        until_kept(kube, lambda: of(store, wide).status == store.job(own).status == "completed")
        assert node_names(kube, wide) == ["gpu-1"]
    assert len([event for event in store.events(job=of(store, wide).id) if event.kind == "interrupted"]) == 0
    assert ledger_problems(store) == []


def test_jobs_of_one_decision_do_not_overbook_a_node_and_all_get_their_turn(plane, kube, tmp_path):
    path, store = plane
    asked = [{"cpu": "20"}, {"memory": "100Gi"}, {"cpu": "4", "memory": "40Gi"}, {"ephemeral-storage": "90Gi"}]
    jobs = [
        kube.user_job(f"j{k}", pod=asking(asked[k % 4], *command(tmp_path, f"j{k}", 0.3 + k % 3)), parallelism=1)
        for k in range(8)
    ]
    pair = kube.user_job("pair", pod=asking({"cpu": "20"}, "sleep", "0.3"), pods=2)
    with running(path):
        until_kept(kube, lambda: all((row := of(store, job)) and row.status == "completed" for job in [*jobs, pair]))
    assert set(node_names(kube, pair)) == {"gpu-0", "gpu-1"}
    again = [row for row in store.jobs(limit=20) if row.attempts != 1]
    assert [said(store, row.id) for row in again] == []
    assert ledger_problems(store) == []


def test_a_job_that_no_node_can_hold_is_refused_and_the_largest_node_is_named(plane, kube, tmp_path):
    path, _ = plane
    huge = kube.user_job("huge", pod=asking({"cpu": "33"}, "true"))
    licence = {"nvidia.com/gpu": "1", "example.com/licence": "1"}
    odd = kube.user_job("odd", pod={"containers": [{**NONE, "resources": {"limits": licence}}]})
    with running(path):
        why = until(lambda: told(kube, huge).get("NotTakenOver"))
        assert "spec.template.spec': got 'a pod that requests 33 CPUs', expected at most 32 CPUs" in why
        assert "1 of example.com/licence', expected at most 0" in until(lambda: told(kube, odd).get("NotTakenOver"))


def test_a_submitted_job_that_no_node_can_hold_waits_and_says_so_and_others_run(plane, kube, tmp_path):
    path, store = plane
    with running(path):
        huge = store.submit("a", witness("huge", tmp_path, 0.2, cpus_per_gpu=33.0), time.time())[0].id
        until(lambda: "no node has enough for it, even if it were empty: gpu-0 has 32 CPUs in all" in said(store, huge))
        own = store.submit("a", witness("own", tmp_path, 0.2), time.time())[0].id
        until_kept(kube, lambda: store.job(own).status == "completed")
    assert (store.job(huge).status, store.job(huge).attempts) == ("waiting", 0)


@pytest.fixture
def defaults(kube):
    """A namespace whose pods request CPUs though nobody asked for them."""
    limits = {"type": "Container", "defaultRequest": {"cpu": "20"}, "default": {"cpu": "20"}}
    body = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "usual"}, "spec": {"limits": [limits]}}
    kube.admin.create(path_of("limitranges", USERS), body)
    yield
    kube.admin.ask("DELETE", path_of("limitranges", USERS, "usual"))


def test_what_the_server_adds_to_pods_counts_before_they_are_bound(plane, defaults, kube, tmp_path):
    path, store = plane
    hog(kube, "gpu-0", cpu="24")
    jobs = [kube.user_job(f"d{k}", *command(tmp_path, f"d{k}", 0.5)) for k in range(3)]
    with running(path):
        until_kept(kube, lambda: all((row := of(store, job)) and row.status == "completed" for job in jobs))
    assert {name for job in jobs for name in node_names(kube, job)} == {"gpu-1"}
    assert [lines(tmp_path, f"d{k}") for k in range(3)] == [["begin", "end"]] * 3
    for job in jobs:  # refused once at most: then it is known
        assert of(store, job).attempts <= 2


@contextmanager
def quota(kube, **hard):
    """A ResourceQuota of the users' namespace, which Kubernetes has counted."""
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}, "spec": {"hard": hard}}
    path = path_of("resourcequotas", USERS)
    kube.admin.create(path, body)
    until(lambda: (kube.admin.get(f"{path}/gpus").get("status") or {}).get("used"))
    try:
        yield
    finally:
        kube.admin.ask("DELETE", f"{path}/gpus")


def test_a_job_whose_namespace_has_no_quota_left_waits_for_it_and_takes_no_gpus_meanwhile(plane, kube, tmp_path):
    path, store = plane
    with quota(kube, **{"requests.nvidia.com/gpu": "2", "pods": "9"}), running(path):
        first = kube.user_job("first", *command(tmp_path, "first", 300))
        until(lambda: lines(tmp_path, "first") == ["begin"])
        over = kube.user_job("over", *command(tmp_path, "over", 0.2), gpus=2)
        wanted = "quota gpus of namespace team-a has 1 of nvidia.com/gpu left, and its pods need 2 of nvidia.com/gpu"
        until(lambda: (row := of(store, over)) and row.reason == "admission")
        assert wanted in said(store, of(store, over).id)
        own = [store.submit("b", witness(f"own{k}", tmp_path, 0.2), time.time())[0].id for k in range(3)]
        until(lambda: all(store.job(job).status == "completed" for job in own))
        assert (of(store, over).status, of(store, over).attempts) == ("waiting", 0)
        kube.remove_job(first)
        assert ended(store, over).status == "completed"
    assert ledger_problems(store) == []


def test_a_job_for_which_another_of_the_same_decision_left_no_quota_gives_its_gpus_back_soon(plane, kube, tmp_path):
    path, store = plane
    with quota(kube, **{"requests.nvidia.com/gpu": "1"}):
        jobs = [kube.user_job(f"q{k}", *command(tmp_path, f"q{k}", 25)) for k in range(2)]
        with running(path):
            until(lambda: all(of(store, job) is not None for job in jobs))
            until(lambda: sorted(of(store, job).status for job in jobs) == ["running", "waiting"])
            (waits,) = [job for job in jobs if of(store, job).status == "waiting"]
            until(lambda: "quota gpus of namespace" in said(store, of(store, waits).id))
            assert ended(store, waits).status == "completed"
    assert ledger_problems(store) == []


@contextmanager
def tainted(kube, *names):
    """Nodes with a taint of their site."""
    taint = {"key": "team", "value": "x", "effect": "NoSchedule"}
    for name in names:
        kube.admin.merge(path_of("nodes", name=name), {"spec": {"taints": [taint]}})
    try:
        yield
    finally:
        for name in names:
            kube.admin.merge(path_of("nodes", name=name), {"spec": {"taints": None}})


def test_the_tolerations_of_a_job_open_tainted_nodes_to_that_job_alone(plane, kube, tmp_path):
    path, store = plane
    with tainted(kube, "gpu-0", "gpu-1"), running(path):
        tolerant = [{"key": "team", "operator": "Equal", "value": "x", "effect": "NoSchedule"}]
        mine = kube.user_job("mine", *command(tmp_path, "mine", 0.2), pod={"tolerations": tolerant})
        assert ended(store, mine).status == "completed"
        stays = kube.user_job("stays", *command(tmp_path, "stays", 300), pod={"tolerations": tolerant})
        until(lambda: lines(tmp_path, "stays") == ["begin"])
        own = store.submit("b", witness("own", tmp_path, 0.2), time.time())[0].id
        until(lambda: "taint team=x:NoSchedule, which its pods do not tolerate" in said(store, own))
        plain = kube.user_job("plain", *command(tmp_path, "plain", 0.2))
        assert "spec.template.spec" in until(lambda: told(kube, plain).get("NotTakenOver"))
        kube.remove_job(stays)


def test_a_taint_of_one_node_leaves_the_others_to_jobs_without_tolerations(plane, kube, tmp_path):
    path, store = plane
    with tainted(kube, "gpu-0"), running(path):
        job = kube.user_job("elsewhere", *command(tmp_path, "elsewhere", 0.2))
        assert ended(store, job).status == "completed"
        assert [pod["spec"]["nodeName"] for pod in kube.pods_of(job)] == ["gpu-1"]


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("affinity.podAntiAffinity", {"affinity": {"podAntiAffinity": {REQUIRED: [{"topologyKey": HOST}]}}}),
        ("affinity.podAffinity", {"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": HOST}]}}}),
        (
            "topologySpreadConstraints",
            {
                "topologySpreadConstraints": [
                    {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
                ]
            },
        ),
    ],
)
def test_rules_about_other_pods_are_refused_and_the_event_names_them(plane, kube, field, more):
    path, _ = plane
    with running(path):
        job = kube.user_job("rules", "true", pod=more)
        assert f"spec.template.spec.{field}" in until(lambda: told(kube, job).get("NotTakenOver"))


def test_pods_that_are_apart_anyway_are_placed_and_wishes_are_said_to_be_ignored(plane, kube, tmp_path):
    path, store = plane
    own = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"job-name": "apart"}}}
    wish = {"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}}
    affinity = {"podAntiAffinity": {REQUIRED: [own], PREFERRED: [wish]}}
    with running(path):
        job = kube.user_job("apart", "sleep", "0.2", pods=2, pod={"affinity": affinity})
        until(lambda: f"spec.template.spec.affinity.podAntiAffinity.{PREFERRED}" in told(kube, job).get("Ignored", ""))
        assert ended(store, job).status == "completed"


@pytest.mark.parametrize("killed", [False, True])
def test_after_an_interruption_only_the_pods_that_are_left_are_placed_again(plane, kube, tmp_path, killed):
    path, store = plane
    script = (
        f"mkdir {tmp_path}/first 2>/dev/null && exit 0; test -e {tmp_path}/go && echo >> {tmp_path}/again && exit 0"
    )
    job = kube.user_job("rest", "sh", "-c", f"{script}; sleep 600", gpus=2, pods=2)
    child = controller(path)
    try:
        until(lambda: sorted(p["status"]["phase"] for p in kube.pods_of(job)) == ["Running", "Succeeded"])
        (left,) = [p for p in kube.pods_of(job) if p["status"]["phase"] == "Running"]
        (tmp_path / "go").touch()
        if killed:
            kill(child)
        kube.remove(left)
        if killed:
            child = controller(path)
        row = ended(store, job)
    finally:
        kill(child)
    assert (row.status, row.attempts) == ("completed", 2)
    assert (tmp_path / "again").read_text() == "\n"
    assert sorted(p["status"]["phase"] for p in kube.pods_of(job)) == ["Succeeded", "Succeeded"]
    assert ledger_problems(store) == []


def test_a_job_of_which_a_pod_that_had_succeeded_is_deleted_is_complete_when_kubernetes_says_so(plane, kube, tmp_path):
    path, store = plane
    script = f"mkdir {tmp_path}/first 2>/dev/null && exit 0; while ! test -e {tmp_path}/go; do sleep 0.1; done"
    job = kube.user_job("counted", "sh", "-c", script, gpus=2, pods=2)
    with running(path):
        until(lambda: sorted(p["status"]["phase"] for p in kube.pods_of(job)) == ["Running", "Succeeded"])
        (over,) = [p for p in kube.pods_of(job) if p["status"]["phase"] == "Succeeded"]
        kube.remove(over)
        (tmp_path / "go").touch()
        row = ended(store, job)
    assert (row.status, row.attempts) == ("completed", 2)
    assert sorted(p["status"]["phase"] for p in kube.pods_of(job)) == ["Succeeded", "Succeeded"]
    assert ledger_problems(store) == []
