"""Opens the Kubernetes engine of a configuration; compares a declared cluster with the nodes Kubernetes has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commonwatt.engines.kubernetes.access import access_of
from commonwatt.engines.kubernetes.api import KubernetesApi, path_of
from commonwatt.engines.kubernetes.engine import KubernetesEngine
from commonwatt.engines.kubernetes.objects import Node, node_of, whole
from commonwatt.engines.kubernetes.power import autoscaler
from commonwatt.engines.kubernetes.settings import KubernetesSettings, pod_manifest, resource_of
from commonwatt.engines.kubernetes.user_gang import KINDS
from commonwatt.engines.meters import Since
from commonwatt.engines.model_servers import Hosting
from commonwatt.engines.run_spec import JobWork, RunSpec
from commonwatt.model.errors import ArgumentError, EngineError, InputError
from commonwatt.model.live import KubernetesSpec
from commonwatt.model.nodes import Cluster
from commonwatt.model.units import plural

__all__ = [
    "ALONE",
    "GANG_RIGHTS",
    "GATE_RIGHTS",
    "POWER_RIGHTS",
    "RIGHTS",
    "USER_RIGHTS",
    "Right",
    "api_of",
    "api_once",
    "denied_rights",
    "dry_run",
    "listed",
    "mismatches",
    "nodes_in",
    "open_kubernetes",
    "refuse_autoscaler",
    "settings_of",
]


def api_of(spec: KubernetesSpec, folder: Path, guard: Callable[[], None] = lambda: None) -> KubernetesApi:
    """Return the API server of *spec*, whose relative paths start at *folder*; *guard* as of ``KubernetesApi``.

    Raises ``InputError`` for a kubeconfig that cannot be used.
    """
    kubeconfig = None if spec.kubeconfig is None else folder / spec.kubeconfig
    try:
        return KubernetesApi(access_of(kubeconfig, spec.context), timeout_s=spec.request_timeout_s, guard=guard)
    except InputError as error:
        if error.field in ("kubeconfig", "context"):
            raise InputError(error.expected, file=error.file, field=f"live.kubernetes.{error.field}",
                             value=error.value) from None  # fmt: skip
        raise


def api_once(kubeconfig: Path | None, context: str | None) -> KubernetesApi:
    """Return an API server for a command that asks it once: what it denies counts as denied at once.

    Without *kubeconfig* as ``access_of`` does. Raises ``ArgumentError`` for one that cannot be used.
    """
    try:
        return KubernetesApi(access_of(kubeconfig, context), roles_s=0.0)
    except InputError as error:
        if error.file is None and error.field in ("kubeconfig", "context"):
            raise ArgumentError(error.expected, field=error.field, value=error.value) from None
        raise


def listed(api: KubernetesApi, resource: str) -> Iterator[Mapping[str, Any]]:
    """Yield all objects of a *resource*; raises ``EngineError`` if the server does not answer, or refuses that."""
    params: dict[str, str] = {"limit": "500"}
    while True:
        page: Mapping[str, Any] = api.get(path_of(resource), **params)
        yield from page.get("items") or ()
        more = page["metadata"].get("continue")
        if not more:
            return
        params["continue"] = more


def settings_of(spec: KubernetesSpec, namespace: str) -> KubernetesSettings:
    """Return the settings of the engine; *namespace* is where its pods are if *spec* does not say."""
    return KubernetesSettings(
        cluster_id=spec.cluster_id, namespace=spec.namespace or namespace, image=spec.image, python=spec.python,
        pod=spec.pod, volumes=spec.volumes, resources=spec.resources, cpus_per_gpu=spec.cpus_per_gpu,
        memory_gb_per_gpu=spec.memory_gb_per_gpu, grace_s=spec.grace_s, start_s=spec.start_s, lag_s=spec.lag_s,
        keep_s=spec.keep_s, requeue_deleted=spec.on_delete == "requeue",
        user_namespaces=tuple(spec.jobs), user_kinds=spec.job_kinds,
        kueue=spec.kueue == "after-admission",
        power_hook=() if spec.power is None else spec.power.hook,
        power_limit_s=300.0 if spec.power is None else spec.power.limit_s,
    )  # fmt: skip


def open_kubernetes(
    spec: KubernetesSpec, cluster: Cluster, folder: Path, work_of: Callable[[str], JobWork], *,
    since: Since | None = None, now_s: Callable[[], float] = time.time, guard: Callable[[], None] = lambda: None,
    hosting: Hosting | None = None,
) -> KubernetesEngine:  # fmt: skip
    """Return the engine; relative paths of *spec* start at *folder*. *now_s* is the time, *guard* that of the API.

    *hosting* is as for ``KubernetesEngine``.

    The API server need not answer yet; where *spec* says ``read_only``, nothing is changed there. Raises ``InputError``
    as ``api_of`` and ``KubernetesEngine`` do.
    """
    api = api_of(spec, folder, _refuse if spec.read_only else guard)
    return KubernetesEngine(
        cluster, folder / spec.state, work_of, api, settings=settings_of(spec, api.access.namespace),
        declared_power=spec.meter == "declared", since=since, now_s=now_s, hosting=hosting,
    )  # fmt: skip


ALONE = "no autoscaler on the same nodes: both would turn them off and on"


def refuse_autoscaler(spec: KubernetesSpec, folder: Path) -> None:
    """Raise ``InputError`` if nodes are to sleep where an autoscaler turns them off, as far as the server says."""
    if spec.power is None or spec.read_only:
        return
    api = api_of(spec, folder)
    try:
        autoscaled_by = autoscaler(api, nodes_in(api))
    except EngineError:  # it need not answer yet, and `check` says what it denies
        autoscaled_by = ""
    finally:
        api.close()
    if autoscaled_by:
        raise InputError(ALONE, field="live.kubernetes.power", value=autoscaled_by)


def _refuse() -> None:
    msg = "live.kubernetes.read_only is set: nothing is changed in Kubernetes"
    raise EngineError(msg)


@dataclass(frozen=True)
class Right:
    """What a token has to be allowed: *verb* on *resource*, everywhere or in the namespace of the pods."""

    verb: str
    resource: str
    everywhere: bool = False
    needed: bool = True  # without it, something else is missing, but jobs run
    group: str = ""
    lacking: str = ""  # what is missing without it

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


RIGHTS = (
    *(Right(verb, resource, everywhere=True) for resource in ("nodes", "pods") for verb in ("list", "watch")),
    Right("get", "pods"),
    Right("create", "pods"),
    Right("delete", "pods"),
    Right("create", "pods/binding"),
    Right("create", "events", needed=False, lacking="`kubectl describe` does not say what is decided"),
    Right("patch", "nodes", everywhere=True, needed=False, lacking="`commonwatt drain` keeps only our own jobs away"),
)
"""All that the engine asks of an API server."""


POWER_RIGHTS = (Right("patch", "nodes", everywhere=True),)
"""What it needs to put nodes to sleep."""


_NO_QUOTAS = "a Job whose namespace has no quota left is started, and withdrawn after start_s"

USER_RIGHTS = (
    *(Right(verb, "jobs", group="batch") for verb in ("list", "watch", "patch")),
    Right("get", "pods"),
    Right("delete", "pods"),
    Right("create", "pods/binding"),
    Right("create", "events", needed=False, lacking="`kubectl describe` does not say what is decided"),
    *(Right(verb, "resourcequotas", needed=False, lacking=_NO_QUOTAS) for verb in ("list", "watch")),
)
"""What it asks beside in each namespace where it takes over the Jobs of users."""


GANG_RIGHTS: Mapping[str, tuple[Right, ...]] = {
    name: tuple(Right(verb, kind.resource, group=kind.group.partition("/")[0]) for verb in ("list", "watch", "patch"))
    for name, kind in KINDS.items()
    if name != "Job"
}
"""What it asks there besides, for each kind of gang that it takes over."""


GATE_RIGHTS = (Right("patch", "pods"),)
"""What it asks there besides, where pods have our scheduling gate."""


def denied_rights(api: KubernetesApi, namespace: str, rights: Iterable[Right] = RIGHTS) -> list[Right]:
    """Return those of *rights* that the server denies; raises ``EngineError`` if it does not answer."""
    denied = []
    for right in rights:
        resource, _, part = right.resource.partition("/")
        attributes = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": part}
        if not right.everywhere:
            attributes["namespace"] = namespace
        body = {
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }  # fmt: skip
        answer = api.create(path_of("selfsubjectaccessreviews", group="authorization.k8s.io/v1"), body)
        if not (answer.get("status") or {}).get("allowed"):
            denied.append(right)
    return denied


def nodes_in(api: KubernetesApi) -> list[Node]:
    """Return the nodes; raises ``EngineError`` as ``listed`` does."""
    return [node_of(item) for item in listed(api, "nodes")]


def dry_run(api: KubernetesApi, settings: KubernetesSettings, cluster: Cluster, state: Path) -> list[str]:
    """Have the server check a pod as the engine makes them, without making it; returns fields it does not know.

    These are fields of the site's own. Raises ``EngineError`` if the server refuses the pod.
    """
    kind = cluster.classes[cluster.klass[0]]
    spec = RunSpec(
        handle=0, attempt=0, name="check", nodes=(0,), gpus_per_node=1, slots=((),), started_s=0.0, base_epochs=0.0,
        command=("true",), folder="/", environment={}, grace_s=settings.grace_s, node_names=cluster.names[:1],
        image=settings.image or "none",
    )  # fmt: skip
    resource = resource_of(kind.gpu_type, settings.resources)
    body = pod_manifest(settings, spec, "check", resource, state / "runs" / "0-0", state)
    made = api.create(path_of("pods", settings.namespace), body, dryRun="All")
    return [name for name, value in settings.pod.items() if value and name not in made["spec"]]


def mismatches(cluster: Cluster, nodes: Iterable[Node], resources: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return where a declared cluster differs from *nodes*: what is declared wrongly, and nodes with GPUs left out."""
    there = {node.name: node for node in nodes}
    wrong: list[str] = []
    for name, klass in zip(cluster.names, cluster.klass, strict=True):
        kind, host = cluster.classes[klass], name.partition(":")[0]
        resource = resource_of(kind.gpu_type, resources)
        node = there.get(host)
        if node is None:
            wrong.append(f"node {host}: Kubernetes has no node of this name")
        elif (gpus := whole(node.allocatable.get(resource, 0.0))) != kind.gpus:
            wrong.append(f"node {name}: declared with {plural(kind.gpus, 'GPU')}, has {gpus} of {resource}")
    declared = {name.partition(":")[0] for name in cluster.names}
    spare = [f"node {node.name}: not declared" for node in there.values()
             if node.name not in declared and _has_gpus(node, resources.values())]  # fmt: skip
    return wrong, spare


def _has_gpus(node: Node, named: Iterable[str]) -> bool:
    resources: Sequence[str] = (*named, resource_of("", {}))
    return any(amount and (name in resources or name.startswith("nvidia.com/mig-"))
               for name, amount in node.allocatable.items())  # fmt: skip
