"""A demand series: GPUs wanted at evenly spaced instants, gaps marked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Bools, Floats
from commonwatt.model.errors import InputError

__all__ = ["MOST_DEMAND", "DemandSeries"]

MOST_DEMAND = 1e9
"""GPUs; no demand beyond this is meant, and scores of much more overflow."""


@dataclass(frozen=True)
class DemandSeries:
    """Demand at ``start_s``, ``start_s + step_s``, ...

    Parameters
    ----------
    start_s
        Instant of the first value, seconds since 1970-01-01 UTC or any other origin.
    step_s
        Seconds between values, above 0.
    gpus
        Demand, GPUs, 0 or more; NaN where it is not known. Shape [T].

    Raises
    ------
    InputError
        For a step that is not above 0, no values, negative or infinite ones, or such beyond ``MOST_DEMAND``.
    """

    start_s: float
    step_s: float
    gpus: Floats  # [T]

    def __post_init__(self) -> None:
        if not (np.isfinite(self.step_s) and self.step_s > 0):
            raise InputError("a number of seconds above 0", field="step_s", value=self.step_s)
        if self.gpus.ndim != 1 or len(self.gpus) == 0:
            raise InputError("one value or more, in a row", field="gpus", value=f"shape {self.gpus.shape}")
        wrong = np.flatnonzero((self.gpus < 0) | (self.gpus > MOST_DEMAND))
        if len(wrong):
            expected = f"a finite demand, 0 or more, at most {MOST_DEMAND:,.0f}"
            raise InputError(expected, field=f"gpus.{wrong[0]}", value=float(self.gpus[wrong[0]]))

    def __len__(self) -> int:
        return len(self.gpus)

    @property
    def known(self) -> Bools:
        """Where the demand is known. Shape [T]."""
        return ~np.isnan(self.gpus)

    @property
    def first_known(self) -> int:
        """Index of the first known value; as many as there are values if nothing is known."""
        return int(np.argmax(self.known)) if self.known.any() else len(self)

    @property
    def end_s(self) -> float:
        """Instant one step after the last value."""
        return self.start_s + self.step_s * len(self)

    def time_s(self, index: int) -> float:
        """Return the instant of value *index*."""
        return self.start_s + self.step_s * index

    def index_of(self, time_s: float) -> int:
        """Return the index of the first value at or after *time_s*; may lie outside the series."""
        return int(np.ceil((time_s - self.start_s) / self.step_s - 1e-9))

    def between(self, first: int, last: int) -> DemandSeries:
        """Return values *first* up to, but not including, *last*."""
        return DemandSeries(self.time_s(first), self.step_s, self.gpus[first:last])

    def filled(self) -> Floats:
        """Return the demand with the last known value in place of unknown ones; the first known one before that.

        Raises ``InputError`` if nothing is known.
        """
        known = np.flatnonzero(self.known)
        if len(known) == 0:
            raise InputError("at least one known value", field="gpus", value="none")
        last = np.maximum.accumulate(np.where(self.known, np.arange(len(self)), -1))
        return self.gpus[np.where(last < 0, known[0], last)]
