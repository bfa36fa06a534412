"""The whole control plane over a real Kubernetes: parts are killed, a node is lost, and no job is lost or doubled."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress

import numpy as np
import pytest
import yaml

pytest.importorskip("sqlalchemy")

from commonwatt.engines import state_folder
from commonwatt.engines.kubernetes.api import path_of
from commonwatt.store import claim as claims
from commonwatt.store.check import check
from commonwatt.store.records import RequestKind
from tests.cli import console
from tests.controlplane.chaos import (
    ENDED,
    ROUNDS,
    config_in,
    controller,
    kill,
    problems,
    running,
    store_of,
    stream,
    until_all_end,
    witness,
)
from tests.controlplane.test_standby import active, taken_over
from tests.engines.kubernetes.site import until
from tests.store.conftest import postgresql

__all__ = ["postgresql"]

pytestmark = pytest.mark.long


def config_over(site, folder, *, store="commonwatt.db", **changed):
    own = {
        "kubeconfig": str(site.kubeconfig("commonwatt")), "image": "none", "python": sys.executable, "grace_s": 2,
        "lag_s": 1, "start_s": 30, "cpus_per_gpu": 0.5, **changed,
    }  # fmt: skip
    return config_in(
        folder,
        engine="kubernetes",
        nodes=[
            {"name": f"gpu-{n}", "gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 200, "states": []}
            for n in range(2)
        ],
        live={"kubernetes": own, "default_time_limit_s": 30, "store": store},
    )


@pytest.fixture
def plane(kube, tmp_path):
    path = config_over(kube, tmp_path)
    return path, store_of(path, tenants="ab")


def test_jobs_end_exactly_once_though_the_controller_and_the_api_server_are_killed(plane, kube, tmp_path):
    path, store = plane
    jobs = stream(path, store, tmp_path, 4, seed=1, longest_s=3.0)
    with running(path):
        late = store.submit("a", witness("late", tmp_path, 5.0, gpus=2), time.time())[0].id
        until(lambda: store.job(late).status == "running")
        kube.end("kube-apiserver")
        jobs += [late, store.submit("b", witness("later", tmp_path, 0.5), time.time())[0].id]
        time.sleep(1.0)
        kube.begin("kube-apiserver")
        until(lambda: store.job(late).status == "completed")
        jobs.append(store.submit("a", witness("last", tmp_path, 1.0), time.time())[0].id)
        kube.end("etcd")
        time.sleep(0.5)
        kube.begin("etcd")
        until_all_end(store, jobs, 240.0)
    assert problems(store, tmp_path, jobs) == []


def test_check_says_what_is_there_and_what_is_wrong(plane, kube, tmp_path):
    path, _ = plane
    lines = {line["what"]: line for line in console.run("check", path, "--json").document["checks"]}
    assert {lines[what]["verdict"] for what in ("engine", "rights", "nodes", "pods")} == {"ok"}
    assert "2 nodes" in lines["engine"]["found"]
    config = yaml.safe_load(path.read_text())
    config["nodes"][0]["gpus"] = 3
    config["live"]["kubernetes"]["pod"] = {"tolerations": [{"key": "k", "operator": "Odd"}]}
    path.write_text(yaml.safe_dump(config))
    config["live"]["kubernetes"]["resources"] = {"V1OO": "nvidia.com/gpu"}
    path.write_text(yaml.safe_dump(config))
    done = console.run("check", path, "--json")
    found = [line["found"] for line in done.document["checks"]]
    assert "live.kubernetes.resources names GPU types that no node has: V1OO" in found
    lines = {line["what"]: line for line in done.document["checks"]}
    assert lines["nodes"]["found"] == "node gpu-0: declared with 3 GPUs, has 2 of nvidia.com/gpu"
    assert "Unsupported value" in lines["pods"]["found"]
    config["live"]["kubernetes"] |= {"kubeconfig": str(kube.kubeconfig("kube-scheduler"))}
    path.write_text(yaml.safe_dump(config))
    lines = {line["what"]: line for line in console.run("check", path, "--json").document["checks"]}
    assert lines["rights"]["found"] == "the token may not create pods in namespace default"


def test_jobs_end_exactly_once_however_often_parts_of_kubernetes_are_killed(plane, kube, tmp_path):
    path, store = plane
    rounds = ROUNDS if "COMMONWATT_ROUNDS" in os.environ else 3  # 100 take ten minutes
    rng = np.random.default_rng(rounds)
    jobs = []
    child = controller(path)
    try:
        for k in range(rounds):
            for n in range(2):
                seconds, epochs = float(rng.uniform(0.2, 3.0)), int(rng.integers(1, 4))
                file = witness(f"j{k}-{n}", tmp_path, seconds, epochs=epochs, gpus=int(rng.integers(1, 3)))
                jobs.append(store.submit("ab"[n], file, time.time())[0].id)
            time.sleep(float(rng.uniform(0.0, 3.0)))
            part = rng.choice(["controller", "kube-apiserver", "etcd", "fake-kubelet"])
            if part == "controller":
                kill(child)
                child = controller(path)
                continue
            kube.end(str(part))
            time.sleep(float(rng.uniform(0.0, 1.0)))
            kube.begin(str(part))
        until_all_end(store, jobs, 1800.0)
    finally:
        kill(child)
    assert problems(store, tmp_path, jobs) == []


def test_a_job_of_a_dead_node_goes_on_elsewhere_from_its_snapshot(plane, kube, tmp_path):
    path, store = plane
    job = store.submit("a", witness("long", tmp_path, 6.0, epochs=12, gpus=2), time.time())[0].id
    with running(path):
        row = until(lambda: (r := store.job(job)).kept_epochs >= 3 and r)
        (node,) = row.nodes
        kube.power(node, on=False)
        until(lambda: (r := store.job(job)).status == "running" and r.nodes not in {(), (node,)}, 90.0)
        until_all_end(store, [job])
    begins = [line.split() for line in (tmp_path / "long.log").read_text().splitlines() if line.startswith("begin")]
    assert int(begins[-1][2]) >= 3
    assert problems(store, tmp_path, [job]) == []


def test_a_deleted_pod_is_an_interruption_or_the_end_as_configured(kube, tmp_path):
    path = config_over(kube, tmp_path, on_delete="cancelled")
    store = store_of(path, tenants="a")
    with running(path):
        job = store.submit("a", witness("gone", tmp_path, 100.0), time.time())[0].id
        until((tmp_path / "gone.log").exists)
        (pod,) = kube.pods()
        kube.remove(pod)
        until(lambda: store.job(job).status == "cancelled")
        assert store.job(job).attempts == 1
        stopped = store.submit("a", witness("stopped", tmp_path, 100.0), time.time())[0].id
        until((tmp_path / "stopped.log").exists)
        store.ask(RequestKind.CANCEL, time.time(), job=stopped)
        until(lambda: store.job(stopped).status == "cancelled")


def test_of_two_replicas_one_acts_and_the_other_takes_over_from_the_dead_and_the_frozen(
    kube, postgresql, tmp_path, monkeypatch
):
    """As replicas on two nodes, where none can see or kill the other's process; the frozen one thaws later."""
    monkeypatch.setattr(state_folder, "_killed", lambda _: False)
    monkeypatch.setattr(claims, "_process", lambda _: None)
    url = postgresql.database()
    path = config_over(kube, tmp_path, store=url)
    store = store_of(path, url, tenants="ab")
    replicas, jobs = [controller(path), controller(path)], []

    def submitted(name: str, seconds: float, **more) -> int:
        jobs.append(store.submit("ab"[len(jobs) % 2], witness(name, tmp_path, seconds, **more), time.time())[0].id)
        return jobs[-1]

    try:
        first = active(store)
        assert first in replicas
        long = submitted("long", 40.0, epochs=20)
        until(lambda: store.job(long).status == "running")
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
        submitted("after-a-death", 0.5, gpus=2)
        second = taken_over(store, first)
        until(lambda: store.job(jobs[-1]).status in ENDED, 60.0)
        replicas.append(controller(path))  # Kubernetes replaces the pod
        for k in range(3):
            submitted(f"before-{k}", 0.5)
        os.kill(second, signal.SIGSTOP)
        for k in range(3):
            submitted(f"while-frozen-{k}", 0.5)
        assert taken_over(store, second) == replicas[-1]
        os.kill(second, signal.SIGCONT)
        until_all_end(store, jobs, 240.0)
    finally:
        for child in replicas:
            with suppress(ProcessLookupError, ChildProcessError):
                kill(child)
    assert problems(store, tmp_path, jobs) == []
    assert check(store.database).problems == ()
    assert "interrupted" not in [event.kind for event in store.events(job=long)]  # it ran on through both
    store.database.close()
    postgresql.drop(url)


