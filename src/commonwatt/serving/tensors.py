"""Tensors of the Open Inference Protocol: checked against the model, and converted between JSON, binary data, typed
contents and NumPy. Pure.

Strings (``BYTES``) are arrays of dtype ``object`` whose elements are ``bytes``. Arrays made from binary data share its
memory and are read-only. A shape alone never allocates memory; the data must be present.
"""  # noqa: D205

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from commonwatt.devices.base import Tensor, TensorSpec
from commonwatt.model.units import plural
from commonwatt.serving.backend import ModelDescription
from commonwatt.serving.rejections import RequestError

__all__ = [
    "CONTENTS",
    "Given",
    "TensorError",
    "checked_datatype",
    "checked_inputs",
    "checked_outputs",
    "checked_shape",
    "datatype_of",
    "from_json",
    "from_raw",
    "from_typed",
    "shown_name",
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

LARGEST = 2**60  # bytes of a shape, with dimensions of 0 counted as 1; just below NumPy's limit
MOST_DIMENSIONS = 32
MOST_ITEMS = 1_000_000  # elements converted one by one in Python, during which no other request is served


class TensorError(ValueError):
    """A tensor does not match its description; the text says what was received and what was expected."""


def checked_datatype(datatype: object) -> str:
    """Return *datatype* if it is supported; raises ``TensorError``."""
    if datatype == "BF16":
        raise TensorError("got datatype BF16, which is not supported; send FP32 or FP16")
    if not isinstance(datatype, str) or datatype not in KINDS:
        raise TensorError(f"got datatype {_shown(datatype)}, expected one of {', '.join(KINDS)}")
    return datatype


def checked_shape(shape: object, datatype: str) -> tuple[int, ...]:
    """Return *shape* as a tuple; raises ``TensorError`` if it is not a shape."""
    if not isinstance(shape, list | tuple) or not all(type(length) is int for length in shape):
        raise TensorError(f"got shape {_shown(shape)}, expected a list of whole numbers")
    if any(length < 0 for length in shape):
        raise TensorError(f"got shape {_shown(list(shape))}, expected lengths of 0 or more")
    if len(shape) > MOST_DIMENSIONS:
        raise TensorError(f"got a shape of {len(shape)} dimensions, expected at most {MOST_DIMENSIONS}")
    if prod(max(length, 1) for length in shape) * KINDS[datatype].itemsize > LARGEST:
        raise TensorError(f"got shape {_shown(list(shape))}, expected at most {LARGEST} bytes")
    return tuple(shape)


def datatype_of(tensor: Tensor) -> str:
    """Return the protocol's datatype of *tensor*; raises ``TypeError`` if there is none."""
    kind = tensor.dtype
    if kind.kind in "OSU":
        return "BYTES"
    name = NAMES.get((kind.kind, kind.itemsize))
    if name is None:
        raise TypeError(f"tensors of {kind} have no datatype in the protocol")
    return name


def from_raw(data: bytes | memoryview, datatype: str, shape: tuple[int, ...]) -> Tensor:
    """Return the tensor with the elements in *data*, in row-major order and little-endian; copies nothing."""
    count = prod(shape)
    if datatype == "BYTES":
        _check_count(count, "strings")
        return _strings(_split(data, count, shape), shape)
    kind = KINDS[datatype]
    if len(data) != count * kind.itemsize:
        raise TensorError(
            f"got {plural(len(data), 'byte')} of data, expected {count * kind.itemsize} for {datatype} of shape "
            f"{list(shape)}"
        )
    if count == 0:
        return np.empty(shape, kind)
    if datatype == "BOOL" and int(np.frombuffer(data, np.uint8).max()) > 1:
        raise TensorError("got a byte above 1, expected 0 or 1 for each BOOL")
    tensor = np.frombuffer(data, kind).reshape(shape)
    return tensor if tensor.flags.aligned else tensor.copy()


def to_raw(tensor: Tensor) -> bytes | memoryview:
    """Return the elements of *tensor*, row-major and little-endian; copies only another layout."""
    if datatype_of(tensor) == "BYTES":
        items = _items(tensor)
        return b"".join(chain.from_iterable((struct.pack("<I", len(item)), item) for item in items))
    if tensor.size == 0:
        return b""
    laid_out = np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<"))
    return laid_out.reshape(-1).view(np.uint8).data


def from_json(data: object, datatype: str, shape: tuple[int, ...]) -> Tensor:
    """Return the tensor of nested lists *data*, or of one flat list in row-major order."""
    flat = _flat(data, shape)
    if datatype == "BYTES":
        _expect_types(flat, {str}, "text for each BYTES")
        try:
            return _strings([text.encode() for text in flat], shape)
        except UnicodeEncodeError:
            raise TensorError("got half a surrogate pair, expected text that UTF-8 can encode") from None
    if datatype == "BOOL":
        _expect_types(flat, {bool}, "true or false for each BOOL")
        return np.array(flat, KINDS["BOOL"]).reshape(shape)
    if datatype.startswith("FP"):
        _expect_types(flat, {float, int}, f"a number for each {datatype}")
        return _floats(flat, datatype).reshape(shape)
    _expect_types(flat, {int}, f"a whole number for each {datatype}")
    return _integers(flat, datatype).reshape(shape)


def to_json(tensor: Tensor) -> list[Any]:
    """Return the elements of *tensor* in row-major order; raises ``TensorError`` if JSON cannot represent them."""
    datatype = datatype_of(tensor)
    if datatype == "BYTES":
        try:
            return [item.decode() for item in _items(tensor)]
        except UnicodeDecodeError:
            raise TensorError("contains bytes that are not UTF-8 text; request it with binary_data: true") from None
    if datatype.startswith("FP") and not bool(np.isfinite(tensor).all()):
        raise TensorError("contains NaN or infinity, which JSON cannot represent; request it with binary_data: true")
    return tensor.ravel().tolist()


def from_typed(values: Sequence[Any], datatype: str, shape: tuple[int, ...]) -> Tensor:
    """Return the tensor of *values*, the typed contents (:data:`CONTENTS`) of a gRPC request."""
    _check_count(len(values), "elements in typed contents")
    if len(values) != prod(shape):
        raise TensorError(f"got {plural(len(values), 'element')}, expected {prod(shape)} for shape {list(shape)}")
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
        raise TensorError(f"got {plural(len(data), 'element')}, expected {prod(shape)} for shape {list(shape)}")
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
            left = plural(len(data) - place, "byte")
            raise TensorError(f"got {left} at the end, expected the 4 bytes of a string's length")
        (length,) = struct.unpack_from("<I", data, place)
        place = begin + length
        if place > len(data):
            raise TensorError(f"got {plural(len(data) - begin, 'byte')} of a string of length {length}")
        items.append(bytes(data[begin:place]))
        if len(items) > count:
            break
    if len(items) != count:
        got = f"more than {plural(count, 'string')}" if len(items) > count else plural(len(items), "string")
        raise TensorError(f"got {got}, expected {count} for shape {list(shape)}")
    return items


def _shown(value: object) -> str:
    if isinstance(value, list | dict) and len(value) > 10:
        return f"a {'list' if isinstance(value, list) else 'dict'} of {len(value)}"
    text = ascii(value) if not isinstance(value, int) or abs(value) < 10**30 else "a number of more than 30 digits"
    return text if len(text) <= 60 else text[:57] + "..."


def shown_name(name: str) -> str:
    """Return *name* for messages: quoted, in ASCII, shortened."""
    text = ascii(name)
    return text if len(text) <= 80 else f"{text[:76]}...'"


@dataclass(frozen=True)
class Given:
    """An input in a request."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    decode: Callable[[], Tensor]  # raises TensorError


def checked_inputs(model: ModelDescription, given: Sequence[Given]) -> dict[str, Tensor]:
    """Return the tensors by name; raises ``RequestError`` naming the model and the tensor that does not fit."""
    specs = {spec.name: spec for spec in model.inputs}
    tensors: dict[str, Tensor] = {}
    where = f"model {shown_name(model.name)}"
    for tensor in given:
        spec = specs.get(tensor.name)
        if spec is None:
            raise RequestError(f"{where}: got input {shown_name(tensor.name)}, expected {_listed(specs)}")
        if tensor.name in tensors:
            raise RequestError(f"{where}: got input {shown_name(tensor.name)} twice, expected it once")
        try:
            _check_fit(tensor, spec)
            tensors[tensor.name] = tensor.decode()
        except TensorError as error:
            raise RequestError(f"{where}, input {shown_name(tensor.name)}: {error}") from None
    missing = [name for name in specs if name not in tensors]
    if missing:
        raise RequestError(f"{where}: got no input {shown_name(missing[0])}, expected {_listed(specs)}")
    return tensors


def checked_outputs(model: ModelDescription, names: Sequence[str]) -> None:
    """Raise ``RequestError`` unless *names* are different outputs of *model*."""
    outputs = [spec.name for spec in model.outputs]
    where = f"model {shown_name(model.name)}"
    for place, name in enumerate(names):
        if name not in outputs:
            raise RequestError(f"{where}: got output {shown_name(name)}, expected {_listed(outputs)}")
        if name in names[:place]:
            raise RequestError(f"{where}: got output {shown_name(name)} twice, expected it once")


def _check_fit(tensor: Given, spec: TensorSpec) -> None:
    if tensor.datatype != spec.datatype:
        raise TensorError(f"got datatype {tensor.datatype}, expected {spec.datatype}")
    fits = len(tensor.shape) == len(spec.shape) and all(
        wanted < 0 or wanted == length for length, wanted in zip(tensor.shape, spec.shape, strict=True)
    )
    if not fits:
        free = " (-1: any length)" if any(length < 0 for length in spec.shape) else ""
        raise TensorError(f"got shape {list(tensor.shape)}, expected {list(spec.shape)}{free}")


def _listed(names: Sequence[str] | dict[str, TensorSpec]) -> str:
    listed = [shown_name(name) for name in names]
    return " and ".join([", ".join(listed[:-1]), listed[-1]] if len(listed) > 1 else listed) or "none"
