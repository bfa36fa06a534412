"""Text from a file that may be gzipped. Every failure is an ``InputError``."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from commonwatt.model.errors import InputError

__all__ = ["read_text"]

_GZIP_MAGIC = b"\x1f\x8b"
_MAGIC = {
    b"\x89PNG": "a picture", b"%PDF": "a PDF document", b"SQLite format 3": "an SQLite database",
    b"PK\x03\x04": "a ZIP archive, as spreadsheets are: save it as CSV", b"PAR1": "a Parquet file",
}  # fmt: skip


def read_text(path: str | Path) -> str:
    """Return the text of *path*, decompressed if its content (not its name) is gzip.

    Raises ``InputError`` if it is missing, a folder, unreadable, a damaged gzip, empty or not UTF-8.
    """
    data = _read_bytes(Path(path))
    if data.startswith(_GZIP_MAGIC):
        data = _gunzip(data, path)
    if what := _binary(data):
        raise InputError(f"text; this is {what}", file=path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"UTF-8 text{_conversion(data)}", file=path, field=f"line {line}",
            value=f"byte 0x{data[error.start]:02x} at position {error.start}",
        ) from None  # fmt: skip
    if not text.strip():
        raise InputError("some content", file=path, value="an empty file")
    return text


def _binary(data: bytes) -> str:
    """Return what *data* is that is no text, and which command reads it; "": it may be text."""
    if data[8:9] == b"{" and int.from_bytes(data[:8], "little") <= len(data):
        return "a fitted model: use `commonwatt forecast predict`, or `forecast plan SERIES --model FILE`"
    return next((what for begins, what in _MAGIC.items() if data.startswith(begins)), "")


def _conversion(data: bytes) -> str:
    """Return, in brackets, what may convert text that is not UTF-8; "": it looks like no text."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return " (iconv -f UTF-16 -t UTF-8 converts UTF-16)"
    control = sum(byte < 32 and byte not in b"\t\n\r\f" for byte in data[:4096])
    return " (iconv -f LATIN1 -t UTF-8 converts Latin-1)" if not control else ""


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError("an existing file", file=path) from None
    except IsADirectoryError:
        raise InputError("a file, not a folder", file=path) from None
    except OSError as error:
        raise InputError("a file that can be read", file=path, value=error.strerror) from None
    except ValueError:
        raise InputError("a path without NUL characters", file=ascii(str(path))) from None


def _gunzip(data: bytes, path: str | Path) -> bytes:
    try:
        return gzip.decompress(data)
    except EOFError:
        raise InputError("a complete gzip file", file=path, value="a truncated one") from None
    except (OSError, zlib.error) as error:
        raise InputError("an intact gzip file", file=path, value=error) from None
