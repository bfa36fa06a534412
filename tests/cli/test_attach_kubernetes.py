"""``commonwatt attach kubernetes`` over a real API server, with the two rights of the read-only role."""

from __future__ import annotations

import json
import time

import pytest
import yaml

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")

from commonwatt.controlplane.wiring import open_live, read_config
from commonwatt.engines.kubernetes.api import path_of
from commonwatt.engines.kubernetes.connect import open_kubernetes
from commonwatt.model.errors import EngineError, InputError
from commonwatt.model.nodes import Cluster
from commonwatt.store.records import RequestKind
from tests.cli.console import run
from tests.engines.kubernetes.site import DEPLOY, NAMESPACE
from tests.engines.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
def observer(kube, tmp_path):
    """A kubeconfig with the rights of ``deploy/kubernetes/read-only.yaml``."""
    for document in yaml.safe_load_all((DEPLOY / "read-only.yaml").read_text()):
        assert kube.made(document)
    asked = {
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600},
    }  # fmt: skip
    account = path_of("serviceaccounts", NAMESPACE, "commonwatt-observer")
    config = json.loads(kube.kubeconfig("operator").read_text())
    config["users"][0]["user"] = {"token": kube.admin.create(f"{account}/token", asked)["status"]["token"]}
    path = tmp_path / "observer.kubeconfig"
    path.write_text(json.dumps(config))
    return path


def attach(observer, out, *more):
    return run("attach", "kubernetes", "--out", out, "--kubeconfig", observer, *more)


def state(kube):
    nodes = [kube.node(f"gpu-{n}")["spec"] for n in range(2)]
    return nodes, {(p["metadata"]["name"], p["metadata"]["uid"], p["spec"].get("nodeName")) for p in kube.pods()}


@pytest.mark.long
def test_it_finds_what_there_is_and_decides_without_touching_it(kube, observer, tmp_path):
    out = tmp_path / "out"
    kube.run("runs", "gpu-0", gpus=1)
    kube.run("waits", None, gpus=2, schedulerName="nobody")
    until(lambda: any(p["status"].get("phase") == "Running" for p in kube.pods()))
    done = attach(observer, out, "--price", "0.3", "--json")
    assert done.code == 0, done.err
    document = done.document
    assert (document["nodes"], document["gpus"], document["running"], document["queued"]) == (2, 4, 1, 1)
    assert (document["report"], document["history_jobs"]) == (None, None)
    config = read_config(out / "live.yaml")
    assert (config.engine, config.live.mode, config.live.kubernetes.read_only) == ("kubernetes", "dry-run", True)
    assert config.electricity.price_per_kwh == 0.3
    lines = {line["what"]: line for line in run("check", out / "live.yaml", "--json").document["checks"]}
    assert {line["verdict"] for what, line in lines.items() if what in ("rights", "nodes", "jobs")} == {"ok"}, lines

    before = state(kube)
    live = open_live(out / "live.yaml")
    live.start()
    try:
        events = until(lambda: [e for e in live.store.events() if e.kind == "would-start"], 120.0)
        assert events[0].nodes == ("gpu-1",)
        assert "default/waits of default" in events[0].sentence
        live.store.ask(RequestKind.MODE, time.time(), value="live")
        live.supervisor.wake()
        time.sleep(1.0)
        assert live.supervisor.snapshot().mode == "dry-run"
    finally:
        live.close()
    assert state(kube) == before


def test_its_engine_refuses_every_change(kube, observer, tmp_path):
    assert attach(observer, tmp_path / "out").code == 0
    with pytest.raises(InputError, match=r"live\.kubernetes\.read_only is set"):
        open_live(tmp_path / "out" / "live.yaml", mode="live")
    config = read_config(tmp_path / "out" / "live.yaml")
    engine = open_kubernetes(config.live.kubernetes, Cluster.of(config.nodes), tmp_path, lambda name: None)
    try:
        engine.nodes()
        with pytest.raises(EngineError, match="nothing is changed in Kubernetes"):
            engine.drain([0])
    finally:
        engine.close()
    assert not kube.node("gpu-0")["spec"].get("unschedulable")


def test_what_is_wrong_is_said_in_one_line(kube, observer, tmp_path):
    assert attach(observer, tmp_path / "out").code == 0
    again = attach(observer, tmp_path / "out")
    assert (again.code, "a new folder, or --overwrite" in again.err) == (2, True)
    assert attach(observer, tmp_path / "out", "--overwrite").code == 0
    absent = attach(tmp_path / "none", tmp_path / "other")
    assert (absent.code, "a kubeconfig that can be read" in absent.err) == (2, True)
    config = json.loads(observer.read_text())
    config["users"][0]["user"] = {"token": "wrong"}
    (tmp_path / "wrong").write_text(json.dumps(config))
    refused = attach(tmp_path / "wrong", tmp_path / "other")
    assert (refused.code, "does not accept the credentials" in refused.err) == (1, True)
    assert not (tmp_path / "other").exists()
    assert "Traceback" not in again.err + absent.err + refused.err
