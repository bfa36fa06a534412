"""A real server on loopback for a module; without the extra what needs it is skipped."""

from __future__ import annotations

import logging

import pytest

from tests.serving.fake import ANN, Served
from tests.serving.wire import Wire


@pytest.fixture(autouse=True)
def no_errors_in_the_log():
    """Nothing goes wrong unseen in the server's loop."""
    seen = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: seen.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    yield seen
    logging.getLogger().removeHandler(handler)
    # gRPC minds several loops in one process, which only tests have
    assert [line for line in seen if "PollerCompletionQueue" not in line] == []


@pytest.fixture(scope="module")
def served():
    with Served() as server:
        yield server


@pytest.fixture
def wire(served):
    with Wire(served.at.rest, ANN) as connection:
        yield connection
