"""A real server on loopback for a module; without the extra what needs it is skipped."""

from __future__ import annotations

import pytest

from tests.serving.fake import ANN, Served
from tests.serving.wire import Wire


@pytest.fixture(scope="module")
def served():
    with Served() as server:
        yield server


@pytest.fixture
def wire(served):
    with Wire(served.at.rest, ANN) as connection:
        yield connection
