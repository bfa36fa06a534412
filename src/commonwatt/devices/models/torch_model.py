"""A PyTorch program saved by ``torch.export.save``, run part by part.

Inputs keep the names of the export; outputs are named ``output_0``, ``output_1`` and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from commonwatt.devices.base import Tensor, TensorSpec
from commonwatt.devices.models.base import Foreign, SegmentedModel, checked_file, failure_of, sample_inputs
from commonwatt.devices.models.torch_split import TorchStep, torch_graph
from commonwatt.model.errors import InputError, MissingExtraError

__all__ = ["TorchModel", "TorchRuntime", "load_torch"]

_Take = Callable[[dict[str, Foreign]], Foreign]  # extracts an output from the values of an execution

_DATATYPES = {
    "bool": "BOOL", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "uint8": "UINT8",
    "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "float16": "FP16", "float32": "FP32",
    "float64": "FP64",
}  # fmt: skip


@dataclass(frozen=True)
class TorchRuntime:
    """Device on which programs run: its name in errors, threads of a CPU, index of a GPU (``None``: the CPU)."""

    device: str
    threads: int = 1
    cuda_index: int | None = None
    what: ClassVar[str] = "a PyTorch program saved by torch.export.save"  # it runs

    @property
    def place(self) -> str:
        """PyTorch's name of the device."""
        return "cpu" if self.cuda_index is None else f"cuda:{self.cuda_index}"

    @property
    def version(self) -> str:
        """PyTorch and its version."""
        return f"torch {_torch().__version__}"

    def synchronise(self) -> None:
        """Wait for the GPU."""
        if self.cuda_index is not None:
            _torch().cuda.synchronize(self.cuda_index)

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Turn errors of PyTorch into a ``DeviceError``, or an ``InputError`` about the inputs."""
        try:
            yield
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError, MemoryError) as error:
            raise failure_of(error, _cause(error), device=self.device, model=name) from error


class TorchModel(SegmentedModel):
    """A loaded program; made by :func:`load_torch`."""

    def __init__(
        self, name: str, path: Path, runtime: TorchRuntime, module: Foreign, steps: Sequence[TorchStep]
    ) -> None:
        outputs, self.results = _outputs(module, path)
        super().__init__(name, path, _inputs(module, path), outputs, steps)
        self.runtime = runtime
        self.places = [node.name for node in module.graph.nodes if node.op == "placeholder"]

    def _execution(self, inputs: dict[str, Tensor]) -> TorchExecution:
        return TorchExecution(self, inputs)

    def close(self) -> None:
        """Free its memory as soon as no inference is in progress."""
        super().close()
        self.results = ()


class TorchExecution:
    """One inference; values are freed when no later step needs them."""

    def __init__(self, model: TorchModel, inputs: dict[str, Tensor]) -> None:
        self._model, self._steps, self._results, self._next = model, model.steps, model.results, 0
        self._inputs: dict[str, Tensor] | None = inputs
        self._values: dict[str, Foreign] = {}

    def step(self) -> None:
        """Run the next step to its end."""
        step, model = self._steps[self._next], self._model
        with model.runtime.running(model.name), _torch().inference_mode():
            if self._inputs is not None:
                given = zip(model.places, model.inputs, strict=True)
                self._values = {place: _placed(self._inputs[spec.name], model.runtime.place) for place, spec in given}
                self._inputs = None
            written = step.module(*(self._values[name] for name in step.part.reads))
            model.runtime.synchronise()
        self._values.update(zip(step.part.writes, written, strict=True))
        for name in step.part.frees:
            del self._values[name]
        self._next += 1

    def outputs(self) -> dict[str, Tensor]:
        """Return the outputs by name."""
        if self._next < len(self._steps):
            raise RuntimeError(f"steps not run yet: {len(self._steps) - self._next}")
        with self._model.runtime.running(self._model.name):
            pairs = zip(self._model.outputs, self._results, strict=True)
            return {spec.name: result(self._values).cpu().numpy() for spec, result in pairs}


def load_torch(
    name: str, path: str | Path, runtime: TorchRuntime, segment_s: float | None, *, cuts: Sequence[int] | None = None,
    times_s: Sequence[float] | None = None,
) -> TorchModel:  # fmt: skip
    """Load an exported program and cut it.

    Such a file can contain pickled data: load only files that you trust. The number of threads applies to the whole
    process.

    Parameters
    ----------
    segment_s
        Length of a part; ``None`` leaves the program whole.
    cuts
        Nodes of the graph to cut before instead.
    times_s
        Times of the steps between these, so that they are not measured.
    """
    file = checked_file(path, "a PyTorch program saved by torch.export.save")
    torch = _torch()
    if runtime.cuda_index is None:
        torch.set_num_threads(runtime.threads)
    module = _module(file, runtime)
    graph = torch_graph(module)
    samples = sample_inputs(_inputs(module, file))
    try:
        with runtime.running(name):
            seen = graph.observe([_placed(tensor, runtime.place) for tensor in samples.values()], runtime.synchronise)
        chosen = cuts if cuts is not None else () if segment_s is None else graph.cuts(seen, segment_s)
        inside = [cut for cut in chosen if 0 < cut < len(graph.nodes)]
        model = TorchModel(name, file, runtime, module, graph.steps(inside, seen.works))
        model.cuts = tuple(inside)
        model.measure(times_s)
    except InputError as error:
        raise error.within(file) from error
    return model


def _module(file: Path, runtime: TorchRuntime) -> Foreign:
    """Read a program; any error inside PyTorch means that the file is not one."""
    torch = _torch()
    try:
        program = torch.export.load(str(file))
        if runtime.cuda_index is not None:
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, runtime.place)
        return program.module()
    except Exception as error:
        kind, wanted = type(error).__name__, "a PyTorch program saved by torch.export.save"
        raise InputError(f"{wanted} ({_cause(error)})", file=file, value=kind) from error


def _inputs(module: Foreign, path: Path) -> tuple[TensorSpec, ...]:
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    return tuple(_spec(str(node.target), node.meta.get("val"), path) for node in nodes)


def _outputs(module: Foreign, path: Path) -> tuple[tuple[TensorSpec, ...], tuple[_Take, ...]]:
    """Return the outputs, and a function for each that extracts it from the values of an execution."""
    (end,) = (node for node in module.graph.nodes if node.op == "output")
    specs, results = [], []
    nodes = end.args[0] if isinstance(end.args[0], tuple | list) else [end.args[0]]
    for place, node in enumerate(nodes):
        value = getattr(node, "meta", {}).get("val")
        specs.append(_spec(f"output_{place}", value, path))
        results.append(_weight(module, node) if node.op == "get_attr" else _value(node.name))
    return tuple(specs), tuple(results)


def _value(name: str) -> _Take:
    return lambda values: values[name]


def _weight(module: Foreign, node: Foreign) -> _Take:
    weight = module
    for part in str(node.target).split("."):
        weight = getattr(weight, part)
    return lambda _: weight.detach()


def _spec(name: str, value: Foreign, path: Path) -> TensorSpec:
    kind = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
    if kind not in _DATATYPES:
        raise InputError("numeric tensors only", file=path, field=name, value=kind)
    shape = tuple(length if isinstance(length, int) else -1 for length in value.shape)
    return TensorSpec(name, _DATATYPES[kind], shape)


def _placed(tensor: Tensor, place: str) -> Foreign:
    """Return a copy on the device, as programs may write to their inputs."""
    return _torch().from_numpy(np.array(tensor, order="C")).to(place)


def _torch() -> Foreign:
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "torch") from error
    return torch


def _cause(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
