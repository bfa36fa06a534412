"""Services of the live control plane: really served, counted, found again, replaced, and charged to the last unit."""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")
pytest.importorskip("onnxruntime")
pytest.importorskip("tritonclient")

from commonwatt.controlplane.engines import stop_services_of
from commonwatt.controlplane.services import CountedLoad, LiveServices, hosting_of, live_fleet, sharing_of
from commonwatt.controlplane.wiring import read_config
from commonwatt.devices.tiny_models import write_tiny_models
from commonwatt.engines.model_servers import server_settings, stop_services
from commonwatt.engines.shared_devices import SharedDevice
from commonwatt.model.errors import InputError
from commonwatt.model.histogram import FINE_BOUNDS_S
from commonwatt.model.nodes import Cluster
from commonwatt.store.records import JobStatus, RequestKind
from tests.controlplane.chaos import config_in, controller, kill, store_of, witness
from tests.engines.waiting import until

VISION = {
    "name": "vision", "tenant": "a", "model_file": "models/resnet.onnx", "latency_s": 5.0, "start_s": 0.2,
    "load": {"source": "series", "rps": [1.0]}, "profiles": {"V100": {"request_s": 0.01, "power_w": 150}},
}  # fmt: skip
TEXT = {**VISION, "name": "text", "tenant": "b", "model_file": "models/transformer.onnx"}
GROWING = [
    {**VISION, "profiles": {"V100": {"request_s": 0.25, "power_w": 150}}, "replicas": {"max": 2}},
    {**TEXT, "latency_s": 3.0},
]
"""Declared slower than it is, so that few requests need two GPUs."""
NODES = [{"name": "n", "count": 1, "gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 200, "share": ["time"]}]
LIVE = {"local": {"grace_s": 2}, "default_time_limit_s": 5, "services": {"port": 0, "step_s": 1.0}}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_models(folder / "models")
    return folder / "models"


def fleet_in(folder: Path, models: Path, **changes) -> Path:
    if not (folder / "models").exists():
        (folder / "models").symlink_to(models)
    return config_in(folder, **{"nodes": NODES, "live": LIVE, "services": [VISION, TEXT], **changes})


def pixels(seed: int) -> list[float]:
    return np.random.default_rng(seed).random(3 * 32 * 32, dtype=np.float32).tolist()


def infer(folder: Path, seed: int, service: str = "vision") -> tuple[int, list[float]]:
    where = json.loads((folder / "state" / "services" / "front.json").read_text())
    given = {"name": "image", "datatype": "FP32", "shape": [1, 3, 32, 32], "data": pixels(seed)}
    with closing(http.client.HTTPConnection(where["host"], where["port"], timeout=60)) as connection:
        connection.request("POST", f"/v2/models/{service}/infer", json.dumps({"inputs": [given]}))
        reply = connection.getresponse()
        body = json.loads(reply.read())
        return reply.status, body["outputs"][0]["data"] if reply.status == 200 else []


def ready(folder: Path) -> bool:
    """Whether both services have a replica: asked for without a request that counts."""
    try:
        where = json.loads((folder / "state" / "services" / "front.json").read_text())
        with closing(http.client.HTTPConnection(where["host"], where["port"], timeout=60)) as connection:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
    except (OSError, ValueError, http.client.HTTPException):
        return False


def server_pids(folder: Path) -> set[int]:
    """Processes of model servers that are alive."""
    found = set()
    for path in (folder / "state" / "services" / "runs").glob("*/runner.json"):
        with suppress(OSError):  # it is gone meanwhile
            pid = json.loads(path.read_text())["job"]
            found |= {pid} if Path(f"/proc/{pid}/cmdline").read_bytes() else set()
    return found


def in_force(folder: Path, service: str | None) -> set[float]:
    """Weights of a service (none: values of phi) on the servers that are there, as these tell."""
    found = set()
    for path in (folder / "state" / "services" / "runs").glob("*/server.yaml"):
        with suppress(OSError, http.client.HTTPException):  # it is not there yet, or not any more
            key = json.loads(path.read_text())["server"]["operator_key"]
            address = re.search(r'"rest": "([^"]+)"', (path.parent / "output.log").read_text())
            if address is None:
                continue
            with closing(http.client.HTTPConnection(address[1], timeout=60)) as connection:
                connection.request("GET", "/v2/commonwatt/settings", headers={"authorization": f"Bearer {key}"})
                told = json.loads(connection.getresponse().read())
                found.add(told["phi"] if service is None else told["tenants"][service]["weight"])
    return found


def conserved(store) -> None:
    rows = store.ledger()
    for unit in ("energy_uj", "cost_n", "gpu_us"):
        meter = sum(row[unit] for row in rows if row["row"] == "meter")
        assert sum(row[unit] for row in rows if row["row"] != "meter") == meter > 0
        own = sum(row[unit] for row in rows if row["row"] == "services")
        accounts = store.setting("fleet", {})["gpus"]["accounts"].values()
        assert sum(account[unit] for account in accounts) == own > 0


def takes_a_gpu_and_gives_it_back(path: Path) -> None:
    """Run a fleet of ``GROWING`` services on one node of two GPUs; the job there goes on from its last epoch."""
    folder, store = path.parent, store_of(path, tenants="ab")
    child = controller(path)
    try:
        until(lambda: ready(folder), 90.0)
        job = store.submit("a", witness("long", folder, 4.0, epochs=40), time.time())[0].id
        until(lambda: store.job(job).status is JobStatus.RUNNING, 30.0)
        with ThreadPoolExecutor(16) as clients:
            until_s, answers = time.monotonic() + 60.0, []
            while len(server_pids(folder)) < 2 and time.monotonic() < until_s:
                answers.append(clients.submit(infer, folder, len(answers)))
                time.sleep(0.2)
            assert {answer.result()[0] for answer in answers} == {200}
        assert any(event.reason == "room-for-a-service" for event in store.events(limit=1000))
        store.ask(RequestKind.PHI, time.time(), value=1.0)
        until(lambda: in_force(folder, None) == {1.0}, 30.0)
        until(lambda: len(server_pids(folder)) == 1, 30.0)
        until(lambda: store.job(job).status is JobStatus.COMPLETED, 90.0)
        assert store.job(job).attempts >= 2
    finally:
        kill(child)
        stop_services_of(read_config(path), folder)
    assert not server_pids(folder)
    conserved(store)


@pytest.mark.long
def test_services_outlive_the_controller_and_lost_replicas_are_replaced(tmp_path, models):
    import onnxruntime

    path = fleet_in(tmp_path, models)
    store = store_of(path, tenants="ab")
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

    def counted() -> int:
        counts = (store.setting("fleet", {}) or {}).get("counts", {})
        return counts.get("vision", {}).get("counts", {}).get("requests", -1)

    child = controller(path)
    try:
        until(lambda: ready(tmp_path))
        job = store.submit("a", witness("beside", tmp_path, 0.2), time.time())[0].id
        ask(10)
        until(lambda: store.job(job).status is JobStatus.COMPLETED)
        until(lambda: counted() == sent)
        first = server_pids(tmp_path)
        assert len(first) == 1, "both services share one device"

        kill(child)
        ask(5)  # nobody controls it, and it serves
        child = controller(path)
        until(lambda: counted() == sent)
        assert server_pids(tmp_path) == first, "found again, and nothing is started twice"

        os.kill(min(first), signal.SIGKILL)
        until(lambda: server_pids(tmp_path) - first)
        until(lambda: ready(tmp_path))
        assert len(server_pids(tmp_path)) == 1
        ask(3)
        until(lambda: counted() == sent)
        until(lambda: any(event.kind == "gpu-lost" for event in store.events(limit=1000)))

        kill(child)
        fleet_in(tmp_path, models, services=[])
        child = controller(path)
        until(lambda: not server_pids(tmp_path))
    finally:
        kill(child)
        stop_services(tmp_path / "state")
    assert not server_pids(tmp_path)
    conserved(store)


@pytest.mark.long
def test_replicas_follow_the_requests_and_take_a_gpu_from_a_job(tmp_path, models):
    """Declared slower than it is, so that few requests need two GPUs; the job goes on from its last epoch."""
    path = fleet_in(tmp_path, models, services=GROWING)
    store = store_of(path, tenants="ab")
    stop = threading.Event()

    def ask() -> None:
        with ThreadPoolExecutor(16) as each:
            answers = []
            while not stop.wait(0.2):
                answers.append(each.submit(infer, tmp_path, len(answers)))
            assert {answer.result()[0] for answer in answers} == {200}

    def replicas() -> int:
        rows = (store.setting("fleet", {}) or {}).get("gpus", {}).get("replicas", [])
        return sum(row["service"] == "vision" for row in rows)

    def reserved(service: str) -> set[float]:
        rows = store.setting("fleet", {})["gpus"]["replicas"]
        return {float(row["milli"]) for row in rows if row["service"] == service}

    child = controller(path)
    clients = ThreadPoolExecutor(1)
    try:
        until(lambda: ready(tmp_path))
        job = store.submit("a", witness("long", tmp_path, 4.0, epochs=40), time.time())[0].id
        until(lambda: store.job(job).status is JobStatus.RUNNING)
        asking = clients.submit(ask)
        until(lambda: replicas() == 2 or asking.done())
        until(lambda: len(server_pids(tmp_path)) == 2 or asking.done())
        until(lambda: any(event.reason == "room-for-a-service" for event in store.events(limit=1000)))
        until(lambda: in_force(tmp_path, "vision") == reserved("vision") or asking.done())
        store.ask(RequestKind.PHI, time.time(), value=1.0)
        until(lambda: in_force(tmp_path, None) == {1.0} or asking.done())
        stop.set()
        asking.result()
        until(lambda: replicas() == 1)
        until(lambda: len(server_pids(tmp_path)) == 1)
        until(lambda: store.job(job).status is JobStatus.COMPLETED)
        assert store.job(job).attempts >= 2
    finally:
        stop.set()
        clients.shutdown()
        kill(child)
        stop_services(tmp_path / "state")
    conserved(store)


def test_a_phi_that_was_set_holds_until_the_configuration_has_another(services):
    manager = services._controller.manager
    manager.phi, manager.set_phi = 0.7, lambda phi: setattr(manager, "phi", phi)
    written = services.set_phi(0.4)
    assert (written, manager.phi) == ({"phi": 0.4, "instead_of": 0.7}, 0.4)
    manager.phi = 0.7
    services.resume_phi({**written, "instead_of": 0.9})
    assert manager.phi == 0.7
    services.resume_phi(None)
    assert manager.phi == 0.7
    services.resume_phi(json.loads(json.dumps(written)))
    assert manager.phi == 0.4


# -- what is refused


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"engine": "simulated"}, "services"),
        ({"live": {**LIVE, "services": {"key_env": "COMMONWATT_NO_SUCH_KEY"}}}, "live.services.key_env"),
        ({"live": {**LIVE, "mode": "dry-run"}}, "live.mode"),
        ({"nodes": [{**NODES[0], "gpu_type": "A100-80GB", "share": ["mig"]}]}, "nodes.share"),
        ({"nodes": [{**NODES[0], "share": []}]}, "nodes.share"),
        ({"live": {**LIVE, "services": {"host": "0.0.0.0"}}}, "live.services.host"),
        ({"live": {**LIVE, "services": {"image": "an-image"}}}, "live.services.image"),
        ({"live": {**LIVE, "services": {"addresses": {"n": "10.0.0.1"}}}}, "live.services.addresses"),
        (
            {"engine": "slurm", "live": {**LIVE, "services": {"addresses": {"m": "10.0.0.1"}}}},
            "live.services.addresses",
        ),
        ({"engine": "slurm", "live": {**LIVE, "services": {"addresses": {"n": "a b"}}}}, "live.services.addresses.n"),
        ({"engine": "slurm", "live": {**LIVE, "services": {"python": "python3"}}}, "live.services.python"),
        ({"services": [{**VISION, "model_file": None}]}, "services.vision.model_file"),
        ({"services": [{**VISION, "model_file": "models/resnet.txt"}]}, "services.vision.model_file"),
        ({"services": [{**VISION, "model_file": "models/nothing.onnx"}]}, "services.vision.model_file"),
        ({"services": [{**VISION, "name": "a b"}]}, "services.name"),
        ({"services": [{**VISION, "profiles": {"P100": {"request_s": 0.01}}}]}, "services.vision.profiles"),
        ({"services": [], "fractional": {"source": "law", "jobs_per_day": 5}}, "fractional"),
    ],
)
def test_what_is_not_served_is_refused_with_its_field(tmp_path, models, changes, field):
    with pytest.raises(InputError) as refused:
        read_config(fleet_in(tmp_path, models, **changes))
    assert refused.value.field == field
    assert refused.value.file is not None


