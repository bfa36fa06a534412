"""An ONNX file with fixed input sizes, and the shape of every tensor in it."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path

from commonwatt.data.model_layers.collecting import Foreign
from commonwatt.data.model_layers.onnx_folding import LARGEST_SIZES, inferred
from commonwatt.model.errors import InputError, MissingExtraError

__all__ = ["Shaped", "load_shaped"]


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
        raise InputError("a file that exists", file=path)
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
    except Exception as error:  # ONNX raises what it likes
        raise InputError("sizes that go together", file=path, value=_cause(error)) from None
    return Shaped(model.graph)


def _drop_weights(graph: Foreign) -> None:
    """Forget what large weights hold: shapes are inferred over and over, each time from a copy of the whole model."""
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
        raise InputError(f"one of {', '.join(places) or 'no dynamic dimensions'}", field="dim", value=unknown[0])
    missing = {name: here for name, here in places.items() if name not in dims}
    if missing:
        listed = ", ".join(name if name == here[0] else f"{name} ({', '.join(here)})" for name, here in missing.items())
        give = " ".join(f"--dim {name}=1" for name in missing)
        raise InputError(f"fixed shapes; give a size to {listed}, as in {give}", field="shape", value="dynamic")


def _cause(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
