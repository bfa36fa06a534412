"""Request bodies: JSON into a model, with the same errors as for files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from commonwatt.data.files import validate
from commonwatt.model.errors import InputError
from commonwatt.model.fields import FileModel
from commonwatt.service.problems import ApiRefusal

__all__ = ["body_of", "described"]

M = TypeVar("M", bound=FileModel)
_LONGEST_S = 30.0


def body_of(model: type[M]) -> Callable[[Request], Awaitable[M]]:
    """Return a dependency that reads the body into *model*."""

    async def read(request: Request) -> M:
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise ApiRefusal(415, f"got a body of type {media_type[:80]!r}, expected application/json")
        try:
            async with asyncio.timeout(_LONGEST_S):
                raw = await request.body()
        except TimeoutError:
            raise ApiRefusal(408, "the body did not arrive in time") from None
        except ClientDisconnect:
            raise ApiRefusal(400, "the connection ended before the end of the body") from None
        return validate(_parsed(raw), model, strict=True)

    return read


def described(model: type[FileModel]) -> dict[str, Any]:
    """Return the body's description for OpenAPI, which refers to a schema among the components."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        document = json.loads(raw.decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_constant)
        json.dumps(document, ensure_ascii=False).encode("utf-8")
    except InputError as error:
        raise ApiRefusal(400, str(error), field=error.field, expected=error.expected) from None
    except UnicodeError:
        raise ApiRefusal(400, "expected JSON in valid UTF-8") from None
    except RecursionError:
        raise ApiRefusal(400, "expected JSON with less nesting") from None
    except ValueError as error:
        raise ApiRefusal(400, f"expected JSON: {error}") from None
    if not isinstance(document, dict):
        raise ApiRefusal(422, "expected a JSON object of fields", expected="a JSON object of fields")
    return document


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InputError("each key once", field=twice)
    for key, value in pairs:
        if "\0" in key or (isinstance(value, str) and "\0" in value):
            raise InputError("text without NUL characters", field=key.replace("\0", "?"))
        if isinstance(value, list) and any(isinstance(entry, str) and "\0" in entry for entry in value):
            raise InputError("text without NUL characters", field=key)
    return document


def _no_constant(name: str) -> float:
    msg = f"{name} is not a JSON number"
    raise ValueError(msg)
