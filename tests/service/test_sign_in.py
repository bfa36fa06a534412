"""Signing in to the dashboard at a real provider on loopback: what a browser gets, and who is not let in."""

from __future__ import annotations

import asyncio
from functools import wraps
from http.cookies import SimpleCookie
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("authlib")
pytest.importorskip("flask")

from commonwatt.controlplane.wiring import read_config
from commonwatt.model.errors import InputError
from commonwatt.service import oidc, sign_in
from commonwatt.service.app import make_app
from tests.controlplane.chaos import config_in
from tests.service.made import StandIn
from tests.service.provider import SECRET, Provider

BASE = "http://127.0.0.1:8470"


def in_a_loop(test):
    """Let a coroutine be a test."""

    @wraps(test)
    def run(*args, **kwargs):
        asyncio.run(test(*args, **kwargs))

    return run


class Browser:
    """Follows no redirect by itself; keeps cookies as a browser does."""

    def __init__(self, app) -> None:
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE)
        self.provider = httpx.AsyncClient()

    async def leaves(self) -> str:
        """Begin; returns where the provider sends the person back."""
        answer = await self.client.get("/sign-in")
        assert answer.status_code == 303, answer.text
        there = await self.provider.get(answer.headers["location"])
        assert there.status_code == 302, there.text
        return there.headers["location"]

    async def signs_in(self) -> httpx.Response:
        return await self.client.get(await self.leaves())

    async def token(self, **headers) -> dict:
        answer = await self.client.post("/sign-in/token", headers=headers)
        assert answer.status_code == 200, answer.text
        assert answer.headers["cache-control"] == "no-store"
        return answer.json()

    async def who(self, token: str, **headers) -> httpx.Response:
        return await self.client.get("/api/v1/whoami", headers={"Authorization": f"Bearer {token}", **headers})


@pytest.fixture
def app(site):
    return make_app(site.context)


@pytest.fixture
def browser(app):
    return Browser(app)


def cookies_of(answer: httpx.Response) -> SimpleCookie:
    found = SimpleCookie()
    for text in answer.headers.get_list("set-cookie"):
        found.load(text)
    return found


@pytest.mark.slow
@in_a_loop
async def test_a_person_comes_back_with_a_token_that_the_api_takes(browser, provider):
    began = await browser.client.get("/sign-in")
    asked = parse_qs(urlsplit(began.headers["location"]).query)
    assert asked["redirect_uri"] == [f"{BASE}/sign-in/back"]
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["response_type"] == ["code"]
    assert (await browser.token())["token"] is None

    answer = await browser.signs_in()
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    session = cookies_of(answer)["commonwatt-session"]
    assert (session["httponly"], session["samesite"], session["path"]) == (True, "strict", "/")
    got = await browser.token()
    assert got["issuer"] == provider.issuer
    who = (await browser.who(got["token"])).json()
    assert (who["tenant"], who["operator"], who["via"]) == ("red", False, "oidc")
    assert (await browser.token())["token"] == got["token"], "not renewed before it is time"


@pytest.mark.slow
@in_a_loop
async def test_a_token_is_renewed_in_time_and_signing_out_revokes(browser, provider, app, caplog):
    await browser.signs_in()
    first = await browser.token()
    sign_ins = app.state.sign_ins
    now_s = sign_ins.clock()
    sign_ins.clock = lambda: now_s + 250.0
    (before,) = provider.refresh
    provider.lifetime_s = 400.0  # a token of the same second would be the same
    second = await browser.token()
    assert second["token"] != first["token"]
    assert second["expires_s"] >= first["expires_s"] + 99.0
    assert before not in provider.refresh, "a refresh token is used once"
    assert (await browser.client.post("/sign-in/out")).status_code == 204
    assert provider.refresh == {}
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == []
    assert (await browser.token())["token"] is None


@pytest.mark.slow
@in_a_loop
async def test_somebody_who_may_not_stay_is_signed_out_when_the_token_ends(browser, provider, app):
    await browser.signs_in()
    provider.refresh.clear()  # the provider lets nobody renew
    sign_ins = app.state.sign_ins
    now_s = sign_ins.clock()
    sign_ins.clock = lambda: now_s + 250.0
    assert (await browser.token())["token"] is not None, "it is still valid"
    sign_ins.clock = lambda: now_s + 301.0
    assert (await browser.token())["token"] is None
    assert not sign_ins._sessions


@pytest.mark.slow
@in_a_loop
async def test_a_sign_in_ends_after_half_a_day(browser, provider, app):
    provider.lifetime_s = 86_400.0
    await browser.signs_in()
    now_s = app.state.sign_ins.clock()
    app.state.sign_ins.clock = lambda: now_s + 12 * 3600.0 + 1.0
    assert (await browser.token())["token"] is None


