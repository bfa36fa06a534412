"""Signing in to the dashboard at an identity provider, in a real Chromium."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright")
pytest.importorskip("authlib")
pytest.importorskip("flask")

from tests.dashboard.made import MadeService
from tests.service.provider import Provider

pytestmark = pytest.mark.long

GROUPS = [{"group": "gpu-red", "tenant": "ada"}, {"group": "gpu-ops", "role": "operator"}]
READY = "html[data-ready=true]"
OUT = "html:not([data-ready]) #login[open]"


@pytest.fixture
def provider():
    made = Provider()
    yield made
    made.close()


@pytest.fixture
def open_page(tmp_path, serve, visit, provider):
    services = []

    def begin(groups=GROUPS):
        services.append(MadeService(tmp_path, server={"oidc": {**provider.spec(), "groups": groups}}))
        seen = visit(serve(services[-1]).url, None)
        seen.elsewhere = (provider.issuer,)
        return seen

    yield begin
    for service in services:
        service.close()


def kept(page):
    return page.evaluate("Object.keys(sessionStorage)")


def test_signed_in_reloaded_and_signed_out(open_page, provider):
    page = open_page().page
    page.click("#provider:has-text('Sign in at 127.0.0.1:')")
    page.wait_for_selector(READY)
    assert page.inner_text("#who") == "tenant ada"
    assert "code=" not in page.url
    page.reload()
    page.wait_for_selector(READY)
    page.evaluate("sessionStorage.clear()")  # another tab of the same browser
    page.reload()
    page.wait_for_selector(READY)
    assert len(provider.refresh) == 1
    page.click("#out")
    page.wait_for_selector(OUT)
    assert kept(page) == []
    assert provider.refresh == {}, "revoked"
    page.reload()
    page.wait_for_selector(OUT)

    provider.user = "olga"
    page.click("#provider")
    page.wait_for_selector(READY)
    assert page.inner_text("#who").startswith("operator olga")


def test_the_page_goes_on_with_tokens_that_live_for_seconds(open_page, provider):
    provider.lifetime_s = 8.0
    seen = open_page()
    page = seen.page
    page.click("#provider")
    page.wait_for_selector(READY)
    first = page.evaluate("sessionStorage.getItem('commonwatt-token')")
    page.wait_for_function("(first) => sessionStorage.getItem('commonwatt-token') !== first", arg=first)
    provider.refresh.clear()  # they may not stay
    seen.expected = ("401",)
    page.wait_for_selector(OUT)
    page.wait_for_selector("#login-error:has-text('You cannot use this page')")


def test_who_has_several_tenants_chooses_one(open_page):
    seen = open_page([*GROUPS, {"group": "staff", "tenant": "bob"}])
    seen.expected = ("403",)
    page = seen.page
    page.click("#provider")
    page.wait_for_selector("#tenants-of[open]")
    page.click("#tenant-choice button:text-is('bob')")
    page.wait_for_selector(READY)
    assert page.inner_text("#who") == "tenant bob"
    page.reload()
    page.wait_for_selector(READY)
    assert page.inner_text("#who") == "tenant bob"


def test_who_has_no_role_is_told_so(open_page, provider):
    provider.user = "eve"
    seen = open_page()
    seen.expected = ("403",)
    seen.page.click("#provider")
    seen.page.wait_for_selector("#login-error:has-text('have no role here')")
