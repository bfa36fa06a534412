"""The graph of an ONNX model as ONNX Runtime has optimised it, what flows in it, and how long each node takes.

Fusions need the whole graph, so it is optimised first and cut afterwards.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from commonwatt.devices.base import Tensor
from commonwatt.devices.models.cutting import Flow
from commonwatt.devices.models.foreign import Foreign
from commonwatt.devices.models.onnx_runtime import OnnxRuntime
from commonwatt.devices.models.onnx_work import Value
from commonwatt.model.errors import MissingExtraError

__all__ = ["OnnxGraph", "names_read", "observed_values", "optimised_graph", "profiled_times", "weight_values"]

_LOG = logging.getLogger(__name__)
_NODE = "commonwatt_node_"
_WEIGHTS = "weights.bin"
_WARM_UP, _RUNS, _BUDGET_S = 2, 5, 1.0


@dataclass(frozen=True)
class OnnxGraph:
    """An optimised graph; its weights lie in a file beside it."""

    folder: Path
    model: Foreign  # onnx.ModelProto
    names: tuple[str, ...]  # of the nodes, for people
    flow: Flow
    weights: dict[str, Foreign]  # TensorProto by name

    @property
    def nodes(self) -> Foreign:
        """The nodes, in their order of execution."""
        return self.model.graph.node


def optimised_graph(source: Path, folder: Path, runtime: OnnxRuntime) -> tuple[OnnxGraph | None, Foreign]:
    """Return the graph of *source*, optimised into *folder*, and the session that did it, which can run it whole.

    The graph is ``None`` if it cannot be cut at all.
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
    asked = [value for value in model.graph.input if value.name in inputs]
    del model.graph.input[:]  # old models list weights too, and optimising leaves behind some that are no more
    model.graph.input.extend(asked)
    names = []
    for place, node in enumerate(model.graph.node):
        names.append(node.name or f"{node.op_type}_{place}")
        node.name = f"{_NODE}{place}"
        if node.op_type.startswith("Memcpy"):  # the sessions of the parts add their own
            node.op_type, node.domain = "Identity", ""
    reads = tuple(_reads(node, made | set(inputs)) for node in model.graph.node)
    writes = tuple(tuple(name for name in node.output if name) for node in model.graph.node)
    return OnnxGraph(folder, model, tuple(names), Flow(reads, writes, inputs, outputs), weights)


def _reads(node: Foreign, values: set[str]) -> tuple[str, ...]:
    """Values that *node*, or any graph inside it, takes from outside, weights left out."""
    return tuple(sorted({name for name in names_read(node) if name in values}))


def names_read(node: Foreign) -> Iterator[str]:
    """Every name *node* takes from outside: its inputs, and what the graphs inside it capture."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            own = {value.name for value in (*graph.input, *graph.initializer)}
            own |= {weight.values.name for weight in graph.sparse_initializer}
            own |= {name for inner in graph.node for name in inner.output}
            read = {name for inner in graph.node for name in names_read(inner)} | {out.name for out in graph.output}
            yield from sorted(read - own)


def observed_values(graph: OnnxGraph, runtime: OnnxRuntime, inputs: dict[str, Tensor]) -> dict[str, tuple[Value, int]]:
    """Return shape, element size and ONNX element type of every value that is a tensor, as in one inference.

    Empty where the model cannot be run with all its values showing; such a model is not cut.
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
    except Exception:  # whatever it is, it only means that the model stays whole
        _LOG.warning("a model cannot be run with all its values showing; it is not cut", exc_info=True)
        return {}
    found: dict[str, tuple[Value, int]] = {}
    for name, value in (*zip(names, results, strict=True), *given.items()):
        if value.has_value() and value.is_tensor() and value.data_type() != "tensor(string)":
            kind = value.element_type()
            itemsize = onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize
            found[name] = (Value(tuple(value.shape()), itemsize), kind)
    return found


def weight_values(graph: OnnxGraph) -> dict[str, Value]:
    """Return shape and element size of every weight."""
    import onnx

    kinds = onnx.helper.tensor_dtype_to_np_dtype
    return {name: Value(tuple(weight.dims), kinds(weight.data_type).itemsize) for name, weight in graph.weights.items()}


def profiled_times(graph: OnnxGraph, runtime: OnnxRuntime, inputs: dict[str, Tensor]) -> list[float]:
    """Return the time of every node, in seconds: the least of a few inferences, by ONNX Runtime's own profile."""
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
