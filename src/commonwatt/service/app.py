"""The application: all resources and their middleware, with health and metrics for monitoring."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi

from commonwatt import __version__
from commonwatt.model.errors import StoreError
from commonwatt.model.fields import FileModel
from commonwatt.model.job_file import JobFile
from commonwatt.model.live_results import Health, ModeOrder, ProblemDetail, TenantOrder, TokenOrder
from commonwatt.service import cluster, jobs, page, stream, tenants, tokens
from commonwatt.service.auth import Authenticator, Watcher
from commonwatt.service.context import PREFIX, ServiceContext, context_of
from commonwatt.service.metrics import metrics_page
from commonwatt.service.middleware import HttpTimes, Middleware
from commonwatt.service.problems import install, refusals
from commonwatt.service.ttl_cache import TtlCache

__all__ = ["make_app"]

_RESOURCES = (jobs, tenants, cluster, tokens, stream)
_BODIES: tuple[type[FileModel], ...] = (JobFile, ModeOrder, TenantOrder, TokenOrder)


_monitoring = APIRouter(tags=["health"])

_FAILING: dict[int | str, dict[str, Any]] = {503: {"model": Health, "description": "Not at this time."}}


def make_app(context: ServiceContext) -> FastAPI:
    """Return the application."""
    app = FastAPI(
        title="commonwatt", version=__version__, docs_url=None, redoc_url=None, openapi_url=f"{PREFIX}/openapi.json",
        redirect_slashes=False, description="The live control plane: jobs, tenants, nodes, energy.",
    )  # fmt: skip
    app.state.context, app.state.cache = context, TtlCache()
    app.state.authenticator = Authenticator(context.store, context.config.live.server.requests_per_s)
    app.state.streams = Counter()
    times, profiling = HttpTimes(), context.config.live.profiling
    app.state.metrics = metrics_page(
        snapshot=context.snapshot, store=context.store, counts=context.counts, http=times,
        currency=context.config.electricity.currency, set_aside=profiling.nodes if profiling else (),
    )  # fmt: skip
    for part in _RESOURCES:
        app.include_router(part.router, responses=refusals(401, 422, 429, 500, 503))
    for router in (_monitoring, page.router):
        app.include_router(router)
    routers = (*(part.router for part in _RESOURCES), _monitoring, page.router)
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
    """Return whether the controller works."""
    return _health(response, good=context_of(request).snapshot().healthy)


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


def _health(response: Response, *, good: bool) -> Health:
    response.status_code = 200 if good else 503
    return Health(status="ok" if good else "failing", version=__version__)
