"""Tensors come back as they went, whatever way they take; what is not a tensor is refused with a sentence."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.serving.tensors import (
    CONTENTS,
    KINDS,
    TensorError,
    checked_datatype,
    checked_shape,
    datatype_of,
    from_json,
    from_raw,
    from_typed,
    to_json,
    to_raw,
)

SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@st.composite
def tensors(draw, datatypes=tuple(KINDS), *, text=False, finite=False):
    datatype = draw(st.sampled_from(datatypes))
    shape = draw(SHAPES)
    count = int(np.prod(shape))
    kind = KINDS[datatype]
    if datatype == "BYTES":
        strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=5).map(str.encode)
        values = draw(st.lists(strings if text else st.binary(max_size=5), min_size=count, max_size=count))
        flat = np.empty(count, object)
        flat[:] = values
        return flat.reshape(shape)
    if datatype == "BOOL":
        element = st.booleans()
    elif datatype.startswith("FP"):
        element = st.floats(width=kind.itemsize * 8, allow_nan=not finite, allow_infinity=not finite)
    else:
        element = st.integers(int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    return np.array(draw(st.lists(element, min_size=count, max_size=count)), kind).reshape(shape)


def same(got, sent):
    assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
    if sent.dtype == object:
        assert got.tolist() == sent.tolist()
    else:
        assert got.tobytes() == sent.tobytes()


@pytest.mark.slow
@given(tensors())
def test_raw(tensor):
    datatype = datatype_of(tensor)
    raw = bytes(to_raw(tensor))
    same(from_raw(raw, datatype, tensor.shape), tensor)
    shifted = memoryview(b"." + raw)[1:]  # not aligned
    got = from_raw(shifted, datatype, tensor.shape)
    same(got, tensor)
    assert got.flags.aligned


@pytest.mark.slow
@given(tensors())
def test_raw_of_what_is_laid_out_otherwise(tensor):
    turned = np.asfortranarray(tensor)
    same(from_raw(bytes(to_raw(turned)), datatype_of(tensor), tensor.shape), tensor)
    if tensor.dtype.itemsize > 1 and tensor.dtype != object:
        swapped = tensor.astype(tensor.dtype.newbyteorder(">"))
        same(from_raw(bytes(to_raw(swapped)), datatype_of(swapped), tensor.shape), tensor)


@pytest.mark.slow
@given(tensors(text=True, finite=True))
def test_json(tensor):
    datatype = datatype_of(tensor)
    flat = json.loads(json.dumps(to_json(tensor), allow_nan=False))
    same(from_json(flat, datatype, tensor.shape), tensor)
    nested = tensor.tolist()
    if datatype == "BYTES":
        nested = json.loads(json.dumps(nested, default=bytes.decode))
    same(from_json(nested, datatype, tensor.shape), tensor)


@pytest.mark.slow
@given(tensors(tuple(CONTENTS)))
def test_typed_contents(tensor):
    pb = pytest.importorskip("tritonclient.grpc.service_pb2")
    datatype = datatype_of(tensor)
    contents = pb.InferTensorContents()
    getattr(contents, CONTENTS[datatype]).extend(tensor.ravel().tolist())
    again = pb.InferTensorContents.FromString(contents.SerializeToString())
    same(from_typed(getattr(again, CONTENTS[datatype]), datatype, tensor.shape), tensor)


def test_typed_contents_are_for_little():
    with pytest.raises(TensorError, match="expected at most 1000000"):
        from_typed([0.0] * 1_000_001, "FP32", (1_000_001,))


def test_large_binary_data_are_not_copied():
    data = np.arange(1000, dtype=np.float32).tobytes()
    tensor = from_raw(data, "FP32", (1000,))
    assert np.shares_memory(tensor, np.frombuffer(data, np.uint8))
    assert np.shares_memory(np.frombuffer(to_raw(tensor), np.uint8), tensor)


WRONG_JSON = [
    ([1, 2], "FP32", (3,), "got 2 elements, expected 3 for shape [3]"),
    ([[1, 2], [3]], "FP32", (2, 2), "got 1 of them at depth 2, expected lists of 2"),
    ([[1, 2], 3], "FP32", (2, 2), "got 3 at depth 2"),
    ([[1, 2, 3]], "FP32", (3,), "got 1 of them at depth 1"),
    ([[[1]], [[2]]], "FP32", (2, 1), "nested deeper than 2"),
    ([[1]], "FP32", (), "nested deeper than 0"),
    ({}, "FP32", (), "got data {}, expected a list"),
    ("1", "FP32", (1,), "got data '1', expected a list"),
    (["NaN"], "FP32", (1,), "got 'NaN', expected a number"),
    ([None], "FP64", (1,), "got None, expected a number"),
    ([True], "FP32", (1,), "got True, expected a number"),
    ([True], "INT8", (1,), "got True, expected a whole number"),
    ([1.0], "INT8", (1,), "got 1.0, expected a whole number"),
    ([128], "INT8", (1,), "got 128, expected a number from -128 to 127"),
    ([-1], "UINT64", (1,), "got -1, expected a number from 0"),
    ([10**400], "INT64", (1,), "got a number of more than 30 digits"),
    ([10**400], "FP64", (1,), "too large for FP64"),
    ([1e39], "FP32", (1,), "too large for FP32"),
    ([70000], "FP16", (1,), "too large for FP16"),
    ([float("inf")], "FP64", (1,), "too large for FP64"),  # 1e999 in JSON
    ([1], "BOOL", (1,), "got 1, expected true or false"),
    ([1], "BYTES", (1,), "got 1, expected text"),
    (["\ud800"], "BYTES", (1,), "surrogate"),
]


@pytest.mark.parametrize(("data", "datatype", "shape", "text"), WRONG_JSON)
def test_json_that_is_no_tensor(data, datatype, shape, text):
    with pytest.raises(TensorError) as error:
        from_json(data, datatype, shape)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("data", "datatype", "shape", "text"),
    [
        (b"123", "FP32", (1,), "got 3 bytes of data, expected 4 for FP32 of shape [1]"),
        (b"1234", "FP32", (0, 5), "got 4 bytes of data, expected 0"),
        (b"\x02", "BOOL", (1,), "got a byte above 1"),
        (b"\x01\x00", "BYTES", (1,), "got 2 bytes at the end, expected the 4 bytes"),
        (b"\x05\x00\x00\x00ab", "BYTES", (1,), "got 2 bytes of a string of length 5"),
        (b"\xff\xff\xff\xff", "BYTES", (1,), "got 0 bytes of a string of length 4294967295"),
        (b"\x00\x00\x00\x00", "BYTES", (2,), "got 1 string, expected 2"),
        (bytes(12), "BYTES", (1,), "got more than 1 string, expected 1"),
        (bytes(8_000_000), "BYTES", (2_000_000,), "got 2000000 strings, expected at most 1000000"),
    ],
    ids=range(9),
)
def test_data_that_are_no_tensor(data, datatype, shape, text):
    with pytest.raises(TensorError) as error:
        from_raw(data, datatype, shape)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ([-1], "0 or more"), ([1.0], "whole numbers"), ([True], "whole numbers"), ("3", "whole numbers"),
        (None, "whole numbers"), ([[1]], "whole numbers"), ([1] * 40, "40 dimensions"), ([2**40] * 2, "most 1152921"),
        ([0, 2**40, 2**40], "most 1152921"), ([10**400], "expected at most 1152921504606846976 bytes"),
    ],
)  # fmt: skip
def test_what_is_no_shape(shape, text):
    with pytest.raises(TensorError, match=text):
        checked_shape(shape, "FP64")


@pytest.mark.parametrize(("datatype", "text"), [("BF16", "BF16, which is not"), ("fp32", "expected one of BOOL"),
                                                (None, "None"), (7, "7"), ([], "expected one of")])  # fmt: skip
def test_what_is_no_datatype(datatype, text):
    with pytest.raises(TensorError, match=text):
        checked_datatype(datatype)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_json_cannot_carry_everything(value):
    with pytest.raises(TensorError, match="request it with binary_data"):
        to_json(np.array([value], np.float32))
    with pytest.raises(TensorError, match="not UTF-8"):
        to_json(np.array([b"\xff"], object))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=12,
)


@pytest.mark.slow
@given(ANYTHING, st.sampled_from(tuple(KINDS)), SHAPES)
def test_any_json_is_a_tensor_or_refused(data, datatype, shape):
    try:
        got = from_json(data, datatype, shape)
    except TensorError:
        return
    assert (got.shape, datatype_of(got)) == (shape, datatype)


@pytest.mark.slow
@given(st.binary(max_size=40), st.sampled_from(tuple(KINDS)), SHAPES)
def test_any_bytes_are_a_tensor_or_refused(data, datatype, shape):
    try:
        got = from_raw(data, datatype, shape)
    except TensorError:
        return
    assert bytes(to_raw(got)) == data