def test_what_services_have_used_that_there_are_no_more_stays_on_record(tmp_path, models):
    from commonwatt.control.fleet.shared_gpus import SharedGpus
    from commonwatt.control.ledger import Account

    config = read_config(fleet_in(tmp_path, models))
    cluster = Cluster.of(config.nodes)
    fleet, gpus = live_fleet(config, cluster, tmp_path), SharedGpus(cluster)
    gpus.service_accounts = {0: Account(energy_uj=5, gpu_us=7), 1: Account(energy_uj=11)}
    written = json.loads(json.dumps(gpus.state(fleet.services)))
    for services in (fleet.services[1:], fleet.services):  # the first is removed, and comes back
        later = SharedGpus(cluster)
        later.resume(written, services, {})
        written = json.loads(json.dumps(later.state(services)))
        assert {name: row["energy_uj"] for name, row in written["accounts"].items()} == {"vision": 5, "text": 11}


@pytest.mark.long
def test_a_front_that_is_to_listen_elsewhere_does(tmp_path, models, monkeypatch):
    """It was reached from everywhere with a key: without one it must not be."""
    monkeypatch.setenv("COMMONWATT_TEST_KEY", "a-key-of-sixteen")
    with_key = {**LIVE, "services": {**LIVE["services"], "host": "127.0.0.2", "key_env": "COMMONWATT_TEST_KEY"}}
    path = fleet_in(tmp_path, models, live=with_key)
    store_of(path, tenants="ab")
    child = controller(path)
    try:
        until(lambda: ready(tmp_path))
        assert infer(tmp_path, 1)[0] == 401
        kill(child)
        fleet_in(tmp_path, models)
        child = controller(path)
        where = tmp_path / "state" / "services" / "front.json"
        until(lambda: where.exists() and json.loads(where.read_text())["host"] == "127.0.0.1")
        until(lambda: ready(tmp_path))
        assert infer(tmp_path, 1)[0] == 200
        fronts = [path for path in (tmp_path / "state/services/front").iterdir() if not (path / "end.json").exists()]
        assert len(fronts) == 1
    finally:
        kill(child)
        stop_services(tmp_path / "state")


