"""Reading the body of a REST request: no more than it may be, no longer than is decent, inflated with care."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from commonwatt.serving.refusals import GoneError, RequestError, SlowClientError, TooLargeError

__all__ = ["header_length_of", "inflate", "read_body", "until_gone"]

Receive = Callable[[], Awaitable[Any]]

PATIENCE_S = 60.0  # for the next piece of a body
LARGE = 65536  # bytes of compressed data that are inflated beside the loop, not in it
ENCODINGS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
ALIGNMENT = 16


async def read_body(receive: Receive, headers: Mapping[str, str], largest: int) -> memoryview:
    """Return the body, inflated; raises ``TooLargeError`` as soon as it is known to be too large."""
    declared = headers.get("content-length")
    if declared is not None and declared.isdecimal() and int(declared[:20]) > largest:
        raise _too_large(largest)
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in {"identity", *ENCODINGS}:
        raise RequestError("got a Content-Encoding that is not known, expected gzip, deflate or identity")
    lead = -(header_length_of(headers) or 0) % ALIGNMENT  # blanks before the JSON, so that data behind it are aligned
    if coding == "identity":
        pieces = [b" " * lead, *await _pieces(receive, largest)]
        return memoryview(b"".join(pieces))[lead:]
    packed = b"".join(await _pieces(receive, largest))
    if len(packed) < LARGE:
        return inflate(packed, coding, largest)
    return await asyncio.to_thread(inflate, packed, coding, largest)


def inflate(packed: bytes, coding: str, largest: int) -> memoryview:
    """Return what is packed in *packed*; stops with ``TooLargeError`` at *largest* bytes."""
    unpacking = zlib.decompressobj(ENCODINGS[coding])
    try:
        body = unpacking.decompress(packed, largest + 1)
    except zlib.error:
        raise RequestError(f"got a body that is not {coding}, expected {coding} as Content-Encoding says") from None
    if len(body) > largest:
        raise _too_large(largest)
    if not unpacking.eof or unpacking.unused_data:
        raise RequestError(f"got {coding} data that end too early or go on after their end, expected one whole stream")
    return memoryview(body)


def header_length_of(headers: Mapping[str, str]) -> int | None:
    """Return the length of the JSON before binary data; ``None`` if the body is all JSON."""
    text = headers.get("inference-header-content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise RequestError("got an Inference-Header-Content-Length that is no number of bytes, expected one")
    return int(text)


async def until_gone(receive: Receive) -> None:
    """Return when the client is gone."""
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
            raise SlowClientError(f"got no more of the body for {PATIENCE_S:.0f} s") from None
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
    return TooLargeError(f"got a body of more than {largest} bytes, expected at most that (server.largest_request_mb)")
