"""Tensors of the Open Inference Protocol to and from NumPy: JSON, binary data, typed contents. Pure.

Strings (``BYTES``) are arrays of dtype ``object`` that hold ``bytes``. Arrays made from binary data share its memory
and cannot be written to. No amount of memory is ever taken because of a shape alone; the data have to be there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from commonwatt.devices.base import Tensor

__all__ = [
    "CONTENTS",
    "TensorError",
    "checked_datatype",
    "checked_shape",
    "datatype_of",
    "from_json",
    "from_raw",
    "from_typed",
    "to_json",
    "to_raw",
]

KINDS: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"), "INT8": np.dtype("<i1"), "INT16": np.dtype("<i2"), "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"), "UINT8": np.dtype("<u1"), "UINT16": np.dtype("<u2"), "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"), "FP16": np.dtype("<f2"), "FP32": np.dtype("<f4"), "FP64": np.dtype("<f8"),
    "BYTES": np.dtype(object),
}  # fmt: skip
NAMES = {(kind.kind, kind.itemsize): name for name, kind in KINDS.items() if name != "BYTES"}

CONTENTS: dict[str, str] = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
"""Field of ``InferTensorContents`` for each datatype; FP16 has none."""

LARGEST = 2**60  # bytes of a shape, counting dimensions of 0 as 1; NumPy refuses little above
MOST_DIMENSIONS = 32
MOST_ITEMS = 1_000_000  # elements that Python takes one by one, while no other tenant is served


class TensorError(ValueError):
    """A tensor is not what its client says it is; the text says what was got and what was expected."""


def checked_datatype(datatype: object) -> str:
    """Return *datatype* if tensors of it can be taken; raises ``TensorError``."""
    if datatype == "BF16":
        raise TensorError("got datatype BF16, expected another one, as BF16 is not supported; send FP32 or FP16")
    if not isinstance(datatype, str) or datatype not in KINDS:
        raise TensorError(f"got datatype {_shown(datatype)}, expected one of {', '.join(KINDS)}")
    return datatype


def checked_shape(shape: object, datatype: str) -> tuple[int, ...]:
    """Return *shape* as a tuple if it is one; raises ``TensorError``."""
    if not isinstance(shape, list | tuple) or not all(type(length) is int for length in shape):
        raise TensorError(f"got shape {_shown(shape)}, expected a list of whole numbers")
    if any(length < 0 for length in shape):
        raise TensorError(f"got shape {_shown(list(shape))}, expected lengths of 0 or more")
    if len(shape) > MOST_DIMENSIONS:
        raise TensorError(f"got a shape of {len(shape)} dimensions, expected at most {MOST_DIMENSIONS}")
    if prod(max(length, 1) for length in shape) * KINDS[datatype].itemsize > LARGEST:
        raise TensorError(f"got shape {_shown(list(shape))}, expected one that a machine can hold")
    return tuple(shape)


def datatype_of(tensor: Tensor) -> str:
    """Return the protocol's name for the elements of *tensor*; raises ``TypeError`` if it has none."""
    kind = tensor.dtype
    if kind.kind in "OSU":
        return "BYTES"
    name = NAMES.get((kind.kind, kind.itemsize))
    if name is None:
        raise TypeError(f"tensors of {kind} have no datatype in the protocol")
    return name


def from_raw(data: bytes | memoryview, datatype: str, shape: tuple[int, ...]) -> Tensor:
    """Return the tensor whose elements stand in *data*, in row-major order and little-endian; copies nothing."""
    count = prod(shape)
    if datatype == "BYTES":
        _check_count(count, "strings")
        return _strings(_split(data, count, shape), shape)
    kind = KINDS[datatype]
    if len(data) != count * kind.itemsize:
        raise TensorError(
            f"got {len(data)} bytes of data, expected {count * kind.itemsize} for {datatype} of shape {list(shape)}"
        )
    if count == 0:
        return np.empty(shape, kind)
    if datatype == "BOOL" and int(np.frombuffer(data, np.uint8).max()) > 1:
        raise TensorError("got a byte above 1, expected 0 or 1 for each BOOL")
    tensor = np.frombuffer(data, kind).reshape(shape)
    return tensor if tensor.flags.aligned else tensor.copy()


def to_raw(tensor: Tensor) -> bytes | memoryview:
    """Return the elements of *tensor*, row-major and little-endian; copies only what is laid out otherwise."""
    if datatype_of(tensor) == "BYTES":
        items = _items(tensor)
        return b"".join(chain.from_iterable((struct.pack("<I", len(item)), item) for item in items))
    if tensor.size == 0:
        return b""
    laid_out = np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<"))
    return laid_out.reshape(-1).view(np.uint8).data


def from_json(data: object, datatype: str, shape: tuple[int, ...]) -> Tensor:
    """Return the tensor of nested lists *data*, or of one list of all its elements in row-major order."""
    flat = _flat(data, shape)
    if datatype == "BYTES":
        _expect_types(flat, {str}, "text for each BYTES")
        try:
            return _strings([text.encode() for text in flat], shape)
        except UnicodeEncodeError:
            raise TensorError("got half a surrogate pair, expected text that UTF-8 can carry") from None
    if datatype == "BOOL":
        _expect_types(flat, {bool}, "true or false for each BOOL")
        return np.array(flat, KINDS["BOOL"]).reshape(shape)
    if datatype.startswith("FP"):
        _expect_types(flat, {float, int}, f"a number for each {datatype}")
        return _floats(flat, datatype).reshape(shape)
    _expect_types(flat, {int}, f"a whole number for each {datatype}")
    return _integers(flat, datatype).reshape(shape)


