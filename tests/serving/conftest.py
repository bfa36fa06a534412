"""Real servers on loopback; without the extra these tests are skipped."""

from __future__ import annotations

import warnings

import pytest

from tests.serving.wire import Wire

for package in ("starlette", "uvicorn", "prometheus_client", "tritonclient.grpc"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of third parties, at import
        pytest.importorskip(package)


@pytest.fixture(scope="module")
def served():
    from tests.serving.fake import Served

    with Served() as server:
        yield server


@pytest.fixture
def wire(served):
    from tests.serving.fake import ANN

    with Wire(served.at.rest, ANN) as connection:
        yield connection
