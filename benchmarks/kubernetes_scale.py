"""What Kubernetes costs at scale: nodes and pods that are only objects of a real API server.

Pods have a GPU each, and a tenth as many wait for one. Measured: engine `kubernetes`; `commonwatt attach kubernetes`
and `commonwatt init --from kubernetes` from start to end; ticks of the control plane that `attach` has written.

KUBECONFIG is that of an administrator of a cluster made for this, without a controller manager: nodes that do not
report would be lost. See tests/engines/kubernetes for such a cluster.

    python benchmarks/kubernetes_scale.py KUBECONFIG [--nodes 1000] [--pods 2000] [--jobs 50] [--ticks 10] [--json]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from commonwatt.control.engine import Start
from commonwatt.controlplane import observer
from commonwatt.controlplane.reconciler import Reconciler
from commonwatt.controlplane.wiring import open_live
from commonwatt.engines.kubernetes.access import access_of
from commonwatt.engines.kubernetes.api import KubernetesApi, RefusedByServerError, path_of
from commonwatt.engines.kubernetes.engine import KubernetesEngine
from commonwatt.engines.kubernetes.settings import GPU, KubernetesSettings
from commonwatt.engines.run_spec import JobWork
from commonwatt.model.errors import EngineDownError
from commonwatt.model.nodes import Cluster, NodeSpec
from commonwatt.store.controller_store import Tick
from commonwatt.store.records import RequestKind, RequestRow

SPACE = "scale"
GPUS = 8
WAITING = 10  # pods for each one that waits


def make(api: KubernetesApi, nodes: int, pods: int) -> None:
    """Make the nodes, and pods of others that have a GPU each."""

    def node(n: int) -> None:
        name, sizes = f"scale-{n}", {"cpu": "128", "memory": "1Ti", "pods": "110", GPU: str(GPUS)}
        with suppress(RefusedByServerError):  # it is there from the last time
            api.create(path_of("nodes"), {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        ready = [{"type": "Ready", "status": "True", "lastHeartbeatTime": None, "lastTransitionTime": None}]
        status = {"capacity": sizes, "allocatable": sizes, "conditions": ready}
        api.merge(f"{path_of('nodes', name=name)}/status", {"status": status})
        api.merge(path_of("nodes", name=name), {"spec": {"taints": None}})

    def pod(k: int) -> None:
        container = {"name": "main", "image": "none", "resources": {"limits": {GPU: "1"}}}
        waits = k >= pods
        where = {"schedulerName": "nobody"} if waits else {"nodeName": f"scale-{k % nodes}"}
        spec = {**where, "containers": [container], "automountServiceAccountToken": False}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"other-{'waits-' * waits}{k}"}, "spec": spec}
        with suppress(RefusedByServerError):
            api.create(path_of("pods", SPACE), body)

    for document in (
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": SPACE}},
    ):
        with suppress(RefusedByServerError):
            space = document["metadata"].get("namespace")
            api.create(path_of(f"{document['kind'].lower()}s", space), document)
    for left in api.get(path_of("pods", SPACE)).get("items") or ():
        if not left["metadata"]["name"].startswith("other-"):  # of the last time: no kubelet has ended it
            api.delete(path_of("pods", SPACE, left["metadata"]["name"]), left["metadata"]["uid"], 0)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(node, range(nodes)))
        list(pool.map(pod, range(pods + pods // WAITING)))


def timed(call: Callable[[], object], times: int = 20) -> dict[str, float]:
    took = []
    for _ in range(times):
        began = time.process_time()
        call()
        took.append(1000 * (time.process_time() - began))
    return {"median_ms": round(statistics.median(took), 2), "most_ms": round(max(took), 2)}


def lag_s(engine: KubernetesEngine, api: KubernetesApi, times: int = 5) -> float:
    """Return the longest time from the answer to the creation of a pod until the engine has seen it."""
    longest = 0.0
    for k in range(times):
        name = f"late-{time.time_ns()}-{k}"
        container = {"name": "main", "image": "none"}
        spec = {"nodeName": "scale-0", "containers": [container], "automountServiceAccountToken": False}
        made = api.create(path_of("pods", SPACE), {"metadata": {"name": name}, "spec": spec})
        began, uid = time.monotonic(), made["metadata"]["uid"]
        while uid not in engine.informer.look(engine._pods):  # noqa: SLF001
            time.sleep(0.002)
        longest = max(longest, time.monotonic() - began)
        api.delete(path_of("pods", SPACE, name), uid, 0)
    return longest


def asked(kubeconfig: Path, *words: str) -> tuple[dict[str, Any], dict[str, float]]:
    """Run a command; returns its document, and the seconds from its start to its end, and of a processor."""
    command = [str(Path(sys.executable).with_name("commonwatt")), *words, "--kubeconfig", str(kubeconfig), "--json"]
    began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    took_s, now = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return json.loads(done.stdout), {"s": round(took_s, 2), "cpu_s": round(cpu_s, 2)}


def ticks_of(config: Path, ticks: int) -> dict[str, float]:
    """Return how long ticks of the control plane of *config* take, the first one apart, and its memory."""
    command = [sys.executable, "-m", "benchmarks.kubernetes_scale", str(config), "--serve", "--ticks", str(ticks)]
    found: dict[str, float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return found


def serve(config: Path, ticks: int) -> None:
    """Run the control plane of *config*, and have it decide so many times; prints what ``ticks_of`` returns."""
    step = Reconciler.step
    took: list[float] = []
    cpu: list[float] = []

    def timed_step(self: Reconciler, requests: Sequence[RequestRow], *, decide: bool = True) -> Tick:
        began, used = time.monotonic(), time.thread_time()
        tick = step(self, requests, decide=decide)
        if decide:
            cpu.append(time.thread_time() - used)
            took.append(time.monotonic() - began)
        return tick

    Reconciler.step = timed_step  # type: ignore[method-assign]
    observer._EVERY_S = 0.0  # noqa: SLF001 - pods of others count in every tick, not every 30 s
    live = open_live(config)
    live.start()
    try:
        while len(took) <= ticks:
            seen = len(took)
            live.store.ask(RequestKind.MODE, time.time(), value="dry-run")
            live.supervisor.wake()
            while len(took) == seen:
                time.sleep(0.05)
        would = [event for event in live.store.events() if event.kind == "would-start"]
    finally:
        live.close()
    found = {
        "first_s": round(took[0], 3), "median_s": round(statistics.median(took[1:]), 3),
        "most_s": round(max(took[1:]), 3), "median_cpu_s": round(statistics.median(cpu[1:]), 3),
        "ticks": len(took) - 1, "would_start": len(would),
        "memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }  # fmt: skip
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--delay-ms", type=float, default=0.0, help="added to each request for a start")
    parser.add_argument("--ticks", type=int, default=10, help="decisions of the control plane")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    a = parser.parse_args()
    if a.serve:
        serve(a.kubeconfig, a.ticks)
        return
    admin, api = (KubernetesApi(access_of(a.kubeconfig, None), timeout_s=60.0) for _ in range(2))
    make(admin, a.nodes, a.pods)
    specs = [NodeSpec(name=f"scale-{n}", gpu_type="A100", gpus=GPUS, idle_w=1, gpu_w=1) for n in range(a.nodes)]
    before_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with tempfile.TemporaryDirectory() as state:
        settings = KubernetesSettings(namespace=SPACE, image="none", cluster_id=f"scale-{time.time_ns()}")
        began = time.monotonic()
        engine = KubernetesEngine(
            Cluster.of(specs), Path(state), lambda _: JobWork(("true",)), api, settings=settings
        )  # fmt: skip
        while True:
            with suppress(EngineDownError):  # it has not listed all yet
                usable = int(engine.nodes().usable_gpus.sum())
                break
        found = {
            "nodes": a.nodes,
            "pods": a.pods,
            "usable_gpus": usable,
            "listed_s": round(time.monotonic() - began, 2),
        }
        expected = a.nodes * GPUS - a.pods
        assert usable == expected, f"{usable} GPUs are usable, not {expected}"

        def look_anew() -> None:
            engine._snapshot = None  # noqa: SLF001
            engine.nodes()

        found |= {
            "nodes_anew": timed(look_anew),
            "poll": timed(engine.poll),
            "watch_lag_s": round(lag_s(engine, admin), 3),
        }
        api._client.event_hooks["request"].append(lambda _: time.sleep(a.delay_ms / 1000))  # noqa: SLF001
        calls, began = sum(api.calls.values()), time.monotonic()
        starts = [Start(k, f"j{k}", (k % a.nodes,), 1) for k in range(a.jobs)]
        assert set(engine.start_all(starts, lambda: None)) == {None}
        found["start_ms"] = round(1000 * (time.monotonic() - began) / a.jobs, 1)
        engine.poll()
        found["calls_per_start"] = (sum(api.calls.values()) - calls) / a.jobs
        found["poll_with_jobs"] = timed(engine.poll)
        found["stopped"] = len(list(engine.request_stop(np.arange(a.jobs).tolist())))
        found["calls_per_job"] = (sum(api.calls.values()) - calls) / a.jobs
        found["memory_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        found["of_which_before_mib"] = round(before_mib)
        engine.close()
    admin.close()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "attached"
        drafted, found["init"] = asked(a.kubeconfig, "init", "--from", "kubernetes")
        attached, found["attach"] = asked(a.kubeconfig, "attach", "kubernetes", "--out", str(out))
        assert sum(node["count"] * node["gpus"] for node in drafted["nodes"]) == attached["gpus"]
        assert (attached["running"], attached["queued"]) == (a.pods, a.pods // WAITING), attached
        found |= {"waiting": attached["queued"], "control_plane": ticks_of(out / "live.yaml", a.ticks)}
    print(json.dumps(found) if a.json else "\n".join(f"{name:20} {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