def test_an_address_that_others_reach_needs_a_key(tmp_path, models, monkeypatch):
    open_to_all = {**LIVE, "services": {"host": "0.0.0.0", "key_env": "COMMONWATT_TEST_KEY"}}
    monkeypatch.setenv("COMMONWATT_TEST_KEY", "too short")
    with pytest.raises(InputError) as refused:
        read_config(fleet_in(tmp_path, models, live=open_to_all))
    assert refused.value.field == "live.services.key_env"
    monkeypatch.setenv("COMMONWATT_TEST_KEY", "a-key-of-sixteen")
    config = read_config(path := fleet_in(tmp_path, models, live=open_to_all))
    hosting = hosting_of(config, Cluster.of(config.nodes), path.parent)
    assert hosting.key == "a-key-of-sixteen"
    assert "sixteen" not in repr(hosting)


def test_pods_have_to_see_the_model_files(tmp_path, models):
    over = {"engine": "kubernetes", "live": {**LIVE, "kubernetes": {"image": "i"}}}
    with pytest.raises(InputError) as refused:
        read_config(fleet_in(tmp_path, models, **over))
    assert refused.value.field == "services.vision.model_file"
    over["live"]["kubernetes"]["volumes"] = {str(tmp_path): "claim:models"}
    read_config(fleet_in(tmp_path, models, **over))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_server_gets_the_device_of_the_configuration_and_sees_its_own_gpu(tmp_path, models, device):
    from commonwatt.data.files import load_yaml
    from commonwatt.engines.model_servers import LocalServers
    from commonwatt.model.timeslice_file import TimesliceConfig

    config = read_config(path := fleet_in(tmp_path, models, live={**LIVE, "services": {"device": device}}))
    hosting = hosting_of(config, Cluster.of(config.nodes), path.parent)
    keys = {"vision": "v" * 16, "text": "t" * 16}
    (tmp_path / "server.yaml").write_text(json.dumps(hosting.server("V100", keys, "o" * 16, tmp_path, "127.0.0.1")))
    served = load_yaml(tmp_path / "server.yaml", TimesliceConfig)
    assert served.device.kind == device
    assert LocalServers(lambda _: []).environment(3)["CUDA_VISIBLE_DEVICES"] == "3"


