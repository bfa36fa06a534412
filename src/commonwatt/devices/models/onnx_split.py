"""Cutting an optimised ONNX graph into parts, each with a session of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from commonwatt.devices.base import Tensor, Work
from commonwatt.devices.models.cutting import Part, choose_cuts, live_values, parts_of
from commonwatt.devices.models.foreign import Foreign
from commonwatt.devices.models.onnx_call import Call
from commonwatt.devices.models.onnx_graph import OnnxGraph, names_read, observed_values, profiled_times, weight_values
from commonwatt.devices.models.onnx_runtime import OnnxRuntime
from commonwatt.devices.models.onnx_work import Value, work_of, work_together

__all__ = ["OnnxStep", "SplitModel", "split", "whole"]

_LAUNCH_S, _FLOPS_PER_S, _BYTES_PER_S = 5e-6, 1e13, 1e12  # of some GPU: only proportions matter
_SMALL_BYTES = 1024  # a tensor of whole numbers this small is a shape, which GPUs' sessions compute on the CPU


@dataclass(frozen=True)
class OnnxStep:
    """A part of a model, ready to run."""

    name: str
    call: Call
    part: Part
    work: Work


@dataclass(frozen=True)
class SplitModel:
    """A graph together with what was observed in it, and where it may be cut."""

    graph: OnnxGraph
    runtime: OnnxRuntime
    inputs: dict[str, Tensor]  # examples
    values: dict[str, Value]  # of inputs, weights and everything computed
    kinds: dict[str, int]  # ONNX element types of inputs and everything computed
    allowed: frozenset[int]  # boundaries where everything live is a tensor

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
        # The profile tells when kernels are launched, not how long they run; so that is guessed from their work.
        works = self.works()
        return [_LAUNCH_S + max(work.flops / _FLOPS_PER_S, work.bytes_moved / _BYTES_PER_S) for work in works]

    def works(self) -> list[Work]:
        """Return the work of every node."""
        return [work_of(node, self.values) for node in self.graph.nodes]

    def steps(self, cuts: Sequence[int]) -> tuple[OnnxStep, ...]:
        """Return the parts between *cuts*, each with a session."""
        works, steps = self.works(), []
        for place, part in enumerate(parts_of(self.graph.flow, cuts)):
            file = self.graph.folder / f"part{place}.onnx"
            file.write_bytes(self._model(part).SerializeToString())
            session = self.runtime.session(file, self.runtime.options())
            work = work_together([works[node] for node in part.nodes])
            call = Call(session, part.reads, part.writes, self.runtime.cuda_index, self._small(part.writes))
            steps.append(OnnxStep(self._name(part), call, part, work))
        return tuple(steps)

    def _model(self, part: Part) -> Foreign:
        """The part as a model of its own; its weights stay in the file beside it."""
        import onnx
        from onnx import helper

        def described(name: str) -> Foreign:
            if name not in self.kinds:  # an output of the model, as it was declared
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
    """Look at what *graph* computes of *inputs*, and return it ready to be cut."""
    seen = observed_values(graph, runtime, inputs)
    values = weight_values(graph) | {name: value for name, (value, _) in seen.items()}
    live = live_values(graph.flow)
    inside = range(1, len(graph.nodes))
    allowed = frozenset(place for place in inside if live[place] <= seen.keys())
    return SplitModel(graph, runtime, inputs, values, {name: kind for name, (_, kind) in seen.items()}, allowed)


def whole(session: Foreign, graph: SplitModel | None, path: Path, runtime: OnnxRuntime) -> OnnxStep:
    """Return the model *path* as a single step that runs *session*."""
    reads, writes = ([item.name for item in items] for items in (session.get_inputs(), session.get_outputs()))
    work = work_together(graph.works()) if graph else Work(0.0, float(path.stat().st_size))
    frees = tuple(name for name in reads if name not in writes)
    part = Part(range(len(graph.graph.nodes) if graph else 0), tuple(reads), tuple(writes), frees)
    return OnnxStep(path.stem, Call(session, reads, writes, runtime.cuda_index), part, work)
