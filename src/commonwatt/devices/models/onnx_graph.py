"""The graph of an ONNX model after ONNX Runtime's optimisation: data flow, work and time of each node.

Fusions need the whole graph, so it is optimised first and cut afterwards. Work is counted from the shapes of a node's
inputs and outputs.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from time import perf_counter

from commonwatt.devices.base import StepWork, Tensor
from commonwatt.devices.models.base import Flow, Foreign
from commonwatt.devices.models.onnx_runtime import OnnxRuntime
from commonwatt.model.errors import MissingExtraError

__all__ = [
    "OnnxGraph",
    "Value",
    "names_read",
    "observed_values",
    "optimised_graph",
    "profiled_times",
    "weight_values",
    "work_of",
    "work_together",
]

_MATMULS = {"MatMul", "FusedMatMul", "FusedMatMulActivation", "MatMulInteger", "QLinearMatMul", "MatMulIntegerToFloat",
            "DynamicQuantizeMatMul", "MatMulNBits", "TransposeMatMul"}  # fmt: skip
_GEMMS = {"Gemm", "FusedGemm", "GemmFastGelu", "QGemm", "GemmFloat8"}
_CONVS = {"Conv", "FusedConv", "NhwcConv", "NhwcFusedConv", "ConvInteger", "QLinearConv"}


@dataclass(frozen=True)
class Value:
    """Shape and element size of a tensor in one inference."""

    shape: tuple[int, ...]
    itemsize: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


def work_of(node: Foreign, values: Mapping[str, Value]) -> StepWork:
    """Return the work of *node*: of a matrix product by its shapes, of any other node one operation per output element.

    Unknown values count as 0. A node with subgraphs (If, Loop) does not count as a matrix product.
    """
    names = {name for name in (*node.input, *node.output) if name in values}
    moved = sum(values[name].size * values[name].itemsize for name in names)
    plain = sum(values[name].size for name in node.output if name in values)
    return StepWork(_products(node, values) or float(plain), float(moved))


def work_together(parts: Sequence[StepWork]) -> StepWork:
    """Return the work of nodes that run one after another."""
    return StepWork(sum(part.flops for part in parts), sum(part.bytes_moved for part in parts))


def _products(node: Foreign, values: Mapping[str, Value]) -> float:
    """Operations of a node that multiplies matrices; 0 for other nodes and missing shapes."""
    inputs = [values.get(name, Value((), 0)) for name in node.input]
    out = values.get(node.output[0], Value((), 0)) if node.output else Value((), 0)
    ranks = [len(value.shape) for value in inputs[:5]]
    quantised = node.op_type in {"QLinearConv", "QLinearMatMul"}
    if node.op_type in _CONVS and len(ranks) > 1:
        weight = inputs[3 if quantised else 1]
        return 2.0 * out.size * prod(weight.shape[1:]) if len(weight.shape) > 2 else 0.0
    if node.op_type == "ConvTranspose" and ranks[1] > 2:
        return 2.0 * inputs[0].size * prod(inputs[1].shape[1:])
    if node.op_type in _GEMMS and ranks[0] == 2:
        return 2.0 * out.size * inputs[0].shape[0 if _flag(node, "transA") else 1]
    if node.op_type in _MATMULS and ranks[0] > 0:
        across = ranks[0] > 1 and _flag(node, "transA")
        return 2.0 * out.size * inputs[0].shape[-2 if across else -1]
    return _attention(node, inputs)


def _attention(node: Foreign, inputs: Sequence[Value]) -> float:
    """Operations of ONNX Runtime's fused attention: its projections, if included, and the two products."""
    if node.op_type == "Attention" and len(inputs[0].shape) == 3:
        batch, length, size = inputs[0].shape
        projected = inputs[1].shape[-1] if inputs[1].shape else 3 * size
        return 2.0 * batch * length * size * projected + 4.0 * batch * length * length * (projected // 3)
    if node.op_type == "MultiHeadAttention" and len(inputs[0].shape) == 3 and len(inputs) > 1:
        batch, length, size = inputs[0].shape
        others = inputs[1].shape[1] if len(inputs[1].shape) == 3 else length
        return 4.0 * batch * length * others * size
    return 0.0


def _flag(node: Foreign, name: str) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == name), 0)


_LOG = logging.getLogger(__name__)
_NODE = "commonwatt_node_"
_WEIGHTS = "weights.bin"
_WARM_UP, _RUNS, _BUDGET_S = 2, 5, 1.0


@dataclass(frozen=True)
class OnnxGraph:
    """An optimised graph, with its weights in a file beside it."""

    folder: Path
    model: Foreign  # onnx.ModelProto
    names: tuple[str, ...]  # of the nodes, as displayed
    flow: Flow
    weights: dict[str, Foreign]  # TensorProto by name

    @property
    def nodes(self) -> Foreign:
        """The nodes, in their order of execution."""
        return self.model.graph.node


