"""A real Kubernetes control plane on this machine, with pretended kubelets that really run what pods command.

``COMMONWATT_KUBERNETES`` names the folder of the recipe, else ``../shared/recipes/kubernetes`` beside the repository.
The engine has the rights of ``deploy/kubernetes/rbac.yaml``, and no others.
"""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from commonwatt.engines.kubernetes.access import access_of
from commonwatt.engines.kubernetes.api import KubernetesApi, RefusedByServerError, path_of
from commonwatt.model.errors import EngineError
from tests.engines.waiting import until
from tests.machine import hidden, which

RECIPE = Path(
    os.environ.get("COMMONWATT_KUBERNETES", Path(__file__).resolve().parents[4] / "shared" / "recipes" / "kubernetes")
)
DEPLOY = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes"
NODES, GPUS = 2, 2
NAMESPACE, USERS = "commonwatt", "team-a"
PARTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "fake-kubelet")


def missing() -> str:
    """Return what a cluster here lacks; "" if nothing."""
    if hidden("kubernetes"):
        return "Kubernetes is hidden"
    if not (RECIPE / "hyperkube.xz").exists():
        return f"no Kubernetes in {RECIPE} (COMMONWATT_KUBERNETES)"
    lacking = [name for name in ("etcd", "openssl") if which("kubernetes", name) is None]
    return f"{', '.join(lacking)} not on this machine: install etcd-server, openssl" if lacking else ""


def unpacked() -> Path:
    """Return the folder with the programs, unpacked once on this machine."""
    folder = Path(tempfile.gettempdir()) / f"commonwatt-kubernetes-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    program, size = folder / "hyperkube", (RECIPE / "hyperkube.xz").stat().st_size
    mark = folder / f"of-{size}"
    if not (program.exists() and mark.exists()):
        part = folder / f"part-{os.getpid()}"
        with lzma.open(RECIPE / "hyperkube.xz") as packed, part.open("wb") as file:
            shutil.copyfileobj(packed, file)
        part.chmod(0o755)
        part.replace(program)
        mark.touch()
    return folder


def documents(name: str) -> list[dict]:
    """Return the objects of a file of ``deploy/kubernetes``."""
    return [document for document in yaml.safe_load_all((DEPLOY / name).read_text()) if document]


def collection(document: dict) -> str:
    """Return where objects such as *document* are created."""
    kind = document["kind"].lower()
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
    return path_of(plural, document["metadata"].get("namespace"), group=document["apiVersion"])


