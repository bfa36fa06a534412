from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")
pytest.importorskip("sqlalchemy")

from commonwatt.service.app import make_app  # noqa: E402
from tests.service.made import StandIn  # noqa: E402

API = "http://127.0.0.1/api/v1"


class Caller:
    """Makes requests as somebody, without a socket."""

    def __init__(self, app: Any, token: str | None) -> None:
        self.app, self.token = app, token

    def __call__(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        headers |= more.pop("headers", {})

        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=("127.0.0.1", 50000))
            async with httpx.AsyncClient(transport=transport, timeout=60) as client:
                url = path if path.startswith("http") else API + path
                return await client.request(method, url, headers=headers, **more)

        return asyncio.run(go())

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self("GET", path, **more)

    def post(self, path: str, **more: Any) -> httpx.Response:
        return self("POST", path, **more)


@pytest.fixture
def service(tmp_path) -> Iterator[StandIn]:
    made = StandIn(tmp_path)
    yield made
    made.close()


@pytest.fixture
def app(service):
    return make_app(service.context)


@pytest.fixture
def as_(app, service) -> Callable[[str | None], Caller]:
    """Make requests as ``ada``, ``bob``, ``operator``, ``revoked`` or (``None``) nobody."""
    return lambda who: Caller(app, None if who is None else service.tokens.get(who, who))


@pytest.fixture(scope="module")
def running():
    """An identity provider."""
    pytest.importorskip("authlib")
    pytest.importorskip("flask")
    from tests.service.provider import Provider

    made = Provider()
    yield made
    made.close()


@pytest.fixture
def provider(running):
    """The provider with one key of its own for each test."""
    running.reset()
    return running


@pytest.fixture
def site(tmp_path, provider) -> Iterator[StandIn]:
    """A service whose people come from the provider."""
    made = StandIn(tmp_path, server={"oidc": provider.spec()})
    for tenant in ("red", "blue"):
        made.store.add_tenant(tenant, 1.0, 1.0)
    yield made
    made.close()
