"""An unmodified tritonclient, over both transports."""

from __future__ import annotations

import asyncio
import re
import threading
import warnings

import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of gevent, at import
    rest = pytest.importorskip("tritonclient.http")
    pytest.importorskip("tritonclient.http.aio")
    from tritonclient import grpc as rpc
    from tritonclient.grpc import aio as rpc_aio
    from tritonclient.http import aio as rest_aio
    from tritonclient.utils import InferenceServerException

from commonwatt import __version__
from tests.serving.fake import ANN, BOB, KINDS


def key():
    """Anew each time, as tritonclient.http adds its own headers to the dictionary it is given."""
    return {"authorization": f"Bearer {ANN}"}


SAMPLES = {
    "BOOL": np.array([[True, False]]), "BYTES": np.array([[b"", "\u00e9t\u00e9".encode()]], object),
    **{kind: np.array([[0, 100]], kind.lower()) for kind in KINDS if "INT" in kind},
    "FP16": np.array([[0.5, -2]], np.float16), "FP32": np.array([[0.1, -2e30]], np.float32),
    "FP64": np.array([[0.1, -2e300]], np.float64),
}  # fmt: skip


@pytest.fixture(params=["http", "grpc"])
def transport(request):
    return request.param


@pytest.fixture
def client(served, transport):
    made = (
        rest.InferenceServerClient(served.at.rest) if transport == "http" else rpc.InferenceServerClient(served.at.grpc)
    )
    yield made
    made.close()


def given(transport, name, array, kind, *, binary=True):
    module = rest if transport == "http" else rpc
    made = module.InferInput(name, list(array.shape), kind)
    made.set_data_from_numpy(array, **({"binary_data": binary} if transport == "http" else {}))
    return made


def wanted(transport, name, *, binary=True):
    return (
        rest.InferRequestedOutput(name, binary_data=binary) if transport == "http" else rpc.InferRequestedOutput(name)
    )


def floats(transport, array=None):
    return [given(transport, "x", np.ones((2, 3), np.float32) if array is None else array, "FP32")]


def test_the_server_tells_of_itself_without_a_key(client, transport):
    assert client.is_server_live()
    assert client.is_server_ready()
    told = client.get_server_metadata()
    told = told if transport == "http" else {"name": told.name, "version": told.version, "extensions": told.extensions}
    assert (told["name"], told["version"]) == ("commonwatt", __version__)
    assert "binary_tensor_data" in told["extensions"]


def test_metadata_of_a_model(client, transport):
    more = {} if transport == "http" else {"as_json": True}
    told = client.get_model_metadata("two", headers=key(), **more)
    assert (told["name"], told["versions"], told["platform"]) == ("two", ["1"], "onnxruntime_onnx")
    assert [(row["name"], row["datatype"]) for row in told["inputs"]] == [("a", "FP32"), ("b", "INT64")]
    assert [int(length) for length in told["inputs"][0]["shape"]] == [2]
    assert client.is_model_ready("two", "1", headers=key())
    assert not client.is_model_ready("asleep", headers=key())


@pytest.mark.parametrize("kind", KINDS)
def test_every_datatype_comes_back_as_it_was(client, transport, kind):
    sent = SAMPLES[kind]
    result = client.infer(f"echo-{kind}", [given(transport, "x", sent, kind)], headers=key())
    got = result.as_numpy("x")
    assert got.dtype == sent.dtype
    assert got.tolist() == sent.tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("into", "out"), [(False, False), (False, True), (True, False)])
def test_rest_in_json_and_in_part_in_json(served, kind, into, out):
    sent = SAMPLES[kind]
    with rest.InferenceServerClient(served.at.rest) as client:
        inputs = [given("http", "x", sent, kind, binary=into)]
        outputs = [wanted("http", "x", binary=out)]
        got = client.infer(f"echo-{kind}", inputs, outputs=outputs, headers=key()).as_numpy("x")
    strings = [[text.encode() if isinstance(text, str) else text for text in row] for row in got.tolist()]
    assert strings == sent.tolist()


