"""The whole server: real models on a real CPU, shared by the scheduler, asked by an unmodified tritonclient."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter, sleep
from types import MappingProxyType

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("starlette")
grpcclient = pytest.importorskip("tritonclient.grpc")

from commonwatt.devices.session import open_session  # noqa: E402
from commonwatt.devices.tiny_models import tiny_model, write_tiny_models  # noqa: E402
from commonwatt.model.errors import DeviceError, InputError  # noqa: E402
from commonwatt.model.timeslice_file import TimesliceConfig  # noqa: E402
from commonwatt.serving.keys import resolve_keys  # noqa: E402
from commonwatt.serving.server import serve  # noqa: E402
from commonwatt.serving.sharing import SharingBackend  # noqa: E402

OPERATOR = {"Authorization": "Bearer operator-secret"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_tiny_models(folder, 0)
    onnx.save(tiny_model("resnet", width=4, depth=2), folder / "large.onnx")
    (folder / "broken.onnx").write_bytes(b"not a model")
    return folder


def config(**more):
    first = {"queue_limit": 32} | more.pop("vision", {})
    tenants = [
        {
            "name": "vision", "key": "vision-secret",
            "models": [
                {"name": "resnet", "path": "resnet.onnx"}, {"name": "large", "path": "large.onnx"},
                {"name": "late", "path": "mobilenet.onnx", "load_at_start": False},
                {"name": "broken", "path": "broken.onnx", "load_at_start": False},
            ],
        } | first,
        {"name": "text", "key": "text-secret", "models": [{"name": "transformer", "path": "transformer.onnx"}]},
    ]  # fmt: skip
    document = {"device": {"kind": "cpu", "segment_s": 0.001}, "tenants": tenants, "quantum_s": 0.05}
    document["server"] = {"rest_port": 0, "grpc_port": 0, "operator_key": "operator-secret", "drain_s": 10}
    return TimesliceConfig.model_validate(document | more)


class Running:
    """A server in a thread, and clients to it."""

    def __init__(self, backend, where, loop, stop):
        self.backend, self.where, self.loop, self.stop = backend, where, loop, stop

    def client(self):
        return grpcclient.InferenceServerClient(self.where.grpc)

    def infer(self, model="resnet", key="vision-secret", x=None, client=None):
        x = np.ones((1, 3, 32, 32), np.float32) if x is None else x
        tensor = grpcclient.InferInput("image", list(x.shape), "FP32")
        tensor.set_data_from_numpy(x)
        headers = {"authorization": f"Bearer {key}"}
        return (client or self.client()).infer(model, [tensor], headers=headers).as_numpy("logits")

    def rest(self, method, path, body=None, headers=OPERATOR):
        request = urllib.request.Request(
            f"http://{self.where.rest}{path}", method=method, headers=headers,
            data=None if body is None else json.dumps(body).encode(),
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def status(self):
        return json.loads(self.rest("GET", "/v2/commonwatt/status")[1])


@contextmanager
def running(config, folder, checks=MappingProxyType({})):
    backend = SharingBackend(open_session(config, folder, checks))
    backend.start()
    ready, found = threading.Event(), {}

    async def main():
        found["loop"], found["stop"] = asyncio.get_running_loop(), asyncio.Event()

        def on_ready(where):
            found["where"] = where
            ready.set()

        await serve(backend, resolve_keys(config, {}), config.server, on_ready=on_ready, stop=found["stop"])

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert ready.wait(120)
    try:
        yield Running(backend, found["where"], found["loop"], found["stop"])
    finally:
        with suppress(RuntimeError):  # the loop is closed: it was told to stop before
            found["loop"].call_soon_threadsafe(found["stop"].set)
        thread.join(120)
        backend.close()
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def server(models):
    with running(config(), models) as server:
        yield server


@pytest.mark.slow
def test_answers_are_the_models(server, models):
    import onnxruntime

    x = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32)
    alone = onnxruntime.InferenceSession(models / "large.onnx").run(None, {"image": x})[0]
    assert server.infer("large", x=x) == pytest.approx(alone, rel=1e-4, abs=1e-5)


def test_both_transports_of_an_unmodified_client_give_the_same(server):
    httpclient = pytest.importorskip("tritonclient.http")
    x = np.random.default_rng(1).standard_normal((3, 3, 32, 32)).astype(np.float32)
    headers = {"Authorization": "Bearer vision-secret"}
    with httpclient.InferenceServerClient(server.where.rest) as client:
        assert client.is_model_ready("resnet", headers=dict(headers))
        for binary in (True, False):
            tensor = httpclient.InferInput("image", list(x.shape), "FP32")
            tensor.set_data_from_numpy(x, binary_data=binary)
            logits = client.infer("resnet", [tensor], headers=dict(headers)).as_numpy("logits")
            assert logits == pytest.approx(server.infer(x=x), abs=1e-6)
        short = httpclient.InferInput("image", [1, 3, 16, 16], "FP32")
        short.set_data_from_numpy(np.zeros((1, 3, 16, 16), np.float32))
        with pytest.raises(Exception, match=r"image.*\[1, 3, 16, 16\]"):
            client.infer("resnet", [short], headers=dict(headers))


def test_the_program_in_the_documentation_runs(server, capsys):
    pytest.importorskip("tritonclient.http")
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "serving.md").read_text(encoding="utf-8")
    program = re.search(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[1]
    program = program.replace("localhost:8000", server.where.rest).replace("change-me-vision", "vision-secret")
    exec(program, {})
    assert capsys.readouterr().out.startswith("[[")


def test_a_tenant_sees_its_own_models_only(server):
    client = server.client()
    mine = {"authorization": "Bearer text-secret"}
    index = client.get_model_repository_index(headers=mine, as_json=True)
    assert [model["name"] for model in index["models"]] == ["transformer"]
    for model in ("resnet", "nothing"):
        with pytest.raises(grpcclient.InferenceServerException, match=f"unknown model '{model}'"):
            server.infer(model, key="text-secret")


@pytest.mark.slow
def test_models_are_loaded_and_unloaded_while_others_are_served(server):
    client, headers = server.client(), {"authorization": "Bearer vision-secret"}
    with pytest.raises(grpcclient.InferenceServerException, match="not ready"):
        server.infer("late")
    with ThreadPoolExecutor(2) as pool:
        others = pool.map(lambda _: server.infer(), range(40))
        client.load_model("late", headers=headers)
        assert server.infer("late").shape == (1, 10)
        client.unload_model("late", headers=headers)
        assert len(list(others)) == 40
    assert not client.is_model_ready("late", headers=headers)
    with pytest.raises(grpcclient.InferenceServerException, match=r"'broken' cannot be loaded.*ONNX"):
        client.load_model("broken", headers=headers)


@pytest.mark.slow
def test_a_client_that_does_not_wait_for_a_load_leaves_a_model_that_can_be_used(server, monkeypatch):
    client, headers = server.client(), {"authorization": "Bearer vision-secret"}
    load = server.backend._load

    def slowly(*args):
        sleep(0.5)
        return load(*args)

    monkeypatch.setattr(server.backend, "_load", slowly)
    with pytest.raises(grpcclient.InferenceServerException, match="Deadline"):
        client.load_model("late", client_timeout=0.1, headers=headers)
    end_s = perf_counter() + 30.0
    while not client.is_model_ready("late", headers=headers):
        assert perf_counter() < end_s
        sleep(0.05)
    client.unload_model("late", headers=headers)
    assert not client.is_model_ready("late", headers=headers)


@pytest.mark.slow
def test_versions_of_a_model_are_served_together_and_charged_to_one_tenant(models):
    import onnxruntime

    versions = {"models": [
        {"name": "net", "version": 3, "path": "large.onnx"}, {"name": "net", "path": "resnet.onnx"},
        {"name": "net", "version": 4, "path": "broken.onnx", "load_at_start": False},
    ]}  # fmt: skip
    x = np.random.default_rng(2).standard_normal((1, 3, 32, 32)).astype(np.float32)
    with running(config(vision=versions), models) as server:
        client, headers = server.client(), {"authorization": "Bearer vision-secret"}
        tensor = grpcclient.InferInput("image", list(x.shape), "FP32")
        tensor.set_data_from_numpy(x)
        times = []
        for asked, file in (("1", "resnet"), ("3", "large"), ("", "large")):
            alone = onnxruntime.InferenceSession(models / f"{file}.onnx").run(None, {"image": x})[0]
            answer = client.infer("net", [tensor], model_version=asked, headers=headers)
            assert answer.as_numpy("logits") == pytest.approx(alone, rel=1e-4, abs=1e-5)
            assert answer.get_response().model_version == (asked or "3")
            times.append(server.status()["tenants"]["vision"]["time_s"])
        assert 0 < times[0] < times[1] < times[2]
        assert server.status()["tenants"]["text"]["time_s"] == 0
        with pytest.raises(grpcclient.InferenceServerException, match="cannot be loaded"):
            client.load_model("net", headers=headers)  # one of its versions
        client.unload_model("net", headers=headers)
        assert not any(client.is_model_ready("net", version, headers=headers) for version in ("", "1", "3", "4"))
        with pytest.raises(grpcclient.InferenceServerException, match="cannot be loaded"):
            client.load_model("net", headers=headers)
        assert client.is_model_ready("net", "1", headers=headers)  # those that can be are
        assert client.is_model_ready("net", headers=headers)
    twice = [{"name": "net", "path": "a.onnx"}, {"name": "net", "version": 1, "path": "b.onnx"}]
    with pytest.raises(ValueError, match="each name once for a version"):
        config(vision={"models": twice})
    both = [{"name": "t", "version": 2, "path": "a.onnx"}, {"name": "t", "path": "t.npz", "language": {}}]
    with pytest.raises(ValueError, match="expected one version of a language model"):
        config(vision={"models": both})
    text = {"name": "t", "version": 2, "path": "t.npz", "language": {}}
    with pytest.raises(ValueError, match="expected none for a language model"):
        config(vision={"models": [text]})


@pytest.mark.long
def test_a_tenant_that_begins_without_a_model_is_known_by_its_first(models):
    late = {"models": [{"name": "resnet", "path": "resnet.onnx", "load_at_start": False}]}
    power = {"idle_w": 1.0, "busy_w": 0.0, "joules_per_gflop": 0.0, "joules_per_gb": 0.0}
    device = {"kind": "cpu", "power": power}
    first, *others = config(vision=late).tenants
    both = {"tenants": [t.model_dump() | {"power_w": 40.0} for t in others] + [first.model_dump()], "device": device}
    with running(config(**both), models) as server:
        assert server.status()["tenants"]["vision"]["power_w"] == pytest.approx(40)
        server.client().load_model("resnet", headers={"authorization": "Bearer vision-secret"})
        assert server.status()["tenants"]["vision"]["power_w"] == pytest.approx(1)
        assert server.infer().shape == (1, 10)


@pytest.mark.slow
def test_a_defect_of_the_device_thread_refuses_everyone(models, no_errors_in_the_log):
    with running(config(), models) as server:
        server.backend.session.driver.ledger.book = None
        with pytest.raises(grpcclient.InferenceServerException, match="device has failed: TypeError"):
            server.infer()
    assert no_errors_in_the_log.pop() == "a defect in the thread that drives the device"


@pytest.mark.slow
def test_time_and_energy_are_accounted_for(server):
    before = server.status()["tenants"]["vision"]
    for _ in range(20):
        server.infer("large")
    after = server.status()["tenants"]["vision"]
    assert after["requests"]["ok"] - before["requests"]["ok"] == 20
    assert after["time_s"] - before["time_s"] > 0.02
    assert after["energy_j"] - before["energy_j"] == pytest.approx(
        after["power_w"] * (after["time_s"] - before["time_s"]), rel=0.5
    )
    assert after["power_source"] == "modelled"
    page = server.rest("GET", "/metrics")[1]
    assert 'requests_total{outcome="ok",tenant="vision"}' in page


def test_settings_change_all_or_not_at_all(server):
    whole = {"phi": 0.5, "tenants": {"vision": {"weight": 3}}}
    code, text = server.rest("PATCH", "/v2/commonwatt/settings", whole)
    assert code == 200
    assert json.loads(text)["tenants"]["vision"]["weight"] == 3
    assert server.status()["tenants"]["vision"]["guaranteed_share"] == pytest.approx(0.375)
    for wrong, said in (
        ({"phi": 2, "tenants": {"vision": {"weight": 1}}}, "phi"),
        ({"phi": 0.1, "tenants": {"nobody": {"weight": 1}}}, "tenants.nobody"),
        ({"phi": 0.1, "tenants": {"vision": {"weight": 0}}}, "tenants.vision.weight"),
        ({"phi": 0.1, "tenants": {"vision": {"clock_mhz": 900}}}, "a CPU has no clock"),
        ({"policy": "fifo", "phi": 0.1}, "needs a restart"),
        ({"speed": 1}, "speed"),
    ):
        code, text = server.rest("PATCH", "/v2/commonwatt/settings", wrong)
        assert (code, said in text) == (400, True), text
        assert json.loads(server.rest("GET", "/v2/commonwatt/settings")[1])["phi"] == 0.5
    server.rest("PATCH", "/v2/commonwatt/settings", {"phi": 0.7, "tenants": {"vision": {"weight": 1}}})


@pytest.mark.slow
def test_a_full_queue_is_told_when_to_come_back(models):
    with running(config(vision={"queue_limit": 2}), models) as server, ThreadPoolExecutor(16) as pool:

        def ask(_):
            body = {
                "inputs": [{"name": "image", "shape": [1, 3, 32, 32], "datatype": "FP32", "data": [0.5] * 3072}]
            }  # fmt: skip
            return server.rest("POST", "/v2/models/large/infer", body, {"X-API-Key": "vision-secret"})

        answers = list(pool.map(ask, range(64)))
        codes = [code for code, _ in answers]
        assert set(codes) == {200, 429}
        requests = server.status()["tenants"]["vision"]["requests"]
        assert (requests["ok"], requests["refused"]) == (codes.count(200), codes.count(429))
        assert any("queues of this tenant are full" in text for _, text in answers)


@pytest.mark.slow
def test_nothing_accepted_is_lost_when_the_server_stops(models):
    with running(config(), models) as server, ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(server.infer, "large") for _ in range(12)]
        while server.status()["tenants"]["vision"]["queue_length"] < 3:
            sleep(0.005)
        server.loop.call_soon_threadsafe(server.stop.set)
        outcomes = [future.exception(30) for future in asked]
    answered = [error for error in outcomes if error is None]
    refused = [str(error) for error in outcomes if error is not None]
    assert len(answered) >= 3
    assert all("UNAVAILABLE" in text or "stopping" in text or "CANCELLED" in text for text in refused), refused


@pytest.mark.slow
def test_a_device_that_disappears_refuses_everyone(models):
    with running(config(), models) as server, ThreadPoolExecutor(8) as pool:
        loaded = server.backend.session.loaded["vision", "large"].model
        begin, begun = loaded.begin, []

        def failing(inputs):
            begun.append(1)
            if len(begun) > 3:
                raise DeviceError("CPU 0 fell off the bus")
            return begin(inputs)

        loaded.begin = failing
        errors = [f.exception(30) for f in [pool.submit(server.infer, "large") for _ in range(20)]]
        assert 3 <= errors.count(None) < 20  # three batches, of one request or several
        assert all("fell off the bus" in str(error) for error in errors if error is not None)
        assert not server.client().is_server_ready()
        assert "fell off the bus" in server.status()["device_failure"]
        with pytest.raises(grpcclient.InferenceServerException, match="device has failed"):
            server.infer()


@pytest.mark.slow
def test_a_client_that_leaves_gives_its_request_up(models):
    with running(config(), models) as server:
        client, tensor = server.client(), grpcclient.InferInput("image", [1, 3, 32, 32], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 3, 32, 32), np.float32))
        calls = [
            client.async_infer(
                "large", [tensor], lambda result, error: None, headers={"authorization": "Bearer vision-secret"}
            )
            for _ in range(8)
        ]

        def wait_until(true):
            end_s = perf_counter() + 60
            while not true(server.status()["tenants"]["vision"]):
                assert perf_counter() < end_s
                sleep(0.005)

        wait_until(lambda vision: vision["queue_length"] >= 2)
        for call in calls:
            call.cancel()
        wait_until(lambda vision: vision["queue_length"] == 0)
        assert server.status()["tenants"]["vision"]["requests"]["cancelled"] >= 1
        assert server.infer().shape == (1, 10)


@pytest.mark.long
def test_a_flood_does_not_starve_the_other(models):
    """Relative to itself: flooded, the other's requests still run at no less than its share of the device."""
    with running(config(vision={"queue_limit": 256}), models) as server, ThreadPoolExecutor(33) as pool:
        x = np.ones((1, 32), np.int64)

        def modest():
            tensor = grpcclient.InferInput("tokens", [1, 32], "INT64")
            tensor.set_data_from_numpy(x)
            began = perf_counter()
            server.client().infer("transformer", [tensor], headers={"authorization": "Bearer text-secret"})
            return perf_counter() - began

        done = threading.Event()

        def flood():
            client = server.client()
            while not done.is_set():
                server.infer("large", client=client)

        floods = [pool.submit(flood) for _ in range(32)]
        end_s = perf_counter() + 120
        while server.status()["tenants"]["vision"]["queue_length"] <= 10:
            assert perf_counter() < end_s
            sleep(0.02)
        for _ in range(30):
            modest()
        order = server.status()["tenants"]
        done.set()
        for future in floods:
            future.result(60)
    assert order["text"]["requests"]["ok"] == 30
    assert order["vision"]["queue_length"] > 10  # it kept flooding all the while


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"models": [{"name": "m", "path": "broken.onnx"}]}, "broken.onnx.*expected an ONNX model"),
        ({"models": [{"name": "m", "path": "absent.onnx"}]}, "absent.onnx"),
        ({"clock_mhz": 900.0}, "clock_mhz"),
        ({"models": [{"name": "m", "path": "resnet.onnx", "profile": "tx2-resnet18"}]}, "device.*Jetson TX2"),
    ],
)
def test_a_configuration_that_cannot_be_served(wrong, said, models):
    with pytest.raises(InputError, match=said):
        open_session(config(vision=wrong), models).close()
