"""Settings of the Kubernetes engine, and the pods it makes of the runs of jobs."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from commonwatt.engines.kubernetes.objects import (
    ATTEMPT,
    CLUSTER,
    CPU,
    JOB,
    MEMORY,
    OWN_CONTAINER,
    RANK,
    RUN,
    Node,
    tolerated,
)
from commonwatt.engines.local import runner
from commonwatt.engines.run_spec import Images, JobWork, RunSpec
from commonwatt.engines.state_folder import make_identity, write_text
from commonwatt.model.errors import EngineError, InputError
from commonwatt.model.units import amount_of

__all__ = [
    "GPU", "SCHEDULER", "InPods", "KubernetesSettings", "all_shown", "cluster_label", "container_requests", "folder_of",
    "lasting", "manifests", "mark_of_run", "pod_manifest", "pod_name", "prepare", "rank_specs", "resource_of", "shown",
    "unit_of", "untolerated",
]  # fmt: skip

SCHEDULER = "commonwatt"
GPU = "nvidia.com/gpu"
PASSING = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Taints that Kubernetes gives to a node that is cordoned, not ready or short of something: they come and go."""
GANGS = "commonwatt-gangs"
"""The headless service under which the pods of a gang find each other."""
PORT = 29500
_MIG = re.compile(r".*-(\d+g\.\d+gb(?:\.[a-z0-9.]+)?)")
_NODE = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?(:.+)?")
_UNLABELLED = re.compile(r"[^A-Za-z0-9_.-]+")


class InPods(Images):
    """Jobs are in containers in any case: the kubelet runs their images."""

    def command(self, work: JobWork, places: object) -> tuple[str, ...]:  # noqa: ARG002
        """Return the command of *work* as it is."""
        return work.command


@dataclass(frozen=True)
class KubernetesSettings:
    """How the engine uses a cluster. All times in seconds.

    Attributes
    ----------
    cluster_id
        First part of the identity of our pods.
    namespace
        Where our pods are.
    image
        Of jobs that name none.
    python
        Python 3.9 or newer in all images, which runs the runner.
    pod
        Fields of the spec of every pod, such as tolerations, a node selector, a priority class.
    volumes
        What is mounted where: ``claim:NAME`` or ``host:/PATH`` by path in the pod.
    resources
        The resource that a GPU type is, where that is neither ``nvidia.com/gpu`` nor a MIG resource.
    cpus_per_gpu, memory_gb_per_gpu
        Requested with each GPU; 0: none.
    grace_s
        Time between asking a job to stop and killing it.
    patience_s
        How much longer its runner may take before the kubelet kills it.
    start_s
        How long a placed pod may take to start its command, as while it pulls its image.
    lag_s
        How late a file written in a pod may appear here after the pod is over.
    keep_s
        How long pods that are over are kept for those who look at them.
    runner_look_s
        How often a running job checks whether it was given up, as after its node was lost.
    lost_s
        How long a node has to be Unknown to be lost.
    settle_s
        How long nobody is lost after the API server was away: nodes have to tell it first that they live.
    dark_s
        How long it is not believed that all nodes are lost at once.
    requeue_deleted
        Whether a job whose pod somebody else deletes is queued again; if not, it is cancelled.
    user_namespaces
        Where the Jobs of users are taken over.
    user_kinds
        What is taken over there: ``Job``, ``JobSet``, ``PyTorchJob``.
    kueue
        Whether their Jobs in a queue of Kueue are placed once it has admitted them; if not, they are left alone.
    power_hook
        Program of the site, with its first arguments, that turns nodes off and on; empty: nodes stay on.
    power_limit_s
        Its time limit.
    """

    cluster_id: str = "commonwatt"
    namespace: str = "default"
    image: str | None = None
    python: str = "python3"
    pod: Mapping[str, Any] = field(default_factory=dict)
    volumes: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, str] = field(default_factory=dict)
    cpus_per_gpu: float = 1.0
    memory_gb_per_gpu: float = 0.0
    grace_s: float = 30.0
    patience_s: float = 10.0
    start_s: float = 600.0
    lag_s: float = 10.0
    keep_s: float = 3600.0
    runner_look_s: float = 5.0
    lost_s: float = 2.0
    settle_s: float = 20.0
    dark_s: float = 60.0
    requeue_deleted: bool = True
    user_namespaces: tuple[str, ...] = ()
    user_kinds: tuple[str, ...] = ("Job",)
    kueue: bool = True
    power_hook: tuple[str, ...] = ()
    power_limit_s: float = 300.0

    @property
    def kill_s(self) -> float:
        """Time after a request to stop at which the kubelet kills a job."""
        return self.grace_s + self.patience_s


