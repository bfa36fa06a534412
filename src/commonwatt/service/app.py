"""The application: all resources, and what surrounds them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from commonwatt import __version__
from commonwatt.model.fields import FileModel
from commonwatt.model.job_file import JobFile
from commonwatt.model.live_results import ModeOrder, Problem, TenantOrder, TokenOrder
from commonwatt.service import cluster, health, jobs, page, scrape, stream, tenants, tokens
from commonwatt.service.desk import Desk
from commonwatt.service.envelope import Envelope
from commonwatt.service.guard import Guard
from commonwatt.service.http_times import HttpTimes
from commonwatt.service.metrics import metrics_page
from commonwatt.service.parameters import PREFIX
from commonwatt.service.problems import install, refusals
from commonwatt.service.recent import Recent

__all__ = ["make_app"]

_RESOURCES = (jobs, tenants, cluster, tokens, stream)
_OTHERS = (health, page, scrape)
_BODIES: tuple[type[FileModel], ...] = (JobFile, ModeOrder, TenantOrder, TokenOrder)


def make_app(desk: Desk) -> FastAPI:
    """Return the application."""
    app = FastAPI(
        title="commonwatt", version=__version__, docs_url=None, redoc_url=None, openapi_url=f"{PREFIX}/openapi.json",
        redirect_slashes=False, description="The live control plane: jobs, tenants, nodes, energy.",
    )  # fmt: skip
    app.state.desk, app.state.recent = desk, Recent()
    app.state.guard = Guard(desk.store, desk.config.live.server.requests_per_s)
    app.state.streams = Counter()
    times, profiling = HttpTimes(), desk.config.live.profiling
    app.state.metrics = metrics_page(
        board=desk.board, store=desk.store, counts=desk.counts, http=times,
        currency=desk.config.electricity.currency, set_aside=profiling.nodes if profiling else (),
    )  # fmt: skip
    for part in _RESOURCES:
        app.include_router(part.router, responses=refusals(401, 422, 429, 500, 503))
    for part in _OTHERS:
        app.include_router(part.router)
    app.state.routes = [route for part in (*_RESOURCES, *_OTHERS) for route in part.router.routes]
    install(app)
    app.add_middleware(Envelope, observe=times.observe)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    return app


def _described(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, with the models of bodies and of refusals among its components."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = document["components"]["schemas"]
        schemas["Problem"] = Problem.model_json_schema()
        schemas |= {model.__name__: model.model_json_schema() for model in _BODIES}
        command = schemas["JobFile"]["properties"]["command"]
        listed = {name: command.pop(name) for name in ("type", "items", "minItems")}
        command["anyOf"] = [listed, {"type": "string", "minLength": 1}]
        app.openapi_schema = document
    return app.openapi_schema