# -- requests are counted


def test_a_power_cap_is_accepted_beside_services_and_a_capacity_plan_is_not(tmp_path, models):
    capped = read_config(fleet_in(tmp_path, models, electricity={"power_cap_w": 400}))
    assert capped.electricity.tariff().cap_w.at(0.0) == 400
    with pytest.raises(InputError, match="capacity"):
        read_config(fleet_in(tmp_path, models, capacity={"policy": "last-value", "power_kw": 1.0}))


def test_the_rate_is_that_of_the_last_whole_step():
    load = CountedLoad(step_s=10.0)
    load.count(1003.0, 50)
    assert (load.seen(1003.0), load.next_s(1003.0), load.end_s) == (0.0, 1010.0, math.inf)
    load.count(1009.0, 80)  # within the step
    assert load.seen(1009.0) == 0.0
    load.count(1010.0, 120)
    assert load.seen(1010.0) == pytest.approx(70 / 7)
    load.count(1020.0, 120)
    assert load.seen(1020.0) == 0.0


def counts(requests, *, late=0, at_s=None):
    buckets = [0] * (len(FINE_BOUNDS_S) + 1)
    if at_s is not None:
        buckets[next(k for k, upper in enumerate(FINE_BOUNDS_S) if at_s <= upper)] = requests
    return {
        "requests": requests, "served": requests, "late": late, "unanswered": 0, "latency_s": 0.1, "buckets": buckets,
    }  # fmt: skip


