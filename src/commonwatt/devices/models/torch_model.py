"""A PyTorch program, as saved by ``torch.export.save``, that is run part by part.

Its inputs have the names they were exported with; its outputs are ``output_0``, ``output_1``, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commonwatt.devices.base import Tensor, TensorSpec, Work, example_input
from commonwatt.devices.models.failures import failure_of
from commonwatt.devices.models.foreign import Foreign
from commonwatt.devices.models.measuring import measure_steps
from commonwatt.devices.models.model_file import checked_file, digest_of
from commonwatt.devices.models.torch_split import TorchStep, torch_graph
from commonwatt.model.errors import InputError, MissingExtraError

__all__ = ["TorchModel", "TorchRuntime", "load_torch"]

_Take = Callable[[dict[str, Foreign]], Foreign]  # takes an output from the values of an execution

_DATATYPES = {
    "bool": "BOOL", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "uint8": "UINT8",
    "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "float16": "FP16", "float32": "FP32",
    "float64": "FP64",
}  # fmt: skip


@dataclass(frozen=True)
class TorchRuntime:
    """Where and how programs run: the name of the device, threads on a CPU, index of the GPU (``None``: the CPU)."""

    device: str
    threads: int = 1
    cuda_index: int | None = None

    @property
    def place(self) -> str:
        """The device, as PyTorch calls it."""
        return "cpu" if self.cuda_index is None else f"cuda:{self.cuda_index}"

    def synchronise(self) -> None:
        """Wait for the GPU."""
        if self.cuda_index is not None:
            _torch().cuda.synchronize(self.cuda_index)

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Turn errors of PyTorch into such as tell a failed device from inputs the model cannot compute."""
        try:
            yield
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError, MemoryError) as error:
            raise failure_of(error, _cause(error), device=self.device, model=name) from error


class TorchModel:
    """A loaded program; made by :func:`load_torch`."""

    def __init__(
        self, name: str, path: Path, runtime: TorchRuntime, module: Foreign, steps: Sequence[TorchStep]
    ) -> None:
        self.name, self.digest = name, digest_of(path)
        self.inputs, self.outputs, self.results = _inputs(module, path), *_outputs(module, path)
        self.runtime, self.steps = runtime, tuple(steps)
        self.step_names: tuple[str, ...] = tuple(step.name for step in steps)
        self.work: tuple[Work, ...] = tuple(step.work for step in steps)
        self.step_times_s: tuple[float, ...] = ()
        self.places = [node.name for node in module.graph.nodes if node.op == "placeholder"]

    def begin(self, inputs: dict[str, Tensor]) -> TorchExecution:
        """Start an inference."""
        if not self.steps:
            raise RuntimeError(f"model {self.name} is closed")
        return TorchExecution(self, inputs)

    def measure(self) -> None:
        """Warm up and measure every step."""
        examples = _examples(self.inputs)
        self.step_times_s = measure_steps(lambda: self.begin(examples), len(self.steps))

    def close(self) -> None:
        """Give its memory back, as soon as no inference is under way."""
        self.steps, self.results = (), ()


class TorchExecution:
    """One inference; what no later step needs is freed on the way."""

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
            raise RuntimeError(f"{len(self._steps) - self._next} steps are left")
        with self._model.runtime.running(self._model.name):
            pairs = zip(self._model.outputs, self._results, strict=True)
            return {spec.name: result(self._values).cpu().numpy() for spec, result in pairs}


def load_torch(
    name: str, path: str | Path, runtime: TorchRuntime, segment_s: float | None, *, cuts: Sequence[int] | None = None
) -> TorchModel:
    """Load an exported program and cut it.

    Such a file can hold pickled data: load only what you trust. The number of threads is set for the whole process.

    Parameters
    ----------
    segment_s
        Length of a part; ``None``: the program stays whole.
    cuts
        Cut before these nodes of the graph instead.
    """
    file = checked_file(path, "a PyTorch program saved by torch.export.save")
    torch = _torch()
    if runtime.cuda_index is None:
        torch.set_num_threads(runtime.threads)
    module = _module(file, runtime)
    graph = torch_graph(module)
    examples = _examples(_inputs(module, file))
    try:
        with runtime.running(name):
            seen = graph.observe([_placed(tensor, runtime.place) for tensor in examples.values()], runtime.synchronise)
        chosen = cuts if cuts is not None else () if segment_s is None else graph.cuts(seen, segment_s)
        inside = [cut for cut in chosen if 0 < cut < len(graph.nodes)]
        model = TorchModel(name, file, runtime, module, graph.steps(inside, seen.works))
        model.measure()
    except InputError as error:
        raise error.within(file) from error
    return model


def _module(file: Path, runtime: TorchRuntime) -> Foreign:
    """Read a program; whatever goes wrong inside PyTorch then, the file is none it can read."""
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
    """Describe the outputs, and how to take each from the values of an execution."""
    (end,) = (node for node in module.graph.nodes if node.op == "output")
    specs, results = [], []
    found = end.args[0] if isinstance(end.args[0], tuple | list) else [end.args[0]]
    for place, node in enumerate(found):
        value = getattr(node, "meta", {}).get("val")
        specs.append(_spec(f"output_{place}", value, path))
        results.append(_weight(module, node) if node.op == "get_attr" else _value(node.name))
    return tuple(specs), tuple(results)


def _value(name: str) -> _Take:
    return lambda values: values[name]


def _weight(module: Foreign, node: Foreign) -> _Take:
    found = module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return lambda _: found.detach()


def _spec(name: str, value: Foreign, path: Path) -> TensorSpec:
    kind = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
    if kind not in _DATATYPES:
        raise InputError("tensors of numbers only", file=path, field=name, value=kind)
    shape = tuple(length if isinstance(length, int) else -1 for length in value.shape)
    return TensorSpec(name, _DATATYPES[kind], shape)


def _placed(tensor: Tensor, place: str) -> Foreign:
    """A copy, as programs may write into their inputs."""
    return _torch().from_numpy(np.array(tensor, order="C")).to(place)


def _examples(specs: Sequence[TensorSpec]) -> dict[str, Tensor]:
    rng = np.random.default_rng(0)
    return {spec.name: example_input(spec, rng) for spec in specs}


def _torch() -> Foreign:
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "torch") from error
    return torch


def _cause(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
