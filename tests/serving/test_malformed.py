"""Whatever a client sends over REST, it is told what is wrong with it: 4xx, never 5xx."""

from __future__ import annotations

import gzip
import json
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving.fake import ANN, Served
from tests.serving.wire import Wire, x

HEADER = "Inference-Header-Content-Length"


def binary(document, data):
    text = json.dumps(document).encode()
    return text + data, {HEADER: str(len(text))}


def described(size=12, **more):
    return {"name": "x", "datatype": "FP32", "shape": [1, 3], "parameters": {"binary_data_size": size}, **more}


def test_what_is_right_works(wire):
    status, answer, _ = wire.infer("double", x())
    assert (status, answer["outputs"][0]["data"]) == (200, [2, 4, 6])
    body, headers = binary({"inputs": [described()]}, np.ones(3, np.float32).tobytes())
    status, answer, headers = wire.infer("double", body, headers)
    assert (status, answer["outputs"][0]["data"]) == (200, [2, 2, 2])
    assert HEADER not in headers


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[1]", "got JSON that is an array, expected an object"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, NaN]}]}', "NaN is not JSON"),
        (b'{"inputs": ' + b"[" * 100_000, "nested too deep"),
        (b'{"inputs": [' + b"9" * 5000 + b"]}", "not JSON (a number of thousands of digits)"),
        (b"null", "got JSON that is null, expected an object"),
        (b"3", "got JSON that is a number, expected an object"),
        ({}, "no list of inputs"),
        ({"inputs": {}}, "no list of inputs"),
        ({"inputs": [1]}, "no list of inputs"),
        ({"inputs": [{"name": 3}]}, "no list of inputs"),
        ({"inputs": []}, "model 'double': got no input 'x', expected 'x'"),
        ({"inputs": [{"name": "x"}]}, "input 'x': got datatype None"),
        ({**x(), "id": 3}, "got an id that is not a string"),
        ({**x(), "parameters": []}, "parameters that are not an object"),
        ({**x(), "parameters": {"binary_data_output": 1}}, "not a boolean"),
        ({**x(), "outputs": 3}, "no list of outputs"),
        ({**x(), "outputs": [{"name": "z"}]}, "model 'double': got output 'z', expected 'y'"),
        ({**x(), "outputs": [{"name": "y"}, {"name": "y"}]}, "got output 'y' twice"),
        ({**x(), "outputs": [{"name": "y", "parameters": {"classification": 2}}]}, "'classification', expected none"),
        ({"inputs": x()["inputs"] * 2}, "got input 'x' twice"),
        ({"inputs": [*x()["inputs"], {**x()["inputs"][0], "name": "n"}]}, "got input 'n', expected 'x'"),
        (x(datatype="FP64"), "model 'double', input 'x': got datatype FP64, expected FP32"),
        (x(datatype="BF16"), "BF16, which is not supported"),
        (x(shape=[3]), "got shape [3], expected [-1, 3] (-1: any length)"),
        (x(shape=[1, 4]), "got shape [1, 4], expected [-1, 3]"),
        (x(shape=[-1, 3]), "got shape [-1, 3], expected lengths of 0 or more"),
        (x(shape=[2, 3]), "got 3 elements, expected 6"),
        (x(shape=[2**50, 3]), "got 3 elements, expected"),
        (x(shape=[2**70, 3]), "1152921504606846976 bytes"),
        (x(data=[[1, 2], [3]]), "got 2 of them at depth 1"),
        (x(data=[[1, 2]]), "got 2 of them at depth 2"),
        (x(data=["1", 2, 3]), "got '1', expected a number for each FP32"),
        (x(parameters={"shared_memory_region": "r"}), "not supported"),
        (x(parameters={"binary_data_size": 12}), "both data and binary_data_size"),
        ({"inputs": [described()]}, f"without the header {HEADER}"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3]}]}, "neither data nor binary_data_size"),
    ],
    ids=lambda value: value if isinstance(value, str) else "body",
)
def test_json_that_is_wrong(wire, body, text):
    assert text in wire.error("double", body)


@pytest.mark.parametrize(
    ("document", "data", "header", "text"),
    [
        (
            {"inputs": [described()]},
            bytes(11),
            None,
            "got binary_data_size 12, expected at most the remaining 11 bytes",
        ),
        ({"inputs": [described()]}, bytes(13), None, "got 13 bytes of binary data, expected the 12"),
        ({"inputs": [described(8)]}, bytes(8), None, "got 8 bytes of data, expected 12 for FP32 of shape [1, 3]"),
        ({"inputs": [described(-1)]}, bytes(12), None, "not a number of bytes"),
        ({"inputs": [described(size=True)]}, bytes(12), None, "not a number of bytes"),
        ({"inputs": [described("12")]}, bytes(12), None, "not a number of bytes"),
        ({"inputs": [described(10**30)]}, bytes(12), None, "more than 10^18"),
        ({"inputs": [described()]}, bytes(12), "99999", "got Inference-Header-Content-Length 99999, expected at most"),
        ({"inputs": [described()]}, bytes(12), "-1", "not a number of bytes"),
        ({"inputs": [described()]}, bytes(12), "1e3", "not a number of bytes"),
        ({"inputs": [described()]}, bytes(12), "", "not a number of bytes"),
        ({"inputs": [described()]}, bytes(12), "5", "not JSON"),
    ],
)
def test_binary_data_that_are_wrong(wire, document, data, header, text):
    body, headers = binary(document, data)
    assert text in wire.error("double", body, headers if header is None else {HEADER: header})