@pytest.fixture
def services(tmp_path, models):
    from commonwatt.control.fleet.shared_gpus import SharedGpus

    config = read_config(fleet_in(tmp_path, models))
    cluster = Cluster.of(config.nodes)

    class Manager:
        fleet = live_fleet(config, cluster, tmp_path)
        gpus = SharedGpus(cluster)

        def demand_of(self, service):
            return None

    class Controller:
        manager = Manager()

    Controller.cluster = cluster
    return LiveServices(Controller())


def seen(began_s, **by_service):
    from commonwatt.control.fleet.interface import ServingState

    return ServingState("127.0.0.1:1", began_s, by_service)


def test_requests_of_a_front_that_starts_again_are_added_to_those_before(services):
    services.look(10.0, seen(1.0, vision=counts(5, late=2, at_s=0.1)))
    services.look(11.0, seen(1.0, vision=counts(7, late=2, at_s=0.1)))
    services.look(12.0, seen(2.0, vision=counts(3, late=1, at_s=0.1)))
    services.look(13.0, seen(math.nan))  # it does not answer
    vision = services.snapshot()[0]
    assert (vision.requests, vision.late, vision.late_share) == (10, 3, 0.3)
    assert 0.1 <= vision.p50_s <= 0.11
    assert services.snapshot()[1].p50_s is None


def test_counts_and_shared_gpus_go_on_in_the_next_controller(services, tmp_path, models):
    gpus = services._controller.manager.gpus
    gpu = gpus.open(0, "V100", 5.0, cut=False)
    replica = gpus.enter(gpu.gpu, 300, 6.0, service=0)
    gpus.enter(gpu.gpu, 200, 6.0, service=1)
    gpus.weigh(gpu, {replica.key: 70.0})
    services.look(10.0, seen(1.0, vision=counts(5), text=counts(2)))
    state = json.loads(json.dumps(services.state()))
    before = services.snapshot()

    gpus.gpus.clear()
    gpus.residents.clear()
    services._totals["vision"].counts["requests"] = 0
    services.resume(state, {gpu.gpu: (0, 5.0), 7: (0, 9.0)})  # the second was opened just before the end
    assert services.snapshot() == before
    assert gpus.next_gpu == 8
    assert not gpus.gpus[7].residents
    assert gpus.gpus[0].weights[0].power_w == pytest.approx(70.0 + 50.0 * 0.3)
    services.look(20.0, seen(1.0, vision=counts(6), text=counts(2)))  # the same front: one more request, not six
    assert services.snapshot()[0].requests == 6
    gpus.gpus.clear()
    gpus.residents.clear()
    services.resume(state, {})  # the GPUs are gone, and with them the replicas
    assert [s.replicas for s in services.snapshot()] == [0, 0]