def resource_of(gpu_type: str, resources: Mapping[str, str]) -> str:
    """Return the resource that GPUs of a type are: a slice such as ``A100-1g.5gb`` is ``nvidia.com/mig-1g.5gb``."""
    if gpu_type in resources:
        return resources[gpu_type]
    match = _MIG.fullmatch(gpu_type)
    return GPU if match is None else f"nvidia.com/mig-{match[1]}"


def unit_of(resource: str) -> float:
    """Return the bytes of a GiB for a resource that is counted in bytes, else 1."""
    return 2.0**30 if resource in (MEMORY, "ephemeral-storage") or resource.startswith("hugepages-") else 1.0


def shown(resource: str, amount: float) -> str:
    """Return an amount of a resource, as Kubernetes counts it, in words."""
    return amount_of(resource, amount / unit_of(resource))


def all_shown(amounts: Mapping[str, float]) -> str:
    """Return amounts by resource, those of GPUs, in words."""
    return ", ".join(shown(name, amount) for name, amount in amounts.items()) or "no GPUs"


def lasting(taints: Iterable[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Return those of *taints* that keep pods off a node until somebody takes them away."""
    return [taint for taint in taints if not (tolerated([taint], ()) or taint[0].startswith(PASSING))]


def prepare(state: Path, settings: KubernetesSettings, names: Sequence[str]) -> str:
    """Make the state folder with the runner in it; returns our identity.

    Raises ``InputError`` for a node name that no node of Kubernetes can have.
    """
    for name in names:
        if not _NODE.fullmatch(name):
            expected = "the name of a node in Kubernetes, followed by `:TYPE` if it has GPUs of several types"
            raise InputError(expected, field="nodes.name", value=name)
    (state / "jobs").mkdir(parents=True, exist_ok=True)
    write_text(state / "runner.py", Path(runner.__file__).read_text(encoding="utf-8"), 0o644)
    return make_identity(state, settings.cluster_id)


def cluster_label(identity: str) -> str:
    """Return the value of the label by which our pods are known."""
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


def pod_name(label: str, handle: int, attempt: int, rank: int = 0) -> str:
    """Return the name of the pod of a run; a gang has one for each *rank*. It is the same each time it is made."""
    return f"commonwatt-{label}-{handle}-{attempt}{f'-{rank}' if rank else ''}"


def mark_of_run(spec: RunSpec) -> str:
    """Return what tells a run from another of the same number, whose records were moved aside."""
    return f"{spec.handle}-{spec.attempt}-{spec.started_s:.6f}"


def folder_of(run: Path, rank: int) -> Path:
    """Return the folder of a rank of a *run*: that of the run itself for the first."""
    return run / f"rank-{rank}" if rank else run


def rank_specs(spec: RunSpec, label: str, namespace: str, own: Path) -> list[RunSpec]:
    """Return the spec of each pod of a run.

    Only what the first one reports counts as progress. Each waits for the one of its rank in the run before; the first
    also for those of ranks that this run does not have. *own* is the folder of the job.
    """
    used = {int(path.name[5:]) for path in own.glob("lock-*") if path.name[5:].isdigit()}
    spare = tuple(f"{own}/lock-{rank}" for rank in sorted(used) if rank >= len(spec.nodes))
    if len(spec.nodes) < 2:
        return [replace(spec, locks=spare)]
    first = f"{pod_name(label, spec.handle, spec.attempt)}.{GANGS}.{namespace}.svc"
    common = {
        **spec.environment, "COMMONWATT_NODES": str(len(spec.nodes)), "MASTER_ADDR": first, "MASTER_PORT": str(PORT),
        "PET_NNODES": str(len(spec.nodes)), "PET_NPROC_PER_NODE": str(spec.gpus_per_node),
        "PET_MASTER_ADDR": first, "PET_MASTER_PORT": str(PORT),
    }  # fmt: skip
    specs = []
    for rank in range(len(spec.nodes)):
        environment = {**common, "COMMONWATT_NODE_RANK": str(rank), "PET_NODE_RANK": str(rank)}
        if rank:
            environment["COMMONWATT_PROGRESS"] = f"{own}/progress-{rank}"
        lock = f"{own}/lock-{rank}" if rank else spec.lock
        specs.append(replace(spec, environment=environment, lock=lock, locks=() if rank else spare))
    return specs


def untolerated(node: Node, every_rule: Iterable[Mapping[str, Any]]) -> str | None:
    """Return a lasting taint of a node that some of these pods do not tolerate, in words; ``None``: there is none."""
    for key, value, effect in node.taints:
        each = (tolerated([(key, value, effect)], rules.get("tolerations") or ()) for rules in every_rule)
        if not key.startswith(PASSING) and not all(each):
            return f"{key}{value and f'={value}'}:{effect} of node {node.name}"
    return None


def container_requests(
    settings: KubernetesSettings, gpus: int, cpus: float | None, memory_gib: float | None
) -> dict[str, str]:
    """Return what the container of a pod with so many GPUs requests beside them; ``None``: what the site gives."""
    requests = {}
    if cpus := settings.cpus_per_gpu * gpus if cpus is None else cpus:
        requests[CPU] = f"{math.ceil(1000 * cpus)}m"
    if memory := 1e9 * settings.memory_gb_per_gpu * gpus if memory_gib is None else 2**30 * memory_gib:
        requests[MEMORY] = str(math.ceil(memory))
    return requests


def manifests(
    settings: KubernetesSettings, specs: Sequence[RunSpec], label: str, resources: Sequence[str], path: Path,
    state: Path,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the pods of a run, by rank, with its records in *path*; others as ``pod_manifest``."""
    return [
        pod_manifest(settings, spec, label, resource, folder_of(path, rank), state, rank)
        for rank, (spec, resource) in enumerate(zip(specs, resources, strict=True))
    ]


def pod_manifest(
    settings: KubernetesSettings, spec: RunSpec, label: str, resource: str, folder: Path, state: Path, rank: int = 0
) -> dict[str, Any]:
    """Return the pod of a run, which nobody places but us.

    Parameters
    ----------
    label
        Of our pods.
    resource
        What its GPUs are.
    folder, state
        Of the run, or of its *rank*; and of the engine.

    Raises
    ------
    EngineError
        If the job names no image, and neither do the settings.
    """
    image = spec.image or settings.image
    if image is None:
        msg = f"start {spec.name}: it names no image, and live.kubernetes.image is not set"
        raise EngineError(msg)
    requests = container_requests(settings, spec.gpus_per_node, spec.cpus, spec.memory_gib)
    limits = {resource: str(spec.gpus_per_node), **{k: v for k, v in requests.items() if k == MEMORY}}
    volumes, mounts = _volumes(settings, state)
    container = {
        "name": OWN_CONTAINER, "image": image,
        "command": [settings.python, "-I", str(state / "runner.py"), str(folder)],
        "resources": {"limits": limits, "requests": requests}, "volumeMounts": mounts,
    }  # fmt: skip
    own = dict(settings.pod)
    security = {"runAsUser": os.getuid(), "runAsGroup": os.getgid(), **(own.pop("securityContext", None) or {})}
    name = pod_name(label, spec.handle, spec.attempt, rank)
    body: dict[str, Any] = {
        "restartPolicy": "Never", "automountServiceAccountToken": False, "enableServiceLinks": False, **own,
        "schedulerName": SCHEDULER, "terminationGracePeriodSeconds": math.ceil(settings.kill_s),
        "securityContext": security, "containers": [container], "volumes": [*volumes, *(own.get("volumes") or ())],
    }  # fmt: skip
    if len(spec.nodes) > 1:
        body |= {"hostname": name, "subdomain": GANGS}
    if spec.limit_s is not None:  # the runner enforces it to the second; this is for one that cannot
        body["activeDeadlineSeconds"] = math.ceil(spec.limit_s + settings.kill_s + settings.start_s)
    labels = {
        "app.kubernetes.io/managed-by": "commonwatt",
        "commonwatt.io/name": _UNLABELLED.sub("-", spec.name)[:63].strip("-_."),
        CLUSTER: label, JOB: str(spec.handle), ATTEMPT: str(spec.attempt), RANK: str(rank),
    }  # fmt: skip
    meta = {"name": name, "namespace": settings.namespace, "labels": labels, "annotations": {RUN: mark_of_run(spec)}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": body}


def _volumes(settings: KubernetesSettings, state: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the volumes of a pod and where they are mounted; the state folder is from the host if none has it."""
    wanted = dict(settings.volumes)
    if not any(state.is_relative_to(path) for path in wanted):
        wanted[str(state)] = f"host:{state}"
    volumes, mounts = [], []
    for number, (path, source) in enumerate(wanted.items()):
        kind, _, name = source.partition(":")
        what = {"persistentVolumeClaim": {"claimName": name}} if kind == "claim" else {"hostPath": {"path": name}}
        volumes.append({"name": f"volume-{number}", **what})
        mounts.append({"name": f"volume-{number}", "mountPath": path})
    return volumes, mounts