@pytest.mark.parametrize("shape", [(0, 3), (1, 0), (0, 0)])
def test_nothing_at_all(client, transport, shape):
    result = client.infer("echo-FP32", [given(transport, "x", np.zeros(shape, np.float32), "FP32")], headers=key())
    assert result.as_numpy("x").shape == shape


def test_a_scalar(client, transport):
    result = client.infer("scalar-INT64", [given(transport, "x", np.array(7), "INT64")], headers=key())
    assert (result.as_numpy("x").shape, int(result.as_numpy("x"))) == ((), 7)


def test_several_inputs_one_output_and_an_id(client, transport):
    inputs = [
        given(transport, "b", np.array(5), "INT64"),
        given(transport, "a", np.array([1, 2], np.float32), "FP32"),
    ]
    result = client.infer("two", inputs, outputs=[wanted(transport, "sum")], request_id="no 7", headers=key())
    assert result.as_numpy("sum").tolist() == [6, 7]
    assert result.as_numpy("b") is None
    response = result.get_response()
    told = response if transport == "http" else {"id": response.id, "model_version": response.model_version}
    assert (told["id"], told["model_version"]) == ("no 7", "1")


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize("length", [3, 60_000])
def test_compressed_requests(client, transport, algorithm, length):
    name = {"request_compression_algorithm" if transport == "http" else "compression_algorithm": algorithm}
    sent = np.arange(length, dtype=np.float32)
    result = client.infer("big", floats(transport, sent), headers=key(), **name)
    assert np.array_equal(result.as_numpy("y"), sent * 2)


def test_compression_of_answers_may_be_asked_for(served):
    with rest.InferenceServerClient(served.at.rest) as client:
        result = client.infer("double", floats("http"), headers=key(), response_compression_algorithm="gzip")
    assert result.as_numpy("y").tolist() == [[2, 2, 2]] * 2


def test_load_and_unload(client, transport):
    client.unload_model("double", headers=key())
    assert not client.is_model_ready("double", headers=key())
    with pytest.raises(InferenceServerException, match="model 'double' is not ready: unloaded") as error:
        client.infer("double", floats(transport), headers=key())
    assert error.value.status() in {"400", "StatusCode.FAILED_PRECONDITION"}
    rows = client.get_model_repository_index(headers=key())
    rows = (
        rows if transport == "http" else [{"name": m.name, "state": m.state, "reason": m.reason} for m in rows.models]
    )
    (row,) = [row for row in rows if row["name"] == "double"]
    assert (row["state"], row["reason"]) == ("UNAVAILABLE", "unloaded")
    client.load_model("double", headers=key())
    assert client.infer("double", floats(transport), headers=key()).as_numpy("y").sum() == 12
    with pytest.raises(InferenceServerException, match="its file is not ONNX"):
        client.load_model("bad-file", headers=key())
    with pytest.raises(InferenceServerException, match="got parameters, expected none"):
        client.load_model("double", config="{}", headers=key())


@pytest.mark.parametrize(
    ("model", "text", "statuses"),
    [
        ("nothing", "^unknown model 'nothing'$", {"404", "StatusCode.NOT_FOUND"}),
        ("secret", "^unknown model 'secret'$", {"404", "StatusCode.NOT_FOUND"}),  # of another tenant
        ("asleep", "not ready", {"400", "StatusCode.FAILED_PRECONDITION"}),
        ("full", "64 requests wait", {"429", "StatusCode.RESOURCE_EXHAUSTED"}),
        ("gone", "the device is gone", {"503", "StatusCode.UNAVAILABLE"}),
        ("broken", "^the server failed on this request; its log says why$", {"500", "StatusCode.INTERNAL"}),
        ("wrong", "^the server failed on this request; its log says why$", {"500", "StatusCode.INTERNAL"}),
        ("two", "model 'two': got input 'x', expected 'a' and 'b'", {"400", "StatusCode.INVALID_ARGUMENT"}),
    ],
)
def test_errors(client, transport, model, text, statuses):
    with pytest.raises(InferenceServerException) as error:
        client.infer(model, floats(transport), headers=key())
    assert error.value.status() in statuses
    assert re.search(text, error.value.message())


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.ones((2, 4), np.float32), r"model 'double', input 'x': got shape \[2, 4\], expected \[-1, 3\]"),
        (np.ones(3, np.float32), r"got shape \[3\], expected \[-1, 3\]"),
        (np.ones((1, 3)), "got datatype FP64, expected FP32"),
    ],
)
def test_tensors_that_do_not_fit(client, transport, array, text):
    kind = "FP64" if array.dtype == np.float64 else "FP32"
    with pytest.raises(InferenceServerException, match=text):
        client.infer("double", [given(transport, "x", array, kind)], headers=key())


