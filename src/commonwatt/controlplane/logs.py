"""Logs of a live control plane: standard logging, one line of JSON (or text) per record, on standard error.

A line of JSON has ``time`` (ISO 8601, UTC), ``level``, ``logger`` and ``event``; ``job``, ``tenant``, ``node``,
``cause`` and other fields that are passed as ``extra={"job": 7}``; and ``error`` with a traceback. Secrets (tokens,
passwords in addresses of databases) are replaced by ``***`` wherever they occur.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Literal, TextIO

__all__ = ["LogFormat", "announcement", "configure", "redact"]

LogFormat = Literal["json", "text"]
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_OURS = frozenset({"time", "level", "logger", "event", "error"})
_SECRETS = (
    (re.compile(r"cw_[A-Za-z0-9_-]{8,}"), "cw_***"),
    (re.compile(r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"), "eyJ***"),
    (re.compile(r"([a-z][a-z0-9+.-]*://[^\s:/@'\"]*):[^\s/'\"]*@", re.IGNORECASE), r"\1:***@"),
    (re.compile(r"(authorization\W{1,4}(?:bearer|basic)\s+)[^\s,'\"]+", re.IGNORECASE), r"\1***"),
    (re.compile(r"(\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), r"\1***"),
    (re.compile(r"((?:password|passwd|pwd)['\"]?\s*[=:]\s*)(?:'[^']*'|\"[^\"]*\"|[^\s,;&]+)", re.IGNORECASE), r"\1***"),
)
_PERHAPS = re.compile(r"cw_|eyJ|://|authorization|bearer|basic|passw|pwd", re.IGNORECASE)
"""What every secret comes with: one search finds that a text, like nearly all, has none."""
_NOISY = ("httpx", "httpcore", "uvicorn.access", "alembic", "matplotlib", "numba")


def redact(text: str) -> str:
    """Return *text* without tokens and passwords."""
    if _PERHAPS.search(text) is None:
        return text
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def configure(form: LogFormat = "json", level: int = logging.INFO, stream: TextIO | None = None) -> logging.Handler:
    """Send all logs of this process, warnings included, to *stream* (standard error by default).

    Replaces an earlier configuration. Returns the handler.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):  # all through one handler
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    logging.captureWarnings(capture=True)
    return handler


def announcement(form: LogFormat, text: str, event: str, **fields: object) -> str:
    """Return a line for whoever starts the process: *text*, or, among JSON, *event* with *fields*.

    Nothing in it is redacted: it shows a first token.
    """
    if form == "text":
        return text
    record = logging.makeLogRecord({"name": "commonwatt.serve", "levelname": "INFO"})
    head = {"time": _time(record), "level": "info", "logger": record.name, "event": event}
    return json.dumps(head | fields, ensure_ascii=True)


class _JsonFormatter(logging.Formatter):
    """Formats a record as a line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record), "level": record.levelname.lower(), "logger": record.name,
            "event": redact(_message(record)),
        }  # fmt: skip
        line |= {key: _plain(value) for key, value in _extra(record).items()}
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = redact(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=True)


class _TextFormatter(logging.Formatter):
    """Formats a record as a line for people; a traceback follows on indented lines.

    Logged text cannot start a line or control a terminal.
    """

    def format(self, record: logging.LogRecord) -> str:
        extra = "".join(f" {key}={_escaped(str(_plain(value)))}" for key, value in _extra(record).items())
        event = _escaped(" ".join(redact(_message(record)).split()))
        line = f"{_time(record)} {record.levelname.lower():7} {event}{extra}"
        if record.exc_info and record.exc_info[0] is not None:
            for part in redact(self.formatException(record.exc_info)).split("\n"):
                line += "\n  " + _escaped(part)
        return line


def _escaped(text: str) -> str:
    """Return *text* with unprintable characters escaped, as in ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # a log line never fails, whatever a library passes
        return f"{record.msg} ({type(error).__name__} while writing this line)"


def _extra(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields that were passed as ``extra``."""
    extra = {name: value for name, value in vars(record).items() if name not in _OWN and value is not None}
    if extra.get("event") == record.msg:
        del extra["event"]
    return {f"{name}_" if name in _OURS else name: value for name, value in extra.items()}


def _plain(value: object) -> object:
    if isinstance(value, bool | int | float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    return redact(str(value))
