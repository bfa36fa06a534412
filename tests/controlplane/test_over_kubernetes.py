"""The whole control plane over a real Kubernetes: parts are killed, a node is lost, and no job is lost or doubled."""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import pytest
import yaml

pytest.importorskip("sqlalchemy")

from commonwatt.store.records import RequestKind
from tests.cli import console
from tests.controlplane.chaos import (
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
from tests.engines.kubernetes.site import until

pytestmark = pytest.mark.long


def config_over(site, folder, **changed):
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
        live={"kubernetes": own, "default_time_limit_s": 30},
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
    done = console.run("check", path, "--json")
    lines = {line["what"]: line for line in done.document["checks"]}
    assert lines["nodes"]["found"] == "node gpu-0: declared with 3 GPUs, has 2 of nvidia.com/gpu"
    assert "Unsupported value" in lines["pods"]["found"]
    config["live"]["kubernetes"] |= {"kubeconfig": str(kube.kubeconfig("kube-scheduler"))}
    path.write_text(yaml.safe_dump(config))
    lines = {line["what"]: line for line in console.run("check", path, "--json").document["checks"]}
    assert lines["rights"]["found"] == "the token may not create pods"


@pytest.mark.skipif("COMMONWATT_ROUNDS" not in os.environ, reason="takes its time: COMMONWATT_ROUNDS=100")
def test_jobs_end_exactly_once_however_often_parts_of_kubernetes_are_killed(plane, kube, tmp_path):
    path, store = plane
    rng = np.random.default_rng(ROUNDS)
    jobs = []
    child = controller(path)
    try:
        for k in range(ROUNDS):
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