class KubernetesSite:
    """A cluster; what it is made of can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cluster, self.admin = folder, folder / "cluster", None
        self._shaken = False  # a part of it was killed

    def start(self) -> None:
        self._tool("--bin", str(unpacked()), "--nodes", str(NODES), "--gpus", str(GPUS))
        self.admin = self.api("admin")
        users = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": USERS}}
        for document in (
            *documents("namespace.yaml"),
            users,
            *documents("rbac.yaml"),
            *documents("users-jobs.yaml"),
            *documents("users-gangs.yaml"),
            *documents("power.yaml"),
        ):
            until(lambda document=document: self.made(document))
        until(lambda: self._exists(path_of("serviceaccounts", NAMESPACE, "default")))
        asked = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 86_400},
        }
        answer = self.admin.create(f"{path_of('serviceaccounts', NAMESPACE, 'commonwatt')}/token", asked)
        config = json.loads(self.kubeconfig("operator").read_text())
        config["users"][0]["user"] = {"token": answer["status"]["token"]}
        config["contexts"][0]["context"]["namespace"] = NAMESPACE
        self.kubeconfig("commonwatt").write_text(json.dumps(config))

    def made(self, document: dict) -> bool:
        """Whether the server has taken *document*: its own roles may not be loaded yet."""
        try:
            self.admin.create(collection(document), document)
        except RefusedByServerError as error:
            return error.status == 409
        except EngineError:
            return False
        return True

    def _exists(self, path: str) -> bool:
        try:
            self.admin.get(path)
        except EngineError:
            return False
        return True

    def _tool(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, str(RECIPE / "start-cluster"), str(self.cluster), *words],
            capture_output=True, text=True, check=False, timeout=300, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def kubeconfig(self, user: str) -> Path:
        return self.cluster / f"{user}.kubeconfig"

    def api(self, user: str = "commonwatt") -> KubernetesApi:
        return KubernetesApi(access_of(self.kubeconfig(user), None))

    def end(self, name: str) -> None:
        """Kill a part of it, as a crash would."""
        self._shaken = True
        self._tool("--kill", name)

    def begin(self, name: str) -> None:
        """Start a part again; a connection of somebody else may have its port for a moment."""

        def runs() -> bool:
            if self._alive(name) is None:
                self._tool("--begin", name)
                time.sleep(0.5)
            return self._alive(name) is not None

        until(runs, pause_s=1.0)

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

    def pods(self) -> list[dict]:
        return self.admin.get(path_of("pods"))["items"]

    def remove(self, pod: dict, grace_s: int | None = None) -> None:
        meta = pod["metadata"]
        self.admin.delete(path_of("pods", meta["namespace"], meta["name"]), meta["uid"], grace_s)

    def user_job(
        self, name: str, *command: str, gpus: int = 1, pods: int = 1, labels=None, notes=None, api=None, **spec
    ) -> dict:
        """Create a Job as a user would; returns it. *spec* has fields of its spec, ``pod`` those of its pods."""
        container = {
            "name": "main", "image": "none", "command": list(command),
            "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
        }  # fmt: skip
        pod = {
            "restartPolicy": "Never", "schedulerName": "commonwatt", "terminationGracePeriodSeconds": 1,
            "containers": [container], **spec.pop("pod", {}),
        }  # fmt: skip
        meta = {"name": name, "labels": labels or {"commonwatt.io/tenant": "a"}, "annotations": notes or {}}
        body = {
            "apiVersion": "batch/v1", "kind": "Job", "metadata": meta,
            "spec": {"parallelism": pods, "completions": pods, "template": {"spec": pod}, **spec},
        }  # fmt: skip
        return (api or self.admin).create(path_of("jobs", USERS, group="batch/v1"), body)

    def job(self, name: str) -> dict:
        return self.admin.get(path_of("jobs", USERS, name, group="batch/v1"))

    def jobs(self) -> list[dict]:
        return self.admin.get(path_of("jobs", group="batch/v1"))["items"]

    def remove_job(self, job: dict, **options) -> None:
        meta = job["metadata"]
        body = {"propagationPolicy": "Background", "preconditions": {"uid": meta["uid"]}, **options}
        try:
            self.admin.ask("DELETE", path_of("jobs", meta["namespace"], meta["name"], group="batch/v1"), body)
        except RefusedByServerError as error:
            if error.status != 404:
                raise

    def pods_of(self, job: dict) -> list[dict]:
        uid = job["metadata"]["uid"]
        return [p for p in self.pods() if any(o["uid"] == uid for o in p["metadata"].get("ownerReferences", ()))]

    def run(self, name: str, node: str | None, gpus: int = 1, *, command=("sleep", "600"), **more) -> dict:
        """Start a pod of somebody else: on *node*, or wherever the scheduler of Kubernetes places it."""
        container = {
            "name": "main", "image": "none", "command": list(command),
            "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
        }  # fmt: skip
        spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container], **more}
        if node is not None:
            spec["nodeName"] = node
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        return self.admin.create(path_of("pods", "default"), body)

    def settle(self) -> None:
        """Everything as after the start: all parts up, no pods, all nodes ready, neither cordoned nor tainted."""
        for name in PARTS:
            self.begin(name)
        for number in range(NODES):
            self.power(f"gpu-{number}", on=True)
        patient_s = time.monotonic() + 5.0
        until(lambda: self._tidy(0 if time.monotonic() > patient_s else 1), pause_s=0.1)
        if self._shaken:  # what was away may take a node for silent a moment later
            time.sleep(4.0)
            until(self._tidy, pause_s=0.1)
            self._shaken = False

    def _tidy(self, grace_s: int = 0) -> bool:
        """Put things in order; without *grace_s*, pods are gone before their kubelet has their GPUs back."""
        try:
            for job in self.jobs():
                self.remove_job(job)
            for pod in self.pods():
                self.remove(pod, grace_s)
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
            return len(well) == NODES and not self.pods() and not self.jobs()
        except EngineError:
            return False

    def stop(self) -> None:
        if self.admin is not None:
            self.admin.close()
        self._tool("--stop")
        for pod in (self.cluster / "kubelet" / "pods").glob("*/shim.json"):
            held = json.loads(pod.read_text())
            try:
                if Path(f"/proc/{held['pid']}/stat").read_text().rsplit(")", 1)[1].split()[19] == held["boot"]:
                    os.killpg(held["pid"], 9)
            except (OSError, IndexError):
                pass
