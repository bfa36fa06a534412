"""Signing in at a real provider on loopback: by a code, by a browser; the file of logins, renewal, signing out."""

from __future__ import annotations

import json
import threading
import time
from functools import partial

import httpx
import pytest

pytest.importorskip("authlib")
pytest.importorskip("flask")

from commonwatt.client import Client, login
from commonwatt.client.login import Login, LoginFile, sign_in_by_browser, sign_in_by_device
from commonwatt.model.errors import InputError, ServiceError
from commonwatt.model.live_results import LoginOffer
from tests.cli.console import run
from tests.client.conftest import Served
from tests.service.made import StandIn, job
from tests.service.provider import CLIENT, Provider


@pytest.fixture(scope="module")
def provider():
    made = Provider()
    yield made
    made.close()


@pytest.fixture(scope="module")
def site(provider, tmp_path_factory):
    service = StandIn(tmp_path_factory.mktemp("site"), server={"oidc": provider.spec()})
    for tenant in ("red", "blue"):
        service.store.add_tenant(tenant, 1.0, 1.0)
    made = Served(service)
    yield made
    made.close()
    service.close()


@pytest.fixture
def logins(tmp_path):
    return tmp_path / "config" / "commonwatt" / "logins.json"


@pytest.fixture(autouse=True)
def nobody(site, provider, monkeypatch):
    """Nobody has signed in, and the server is the one with a provider."""
    monkeypatch.setenv("COMMONWATT_URL", site.url)
    monkeypatch.delenv("COMMONWATT_TOKEN")
    provider.approved.clear()
    provider.refresh.clear()
    provider.polls, provider.lifetime_s = 0, 300.0


@pytest.fixture
def by_code(provider, monkeypatch):
    """Let *who* confirm the code after some polls; returns the pauses between them."""

    def confirmed(who="ann", *, yes=True, after=3):
        pauses = []

        def sleep(seconds):
            pauses.append(seconds)
            if len(pauses) >= after:
                provider.approved.update({d.get_user_code(): (who, yes) for d in provider.devices.values()})

        monkeypatch.setattr(login, "sign_in_by_device", partial(sign_in_by_device, sleep=sleep))
        return pauses

    return confirmed


@pytest.mark.slow
def test_a_person_signs_in_by_a_code_and_works(by_code, provider, logins, site):
    pauses = by_code("ann")
    done = run("login")
    assert done.code == 0, done.err
    assert f"open {provider.issuer}/device and type " in done.err
    assert done.out.startswith("signed in as ann (ann@example.org), a member of tenant red (by the identity provider)")
    assert pauses == [5.0, 10.0, 10.0]  # slower after it was asked to be
    assert logins.stat().st_mode & 0o777 == 0o600
    assert logins.parent.stat().st_mode & 0o777 == 0o700
    assert run("whoami").out == "ann (ann@example.org), a member of tenant red (by the identity provider)\n"
    with Client() as client:
        number = client.submit(job()).id
    assert site.service.store.job(number).tenant == "red"
    refused = run("token", "list")
    assert (refused.code, refused.err) == (2, "error: only operators may do this\n")
    assert run("logout").out == f"signed out of {site.url}\n"
    assert provider.refresh == {}  # it is revoked at the provider
    assert json.loads(logins.read_text()) == {}
    gone = run("whoami")
    assert (gone.code, "use commonwatt login" in gone.err) == (2, True)
    assert run("logout", "--json").document == {"url": site.url, "signed_out": False}


@pytest.mark.slow
def test_who_has_no_role_learns_it_and_who_refuses_is_not_signed_in(by_code, logins):
    by_code("eve")
    done = run("login")
    assert (done.code, "you are known, but have no role here" in done.err) == (2, True)
    run("logout")
    by_code("ann", yes=False)
    done = run("login")
    assert (done.code, "refuses" in done.err, run("logout").out[:13]) == (2, True, "not signed in")