def to_json(tensor: Tensor) -> list[Any]:
    """Return the elements of *tensor* in row-major order; raises ``TensorError`` if JSON cannot carry them."""
    datatype = datatype_of(tensor)
    if datatype == "BYTES":
        try:
            return [item.decode() for item in _items(tensor)]
        except UnicodeDecodeError:
            raise TensorError("holds bytes that are no UTF-8 text; ask for it with binary_data: true") from None
    if datatype.startswith("FP") and not bool(np.isfinite(tensor).all()):
        raise TensorError("holds NaN or infinity, which JSON has no word for; ask for it with binary_data: true")
    return tensor.ravel().tolist()


def from_typed(values: Sequence[Any], datatype: str, shape: tuple[int, ...]) -> Tensor:
    """Return the tensor of *values*, the typed contents (:data:`CONTENTS`) of a gRPC request."""
    _check_count(len(values), "elements in typed contents")
    if len(values) != prod(shape):
        raise TensorError(f"got {len(values)} elements, expected {prod(shape)} for shape {list(shape)}")
    if datatype == "BYTES":
        return _strings(list(values), shape)
    if datatype in {"INT8", "INT16", "UINT8", "UINT16"}:
        return _integers(list(values), datatype).reshape(shape)
    return np.array(values, KINDS[datatype]).reshape(shape)


def _check_count(count: int, what: str) -> None:
    if count > MOST_ITEMS:
        raise TensorError(f"got {count} {what}, expected at most {MOST_ITEMS}")


def _flat(data: object, shape: tuple[int, ...]) -> list[Any]:
    if not shape and not isinstance(data, list | dict):
        return [data]
    if not isinstance(data, list):
        raise TensorError(f"got data {_shown(data)}, expected a list")
    if not any(type(item) is list for item in data):
        if len(data) == prod(shape):
            return data
        raise TensorError(f"got {len(data)} elements, expected {prod(shape)} for shape {list(shape)}")
    level: list[Any] = [data]
    for depth, length in enumerate(shape):
        for row in level:
            if type(row) is not list or len(row) != length:
                got = f"{len(row)} of them" if type(row) is list else _shown(row)
                raise TensorError(
                    f"got {got} at depth {depth + 1}, expected lists of {length} there for shape {list(shape)}"
                )
        level = list(chain.from_iterable(level))
    if any(type(item) is list for item in level):
        raise TensorError(f"got lists nested deeper than {len(shape)}, expected shape {list(shape)}")
    return level


def _expect_types(flat: list[Any], allowed: set[type], expected: str) -> None:
    if set(map(type, flat)) <= allowed:
        return
    wrong = next(item for item in flat if type(item) not in allowed)
    raise TensorError(f"got {_shown(wrong)}, expected {expected}")


def _floats(flat: list[Any], datatype: str) -> Tensor:
    with np.errstate(all="ignore"):
        try:
            tensor = np.array(flat, np.float64).astype(KINDS[datatype])
        except OverflowError:
            tensor = np.array([np.inf])
    if not bool(np.isfinite(tensor).all()):
        raise TensorError(f"got a number too large for {datatype}, expected one that fits")
    return tensor


def _integers(flat: list[int], datatype: str) -> Tensor:
    kind = KINDS[datatype]
    limits = np.iinfo(kind)
    if flat and not (limits.min <= min(flat) and max(flat) <= limits.max):
        wrong = min(flat) if min(flat) < limits.min else max(flat)
        got = str(wrong) if abs(wrong) < 10**30 else "a number of more than 30 digits"
        raise TensorError(f"got {got}, expected a number from {limits.min} to {limits.max} for {datatype}")
    return np.array(flat, kind)


def _strings(items: list[bytes], shape: tuple[int, ...]) -> Tensor:
    tensor = np.empty(len(items), object)
    tensor[:] = items
    return tensor.reshape(shape)


def _items(tensor: Tensor) -> list[bytes]:
    return [item if isinstance(item, bytes) else str(item).encode() for item in tensor.ravel().tolist()]


def _split(data: bytes | memoryview, count: int, shape: tuple[int, ...]) -> list[bytes]:
    items: list[bytes] = []
    place = 0
    while place < len(data):
        begin = place + 4
        if begin > len(data):
            raise TensorError(f"got {len(data) - place} bytes at the end, expected 4 that tell the length of a string")
        (length,) = struct.unpack_from("<I", data, place)
        place = begin + length
        if place > len(data):
            raise TensorError(f"got {len(data) - begin} bytes of a string, expected {length} as its length says")
        items.append(bytes(data[begin:place]))
        if len(items) > count:
            break
    if len(items) != count:
        got = f"more than {count}" if len(items) > count else f"{len(items)}"
        raise TensorError(f"got {got} strings, expected {count} for shape {list(shape)}")
    return items


def _shown(value: object) -> str:
    if isinstance(value, list | dict) and len(value) > 10:
        return f"a {'list' if isinstance(value, list) else 'dict'} of {len(value)}"
    text = ascii(value) if not isinstance(value, int) or abs(value) < 10**30 else "a number of more than 30 digits"
    return text if len(text) <= 60 else text[:57] + "..."
