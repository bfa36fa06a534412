"""Services over a real Kubernetes: each model server is a pod; nothing is doubled, lost, or left behind."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("onnxruntime")
pytest.importorskip("tritonclient")

from commonwatt.controlplane.engines import stop_services_of
from commonwatt.controlplane.wiring import read_config
from commonwatt.store.records import JobStatus
from tests.controlplane.chaos import controller, kill, store_of, witness
from tests.controlplane.test_live_services import (  # noqa: F401
    GROWING,
    NODES,
    TEXT,
    VISION,
    conserved,
    fleet_in,
    in_force,
    infer,
    models,
    ready,
    server_pids,
    takes_a_gpu_and_gives_it_back,
)
from tests.engines.kubernetes.site import until

pytestmark = pytest.mark.long
READY_S = 90.0


def fleet_over(kube, folder, models, *, nodes=2, **changes):  # noqa: F811
    own = {
        "kubeconfig": str(kube.kubeconfig("commonwatt")), "image": "none", "python": sys.executable, "grace_s": 2,
        "lag_s": 1, "start_s": 30, "cpus_per_gpu": 0.5, "volumes": {str(folder): f"host:{folder}"},
    }  # fmt: skip
    live = {"kubernetes": own, "default_time_limit_s": 30, "services": {"port": 0, "step_s": 1.0}}
    declared = [{**NODES[0], "name": f"gpu-{n}", "states": []} for n in range(nodes)]
    return fleet_in(
        folder, models, sharing={"relayout_s": 2}, engine="kubernetes", live=live, nodes=declared, **changes
    )


@pytest.fixture
def plane(kube, tmp_path, models):  # noqa: F811
    path = fleet_over(kube, tmp_path, models)
    yield path, store_of(path, tenants="ab")
    stop_services_of(read_config(path), path.parent)
    until(lambda: not server_pids(tmp_path), 30.0)  # on a node that is given up they end a little later


def servers(kube) -> list[tuple[str, str]]:
    """Name and node of each pod of a model server that is not over."""
    going = [pod for pod in kube.pods() if pod["status"].get("phase") not in ("Succeeded", "Failed")]
    named = [pod for pod in going if pod["metadata"]["labels"].get("commonwatt.io/name", "").startswith("services-")]
    return [(pod["metadata"]["name"], pod["spec"].get("nodeName", "")) for pod in named]


def counted(store) -> int:
    counts = (store.setting("fleet", {}) or {}).get("counts", {})
    return counts.get("vision", {}).get("counts", {}).get("requests", -1)


def test_services_are_pods_that_outlive_the_controller(plane, kube, tmp_path, models):  # noqa: F811
    path, store = plane
    sent = 0

    def ask(number: int) -> None:
        nonlocal sent
        for _ in range(number):
            sent += 1
            assert infer(tmp_path, sent)[0] == 200

    def ask_until_served() -> None:
        """The front may not know yet that a server is gone."""
        nonlocal sent
        until_s, status = time.monotonic() + READY_S, 0
        while status != 200 and time.monotonic() < until_s:
            sent += 1
            status = infer(tmp_path, sent)[0]
        assert status == 200

    child = controller(path)
    try:
        until(lambda: ready(tmp_path), READY_S)
        ((pod, node),) = servers(kube)
        assert node in {"gpu-0", "gpu-1"}
        jobs = [
            store.submit("a", witness(f"beside-{k}", tmp_path, 0.5, gpus=gpus), time.time())[0].id
            for k, gpus in enumerate((2, 1))
        ]
        ask(10)
        until(lambda: all(store.job(job).status is JobStatus.COMPLETED for job in jobs), 60.0)
        until(lambda: counted(store) == sent, 30.0)
        first = server_pids(tmp_path)
        assert len(first) == 1

        kill(child)
        ask(5)  # nobody controls it, and it serves
        child = controller(path)
        until(lambda: counted(store) == sent, 30.0)
        assert server_pids(tmp_path) == first, "found again, and nothing is started twice"
        assert servers(kube) == [(pod, node)]

        os.kill(min(first), signal.SIGKILL)
        until(lambda: server_pids(tmp_path) - first, 30.0)
        until(lambda: ready(tmp_path), READY_S)
        ask_until_served()
        ask(3)
        until(lambda: any(event.kind == "gpu-lost" for event in store.events(limit=1000)), 30.0)

        ((second, _),) = servers(kube)
        kube.remove(next(pod for pod in kube.pods() if pod["metadata"]["name"] == second), 1)  # by somebody
        until(lambda: (there := servers(kube)) and second not in dict(there) and ready(tmp_path), READY_S)
        ask_until_served()
        until(lambda: counted(store) == sent, 30.0)

        kill(child)
        fleet_over(kube, tmp_path, models, services=[])
        child = controller(path)
        until(lambda: not server_pids(tmp_path) and not servers(kube), 30.0)
    finally:
        kill(child)
    conserved(store)


def test_replicas_take_a_gpu_from_a_job_and_give_it_back(kube, tmp_path, models):  # noqa: F811
    takes_a_gpu_and_gives_it_back(fleet_over(kube, tmp_path, models, nodes=1, services=GROWING))
    assert not servers(kube)
