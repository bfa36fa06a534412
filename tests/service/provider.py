"""An OpenID Connect provider on loopback, made with Authlib: device and code flow, refresh, revocation, rotation."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import flask
from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientMixin, grants
from authlib.oauth2.rfc7009 import RevocationEndpoint
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc8628 import DeviceAuthorizationEndpoint, DeviceCodeGrant
from authlib.oauth2.rfc8628 import DeviceCredentialDict as DeviceCredential
from joserfc import jwk, jwt
from werkzeug.serving import make_server

CLIENT = "commonwatt"
PEOPLE = {"ann": ["gpu-red", "staff"], "ben": ["gpu-blue"], "eve": ["staff"], "olga": ["gpu-ops"]}
GROUPS = [
    {"group": "gpu-red", "tenant": "red"}, {"group": "gpu-blue", "tenant": "blue", "role": "admin"},
    {"group": "gpu-ops", "role": "operator"}, {"group": "auditors", "role": "viewer"},
]  # fmt: skip


SECRET = "of the dashboard"
METHODS = ("none", "client_secret_basic")


class Public(ClientMixin):
    """The command line, a client without a secret; the dashboard may have one."""

    def check_client_secret(self, client_secret):
        return client_secret == SECRET

    def get_client_id(self):
        return CLIENT

    def get_allowed_scope(self, scope):
        return scope or ""

    def check_redirect_uri(self, redirect_uri):
        return redirect_uri.startswith("http://127.0.0.1:")

    def check_endpoint_auth_method(self, method, endpoint):
        return method in METHODS

    def check_response_type(self, response_type):
        return response_type == "code"

    def check_grant_type(self, grant_type):
        return True


@dataclass
class Issued:
    """A refresh token, or an authorization code."""

    user: str
    scope: str
    redirect_uri: str | None = None
    code_challenge: str | None = None
    code_challenge_method: str | None = None

    def check_client(self, client):
        return True

    def get_scope(self):
        return self.scope

    def get_redirect_uri(self):
        return self.redirect_uri

    def is_expired(self):
        return False

    def is_revoked(self):
        return False


class Provider:
    """Runs until ``close``. ``approved`` has the people who have confirmed, by the code that they were shown."""

    def __init__(self) -> None:
        self.approved: dict[str, tuple[str, bool]] = {}
        self.polls = 0
        self.devices: dict[str, Any] = {}
        self.codes: dict[str, Issued] = {}
        self.refresh: dict[str, Issued] = {}
        self.reset()
        app = self._app()
        self._server = make_server("127.0.0.1", 0, app, threaded=True)
        self.issuer = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """Begin anew, with one new key."""
        self.keys = [self.new_key("RSA")]
        self.published: list[Any] | None = None
        self.user = "ann"  # who sits at the browser
        self.slow_s, self.broken = 0.0, False
        self.secrets: set[str | None] = set()  # by what clients prove who they are
        self.jwks_requests, self.lifetime_s = 0, 300.0
        self.refresh.clear()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(30)
        self._server.server_close()

    @staticmethod
    def new_key(kind: str, size: Any = None, **facts: Any) -> Any:
        cls = jwk.RSAKey if kind == "RSA" else jwk.ECKey
        made = cls.generate_key(size or (2048 if kind == "RSA" else "P-256"), {"use": "sig", **facts})
        made.ensure_kid()
        return made

    def spec(self, **more: Any) -> dict[str, Any]:
        return {"issuer": self.issuer, "audience": CLIENT, "groups": GROUPS, **more}

    def claims(self, who: str = "ann", **more: Any) -> dict[str, Any]:
        now_s = int(time.time())
        claims = {
            "iss": self.issuer, "aud": CLIENT, "sub": who, "iat": now_s, "exp": now_s + self.lifetime_s,
            "preferred_username": f"{who}@example.org", "groups": PEOPLE.get(who, []),
        }  # fmt: skip
        return {name: value for name, value in (claims | more).items() if value is not None}

    def token(self, who: str = "ann", key: Any = None, header: dict[str, Any] | None = None, **claims: Any) -> str:
        key = key or self.keys[-1]
        algorithm = "RS256" if key.key_type == "RSA" else "ES256"
        head = {"alg": algorithm, "kid": key.kid} | (header or {})
        head = {name: value for name, value in head.items() if value is not None}
        return jwt.encode(head, self.claims(who, **claims), key, algorithms=[head["alg"]])

    def _app(self) -> flask.Flask:
        app = flask.Flask("provider")
        server = AuthorizationServer(app, query_client=lambda id_: Public() if id_ == CLIENT else None,
                                     save_token=self._saved)  # fmt: skip
        provider, id_token = self, self._add_id_token

        class Extension:
            def __call__(self, grant):
                grant.register_hook("after_create_token_response", id_token)

        class Code(grants.AuthorizationCodeGrant):
            TOKEN_ENDPOINT_AUTH_METHODS = METHODS

            def save_authorization_code(self, code, request):
                asked = request.payload
                challenge = [asked.data.get(name) for name in ("code_challenge", "code_challenge_method")]
                provider.codes[code] = Issued(request.user, asked.scope, asked.redirect_uri, *challenge)

            def query_authorization_code(self, code, client):
                return provider.codes.get(code)

            def delete_authorization_code(self, authorization_code):
                provider.codes = {code: one for code, one in provider.codes.items() if one is not authorization_code}

            def authenticate_user(self, authorization_code):
                return authorization_code.user

        class Refresh(grants.RefreshTokenGrant):
            TOKEN_ENDPOINT_AUTH_METHODS = METHODS
            INCLUDE_NEW_REFRESH_TOKEN = True

            def authenticate_refresh_token(self, refresh_token):
                self.used = refresh_token
                return provider.refresh.get(refresh_token)

            def authenticate_user(self, refresh_token):
                return refresh_token.user

            def revoke_old_credential(self, refresh_token):
                provider.refresh.pop(self.used)

        class Device(DeviceCodeGrant):
            TOKEN_ENDPOINT_AUTH_METHODS = ("none",)

            def query_device_credential(self, device_code):
                return provider.devices.get(device_code)

            def query_user_grant(self, user_code):
                return provider.approved.get(user_code)

            def should_slow_down(self, credential):
                provider.polls += 1
                return provider.polls == 1

        class DeviceEndpoint(DeviceAuthorizationEndpoint):
            CLIENT_AUTH_METHODS = ("none",)

            def get_verification_uri(self):
                return f"{provider.issuer}/device"

            def save_device_credential(self, client_id, scope, data):
                provider.devices[data["device_code"]] = DeviceCredential(
                    client_id=client_id, scope=scope, expires_at=time.time() + 600, **data
                )

        class Revoke(RevocationEndpoint):
            CLIENT_AUTH_METHODS = METHODS

            def query_token(self, token_string, token_type_hint):
                self.asked = token_string
                return provider.refresh.get(token_string)

            def revoke_token(self, token, request):
                provider.refresh.pop(self.asked)

        server.register_grant(Code, [CodeChallenge(required=True), Extension()])
        server.register_grant(Refresh, [Extension()])
        server.register_grant(Device, [Extension()])
        server.register_endpoint(DeviceEndpoint)
        server.register_endpoint(Revoke)
        app.config["OAUTH2_REFRESH_TOKEN_GENERATOR"] = True
        server.load_config(app.config)
        server.register_token_generator("default", server.create_bearer_token_generator(app.config))
        self._routes(app, server)
        return app

    def _routes(self, app: flask.Flask, server: AuthorizationServer) -> None:
        @app.before_request
        def before():
            time.sleep(self.slow_s)
            if flask.request.method == "POST":
                self.secrets.add(getattr(flask.request.authorization, "type", None))
            return flask.Response("away", 503) if self.broken else None

        @app.get("/.well-known/openid-configuration")
        def configuration():
            return {
                "issuer": self.issuer, "jwks_uri": f"{self.issuer}/jwks", "token_endpoint": f"{self.issuer}/token",
                "authorization_endpoint": f"{self.issuer}/authorize", "revocation_endpoint": f"{self.issuer}/revoke",
                "device_authorization_endpoint": f"{self.issuer}/device_authorization",
            }  # fmt: skip

        @app.get("/jwks")
        def jwks():
            self.jwks_requests += 1
            if self.published is not None:
                return {"keys": self.published}
            return {"keys": [key.as_dict(private=False) for key in self.keys]}

        @app.get("/authorize")
        def authorize():
            grant = server.get_consent_grant(end_user=self.user)
            return server.create_authorization_response(grant_user=self.user, grant=grant)

        app.add_url_rule("/token", "token", server.create_token_response, methods=["POST"])
        app.add_url_rule("/device_authorization", "device",
                         lambda: server.create_endpoint_response("device_authorization"), methods=["POST"])  # fmt: skip

        @app.post("/revoke")
        def revoke():  # without a body, as some do
            return flask.Response(status=server.create_endpoint_response("revocation").status_code)

    def _saved(self, token: dict[str, Any], request: Any) -> None:
        if "refresh_token" in token:
            self.refresh[token["refresh_token"]] = Issued(request.user, token["scope"])

    def _add_id_token(self, grant: Any, response: Any) -> None:
        _, token, _ = response
        token["id_token"] = self.token(grant.request.user)
