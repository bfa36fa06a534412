"""``commonwatt init --from kubernetes`` over a real API server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

pytest.importorskip("httpx")

from commonwatt.data.files import load_yaml
from commonwatt.engines.kubernetes import access
from commonwatt.engines.kubernetes.api import path_of
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import Scenario
from tests.cli.console import run
from tests.engines.kubernetes.site import NAMESPACE

pytestmark = pytest.mark.slow


def nodes(done):
    assert done.code == 0, done.err
    return yaml.safe_load(done.out)["nodes"]


def changed(kube, path, **user):
    """Write a kubeconfig with other credentials."""
    config = json.loads(kube.kubeconfig("commonwatt").read_text())
    config["users"][0]["user"] = user
    path.write_text(json.dumps(config))
    return path


def test_it_writes_what_kubectl_would_have_told_it(kube, tmp_path):
    kubeconfig, out = kube.kubeconfig("commonwatt"), tmp_path / "cluster.yaml"
    done = run("init", "--from", "kubernetes", "--kubeconfig", kubeconfig, "--out", out, "--json")
    assert done.code == 0, done.err
    answer = done.document
    assert (answer["source"], answer["written"], answer["left_out"]) == ("kubernetes", str(out), 0)
    (tmp_path / "nodes.json").write_text(json.dumps(kube.admin.get(path_of("nodes"))))
    of_file = run("init", "--from", tmp_path / "nodes.json", "--json").document
    assert answer["nodes"] == of_file["nodes"]
    assert answer["notes"] == of_file["notes"]
    written = yaml.safe_load(out.read_text())["nodes"]
    assert sum(node.get("count", 1) * node["gpus"] for node in written) == 4
    assert run("simulate", out, "--policy", "fifo", "--jobs", 1, "--json").code == 0


def test_it_finds_the_cluster_as_attach_does(kube, tmp_path, monkeypatch):
    kubeconfig = kube.kubeconfig("commonwatt")
    given = nodes(run("init", "--from", "kubernetes", "--kubeconfig", kubeconfig))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    assert nodes(run("init", "--from", "kubernetes")) == given
    name = json.loads(kubeconfig.read_text())["current-context"]
    assert nodes(run("init", "--from", "kubernetes", "--context", name)) == given
    absent = run("init", "--from", "kubernetes", "--context", "nowhere")
    assert (absent.code, "got 'nowhere', expected the name of one of its contexts" in absent.err) == (2, True)


def test_in_a_pod_it_uses_the_service_account(kube, tmp_path, monkeypatch):
    config = json.loads(kube.kubeconfig("commonwatt").read_text())
    cluster = config["clusters"][0]["cluster"]
    (tmp_path / "token").write_text(config["users"][0]["user"]["token"])
    (tmp_path / "ca.crt").write_bytes(Path(cluster["certificate-authority"]).read_bytes())
    monkeypatch.setattr(access, "_IN_CLUSTER", tmp_path)
    host, _, port = cluster["server"].removeprefix("https://").partition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    assert sum(node.get("count", 1) * node["gpus"] for node in nodes(run("init", "--from", "kubernetes"))) == 4


@pytest.mark.parametrize("verb", ["init", "attach"])
def test_too_few_rights_are_named(kube, tmp_path, verb):
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nobody", "namespace": NAMESPACE}}
    assert kube.made(account)
    asked = {
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600},
    }  # fmt: skip
    made = kube.admin.create(f"{path_of('serviceaccounts', NAMESPACE, 'nobody')}/token", asked)
    kubeconfig = changed(kube, tmp_path / "nobody", token=made["status"]["token"])
    words = ("init", "--from", "kubernetes") if verb == "init" else (verb, "kubernetes", "--out", tmp_path / "out")
    done = run(*words, "--kubeconfig", kubeconfig)
    assert (done.code, done.out) == (1, "")
    assert "error: not allowed to list nodes; a Role has to grant it" in done.err
    assert "Traceback" not in done.err


def test_credentials_that_are_not_accepted(kube, tmp_path):
    done = run("init", "--from", "kubernetes", "--kubeconfig", changed(kube, tmp_path / "wrong", token="wrong"))
    assert (done.code, "does not accept the credentials" in done.err) == (1, True)


def test_a_server_that_is_down(kube, tmp_path):
    config = json.loads(kube.kubeconfig("commonwatt").read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    (tmp_path / "down").write_text(json.dumps(config))
    out = tmp_path / "cluster.yaml"
    done = run("init", "--from", "kubernetes", "--kubeconfig", tmp_path / "down", "--out", out)
    assert done.code == 1
    assert "the API server https://127.0.0.1:9 does not answer" in done.err
    assert not out.exists()


@pytest.mark.parametrize("verb", ["init", "attach"])
def test_without_a_kubeconfig_it_says_which_it_looked_for(tmp_path, monkeypatch, verb):
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    words = ("init", "--from", "kubernetes") if verb == "init" else (verb, "kubernetes", "--out", tmp_path / "out")
    done = run(*words)
    assert (done.code, done.out) == (2, "")
    expected = "field '--kubeconfig': got '/nonexistent/.kube/config', expected a kubeconfig that can be read"
    assert expected in done.err
    assert not (tmp_path / "out").exists()


ZONE = "topology.kubernetes.io/zone"


@pytest.fixture
def zones(kube):
    for n in range(2):
        kube.admin.merge(path_of("nodes", name=f"gpu-{n}"), {"metadata": {"labels": {ZONE: f"0{n + 1}"}}})
    yield
    for n in range(2):
        kube.admin.merge(path_of("nodes", name=f"gpu-{n}"), {"metadata": {"labels": {ZONE: None}}})


def test_a_label_of_nodes_keeps_gangs_within_one_of_its_values(kube, zones, tmp_path):
    where = ("--kubeconfig", kube.kubeconfig("commonwatt"), "--topology", ZONE)
    done = run("init", "--from", "kubernetes", *where)
    assert [(node["name"], node["partitions"]) for node in nodes(done)] == [("gpu-0", ["01"]), ("gpu-1", ["02"])]
    (tmp_path / "nodes.json").write_text(json.dumps(kube.admin.get(path_of("nodes"))))
    assert nodes(run("init", "--from", tmp_path / "nodes.json", "--topology", ZONE)) == nodes(done)
    attached = run("attach", "kubernetes", "--out", tmp_path / "out", *where)
    assert attached.code == 0, attached.err
    cluster = Cluster.of(load_yaml(tmp_path / "out" / "live.yaml", Scenario).nodes)
    assert cluster.shapes("V100", 2, width=1)
    assert cluster.shapes("V100", 4) == cluster.shapes("V100", 2, width=2) == []


def test_labels_say_which_nodes_are_near_each_other(kube, zones, tmp_path):
    kube.admin.merge(path_of("nodes", name="gpu-1"), {"metadata": {"labels": {"rack": "1e3"}}})
    try:
        listed = kube.admin.get(path_of("nodes"))
        where = ("--kubeconfig", kube.kubeconfig("commonwatt"), "--near", ZONE, "--near", "rack")
        done = run("init", "--from", "kubernetes", *where)
        attached = run("attach", "kubernetes", "--out", tmp_path / "out", *where, "--json")
        both = nodes(run("init", "--from", "kubernetes", *where, "--topology", ZONE))
    finally:
        kube.admin.merge(path_of("nodes", name="gpu-1"), {"metadata": {"labels": {"rack": None}}})
    assert [(node["name"], node["domain"]) for node in nodes(done)] == [("gpu-0", "01"), ("gpu-1", "02/1e3")]
    assert "note: no label rack on 1 node: by it, no node is near any of these" in done.err
    assert not any("partitions" in node for node in nodes(done))
    assert [(node["domain"], node["partitions"]) for node in both] == [("01", ["01"]), ("02/1e3", ["02"])]
    (tmp_path / "nodes.json").write_text(json.dumps(listed))
    assert nodes(run("init", "--from", tmp_path / "nodes.json", *where[2:])) == nodes(done)
    assert attached.code == 0, attached.err
    assert "no label rack on 1 node: by it, no node is near any of these" in attached.document["notes"]
    written = load_yaml(tmp_path / "out" / "live.yaml", Scenario).nodes
    assert [node.domain for node in written] == ["01", "02/1e3"]
    assert Cluster.of(written).shapes("V100", 4)  # a preference: a job may still have both


def test_near_needs_labels_that_nodes_have(kube, tmp_path):
    listed = kube.admin.get(path_of("nodes"))
    listed["items"][0]["metadata"]["labels"]["rack"] = "a"
    listed["items"][1]["metadata"]["labels"]["shelf"] = "1"
    (tmp_path / "nodes.json").write_text(json.dumps(listed))
    done = run("init", "--from", tmp_path / "nodes.json", "--near", "rack", "--json")
    assert [node["domain"] for node in done.document["nodes"]] == ["a", None]
    for labels, wrong in ((("racks",), "racks"), (("racks", "rack"), "racks"), (("rack", "shelf"), "shelf")):
        refused = run("init", "--from", tmp_path / "nodes.json", *(word for n in labels for word in ("--near", n)))
        expected = f"field '--near': got '{wrong}', expected a label that nodes with GPUs have"
        assert (refused.code, expected in refused.err) == (2, True), refused.err


def test_a_label_that_some_nodes_lack_is_noted_and_one_that_all_lack_refused(kube, tmp_path):
    listed = kube.admin.get(path_of("nodes"))
    listed["items"][0]["metadata"]["labels"]["rack"] = "a"
    (tmp_path / "nodes.json").write_text(json.dumps(listed))
    found = run("init", "--from", tmp_path / "nodes.json", "--topology", "rack", "--json").document
    assert [node["partitions"] for node in found["nodes"]] == [["a"], []]
    assert "no label rack on 1 node: a job of several nodes may have any of these together" in found["notes"]
    refused = run("init", "--from", tmp_path / "nodes.json", "--topology", "racks")
    expected = "field '--topology': got 'racks', expected a label that nodes with GPUs have"
    assert (refused.code, expected in refused.err) == (2, True)
    (tmp_path / "nodes.txt").write_text("n1|gpu:t4:2\n")
    assert "expected nodes of Kubernetes" in run("init", "--from", tmp_path / "nodes.txt", "--topology", "rack").err


def test_a_kubeconfig_is_for_kubernetes_only(tmp_path):
    (tmp_path / "nodes.txt").write_text("n1|gpu:t4:2\n")
    done = run("init", "--from", tmp_path / "nodes.txt", "--kubeconfig", "x")
    assert (done.code, "--from kubernetes" in done.err) == (2, True)
    assert run("init", "--context", "x").code == 2


def test_a_file_of_that_name_is_read_with_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("kubernetes").write_text("n1|gpu:t4:2\n")
    assert nodes(run("init", "--from", "./kubernetes"))[0]["name"] == "n1"
