"""Shared by all runtimes: checks of model files, errors, loaded models whose steps are timed, and where to cut.

A program of nodes is cut without looking into them: nodes are numbers in their order of execution, values are names.
Boundary ``b`` lies before node ``b``.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from commonwatt.devices.base import Execution, StepWork, Tensor, TensorSpec, example_inputs
from commonwatt.model.errors import DeviceError, InputError

__all__ = [
    "Flow",
    "Foreign",
    "Part",
    "SegmentedModel",
    "checked_file",
    "choose_cuts",
    "digest_of",
    "failure_of",
    "live_values",
    "measure_steps",
    "parts_of",
    "sample_inputs",
]

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
        raise InputError(f"{what}; there is no such file", file=file)
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
        self.cuts: tuple[int, ...] = ()  # nodes that begin a step
        self.measured_under: Any = None  # name of the record of its times

    def begin(self, inputs: dict[str, Tensor]) -> Execution:
        """Start an inference."""
        if not self.steps:
            raise RuntimeError(f"model {self.name} is closed")
        return self._execution(inputs)

    def _execution(self, inputs: dict[str, Tensor]) -> Execution:
        raise NotImplementedError

    def measure(self, times_s: Sequence[float] | None = None) -> None:
        """Warm up and measure every step, unless as many *times_s* are given."""
        samples = sample_inputs(self.inputs)
        if times_s is not None and len(times_s) == len(self.steps):
            _run(self.begin(samples), len(self.steps))
            self.step_times_s = tuple(times_s)
        else:
            self.step_times_s = measure_steps(lambda: self.begin(samples), len(self.steps))

    def close(self) -> None:
        """Free its memory as soon as no inference is in progress."""
        self.steps = ()


# -- cutting


_SHORTEST, _LONGEST = 0.7, 1.15  # preferred length of a part, relative to the requested one


@dataclass(frozen=True)
class Flow:
    """Values that each node reads and writes (without weights), and inputs and outputs of the program."""

    reads: tuple[tuple[str, ...], ...]
    writes: tuple[tuple[str, ...], ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """Consecutive nodes that run as one step."""

    nodes: range
    reads: tuple[str, ...]
    writes: tuple[str, ...]  # values that later parts read, and outputs
    frees: tuple[str, ...]  # values that no later part needs


def live_values(flow: Flow) -> list[frozenset[str]]:
    """Return the values computed before and needed after each boundary, from 0 to the number of nodes."""
    needed = set(flow.outputs)
    live = [frozenset(needed)]
    for reads, writes in zip(reversed(flow.reads), reversed(flow.writes), strict=True):
        needed = (needed - set(writes)) | set(reads)
        live.append(frozenset(needed))
    return live[::-1]


def choose_cuts(
    times_s: Sequence[float], live_bytes: Sequence[float], allowed: Collection[int], segment_s: float
) -> tuple[int, ...]:
    """Return boundaries that cut nodes with *times_s* into parts of about *segment_s*.

    Parameters
    ----------
    live_bytes
        Live bytes at every boundary; among similar boundaries, the one with the fewest is chosen.
    allowed
        Boundaries at which a cut is possible.
    """
    ends = [0.0]
    for time_s in times_s:
        ends.append(ends[-1] + time_s)
    cuts: list[int] = []
    start = 0.0
    while ends[-1] - start > (1 + _SHORTEST / 2) * segment_s:
        after = [b for b in sorted(allowed) if 0 < b < len(times_s) and b > (cuts[-1] if cuts else 0)]
        near = [b for b in after if _SHORTEST <= (ends[b] - start) / segment_s <= _LONGEST]
        if near:
            best = min(near, key=lambda b: (live_bytes[b], abs(ends[b] - start - segment_s)))
        elif after:
            best = min(after, key=lambda b: abs(ends[b] - start - segment_s))
        else:
            break
        cuts.append(best)
        start = ends[best]
    return tuple(cuts)


def parts_of(flow: Flow, cuts: Sequence[int]) -> tuple[Part, ...]:
    """Return the parts between *cuts*; a part without outputs is merged with its neighbour."""
    live = live_values(flow)
    last = len(flow.reads)
    parts: list[Part] = []
    first, kept = 0, set(flow.inputs)
    for end in sorted({*cuts, last} - {0}):
        nodes = range(first, end)
        made = {name for node in nodes for name in flow.writes[node]}
        writes = made & live[end]
        if not writes and end != last:
            continue
        if not writes and parts:
            return parts_of(flow, [part.nodes.stop for part in parts[:-1]])
        reads = {name for node in nodes for name in flow.reads[node]} - made
        kept |= writes
        frees = kept - live[end]
        kept -= frees
        parts.append(Part(nodes, tuple(sorted(reads)), tuple(sorted(writes)), tuple(sorted(frees))))
        first = end
    return tuple(parts)
