"""Model servers in Kubernetes: each is a pod of ours that has one GPU of its node."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from commonwatt.engines.kubernetes.api import KubernetesApi, path_of
from commonwatt.engines.kubernetes.objects import CLUSTER, pod_of
from commonwatt.engines.kubernetes.run import KubernetesRun
from commonwatt.engines.local.folder import End, RunFolder
from commonwatt.engines.model_servers import FIRST_SERVER, ModelServers
from commonwatt.engines.run_spec import RunSpec

__all__ = ["KubernetesServers", "as_server", "stop_servers"]

_ADDRESS, _SERVES = "COMMONWATT_POD_IP", "commonwatt.io/serves"
_ENDS_S = 20.0
"""Time for servers to answer what they have accepted."""
_BLINK_S = 0.2


class KubernetesServers(ModelServers[KubernetesRun]):
    """Model servers as pods.

    Parameters
    ----------
    free_slots
        Returns the numbers of the GPUs of a node that nobody has; the kubelet gives a server the GPU it likes.
    run_of, enter
        The run with given records; what puts it on its node.
    start
        Creates and places the pod of a run.
    ended, stop, leave
        How a run has ended; what stops one, and returns whether it is over; and what takes it off its node.
    """

    first_handle = FIRST_SERVER
    echo = True

    def __init__(
        self, *, look_s: float, free_slots: Callable[[int], Sequence[int]],
        run_of: Callable[[RunFolder, RunSpec], KubernetesRun], enter: Callable[[KubernetesRun], None],
        start: Callable[[KubernetesRun], None], ended: Callable[[KubernetesRun], End | None],
        stop: Callable[[KubernetesRun], bool], leave: Callable[[KubernetesRun], None],
    ) -> None:  # fmt: skip
        self.look_s, self._free_slots = look_s, free_slots
        self._run_of, self._enter, self._start = run_of, enter, start
        self._ended, self._stop, self._leave = ended, stop, leave

    def free_slots(self, node: int) -> Sequence[int]:
        """Return numbers for the GPUs of a node that nobody has."""
        return self._free_slots(node)

    def host(self, node: int) -> str:  # noqa: ARG002
        """Return what stands for the address of a server's pod, which only the pod knows."""
        return f"${_ADDRESS}"

    def adopt(self, folder: RunFolder, spec: RunSpec) -> KubernetesRun:
        """Return the run with these records."""
        run = self._run_of(folder, spec)
        self._enter(run)
        return run

    def start(self, folder: RunFolder, spec: RunSpec) -> KubernetesRun:
        """Create and place a pod."""
        run = self.adopt(folder, spec)
        self._start(run)
        return run

    def ended(self, run: KubernetesRun) -> End | None:
        """Return how a run ended."""
        return self._ended(run)

    def stop(self, run: KubernetesRun) -> bool:
        """Stop a run; one whose pod is still there keeps its GPU until it is gone."""
        return self._stop(run)

    def release(self, run: KubernetesRun) -> None:
        """Take a run that has ended off its node."""
        self._leave(run)


def as_server(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of a *pod* as that of a model server: it knows its address, and network policies know it."""
    field = {"fieldRef": {"fieldPath": "status.podIP"}}
    pod["spec"]["containers"][0]["env"] = [{"name": _ADDRESS, "valueFrom": field}]
    pod["metadata"]["labels"][_SERVES] = "true"
    return pod


def stop_servers(api: KubernetesApi, namespace: str, label: str) -> int:
    """Delete the pods of all model servers with our *label*, and wait until they are over; returns how many there were.

    Raises ``EngineError`` if the server does not answer, or refuses.
    """

    def there() -> list[tuple[str, str]]:
        answer = api.get(path_of("pods", namespace), labelSelector=f"{CLUSTER}={label}")
        pods = map(pod_of, answer.get("items") or ())
        return [
            (pod.name, pod.uid) for pod in pods if pod.run is not None and pod.run[0] >= FIRST_SERVER and not pod.over
        ]

    pods = there()
    for name, uid in pods:
        api.delete(path_of("pods", namespace, name), uid)
    until_s = time.monotonic() + _ENDS_S
    while pods and there() and time.monotonic() < until_s:
        time.sleep(_BLINK_S)
    return len(pods)
