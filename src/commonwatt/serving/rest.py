"""The Open Inference Protocol v2 over REST."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from commonwatt.devices.base import TensorSpec
from commonwatt.model.errors import InputError
from commonwatt.serving import Foreign, import_extra
from commonwatt.serving.backend import ModelDescription
from commonwatt.serving.frontend import Front
from commonwatt.serving.keys import presented_key
from commonwatt.serving.rejections import GoneError, Refusal, RequestError, UnauthenticatedError, refusal_of
from commonwatt.serving.rest_body import (
    decode_infer,
    decode_json,
    encode_infer,
    header_length_of,
    read_body,
    until_gone,
)
from commonwatt.serving.tensors import checked_inputs, checked_outputs

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

__all__ = [
    "LARGEST_DOCUMENT",
    "Endpoint",
    "HttpAnswer",
    "RestAnswer",
    "answering",
    "json_answer",
    "key_of",
    "openai_error",
    "refusal_answer",
    "refusal_headers",
    "rest_application",
]


@dataclass(frozen=True)
class HttpAnswer:
    """A response; as an ASGI application it sends itself."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    async def __call__(self, scope: Foreign, receive: Foreign, send: Callable[[Any], Awaitable[None]]) -> None:  # noqa: ARG002
        """Send it."""
        headers = [(b"content-length", b"%d" % len(self.body)), (b"content-type", self.content_type.encode())]
        headers += [(name.lower().encode(), value.encode("latin-1")) for name, value in self.headers.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else self.body})

    def last(self) -> HttpAnswer:
        """Return the same response with ``Connection: close``, so that a client sends no further request on it."""
        return replace(self, headers={**self.headers, "Connection": "close"})


def json_answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpAnswer:
    """Return *value* as JSON."""
    return HttpAnswer(status, json.dumps(value).encode(), headers=headers or {})


def refusal_headers(refusal: Refusal) -> dict[str, str]:
    """Return the headers of an error."""
    headers = {}
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(refusal.retry_after_s)
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def refusal_answer(refusal: Refusal, _: Exception | None = None) -> HttpAnswer:
    """Return the protocol's error body."""
    return json_answer({"error": refusal.text}, refusal.status, refusal_headers(refusal))


class RestAnswer(Protocol):
    """What an endpoint returns: it sends itself, as an ASGI application."""

    async def __call__(self, scope: Foreign, receive: Foreign, send: Callable[[Any], Awaitable[None]]) -> None:
        """Send it."""
        ...

    def last(self) -> RestAnswer:
        """Return the same with ``Connection: close``."""
        ...


Endpoint = Callable[["Request"], Awaitable[RestAnswer]]

LARGEST_DOCUMENT = 1_000_000  # bytes of a body that holds no tensors


def rest_application(
    front: Front, largest: int, metrics: Callable[[], tuple[bytes, str]], more: Sequence[Foreign] = ()
) -> Starlette:
    """Return the application; it refuses bodies of more than *largest* bytes.

    *metrics* returns Prometheus' page; *more* are routes beside its own.
    """
    applications, routing = import_extra("starlette.applications"), import_extra("starlette.routing")
    rest = _Rest(front, largest, metrics)
    model = "/v2/models/{model}"
    versions = (model, model + "/versions/{version}")
    table: list[tuple[str, str, Endpoint]] = [
        ("GET", "/v2", rest.server),
        ("GET", "/v2/health/live", rest.live),
        ("GET", "/v2/health/ready", rest.ready),
        *(("POST", path + "/infer", rest.infer) for path in versions),
        ("GET", "/v2/models/stats", rest.all_stats),
        *(("GET", path, rest.metadata) for path in versions),
        *(("GET", path + "/ready", rest.model_ready) for path in versions),
        *(("GET", path + "/config", rest.config) for path in versions),
        *(("GET", path + "/stats", rest.stats) for path in versions),
        ("POST", "/v2/repository/index", rest.index),
        ("POST", "/v2/repository/models/{model}/load", rest.load),
        ("POST", "/v2/repository/models/{model}/unload", rest.unload),
        ("GET", "/metrics", rest.metrics),
        ("GET", "/v2/commonwatt/settings", rest.settings),
        ("PATCH", "/v2/commonwatt/settings", rest.change),
        ("GET", "/v2/commonwatt/status", rest.status),
    ]
    routes = [routing.Route(path, answering(front, endpoint), methods=[verb]) for verb, path, endpoint in table]
    routes += more
    application: Starlette = applications.Starlette(routes=routes, exception_handlers={404: _no_route, 405: _no_route})
    application.router.redirect_slashes = False
    return application


async def _no_route(request: Request, error: Exception) -> Foreign:
    status = int(getattr(error, "status_code", 404))
    text = f"got {ascii(request.method)[1:-1]} {ascii(request.url.path)[:200]}, expected a route of this server"
    if request.url.path == "/v1" or request.url.path.startswith("/v1/"):
        return json_answer(openai_error(text, "invalid_request_error"), status)
    return refusal_answer(Refusal(status, "UNIMPLEMENTED", text))