def test_requests_that_came_while_no_controller_ran_are_spread_over_that_time(services):
    load = services._fleet.services[0].load
    step_s = load.step_s
    for step in range(1, 4):  # 2 requests a second
        services.look(step * step_s, seen(1.0, vision=counts(int(2 * step * step_s))))
    assert load.seen(0.0) == pytest.approx(2.0)
    state = json.loads(json.dumps(services.state()))

    load.rps, load.since = 0.0, None  # another controller, nine steps later: no front has answered it at first
    services.resume(state, {})
    services.look(12 * step_s, seen(math.nan))
    services.look(12 * step_s + 0.1, seen(1.0, vision=counts(int(2 * 12 * step_s))))
    assert load.seen(0.0) == pytest.approx(2.0, rel=0.02)
    services.look(13 * step_s + 0.1, seen(1.0, vision=counts(int(2 * 13 * step_s))))
    assert load.seen(0.0) == pytest.approx(2.0, rel=0.1)


def test_a_service_keeps_its_rate_while_no_front_answers(services):
    load = services._fleet.services[0].load
    for step in (1, 2):
        services.look(step * load.step_s, seen(1.0, vision=counts(int(3 * step * load.step_s))))
    for step in (3, 4, 5):
        services.look(step * load.step_s, seen(math.nan))
    assert load.seen(0.0) == pytest.approx(3.0)


# -- slices


def test_servers_get_the_weights_and_phi_of_the_decision(tmp_path, models):
    config = read_config(fleet_in(tmp_path, models, sharing={"slices": "etf", "phi": 0.6, "quantum_s": 0.05}))
    hosting = hosting_of(config, Cluster.of(config.nodes), tmp_path)
    assert server_settings(hosting, {"vision": 250, "text": 100}, 0.8) == {
        "policy": "etf", "quantum_s": 0.05, "phi": 0.8,
        "tenants": {"text": {"weight": 100.0}, "vision": {"weight": 250.0}},
    }  # fmt: skip
    equal = read_config(fleet_in(tmp_path, models, sharing={"slices": "equal"}))
    hosting = hosting_of(equal, Cluster.of(equal.nodes), tmp_path)
    settings = server_settings(hosting, {"vision": 250, "text": 100}, None)
    assert settings["policy"] == "tf"
    assert {row["weight"] for row in settings["tenants"].values()} == {1.0}
    assert sharing_of(equal).slices == "equal"


# -- energy


def test_devices_draw_what_their_services_had_of_them():
    device = SharedDevice(gpu=0, node=0, slot=0, attempt=1, since_s=0.0, power_w=7.0)
    powers_w = {"vision": 150.0, "text": 50.0}
    device.measure(10.0, {"vision": 1.0, "text": 0.0}, powers_w)
    assert (device.busy, device.power_w) == (None, 7.0)  # since when is not known
    device.measure(10.2, {"vision": 1.1, "text": 0.0}, powers_w)
    assert device.busy is None  # too short
    device.measure(14.0, {"vision": 3.0, "text": 1.0}, powers_w)
    assert device.busy == {"vision": 0.5, "text": 0.25}
    assert device.power_w == pytest.approx(0.5 * 150 + 0.25 * 50)
    device.measure(15.0, {"vision": 0.0}, powers_w)  # the server is another one
    assert device.power_w == pytest.approx(87.5)
    device.measure(16.0, {"vision": 2.0}, powers_w)  # a step that began before
    assert device.busy == {"vision": 1.0}
