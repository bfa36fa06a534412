"""Logs: lines that machines read, without secrets."""

from __future__ import annotations

import io
import json
import logging
import re
import secrets
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.controlplane import logs
from commonwatt.controlplane.logs import configure, redact

TOKEN = f"cw_{secrets.token_urlsafe(32)}"


@pytest.fixture
def logged():
    """Configure logging to a buffer; as it was afterwards."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    stream = io.StringIO()

    def begin(form="json", level=logging.INFO):
        configure(form, level, stream)
        return stream

    yield begin
    logging.captureWarnings(capture=False)
    root.handlers[:] = before
    root.setLevel(level)


def fail(text):
    raise RuntimeError(text)


def lines(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_what_machines_look_for(logged):
    stream = logged()
    extra = {"job": 7, "tenant": "vision", "node": ("a", "b"), "cause": "node b is down", "event": "x", "more": None}
    logging.getLogger("commonwatt.controlplane").warning("job %d was %s", 7, "interrupted", extra=extra)
    (line,) = lines(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "warning", "logger": "commonwatt.controlplane", "event": "job 7 was interrupted", "job": 7,
        "tenant": "vision",
        "node": ["a", "b"], "cause": "node b is down", "event_": "x",
    }  # fmt: skip


def test_one_line_each_whatever_is_logged(logged):
    stream = logged()
    log = logging.getLogger("x")
    log.info("two\nlines \u2028 \x1b[31m \ud800", extra={"job": float("nan"), "cause": object()})
    log.info("%d", "not a number")
    log.info("%s %s", *["one"])
    try:
        fail("boom\nboom")
    except RuntimeError:
        log.exception("it failed")
    assert len(stream.getvalue().splitlines()) == len(lines(stream)) == 4
    assert "Traceback" in lines(stream)[-1]["error"]
    assert stream.getvalue().isascii()


def test_levels(logged):
    stream = logged(level=logging.WARNING)
    logging.getLogger("commonwatt").info("no")
    logging.getLogger("commonwatt").error("yes")
    assert [line["event"] for line in lines(stream)] == ["yes"]


def test_warnings_of_libraries_are_logged(logged):
    stream = logged()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=False)
        logging.captureWarnings(capture=True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    (line,) = lines(stream)
    assert (line["level"], line["logger"]) == ("warning", "py.warnings")
    assert "DeprecationWarning: old" in line["event"]


@pytest.mark.parametrize("form", ["json", "text"])
def test_secrets_are_never_logged(form, logged):
    stream = logged(form)
    log = logging.getLogger("commonwatt")
    log.info("token %s", TOKEN)
    log.info("headers %s", {"Authorization": f"Bearer {TOKEN}"}, extra={"cause": f"token {TOKEN} is unknown"})
    log.info("GET /?token=%s", TOKEN)
    log.info("connect to mysql+pymysql://app:h7tRx!p@db:3306/app failed", extra={"node": TOKEN})
    log.info("password='h7tRx!p' user=app")
    log.info("authorization: basic h7tRx!p")
    try:
        fail(f"postgresql://app:h7tRx!p@db/app {TOKEN}")
    except RuntimeError:
        log.exception("it failed")
    text = stream.getvalue()
    assert TOKEN[3:] not in text
    assert "h7tRx!p" not in text
    assert "mysql+pymysql://app:***@db:3306/app" in text


@pytest.mark.slow
@given(st.text(), st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-", min_size=8))
def test_no_token_survives(around, rest):
    """Whatever stands around it; what would be part of it if it stood beside it is left out."""
    around = re.sub(r"[\w-]", "", around)
    assert rest not in redact(f"{around}cw_{rest}{around}").replace("cw_***", "")


_PARTS = st.sampled_from(
    ["cw_", "eyJ", ".", "a1B2c3D4e5", "http://me", ":", "pw@host", "Authorization: ", "BEARER ", "basic ", "Passwd",
     "pwd", "password", "=", " ", "'", "paſſword=", "x"]
)  # fmt: skip


@given(st.lists(_PARTS, max_size=8).map("".join))
def test_what_every_secret_comes_with_is_looked_for_first(text):
    found = text
    for pattern, instead in logs._SECRETS:
        found = pattern.sub(instead, found)
    assert redact(text) == found


@given(st.text())
def test_what_is_no_secret_stays(text):
    plain = re.sub(r"[:=]|cw_|bearer|basic", "", text, flags=re.IGNORECASE)
    assert redact(plain) == plain


def test_text_for_people(logged):
    stream = logged("text")
    logging.getLogger("commonwatt.controlplane").info("job %d\nstarted", 7, extra={"job": 7, "node": "a"})
    assert re.search(r"Z info    job 7 started job=7 node=a\n$", stream.getvalue())


FORGED = "x\n2026-01-01T00:00:00.000Z info    request\r\x1b[2J\u2028\u202e\x85 status=200"


def test_text_of_others_begins_no_line_and_steers_no_terminal(logged):
    stream = logged("text")
    log = logging.getLogger("commonwatt.controlplane")
    log.info("%s", FORGED, extra={"path": FORGED, "node": [FORGED]})
    try:
        fail(FORGED)
    except RuntimeError:
        log.exception("it failed")
    first, failed, *traceback = stream.getvalue().removesuffix("\n").split("\n")
    assert r"path=x\n2026-01-01T00:00:00.000Z info    request\r\x1b[2J\u2028\u202e\x85 status=200 node=" in first
    assert failed.endswith(" it failed")
    assert [line[:2] for line in traceback] == ["  "] * len(traceback)
    assert all(line.isprintable() for line in (first, failed, *traceback))


def test_configuring_twice_writes_once(logged):
    logged()
    stream = logged()
    logging.getLogger("uvicorn.error").info("started")
    assert [line["event"] for line in lines(stream)] == ["started"]
