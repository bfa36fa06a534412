"""A model in ONNX Runtime, cut into parts with a session each, so that tenants can be switched in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from commonwatt.devices.base import StepWork, Tensor
from commonwatt.devices.models.base import (
    Foreign,
    Part,
    SegmentedModel,
    checked_file,
    choose_cuts,
    live_values,
    parts_of,
    sample_inputs,
)
from commonwatt.devices.models.onnx_graph import (
    OnnxGraph,
    Value,
    names_read,
    observed_values,
    optimised_graph,
    profiled_times,
    weight_values,
    work_of,
    work_together,
)
from commonwatt.devices.models.onnx_runtime import OnnxCall, OnnxRuntime, contiguous, placed, specs_of
from commonwatt.model.errors import InputError

__all__ = ["OnnxModel", "OnnxStep", "SplitModel", "load_onnx", "split", "whole"]

_LAUNCH_S, _FLOPS_PER_S, _BYTES_PER_S = 5e-6, 1e13, 1e12  # of a typical GPU: only proportions matter
_SMALL_BYTES = 1024  # integer tensors up to this size are shapes, which GPU sessions compute on the CPU


@dataclass(frozen=True)
class OnnxStep:
    """A part of a model, ready to run."""

    name: str
    call: OnnxCall
    part: Part
    work: StepWork


@dataclass(frozen=True)
class SplitModel:
    """A graph, its values observed in one inference, and where it can be cut."""

    graph: OnnxGraph
    runtime: OnnxRuntime
    inputs: dict[str, Tensor]  # samples
    values: dict[str, Value]  # of inputs, weights and everything computed
    kinds: dict[str, int]  # ONNX element types of inputs and everything computed
    allowed: frozenset[int]  # boundaries at which all live values are tensors

    def cuts(self, segment_s: float) -> tuple[int, ...]:
        """Return where to cut into parts of about *segment_s*."""
        live = [
            sum(self.values[name].size * self.values[name].itemsize for name in names if name in self.values)
            for names in live_values(self.graph.flow)
        ]
        return choose_cuts(self._times(), live, self.allowed, segment_s)

    def _times(self) -> list[float]:
        if self.runtime.cuda_index is None:
            return profiled_times(self.graph, self.runtime, self.inputs)
        # The profiler times the launch of a GPU's kernels, not their run: estimate that from their work.
        works = self.works()
        return [_LAUNCH_S + max(work.flops / _FLOPS_PER_S, work.bytes_moved / _BYTES_PER_S) for work in works]

    def works(self) -> list[StepWork]:
        """Return the work of every node."""
        return [work_of(node, self.values) for node in self.graph.nodes]

    def steps(self, cuts: Sequence[int]) -> tuple[OnnxStep, ...]:
        """Return the parts between *cuts*, with a session each."""
        works, steps = self.works(), []
        for place, part in enumerate(parts_of(self.graph.flow, cuts)):
            file = self.graph.folder / f"part{place}.onnx"
            file.write_bytes(self._model(part).SerializeToString())
            session = self.runtime.session(file, self.runtime.options())
            work = work_together([works[node] for node in part.nodes])
            call = OnnxCall(session, part.reads, part.writes, self.runtime.cuda_index, self._small(part.writes))
            steps.append(OnnxStep(self._name(part), call, part, work))
        return tuple(steps)

    def _model(self, part: Part) -> Foreign:
        """Return the part as a separate model; its weights stay in the file beside it."""
        import onnx
        from onnx import helper

        def described(name: str) -> Foreign:
            if name not in self.kinds:  # an output of the model, as declared
                return next(value for value in self.graph.model.graph.output if value.name == name)
            return helper.make_tensor_value_info(name, self.kinds[name], None)

        nodes = [self.graph.nodes[place] for place in part.nodes]
        wanted = {name for node in nodes for name in names_read(node)}
        weights = [weight for name, weight in self.graph.weights.items() if name in wanted]
        inputs, outputs = [described(name) for name in part.reads], [described(name) for name in part.writes]
        model = onnx.ModelProto(ir_version=self.graph.model.ir_version, functions=self.graph.model.functions)
        model.opset_import.extend(self.graph.model.opset_import)
        model.graph.CopyFrom(helper.make_graph(nodes, "part", inputs, outputs, weights))
        return model

    def _name(self, part: Part) -> str:
        first, last = self.graph.names[part.nodes[0]], self.graph.names[part.nodes[-1]]
        return first if len(part.nodes) == 1 else f"{first}..{last}"

    def _small(self, names: Sequence[str]) -> frozenset[str]:
        import onnx

        whole = {onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.BOOL}
        return frozenset(
            name for name in names
            if self.kinds.get(name) in whole and self.values[name].size * self.values[name].itemsize <= _SMALL_BYTES
        )  # fmt: skip


def split(graph: OnnxGraph, runtime: OnnxRuntime, inputs: dict[str, Tensor]) -> SplitModel:
    """Observe what *graph* computes from *inputs*, and return it ready to be cut."""
    seen = observed_values(graph, runtime, inputs)
    values = weight_values(graph) | {name: value for name, (value, _) in seen.items()}
    live = live_values(graph.flow)
    inside = range(1, len(graph.nodes))
    allowed = frozenset(place for place in inside if live[place] <= seen.keys())
    return SplitModel(graph, runtime, inputs, values, {name: kind for name, (_, kind) in seen.items()}, allowed)


def whole(session: Foreign, graph: SplitModel | None, path: Path, runtime: OnnxRuntime) -> OnnxStep:
    """Return the model *path* as a single step that runs *session*."""
    reads, writes = ([item.name for item in items] for items in (session.get_inputs(), session.get_outputs()))
    work = work_together(graph.works()) if graph else StepWork(0.0, float(path.stat().st_size))
    frees = tuple(name for name in reads if name not in writes)
    part = Part(range(len(graph.graph.nodes) if graph else 0), tuple(reads), tuple(writes), frees)
    return OnnxStep(path.stem, OnnxCall(session, reads, writes, runtime.cuda_index), part, work)


class OnnxModel(SegmentedModel):
    """A loaded model; made by :func:`load_onnx`."""

    def __init__(
        self, name: str, path: Path, runtime: OnnxRuntime, steps: tuple[OnnxStep, ...], session: Foreign
    ) -> None:
        inputs, outputs = specs_of(session.get_inputs(), path), specs_of(session.get_outputs(), path)
        super().__init__(name, path, inputs, outputs, steps)
        self.runtime = runtime

    def _execution(self, inputs: dict[str, Tensor]) -> OnnxExecution:
        return OnnxExecution(self, inputs)


class OnnxExecution:
    """One inference; values are freed when no later step needs them."""

    def __init__(self, model: OnnxModel, inputs: dict[str, Tensor]) -> None:
        self._model, self._steps, self._next = model, model.steps, 0
        self._inputs = inputs  # kept to the end, as values may share their memory
        self._values: dict[str, Foreign] = {}

    def step(self) -> None:
        """Run the next step to its end."""
        step = self._steps[self._next]
        with self._model.runtime.running(self._model.name):
            if not self._next:
                index = self._model.runtime.cuda_index
                self._inputs = {name: contiguous(tensor) for name, tensor in self._inputs.items()}
                self._values = {name: placed(tensor, index) for name, tensor in self._inputs.items()}
            self._values |= step.call(self._values)
        for name in step.part.frees:
            del self._values[name]
        self._next += 1

    def outputs(self) -> dict[str, Tensor]:
        """Return the outputs by name."""
        if self._next < len(self._steps):
            raise RuntimeError(f"steps not run yet: {len(self._steps) - self._next}")
        with self._model.runtime.running(self._model.name):
            return {spec.name: self._values[spec.name].numpy() for spec in self._model.outputs}


def load_onnx(
    name: str, path: str | Path, runtime: OnnxRuntime, segment_s: float | None, *, cuts: Sequence[int] | None = None,
    times_s: Sequence[float] | None = None,
) -> OnnxModel:  # fmt: skip
    """Load an ONNX model and cut it.

    Parameters
    ----------
    segment_s
        Length of a part; ``None`` leaves the model whole.
    cuts
        Nodes of the optimised graph to cut before instead, where a cut is possible.
    times_s
        Times of the steps between these, so that they are not measured.
    """
    file = checked_file(path, "an ONNX model")
    with TemporaryDirectory(prefix="commonwatt-") as folder, runtime.loading(file):
        graph, session = optimised_graph(file, Path(folder), runtime)
        samples = sample_inputs(specs_of(session.get_inputs(), file))
        seen = split(graph, runtime, samples) if graph else None
        chosen = _chosen(seen, segment_s, cuts)
        steps = seen.steps(chosen) if seen and chosen else ()
        if len(steps) < 2:
            steps = (whole(session, seen, file, runtime),)
        model = OnnxModel(name, file, runtime, steps, session)
        model.cuts = tuple(chosen)
    try:
        model.measure(times_s)
    except InputError as error:
        raise error.within(file) from error
    return model


def _chosen(graph: SplitModel | None, segment_s: float | None, cuts: Sequence[int] | None) -> tuple[int, ...]:
    if graph is None or not graph.allowed:
        return ()
    if cuts is not None:
        return tuple(sorted(graph.allowed & set(cuts)))
    return () if segment_s is None else graph.cuts(segment_s)