@pytest.mark.slow
@in_a_loop
async def test_who_comes_back_otherwise_is_not_let_in(browser, provider, app):
    back = await browser.leaves()
    stranger = Browser(app)
    answer = await stranger.client.get(back)  # a link that somebody was sent: it would sign them in as another
    assert (answer.status_code, "another browser" in answer.text) == (403, True)
    assert "set-cookie" not in answer.headers
    forged = back.replace("state=", "state=x")
    assert (await browser.client.get(forged)).status_code == 403
    changed = Browser(app)
    for name, value in browser.client.cookies.items():
        changed.client.cookies.set(name, value[:-1] + ("0" if value[-1] != "0" else "1"))
    assert (await changed.client.get(back)).status_code == 403, "a cookie that is not ours"
    assert (await browser.client.get(back)).status_code == 303, "a stranger's link does no harm"
    assert (await browser.client.get(back)).status_code == 403, "once"
    await browser.client.post("/sign-in/out")

    back = await browser.leaves()
    now_s = app.state.sign_ins.clock()
    app.state.sign_ins.clock = lambda: now_s + 601.0
    assert (await browser.client.get(back)).status_code == 403

    app.state.sign_ins.clock = lambda: now_s
    back = await browser.leaves()
    refused = back.partition("?")[0] + f"?error=access_denied%3Cb%3E&state={parse_qs(urlsplit(back).query)['state'][0]}"
    answer = await browser.client.get(refused)
    assert answer.status_code == 403
    assert "refuses (access_denied&lt;b&gt;)" in answer.text
    assert (await browser.token())["token"] is None


@pytest.mark.slow
@in_a_loop
async def test_a_token_that_is_not_valid_here_lets_nobody_in(browser, provider, monkeypatch):
    monkeypatch.setattr(provider, "token", lambda who: Provider.token(provider, who, aud="another"))
    answer = await browser.signs_in()
    assert (answer.status_code, "a token for another audience" in answer.text) == (403, True)


@in_a_loop
async def test_a_person_without_a_role_is_told_so_by_the_api(browser, provider):
    provider.user = "eve"
    await browser.signs_in()
    answer = await browser.who((await browser.token())["token"])
    assert (answer.status_code, "no role here" in answer.json()["detail"]) == (403, True)


@pytest.mark.slow
@in_a_loop
async def test_other_sites_cannot_ask(browser):
    await browser.signs_in()
    for path in ("/sign-in/token", "/sign-in/out"):
        for site in ("cross-site", "same-site", "none"):
            answer = await browser.client.post(path, headers={"Sec-Fetch-Site": site})
            assert answer.status_code == 403
    assert (await browser.token(**{"Sec-Fetch-Site": "same-origin"}))["token"]


@in_a_loop
async def test_behind_a_proxy_people_come_back_to_the_public_address(tmp_path, provider):
    made = StandIn(tmp_path, server={"oidc": provider.spec(), "public_url": "https://gpus.example.org/"})
    try:
        answer = await Browser(make_app(made.context)).client.get("/sign-in")
        asked = parse_qs(urlsplit(answer.headers["location"]).query)
        assert asked["redirect_uri"] == ["https://gpus.example.org/sign-in/back"]
        (cookie,) = cookies_of(answer).values()
        assert (cookie.key.startswith("commonwatt-sign-in-"), cookie["secure"], cookie["samesite"]) == (
            True,
            True,
            "lax",
        )
    finally:
        made.close()


@pytest.mark.slow
@in_a_loop
async def test_a_provider_that_is_away_is_said_and_asked_again(tmp_path):
    spec = {"issuer": "http://127.0.0.1:9", "audience": "commonwatt"}
    made = StandIn(tmp_path, server={"oidc": spec})
    try:
        for _ in range(2):
            answer = await Browser(make_app(made.context)).client.get("/sign-in")
            assert (answer.status_code, "does not answer as it should" in answer.text) == (503, True)
    finally:
        made.close()


@in_a_loop
async def test_without_a_provider_there_is_nowhere_to_sign_in(tmp_path):
    made = StandIn(tmp_path)
    try:
        browser = Browser(make_app(made.context))
        assert (await browser.client.get("/sign-in")).status_code == 404
        assert await browser.token() == {"issuer": None, "token": None, "expires_s": None}
    finally:
        made.close()


def later(sign_ins, seconds: float) -> None:
    now_s = sign_ins.clock()
    sign_ins.clock = lambda: now_s + seconds


@in_a_loop
async def test_two_tabs_may_begin(browser):
    first, second = await browser.leaves(), await browser.leaves()
    assert (await browser.client.get(first)).status_code == 303
    assert (await browser.client.get(second)).status_code == 303


