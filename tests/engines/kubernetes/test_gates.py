"""Pods with our scheduling gate, on a server that answers as documented for 1.27: the real one here knows no gates."""

from __future__ import annotations

import copy
import json
import ssl
from dataclasses import replace

import httpx
import pytest

from commonwatt.engines.kubernetes.access import Access
from commonwatt.engines.kubernetes.api import KubernetesApi
from commonwatt.engines.kubernetes.objects import matches, pod_of
from commonwatt.engines.kubernetes.user_gang import jobset_of, user_job_of
from commonwatt.engines.kubernetes.user_jobs import UserJobs, _is_pinned, _pinned
from commonwatt.model.errors import EngineError

from .extension import merged
from .gangs import jobset, pod_spec
from .test_user_gang import there
from .test_user_job import file, item
from .test_user_run import run_in

GATES = [{"name": "commonwatt.io/placement"}, {"name": "example.org/quota"}]
HOSTS = {0: "gpu-0", 1: "gpu-1"}


class Server:
    """Has gated pods, and writes down each patch. Fields that it *drops* are not kept; *denied* ones answer 403."""

    def __init__(self, pods=1, drops=(), denied=(), **spec) -> None:
        self.pods, self.drops, self.denied, self.patches, self.deleted = {}, drops, denied, [], []
        for k in range(pods):
            owner = {"kind": "Job", "uid": "u1", "controller": True}
            meta = {"namespace": "team-a", "name": f"train-{k}", "uid": f"p{k}", "ownerReferences": [owner]}
            own = {"schedulerName": "default-scheduler", "schedulingGates": GATES, **spec}
            self.pods[f"train-{k}"] = {"metadata": meta, "spec": own, "status": {"phase": "Pending"}}
        access = Access("https://server", "default", ssl.create_default_context(), token="t")
        self.jobs = UserJobs(KubernetesApi(access, transport=httpx.MockTransport(self.answer)), "ours", ["team-a"])

    def answer(self, request: httpx.Request) -> httpx.Response:
        name = request.url.path.rsplit("/", 1)[1]
        if request.method == "DELETE":
            self.deleted.append(name)
            return httpx.Response(200, json={})
        if request.method == "PATCH":
            patch = json.loads(request.content)
            if self.denied and self.denied in patch["spec"]:
                return httpx.Response(403, json={"reason": "Forbidden", "message": "no"})
            kept = {key: value for key, value in patch["spec"].items() if key not in self.drops}
            self.pods[name] = merged(self.pods[name], {**patch, "spec": kept})
            self.patches.append((name, *patch["spec"]))
        return httpx.Response(200, json=self.pods[name])

    def place(self, run):
        pods = [pod_of(pod) for pod in self.pods.values()]
        return self.jobs.place(run, user_job_of(item()), pods, HOSTS)

    def gates(self, name="train-0"):
        return [gate["name"] for gate in self.pods[name]["spec"]["schedulingGates"]]


def test_each_pod_is_pinned_to_its_node_before_our_gate_is_taken_away(tmp_path):
    server, run = Server(pods=2), run_in(tmp_path, pods=2)
    assert server.place(run)
    assert server.patches == [(f"train-{k}", what) for k in (0, 1) for what in ("affinity", "schedulingGates")]
    for k in (0, 1):
        pod = server.pods[f"train-{k}"]
        assert server.gates(f"train-{k}") == ["example.org/quota"]  # not ours to take away
        assert [matches(pod["spec"], {}, host) for host in HOSTS.values()] == [k == 0, k == 1]
        assert pod_of(pod).run == (1, 1, k)
        assert pod_of(pod).mark == run.mark
    assert [run.pod_uid(rank) for rank in run.ranks] == ["p0", "p1"]
    assert server.place(run)  # again, as after a crash
    assert len(server.patches) == 4


def test_a_pod_of_another_namespace_is_not_placed_for_a_job_whoever_it_names_as_owner(tmp_path):
    server, run = Server(), run_in(tmp_path)
    forged = copy.deepcopy(server.pods["train-0"])
    forged["metadata"] |= {"namespace": "elsewhere", "name": "aaa", "uid": "p9"}
    server.pods["aaa"] = forged
    assert server.place(run)
    assert run.pod_uid(0) == "p0"
    assert {name for name, _ in server.patches} == {"train-0"}


def test_a_gang_that_is_not_complete_is_not_touched(tmp_path):
    server = Server(pods=1)
    assert not server.place(run_in(tmp_path, pods=2))
    assert server.patches == []


def test_one_that_was_pinned_before_a_crash_is_only_ungated(tmp_path):
    server, run = Server(), run_in(tmp_path)
    server.denied = "schedulingGates"
    with pytest.raises(EngineError):
        server.place(run)
    server.denied = ()
    assert server.place(run)
    assert server.patches == [("train-0", "affinity"), ("train-0", "schedulingGates")]


@pytest.mark.parametrize("more", [{"drops": ("affinity",)}, {"denied": "affinity"}])
def test_one_whose_affinity_is_not_kept_stays_gated(tmp_path, more):
    server = Server(**more)
    with pytest.raises(EngineError):
        server.place(run_in(tmp_path))
    assert server.gates() == ["commonwatt.io/placement", "example.org/quota"]


def test_one_whose_gate_somebody_else_took_away_is_refused(tmp_path):
    server, run = Server(), run_in(tmp_path)
    pods = [pod_of(pod) for pod in server.pods.values()]  # as the watch has shown it
    server.pods["train-0"]["spec"]["schedulingGates"] = []
    with pytest.raises(EngineError, match="its gate taken away"):
        server.jobs.place(run, user_job_of(item()), pods, HOSTS)
    assert server.patches == []


def test_one_that_a_run_before_has_pinned_is_replaced(tmp_path):
    server, run = Server(), run_in(tmp_path)
    server.pods["train-0"]["metadata"]["annotations"] = {"commonwatt.io/run": "of an earlier one"}
    with pytest.raises(EngineError, match="Kubernetes makes another one"):
        server.place(run)
    assert server.deleted == ["train-0"]
    assert server.patches == []


def test_an_affinity_is_narrowed_and_nothing_of_it_lost():
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    other = {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    spec = {"affinity": {"podAffinity": {"x": 1}, "nodeAffinity": {required: {"nodeSelectorTerms": [zone, other]}}}}
    narrowed = {"affinity": _pinned(spec, "n")}
    assert narrowed["affinity"]["podAffinity"] == {"x": 1}
    assert _is_pinned(narrowed, "n")
    assert not _is_pinned(narrowed, "m")
    for labels in ({"zone": "a"}, {"disk": "ssd"}, {"zone": "b"}):
        assert matches(narrowed, labels, "n") is matches(spec, labels, "n")
        assert not matches(narrowed, labels, "m")
    assert not _is_pinned(spec, "n")
    assert not _is_pinned({}, "n")


def test_a_gate_is_as_good_as_our_scheduler_unless_the_server_has_dropped_it():
    gated = {"schedulerName": "default-scheduler", "schedulingGates": GATES}
    assert file(pod=gated).gpus == 1
    assert user_job_of(item(pod=gated)).ours_to_place
    kept = pod_spec(("true",), 1, **gated)
    assert jobset_of(there(jobset("t", ("w", 1, 1, kept)))).ours_to_place
    dropped = {key: value for key, value in gated.items() if key != "schedulingGates"}
    assert not user_job_of(item(pod=dropped)).ours_to_place
    assert not jobset_of(there(jobset("t", ("w", 1, 1, {**kept, "schedulingGates": []})))).ours_to_place
    assert replace(user_job_of(item()), scheduler="other").ours_to_place is False
