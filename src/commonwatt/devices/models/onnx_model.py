"""A model in ONNX Runtime that is run part by part, so that tenants can be switched in between."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from commonwatt.devices.base import Tensor, TensorSpec, Work, example_input
from commonwatt.devices.models.foreign import Foreign
from commonwatt.devices.models.measuring import measure_steps
from commonwatt.devices.models.model_file import checked_file, digest_of
from commonwatt.devices.models.onnx_call import contiguous, placed
from commonwatt.devices.models.onnx_graph import optimised_graph
from commonwatt.devices.models.onnx_runtime import OnnxRuntime, specs_of
from commonwatt.devices.models.onnx_split import OnnxStep, SplitModel, split, whole
from commonwatt.model.errors import InputError

__all__ = ["OnnxModel", "load_onnx"]


class OnnxModel:
    """A loaded model; made by :func:`load_onnx`."""

    def __init__(
        self, name: str, path: Path, runtime: OnnxRuntime, steps: tuple[OnnxStep, ...], session: Foreign
    ) -> None:
        self.name, self.digest = name, digest_of(path)
        self.inputs: tuple[TensorSpec, ...] = specs_of(session.get_inputs(), path)
        self.outputs: tuple[TensorSpec, ...] = specs_of(session.get_outputs(), path)
        self.runtime, self.steps = runtime, steps
        self.step_names: tuple[str, ...] = tuple(step.name for step in steps)
        self.work: tuple[Work, ...] = tuple(step.work for step in steps)
        self.step_times_s: tuple[float, ...] = ()

    def begin(self, inputs: dict[str, Tensor]) -> OnnxExecution:
        """Start an inference."""
        if not self.steps:
            raise RuntimeError(f"model {self.name} is closed")
        return OnnxExecution(self, inputs)

    def measure(self) -> None:
        """Warm up and measure every step."""
        examples = _examples(self.inputs)
        self.step_times_s = measure_steps(lambda: self.begin(examples), len(self.steps))

    def close(self) -> None:
        """Give its memory back, as soon as no inference is under way."""
        self.steps = ()


class OnnxExecution:
    """One inference; what no later step needs is freed on the way."""

    def __init__(self, model: OnnxModel, inputs: dict[str, Tensor]) -> None:
        self._model, self._steps, self._next = model, model.steps, 0
        self._inputs = inputs  # which values may lie in, so that they are kept to the end
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
            raise RuntimeError(f"{len(self._steps) - self._next} steps are left")
        with self._model.runtime.running(self._model.name):
            return {spec.name: self._values[spec.name].numpy() for spec in self._model.outputs}


def load_onnx(
    name: str, path: str | Path, runtime: OnnxRuntime, segment_s: float | None, *, cuts: Sequence[int] | None = None
) -> OnnxModel:
    """Load an ONNX model and cut it.

    Parameters
    ----------
    segment_s
        Length of a part; ``None``: the model stays whole.
    cuts
        Cut before these nodes of the optimised graph instead, as far as it can be cut there.
    """
    file = checked_file(path, "an ONNX model")
    with TemporaryDirectory(prefix="commonwatt-") as folder, runtime.loading(file):
        graph, session = optimised_graph(file, Path(folder), runtime)
        examples = _examples(specs_of(session.get_inputs(), file))
        seen = split(graph, runtime, examples) if graph else None
        chosen = _chosen(seen, segment_s, cuts)
        steps = seen.steps(chosen) if seen and chosen else ()
        if len(steps) < 2:
            steps = (whole(session, seen, file, runtime),)
        model = OnnxModel(name, file, runtime, steps, session)
    try:
        model.measure()
    except InputError as error:
        raise error.within(file) from error
    return model


def _chosen(graph: SplitModel | None, segment_s: float | None, cuts: Sequence[int] | None) -> tuple[int, ...]:
    if graph is None or not graph.allowed:
        return ()
    if cuts is not None:
        return tuple(sorted(graph.allowed & set(cuts)))
    return () if segment_s is None else graph.cuts(segment_s)


def _examples(specs: Sequence[TensorSpec]) -> dict[str, Tensor]:
    rng = np.random.default_rng(0)
    return {spec.name: example_input(spec, rng) for spec in specs}
