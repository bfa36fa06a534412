"""Rows of a batch: how long steps take with many of them, whether they can be divided, and how many run together.

Segments are cut for one row, so a step grows with the rows in it. A model is measured with 1, 2, 4, ... rows when it is
first loaded; a plan made of that says how many rows keep every step within a limit, and how many are worth running
together.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from time import perf_counter

import numpy as np

from commonwatt.devices.base import LoadedModel, Tensor, TensorSpec, example_inputs
from commonwatt.model.errors import InputError
from commonwatt.model.fields import FileModel, quantity

__all__ = ["RowPlan", "RowPoint", "RowProfile", "measure_rows", "row_inputs", "rows_of", "size_of"]

MOST_ROWS = 256
"""Rows up to which a model is measured; no more run together."""
BATCH_OVERHEAD_S = 1e-4
"""Time of a batch outside its steps: scheduling, and switching between the device's thread and the server's."""
WORTHWHILE = 1.03
"""Larger batches run only if they cost less time for each row than this times the least."""
LITTLE_MORE = 1.25
"""Step of a batch over that of a single row, where that is longer than the limit."""
_CHECKED_ROWS = 3
_FEWEST_RUNS, _MOST_RUNS, _RUNS_S = 3, 15, 0.1
_BUDGET_S = 3.0


class RowPoint(FileModel):
    """A batch as measured."""

    rows: int = quantity("rows of the batch", "-", ge=1)
    time_s: float = quantity("time of the batch", "s", gt=0)
    longest_step_s: float = quantity("longest step of the batch", "s", gt=0)


class RowProfile(FileModel):
    """How a model's time grows with the rows of a batch."""

    divisible: bool = quantity("whether rows are computed independently of each other", "-")
    reason: str = quantity("why they are not; empty if they are", "-", "")
    points: tuple[RowPoint, ...] = quantity("batches as measured, smallest first", "-", min_length=1)


class RowPlan:
    """How many rows of a model run in one batch.

    Parameters
    ----------
    profile
        The model as measured.
    limit_s
        Longest step to allow; ``None``: any.
    max_batch_size
        Most rows in a batch; 0: rows stay together as they came; ``None``: as many as the profile says.
    """

    def __init__(self, profile: RowProfile, limit_s: float | None, max_batch_size: int | None = None) -> None:
        self.profile, self.limit_s, self.max_batch_size = profile, limit_s, max_batch_size
        self._slowdown: dict[int, float] = {}  # steps as they run over steps as measured, by size of a row
        self._rows = [point.rows for point in profile.points]
        self._longest_s = np.maximum.accumulate([point.longest_step_s for point in profile.points]).tolist()

    @property
    def divisible(self) -> bool:
        """Whether rows may be divided, and put together with those of other requests."""
        return self.profile.divisible and self.max_batch_size != 0

    @property
    def stated_rows(self) -> int:
        """Most rows of a batch, whatever is learnt while it runs: ``max_batch_size``, or as far as it was measured."""
        return self.max_batch_size or self._rows[-1]

    def slowdown(self, size: float = 1.0) -> float:
        """Return steps as they run over steps as measured, for rows of *size* times as many elements.

        Larger rows count as so many rows until one has run.
        """
        return self._slowdown.get(_class_of(size), max(1.0, size))

    def most_rows(self, size: float = 1.0) -> int | None:
        """Return the most rows that keep steps within the limit, at least 1; ``None``: any number.

        Where a single row takes longer, so many that steps take little longer than with it (``LITTLE_MORE``): dividing
        further would help nobody.
        *size* is how many times as many elements a row has as those that were measured.
        """
        chosen = self.max_batch_size or None
        if self.limit_s is None:
            return chosen
        allowed_s = self.limit_s / self.slowdown(size)
        if _class_of(size) == 0:
            allowed_s = max(allowed_s, LITTLE_MORE * self._longest_s[0])
        fits = min(self.most_within(allowed_s), self._rows[-1])
        return max(1, fits if chosen is None else min(fits, chosen))

    def worthwhile_rows(self, size: float = 1.0) -> int:
        """Return up to how many rows requests are put together: ``max_batch_size``, or what the profile favours."""
        most = self.most_rows(size)
        if self.max_batch_size and most is not None:
            return most
        points = [point for point in self.profile.points if most is None or point.rows <= most]
        costs = {point.rows: (point.time_s + BATCH_OVERHEAD_S) / point.rows for point in points}
        least = min(costs.values(), default=0.0)
        return min((rows for rows, cost in costs.items() if cost <= WORTHWHILE * least), default=1)

    def longest_step_s(self, rows: int) -> float:
        """Return the longest step of a batch as measured: interpolated, and proportional to rows beyond the profile."""
        place = bisect_right(self._rows, rows)
        if place == 0:
            return float(self._longest_s[0])
        before, low_s = self._rows[place - 1], self._longest_s[place - 1]
        if place == len(self._rows):
            return float(low_s) * rows / before
        return float(low_s + (self._longest_s[place] - low_s) * (rows - before) / (self._rows[place] - before))

    def most_within(self, limit_s: float) -> int:
        """Return the most rows with no step longer than *limit_s*, as measured; 0 if there are none."""
        place = bisect_right(self._longest_s, limit_s)
        if place == 0:
            return 0
        before, low_s = self._rows[place - 1], self._longest_s[place - 1]
        if place == len(self._rows):
            rows = int(before * limit_s / low_s)
        else:
            rows = before + int((self._rows[place] - before) * (limit_s - low_s) / (self._longest_s[place] - low_s))
        return rows + (self.longest_step_s(rows + 1) <= limit_s) - (self.longest_step_s(rows) > limit_s)  # of rounding

    def learn(self, rows: int, longest_s: float, size: float = 1.0) -> None:
        """Note the longest step of a batch that has run, so that batches shrink where steps are slower than measured.

        A single slow step lets them shrink by a tenth at most.
        """
        before = self.slowdown(size)
        seen = min(longest_s / self.longest_step_s(rows), 2 * before)
        least = 1.0 if _class_of(size) == 0 else 1e-3
        self._slowdown[_class_of(size)] = min(1e6, max(least, 0.9 * before + 0.1 * seen))


