"""The manifests of Kubernetes: their configurations are valid, and they grant what is used, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from commonwatt.controlplane.wiring import read_config
from commonwatt.engines.kubernetes.connect import GANG_RIGHTS, GATE_RIGHTS, RIGHTS, USER_RIGHTS
from commonwatt.engines.kubernetes.settings import GANGS
from commonwatt.store.database import address
from tests.deploy.tools import DEPLOY

FOLDER = DEPLOY / "kubernetes"
STANDBY = DEPLOY / "kubernetes-standby"
EXAMPLE = DEPLOY.parent / "examples" / "kubernetes"


GANGS_RIGHTS = [right for rights in GANG_RIGHTS.values() for right in rights]


def documents(path: Path) -> list[dict]:
    return list(filter(None, yaml.safe_load_all(path.read_text(encoding="utf-8"))))


@pytest.mark.parametrize(
    ("name", "rights"),
    [
        ("rbac.yaml", RIGHTS),
        ("users-jobs.yaml", USER_RIGHTS),
        ("users-gangs.yaml", GANGS_RIGHTS),
        ("users-gates.yaml", GATE_RIGHTS),
    ],
)
def test_the_roles_are_the_rights_that_are_checked(name, rights):
    granted = {
        (verb, group, resource, role["kind"] == "ClusterRole")
        for role in documents(FOLDER / name)
        if role["kind"] in ("Role", "ClusterRole")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == {(right.verb, right.group, right.resource, right.everywhere) for right in rights}


@pytest.mark.parametrize("folder", [FOLDER, EXAMPLE], ids=["deploy", "examples"])
def test_configurations_are_valid_and_keep_their_state_on_the_volume_they_mount(folder):
    config = read_config(folder / "live.yaml")
    own = config.live.kubernetes
    assert config.engine == "kubernetes"
    assert own.volumes["/commonwatt"] == "claim:commonwatt-state"
    (deployment,) = (d for d in documents(FOLDER / "control-plane.yaml") if d["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    mounted = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert str(Path(own.state).parent) in mounted
    assert str(Path(config.live.store).parent) in mounted
    assert config.live.server.port == pod["containers"][0]["ports"][0]["containerPort"]


def test_what_is_named_is_there():
    every = [document for path in FOLDER.glob("*.yaml") for document in documents(path)]
    names = {(d["kind"], d["metadata"]["name"]) for d in every if "metadata" in d}
    assert ("Service", GANGS) in names
    for claim in ("commonwatt-store", "commonwatt-state"):
        assert ("PersistentVolumeClaim", claim) in names
    (kustomization,) = documents(FOLDER / "kustomization.yaml")
    listed = {*kustomization["resources"], *kustomization["configMapGenerator"][0]["files"], "kustomization.yaml"}
    # for a control plane elsewhere; for each namespace of users; where there is the Prometheus operator
    by_itself = {
        "read-only.yaml",
        "users-jobs.yaml",
        "users-gangs.yaml",
        "users-gates.yaml",
        "monitoring.yaml",
        "power.yaml",
    }
    assert listed | by_itself == {path.name for path in FOLDER.iterdir()}


def test_two_replicas_share_a_store_that_has_leases_and_name_its_secret(monkeypatch):
    (kustomization,) = documents(STANDBY / "kustomization.yaml")
    named = {*kustomization["resources"], *kustomization["configMapGenerator"][0]["files"]}
    named |= {patch["path"] for patch in kustomization["patches"] if "path" in patch}
    assert named - {"../kubernetes"} | {"kustomization.yaml"} == {path.name for path in STANDBY.iterdir()}
    (patch,) = documents(STANDBY / "replicas.yaml")
    (env,) = patch["spec"]["template"]["spec"]["containers"][0]["env"]
    monkeypatch.setenv(env["name"], "s3cret")
    config = read_config(STANDBY / "live.yaml")
    assert address(config.live.store, STANDBY).password == "s3cret"
    alone = read_config(FOLDER / "live.yaml")
    assert config.model_copy(update={"live": alone.live}) == alone
    assert config.live.model_copy(update={"store": alone.live.store}) == alone.live


def test_an_engine_that_is_down_does_not_have_the_control_plane_restarted():
    (deployment,) = (d for d in documents(FOLDER / "control-plane.yaml") if d["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    probes = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert probes == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}


def test_what_is_scraped_is_the_service_and_no_other():
    (monitor,) = documents(FOLDER / "monitoring.yaml")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = [d for d in documents(FOLDER / "control-plane.yaml") if d["kind"] == "Service"]
    (service,) = (s for s in services if wanted <= (s["metadata"].get("labels") or {}).items())
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    (deployment,) = (d for d in documents(FOLDER / "control-plane.yaml") if d["kind"] == "Deployment")
    notes = deployment["spec"]["template"]["metadata"]["annotations"]
    assert notes["prometheus.io/path"] == endpoint["path"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH")
@pytest.mark.parametrize("folder", [FOLDER, STANDBY, EXAMPLE], ids=["deploy", "standby", "examples"])
def test_kustomize_builds_them(folder):
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    made = list(filter(None, yaml.safe_load_all(done.stdout)))
    (deployment,) = (d for d in made if d["kind"] == "Deployment")
    (volume,) = (v for v in deployment["spec"]["template"]["spec"]["volumes"] if v["name"] == "configuration")
    assert volume["configMap"]["name"].startswith("commonwatt-")  # a change of the file replaces the pod
    assert {d["metadata"].get("namespace", "commonwatt") for d in made} == {"commonwatt"}
    claims = {d["metadata"]["name"] for d in made if d["kind"] == "PersistentVolumeClaim"}
    assert claims == {
        v["persistentVolumeClaim"]["claimName"]
        for v in deployment["spec"]["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in v
    }