def openai_error(text: str, kind: str, parameter: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Return an error as OpenAI has it."""
    return {"error": {"message": text, "type": kind, "param": parameter, "code": code}}


def answering(
    front: Front, endpoint: Endpoint, refused: Callable[[Refusal, Exception], HttpAnswer] = refusal_answer
) -> Endpoint:
    """Return *endpoint* with its errors answered by *refused*."""

    async def answered(request: Request) -> RestAnswer:
        try:
            return await endpoint(request)
        except GoneError:
            return HttpAnswer(499)  # the client has disconnected
        except Exception as error:
            refusal = refusal_of(error)
            front.log(refusal, error, f"{request.method} {ascii(request.url.path)[:200]}")
            return refused(refusal, error)

    async def answer(request: Request) -> RestAnswer:
        made = await answered(request)
        return made.last() if front.stopping() else made

    return answer


class _Rest:
    """The routes."""

    def __init__(self, front: Front, largest: int, metrics: Callable[[], tuple[bytes, str]]) -> None:
        self._front, self._largest, self._metrics = front, largest, metrics

    async def server(self, _: Request) -> HttpAnswer:
        return json_answer(self._front.server())

    async def live(self, _: Request) -> HttpAnswer:
        return json_answer({"live": True})

    async def ready(self, _: Request) -> HttpAnswer:
        ready = self._front.ready()
        return json_answer({"ready": ready}, 200 if ready else 503)

    async def metadata(self, request: Request) -> HttpAnswer:
        model, versions = self._front.metadata(self._tenant(request), *_named(request))
        return json_answer(
            {
                "name": model.name, "versions": versions, "platform": model.platform,
                "inputs": [_spec(spec) for spec in model.inputs], "outputs": [_spec(spec) for spec in model.outputs],
            }
        )  # fmt: skip

    async def model_ready(self, request: Request) -> HttpAnswer:
        model = self._front.model(self._tenant(request), *_named(request))
        return json_answer({"name": model.name, "ready": model.ready}, 200 if model.ready else 400)

    async def config(self, request: Request) -> HttpAnswer:
        return json_answer(self._front.model_config(self._tenant(request), *_named(request)))

    async def stats(self, request: Request) -> HttpAnswer:
        return json_answer(self._front.model_stats(self._tenant(request), *_named(request)))

    async def all_stats(self, request: Request) -> HttpAnswer:
        return json_answer(self._front.model_stats(self._tenant(request)))

    async def infer(self, request: Request) -> HttpAnswer:
        tenant = self._tenant(request)
        model = self._front.ready_model(tenant, *_named(request))
        with self._front.accepted():
            header_length = header_length_of(request.headers)
            raw = await self._front.run(read_body(request.receive, request.headers, self._largest))
            body = decode_infer(raw, header_length, model.name)
            inputs = checked_inputs(model, body.inputs)
            checked_outputs(model, list(body.outputs))
            work = self._front.backend.infer(tenant, model.key, inputs)
            outputs = await self._front.run(work, until_gone(request.receive))
            answer, length = encode_infer(model, str(model.version), body, outputs)
        if length is None:
            return HttpAnswer(200, answer)
        return HttpAnswer(200, answer, "application/octet-stream", {"Inference-Header-Content-Length": str(length)})

    async def index(self, request: Request) -> HttpAnswer:
        tenant = self._tenant(request)
        only_ready = (await self._document(request)).get("ready", False)
        if not isinstance(only_ready, bool):
            raise RequestError("got a value of ready that is not a boolean, expected true or false")
        models = self._front.backend.models(tenant)
        return json_answer([_row(model) for model in models if model.ready or not only_ready])

    async def load(self, request: Request) -> HttpAnswer:
        name = request.path_params["model"]
        tenant = self._tenant(request)
        self._front.versions(tenant, name)
        with self._front.accepted():
            if (await self._document(request)).get("parameters"):
                raise RequestError("got parameters, expected none: the server's file says how a model is loaded")
            await self._front.run(self._front.load(tenant, name))
        return json_answer({})

    async def unload(self, request: Request) -> HttpAnswer:
        name = request.path_params["model"]
        tenant = self._tenant(request)
        self._front.versions(tenant, name)
        with self._front.accepted():
            await self._front.run(self._front.unload(tenant, name))
        return json_answer({})

    async def metrics(self, request: Request) -> HttpAnswer:
        self._operator(request)
        return HttpAnswer(200, *self._metrics())

    async def settings(self, request: Request) -> HttpAnswer:
        self._operator(request)
        return json_answer(self._front.backend.settings())

    async def change(self, request: Request) -> HttpAnswer:
        self._operator(request)
        settings = await self._document(request)
        try:
            return json_answer(self._front.backend.change(settings))
        except InputError as error:
            raise RequestError(str(error)) from None

    async def status(self, request: Request) -> HttpAnswer:
        self._operator(request)
        return json_answer(self._front.backend.status())

    def _tenant(self, request: Request) -> str:
        return self._front.tenant(key_of(request))

    def _operator(self, request: Request) -> None:
        host = request.client.host if request.client else None
        if not self._front.keys.opens_operation(key_of(request), host):
            raise UnauthenticatedError(
                "expected the operator's key (server.operator_key), or, without such a key, a client on the server's "
                "own machine"
            )

    async def _document(self, request: Request) -> dict[str, Any]:
        body = await read_body(request.receive, request.headers, min(LARGEST_DOCUMENT, self._largest))
        return decode_json(body) if len(body) else {}


def key_of(request: Request) -> str | None:
    """Return the key that a request presents."""
    return presented_key(request.headers.get("authorization"), request.headers.get("x-api-key"))


def _named(request: Request) -> tuple[str, str]:
    return request.path_params["model"], request.path_params.get("version", "")


def _spec(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def _row(model: ModelDescription) -> dict[str, Any]:
    state = "READY" if model.ready else "UNAVAILABLE"
    return {"name": model.name, "version": str(model.version), "state": state, "reason": model.reason}
