"""Limits of the whole process: guesses of tokens, and requests at a time."""

from __future__ import annotations

import asyncio
import math

import httpx
import pytest

from commonwatt.service import auth
from commonwatt.service.app import make_app
from commonwatt.service.auth import Authenticator
from commonwatt.service.middleware import Middleware


def test_guesses_of_tokens_are_put_off_more_and_more(service):
    now_s = [100.0]
    authenticator = Authenticator(service.store, 100.0, clock=lambda: now_s[0])
    waits = [authenticator.guess_s() for _ in range(100)]
    assert waits[:10] == [0.0] * 10
    assert waits[10:14] == [0.5, 1.0, 1.5, 2.0]
    assert max(wait for wait in waits if math.isfinite(wait)) == 20.0
    assert waits[-1] == math.inf
    answered = sum(math.isfinite(wait) for wait in waits)
    now_s[0] += 20.0
    assert answered <= 10 + 2 * 20 + 1  # in 20 s of 100 guesses a second, and more
    assert authenticator.guess_s() < 1.0  # the debt is paid off


@pytest.mark.slow
def test_who_has_a_token_does_not_wait_for_those_who_guess(as_, monkeypatch):
    slept = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(auth.asyncio, "sleep", sleep)
    guesser = as_("cw_" + "x" * 43)
    answers = [guesser.get("/whoami").status_code for _ in range(100)]
    assert set(answers) == {401, 429}
    assert max(slept) >= 15.0
    slept.clear()
    assert as_("ada").get("/whoami").status_code == 200
    assert as_(None).get("/whoami").status_code == 401  # none is no guess
    assert slept == []


@pytest.mark.parametrize(("most", "refused"), [(3, 5), (8, 0)])
def test_requests_at_a_time_are_limited_over_all_tokens(service, most, refused):
    release, arrived = None, []

    async def slow(scope, receive, send) -> None:
        arrived.append(scope["path"])
        await release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def go() -> tuple[list[int], int]:
        nonlocal release
        release = asyncio.Event()
        transport = httpx.ASGITransport(Middleware(slow, most=most))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            asked = [asyncio.create_task(client.get("/api/v1/jobs")) for _ in range(8)]
            while len(arrived) < 8 - refused:
                await asyncio.sleep(0)
            watched = asyncio.create_task(client.get("/healthz"))
            while "/healthz" not in arrived:
                await asyncio.sleep(0)
            release.set()
            return sorted([(await one).status_code for one in asked]), (await watched).status_code

    statuses, watched = asyncio.run(go())
    assert statuses == [200] * (8 - refused) + [503] * refused
    assert watched == 200


def test_the_application_limits_requests(service):
    assert any(part.cls is Middleware for part in make_app(service.context).user_middleware)
