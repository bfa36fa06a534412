"""Requests too large, too slow, given up, or too many: each has its answer, and none is in another's way."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from tests.serving.fake import ANN, Served
from tests.serving.wire import Wire, x

grpc = pytest.importorskip("grpc")
METADATA = (("authorization", f"Bearer {ANN}"),)
HEAD = f"POST /v2/models/double/infer HTTP/1.1\r\nHost: x\r\nX-API-Key: {ANN}\r\n"


@pytest.fixture
def stub(served):
    services = pytest.importorskip("tritonclient.grpc.service_pb2_grpc")
    with grpc.insecure_channel(served.at.grpc, options=[("grpc.max_send_message_length", -1)]) as channel:
        yield services.GRPCInferenceServiceStub(channel)


def request(name, *inputs, raw=(), **more):
    pb = pytest.importorskip("tritonclient.grpc.service_pb2")
    made = pb.ModelInferRequest(model_name=name, raw_input_contents=raw, **more)
    for tensor in inputs:
        made.inputs.add(**tensor)
    return made


def floats(name="x", shape=(1, 3), datatype="FP32", **more):
    return {"name": name, "datatype": datatype, "shape": shape, **more}


def refused(call, *arguments, **more):
    with pytest.raises(grpc.RpcError) as error:
        call(*arguments, metadata=METADATA, **more)
    return error.value.code().name, error.value.details(), dict(error.value.trailing_metadata())


def test_back_pressure(wire, stub):
    status, answer, headers = wire.infer("full", x())
    assert (status, headers["retry-after"], answer) == (429, "2", {"error": "tenant 'ann': 64 requests wait"})
    status, answer, headers = wire.infer("gone", x())
    assert (status, headers["retry-after"]) == (503, "1")
    full = request("full", floats(), raw=[bytes(12)])
    code, text, trailing = refused(stub.ModelInfer, full)
    assert (code, text, trailing["retry-after"]) == ("RESOURCE_EXHAUSTED", "tenant 'ann': 64 requests wait", "2")


def test_too_large_by_its_length_is_refused_before_it_is_sent(wire):
    with wire.raw() as socket:
        socket.sendall(HEAD.encode() + b"Content-Length: 999999999\r\n\r\n")
        answer = socket.recv(2000)
        while b"}" not in answer:
            answer += socket.recv(2000)
    assert b" 413 " in answer
    assert b"more than 4000000 bytes" in answer


def test_too_large_in_chunks_is_refused_before_it_ends(wire):
    with wire.raw() as socket:
        socket.sendall(HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"%x\r\n%s\r\n" % (1_000_000, bytes(1_000_000))
        for _ in range(5):
            socket.sendall(chunk)
        assert b" 413 " in socket.recv(2000)  # though the body never ends


def test_a_client_that_sends_all_of_what_is_too_large_still_reads_why(wire):
    assert "server.largest_request_mb" in wire.error("double", bytes(30_000_000), status=413)
    assert wire.infer("double", x())[0] == 200  # on the same connection


def test_too_large_over_grpc(stub):
    large = request("big", floats(shape=[2_000_000]), raw=[bytes(8_000_000)])
    code, text, _ = refused(stub.ModelInfer, large)
    assert code == "RESOURCE_EXHAUSTED"
    assert "4000000" in text


@pytest.mark.slow
def test_a_bomb_over_grpc(stub):
    bomb = request("big", floats(shape=[25_000_000]), raw=[bytes(100_000_000)])
    code, text, _ = refused(stub.ModelInfer, bomb, compression=grpc.Compression.Gzip)
    assert code == "RESOURCE_EXHAUSTED"
    assert "larger than max" in text


def test_slow_and_half_open_clients_do_not_block_others(served, wire):
    idle = [wire.raw() for _ in range(20)]
    for place, socket in enumerate(idle):
        socket.sendall(HEAD.encode()[: 10 + place] if place % 2 else HEAD.encode() + b"Content-Length: 100\r\n\r\n{")
    begin = time.monotonic()
    assert wire.infer("double", x())[0] == 200
    assert time.monotonic() - begin < 55  # after 60 s the others are given up
    for socket in idle:
        socket.close()


def test_a_body_that_stalls_is_given_up(monkeypatch, wire):
    monkeypatch.setattr("commonwatt.serving.rest_body.PATIENCE_S", 0.1)
    with wire.raw() as socket:
        socket.sendall(HEAD.encode() + b"Content-Length: 100\r\n\r\n{")
        assert b" 408 " in socket.recv(2000)


@pytest.mark.slow
def test_a_client_that_goes_away_cancels_its_request():
    with Served() as server, Wire(server.at.rest, ANN) as wire:
        body = json.dumps(x()).encode()
        with wire.raw() as socket:
            socket.sendall(HEAD.replace("double", "slow").encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert server.backend.begun.wait(120)
        assert server.backend.given_up.wait(120)
        assert wire.infer("double", x())[0] == 200


@pytest.mark.long
def test_a_call_that_is_cancelled_cancels_its_request():
    services = pytest.importorskip("tritonclient.grpc.service_pb2_grpc")
    for end, deadline_s in (("cancel", None), ("deadline", 5.0)):
        with Served() as server, grpc.insecure_channel(server.at.grpc) as channel:
            slow = request("slow", floats(), raw=[bytes(12)])
            stub = services.GRPCInferenceServiceStub(channel)
            call = stub.ModelInfer.future(slow, metadata=METADATA, timeout=deadline_s)
            assert server.backend.begun.wait(120)
            if end == "cancel":
                call.cancel()
            assert server.backend.given_up.wait(120)


RAW = [bytes(12)]


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda: request("double"), "got no input 'x'"),
        (lambda: request("double", floats(), floats(), raw=RAW * 2), "got input 'x' twice"),
        (lambda: request("double", floats(), raw=RAW * 2), "got 2 raw_input_contents for 1 inputs"),
        (lambda: request("double", floats("z"), raw=RAW), "got input 'z', expected 'x'"),
        (lambda: request("double", floats(shape=[-1, 3]), raw=RAW), "lengths of 0 or more"),
        (lambda: request("double", floats(shape=[3]), raw=RAW), "got shape [3], expected [-1, 3]"),
        (lambda: request("double", floats(shape=[2, 3]), raw=RAW), "got 12 bytes of data, expected 24"),
        (lambda: request("double", floats(shape=[2**62, 3]), raw=RAW), "1152921504606846976 bytes"),
        (lambda: request("double", floats(datatype="BF16"), raw=RAW), "BF16, which is not supported"),
        (lambda: request("double", floats(datatype="INT32"), raw=RAW), "got datatype INT32, expected FP32"),
        (lambda: request("double", floats(contents={"fp32_contents": [1, 2]})), "got 2 elements, expected 3"),
        (lambda: request("double", floats(contents={"int_contents": [1, 2, 3]})), "got int_contents, expected fp32"),
        (lambda: request("double", floats(contents={"fp32_contents": [1]}), raw=RAW), "both contents and raw_input"),
        (lambda: request("double", floats()), "got 0 elements, expected 3"),
        (lambda: request("echo-FP16", floats(datatype="FP16")), "no typed contents for FP16"),
        (lambda: request("echo-INT8", floats(datatype="INT8", contents={"int_contents": [1, 2, 300]})), "got 300"),
        (lambda: request("double", floats(), raw=RAW, outputs=[{"name": "z"}]), "got output 'z', expected 'y'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "call",
)  # fmt: skip
def test_calls_that_are_wrong(stub, made, text):
    code, got, _ = refused(stub.ModelInfer, made())
    assert code == "INVALID_ARGUMENT"
    assert text in got


def test_typed_contents_over_grpc(stub):
    response = stub.ModelInfer(request("double", floats(contents={"fp32_contents": [1, 2, 3]})), metadata=METADATA)
    assert np.frombuffer(response.raw_output_contents[0], "<f4").tolist() == [2, 4, 6]
