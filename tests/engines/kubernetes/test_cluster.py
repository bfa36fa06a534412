"""The engine among others, and over a cluster that fails: on a real Kubernetes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from commonwatt.control.engine import JobEnded, JobInterrupted, Outcome, Start, Stop
from commonwatt.engines.kubernetes.api import KubernetesApi, RefusedByServerError, path_of
from commonwatt.engines.kubernetes.engine import KubernetesEngine
from commonwatt.engines.kubernetes.settings import pod_name
from commonwatt.engines.run_spec import JobWork
from commonwatt.engines.state_folder import set_fence
from commonwatt.model.errors import ClaimLostError, EngineDownError, EngineError

from ..test_local import WORKER
from .site import NAMESPACE, collection, documents, until
from .test_contract import CLUSTER

pytestmark = pytest.mark.long

ENDLESS = {"epochs": 1000, "times": {"1": 1000, "2": 1000, "4": 1000}, "unit_s": 0.2}
SHORT = {"epochs": 2, "times": {"1": 2, "2": 2, "4": 2}, "unit_s": 0.2}


def work(name: str) -> JobWork:
    if name == "missing":
        return JobWork(("/no/such/program",), Path("/"))
    spec = ENDLESS if name == "endless" else SHORT
    worker = (sys.executable, "-I", str(WORKER), json.dumps(spec))
    if name == "talks":
        return JobWork(("sh", "-c", "echo one; echo two >&2; printf three"), Path("/"))
    if name.startswith("waits for "):
        wait = 'until [ -e "$0" ]; do sleep 0.05; done; exec "$@"'
        worker = ("sh", "-c", wait, name.removeprefix("waits for "), *worker)
    return JobWork(worker, Path("/"), spec["epochs"])


@pytest.fixture
def engine_on(kube, settings, tmp_path):
    made = []

    def make(api: KubernetesApi | None = None, **changed) -> KubernetesEngine:
        own = replace(settings, **changed)
        engine = KubernetesEngine(CLUSTER, tmp_path, work, api or kube.api(), settings=own, declared_power=True)
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.close()


def usable(engine):
    return engine.nodes().usable_gpus.tolist()


def changes_of(engine, limit_s=60.0):
    """The changes of the first poll that has any."""
    end_s = time.monotonic() + limit_s
    while not (changes := engine.poll()):
        assert time.monotonic() < end_s, "nothing changed"
        engine.wait(0.2)
    return list(changes)


def begun(engine, handle):
    return until(lambda: engine.wait(0.05) or engine._runs[handle].folder.processes())


def test_what_others_have_is_not_ours_until_it_is_gone(engine_on, kube):
    engine = engine_on()
    assert usable(engine) == [2, 2]
    deaf = ("sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
    other = kube.run("other", "gpu-0", 2, command=deaf, terminationGracePeriodSeconds=2)
    kube.run("placed-by-kubernetes", None, 1)
    until(lambda: usable(engine) == [0, 1])
    assert engine.nodes().in_use.tolist() == [True, True]
    with pytest.raises(EngineError, match="has 0 GPUs free"):
        engine.apply([Start(0, "short", (0,), 1)])
    uid = other["metadata"]["uid"]
    until(lambda: engine.informer.look(engine._pods)[uid].phase == "Running")
    kube.remove(other)
    until(lambda: engine.informer.look(engine._pods)[uid].deleting)
    assert usable(engine) == [0, 1]  # it is terminating, and still has its GPUs
    until(lambda: usable(engine) == [2, 1])
    left = engine.informer.look(engine._pods).get(uid)
    assert left is None or left.over


def test_a_pod_the_kubelet_refuses_is_an_interruption_that_is_not_the_jobs_fault(engine_on, kube, monkeypatch):
    engine = engine_on()
    kube.run("faster", "gpu-0", 2)
    until(lambda: usable(engine) == [0, 2])
    monkeypatch.setattr(engine._allocations, "check", lambda *_: None)  # as if it had come after the look
    engine.apply([Start(0, "short", (0,), 1)])
    (change,) = changes_of(engine)
    assert isinstance(change, JobInterrupted)
    assert not change.begun
    assert "OutOfnvidia.com/gpu" in change.cause


def test_cordons_of_others_stay_and_ours_go(engine_on, kube):
    engine = engine_on()
    assert usable(engine) == [2, 2]
    kube.admin.merge(path_of("nodes", name="gpu-0"), {"spec": {"unschedulable": True}})
    until(lambda: usable(engine) == [0, 2])
    engine.drain([0, 1])
    until(lambda: usable(engine) == [0, 0])
    engine.drain([])
    until(lambda: usable(engine) == [0, 2])
    assert kube.node("gpu-0")["spec"]["unschedulable"]
    engine.apply([Start(0, "endless", (1,), 1)])
    taint = {"key": "only", "value": "others", "effect": "NoSchedule"}
    kube.admin.merge(path_of("nodes", name="gpu-1"), {"spec": {"taints": [taint]}})
    until(lambda: usable(engine) == [0, 1])  # what runs there goes on
    tolerant = engine_on(pod={"tolerations": [{"key": "only", "operator": "Exists"}]})
    assert usable(tolerant) == [0, 2]
    kube.admin.merge(path_of("nodes", name="gpu-1"), {"spec": {"taints": None}})
    engine.apply([Stop(0)])


def test_an_answer_that_does_not_come_makes_one_pod(engine_on, kube, monkeypatch):
    engine = engine_on()
    create, lost = engine._api.create, []

    def unanswered(path, body, **params):
        answer = create(path, body, **params)
        if path not in lost:
            lost.append(path)
            msg = "the answer is lost"
            raise EngineDownError(msg)
        return answer

    monkeypatch.setattr(engine._api, "create", unanswered)
    engine.apply([Start(0, "short", (0,), 1)])
    assert len(lost) == 2  # the pod's, and the binding's
    assert len([pod for pod in kube.pods() if pod["metadata"]["namespace"] == NAMESPACE]) == 1
    (change,) = changes_of(engine)
    assert change.outcome is Outcome.COMPLETED


def test_a_controller_that_dies_before_it_has_placed_a_gang_leaves_nothing_running(engine_on, kube, monkeypatch):
    engine = engine_on()
    bind = engine._placer._bind

    def die(run, rank):
        if rank:
            raise KeyboardInterrupt
        bind(run, rank)

    monkeypatch.setattr(engine._placer, "_bind", die)
    with pytest.raises(KeyboardInterrupt):
        engine.apply([Start(0, "endless", (0, 1), 2)])
    engine.close()
    successor = engine_on(keep_s=0.0)
    (change,) = changes_of(successor)
    assert isinstance(change, JobInterrupted)
    until(lambda: successor.poll() == [] and not kube.pods())
    until(lambda: usable(successor) == [2, 2])
    assert successor.attempts(0) == 1


def test_one_of_several_starts_that_is_refused_leaves_nothing_and_the_others_run(engine_on, kube, monkeypatch):
    engine = engine_on()
    create, together, binding = engine._api.create, threading.Barrier(3), []

    def refusing(path, body, **params):
        if path.endswith("/binding"):
            binding.append(body["metadata"]["name"])
        else:
            assert not binding  # all pods are there before the first is placed
            together.wait(10.0)  # broken unless all three are under way
        if body["metadata"]["name"] == pod_name(engine._label, 1, 1):
            raise RefusedByServerError(422, "Invalid", "no such image")
        return create(path, body, **params)

    monkeypatch.setattr(engine._api, "create", refusing)
    starts = [Start(k, "short", (0,), 1) for k in range(3)]
    starts += [Start(3, "short", (1,), 1), Start(4, "short", (1,), 2)]
    found = engine.start_all(starts, lambda: None)
    assert [str(error or "") for error in found] == [
        "", "start short: no such image", "start short: node gpu-0 has 0 GPUs free, not 1", "",
        "start short: node gpu-1 has 1 GPU free, not 2",
    ]  # fmt: skip
    assert sorted(engine._runs) == [0, 3]


def test_starts_end_where_the_server_does_not_answer_or_the_controller_was_replaced(engine_on, monkeypatch):
    engine = engine_on()
    for module in ("engine", "pod_placer"):
        monkeypatch.setattr(f"commonwatt.engines.kubernetes.{module}.AT_ONCE", 1)
    tried = []

    def dead(path, body, **params):
        tried.append(body["metadata"]["name"])
        raise EngineDownError("no answer")

    monkeypatch.setattr(engine._api, "create", dead)
    found = engine.start_all([Start(k, "short", (k,), 1) for k in (0, 1)], lambda: None)
    assert [type(error) for error in found] == [EngineError] * 2  # the server is ready: pods alone cannot be created
    tried.clear()
    monkeypatch.setattr(engine._api, "ready", lambda: False)
    found = engine.start_all([Start(2 + k, "short", (k,), 1) for k in (0, 1)], lambda: None)
    assert [type(error) for error in found] == [EngineDownError]
    assert set(tried) == {pod_name(engine._label, 2, 1)}

    def replaced():
        raise ClaimLostError("another controller has taken over")

    tried.clear()
    with pytest.raises(ClaimLostError):
        engine.start_all([Start(1, "short", (1,), 1)], replaced)
    assert (tried, sorted(engine._runs)) == ([], [])


def test_jobs_run_on_while_the_api_server_is_away_and_their_ends_come_later(engine_on, kube, tmp_path):
    engine = engine_on()
    down = tmp_path / "down"
    engine.apply([Start(0, "endless", (0,), 1), Start(1, f"waits for {down}", (1,), 1)])
    begun(engine, 0)
    begun(engine, 1)
    kube.end("kube-apiserver")
    with pytest.raises(EngineDownError):
        until(lambda: engine.poll() and False)
    with pytest.raises(EngineDownError):
        engine.apply([Stop(0)])
    down.touch()
    until(engine._runs[1].folder.end)
    kube.begin("kube-apiserver")
    seen = []

    def back():
        try:
            seen.extend(engine.poll())
        except EngineDownError:  # also the 403 of roles that are not loaded yet
            return False
        return seen

    until(back)
    assert [(type(change), change.handle, change.cause) for change in seen] == [(JobEnded, 1, "exit code 0")]
    assert engine._runs[0].folder.end() is None
    (stopped,) = until(lambda: _stopped(engine, 0))
    assert not stopped.later


def _stopped(engine, handle):
    try:
        return engine.apply([Stop(handle)])
    except EngineDownError:
        return None


def test_the_next_run_of_a_lost_node_waits_until_the_one_there_can_write_no_more(engine_on, kube, tmp_path):
    engine = engine_on()
    engine.apply([Start(0, "endless", (0,), 1)])
    begun(engine, 0)
    kube.power("gpu-0", on=False)
    (change,) = changes_of(engine)
    assert isinstance(change, JobInterrupted)
    assert "node gpu-0 is lost: its kubelet does not answer (Ready=Unknown)" in change.cause
    assert engine.nodes().up.tolist() == [False, True]
    assert usable(engine) == [0, 2]
    with (tmp_path / "jobs" / "0" / "lock").open("a") as still_there:  # as a process there would have it
        until(lambda: _locked(still_there))
        engine.apply([Start(0, "endless", (1,), 1)])
        until(
            lambda: engine._look().own[0, 2, 0].container is not None and engine._look().own[0, 2, 0].container.running
        )
        time.sleep(0.5)
        assert engine._runs[0].folder.processes() is None
    begun(engine, 0)
    kube.power("gpu-0", on=True)
    until(lambda: usable(engine) == [2, 2])
    engine.apply([Stop(0)])


def _locked(file):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_a_gang_is_one_job_of_several_pods(engine_on, kube, tmp_path):
    engine = engine_on()
    engine.apply([Start(0, "endless", (0, 1), 2)])
    begun(engine, 0)
    pods = {pod["metadata"]["name"]: pod for pod in kube.pods()}
    assert {pod["spec"]["nodeName"] for pod in pods.values()} == {"gpu-0", "gpu-1"}
    first = min(pods, key=len)
    assert pods[first]["spec"]["subdomain"] == "commonwatt-gangs"
    second = until(lambda: engine._runs[0].rank_folder(1).processes())
    environment = Path(f"/proc/{second.job.pid}/environ").read_bytes().split(b"\0")
    assert b"COMMONWATT_NODE_RANK=1" in environment
    assert b"COMMONWATT_NODES=2" in environment
    assert any(line.startswith(f"MASTER_ADDR={first}.commonwatt-gangs".encode()) for line in environment)
    os.kill(second.job.pid, signal.SIGKILL)  # one of them fails: all of it has failed
    (change,) = changes_of(engine)
    assert isinstance(change, JobEnded)
    assert change.outcome is Outcome.FAILED
    assert "pod 1: killed by SIGKILL" in change.cause
    assert usable(engine) == [2, 2]


def test_the_output_of_a_job_is_in_the_logs_of_its_pods_and_in_the_state_folder(engine_on, kube):
    engine = engine_on()
    engine.apply([Start(0, "talks", (0, 1), 1)])
    (change,) = changes_of(engine)
    assert change.outcome is Outcome.COMPLETED  # of a gang that fails, pods are deleted
    pods = kube.pods()
    assert len(pods) == 2
    for pod in pods:
        meta = pod["metadata"]
        with httpx.Client(verify=kube.admin.access.context, base_url=kube.admin.access.server) as client:
            answer = client.get(f"{path_of('pods', meta['namespace'], meta['name'])}/log")
        assert answer.text == "one\ntwo\nthree"
    (run,) = (folder for folder in (engine._state / "runs").iterdir() if folder.name == "0-1")
    assert (run / "output.log").read_text() == "one\ntwo\nthree"


def test_a_job_without_a_command_fails_at_once_and_pods_that_are_over_are_removed(engine_on, kube):
    engine = engine_on(keep_s=0.5)
    engine.apply([Start(0, "missing", (0,), 1)])
    (change,) = changes_of(engine)
    assert (change.outcome, change.reason) == (Outcome.FAILED, "command-not-found")
    until(lambda: engine.poll() == [] and not kube.pods())
    assert sum(engine._api.calls.values()) <= 6
    assert engine.prunable() == [0]


def test_a_token_with_too_few_rights_says_which(engine_on, kube):
    poor = kube.api("operator")  # which the server knows
    kube.admin.merge(
        path_of("clusterrolebindings", name="gpu-operator", group="rbac.authorization.k8s.io/v1"), {"subjects": []}
    )
    kube.admin.merge(
        path_of("clusterrolebindings", name="commonwatt-reader", group="rbac.authorization.k8s.io/v1"),
        {"subjects": [*_subjects("commonwatt-reader"), {"kind": "User", "name": "commonwatt"}]},
    )
    engine = engine_on(poor)
    until(lambda: _allowed(engine))
    poor._came_up_s -= 60
    with pytest.raises(EngineError, match="not allowed to create pods; a Role has to grant it") as caught:
        engine.apply([Start(0, "short", (0,), 1)])
    assert "\n" not in str(caught.value)
    assert engine.poll() == []
    assert usable(engine) == [2, 2]


def _subjects(name):
    (binding,) = [
        d for d in documents("rbac.yaml") if d["kind"] == "ClusterRoleBinding" and d["metadata"]["name"] == name
    ]
    return binding["subjects"]


def _allowed(engine):
    try:
        return usable(engine)
    except EngineDownError:
        return None


def test_the_server_takes_all_that_is_deployed(kube):
    """And keeps every field: one that it does not know it drops in silence."""
    granted = ("rbac.yaml", "users-jobs.yaml", "users-gangs.yaml", "power.yaml")
    for file in (*granted, "users-gates.yaml", "storage.yaml", "control-plane.yaml", "network.yaml"):
        for document in documents(file):
            if file in granted:
                answer = kube.admin.get(f"{collection(document)}/{document['metadata']['name']}")
            else:
                answer = kube.admin.create(collection(document), document, dryRun="All")
            assert _missing(document, answer) == [], document["metadata"]["name"]


def test_the_server_takes_two_replicas(kube):
    """By the server's own strategic merge, which kustomize uses, too; budgets are of ``policy/v1`` since 1.21."""
    (deployment,) = (d for d in documents("control-plane.yaml") if d["kind"] == "Deployment")
    (patch,) = documents("../kubernetes-standby/replicas.yaml")
    path = collection(deployment)
    made = kube.admin.create(path, {**deployment, "spec": {**deployment["spec"], "replicas": 0}})
    try:
        spec = kube.admin.ask(
            "PATCH", f"{path}/commonwatt", patch, params={"dryRun": "All"},
            kind="application/strategic-merge-patch+json",
        )["spec"]  # fmt: skip
    finally:
        kube.admin.delete(f"{path}/commonwatt", made["metadata"]["uid"])
    assert spec["replicas"] == 2
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    pod = spec["template"]["spec"]
    assert {volume["name"] for volume in pod["volumes"]} == {"configuration", "state", "cache", "scratch"}
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert _missing(patch["spec"]["template"]["spec"]["affinity"], pod["affinity"]) == []
    assert container["env"][0]["valueFrom"]["secretKeyRef"]["name"] == "commonwatt-database"
    (budget,) = documents("../kubernetes-standby/disruption.yaml")
    old = {**budget, "apiVersion": "policy/v1beta1"}
    assert _missing(old, kube.admin.create(collection(old), old, dryRun="All")) == []


