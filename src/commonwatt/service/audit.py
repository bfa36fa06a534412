"""Every changing request is written down: who, what, on what, with which outcome. Never tokens or environments."""

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
from commonwatt.service.desk import Desk
from commonwatt.service.guard import Caller

__all__ = ["AuditedRoute", "about", "actor_of", "noted"]

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_LONGEST = 128
_READS = {"GET", "HEAD", "OPTIONS"}
_log = logging.getLogger("commonwatt.audit")


def about(request: Request, target: str, **detail: Any) -> None:  # noqa: ANN401
    """Say what a request was about, where its address does not."""
    request.state.audited = (target, detail or None)


def actor_of(caller: Caller) -> str:
    """Return what the audit log calls one who makes a request."""
    return caller.name[:_LONGEST]


def noted(request: Request) -> None:
    """Say that a request has written its line itself, together with what it did."""
    request.state.noted = True


class AuditedRoute(APIRoute):
    """A route whose changing requests are written down, whatever comes of them, once it is known who makes them."""

    def get_route_handler(self) -> Handler:
        """Return the handler, with its audit around it."""
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
        return  # the log of requests has it
    if status < 400 and getattr(request.state, "noted", False):
        return
    desk: Desk = request.app.state.desk
    target, detail = getattr(request.state, "audited", None) or (_target(request), None)
    outcome = "done" if status < 400 else f"refused {status}"
    actor, target = actor_of(caller), _clean(target)
    try:
        await run_in_threadpool(desk.store.note, time.time(), actor, action[:32], target, outcome, detail)
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
