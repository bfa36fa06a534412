"""The dashboard: one page, its scripts, and plotly.js from the installed package. It loads nothing from other hosts."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

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


@router.get("/")
def page(request: Request) -> Response:
    """Return the page."""
    return _answer(request, "index.html")


@router.get("/static/{name}")
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
