"""A server that is told to stop answers what it accepted, and says no to the rest."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from commonwatt.model.errors import InputError, MissingExtraError
from commonwatt.model.timeslice_file import ModelServerSpec
from commonwatt.serving.server import Addresses, serve
from tests.serving.fake import ANN, KEYS, FakeBackend, Served, skip_without_the_extra
from tests.serving.test_limits import METADATA, floats, request
from tests.serving.wire import Wire, x

grpc = pytest.importorskip("grpc")


def ask_slow(server, answers):
    """Ask for something slow over both transports, in threads."""
    services = pytest.importorskip("tritonclient.grpc.service_pb2_grpc")

    def rest():
        with Wire(server.at.rest, ANN) as wire:
            answers["rest"] = wire.infer("slow", x())

    def rpc():
        with grpc.insecure_channel(server.at.grpc) as channel:
            stub = services.GRPCInferenceServiceStub(channel)
            try:
                answers["grpc"] = stub.ModelInfer(request("slow", floats(), raw=[bytes(12)]), metadata=METADATA)
            except grpc.RpcError as error:
                answers["grpc"] = error

    threads = [threading.Thread(target=call) for call in (rest, rpc)]
    for thread in threads:
        thread.start()
    until(lambda: len(server.backend.seen) == 2)
    return threads


def until(true, longest_s=120):
    end = time.monotonic() + longest_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
def test_what_was_accepted_is_answered_and_the_rest_refused():
    answers = {}
    with Served() as server, Wire(server.at.rest, ANN) as wire:
        assert wire.ask("GET", "/v2/health/ready")[0] == 200
        threads = ask_slow(server, answers)
        server.soon(server.stop.set)
        until(lambda: wire.ask("GET", "/v2/health/ready")[0] == 503)
        assert wire.ask("GET", "/v2/health/live")[0] == 200
        status, answer, headers = wire.infer("double", x())
        assert (status, headers["retry-after"], answer) == (503, "1", {"error": "the server is stopping"})
        assert headers["connection"] == "close"
        assert wire.ask("POST", "/v2/repository/models/double/unload")[0] == 503
        server.soon(server.backend.go.set)
        server.end()
        for thread in threads:
            thread.join(120)
    assert answers["rest"][0] == 200
    assert answers["grpc"].raw_output_contents == [bytes(12)]


@pytest.mark.slow
def test_what_takes_too_long_is_refused_not_lost():
    answers = {}
    with Served(drain_s=0.2) as server:
        stalled = Wire(server.at.rest).raw()
        stalled.sendall(f"POST /v2/models/double/infer HTTP/1.1\r\nX-API-Key: {ANN}\r\nHost: x\r\n".encode())
        stalled.sendall(b"Content-Length: 9\r\n\r\n{")  # and never the rest
        threads = ask_slow(server, answers)
        server.soon(server.stop.set)
        server.end()
        for thread in threads:
            thread.join(120)
        assert b" 503 " in stalled.recv(1000)
        stalled.close()
    assert (answers["rest"][0], answers["rest"][1]) == (
        503,
        {"error": "the server stopped before this request was answered"},
    )
    assert answers["grpc"].code() == grpc.StatusCode.UNAVAILABLE
    assert "stopped before" in answers["grpc"].details()
    assert server.backend.given_up.is_set()


@pytest.mark.slow
def test_no_answer_is_lost_under_load():
    class Busy(FakeBackend):
        served = 0

        async def infer(self, tenant, name, inputs):
            await asyncio.sleep(0.01)
            self.served += 1
            return {"y": inputs["x"]}

    answers = []

    def ask():
        with Wire(server.at.rest, ANN) as wire:
            while True:
                try:
                    answers.append(wire.infer("double", x())[0])
                except ConnectionError:  # refused, or closed before the request was sent: never accepted
                    return

    with Served(backend=Busy()) as server:
        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        until(lambda: len(answers) > 100)
        server.soon(server.stop.set)
        server.end()
        for thread in threads:
            thread.join(120)
    assert set(answers) <= {200, 503}
    assert answers.count(200) == server.backend.served


@pytest.mark.parametrize("field", ["rest_port", "grpc_port"])
def test_a_port_in_use(field):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with (
            pytest.raises(InputError, match=rf"field 'server.{field}': got '{port}', expected a free port"),
            Served(**{field: port}),
        ):
            pass


@pytest.mark.slow
def test_a_host_there_is_not():
    for host in ("no-such-host.invalid", "192.0.2.1"):
        with pytest.raises(InputError, match=r"field 'server\.(host|rest_port)'"), Served(host=host):
            pass


def test_addresses():
    assert (Addresses("::1", 80, 81).rest, Addresses("::1", 80, 81).grpc) == ("[::1]:80", "[::1]:81")


@pytest.mark.parametrize(("module", "package"), [("uvicorn", "uvicorn"), ("starlette.applications", "starlette"),
                         ("prometheus_client", "prometheus-client"), ("grpc.aio", "grpcio")])  # fmt: skip
def test_without_the_extra(monkeypatch, module, package):
    skip_without_the_extra()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"{package} is not installed; run: pip install 'commonwatt\[serve\]'"):
        Served().start()


PROGRAM = """
import asyncio, sys
from tests.serving.fake import FakeBackend, KEYS
from commonwatt.model.timeslice_file import ModelServerSpec
from commonwatt.serving.server import serve
spec = ModelServerSpec(rest_port=0, grpc_port=0, drain_s=float(sys.argv[1]))

class Telling(FakeBackend):
    async def _wait(self):
        print("accepted", flush=True)
        await super()._wait()

asyncio.run(serve(Telling(), KEYS, spec, on_ready=lambda at: print(at.rest, at.grpc, flush=True)))
print("ended", flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize(("signals", "drain_s"), [([signal.SIGTERM], 0), ([signal.SIGINT], 0.3),
                         ([signal.SIGTERM, signal.SIGINT], 3600)])  # fmt: skip
def test_signals_of_a_program(signals, drain_s):
    skip_without_the_extra()
    command = [sys.executable, "-c", PROGRAM, str(drain_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        rest = process.stdout.readline().split()[0]
        answers = []
        with Wire(rest, ANN) as wire:
            assert wire.infer("double", x())[0] == 200

        def ask():
            with Wire(rest, ANN) as wire:
                answers.append(wire.infer("slow", x()))

        slow = threading.Thread(target=ask)
        slow.start()
        assert process.stdout.readline() == "accepted\n"
        for number in signals:
            process.send_signal(number)
            time.sleep(0.2)  # two signals at once may come in either order
        out, err = process.communicate(timeout=120)  # far less than the longest time to drain
        slow.join(120)
    assert (process.returncode, out) == (0, "ended\n")
    assert "Traceback" not in err
    assert answers[0][0] == 503


@pytest.mark.slow
def test_nothing_is_left_open():
    with Served() as server:
        at = server.at
    for address in (at.rest, at.grpc):
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", int(address.rsplit(":", 1)[1])))


@pytest.mark.slow
def test_serving_is_a_coroutine_that_may_be_cancelled():
    skip_without_the_extra()

    async def main():
        up = asyncio.Event()
        spec = ModelServerSpec(rest_port=0, grpc_port=0)
        task = asyncio.create_task(serve(FakeBackend(), KEYS, spec, on_ready=lambda _: up.set(), stop=asyncio.Event()))
        await asyncio.wait_for(up.wait(), 120)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with ThreadPoolExecutor(1) as elsewhere:  # a browser another test left open has a loop in this thread
        elsewhere.submit(asyncio.run, main()).result(240)
