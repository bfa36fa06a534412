"""OpenAI's API: completions and chats of a tenant's language models, whole or as a stream of server-sent events."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from commonwatt.serving import Foreign, import_extra
from commonwatt.serving.backend import ModelDescription, NotReadyError, TextGeneration, TextPiece, UnknownModelError
from commonwatt.serving.frontend import Front
from commonwatt.serving.openai_requests import OpenAIRequest, parsed_chat, parsed_completion
from commonwatt.serving.rejections import GoneError, ParameterError, Refusal, refusal_of
from commonwatt.serving.rest import (
    LARGEST_DOCUMENT,
    Endpoint,
    HttpAnswer,
    answering,
    json_answer,
    key_of,
    openai_error,
    refusal_headers,
)
from commonwatt.serving.rest_body import decode_json, read_body, until_gone
from commonwatt.serving.tensors import shown_name

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["openai_routes"]

_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


def openai_routes(front: Front, largest: int) -> list[Foreign]:
    """Return the routes; they refuse bodies of more than *largest* bytes, or a megabyte."""
    route = import_extra("starlette.routing").Route
    rest = _OpenAI(front, min(largest, LARGEST_DOCUMENT))
    table: list[tuple[str, str, Endpoint]] = [
        ("GET", "/v1/models", rest.models),
        ("GET", "/v1/models/{model}", rest.model),
        ("POST", "/v1/completions", rest.complete),
        ("POST", "/v1/chat/completions", rest.chat),
    ]
    return [route(path, answering(front, endpoint, _refused), methods=[verb]) for verb, path, endpoint in table]


def _error(refusal: Refusal, error: Exception) -> dict[str, Any]:
    """Return an error as OpenAI has it."""
    kind = _TYPES.get(refusal.status, "server_error" if refusal.status >= 500 else "invalid_request_error")
    parameter, code = None, _CODES.get(refusal.status)
    if isinstance(error, ParameterError):
        parameter, code = error.parameter, error.code
    elif isinstance(error, UnknownModelError | NotReadyError):
        parameter, code = "model", "model_not_found"
    return openai_error(refusal.text, kind, parameter, code)


def _refused(refusal: Refusal, error: Exception) -> HttpAnswer:
    return json_answer(_error(refusal, error), refusal.status, refusal_headers(refusal))


@dataclass(frozen=True)
class _Form:
    """How answers of a route look."""

    name: str  # of whole answers
    chunk: str  # of pieces
    prefix: str  # of identifiers
    chats: bool

    def choice(self, piece: TextPiece, *, whole: bool) -> dict[str, Any]:
        """Return the choice with a piece of text."""
        end = {"index": 0, "logprobs": None, "finish_reason": piece.finish}
        if not self.chats:
            return {"text": piece.text, **end}
        if whole:
            return {"message": {"role": "assistant", "content": piece.text, "refusal": None}, **end}
        return {"delta": {} if piece.finish and not piece.text else {"content": piece.text}, **end}


_COMPLETION = _Form("text_completion", "text_completion", "cmpl-", chats=False)
_CHAT = _Form("chat.completion", "chat.completion.chunk", "chatcmpl-", chats=True)


class _OpenAI:
    """The routes."""

    def __init__(self, front: Front, largest: int) -> None:
        self._front, self._largest = front, largest
        self._began_s = int(time.time())

    async def models(self, request: Request) -> HttpAnswer:
        tenant = self._front.tenant(key_of(request))
        rows = [self._row(tenant, m) for m in self._front.backend.models(tenant) if m.generates and m.ready]
        return json_answer({"object": "list", "data": rows})

    async def model(self, request: Request) -> HttpAnswer:
        tenant = self._front.tenant(key_of(request))
        return json_answer(self._row(tenant, self._text_model(tenant, request.path_params["model"])))

    async def complete(self, request: Request) -> HttpAnswer | _Stream:
        return await self._answer(request, parsed_completion, _COMPLETION)

    async def chat(self, request: Request) -> HttpAnswer | _Stream:
        return await self._answer(request, parsed_chat, _CHAT)

    async def _answer(
        self, request: Request, parsed: Callable[[dict[str, Any]], OpenAIRequest], form: _Form
    ) -> HttpAnswer | _Stream:
        front = self._front
        tenant = front.tenant(key_of(request))
        with ExitStack() as stack:
            stack.enter_context(front.accepted())
            body = decode_json(await front.run(read_body(request.receive, request.headers, self._largest)))
            asked = parsed(body)
            name = self._text_model(tenant, asked.model).name
            work = front.backend.generate(tenant, name, asked.text)
            generation = await front.run(work, until_gone(request.receive))
            stack.callback(generation.cancel)
            about = {"id": form.prefix + secrets.token_hex(12), "created": int(time.time()), "model": name}
            if asked.stream:
                pieces = _Pieces(form, about, generation, include_usage=asked.include_usage)
                return _Stream(front, pieces, stack.pop_all(), f"a stream of {tenant}")
            piece = await front.run(_whole(generation), until_gone(request.receive))
            document = {
                **about, "object": form.name, "choices": [form.choice(piece, whole=True)], "usage": _usage(generation),
            }  # fmt: skip
            return json_answer(document)

    def _text_model(self, tenant: str, name: str) -> ModelDescription:
        model = self._front.ready_model(tenant, name)
        if not model.generates:
            raise UnknownModelError(f"model {shown_name(name)} generates no text")
        return model

    def _row(self, tenant: str, model: ModelDescription) -> dict[str, Any]:
        return {"id": model.name, "object": "model", "created": self._began_s, "owned_by": tenant}


def _usage(generation: TextGeneration) -> dict[str, int]:
    prompt, answer = generation.prompt_tokens, generation.answer_tokens
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


async def _whole(generation: TextGeneration) -> TextPiece:
    parts = []
    while True:
        piece = await generation.next()
        parts.append(piece.text)
        if piece.finish is not None:
            return replace(piece, text="".join(parts))


@dataclass(frozen=True)
class _Pieces:
    """The documents of a stream."""

    form: _Form
    about: dict[str, Any]
    generation: TextGeneration
    include_usage: bool

    async def send(self, put: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        """Hand all of them to *put*, as they come."""
        form = self.form
        if form.chats:
            first = form.choice(TextPiece(""), whole=False)
            first["delta"] = {"role": "assistant", "content": ""}
            await put(self._document([first]))
        while True:
            piece = await self.generation.next()
            await put(self._document([form.choice(piece, whole=False)]))
            if piece.finish is not None:
                break
        if self.include_usage:
            await put(self._document([]) | {"usage": _usage(self.generation)})

    def _document(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        usage = {"usage": None} if self.include_usage else {}
        return {**self.about, "object": self.form.chunk, "choices": choices, **usage}


class _Stream:
    """Server-sent events; what is *held* is given back at the end."""

    def __init__(self, front: Front, pieces: _Pieces, stack: ExitStack, what: str) -> None:
        self._front, self._pieces, self._stack, self._what = front, pieces, stack, what
        self._headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]

    def last(self) -> _Stream:
        """Return it with ``Connection: close``, so that a client sends no further request on it."""
        self._headers.append((b"connection", b"close"))
        return self

    async def __call__(self, scope: Foreign, receive: Foreign, send: Callable[[Any], Awaitable[None]]) -> None:  # noqa: ARG002
        """Send them."""

        async def event(data: str) -> None:
            await send({"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True})

        async def put(document: dict[str, Any]) -> None:
            await event(json.dumps(document))

        with self._stack:
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            try:
                await self._front.run(self._pieces.send(put), until_gone(receive))
                await event("[DONE]")
            except GoneError:
                return
            except Exception as error:
                refusal = refusal_of(error)
                self._front.log(refusal, error, self._what)
                await put(_error(refusal, error))
        await send({"type": "http.response.body", "body": b""})
