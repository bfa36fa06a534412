"""The audit log: who changed what, and the outcome. It never contains tokens or environment variables."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from commonwatt.model.errors import InputError, ServiceError, StoreError
from commonwatt.service.auth import Caller
from commonwatt.service.context import ServiceContext

__all__ = ["AuditedRoute", "about", "actor_of", "noted"]

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_LONGEST = 128
_READS = {"GET", "HEAD", "OPTIONS"}
_log = logging.getLogger("commonwatt.audit")


def about(request: Request, target: str, **detail: Any) -> None:  # noqa: ANN401
    """Set the target of a request for the audit log, if its path does not name it."""
    request.state.audited = (target, detail or None)


def actor_of(caller: Caller) -> str:
    """Return the name of *caller* in the audit log."""
    return caller.name[:_LONGEST]


def noted(request: Request) -> None:
    """Mark a request whose audit entry was written in the transaction of the change."""
    request.state.noted = True


class AuditedRoute(APIRoute):
    """A route that writes its changing requests to the audit log, whatever their outcome, once the caller is known."""

    def get_route_handler(self) -> Handler:
        """Return the handler, wrapped in the audit."""
        handler = super().get_route_handler()
        if set(self.methods or ()) <= _READS:
            return handler
        name = self.name.rstrip("_")

        async def audited(request: Request) -> Response:
            try:
                response = await handler(request)
            except Exception as error:
                await _note(request, name, _status(error))
                raise
            await _note(request, name, response.status_code)
            return response

        return audited


async def _note(request: Request, action: str, status: int) -> None:
    caller = getattr(request.state, "caller", None)
    if caller is None:
        return  # in the access log only
    if status < 400 and getattr(request.state, "noted", False):
        return
    context: ServiceContext = request.app.state.context
    target, detail = getattr(request.state, "audited", None) or (_target(request), None)
    outcome = "done" if status < 400 else f"refused {status}"
    actor, target = actor_of(caller), _clean(target)
    try:
        await run_in_threadpool(context.store.note, time.time(), actor, action[:32], target, outcome, detail)
    except StoreError as error:
        _log.error("not written to the audit log: %s: %s %s: %s (%s)", actor, action, target, outcome, error)


def _target(request: Request) -> str:
    return ", ".join(f"{name} {value}" for name, value in request.path_params.items())


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:_LONGEST]


def _status(error: Exception) -> int:
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, InputError | RequestValidationError):
        return 422
    if isinstance(error, ServiceError):
        return error.status or 500
    return 503 if isinstance(error, StoreError) else 500
