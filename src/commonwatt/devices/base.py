"""The interface of a device: it loads models and runs their inferences step by step.

A step (the paper's kernel) is the shortest piece of work that a device does without a chance to switch tenants. The
driver (``commonwatt.devices.driver``) asks a device for nothing else, so one scheduler drives a simulated device, a CPU
and a GPU. The clock is passed in: the driver cannot tell virtual time from real time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Device",
    "DeviceClock",
    "Execution",
    "LoadedModel",
    "RealDeviceClock",
    "StepWork",
    "Tensor",
    "TensorSpec",
    "VirtualDeviceClock",
    "example_inputs",
]


class DeviceClock(Protocol):
    """Time in nanoseconds since an arbitrary start."""

    def now_ns(self) -> int:
        """Return the time."""
        ...

    def wait_until(self, time_ns: int) -> None:
        """Let time pass until *time_ns*."""
        ...


class VirtualDeviceClock:
    """Time that passes only on request."""

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        """Return the time."""
        return self._now_ns

    def wait_until(self, time_ns: int) -> None:
        """Jump to *time_ns*, if that is later."""
        self._now_ns = max(self._now_ns, time_ns)

    def advance(self, time_ns: int) -> None:
        """Let *time_ns* pass."""
        self._now_ns += time_ns


class RealDeviceClock:
    """The machine's monotonic clock."""

    def now_ns(self) -> int:
        """Return the time."""
        return time.perf_counter_ns()

    def wait_until(self, time_ns: int) -> None:
        """Sleep until *time_ns*."""
        left_ns = time_ns - time.perf_counter_ns()
        if left_ns > 0:
            time.sleep(left_ns * 1e-9)


Tensor = NDArray[Any]


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model: name, datatype of the Open Inference Protocol (``FP32``), shape (-1: any)."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class StepWork:
    """Work of one step, counted from shapes; the basis of modelled power."""

    flops: float  # floating-point operations; a multiply-add counts two
    bytes_moved: float  # weights, inputs and outputs of every operator, once each


class Execution(Protocol):
    """One inference in progress."""

    def step(self) -> None:
        """Run the next step to its end.

        Raises ``DeviceError`` if the device fails or has disappeared, and ``InputError`` if the model cannot compute
        these inputs although their shapes fit (two lengths that do not match).
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
    step_times_s: tuple[float, ...]  # of each step, as measured when the model was loaded
    work: tuple[StepWork, ...]  # of each step

    def begin(self, inputs: dict[str, Tensor]) -> Execution:
        """Start an inference on *inputs*, which match the specification ``inputs``; nothing is computed yet."""
        ...

    def close(self) -> None:
        """Free its memory."""
        ...


class Device(Protocol):
    """Something that runs models, one step at a time."""

    kind: str  # simulated, cpu, cuda
    name: str  # of the hardware, as in profiles
    enforcement: str  # how shares are enforced, such as "cooperative at segment boundaries"

    def load(self, name: str, path: str) -> LoadedModel:
        """Load the model in file *path*; raises ``InputError`` naming a file that is not a model."""
        ...

    def set_clock(self, clock_mhz: float | None) -> None:
        """Run the following steps at *clock_mhz*; raises ``InputError`` if the clock cannot be set."""
        ...

    def energy_j(self) -> float | None:
        """Return the reading of the energy meter; ``None`` without a meter."""
        ...

    def close(self) -> None:
        """Release everything, including a locked clock."""
        ...


def example_inputs(specs: Iterable[TensorSpec], rng: np.random.Generator) -> dict[str, Tensor]:
    """Return random inputs that fit *specs*, by name; free dimensions have length 1."""
    return {spec.name: _example(spec, rng) for spec in specs}


def _example(spec: TensorSpec, rng: np.random.Generator) -> Tensor:
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