def test_an_output_there_is_not(client, transport):
    with pytest.raises(InferenceServerException, match="got output 'z', expected 'y'"):
        client.infer("double", floats(transport), outputs=[wanted(transport, "z")], headers=key())


def test_versions(client, transport):
    assert client.infer("double", floats(transport), model_version="1", headers=key()).as_numpy("y") is not None
    with pytest.raises(InferenceServerException, match="model 'double' has no version '2', only 1"):
        client.infer("double", floats(transport), model_version="2", headers=key())


def test_several_versions(client, transport):
    as_json = {} if transport == "http" else {"as_json": True}

    def asked(version=""):
        result = client.infer("many", floats(transport), model_version=version, headers=key())
        told = result.get_response() if transport == "http" else result.get_response(as_json=True)
        return result.as_numpy("y").flat[0], told["model_version"]

    assert [asked("1"), asked("2"), asked()] == [(1, "1"), (2, "2"), (2, "2")]  # 10 is not loaded
    with pytest.raises(InferenceServerException, match="'many/10' is not ready: new"):
        asked("10")
    for other in ("3", "02", "latest", "-1"):
        with pytest.raises(InferenceServerException, match=r"'many' has no version .*, only 1, 2, 10") as error:
            asked(other)
        assert error.value.status() in {None, "404", "StatusCode.NOT_FOUND"}
    for version in ("", "2"):
        told = client.get_model_metadata("many", version, headers=key(), **as_json)
        assert told["versions"] == ["1", "2", "10"]
    ready = {n: client.is_model_ready("many", n, headers=key()) for n in ("1", "2", "10", "")}
    assert ready == {"1": True, "2": True, "10": False, "": True}
    config = client.get_model_config("many", "1", headers=key(), **as_json)
    config = config if transport == "http" else config["config"]
    assert [int(n) for n in config["version_policy"]["specific"]["versions"]] == [1, 2, 10]
    stats = client.get_inference_statistics("many", headers=key(), **as_json)["model_stats"]
    assert [(row["name"], row["version"]) for row in stats] == [("many", "1"), ("many", "2"), ("many", "10")]
    (one,) = client.get_inference_statistics("many", "2", headers=key(), **as_json)["model_stats"]
    assert one["version"] == "2"
    index = client.get_model_repository_index(headers=key(), **as_json)
    rows = index if transport == "http" else index["models"]
    assert [(row["version"], row["state"]) for row in rows if row["name"] == "many"] \
        == [("1", "READY"), ("2", "READY"), ("10", "UNAVAILABLE")]  # fmt: skip


@pytest.mark.parametrize("headers", [None, {"authorization": "Bearer nobodys"}, {"x-api-key": "nobodys-key"},
                                     {"authorization": ANN}, {"authorization": f"Basic {ANN}"}])  # fmt: skip
def test_without_a_key_that_fits(client, transport, headers):
    for call in (
        lambda: client.infer("double", floats(transport), headers=dict(headers) if headers else None),
        lambda: client.get_model_metadata("double", headers=headers),
        lambda: client.get_model_repository_index(headers=headers),
        lambda: client.unload_model("double", headers=headers),
    ):
        with pytest.raises(InferenceServerException, match="expected Authorization: Bearer KEY") as error:
            call()
        assert error.value.status() in {"401", "StatusCode.UNAUTHENTICATED"}


