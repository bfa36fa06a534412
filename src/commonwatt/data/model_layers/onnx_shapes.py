"""An ONNX file with fixed input sizes, and the shape of every tensor in it.

Shapes of an ONNX graph that follow only from values: what computes with sizes is computed once inputs are fixed.

Exported models take shapes apart and put them together again (Shape, Gather, Concat, Reshape). ONNX's own inference
follows some of that; here such operators are run and become constants, and inference goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path

import numpy as np

from commonwatt.data.model_layers.collecting import Foreign
from commonwatt.model.errors import InputError, MissingExtraError
from commonwatt.model.names import one_of

__all__ = ["LARGEST_SIZES", "Shaped", "inferred", "load_shaped"]

_FOLDED = {
    "Abs", "Add", "And", "Cast", "Ceil", "Concat", "ConstantOfShape", "Div", "Equal", "Expand", "Flatten", "Floor",
    "Gather", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg",
    "NonZero", "Not", "Or", "Range", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceSum", "Reshape", "Round",
    "ScatterND", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where",
}  # fmt: skip
LARGEST_SIZES = 65_536
"""Largest number of elements of a tensor of sizes."""
_ROUNDS = 500


def inferred(model: Foreign) -> Foreign:
    """Return the model with all inferred shapes; raises ONNX's errors on sizes that do not fit."""
    from onnx import shape_inference

    for _ in range(_ROUNDS):
        del model.graph.value_info[:]  # an unknown size would stay unknown
        model = shape_inference.infer_shapes(model, data_prop=True)
        if not _fold(model):
            break
    return model


def _fold(model: Foreign) -> bool:
    """Replace operators with known results by constants; returns whether there were any."""
    from onnx import numpy_helper

    graph = model.graph
    shapes = {value.name: _shape(value) for value in (*graph.input, *graph.value_info)}
    shapes |= {weight.name: tuple(weight.dims) for weight in graph.initializer}
    values = {weight.name: weight for weight in graph.initializer if _is_small(weight)}
    constants: dict[str, Foreign] = {}
    left: list[Foreign] = []
    needed = {value.name for value in graph.output}
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    for node in graph.node:
        made = _run(node, shapes, values, constants, opsets)
        if made is None or needed & set(node.output):
            left.append(node)
        else:
            constants |= made
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    folded = len(left) < len(graph.node)
    kept = [_copy(node) for node in left]
    del graph.node[:]
    graph.node.extend(kept)
    return folded


def _run(
    node: Foreign, shapes: dict[str, tuple[int, ...] | None], values: dict[str, Foreign], constants: dict[str, Foreign],
    opsets: dict[str, int],
) -> dict[str, Foreign] | None:  # fmt: skip
    """Return the results of a node by name; ``None`` if they are unknown or not sizes."""
    from onnx import numpy_helper

    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Constant":
        tensors = [attribute.t for attribute in node.attribute if attribute.name == "value"]
        return {node.output[0]: numpy_helper.to_array(tensors[0])} if tensors and _is_small(tensors[0]) else None
    if node.op_type in ("Shape", "Size"):
        shape = shapes.get(node.input[0])
        if shape is None and node.input[0] in constants:
            shape = constants[node.input[0]].shape
        if shape is None:
            return None
        limits = {attribute.name: attribute.i for attribute in node.attribute}
        part = shape[limits.get("start", 0) : limits.get("end", len(shape))]
        return {node.output[0]: np.array(prod(shape) if node.op_type == "Size" else part, dtype=np.int64)}
    if node.op_type not in _FOLDED:
        return None
    given: dict[str, Foreign] = {}
    for name in filter(None, node.input):
        if name in constants:
            given[name] = constants[name]
        elif name in values:
            given[name] = numpy_helper.to_array(values[name])
        else:
            return None
    if all(value.dtype.kind == "f" and value.size > 1 for value in given.values()):
        return None  # weights being prepared, not sizes
    return _computed(node, given, opsets)


def _computed(node: Foreign, given: dict[str, Foreign], opsets: dict[str, int]) -> dict[str, Foreign] | None:
    from onnx.reference import ReferenceEvaluator

    try:
        results = ReferenceEvaluator(node, opsets=opsets).run(None, given)
    except Exception:  # the node stays, and later shapes may stay unknown
        return None
    arrays = {name: np.asarray(value) for name, value in zip(node.output, results, strict=False) if name}
    return arrays if all(value.size <= LARGEST_SIZES for value in arrays.values()) else None


