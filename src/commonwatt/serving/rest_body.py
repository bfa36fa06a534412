"""Bodies of REST requests: read within limits of size and time, decoded to tensors and encoded again.

A body is JSON, with or without binary data behind it.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from commonwatt.devices.base import Tensor
from commonwatt.serving.backend import ModelDescription
from commonwatt.serving.rejections import GoneError, RequestError, SlowClientError, TooLargeError
from commonwatt.serving.tensors import (
    Given,
    TensorError,
    checked_datatype,
    checked_shape,
    datatype_of,
    from_json,
    from_raw,
    shown_name,
    to_json,
    to_raw,
)

__all__ = [
    "InferBody",
    "decode_infer",
    "decode_json",
    "encode_infer",
    "header_length_of",
    "inflate",
    "read_body",
    "until_gone",
]

Receive = Callable[[], Awaitable[Any]]

PATIENCE_S = 60.0  # longest wait for the next piece of a body
LARGE = 65536  # bytes of compressed data from which on a thread inflates them
ENCODINGS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
ALIGNMENT = 16


async def read_body(receive: Receive, headers: Mapping[str, str], largest: int) -> memoryview:
    """Return the body, decompressed; raises ``TooLargeError`` as soon as it exceeds *largest* bytes."""
    declared = headers.get("content-length")
    if declared is not None and declared.isdecimal() and int(declared[:20]) > largest:
        raise _too_large(largest)
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in {"identity", *ENCODINGS}:
        raise RequestError("got an unknown Content-Encoding, expected gzip, deflate or identity")
    lead = -(header_length_of(headers) or 0) % ALIGNMENT  # padding, so that the data behind the JSON are aligned
    if coding == "identity":
        pieces = [b" " * lead, *await _pieces(receive, largest)]
        return memoryview(b"".join(pieces))[lead:]
    packed = b"".join(await _pieces(receive, largest))
    if len(packed) < LARGE:
        return inflate(packed, coding, largest)
    return await asyncio.to_thread(inflate, packed, coding, largest)


def inflate(packed: bytes, coding: str, largest: int) -> memoryview:
    """Decompress *packed*; raises ``TooLargeError`` beyond *largest* bytes."""
    unpacking = zlib.decompressobj(ENCODINGS[coding])
    try:
        body = unpacking.decompress(packed, largest + 1)
    except zlib.error:
        raise RequestError(f"got a body that is not {coding}, expected {coding} as Content-Encoding says") from None
    if len(body) > largest:
        raise _too_large(largest)
    if not unpacking.eof or unpacking.unused_data:
        raise RequestError(f"got {coding} data that are truncated or have trailing bytes, expected one whole stream")
    return memoryview(body)


def header_length_of(headers: Mapping[str, str]) -> int | None:
    """Return the length of the JSON before binary data; ``None`` if the body is all JSON."""
    text = headers.get("inference-header-content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise RequestError("got an Inference-Header-Content-Length that is not a number of bytes")
    return int(text)


async def until_gone(receive: Receive) -> None:
    """Return when the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _pieces(receive: Receive, largest: int) -> list[bytes]:
    pieces: list[bytes] = []
    total = 0
    while True:
        try:
            async with asyncio.timeout(PATIENCE_S):
                message = await receive()
        except TimeoutError:
            raise SlowClientError(f"got no data of the body for {PATIENCE_S:.0f} s") from None
        if message["type"] == "http.disconnect":
            raise GoneError
        piece = message.get("body", b"")
        total += len(piece)
        if total > largest:
            raise _too_large(largest)
        pieces.append(piece)
        if not message.get("more_body", False):
            return pieces


def _too_large(largest: int) -> TooLargeError:
    limits = "server.largest_request_mb; at most 1 MB where a body has no tensors"
    return TooLargeError(f"got a body of more than {largest} bytes, expected at most that ({limits})")


_JSON = {type(None): "null", bool: "true or false", str: "a string", list: "an array"}
LARGEST_JSON = 8_000_000  # bytes; decoding takes about 20 ns each, during which no other request is served


@dataclass(frozen=True)
class InferBody:
    """A request for an inference."""

    id: str | None
    inputs: tuple[Given, ...]
    outputs: dict[str, bool]  # name and whether as binary data; empty: all
    binary: bool  # default for outputs that do not say


