"""OpenAI's API, asked by the unmodified openai client and by hand: a real server, real networks, several tenants."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("starlette")
pytest.importorskip("tritonclient.grpc")
openai = pytest.importorskip("openai")

from commonwatt.devices.language.decoder import ByteCoder, load_decoder, write_decoder  # noqa: E402
from commonwatt.devices.tiny_models import write_tiny_models  # noqa: E402
from commonwatt.model.errors import DeviceError  # noqa: E402
from commonwatt.model.timeslice_file import TimesliceConfig  # noqa: E402
from tests.devices.language.made import RUNTIME, Bench  # noqa: E402
from tests.serving.test_sharing import running  # noqa: E402
from tests.serving.wire import Wire  # noqa: E402

pytestmark = pytest.mark.slow

GREEDY = {"model": "tiny", "temperature": 0}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_decoder(folder / "tiny.npz", context_tokens=512)
    write_tiny_models(folder, kinds=["resnet"])
    return folder


def config(**more):
    tiny = {"name": "tiny", "path": "tiny.npz", "language": {"kv_cache_tokens": 600, "max_sequences": 4}}
    late = {"name": "late", "path": "tiny.npz", "language": {}, "load_at_start": False}
    image = [] if more.get("policy") == "vtc" else [{"name": "resnet", "path": "resnet.onnx"}]
    tenants = [
        {"name": "ann", "key": "key-of-ann", "models": [tiny, late, *image], **more.pop("ann", {})},
        {"name": "bob", "key": "key-of-bob", "models": [{**tiny, "language": {"kv_cache_tokens": 100_000}}]},
    ]
    document = {"device": {"kind": "cpu"}, "quantum_s": 0.05, "tenants": tenants, "measured": None}
    document["server"] = {"rest_port": 0, "grpc_port": 0, "operator_key": "operator-secret", "drain_s": 10}
    return TimesliceConfig.model_validate(document | more)


@pytest.fixture(scope="module")
def server(models):
    with running(config(), models) as server:
        yield server


def client_of(server, key="key-of-ann"):
    return openai.OpenAI(base_url=f"http://{server.where.rest}/v1", api_key=key, max_retries=0)


@pytest.fixture
def client(server):
    with client_of(server) as client:
        yield client


@pytest.fixture
def wire(server):
    with Wire(server.where.rest, "key-of-ann") as wire:
        yield wire


@pytest.fixture(scope="module")
def expected(models):
    """Answers of the model by itself: a request after the other, without a server."""
    model = load_decoder(models / "tiny.npz", RUNTIME)

    def answer(prompt, max_tokens):
        bench = Bench(model)
        request, _ = bench.ask(ByteCoder().encode(prompt) if isinstance(prompt, str) else prompt, max_tokens)
        bench.run()
        return "".join(request.told), request.answer

    return answer


def test_a_completion_is_the_models(client, expected):
    done = client.completions.create(prompt="Once upon", max_tokens=20, **GREEDY)
    text, answer = expected("Once upon", 20)
    assert (done.choices[0].text, done.choices[0].finish_reason) == (text, answer.finish)
    assert (done.object, done.model, done.choices[0].index) == ("text_completion", "tiny", 0)
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (10, len(answer.tokens))
    assert done.usage.total_tokens == 10 + len(answer.tokens)


def test_a_stream_adds_up_to_the_whole(client):
    whole = client.completions.create(prompt="Once upon", max_tokens=40, **GREEDY)
    chunks = list(
        client.completions.create(
            prompt="Once upon", max_tokens=40, stream=True, stream_options={"include_usage": True}, **GREEDY
        )
    )
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)
    assert {c.id for c in chunks} == {chunks[0].id}
    assert len(chunks) > 10


def test_a_chat_whole_and_as_a_stream(client, expected):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße, 世界"}]
    done = client.chat.completions.create(messages=messages, max_completion_tokens=24, **GREEDY)
    text, _ = expected(ByteCoder().chat(messages), 24)
    assert (done.object, done.choices[0].message.role, done.choices[0].message.content) == (
        "chat.completion", "assistant", text,
    )  # fmt: skip
    chunks = list(client.chat.completions.create(messages=messages, max_tokens=24, stream=True, **GREEDY))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == text
    assert chunks[-1].choices[0].finish_reason == "length"
    assert all(c.object == "chat.completion.chunk" and c.usage is None for c in chunks)


def test_parts_of_a_message_are_put_together(client):
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    answers = {
        client.chat.completions.create(messages=[{"role": "user", "content": c}], max_tokens=9, **GREEDY)
        .choices[0].message.content
        for c in ("one two", parts)
    }  # fmt: skip
    assert len(answers) == 1


def test_a_prompt_may_be_tokens(client):
    answers = {
        client.completions.create(prompt=p, max_tokens=9, **GREEDY).choices[0].text
        for p in ("abc", ["abc"], [256, 97, 98, 99], [[256, 97, 98, 99]])
    }
    assert len(answers) == 1


def test_the_seed_says_what_is_drawn(client):
    def drawn(seed, **more):
        asked = {"model": "tiny", "prompt": "x", "max_tokens": 30, "seed": seed, **more}
        return client.completions.create(**asked).choices[0].text

    assert drawn(1) == drawn(1) != drawn(2)
    assert drawn(1, top_p=1e-9) == client.completions.create(prompt="x", max_tokens=30, **GREEDY).choices[0].text


def test_stops_end_an_answer_before_themselves(client):
    whole = client.completions.create(prompt="Once", max_tokens=60, **GREEDY).choices[0].text
    stop = whole[20:23]
    place = whole.index(stop)
    for stream in (False, True):
        answer = client.completions.create(prompt="Once", max_tokens=60, stop=["never", stop], stream=stream, **GREEDY)
        parts = [choice for part in (answer if stream else [answer]) for choice in part.choices]
        assert "".join(part.text for part in parts) == whole[:place]
        assert parts[-1].finish_reason == "stop"


def test_models_are_the_tenants_language_models(server, client):
    assert [(m.id, m.owned_by, m.object) for m in client.models.list()] == [("tiny", "ann", "model")]
    assert client.models.retrieve("tiny").id == "tiny"
    for name in ("resnet", "secret", "late"):
        with pytest.raises(openai.APIStatusError, match=name) as refused:
            client.models.retrieve(name)
        assert refused.value.body["code"] == "model_not_found"


@pytest.mark.parametrize("key", ["wrong-key", "key-of-operator"])
def test_an_unknown_key(server, key):
    with client_of(server, key) as client, pytest.raises(openai.AuthenticationError) as refused:
        client.completions.create(prompt="x", **GREEDY)
    assert refused.value.body["type"] == "authentication_error"
    assert refused.value.body["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("changed", "parameter", "text"),
    [
        ({"model": "none"}, "model", "unknown model 'none'"),
        ({"model": "resnet"}, "model", "generates no text"),
        ({"model": 7}, "model", "'model'"),
        ({"prompt": None}, "prompt", "field 'prompt': got null, expected a text, or a list of tokens"),
        ({"prompt": ["a", "b"]}, "prompt", "got 2 prompts, expected one"),
        ({"prompt": []}, None, None),
        ({"prompt": [256, 999]}, "prompt", "token 999"),
        ({"prompt": [-1]}, "prompt", "token -1"),
        ({"prompt": [True]}, "prompt", "field 'prompt.0': got true, expected a token, which is a whole number, or a"),
        ({"prompt": [1.5]}, "prompt", "field 'prompt.0': got 1.5, expected a token, which is a whole number"),
        ({"prompt": {"a": 1}}, "prompt", "got {\"a\": 1}, expected a text, or a list of tokens"),
        ({"prompt": "x" * 600}, "prompt", "601 tokens and max_tokens 1, expected at most 512"),
        ({"max_tokens": 512}, "prompt", "at most 512 together"),
        ({"max_tokens": 0}, "max_tokens", "1 or more"),
        ({"max_tokens": "5"}, "max_tokens", "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens", "max_tokens"),
        ({"temperature": 2.1}, "temperature", "2"),
        ({"temperature": "hot"}, "temperature", "temperature"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"seed": 1.5}, "seed", "seed"),
        ({"seed": 2**64}, "seed", "got 18446744073709551616, expected a number, 18446744073709551615 or less"),
        ({"seed": 2**70}, "seed", "expected a number, 18446744073709551615 or less"),
        ({"stop": ["a"] * 5}, "stop", "up to 4 texts"),
        ({"stop": ""}, "stop", "empty"),
        ({"stream": "yes"}, "stream", "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "without stream"),
        ({"n": 2}, "n", "expected 1, as it is not supported"),
        ({"n": True}, "n", "expected 1"),
        ({"logprobs": 3}, "logprobs", "not supported"),
        ({"logprobs": 0}, "logprobs", "logprobs: got 0, expected false, as it is not supported"),
        ({"echo": True}, "echo", "not supported"),
        ({"best_of": 2}, "best_of", "not supported"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "not supported"),
        ({"presence_penalty": 0.5}, "presence_penalty", "not supported"),
        ({"max_token": 5}, "max_token", "field 'max_token': got 5, expected one of the fields"),
        ({"messages": []}, "messages", "messages"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(wire, changed, parameter, text):
    status, answer, _ = wire.ask("POST", "/v1/completions", {"model": "tiny", "prompt": "x"} | changed)
    if text is None:  # an empty prompt is one: the model begins
        assert status == 200
        return
    assert status == (404 if parameter == "model" and changed["model"] != 7 else 400), answer
    assert list(answer) == ["error"]
    assert list(answer["error"]) == ["message", "type", "param", "code"]
    assert answer["error"]["param"].split(".")[0] == parameter
    assert text in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("message", "parameter"),
    [
        ({"role": "tool", "content": "x"}, "messages.0.role"),
        ({"role": "user"}, "messages.0.content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "messages.0.content"),
        ({"role": "user", "content": 5}, "messages.0.content"),
        ("hello", "messages.0"),
    ],
)
def test_what_is_wrong_in_a_chat_is_said(wire, message, parameter):
    status, answer, _ = wire.ask("POST", "/v1/chat/completions", {"model": "tiny", "messages": [message]})
    assert status == 400
    assert answer["error"]["param"].startswith(parameter)
    assert "Traceback" not in answer["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": "tiny"', b"\xff\xfe", b'"x"', b"[" * 100_000])
def test_a_body_that_is_no_json_object(wire, body):
    status, answer, _ = wire.ask("POST", "/v1/completions", body)
    assert status == 400
    assert list(answer["error"]) == ["message", "type", "param", "code"]


def test_a_body_that_is_too_large(wire):
    status, answer, _ = wire.ask("POST", "/v1/completions", {"model": "tiny", "prompt": "x" * 1_100_000})
    assert (status, answer["error"]["type"]) == (413, "invalid_request_error")
    assert "more than 1000000 bytes" in answer["error"]["message"]
    assert "at most 1 MB where a body has no tensors" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [("POST", "/v1/embeddings", 404), ("POST", "/v1/completions/", 404), ("GET", "/v1/completions", 405),
     ("GET", "/v1", 404)],
)  # fmt: skip
def test_a_route_that_is_not_there_answers_as_the_client_expects(wire, verb, path, status):
    code, answer, _ = wire.ask(verb, path, {} if verb == "POST" else None)
    assert code == status
    error = answer["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, None)
    assert error["message"].startswith(f"got {verb} '{path}', expected a route")


def test_the_largest_seed_is_one(wire):
    asked = {"model": "tiny", "prompt": "x", "max_tokens": 1}
    for seed in (2**63, 2**64 - 1, -(2**63)):
        assert wire.ask("POST", "/v1/completions", {**asked, "seed": seed})[0] == 200


def test_half_characters_are_refused_and_nulls_are_text_like_any(wire):
    status, answer, _ = wire.ask("POST", "/v1/completions", rb'{"model": "tiny", "prompt": "\ud800"}')
    assert (status, "surrogate" in answer["error"]["message"]) == (400, True)
    status, answer, _ = wire.ask("POST", "/v1/completions", rb'{"model": "tiny", "prompt": "\u0000", "seed": 1}')
    assert (status, answer["choices"][0]["finish_reason"]) == (200, "length")


def test_parameters_that_ask_for_nothing_are_accepted(client):
    done = client.completions.create(
        prompt="x", n=1, echo=False, best_of=1, logprobs=None, presence_penalty=0, user="me", logit_bias={}, **GREEDY
    )
    assert done.choices[0].finish_reason == "length"
    assert done.usage.completion_tokens == 16


def test_tensors_are_not_text(server, wire):
    status, answer, _ = wire.infer("tiny", {"inputs": []})
    assert (status, "generates text" in str(answer)) == (400, True)
    done = client_of(server).completions
    with pytest.raises(openai.NotFoundError, match="generates no text"):
        done.create(model="resnet", prompt="x")


@pytest.mark.slow
def test_many_streams_at_once_are_what_each_is_alone(server, expected):
    prompts = [f"{place} " * (1 + 7 * place % 5) for place in range(16)]

    def stream(place):
        with client_of(server, "key-of-bob" if place % 2 else "key-of-ann") as client:
            answer = client.completions.create(prompt=prompts[place], max_tokens=30, stream=True, **GREEDY)
            return "".join(part.choices[0].text for part in answer)

    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(stream, range(16)))
    assert together == [expected(prompt, 30)[0] for prompt in prompts]


def until(condition):
    """Wait until another thread has made it so; a test that hangs fails by its own time limit."""
    waiting = threading.Event()
    while not condition():
        waiting.wait(0.01)


def used(server, tenant):
    return server.status()["tenants"][tenant]["tokens"]["cache_used"]


def test_an_abandoned_stream_frees_its_cache(server):
    with client_of(server) as client:
        stream = client.completions.create(prompt="x", max_tokens=500, stream=True, **GREEDY)
        next(iter(stream))
        before = server.status()["tenants"]["ann"]["requests"]
        stream.close()
        until(lambda: used(server, "ann") == 0)
        after = server.status()["tenants"]["ann"]["requests"]
        assert after["cancelled"] + after["ok"] == before["cancelled"] + before["ok"] + 1
        client.completions.create(prompt="x", max_tokens=500, **GREEDY)  # there is room again


@pytest.mark.slow
def test_requests_wait_for_room_in_the_cache(server):
    """Two answers of 400 tokens do not fit in 600 at a time: one comes after the other."""
    with ThreadPoolExecutor(4) as pool, client_of(server) as client:
        asked = {"prompt": "x", "max_tokens": 400, **GREEDY}
        answers = list(pool.map(lambda _: client.completions.create(**asked), range(4)))
    assert len({answer.choices[0].text for answer in answers}) == 1
    assert used(server, "ann") == 0


@pytest.mark.slow
def test_a_full_queue_is_refused(models):
    with running(config(ann={"queue_limit": 1}), models) as server, client_of(server) as client:
        driver = server.backend.session.driver
        streams = []
        with pytest.raises(openai.RateLimitError) as refused:  # noqa: PT012
            while True:
                streams.append(client.completions.create(prompt="x", max_tokens=400, stream=True, **GREEDY))
        assert refused.value.body["code"] == "rate_limit_exceeded"
        assert int(refused.value.response.headers["retry-after"]) >= 1
        assert driver.scheduler.tenants["ann"].waiting <= 1
        with client_of(server, "key-of-bob") as other:  # nobody else is
            assert other.completions.create(prompt="x", **GREEDY).usage.completion_tokens == 16
        for stream in streams:
            stream.close()


def test_what_an_operator_sees(server, client):
    before = server.status()["tenants"]["ann"]["tokens"]
    client.completions.create(prompt="1234", max_tokens=10, **GREEDY)
    after = server.status()["tenants"]["ann"]["tokens"]
    assert after["prompt"] - before["prompt"] == 5
    assert after["answer"] - before["answer"] == 10
    assert (after["cache"], after["counter"]) == (600 + 0, None)
    page = server.rest("GET", "/metrics")[1]
    assert f'commonwatt_timeslice_tokens_total{{kind="answer",tenant="ann"}} {after["answer"]:.1f}' in page
    for name in ("time_to_first_token_seconds", "time_between_tokens_seconds"):
        assert f'commonwatt_timeslice_{name}_count{{tenant="ann"}}' in page
    used_s = server.status()["tenants"]["ann"]["time_s"]
    assert used_s > 0


@contextmanager
def held(server):
    """The device does nothing meanwhile: a chat that begins has its first event, and no token."""
    go_on, waits = threading.Event(), threading.Event()
    server.backend.worker._errands.append(lambda: (waits.set(), go_on.wait(60)))
    server.backend.worker.wake()
    assert waits.wait(60)
    try:
        yield go_on
    finally:
        go_on.set()


def begun_stream(client):
    messages = [{"role": "user", "content": "x"}]
    stream = iter(client.chat.completions.create(messages=messages, max_tokens=400, stream=True, **GREEDY))
    assert next(stream).choices[0].delta.role == "assistant"
    return stream


@pytest.mark.slow
def test_a_stream_is_finished_while_the_server_stops(models, expected):
    with running(config(), models) as server, client_of(server) as client:
        with held(server):
            stream = begun_stream(client)
            server.loop.call_soon_threadsafe(server.stop.set)
        text, answer = expected(ByteCoder().chat([{"role": "user", "content": "x"}]), 400)
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert chunks[-1].choices[0].finish_reason == answer.finish


@pytest.mark.slow
def test_a_stream_that_takes_longer_than_the_server_waits_ends_with_an_error(models):
    own = {"rest_port": 0, "grpc_port": None, "operator_key": "operator-secret", "drain_s": 0.0}
    with running(config(server=own), models) as server, client_of(server) as client, held(server):
        stream = begun_stream(client)
        server.loop.call_soon_threadsafe(server.stop.set)
        with pytest.raises(openai.APIError, match="the server stopped before"):
            list(stream)


@pytest.mark.slow
def test_a_device_that_fails_ends_streams_with_an_error(models, monkeypatch):
    def fail(_):
        raise DeviceError("the device is gone")

    with running(config(), models) as server, client_of(server) as client:
        with held(server):
            stream = begun_stream(client)
            monkeypatch.setattr(server.backend.session.loaded["ann", "tiny"].model, "step", fail)
        with pytest.raises(openai.APIError, match="the device is gone"):
            list(stream)
        with pytest.raises(openai.InternalServerError, match="the device has failed"):
            client.completions.create(prompt="x", **GREEDY)


def test_loading_and_unloading(server, client):
    headers = {"Authorization": "Bearer key-of-ann"}
    assert server.rest("POST", "/v2/repository/models/late/load", {}, headers)[0] == 200
    assert {m.id for m in client.models.list()} == {"tiny", "late"}
    a, b = (client.completions.create(model=m, prompt="x", temperature=0).choices[0].text for m in ("tiny", "late"))
    assert a == b
    assert server.rest("POST", "/v2/repository/models/late/unload", {}, headers)[0] == 200
    assert client.completions.create(prompt="x", **GREEDY).choices[0].text == a


@pytest.mark.long
@pytest.mark.parametrize("policy", ["fifo", "vtc", "tf", "ef"])
def test_every_policy_gives_the_same_answers(models, expected, policy):
    with running(config(policy=policy), models) as server, ThreadPoolExecutor(12) as pool:

        def ask(place):
            with client_of(server, f"key-of-{('ann', 'bob')[place % 2]}") as client:
                return client.completions.create(prompt=str(place), max_tokens=25, **GREEDY).choices[0].text

        assert list(pool.map(ask, range(12))) == [expected(str(place), 25)[0] for place in range(12)]
        status = server.status()
        counters = [tenant["tokens"]["counter"] for tenant in status["tenants"].values()]
        assert all(counter is None if policy != "vtc" else counter > 6 * 2 for counter in counters)
        change = {"policy": "fifo" if policy == "vtc" else "vtc"}
        assert "needs a restart" in server.rest("PATCH", "/v2/commonwatt/settings", change)[1]


def test_events_are_as_openai_sends_them(wire):
    body = {"model": "tiny", "prompt": "x", "max_tokens": 3, "stream": True, "seed": 1}
    status, answer, headers = wire.ask("POST", "/v1/completions", body)
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    events = answer.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    for event in events[:-2]:
        assert event.startswith("data: {")
        assert set(json.loads(event[6:])) == {"id", "object", "created", "model", "choices"}