def test_each_tenant_sees_its_own(client, transport):
    for headers in (
        {"X-API-Key": BOB} if transport == "http" else {"x-api-key": BOB},
        {"authorization": f"bearer {BOB}"},
    ):
        rows = client.get_model_repository_index(headers=headers)
        names = [row["name"] for row in rows] if transport == "http" else [row.name for row in rows.models]
        assert names == ["secret"]


def test_calls_that_are_not_supported(client, transport):
    with pytest.raises(InferenceServerException) as error:
        client.get_system_shared_memory_status(headers=key())
    assert error.value.status() in {"404", "StatusCode.UNIMPLEMENTED"}


def test_the_configuration_of_a_model(client, transport):
    config = client.get_model_config("double", headers=key(), **({} if transport == "http" else {"as_json": True}))
    config = config.get("config", config)
    assert (config["name"], config["platform"], config["max_batch_size"]) == ("double", "onnxruntime_onnx", 8)
    assert [int(length) for length in config["input"][0]["dims"]] == [3]  # without the batch
    assert config["input"][0]["data_type"] == "TYPE_FP32"
    batching = config["dynamic_batching"]
    assert (batching["preferred_batch_size"], int(batching["max_queue_delay_microseconds"])) == ([4], 100)
    whole = client.get_model_config("two", headers=key(), **({} if transport == "http" else {"as_json": True}))
    whole = whole.get("config", whole)
    assert [int(length) for length in whole["input"][0]["dims"]] == [2]
    assert int(whole.get("max_batch_size", 0)) == 0
    assert "dynamic_batching" not in whole
    with pytest.raises(InferenceServerException, match="'asleep' is not ready: unloaded"):
        client.get_model_config("asleep", headers=key())


def test_the_statistics_of_a_model(client, transport):
    as_json = {} if transport == "http" else {"as_json": True}
    (stats,) = client.get_inference_statistics("double", headers=key(), **as_json)["model_stats"]
    assert (stats["name"], stats["version"]) == ("double", "1")
    assert [int(stats[name]) for name in ("inference_count", "execution_count", "last_inference")] \
        == [5, 3, 1_700_000_000_000]  # fmt: skip
    times = {name: (int(t["count"]), int(t["ns"])) for name, t in stats["inference_stats"].items() if t.get("ns")}
    assert times == {"success": (1, 1500), "queue": (1, 400), "compute_infer": (1, 1100)}
    batches = [(int(b["batch_size"]), int(b["compute_infer"]["ns"])) for b in stats["batch_stats"]]
    assert batches == [(1, 300), (2, 700)]
    names = {row["name"] for row in client.get_inference_statistics(headers=key(), **as_json)["model_stats"]}
    assert {"double", "asleep"} <= names
    assert "secret" not in names


def test_shared_memory_is_refused(client, transport):
    module = rest if transport == "http" else rpc
    shared = module.InferInput("x", [1, 3], "FP32")
    shared.set_shared_memory("region", 12)
    with pytest.raises(InferenceServerException, match=r"shared_memory_region.*not supported"):
        client.infer("double", [shared], headers=key())


def test_asynchronous_clients(served):
    async def both():
        async with rest_aio.InferenceServerClient(served.at.rest) as one:
            got = [(await one.infer("double", floats("http"), headers=key())).as_numpy("y")]
            with pytest.raises(InferenceServerException, match="expected Authorization"):
                await one.infer("double", floats("http"))
        async with rpc_aio.InferenceServerClient(served.at.grpc) as other:
            got.append((await other.infer("double", floats("grpc"), headers=key())).as_numpy("y"))
            with pytest.raises(InferenceServerException, match="expected Authorization"):
                await other.infer("double", floats("grpc"))
        return got

    # in the server's own loop, as gRPC minds several loops in one process
    got = asyncio.run_coroutine_threadsafe(both(), served.loop).result(20)
    assert [array.sum() for array in got] == [12, 12]


def test_a_stream_is_refused_with_a_sentence(served):
    answers, told = [], threading.Event()
    with rpc.InferenceServerClient(served.at.grpc) as client:
        client.start_stream(lambda result, error: (answers.append(error), told.set()), headers=key())
        assert told.wait(120)
        client.stop_stream()
    assert "ModelStreamInfer is not supported by this server" in str(answers[0])
