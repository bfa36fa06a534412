"""Refusals of requests: one table of statuses for both protocols, and a rate-limited log."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from commonwatt.serving.backend import (
    BackendError,
    NotReadyError,
    TooManyRequestsError,
    UnavailableError,
    UnknownModelError,
)

__all__ = [
    "BoundedFilter",
    "BoundedLog",
    "GoneError",
    "ParameterError",
    "Refusal",
    "RequestError",
    "SlowClientError",
    "TooLargeError",
    "UnauthenticatedError",
    "refusal_of",
]

LONGEST_TEXT = 1000


class RequestError(BackendError):
    """The request does not match the protocol or the model."""


class ParameterError(RequestError):
    """A parameter of a request for text is wrong."""

    def __init__(self, message: str, parameter: str | None, code: str | None = None) -> None:
        super().__init__(message)
        self.parameter, self.code = parameter, code


class UnauthenticatedError(BackendError):
    """The key is missing or does not give access."""


class TooLargeError(BackendError):
    """The request is larger than the server accepts."""


class SlowClientError(BackendError):
    """The client stopped sending its request."""


class GoneError(Exception):
    """The client has disconnected."""


@dataclass(frozen=True)
class Refusal:
    """An error in the terms of both protocols."""

    status: int  # HTTP
    code: str  # of gRPC
    text: str
    retry_after_s: int | None = None
    unexpected: bool = False  # a defect of the server: log it


TABLE: tuple[tuple[type[BackendError], int, str], ...] = (
    (UnknownModelError, 404, "NOT_FOUND"),
    (NotReadyError, 400, "FAILED_PRECONDITION"),
    (TooManyRequestsError, 429, "RESOURCE_EXHAUSTED"),
    (UnavailableError, 503, "UNAVAILABLE"),
    (UnauthenticatedError, 401, "UNAUTHENTICATED"),
    (TooLargeError, 413, "RESOURCE_EXHAUSTED"),
    (SlowClientError, 408, "DEADLINE_EXCEEDED"),
    (BackendError, 400, "INVALID_ARGUMENT"),
)


def refusal_of(error: Exception) -> Refusal:
    """Return the refusal for *error*; a client sees the text of a ``BackendError`` only."""
    for kind, status, code in TABLE:
        if isinstance(error, kind):
            text = str(error)
            shown = text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 3] + "..."
            return Refusal(status, code, shown, _retry_after(error))
    return Refusal(500, "INTERNAL", "the server failed on this request; its log says why", unexpected=True)


def _retry_after(error: BackendError) -> int | None:
    if isinstance(error, TooManyRequestsError):
        wait = error.retry_after_s
        return max(1, math.ceil(wait)) if math.isfinite(wait) else 1
    return 1 if isinstance(error, UnavailableError) else None


class BoundedLog:
    """A rate-limited log of warnings; each line counts those suppressed before it."""

    def __init__(
        self, log: logging.Logger, *, every_s: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._every_s, self._clock = log, every_s, clock
        self._last = -math.inf
        self._suppressed = 0

    def warning(self, message: str, error: Exception | None = None) -> None:
        """Log *message* with the traceback of *error*, unless the last line is too recent."""
        now = self._clock()
        if now - self._last < self._every_s:
            self._suppressed += 1
            return
        more = f" ({self._suppressed} more suppressed before this)" if self._suppressed else ""
        self._last, self._suppressed = now, 0
        self._log.warning("%s%s", message, more, exc_info=error)


class BoundedFilter(logging.Filter):
    """Limits the rate of another package's warnings; errors always pass."""

    def __init__(self, *, every_s: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._every_s, self._clock = every_s, clock
        self._last = -math.inf

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether *record* is logged."""
        if record.levelno != logging.WARNING:
            return True
        now = self._clock()
        if now - self._last < self._every_s:
            return False
        self._last = now
        return True
