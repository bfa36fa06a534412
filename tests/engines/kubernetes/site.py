"""A real Kubernetes control plane on this machine, with pretended kubelets that really run what pods command.

``COMMONWATT_KUBERNETES`` names the folder of the recipe, else ``../shared/recipes/kubernetes`` beside the repository.
"""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from commonwatt.engines.kubernetes.access import access_of
from commonwatt.engines.kubernetes.api import KubernetesApi, path_of
from commonwatt.model.errors import EngineError
from tests.machine import hidden, which

RECIPE = Path(
    os.environ.get("COMMONWATT_KUBERNETES", Path(__file__).resolve().parents[4] / "shared" / "recipes" / "kubernetes")
)
NODES, GPUS = 2, 2
PARTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "fake-kubelet")


def missing() -> str:
    """Return what a cluster here lacks; "" if nothing."""
    if hidden("kubernetes"):
        return "Kubernetes is hidden"
    if not (RECIPE / "hyperkube.xz").exists():
        return f"no Kubernetes in {RECIPE} (COMMONWATT_KUBERNETES)"
    lacking = [name for name in ("etcd", "openssl") if which("kubernetes", name) is None]
    return f"{', '.join(lacking)} not on this machine: install etcd-server, openssl" if lacking else ""


def until(true, limit_s=120.0, pause_s=0.05):
    end_s = time.monotonic() + limit_s
    while not (value := true()):
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(pause_s)
    return value


class KubernetesSite:
    """A cluster; what it is made of can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cluster = folder, folder / "cluster"
        binaries = folder / "bin"
        binaries.mkdir()
        with lzma.open(RECIPE / "hyperkube.xz") as packed, (binaries / "hyperkube").open("wb") as program:
            shutil.copyfileobj(packed, program)
        (binaries / "hyperkube").chmod(0o755)
        self._tool("--bin", str(binaries), "--nodes", str(NODES), "--gpus", str(GPUS))
        self.admin = self.api("admin")

    def _tool(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, str(RECIPE / "start-cluster"), str(self.cluster), *words],
            capture_output=True, text=True, check=False, timeout=300, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def kubeconfig(self, user: str) -> Path:
        return self.cluster / f"{user}.kubeconfig"

    def api(self, user: str = "operator") -> KubernetesApi:
        return KubernetesApi(access_of(self.kubeconfig(user), None))

    def end(self, name: str) -> None:
        """Kill a part of it, as a crash would."""
        self._tool("--kill", name)

    def begin(self, name: str) -> None:
        if self._alive(name) is None:
            self._tool("--begin", name)

    def _alive(self, name: str) -> int | None:
        try:
            pid = int((self.cluster / f"{name}.pid").read_text())
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (OSError, ValueError):
            return None
        return None if state == "Z" else pid

    def power(self, node: str, *, on: bool) -> None:
        """Take the power from a machine, or give it back."""
        path = self.cluster / "kubelet" / "down" / node
        if on:
            path.unlink(missing_ok=True)
        else:
            path.touch()

    def node(self, name: str) -> dict:
        return self.admin.get(path_of("nodes", name=name))

    def pods(self, namespace: str = "default") -> list[dict]:
        return self.admin.get(path_of("pods", namespace))["items"]

    def settle(self) -> None:
        """Everything as after the start: all parts up, no pods, all nodes ready, neither cordoned nor tainted."""
        for name in PARTS:
            self.begin(name)
        for number in range(NODES):
            self.power(f"gpu-{number}", on=True)
        until(self._tidy, pause_s=0.1)

    def _tidy(self) -> bool:
        try:
            for pod in self.pods():
                meta = pod["metadata"]
                self.admin.delete(path_of("pods", "default", meta["name"]), meta["uid"], 0)
            nodes = self.admin.get(path_of("nodes"))["items"]
            for node in nodes:
                notes = node["metadata"].get("annotations") or {}
                own = {key: None for key in notes if key.startswith("commonwatt.io/")}
                if node["spec"].get("unschedulable") or own:
                    body = {"metadata": {"annotations": own}, "spec": {"unschedulable": None}}
                    self.admin.merge(path_of("nodes", name=node["metadata"]["name"]), body)
            well = [
                n for n in nodes
                if not n["spec"].get("taints")
                and any(c["type"] == "Ready" and c["status"] == "True" for c in n["status"].get("conditions", ()))
            ]  # fmt: skip
            return len(well) == NODES and not self.pods()
        except EngineError:
            return False

    def stop(self) -> None:
        self.admin.close()
        self._tool("--stop")
        for pod in (self.cluster / "kubelet" / "pods").glob("*/shim.json"):
            held = json.loads(pod.read_text())
            try:
                if Path(f"/proc/{held['pid']}/stat").read_text().rsplit(")", 1)[1].split()[19] == held["boot"]:
                    os.killpg(held["pid"], 9)
            except (OSError, IndexError):
                pass