def optimised_graph(source: Path, folder: Path, runtime: OnnxRuntime) -> tuple[OnnxGraph | None, Foreign]:
    """Optimise the graph of *source* into *folder*; returns the graph and a session that runs the whole model.

    The graph is ``None`` if it cannot be cut.
    """
    try:
        import onnx
    except ImportError as error:
        raise MissingExtraError("onnx", "onnx") from error
    options = runtime.options(optimise=True)
    target = folder / "optimised.onnx"
    options.optimized_model_filepath = str(target)
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", _WEIGHTS)
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
    session = runtime.session(source, options)
    if not target.is_file():
        return None, session
    model = onnx.load(str(target), load_external_data=False)
    inputs = tuple(argument.name for argument in session.get_inputs())
    return _graph(model, folder, inputs), session


def _graph(model: Foreign, folder: Path, inputs: tuple[str, ...]) -> OnnxGraph | None:
    weights = {weight.name: weight for weight in model.graph.initializer}
    outputs = tuple(value.name for value in model.graph.output)
    made = {name for node in model.graph.node for name in node.output}
    if model.graph.sparse_initializer or not set(outputs) <= made | set(inputs):
        return None  # an output that is a weight belongs to no part
    real = [value for value in model.graph.input if value.name in inputs]
    del model.graph.input[:]  # old models also list weights, some of which the optimisation removed
    model.graph.input.extend(real)
    names = []
    for place, node in enumerate(model.graph.node):
        names.append(node.name or f"{node.op_type}_{place}")
        node.name = f"{_NODE}{place}"
        if node.op_type.startswith("Memcpy"):  # each part's session adds its own
            node.op_type, node.domain = "Identity", ""
    reads = tuple(_reads(node, made | set(inputs)) for node in model.graph.node)
    writes = tuple(tuple(name for name in node.output if name) for node in model.graph.node)
    return OnnxGraph(folder, model, tuple(names), Flow(reads, writes, inputs, outputs), weights)


def _reads(node: Foreign, values: set[str]) -> tuple[str, ...]:
    """Values that *node* or its subgraphs read from outside, without weights."""
    return tuple(sorted({name for name in names_read(node) if name in values}))


def names_read(node: Foreign) -> Iterator[str]:
    """Yield every name that *node* reads from outside: its inputs, and the captures of its subgraphs."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            own = {value.name for value in (*graph.input, *graph.initializer)}
            own |= {weight.values.name for weight in graph.sparse_initializer}
            own |= {name for inner in graph.node for name in inner.output}
            read = {name for inner in graph.node for name in names_read(inner)} | {out.name for out in graph.output}
            yield from sorted(read - own)


def observed_values(graph: OnnxGraph, runtime: OnnxRuntime, inputs: dict[str, Tensor]) -> dict[str, tuple[Value, int]]:
    """Return shape, element size and ONNX element type of every tensor in one inference.

    The result is empty if the model cannot run with all values as outputs; such a model is not cut.
    """
    import onnx
    from onnxruntime import OrtValue

    showing = onnx.ModelProto()
    showing.CopyFrom(graph.model)
    shown = {value.name for value in showing.graph.output}
    showing.graph.output.extend(
        onnx.ValueInfoProto(name=name) for names in graph.flow.writes for name in names if name not in shown
    )
    file = graph.folder / "showing.onnx"
    file.write_bytes(showing.SerializeToString())
    try:
        session = runtime.session(file, runtime.options())
        names = [output.name for output in session.get_outputs()]
        given = {name: OrtValue.ortvalue_from_numpy(tensor) for name, tensor in inputs.items()}
        results = session.run_with_ort_values(names, given)
    except Exception:  # the only consequence is that the model stays whole
        _LOG.warning("a model cannot run with all its values as outputs; it is not cut", exc_info=True)
        return {}
    observed: dict[str, tuple[Value, int]] = {}
    for name, value in (*zip(names, results, strict=True), *given.items()):
        if value.has_value() and value.is_tensor() and value.data_type() != "tensor(string)":
            kind = value.element_type()
            itemsize = onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize
            observed[name] = (Value(tuple(value.shape()), itemsize), kind)
    return observed


def weight_values(graph: OnnxGraph) -> dict[str, Value]:
    """Return shape and element size of every weight."""
    import onnx

    kinds = onnx.helper.tensor_dtype_to_np_dtype
    return {name: Value(tuple(weight.dims), kinds(weight.data_type).itemsize) for name, weight in graph.weights.items()}


def profiled_times(graph: OnnxGraph, runtime: OnnxRuntime, inputs: dict[str, Tensor]) -> list[float]:
    """Return the shortest time of every node over a few inferences, in seconds, by ONNX Runtime's profiler."""
    file = graph.folder / "profiled.onnx"
    file.write_bytes(graph.model.SerializeToString())
    options = runtime.options()
    options.enable_profiling = True
    options.profile_file_prefix = str(graph.folder / "profile")
    session = runtime.session(file, options)
    started = perf_counter()
    for run in range(_WARM_UP + _RUNS):
        if run < _WARM_UP or perf_counter() - started < _BUDGET_S:
            session.run(None, inputs)
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    times = defaultdict(list)
    for event in events:
        name, cut, rest = event["name"].removeprefix(_NODE).partition("_kernel_time")
        if event["name"].startswith(_NODE) and cut and not rest:
            times[int(name)].append(event["dur"] * 1e-6)
    return [min(times[place], default=0.0) for place in range(len(graph.nodes))]