def test_a_plan_puts_nodes_to_sleep_and_a_job_wakes_one(kube, tmp_path):
    """A node that a person has cordoned is left alone; the controller is killed while things are under way."""
    hook, calls = tmp_path / "hook", tmp_path / "calls"
    down = kube.cluster / "kubelet" / "down"
    hook.write_text(
        f'#!/bin/sh\necho "$1 $2" >> {calls}\nif [ "$2" = off ]; then touch {down}/$1; else rm -f {down}/$1; fi\n'
    )
    hook.chmod(0o755)
    path = config_over(kube, tmp_path, power={"hook": [str(hook)], "limit_s": 20})
    config = yaml.safe_load(path.read_text())
    for node in config["nodes"]:
        node["states"] = [{"name": "off", "power_w": 5, "enter_s": 1, "wake_s": 8}]
    config["capacity"] = {"policy": "last-value", "step_s": 2, "horizon": 10}
    path.write_text(yaml.safe_dump(config))
    kube.admin.merge(path_of("nodes", name="gpu-0"), {"spec": {"unschedulable": True}})
    store = store_of(path, tenants="a")

    def cordoned(name):
        return bool(kube.node(name)["spec"].get("unschedulable"))

    def asleep():
        note = (kube.node("gpu-1")["metadata"].get("annotations") or {}).get("commonwatt.io/asleep", "{}")
        return json.loads(note).get("word") == "off"

    lines = {line["what"]: line for line in console.run("check", path, "--json").document["checks"]}
    assert lines["node power"]["verdict"] == "ok"
    with running(path):
        until(asleep, 60.0)  # cordoned, and its hook not run yet
    with running(path):
        until(lambda: calls.exists() and (down / "gpu-1").exists(), 60.0)
        job = store.submit("a", witness("wakes", tmp_path, 1.0, gpus=2), time.time())[0].id
        until(lambda: "gpu-1 on" in calls.read_text(), 120.0)
    with running(path):
        until_all_end(store, [job], 180.0)
        until(lambda: asleep() and (down / "gpu-1").exists(), 120.0)
    assert problems(store, tmp_path, [job]) == []
    assert "gpu-0" not in calls.read_text()
    assert cordoned("gpu-0")
    assert "commonwatt.io/asleep" not in (kube.node("gpu-0")["metadata"].get("annotations") or {})


def test_an_autoscaler_on_the_same_nodes_is_refused(kube, tmp_path):
    path = config_over(kube, tmp_path, power={"hook": ["true"]})
    name = "cluster-autoscaler-status"
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    made = kube.admin.create(path_of("configmaps", "kube-system"), body)
    try:
        lines = {line["what"]: line for line in console.run("check", path, "--json").document["checks"]}
        assert lines["node power"]["verdict"] == "failed"
        assert "no autoscaler on the same nodes" in lines["node power"]["found"]
        served = console.run("serve", path)
        assert served.code == 2, served
        assert "live.kubernetes.power" in served.err
    finally:
        kube.admin.delete(path_of("configmaps", "kube-system", name), made["metadata"]["uid"])