@pytest.mark.slow
@in_a_loop
async def test_signing_in_again_ends_the_session_before(browser, provider, app):
    await browser.signs_in()
    (before,) = provider.refresh
    await browser.signs_in()
    assert len(app.state.sign_ins._sessions) == 1
    assert before not in provider.refresh


@pytest.mark.slow
@in_a_loop
async def test_who_signs_out_while_a_token_is_renewed_stays_out(browser, provider, app):
    await browser.signs_in()
    later(app.state.sign_ins, 250.0)
    provider.slow_s = 0.5
    renewal = asyncio.create_task(browser.token())
    await asyncio.sleep(0.2)
    assert (await browser.client.post("/sign-in/out")).status_code == 204
    assert (await renewal)["token"] is None
    assert (app.state.sign_ins._sessions, provider.refresh) == ({}, {})


@pytest.mark.slow
@in_a_loop
async def test_two_tabs_that_wake_up_renew_once(browser, provider, app):
    await browser.signs_in()
    later(app.state.sign_ins, 299.0)
    provider.slow_s, provider.lifetime_s = 0.2, 900.0
    first, second = await asyncio.gather(browser.token(), browser.token())
    assert first["token"] == second["token"] is not None
    assert len(provider.refresh) == 1


@pytest.mark.slow
@in_a_loop
async def test_a_provider_that_is_away_for_a_moment_ends_no_sign_in(browser, provider, app):
    await browser.signs_in()
    first = await browser.token()
    later(app.state.sign_ins, 250.0)
    provider.broken = True
    assert (await browser.token())["token"] == first["token"]
    provider.broken, provider.lifetime_s = False, 900.0
    assert (await browser.token())["token"] == first["token"], "not asked again at once"
    later(app.state.sign_ins, 6.0)
    assert (await browser.token())["token"] not in (None, first["token"])


@pytest.mark.slow
@in_a_loop
async def test_a_session_is_not_handed_to_somebody_else(browser, provider, app, monkeypatch):
    await browser.signs_in()
    first = await browser.token()
    later(app.state.sign_ins, 250.0)
    monkeypatch.setattr(provider, "token", lambda _: Provider.token(provider, "olga"))
    assert (await browser.token())["token"] == first["token"]
    later(app.state.sign_ins, 51.0)
    assert (await browser.token())["token"] is None


@pytest.mark.long
@in_a_loop
async def test_who_waits_for_a_slow_provider_takes_no_place_of_others(browser, provider):
    provider.slow_s = 2.0
    waiting = [asyncio.create_task(browser.client.get("/sign-in")) for _ in range(40)]
    await asyncio.sleep(0.5)
    over = [task.result() for task in waiting if task.done()]
    assert (len(over), {answer.status_code for answer in over}) == (20, {503})
    assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {303, 503}


@in_a_loop
async def test_an_answer_without_end_is_not_read(browser, monkeypatch):
    monkeypatch.setattr(oidc, "_LARGEST_DOCUMENT", 100)
    answer = await browser.client.get("/sign-in")
    assert (answer.status_code, "does not answer as it should" in answer.text) == (503, True)


@pytest.mark.slow
@in_a_loop
async def test_the_oldest_session_makes_room(browser, app, monkeypatch):
    monkeypatch.setattr(sign_in, "_MOST_SESSIONS", 2)
    await browser.signs_in()
    others = [Browser(app), Browser(app)]
    for other in others:
        await other.signs_in()
    assert (await browser.token())["token"] is None
    assert all([(await other.token())["token"] for other in others])


def test_a_secret_that_is_not_set_is_refused_at_the_start(tmp_path, provider, monkeypatch):
    path = config_in(tmp_path, live={"server": {"oidc": provider.spec(secret_variable="CW_TEST_SECRET")}})
    with pytest.raises(InputError, match=r"live.server.oidc.secret_variable.*CW_TEST_SECRET"):
        read_config(path)
    monkeypatch.setenv("CW_TEST_SECRET", "x")
    read_config(path)


@pytest.mark.slow
@in_a_loop
async def test_a_client_with_a_secret_proves_who_it_is(tmp_path, provider, monkeypatch):
    monkeypatch.setenv("CW_TEST_SECRET", SECRET)
    made = StandIn(tmp_path, server={"oidc": provider.spec(secret_variable="CW_TEST_SECRET")})
    made.store.add_tenant("red", 1.0, 1.0)
    app = make_app(made.context)
    browser = Browser(app)
    await browser.signs_in()
    later(app.state.sign_ins, 250.0)
    provider.lifetime_s = 900.0
    assert (await browser.who((await browser.token())["token"])).json()["tenant"] == "red"
    await browser.client.post("/sign-in/out")
    assert (provider.secrets, provider.refresh) == ({"basic"}, {})
    monkeypatch.setenv("CW_TEST_SECRET", "another")
    assert (await browser.signs_in()).status_code == 403
    made.close()
