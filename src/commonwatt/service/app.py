"""The application: all resources and their middleware, the dashboard's files, health and metrics."""

from __future__ import annotations

import gzip
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException

from commonwatt import __version__
from commonwatt.controlplane.identity import peers_of
from commonwatt.model.errors import StoreError
from commonwatt.model.fields import FileModel
from commonwatt.model.job_file import JobFile
from commonwatt.model.live_results import (
    FairnessOrder,
    Health,
    ModeOrder,
    PhiOrder,
    ProblemDetail,
    TenantOrder,
    TokenOrder,
)
from commonwatt.service import cluster, jobs, sign_in, stream, tenants
from commonwatt.service.auth import Authenticator, Watcher
from commonwatt.service.context import PREFIX, AnswerCache, ServiceContext, TtlCache, context_of
from commonwatt.service.metrics import metrics_page
from commonwatt.service.middleware import HttpTimes, Middleware
from commonwatt.service.oidc import TokenVerifier
from commonwatt.service.problems import install, refusals
from commonwatt.service.sign_in import SignIns

__all__ = ["make_app"]

_ROUTERS = (jobs.router, tenants.router, cluster.router, tenants.operators, stream.router)
_LATE_S = 2.0
"""Counts and sums that are asked for again and again may be so much older than the second they are kept for."""
_BODIES: tuple[type[FileModel], ...] = (JobFile, FairnessOrder, ModeOrder, PhiOrder, TenantOrder, TokenOrder)


_monitoring = APIRouter(tags=["health"])
_page = APIRouter(include_in_schema=False)

_FAILING: dict[int | str, dict[str, Any]] = {503: {"model": Health, "description": "Not at this time."}}


def make_app(context: ServiceContext) -> FastAPI:
    """Return the application."""
    app = FastAPI(
        title="commonwatt", version=__version__, docs_url=None, redoc_url=None, openapi_url=f"{PREFIX}/openapi.json",
        redirect_slashes=False, description="The live control plane: jobs, tenants, nodes, energy.",
    )  # fmt: skip
    app.state.context, app.state.cache, app.state.answers = context, TtlCache(late_s=_LATE_S), AnswerCache()
    server = context.config.live.server
    verifier = None if server.oidc is None else TokenVerifier(server.oidc, context.folder)
    app.state.authenticator = Authenticator(
        context.store, server.requests_per_s, verifier=verifier, peers=peers_of(context.config)
    )
    app.state.sign_ins = None
    if server.oidc is not None and verifier is not None:
        app.state.sign_ins = SignIns(server.oidc, context.folder, verifier, server.public_url)
    app.state.streams = Counter()
    times, profiling = HttpTimes(), context.config.live.profiling
    app.state.metrics = metrics_page(
        snapshot=context.snapshot, store=context.store, counts=context.counts, http=times,
        currency=context.config.electricity.currency, reserved=profiling.nodes if profiling else (),
    )  # fmt: skip
    for router in _ROUTERS:
        app.include_router(router, responses=refusals(401, 422, 429, 500, 503))
    for router in (_monitoring, _page, sign_in.router):
        app.include_router(router)
    routers = (*_ROUTERS, _monitoring, _page, sign_in.router)
    app.state.routes = [route for router in routers for route in router.routes]
    install(app)
    app.add_middleware(Middleware, observe=times.observe)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    return app


def _described(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, with the models of request bodies and of refusals among its components."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = document["components"]["schemas"]
        schemas["Problem"] = ProblemDetail.model_json_schema()
        schemas |= {model.__name__: model.model_json_schema() for model in _BODIES}
        command = schemas["JobFile"]["properties"]["command"]
        listed = {name: command.pop(name) for name in ("type", "items", "minItems")}
        command["anyOf"] = [listed, {"type": "string", "minLength": 1}]
        app.openapi_schema = document
    return app.openapi_schema


@_monitoring.get("/healthz", response_model=Health, responses=_FAILING)
async def healthz(request: Request, response: Response) -> Health:
    """Return whether the controller works, or stands by for another one."""
    snapshot = context_of(request).snapshot()
    return _health(response, good=snapshot.healthy, standby=snapshot.role == "standby")


@_monitoring.get("/livez", response_model=Health, responses=_FAILING)
async def livez(request: Request, response: Response) -> Health:
    """Return whether a restart is not needed: the controller goes on, also while its engine or database is down."""
    return _health(response, good=context_of(request).alive())


@_monitoring.get("/readyz", response_model=Health, responses=_FAILING)
def readyz(request: Request, response: Response) -> Health:
    """Return whether the database answers, so that jobs can be accepted."""
    try:
        context_of(request).store.setting("mode")
    except StoreError:
        return _health(response, good=False)
    return _health(response, good=True)


@_monitoring.get("/metrics", dependencies=[Watcher], include_in_schema=False)
def metrics(request: Request) -> Response:
    """Return all metrics as text: with an operator's token, or without a token from this machine."""
    body, kind = request.app.state.metrics()
    return Response(body, headers={"Content-Type": kind, "Cache-Control": "no-store"})


def _health(response: Response, *, good: bool, standby: bool = False) -> Health:
    response.status_code = 200 if good else 503
    return Health(status="failing" if not good else "standby" if standby else "ok", version=__version__)


_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True)
class _Asset:
    """A file as it is sent."""

    body: bytes
    packed: bytes
    digest: str
    media_type: str


@_page.get("/")
def page(request: Request) -> Response:
    """Return the page."""
    return _answer(request, "index.html")


@_page.get("/static/{name}")
def static(request: Request, name: str) -> Response:
    """Return a file of the page."""
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    if name not in _sources():
        raise HTTPException(404)
    asset = _asset(name)
    tag = f'"{asset.digest}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding", "Content-Security-Policy": _POLICY}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(asset.packed, headers=headers | {"Content-Encoding": "gzip"}, media_type=asset.media_type)
    return Response(asset.body, headers=headers, media_type=asset.media_type)


@cache
def _sources() -> Mapping[str, Callable[[], bytes]]:
    """Return a reader for each file by name; no other file can be requested."""
    folder = resources.files("commonwatt.service").joinpath("static")
    return {file.name: file.read_bytes for file in folder.iterdir()} | {"plotly.js": _plotly}


@cache
def _asset(name: str) -> _Asset:
    body = _sources()[name]()
    media_type = _TYPES["." + name.rpartition(".")[2]]
    return _Asset(body, gzip.compress(body, 6, mtime=0), hashlib.sha256(body).hexdigest()[:32], media_type)


def _plotly() -> bytes:
    from plotly.offline import get_plotlyjs

    text: str = get_plotlyjs()
    return text.encode()
