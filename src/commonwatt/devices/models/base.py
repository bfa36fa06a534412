"""Shared by all runtimes: checks of model files, errors of runtimes, and loaded models whose steps are timed."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from commonwatt.devices.base import Execution, StepWork, Tensor, TensorSpec, example_inputs
from commonwatt.model.errors import DeviceError, InputError

__all__ = ["Foreign", "SegmentedModel", "checked_file", "digest_of", "failure_of", "measure_steps", "sample_inputs"]

Foreign: TypeAlias = Any
"""An object of a package that may not be installed: ONNX, ONNX Runtime, PyTorch or zeus."""

_OF_THE_DEVICE = ("cuda", "cudnn", "cublas", "cufft", "allocate memory", "bad_alloc", "out of memory")


def failure_of(error: BaseException, cause: str, *, device: str, model: str) -> DeviceError | InputError:
    """Return the error to raise instead of *error*, which a runtime raised while *model* ran on *device*.

    Runtimes distinguish a failed device from unsuitable inputs only in their messages. A message that names neither the
    GPU nor memory is taken to be about the inputs, such as lengths that do not match.
    """
    if isinstance(error, MemoryError) or any(word in str(error).lower() for word in _OF_THE_DEVICE):
        return DeviceError(f"{device}: {cause}")
    return InputError(f"inputs that model {model} can compute ({cause})")


def measure_steps(
    begin: Callable[[], Execution], steps: int, *, budget_s: float = 1.0, runs: int = 15
) -> tuple[float, ...]:
    """Return the median time of each step, over at most *runs* inferences after one to warm up.

    No inference starts after *budget_s*, but one is always measured.
    """
    started = perf_counter()
    _run(begin(), steps)
    times = [_run(begin(), steps)]
    while len(times) < runs and perf_counter() - started < budget_s:
        times.append(_run(begin(), steps))
    return tuple(statistics.median(step) for step in zip(*times, strict=True))


def _run(execution: Execution, steps: int) -> list[float]:
    times = []
    for _ in range(steps):
        before = perf_counter()
        execution.step()
        times.append(perf_counter() - before)
    execution.outputs()
    return times


def checked_file(path: str | Path, what: str) -> Path:
    """Return *path* if it is a readable file that is not empty; *what* names the expected file (``an ONNX model``)."""
    file = Path(path)
    if file.is_dir():
        raise InputError(f"{what}, a file", file=file, value="a directory")
    if not file.is_file():
        raise InputError(what, file=file, value="no such file")
    try:
        if file.stat().st_size == 0:
            raise InputError(what, file=file, value="an empty file")
        with file.open("rb"):
            pass
    except OSError as error:
        raise InputError(f"{what} that can be read", file=file, value=error.strerror) from error
    return file


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sample_inputs(specs: Sequence[TensorSpec]) -> dict[str, Tensor]:
    """Return the inputs with which a model is measured."""
    return example_inputs(specs, np.random.default_rng(0))


class SegmentedModel:
    """A loaded model of several steps; ``_execution`` of a runtime's own class runs them."""

    def __init__(
        self, name: str, path: Path, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...],
        steps: Sequence[Foreign],
    ) -> None:  # fmt: skip
        self.name, self.digest = name, digest_of(path)
        self.inputs, self.outputs, self.steps = inputs, outputs, tuple(steps)
        self.step_names: tuple[str, ...] = tuple(step.name for step in steps)
        self.work: tuple[StepWork, ...] = tuple(step.work for step in steps)
        self.step_times_s: tuple[float, ...] = ()

    def begin(self, inputs: dict[str, Tensor]) -> Execution:
        """Start an inference."""
        if not self.steps:
            raise RuntimeError(f"model {self.name} is closed")
        return self._execution(inputs)

    def _execution(self, inputs: dict[str, Tensor]) -> Execution:
        raise NotImplementedError

    def measure(self) -> None:
        """Warm up and measure every step."""
        samples = sample_inputs(self.inputs)
        self.step_times_s = measure_steps(lambda: self.begin(samples), len(self.steps))

    def close(self) -> None:
        """Free its memory as soon as no inference is in progress."""
        self.steps = ()