def _shape(value: Foreign) -> tuple[int, ...] | None:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        return None
    sizes = kind.shape.dim
    return tuple(size.dim_value for size in sizes) if all(size.HasField("dim_value") for size in sizes) else None


def _is_small(tensor: Foreign) -> bool:
    return prod(tensor.dims) <= LARGEST_SIZES and not tensor.external_data


def _copy(node: Foreign) -> Foreign:
    made = type(node)()
    made.CopyFrom(node)
    return made


class Shaped:
    """A graph and the shapes of its tensors.

    Parameters
    ----------
    graph
        The ``GraphProto``, functions of the model's own written out.
    shapes
        Shape of each tensor by name, where all of its sizes are known.
    weights
        Names of those that are stored in the file.
    """

    def __init__(self, graph: Foreign) -> None:
        self.graph = graph
        constants = (node.output[0] for node in graph.node if node.op_type == "Constant")
        self.weights = {*constants, *(weight.name for weight in graph.initializer)}
        self.shapes: dict[str, tuple[int, ...]] = {weight.name: tuple(weight.dims) for weight in graph.initializer}
        for value in (*graph.input, *graph.value_info, *graph.output):
            if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
                continue
            sizes = value.type.tensor_type.shape.dim
            if all(size.HasField("dim_value") for size in sizes):
                self.shapes.setdefault(value.name, tuple(size.dim_value for size in sizes))


def load_shaped(path: str | Path, dims: Mapping[str, int]) -> Shaped:
    """Read an ONNX file; weights in files beside it are not read.

    Parameters
    ----------
    dims
        Sizes of dynamic dimensions of the inputs by name; one without a name is called ``input[place]``.

    Raises
    ------
    InputError
        For a file that is no ONNX model, dynamic dimensions that *dims* does not name (they are listed, with how to
        give them), names in *dims* that no input has, and sizes that contradict each other.
    MissingExtraError
        Without the package onnx.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError("an existing file", file=path)
    try:
        import onnx
        from onnx import inliner
    except ImportError as error:
        raise MissingExtraError("onnx", "onnx") from error
    try:
        model = onnx.load(str(path), load_external_data=False)
        _drop_weights(model.graph)
        model = inliner.inline_local_functions(model)
    except Exception as error:  # of protobuf and of ONNX
        raise InputError("an ONNX model", file=path, value=_cause(error)) from None
    if not model.graph.node:
        raise InputError("an ONNX model", file=path, value="no operators")
    _fix_inputs(model.graph, dims)
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")  # it may name dimensions that are fixed now
    try:
        model = inferred(model)
    except Exception as error:  # ONNX can raise any error
        raise InputError("sizes that go together", file=path, value=_cause(error)) from None
    return Shaped(model.graph)


def _drop_weights(graph: Foreign) -> None:
    """Drop the content of large weights, as every inference of shapes copies the whole model."""
    for weight in graph.initializer:
        if prod(weight.dims) > LARGEST_SIZES:
            for data in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
                weight.ClearField(data)


def _fix_inputs(graph: Foreign, dims: Mapping[str, int]) -> None:
    stored = {weight.name for weight in graph.initializer}
    places: dict[str, list[str]] = {}
    for value in graph.input:
        if value.name in stored or not value.type.HasField("tensor_type"):
            continue
        if not value.type.tensor_type.HasField("shape"):
            raise InputError("an input with a shape", field=value.name, value="one of any rank")
        for place, size in enumerate(value.type.tensor_type.shape.dim):
            if size.HasField("dim_value") and size.dim_value > 0:
                continue
            here = f"{value.name}[{place}]"
            name = size.dim_param or here
            places.setdefault(name, []).append(here)
            if name in dims:
                size.dim_value = dims[name]
    unknown = sorted(set(dims) - set(places))
    if unknown:
        raise InputError(one_of(places or ["no dynamic dimensions"], unknown[0]), field="dim", value=unknown[0])
    missing = {name: here for name, here in places.items() if name not in dims}
    if missing:
        listed = ", ".join(name if name == here[0] else f"{name} ({', '.join(here)})" for name, here in missing.items())
        give = " ".join(f"--dim {name}=1" for name in missing)
        raise InputError(f"fixed shapes; give a size to {listed}, as in {give}", field="shape", value="dynamic")


def _cause(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
