"""The example program for machines of Metal3: nodes sleep and wake by ``online`` of their BareMetalHosts.

Behind a real API server, with a stand-in for Metal3's operator: it takes the power from simulated machines, or gives it
back, a while after ``online`` was changed, and then says so in the host's status.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from commonwatt.control.engine import JobEnded, SetPower, Start
from commonwatt.engines.kubernetes.api import path_of
from commonwatt.engines.kubernetes.engine import KubernetesEngine
from commonwatt.model.errors import EngineError

from ..patient_lab import work
from .extension import ANY, ExtensionServer
from .site import until
from .test_power import CLUSTER, cordoned, polled

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parents[3] / "examples" / "kubernetes"
GROUP, SPACE = "metal3.io/v1alpha1", "metal3"
HOSTS = path_of("baremetalhosts", SPACE, group=GROUP)


class Metal3:
    """Two hosts, and what follows their ``online``."""

    def __init__(self, kube) -> None:
        self.kube, self.stopping = kube, threading.Event()
        schema = {"online": ANY}
        key = ("metal3.io", "v1alpha1", "baremetalhosts", "BareMetalHost")
        self.extension = ExtensionServer(kube.api("admin"), kube.folder, {key: schema})
        for body in self.extension.registrations():
            text = json.dumps(body).replace('"extension"', '"metal3-extension"')  # beside that of the gangs
            self._made(json.loads(text))
        self._made({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
        for document in yaml.safe_load_all((EXAMPLE / "metal3-power.yaml").read_text()):
            self._made(document)
        until(self._served)
        for n in (0, 1):
            meta = {"name": f"gpu-{n}", "namespace": SPACE}
            body = {"apiVersion": GROUP, "kind": "BareMetalHost", "metadata": meta, "spec": {"online": True}}
            kube.admin.create(HOSTS, body)
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def _made(self, body) -> None:
        until(lambda: self.kube.made(body))

    def _served(self) -> bool:
        try:
            self.kube.admin.get(HOSTS)
        except EngineError:
            return False
        return True

    def host(self, name: str) -> dict:
        return self.kube.admin.get(f"{HOSTS}/{name}")

    def _follow(self) -> None:
        api = self.kube.api("admin")
        while not self.stopping.wait(0.2):
            for host in api.get(HOSTS)["items"]:
                name, online = host["metadata"]["name"], host["spec"]["online"]
                if (host.get("status") or {}).get("poweredOn") is not online:
                    time.sleep(0.3)  # its BMC is slow
                    self.kube.power(name, on=online)
                    api.merge(f"{HOSTS}/{name}/status", {"status": {"poweredOn": online}})
        api.close()

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join()
        for n in (0, 1):
            self.kube.power(f"gpu-{n}", on=True)
            self.kube.admin.ask("DELETE", f"{HOSTS}/gpu-{n}")
        group = path_of("apiservices", None, "v1alpha1.metal3.io", group="apiregistration.k8s.io/v1")
        self.kube.admin.ask("DELETE", group)
        self.extension.stop()


@pytest.fixture
def metal3(kube):
    made = Metal3(kube)
    yield made
    made.stop()


@pytest.fixture
def account(kube, tmp_path, monkeypatch):
    """What a pod of the control plane has: the address of the server, a token, and whom to trust."""
    config = json.loads(kube.kubeconfig("commonwatt").read_text())
    server, folder = urlsplit(config["clusters"][0]["cluster"]["server"]), tmp_path / "account"
    folder.mkdir()
    (folder / "token").write_text(config["users"][0]["user"]["token"])
    (folder / "ca.crt").write_bytes(trusted(config["clusters"][0]["cluster"], kube))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", server.hostname)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    monkeypatch.setenv("SERVICE_ACCOUNT", str(folder))


def trusted(cluster, kube) -> bytes:
    from commonwatt.engines.kubernetes.access import _content

    found = _content(cluster, "certificate-authority", kube.cluster)
    assert found is not None
    return found


def run(*words):
    command = [sys.executable, str(EXAMPLE / "metal3-power"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.usefixtures("account")
def test_a_node_sleeps_and_wakes_by_its_host(metal3, kube, settings, tmp_path):
    own = replace(settings, power_hook=(sys.executable, str(EXAMPLE / "metal3-power")), power_limit_s=30.0)
    state = tmp_path / "state"
    engine = KubernetesEngine(
        CLUSTER, state, lambda name: work(name, 0.2), kube.api(), settings=own, declared_power=True
    )
    try:
        engine.apply([SetPower(1, "off")])
        polled(engine, lambda: engine._metered[1] == (False, True))
        assert metal3.host("gpu-1")["spec"]["online"] is False
        assert metal3.host("gpu-1")["status"]["poweredOn"] is False  # `off` ends once it is
        engine.apply([Start(0, "j1", (1,), 1)])
        changes = polled(engine, lambda: not engine._runs)
        assert [type(change) for change in changes] == [JobEnded], changes
        polled(engine, lambda: not cordoned(kube, "gpu-1"))
        assert metal3.host("gpu-1")["spec"]["online"] is True
        assert metal3.host("gpu-0")["spec"]["online"] is True
    finally:
        engine.close()


@pytest.mark.usefixtures("account", "metal3")
def test_it_says_what_is_wrong():
    assert run("gpu-1", "on").stdout == "gpu-1 was told to start\n"
    for words, said in ((("gpu-9", "off"), "404"), (("gpu-1", "sleep"), "usage"), (("gpu-1",), "usage")):
        done = run(*words)
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr
