"""Services over a real Slurm: each model server is a job there; nothing is doubled, lost, or left behind."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
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
    pixels,
    ready,
    server_pids,
    takes_a_gpu_and_gives_it_back,
)
from tests.engines.slurm.conftest import running_site, site  # noqa: F401
from tests.engines.slurm.site import until

pytestmark = pytest.mark.long
OUT_OF_REACH_S = 90.0


def fleet_over(site, folder, models, *, power=False, **changes):  # noqa: F811
    slurm = {"conf": str(site.conf), "grace_s": 2, "poll_s": 0.2, "start_s": 30, "lag_s": 1, "state": "state"}
    slurm["power"] = power
    live = {"slurm": slurm, "default_time_limit_s": 30, "services": {"port": 0, "step_s": 1.0}}
    nodes = changes.pop("nodes", [{**NODES[0], "count": 2}])
    return fleet_in(folder, models, sharing={"relayout_s": 2}, engine="slurm", live=live, nodes=nodes, **changes)


@pytest.fixture
def plane(site, tmp_path, models):  # noqa: F811
    path = fleet_over(site, tmp_path, models)
    yield path, store_of(path, tenants="ab")
    stop_services_of(read_config(path), path.parent)
    until(lambda: not server_pids(tmp_path), 30.0)  # on a node that is given up they end a little later


def in_slurm(site) -> list[tuple[str, str, str]]:  # noqa: F811
    """Name, node and GPUs of each job of ours that runs."""
    said = site.ask("squeue", "--noheader", "--states=RUNNING", "--Format=Name:|,NodeList:|,tres-per-node:|")
    rows = [[field.strip() for field in line.split("|")[:3]] for line in said.splitlines()]
    return [(name, node, gpus.rpartition(":")[2]) for name, node, gpus in rows]


def servers(site) -> list[tuple[str, str, str]]:  # noqa: F811
    return [row for row in in_slurm(site) if row[0].startswith("services-")]


def counted(store) -> int:
    counts = (store.setting("fleet", {}) or {}).get("counts", {})
    return counts.get("vision", {}).get("counts", {}).get("requests", -1)


def test_services_are_jobs_in_slurm_that_outlive_the_controller(plane, site, tmp_path, models):  # noqa: F811
    import onnxruntime

    path, store = plane
    right = onnxruntime.InferenceSession(str(models / "resnet.onnx"))
    sent = 0

    def ask(number: int) -> None:
        nonlocal sent
        for _ in range(number):
            sent += 1
            status, outputs = infer(tmp_path, sent)
            image = np.array(pixels(sent), dtype=np.float32).reshape(1, 3, 32, 32)
            assert status == 200
            np.testing.assert_allclose(outputs, right.run(None, {"image": image})[0].ravel(), rtol=1e-3, atol=1e-4)

    def ask_until_served() -> None:
        """The front may not know yet that a server is gone."""
        nonlocal sent
        until_s, status = time.monotonic() + OUT_OF_REACH_S, 0
        while status != 200 and time.monotonic() < until_s:
            sent += 1
            status = infer(tmp_path, sent)[0]
        assert status == 200

    child = controller(path)
    try:
        until(lambda: ready(tmp_path), OUT_OF_REACH_S)
        ((_, node, gpus),) = servers(site)
        assert gpus == "1", "both services share one GPU, which Slurm gave to nobody else"
        assert node in {"n-1", "n-2"}
        jobs = [
            store.submit("a", witness(f"beside-{k}", tmp_path, 0.5, gpus=g), time.time())[0].id
            for k, g in enumerate((2, 1))
        ]
        ask(10)
        until(lambda: all(store.job(job).status is JobStatus.COMPLETED for job in jobs), 60.0)
        until(lambda: counted(store) == sent)
        first = server_pids(tmp_path)
        assert len(first) == 1

        kill(child)
        ask(5)  # nobody controls it, and it serves
        child = controller(path)
        until(lambda: counted(store) == sent, 30.0)
        assert server_pids(tmp_path) == first, "found again, and nothing is started twice"
        assert len(servers(site)) == 1

        os.kill(min(first), signal.SIGKILL)
        until(lambda: server_pids(tmp_path) - first, 30.0)
        until(lambda: ready(tmp_path), OUT_OF_REACH_S)
        ask_until_served()
        ask(3)
        until(lambda: counted(store) == sent)
        until(lambda: any(event.kind == "gpu-lost" for event in store.events(limit=1000)))

        site.ask("scancel", "--user=" + site.ask("id", "-un").strip())  # somebody cancels it in Slurm
        until(lambda: len(servers(site)) == 1 and ready(tmp_path), OUT_OF_REACH_S)
        ask_until_served()

        kill(child)
        fleet_over(site, tmp_path, models, services=[])
        child = controller(path)
        until(lambda: not server_pids(tmp_path) and not servers(site), 30.0)
    finally:
        kill(child)
    conserved(store)


def test_replicas_of_a_dead_node_go_on_elsewhere(plane, site, tmp_path):  # noqa: F811
    path, store = plane
    child = controller(path)
    try:
        until(lambda: ready(tmp_path), OUT_OF_REACH_S)
        ((_, node, _),) = servers(site)
        pids = server_pids(tmp_path)
        site.end(node, signal.SIGKILL)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        site.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=gone")
        until(lambda: [at for _, at, _ in servers(site)] not in ([], [node]), 60.0)
        until(lambda: ready(tmp_path), OUT_OF_REACH_S)
        until(lambda: infer(tmp_path, 1)[0] == 200, 30.0)  # the front may not know yet that the old server is gone
    finally:
        kill(child)
    conserved(store)


def test_replicas_take_a_gpu_from_a_job_and_give_it_back(site, tmp_path, models):  # noqa: F811
    path = fleet_over(site, tmp_path, models, services=GROWING, nodes=[{**NODES[0], "name": "n-1"}])
    takes_a_gpu_and_gives_it_back(path)
    assert not servers(site)


def test_a_node_that_sleeps_wakes_for_a_replica_and_one_that_serves_stays_on(site, tmp_path, models):  # noqa: F811
    off = {"states": [{"name": "off", "power_w": 5, "enter_s": 1, "wake_s": 3}]}
    path = fleet_over(
        site, tmp_path, models, power=True, nodes=[{**NODES[0], "count": 2, "gpus": 1, **off}],
        services=GROWING, capacity={"policy": "last-value", "step_s": 2, "horizon": 10},
    )  # fmt: skip
    store = store_of(path, tenants="ab")

    def asleep() -> set[str]:
        states = site.states()
        return {name for name in ("n-1", "n-2") if "powered_down" in states[name] and "power_up" not in states[name]}

    child = controller(path)
    try:
        until(lambda: ready(tmp_path), OUT_OF_REACH_S)
        ((_, node, _),) = servers(site)
        (other,) = {"n-1", "n-2"} - {node}
        until(lambda: asleep() == {other}, 120.0)
        with ThreadPoolExecutor(16) as clients:
            until_s, answers = time.monotonic() + 120.0, []
            while len(servers(site)) < 2 and time.monotonic() < until_s:
                answers.append(clients.submit(infer, tmp_path, len(answers)))
                time.sleep(0.2)
            assert {answer.result()[0] for answer in answers} == {200}
        assert {at for _, at, _ in servers(site)} == {"n-1", "n-2"}
        until(lambda: len(servers(site)) == 1, 60.0)
        until(lambda: len(asleep()) == 1, 120.0)
        until(lambda: infer(tmp_path, 1)[0] == 200, 30.0)
    finally:
        kill(child)
        stop_services_of(read_config(path), path.parent)
    conserved(store)
