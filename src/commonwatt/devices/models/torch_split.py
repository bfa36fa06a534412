"""Cuts the graph of an exported PyTorch program into parts, with a module each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from commonwatt.devices.base import StepWork
from commonwatt.devices.models.base import Flow, Foreign, Part, choose_cuts, live_values, parts_of
from commonwatt.devices.models.onnx_graph import work_together

__all__ = ["TorchGraph", "TorchStep", "torch_graph"]

_WARM_UP, _RUNS, _BUDGET_S = 1, 3, 1.0


@dataclass(frozen=True)
class TorchStep:
    """A part of a program, ready to run."""

    name: str
    module: Foreign
    part: Part
    work: StepWork


@dataclass(frozen=True)
class TorchGraph:
    """The graph of a program and its data flow."""

    module: Foreign  # torch.fx.GraphModule
    nodes: tuple[Any, ...]  # that compute something
    by_name: dict[str, Foreign]  # these, and the inputs
    flow: Flow

    def steps(self, cuts: Sequence[int], works: Sequence[StepWork]) -> tuple[TorchStep, ...]:
        """Return the parts between *cuts*; *works* is the work of every node."""
        steps = []
        for part in parts_of(self.flow, cuts):
            first, last = self.nodes[part.nodes[0]].name, self.nodes[part.nodes[-1]].name
            name = first if len(part.nodes) == 1 else f"{first}..{last}"
            steps.append(TorchStep(name, self._module(part), part, work_together([works[n] for n in part.nodes])))
        return tuple(steps)

    def _module(self, part: Part) -> Foreign:
        from torch import fx

        graph = fx.Graph()
        copies = {self.by_name[name]: graph.placeholder(name) for name in part.reads}
        for place in part.nodes:
            node = self.nodes[place]
            for source in node.all_input_nodes:
                if source.op == "get_attr" and source not in copies:
                    copies[source] = graph.node_copy(source)
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[self.by_name[name]] for name in part.writes))
        return fx.GraphModule(self.module, graph)

    def observe(self, inputs: Sequence[Any], synchronise: Callable[[], None]) -> Observation:
        """Run the program node by node on *inputs*; returns times, work and sizes."""
        seen = Observation([float("inf")] * len(self.nodes), [StepWork(0.0, 0.0)] * len(self.nodes))
        _counted(self, seen, inputs)
        started = perf_counter()
        for run in range(_WARM_UP + _RUNS):
            if run < _WARM_UP or perf_counter() - started < _BUDGET_S:
                _timed(self, seen, inputs, synchronise)
        return seen

    def cuts(self, seen: Observation, segment_s: float) -> tuple[int, ...]:
        """Return where to cut into parts of about *segment_s*."""
        live = [sum(seen.sizes.get(name, 0.0) for name in names) for names in live_values(self.flow)]
        return choose_cuts(seen.times_s, live, range(1, len(self.nodes)), segment_s)


@dataclass
class Observation:
    """Measurements of a program run node by node."""

    times_s: list[float]  # of every node, the least of a few runs
    works: list[StepWork]
    sizes: dict[str, float] = field(default_factory=dict)  # bytes, by value


def torch_graph(module: Foreign) -> TorchGraph:
    """Return the graph of *module* without its guards."""
    nodes, inputs = [], []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            inputs.append(node)
        elif node.op not in {"get_attr", "output"} and node.target != "_guards_fn":
            nodes.append(node)
    by_name = {node.name: node for node in (*inputs, *nodes)}
    (end,) = (node for node in module.graph.nodes if node.op == "output")
    flow = Flow(
        tuple(tuple(source.name for source in node.all_input_nodes if source.name in by_name) for node in nodes),
        tuple((node.name,) for node in nodes),
        tuple(node.name for node in inputs),
        tuple(dict.fromkeys(source.name for source in end.all_input_nodes if source.name in by_name)),
    )
    return TorchGraph(module, tuple(nodes), by_name, flow)


def _counted(graph: TorchGraph, seen: Observation, inputs: Sequence[Any]) -> None:
    """Count the work of every node."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    places = {node: place for place, node in enumerate(graph.nodes)}

    class Counting(torch.fx.Interpreter):
        def run_node(self, node: Foreign) -> Foreign:
            if node.target == "_guards_fn":
                return None
            read = sum(_bytes(self.env[source]) for source in node.all_input_nodes)
            with FlopCounterMode(display=False) as counter:
                result = super().run_node(node)
            seen.sizes[node.name] = _bytes(result)
            if node in places:
                flops = counter.get_total_flops() or _elements(result)
                seen.works[places[node]] = StepWork(float(flops), read + _bytes(result))
            return result

    with torch.no_grad():
        Counting(graph.module).run(*inputs, enable_io_processing=False)


def _timed(graph: TorchGraph, seen: Observation, inputs: Sequence[Any], synchronise: Callable[[], None]) -> None:
    """Keep the shortest time of every node so far."""
    import torch

    places = {node: place for place, node in enumerate(graph.nodes)}

    class Timing(torch.fx.Interpreter):
        def run_node(self, node: Foreign) -> Foreign:
            if node not in places:
                return None if node.target == "_guards_fn" else super().run_node(node)
            before = perf_counter()
            result = super().run_node(node)
            synchronise()
            place = places[node]
            seen.times_s[place] = min(seen.times_s[place], perf_counter() - before)
            return result

    with torch.inference_mode():
        Timing(graph.module).run(*inputs, enable_io_processing=False)


def _bytes(value: Foreign) -> float:
    return float(sum(tensor.numel() * tensor.element_size() for tensor in _tensors(value)))


def _elements(value: Foreign) -> float:
    return float(sum(tensor.numel() for tensor in _tensors(value)))


def _tensors(value: Foreign) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    return [inner for part in value for inner in _tensors(part)] if isinstance(value, tuple | list) else []