@pytest.mark.slow
def test_json_is_for_small_tensors():
    with Served(largest_request_mb=20) as server, Wire(server.at.rest, ANN) as wire:
        text = wire.error("big", x(data=[0.0] * 2_000_000, shape=[2_000_000]), status=413)
        assert "expected at most 8000000; send large tensors as binary data" in text


def test_values_that_json_cannot_carry_are_to_be_asked_for_as_binary_data(wire):
    assert "model 'nan': output 'y' contains NaN or infinity" in wire.error("nan", x())
    status, _, headers = wire.infer("nan", {**x(), "parameters": {"binary_data_output": True}})
    assert (status, headers["content-type"]) == (200, "application/octet-stream")


def test_text_that_is_hostile_stays_text(wire):
    for name in ("a\nb", "\x1b[31m", "\ud800", "n" * 5000):
        text = wire.error("double", {"inputs": [{**x()["inputs"][0], "name": name}]})
        assert text.isascii()
        assert text.isprintable()
        assert len(text) < 300


@pytest.mark.parametrize(
    ("body", "coding", "text"),
    [
        (b"not packed", "gzip", "not gzip, expected gzip as Content-Encoding says"),
        (b"not packed", "deflate", "not deflate"),
        (gzip.compress(json.dumps(x()).encode(), mtime=0)[:-3], "gzip", "truncated"),
        (gzip.compress(b"{}", mtime=0) * 2, "gzip", "trailing bytes"),
        (b"", "gzip", "truncated"),
        (b"{}", "br", "expected gzip, deflate or identity"),
    ],
    ids=["gzip", "deflate", "short", "two", "empty", "unknown"],
)
def test_compression_that_is_wrong(wire, body, coding, text):
    assert text in wire.error("double", body, {"Content-Encoding": coding})


@pytest.mark.slow
@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_a_bomb_is_not_unpacked(wire, pack):
    bomb = pack(bytes(200_000_000))
    assert len(bomb) < 250_000
    coding = "gzip" if pack is gzip.compress else "deflate"
    assert "more than 4000000 bytes" in wire.error("double", bomb, {"Content-Encoding": coding}, status=413)


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [
        ("GET", "/", 404), ("GET", "/v2/", 404), ("GET", "/v2/models", 404), ("GET", "/v2/models/double/infer", 405),
        ("POST", "/v2/models/double/stats", 405), ("POST", "/v2/models/double/versions/2/infer", 404),
        ("GET", "/v2/models/a%2Fb", 404), ("GET", "/v2/models/%ff", 404), ("DELETE", "/v2", 405),
        ("POST", "/v2/models/../../metrics/infer", 404), ("GET", "/v2/models/nothing/config", 404),
        ("GET", "/v2/models/nothing/stats", 404), ("GET", "/v2/models/asleep/config", 400),
        ("GET", "/v2/models/double/versions/2/stats", 404),
    ],
)  # fmt: skip
def test_paths_there_are_not(wire, verb, path, status):
    got, answer, _ = wire.ask(verb, path)
    assert got == status
    assert list(answer) == ["error"]


def test_bytes_that_are_not_http(wire):
    for sent in (b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET\r\n\r\n", b"POST /v2 HTTP/1.1\r\nContent-Length: x\r\n\r\n"):
        with wire.raw() as socket:
            socket.sendall(sent)
            assert b" 400 " in socket.recv(1000)


def test_a_flood_of_them_is_not_a_flood_of_lines(wire, caplog):
    for _ in range(20):
        with wire.raw() as socket:
            socket.sendall(b"no\r\n\r\n")
            assert b" 400 " in socket.recv(1000)
    assert len(caplog.records) < 5


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)
TENSORS = st.fixed_dictionaries(
    {"name": st.just("x") | ANYTHING},
    optional={
        "datatype": st.sampled_from(["FP32", "BYTES"]) | ANYTHING,
        "shape": st.lists(st.integers(-1, 3), max_size=3) | ANYTHING,
        "data": st.lists(st.floats(width=32), max_size=9) | ANYTHING,
        "parameters": st.fixed_dictionaries({"binary_data_size": st.integers(-1, 20) | ANYTHING}) | ANYTHING,
    },
)
BODIES = st.fixed_dictionaries(
    {"inputs": st.lists(TENSORS, max_size=2) | ANYTHING},
    optional={"id": ANYTHING, "outputs": st.lists(TENSORS, max_size=2) | ANYTHING, "parameters": ANYTHING},
)


@pytest.mark.long
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(
    body=BODIES,
    data=st.binary(max_size=20),
    header=st.none() | st.integers(-5, 40),
    coding=st.sampled_from([None, "gzip"]),
)
def test_any_body(served, body, data, header, coding):
    text = json.dumps(body).encode()
    headers = {} if header is None else {HEADER: str(len(text) + min(header, 3) if header < 20 else header)}
    if coding:
        headers["Content-Encoding"] = coding
    sent = text + (b"" if header is None else data)
    with Wire(served.at.rest, ANN) as wire:
        status, answer, _ = wire.infer("double", gzip.compress(sent) if coding else sent, headers)
    assert status == 200 or (400 <= status < 500 and list(answer) == ["error"])


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(body=st.binary(max_size=60), header=st.none() | st.text(st.characters(min_codepoint=33, max_codepoint=126)))
def test_any_bytes(served, body, header):
    headers = {} if header is None else {HEADER: header}
    with Wire(served.at.rest, ANN) as wire:
        status, answer, _ = wire.infer("double", body, headers)
    assert 400 <= status < 500
    assert list(answer) == ["error"]
