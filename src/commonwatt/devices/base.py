"""What a device is: it loads models, and runs each of their inferences step by step.

A step (the paper's kernel) is the shortest piece of work a device does without a chance to switch tenants.
The loop that drives a device (``commonwatt.devices.loop``) asks it for nothing else, so that a simulated device,
a CPU and a GPU are driven by the same scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Device", "Execution", "LoadedModel", "Tensor", "TensorSpec", "Work", "example_input"]

Tensor = NDArray[Any]


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model: name, datatype of the Open Inference Protocol (``FP32``), shape (-1: any)."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Work:
    """What one inference asks of a device, counted from shapes; basis of modelled power."""

    flops: float  # floating-point operations; a multiply-add counts two
    bytes_moved: float  # weights, inputs and outputs of every operator, once each


class Execution(Protocol):
    """One inference under way."""

    def step(self) -> None:
        """Run the next step to its end.

        Raises ``DeviceError`` if the device fails or is gone, and ``InputError`` if the model cannot compute these
        inputs, though they fit (two lengths that do not go together).
        """
        ...

    def outputs(self) -> dict[str, Tensor]:
        """Return the outputs by name; only after the last step."""
        ...


class LoadedModel(Protocol):
    """A model in the memory of a device."""

    name: str
    digest: str  # SHA-256 of its file
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    step_names: tuple[str, ...]
    step_times_s: tuple[float, ...]  # of each step, as measured when it was loaded; the length tells how many there are
    work: tuple[Work, ...]  # of each step

    def begin(self, inputs: dict[str, Tensor]) -> Execution:
        """Start an inference on *inputs*, which fit ``inputs``; nothing is computed yet."""
        ...

    def close(self) -> None:
        """Give its memory back."""
        ...


class Device(Protocol):
    """Something that runs models, one step at a time."""

    kind: str  # simulated, cpu, cuda
    name: str  # of the hardware, as in profiles
    enforcement: str  # what keeps shares: cooperative at segment boundaries

    def load(self, name: str, path: str) -> LoadedModel:
        """Load the model in file *path*; raises ``InputError`` naming the file if it is none."""
        ...

    def set_clock(self, clock_mhz: float | None) -> None:
        """Run what follows at *clock_mhz*; raises ``InputError`` where clocks cannot be set."""
        ...

    def energy_j(self) -> float | None:
        """Return the reading of the device's energy meter; ``None`` if it has none."""
        ...

    def close(self) -> None:
        """Give everything back, clocks included."""
        ...


def example_input(spec: TensorSpec, rng: np.random.Generator) -> Tensor:
    """Return an input that fits *spec*: random, 1 where any length will do."""
    shape = tuple(1 if length < 0 else length for length in spec.shape)
    kinds: dict[str, Any] = {
        "BOOL": np.bool_, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "UINT8": np.uint8,
        "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64, "FP16": np.float16, "FP32": np.float32,
        "FP64": np.float64,
    }  # fmt: skip
    kind = kinds[spec.datatype]
    if np.issubdtype(kind, np.floating):
        return rng.standard_normal(shape).astype(kind)
    return rng.integers(0, 2, shape).astype(kind)