@pytest.mark.slow
def test_a_token_is_renewed_before_it_ends_and_once(by_code, provider, logins, monkeypatch):
    provider.lifetime_s = 20.0
    by_code("ann")
    assert run("login").code == 0
    first = json.loads(logins.read_text())
    provider.lifetime_s = 300.0
    barrier, found = threading.Barrier(8), []

    def work():
        barrier.wait()
        with Client() as client:
            found.append(client.whoami().tenant)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["red"] * 8
    (second,), (before,) = json.loads(logins.read_text()).values(), first.values()
    assert second["token"] != before["token"]
    assert list(provider.refresh) == [second["refresh_token"]]  # used once: the provider takes each one only once
    assert logins.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_a_login_that_has_ended_says_so(by_code, provider, logins, monkeypatch):
    provider.lifetime_s = 20.0
    by_code("ann")
    assert run("login").code == 0
    provider.refresh.clear()  # revoked by the site
    assert run("whoami").code == 0  # the token is valid until it expires
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + 60.0)
    done = run("whoami")
    assert (done.code, "your login has ended (commonwatt login begins another)" in done.err) == (2, True)
    monkeypatch.undo()


@pytest.mark.slow
def test_a_person_signs_in_by_a_browser(provider, site, monkeypatch):
    seen = []

    def browser(address):
        seen.append(address)

        def go():
            back = httpx.get(address, follow_redirects=False).headers["location"]
            port = back.split("?")[0]
            assert httpx.get(f"{port}?state=guessed&code=stolen").status_code == 400  # of another program
            assert httpx.get(port.replace("/back", "/other")).status_code == 400
            assert httpx.get(back).status_code == 200

        threading.Thread(target=go).start()

    provider.user = "olga"
    offer = LoginOffer(issuer=provider.issuer, client_id=CLIENT, scopes=("openid",), token="id")
    made = sign_in_by_browser(offer, browser)
    assert "code_challenge_method=S256" in seen[0]
    with Client(site.url, made.token) as client:
        assert client.whoami().operator
    provider.user = "ann"
    assert made.token not in repr(made)


def test_nobody_signs_in_without_https(provider, monkeypatch):
    done = run("login", "--url", "http://gpus.example.org")
    assert (done.code, "expected a URL with https" in done.err) == (2, True)
    offer = LoginOffer(issuer="http://sso.example.org", client_id="x", scopes=("openid",), token="id")
    with pytest.raises(ServiceError, match="no sign-in over plain HTTP"):
        sign_in_by_device(offer, lambda _: None)
    with pytest.raises(ServiceError, match="no sign-in over plain HTTP"):
        login._check_secure("http://127.0.0.1.example.org/token", provider.issuer)


def test_a_provider_that_is_away_is_named(site):
    offer = LoginOffer(issuer="http://127.0.0.1:9", client_id="x", scopes=("openid",), token="id")
    with pytest.raises(ServiceError, match=r"http://127\.0\.0\.1:9 cannot be reached"):
        sign_in_by_device(offer, lambda _: None)


def test_a_server_without_a_provider_says_so(served):
    done = run("login", "--url", served.url)
    assert (done.code, "has no identity provider" in done.err) == (2, True)


def test_a_file_of_logins_that_others_can_read_or_that_is_broken_is_refused(logins, site):
    kept = Login("https://a", "b", "https://a/t", None, "id", "x", None, None)
    file = LoginFile(logins)
    file.keep(site.url, kept)
    assert (file.find(site.url), file.find("https://other.example.org")) == (kept, None)
    logins.chmod(0o640)
    assert (run("jobs").code, "chmod 600" in run("jobs").err) == (2, True)
    logins.chmod(0o600)
    for text in ("", "[]", "{", json.dumps({site.url: {"token": 1}}), json.dumps({site.url: 1})):
        logins.write_text(text)
        with pytest.raises(InputError, match="what commonwatt login wrote"):
            file.find(site.url)
        assert run("jobs").code == 2
    assert [path.name for path in logins.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.slow
def test_a_login_is_sent_only_to_its_own_server(by_code, provider, served, monkeypatch):
    by_code("ann")
    assert run("login").code == 0
    with Client(served.url, retries=0) as other, pytest.raises(ServiceError, match="no token"):
        other.whoami()
    monkeypatch.setenv("COMMONWATT_TOKEN", served.service.tokens["bob"])
    with Client(served.url) as other:
        assert other.whoami().tenant == "bob"
    run("logout")