def _class_of(size: float) -> int:
    """Return 0 for rows as measured, else how often their size doubles."""
    return max(0, math.ceil(math.log2(max(size, 1.0)) - 1e-9))


def size_of(inputs: Mapping[str, Tensor], specs: Sequence[TensorSpec]) -> float:
    """Return how many times as many elements a row of *inputs* has as a row with free axes of length 1."""
    sizes = [
        math.prod(max(1, given) for given, length in zip(inputs[spec.name].shape[1:], spec.shape[1:], strict=True)
                  if length < 0)
        for spec in specs
    ]  # fmt: skip
    return float(max(sizes, default=1))


def row_inputs(specs: Sequence[TensorSpec]) -> tuple[str, ...]:
    """Return the inputs that have a row for each row of the batch: those whose first axis has any length."""
    return tuple(spec.name for spec in specs if spec.shape and spec.shape[0] < 0)


def rows_of(inputs: Mapping[str, Tensor], specs: Sequence[TensorSpec]) -> int | None:
    """Return the common length of their first axes; ``None`` if there is none, or it is 0."""
    lengths = {inputs[name].shape[0] for name in row_inputs(specs)}
    return next(iter(lengths)) or None if len(lengths) == 1 else None


def measure_rows(model: LoadedModel, until_s: float, profile: RowProfile | None = None) -> RowProfile:
    """Measure *model* with 1, 2, 4, ... rows until a step is longer than *until_s*.

    A *profile* from before is continued, not measured again.
    """
    if profile is not None and not _goes_on(profile.points[-1], until_s):
        return profile
    reason = profile.reason if profile is not None else _why_not_divisible(model)
    points = list(profile.points) if profile is not None else []
    began = perf_counter()
    if not row_inputs(model.inputs):
        fixed = max((spec.shape[0] for spec in model.inputs if spec.shape), default=1)
        return RowProfile(divisible=False, reason=reason, points=tuple(points or [_measured(model, max(1, fixed))]))
    while not points or (_goes_on(points[-1], until_s) and perf_counter() - began < _BUDGET_S):
        rows = 2 * points[-1].rows if points else 1
        try:
            points.append(_measured(model, rows))
        except InputError:
            if not points:
                raise
            break
    return RowProfile(divisible=not reason, reason=reason, points=tuple(points))


def _goes_on(last: RowPoint, until_s: float) -> bool:
    return last.longest_step_s <= until_s and last.rows < MOST_ROWS


def _samples(model: LoadedModel, rows: int) -> dict[str, Tensor]:
    names = row_inputs(model.inputs)
    specs = [
        TensorSpec(spec.name, spec.datatype, (rows, *spec.shape[1:])) if spec.name in names else spec
        for spec in model.inputs
    ]
    return example_inputs(specs, np.random.default_rng(0))


def _run(model: LoadedModel, inputs: dict[str, Tensor]) -> tuple[list[float], dict[str, Tensor]]:
    execution, times = model.begin(inputs), []
    for _ in model.step_names:
        before = perf_counter()
        execution.step()
        times.append(perf_counter() - before)
    return times, execution.outputs()


def _measured(model: LoadedModel, rows: int) -> RowPoint:
    inputs = _samples(model, rows)
    _run(model, inputs)
    runs: list[list[float]] = []
    while len(runs) < _FEWEST_RUNS or (len(runs) < _MOST_RUNS and sum(map(sum, runs)) < _RUNS_S):
        runs.append(_run(model, inputs)[0])
    steps = [min(times) for times in zip(*runs, strict=True)]  # what disturbed them is not kept; plans learn of it
    return RowPoint(rows=rows, time_s=max(sum(steps), 1e-9), longest_step_s=max(*steps, 1e-9))


def _why_not_divisible(model: LoadedModel) -> str:
    """Return why rows of *model* cannot be divided; empty if a batch gives what its rows give one by one."""
    names = row_inputs(model.inputs)
    if not names:
        return "no input has a first axis of any length"
    batch = _samples(model, _CHECKED_ROWS)
    try:
        _, together = _run(model, batch)
        alone = []
        for at in range(_CHECKED_ROWS):
            row = {name: tensor[at : at + 1] if name in names else tensor for name, tensor in batch.items()}
            alone.append(_run(model, row)[1])
    except InputError as error:
        return f"it cannot compute {_CHECKED_ROWS} rows ({error.expected})"
    for name, whole in together.items():
        parts = [outputs[name] for outputs in alone]
        if whole.ndim == 0 or whole.shape[0] != _CHECKED_ROWS or any(part.shape[:1] != (1,) for part in parts):
            return f"the first axis of output {name!r} does not count the rows of the inputs"
        if not _same(np.concatenate(parts), whole):
            return f"output {name!r} of a row depends on the other rows, or on chance"
    return ""


def _same(parts: Tensor, whole: Tensor) -> bool:
    if parts.shape != whole.shape:
        return False
    if not np.issubdtype(whole.dtype, np.floating):
        return bool((parts == whole).all())
    a, b = parts.astype(np.float64), whole.astype(np.float64)
    tolerance = 1e-2 if whole.dtype == np.float16 else 1e-4
    largest = float(np.nanmax(np.abs(b), initial=0.0, where=np.isfinite(b)))
    return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance * largest, equal_nan=True))
