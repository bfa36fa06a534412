"""Tokens of a real provider on loopback: who is let in as what, and attacks that are not."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("authlib")
pytest.importorskip("flask")

from commonwatt.service import oidc
from commonwatt.service.app import make_app
from tests.service.conftest import Caller
from tests.service.made import StandIn, job
from tests.service.provider import Provider


@pytest.fixture
def app(site):
    app = make_app(site.context)
    app.state.authenticator.clock = clock = Clock()
    app.state.authenticator.verifier.keys.clock = clock
    return app


class Clock:
    """A clock that is set by hand."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(app):
    return app.state.authenticator.clock


@pytest.fixture
def says(app, clock):
    """Ask who one is with a token; time passes before, so that no guess is put off and no answer is kept."""

    def ask(token, **headers):
        clock.now_s += 100.0
        return Caller(app, token).get("/whoami", headers=headers)

    return ask


def part(document) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


def signed(token: str, secret: bytes) -> str:
    """The claims of *token* under HS256 with a *secret*."""
    body = f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{token.split('.')[1]}"
    digest = hmac.new(secret, body.encode(), hashlib.sha256).digest()
    return f"{body}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def by_hand(key, head, body) -> str:
    """A token whose signature is right, with a head that no library would write."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    text = f"{part(head)}.{body}"
    signature = key.private_key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{text}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


@pytest.mark.slow
def test_groups_become_tenants_and_roles(provider, says, app, site):
    seen = {who: says(provider.token(who)).json() for who in ("ann", "ben", "olga")}
    assert {who: (it["tenant"], it["role"], it["operator"]) for who, it in seen.items()} == {
        "ann": ("red", None, False), "ben": ("blue", "admin", False), "olga": (None, None, True),
    }  # fmt: skip
    assert seen["ann"] | {"tenant": 0} == {
        "token": None, "label": "ann (ann@example.org)", "tenant": 0, "operator": False, "role": None, "via": "oidc"
    }  # fmt: skip
    viewer = Caller(app, provider.token("vic", groups=["auditors"]))
    assert viewer.get("/audit").status_code == 200
    assert viewer.post("/jobs", json=job()).status_code == 403
    ann = Caller(app, provider.token("ann"))
    number = ann.post("/jobs", json=job()).json()["id"]
    assert Caller(app, provider.token("ben")).get(f"/jobs/{number}").status_code == 404
    assert Caller(app, site.tokens["ada"]).get("/whoami").json()["via"] == "token"  # beside its own tokens
    actor = Caller(app, provider.token("olga")).get("/audit").json()["audit"][-1]["actor"]
    assert actor == "tenant red, oidc ann (ann@example.org)"


@pytest.mark.slow
def test_who_is_in_no_group_may_do_nothing(provider, says, app):
    for groups in (["staff"], [], None, {"gpu-ops": True}, 7, [["gpu-ops"]], "gpu-ops staff", "GPU-OPS", ["gpu-ops "]):
        answer = says(provider.token("eve", groups=groups))
        assert (answer.status_code, "have no role" in answer.json()["detail"]) == (403, True), groups
    assert says(provider.token("olga", groups="gpu-ops")).json()["operator"]  # one group, as some providers send it
    eve = Caller(app, provider.token("eve"))
    for path in ("/jobs", "/cluster", "/tokens", "/stream", "/openapi.json"):
        assert eve.get(path).status_code == (200 if path == "/openapi.json" else 403), path


@pytest.mark.slow
def test_who_has_several_tenants_names_one_of_them(provider, says):
    both = provider.token("ann", groups=["gpu-red", "gpu-blue"])
    asked = says(both)
    assert (asked.status_code, "blue, red" in asked.json()["detail"]) == (403, True)
    assert says(both, **{"Commonwatt-Tenant": "blue"}).json()["role"] == "admin"
    assert says(both, **{"Commonwatt-Tenant": "red"}).json()["role"] is None
    for other in ("green", "", "*", "blue,red"):
        assert says(both, **{"Commonwatt-Tenant": other}).status_code == 403, other
    ops = provider.token("olga", groups=["gpu-red", "gpu-ops", "auditors"])
    assert says(ops).json()["operator"]
    assert says(ops, **{"Commonwatt-Tenant": "red"}).json()["operator"] is False


def test_a_header_takes_nobody_to_the_tenant_of_another(provider, says, site):
    assert says(provider.token("ann"), **{"Commonwatt-Tenant": "blue"}).status_code == 403
    assert says(site.tokens["ada"], **{"Commonwatt-Tenant": "bob"}).status_code == 403
    assert says(site.tokens["ada"], **{"Commonwatt-Tenant": "ada"}).status_code == 200


@pytest.mark.slow
def test_forged_tokens_are_refused(provider, says):
    good = provider.token("olga")
    key, other = provider.keys[0], provider.new_key("RSA")
    head, body, signature = good.split(".")
    pem = key.as_pem(private=False)
    jwk = key.as_dict(private=False)
    short = provider.new_key("EC")
    forged = {
        "alg none": f"{part({'alg': 'none'})}.{body}.{signature}",
        "alg none, unsigned": f"{part({'alg': 'none'})}.{body}.",
        "alg None": f"{part({'alg': 'nOnE', 'kid': key.kid})}.{body}.{signature}",
        "HS256 with the public key": signed(good, pem),
        "HS256 with the public key, stripped": signed(good, pem.strip()),
        "HS256 with the JWK": signed(good, json.dumps(jwk).encode()),
        "another key under a known kid": provider.token("olga", other, {"kid": key.kid}),
        "its own jwk": provider.token("olga", other, {"jwk": other.as_dict(private=False), "kid": key.kid}),
        "its own jku": provider.token("olga", other, {"jku": f"{provider.issuer}/evil", "kid": key.kid}),
        "another kind of key": provider.token("olga", short, {"kid": key.kid}),
        "an algorithm that is not listed": provider.token("olga", key, {"alg": "PS256"}),
        "changed claims": f"{head}.{part(provider.claims('olga', groups=['gpu-ops', 'x']))}.{signature}",
        "no signature": f"{head}.{body}.",
        "crit": by_hand(key, {"alg": "RS256", "kid": key.kid, "crit": ["b65"], "b65": 1}, body),
        "a logout token": provider.token("olga", header={"typ": "logout+jwt"}),
        "events": provider.token("olga", events={"http://schemas.openid.net/event/backchannel-logout": {}}),
        "a kid that is no text": f"{part({'alg': 'RS256', 'kid': {'a': 1}})}.{body}.{signature}",
        "a head that is no object": f"{part([1])}.{body}.{signature}",
        "deep": f"{base64.urlsafe_b64encode(b'[' * 9000).decode().rstrip('=')}.{body}.{signature}",
        "of five parts": f"{head}.{body}.{signature}.{body}.{signature}",
        "huge": provider.token("olga", more="x" * 20_000),
        "dots": "..", "nothing": "a.b.c",
    }  # fmt: skip
    assert says(good).status_code == 200
    assert says(by_hand(key, {"alg": "RS256", "kid": key.kid}, body)).status_code == 200
    for name, token in forged.items():
        answer = says(token)
        assert answer.status_code == 401, name
        assert answer.headers["www-authenticate"].startswith("Bearer"), name
        assert token not in answer.text
    assert says(good).status_code == 200


@pytest.mark.slow
def test_tokens_of_others_and_of_other_times_are_refused(provider, says):
    now_s = int(time.time())
    for detail, claims in (
        ("another audience", {"aud": "grafana"}), ("another audience", {"aud": ["grafana", "commonwatt2"]}),
        ("another audience", {"aud": None}), ("another audience", {"aud": {"commonwatt": 1}}),
        ("another issuer", {"iss": "https://evil.example.org"}), ("another issuer", {"iss": None}),
        ("another issuer", {"iss": provider.issuer + "/"}), ("another issuer", {"iss": [provider.issuer]}),
        ("has expired", {"exp": now_s - 3600}), ("has expired", {"exp": now_s - 31}), ("has expired", {"exp": 0}),
        ("never expires", {"exp": None}), ("is no time", {"exp": "never"}), ("is no time", {"exp": True}),
        ("is no time", {"exp": 10**30}),
        ("not valid yet", {"nbf": now_s + 3600}), ("not valid yet", {"iat": now_s + 3600}),
        ("about nobody", {"sub": ""}), ("about nobody", {"sub": None}), ("about nobody", {"sub": ["olga"]}),
        ("about nobody", {"sub": "x" * 256}),
    ):  # fmt: skip
        answer = says(provider.token("olga", **claims))
        assert (answer.status_code, detail in answer.json()["detail"]) == (401, True), (claims, answer.text)
    assert says(provider.token("olga", exp=now_s - 5)).status_code == 200  # within the skew of the clocks
    assert says(provider.token("olga", nbf=now_s + 5)).status_code == 200
    assert says(provider.token("olga", aud=["grafana", "commonwatt"])).status_code == 200


def test_an_answer_is_not_kept_beyond_the_end_of_a_token(provider, app, site, clock):
    app.state.authenticator.verifier.clock = lambda: wall[0]
    wall, token = [time.time()], provider.token("ann", exp=int(time.time()) + 100)
    assert Caller(app, token).get("/whoami").status_code == 200
    wall[0] += 129.0
    clock.now_s += 129.0
    assert Caller(app, token).get("/whoami").status_code == 200  # one second before the end, with the skew
    wall[0] += 2.0
    clock.now_s += 2.0
    assert Caller(app, token).get("/whoami").status_code == 401


@pytest.mark.slow
def test_keys_rotate(provider, says, clock):
    old = provider.keys[0]
    before = provider.token("ann")
    assert says(before).status_code == 200
    provider.keys = [old, provider.new_key("RSA")]
    assert says(provider.token("ann")).status_code == 200  # fetched, as it is unknown
    assert (says(before).status_code, provider.jwks_requests) == (200, 2)
    provider.keys = provider.keys[1:]  # the old one has leaked
    assert says(before).status_code == 200  # known for a while yet
    clock.now_s += 300.0
    answer = says(before)
    assert (answer.status_code, "does not have" in answer.json()["detail"]) == (401, True)
    assert says(provider.token("ann", old)).status_code == 401
    assert says(provider.token("ann")).status_code == 200


@pytest.mark.slow
def test_keys_of_elliptic_curves_and_without_a_kid(provider, says):
    rsa, ec = provider.keys[0], provider.new_key("EC")
    provider.keys = [rsa, ec]
    assert says(provider.token("ann", ec)).status_code == 200
    assert says(provider.token("ann", rsa, {"kid": None})).status_code == 200  # the only one of its kind
    provider.keys = [rsa, provider.new_key("RSA")]
    assert says(provider.token("ann")).status_code == 200
    assert says(provider.token("ann", rsa, {"kid": None})).status_code == 401  # which of both?


@pytest.mark.slow
def test_keys_for_other_uses_are_not_taken(provider, says):
    key = provider.keys[0]
    public = key.as_dict(private=False)
    for bad in (
        public | {"use": "enc"}, public | {"alg": "RS512"}, {"kty": "oct", "k": "c2VjcmV0", "kid": key.kid},
        {"kty": "RSA", "kid": key.kid, "n": "AQAB", "e": "AQAB"}, {"kty": "RSA", "kid": key.kid}, "no key", None,
    ):  # fmt: skip
        provider.published = [bad]
        assert says(provider.token("ann")).status_code == 401, bad
    provider.published = [None, public]
    assert says(provider.token("ann")).status_code == 200


@pytest.mark.slow
def test_unknown_keys_do_not_flood_the_provider(provider, app, clock):
    app.state.authenticator.guess_s = lambda: 0.0  # they are put off, too: see test_admission
    assert Caller(app, provider.token("ann")).get("/whoami").status_code == 200
    clock.now_s += 20.0
    for number in range(300):
        assert Caller(app, provider.token("ann", header={"kid": f"k{number}"})).get("/whoami").status_code == 401
    assert provider.jwks_requests == 2
    assert Caller(app, provider.token("ann")).get("/whoami").status_code == 200


def test_few_wait_for_the_provider_and_known_keys_do_not(provider, app, monkeypatch):
    verifier = app.state.authenticator.verifier
    good, unknown = provider.token("ann"), provider.token("ann", header={"kid": "new"})

    async def attack():
        begun, over = asyncio.Event(), asyncio.Event()

        async def never(_):
            begun.set()
            await over.wait()
            raise OSError("away")

        await verifier.person(good)
        monkeypatch.setattr(oidc.ProviderKeys, "_documents", never)
        verifier.keys._tried_s = -1e9
        waiting = [asyncio.create_task(verifier.person(unknown)) for _ in range(100)]
        await begun.wait()
        await asyncio.sleep(0)
        busy = [task for task in waiting if task.done()]
        assert len(busy) == 80
        assert all(isinstance(task.exception(), oidc.BusyError) for task in busy)
        assert (await verifier.person(good)).subject == "ann"
        over.set()
        rest = await asyncio.gather(*waiting, return_exceptions=True)
        assert sum(isinstance(error, oidc.TokenError) for error in rest) == 20

    asyncio.run(attack())


@pytest.mark.slow
def test_a_provider_that_is_away_stops_nobody_who_is_known(tmp_path, caplog):
    provider = Provider()
    site = StandIn(tmp_path, server={"oidc": provider.spec(keep_keys_s=1000.0)})
    app = make_app(site.context)
    clock = app.state.authenticator.clock = app.state.authenticator.verifier.keys.clock = Clock()
    token = provider.token("olga")
    assert Caller(app, token).get("/whoami").status_code == 200
    provider.close()
    clock.now_s += 900.0
    assert Caller(app, token).get("/whoami").status_code == 200  # with the known key, though it is due
    assert "keys cannot be fetched" in caplog.text
    assert Caller(app, provider.token("olga", provider.new_key("RSA"))).get("/whoami").status_code == 401
    assert Caller(app, site.tokens["ada"]).get("/whoami").status_code == 200
    clock.now_s += 101.0
    assert Caller(app, token).get("/whoami").status_code == 401  # too long ago
    site.close()


def test_a_service_starts_without_its_provider(tmp_path):
    site = StandIn(tmp_path, server={"oidc": {"issuer": "http://127.0.0.1:9", "audience": "commonwatt"}})
    app = make_app(site.context)
    assert Caller(app, site.tokens["ada"]).get("/whoami").status_code == 200
    assert Caller(app, None).get("/login").json()["client_id"] == "commonwatt"
    site.close()


@pytest.mark.parametrize(
    "document", ["[]", "{}", '{"issuer": "https://evil.example.org"}', '{"issuer": ISSUER}', "x" * 2_000_000,
                 '{"issuer": ISSUER, "jwks_uri": "http://evil.example.org/"}', "\x00"]
)  # fmt: skip
def test_a_provider_that_says_something_else_is_not_believed(provider, says, monkeypatch, document):
    answers = []

    async def other(client, url):
        answers.append(url)
        text = document.replace("ISSUER", json.dumps(provider.issuer))
        return json.loads(text) if "configuration" in url else pytest.fail(url)

    monkeypatch.setattr(oidc, "document", other)
    assert says(provider.token("ann")).status_code == 401
    assert len(answers) == 1


@pytest.mark.slow
def test_a_name_cannot_write_into_the_log(provider, app, site):
    name = "x\n2026 operator, token 1\x1b[2J"
    ann = Caller(app, provider.token("ann", preferred_username=name))
    assert ann.get("/whoami").json()["label"] == "ann (x?2026 operator, token 1?[2J)"
    ann.post("/jobs", json=job())
    actor = site.store.audit()[-1]["actor"]
    assert actor == "tenant red, oidc ann (x?2026 operator, token 1?[2J)"


def test_a_role_without_its_tenant_is_refused(tmp_path):
    from pydantic import ValidationError

    from commonwatt.model.identity import OidcSpec

    good = {"issuer": "https://sso.example.org", "audience": "x"}
    assert OidcSpec.model_validate(good).groups == ()
    for group in ({"role": "member"}, {"role": "admin"}, {}, {"role": "operator", "tenant": "red"}, {"role": "king"}):
        with pytest.raises(ValidationError):
            OidcSpec.model_validate(good | {"groups": [{"group": "g", **group}]})
    for bad in (
        {"issuer": "http://sso.example.org"}, {"issuer": "https://a@b"}, {"issuer": "ftp://x"}, {"issuer": ""},
        {"algorithms": ["none"]}, {"algorithms": ["HS256"]}, {"algorithms": []}, {"skew_s": 1e9},
    ):  # fmt: skip
        with pytest.raises(ValidationError):
            OidcSpec.model_validate(good | bad)
