"""Every refusal has the form ``application/problem+json`` (RFC 9457)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from commonwatt.model.errors import EngineError, InputError, QuotaError, ServiceError, StoreError
from commonwatt.model.live_results import ProblemDetail

__all__ = ["MEDIA_TYPE", "ApiRefusal", "install", "problem", "refusals"]

MEDIA_TYPE = "application/problem+json"
RETRY_S = 5
_LONGEST = 1000
_log = logging.getLogger("commonwatt.service")


class ApiRefusal(HTTPException):
    """A refusal raised by a route."""

    def __init__(
        self, status: int, detail: str, *, field: str | None = None, value: object = None, expected: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(status, detail, dict(headers or {}))
        self.field, self.value, self.expected = field, value, expected


def problem(
    status: int, detail: str, *, field: str | None = None, value: object = None, expected: str | None = None,
    reason: str | None = None, frees: str | None = None, headers: Mapping[str, str] | None = None,
) -> Response:  # fmt: skip
    """Return the response of a refusal."""
    document = ProblemDetail(
        title=HTTPStatus(status).phrase, status=status, detail=_short(detail), field=field,
        value=None if value is None else _short(str(value)), expected=expected, reason=reason, frees=frees,
    )  # fmt: skip
    content = json.dumps(document.model_dump(mode="json"))  # ASCII, so that any text can be sent
    return Response(content, status, dict(headers or {}), MEDIA_TYPE)


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe refusals for OpenAPI."""
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": _REFERENCE}}}
        for status in statuses
    }


_REFERENCE = {"$ref": "#/components/schemas/Problem"}


def install(app: FastAPI) -> None:
    """Let *app* answer every error with a problem document."""
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(InputError, _input)
    app.add_exception_handler(ServiceError, _service)
    app.add_exception_handler(StoreError, _away)
    app.add_exception_handler(EngineError, _away)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if isinstance(error, ApiRefusal):
        return problem(
            error.status_code, error.detail, field=error.field, value=error.value, expected=error.expected,
            headers=headers,
        )  # fmt: skip
    if error.status_code == HTTPStatus.NOT_FOUND:
        return problem(404, "no such resource; /api/v1/openapi.json lists all resources")
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers = {"Allow": _allowed(request, headers)}
        return problem(405, f"this resource supports {headers['Allow']}", headers=headers)
    return problem(error.status_code, str(error.detail), headers=headers)


def _allowed(request: Request, headers: Mapping[str, str]) -> str:
    """Return the methods of a path over all its routes; the framework names those of the first only."""
    methods = set(headers.get("allow", headers.get("Allow", "")).replace(" ", "").split(",")) - {""}
    for route in request.app.state.routes:
        match = getattr(route, "path_regex", None)
        if match is not None and match.match(request.url.path):
            methods |= set(getattr(route, "methods", None) or ())
    return ", ".join(sorted(methods))


async def _invalid(request: Request, error: Exception) -> Response:  # noqa: ARG001
    """Refuse a parameter of path, query or header; ``body`` validates bodies."""
    assert isinstance(error, RequestValidationError)
    first: Mapping[str, Any] = error.errors()[0]
    place: Sequence[Any] = first["loc"]
    field = ".".join(str(part) for part in place[1:]) or str(place[0])
    expected = str(first["msg"]).removeprefix("Input should be ").removeprefix("a valid ")
    expected = expected[:1].lower() + expected[1:]
    value = None if first["type"] == "missing" else first.get("input")
    if first["type"] == "missing":
        expected = "this parameter to be given"
    detail = str(InputError(expected, field=field, value=value))
    return problem(422, detail, field=field, value=value, expected=expected)


async def _input(request: Request, error: Exception) -> Response:  # noqa: ARG001
    assert isinstance(error, InputError)
    return problem(422, str(error), field=error.field, value=error.value, expected=error.expected)


async def _service(request: Request, error: Exception) -> Response:  # noqa: ARG001
    assert isinstance(error, ServiceError)
    if isinstance(error, QuotaError):
        return problem(
            error.status, str(error), field=error.field, value=error.value, reason=error.reason, frees=error.frees
        )
    return problem(error.status or 500, str(error))


async def _away(request: Request, error: Exception) -> Response:
    _log.error("%s %s: %s", request.method, request.scope["path"], error)
    what = "database" if isinstance(error, StoreError) else "engine"
    detail = f"the {what} does not answer; try again"
    return problem(503, detail, headers={"Retry-After": str(RETRY_S)})


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