def decode_json(text: bytes | memoryview) -> dict[str, Any]:
    """Return the JSON object in *text*; raises ``RequestError``."""
    try:
        value = json.loads(str(text, "utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise RequestError("got a body that is not UTF-8, expected JSON") from None
    except (ValueError, RecursionError) as error:
        why = "nested too deep" if isinstance(error, RecursionError) else ascii(str(error)[:100])
        if "set_int_max_str_digits" in str(error):
            why = "a number of thousands of digits"
        raise RequestError(f"got a body that is not JSON ({why}), expected a JSON object") from None
    if not isinstance(value, dict):
        raise RequestError(f"got JSON that is {_JSON.get(type(value), 'a number')}, expected an object")
    return value


def decode_infer(body: memoryview, header_length: int | None, model: str) -> InferBody:
    """Return the request in *body*, whose JSON is *header_length* bytes long (``None``: all of it)."""
    if header_length is not None and header_length > len(body):
        raise RequestError(
            f"got Inference-Header-Content-Length {header_length}, expected at most {len(body)}, the length of the body"
        )
    end = len(body) if header_length is None else header_length
    if end > LARGEST_JSON:
        raise TooLargeError(
            f"got {end} bytes of JSON, expected at most {LARGEST_JSON}; send large tensors as binary data"
        )
    document = decode_json(body[:end])
    identity = document.get("id")
    if identity is not None and not isinstance(identity, str):
        raise RequestError("got an id that is not a string, expected a string")
    binary = _flag(_parameters(document, "the request"), "binary_data_output", "the request") or False
    rest = body[end:] if header_length is not None else None
    return InferBody(identity, _inputs(document, rest, f"model {shown_name(model)}"), _outputs(document), binary)


def encode_infer(
    model: ModelDescription, version: str, body: InferBody, outputs: Mapping[str, Tensor]
) -> tuple[bytes, int | None]:
    """Return the response to *body*, and the length of its JSON if binary data follow."""
    described: list[dict[str, Any]] = []
    parts: list[bytes | memoryview] = []
    for name in body.outputs or outputs:
        tensor = outputs[name]
        row: dict[str, Any] = {"name": name, "datatype": datatype_of(tensor), "shape": list(tensor.shape)}
        if body.outputs.get(name, body.binary):
            raw = to_raw(tensor)
            row["parameters"] = {"binary_data_size": len(raw)}
            parts.append(raw)
        else:
            try:
                row["data"] = to_json(tensor)
            except TensorError as error:
                raise RequestError(f"model {shown_name(model.name)}: output {shown_name(name)} {error}") from None
        described.append(row)
    answer: dict[str, Any] = {"model_name": model.name, "model_version": version, "outputs": described}
    if body.id is not None:
        answer["id"] = body.id
    text = json.dumps(answer, allow_nan=False).encode()
    return (b"".join((text, *parts)), len(text)) if parts else (text, None)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _parameters(holder: Mapping[str, Any], where: str) -> dict[str, Any]:
    parameters = holder.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise RequestError(f"{where}: got parameters that are not an object, expected an object")
    for name in ("shared_memory_region", "classification"):
        if name in parameters:
            raise RequestError(f"{where}: got parameter {name!r}, expected none, as it is not supported")
    return parameters


def _flag(parameters: Mapping[str, Any], name: str, where: str) -> bool | None:
    value = parameters.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"{where}: got a value of {name} that is not a boolean, expected true or false")
    return value


def _rows(document: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    rows = document.get(field)
    if rows is None and field == "outputs":
        return []
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and isinstance(row.get("name"), str) for row in rows
    ):
        raise RequestError(f"got no list of {field} with names, expected {field}: [{{name: ...}}]")
    return rows


def _inputs(document: Mapping[str, Any], rest: memoryview | None, model: str) -> tuple[Given, ...]:
    given = []
    place = 0
    for row in _rows(document, "inputs"):
        where = f"{model}, input {shown_name(row['name'])}"
        size = _parameters(row, where).get("binary_data_size")
        try:
            datatype = checked_datatype(row.get("datatype"))
            shape = checked_shape(row.get("shape"), datatype)
        except TensorError as error:
            raise RequestError(f"{where}: {error}") from None
        if size is None:
            if "data" not in row:
                raise RequestError(f"{where}: got neither data nor binary_data_size, expected one of them")
            given.append(Given(row["name"], datatype, shape, partial(from_json, row["data"], datatype, shape)))
            continue
        raw = _binary(row, size, None if rest is None else rest[place:], where)
        place += len(raw)
        given.append(Given(row["name"], datatype, shape, partial(from_raw, raw, datatype, shape)))
    if rest is not None and place != len(rest):
        raise RequestError(f"{model}: got {len(rest)} bytes of binary data, expected the {place} of its inputs")
    return tuple(given)


def _binary(row: Mapping[str, Any], size: object, rest: memoryview | None, where: str) -> memoryview:
    if "data" in row:
        raise RequestError(f"{where}: got both data and binary_data_size, expected one of them")
    if type(size) is not int or size < 0:
        raise RequestError(f"{where}: got a binary_data_size that is not a number of bytes")
    if rest is None:
        raise RequestError(f"{where}: got binary_data_size without the header Inference-Header-Content-Length")
    if size > len(rest):
        got = size if size < 10**18 else "more than 10^18"
        raise RequestError(f"{where}: got binary_data_size {got}, expected at most the remaining {len(rest)} bytes")
    return rest[:size]


def _outputs(document: Mapping[str, Any]) -> dict[str, bool]:
    default = _flag(_parameters(document, "the request"), "binary_data_output", "the request") or False
    wanted: dict[str, bool] = {}
    for row in _rows(document, "outputs"):
        name = row["name"]
        if name in wanted:
            raise RequestError(f"got output {shown_name(name)} twice, expected it once")
        where = f"output {shown_name(name)}"
        binary = _flag(_parameters(row, where), "binary_data", where)
        wanted[name] = default if binary is None else binary
    return wanted