def _missing(wanted, found, at=""):
    if isinstance(wanted, dict):
        return [
            m
            for k, v in wanted.items()
            for m in _missing(v, found.get(k) if isinstance(found, dict) else None, f"{at}.{k}")
        ]
    if isinstance(wanted, list):
        rows = found if isinstance(found, list) else []
        return [m for n, v in enumerate(wanted) for m in _missing(v, rows[n] if n < len(rows) else None, f"{at}[{n}]")]
    return [] if found == wanted else [f"{at}: {wanted!r}, not {found!r}"]


def test_progress_is_read_from_the_shared_folder(engine_on):
    engine = engine_on()
    engine.apply([Start(0, "endless", (0,), 1)])
    until(lambda: engine.wait(0.05) or engine.progress(np.array([0])).done_epochs[0] > 0)
    assert engine.power_w() == 100 + 100 + 50
    engine.apply([Stop(0)])


def test_a_pod_that_a_replaced_controller_orders_does_not_begin(engine_on, tmp_path):
    set_fence(tmp_path, anew=False)
    engine = engine_on()
    set_fence(tmp_path, anew=True)
    engine.apply([Start(0, "endless", (0,), 1)])
    (change,) = changes_of(engine)
    assert (change.cause, change.begun) == ("another controller had taken over before it began", False)
