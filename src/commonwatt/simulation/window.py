"""Energy and cost of every policy over one interval: from the first submission of the workload to the last.

What nodes draw in that interval is metered, idle, waking and asleep included. What is unfinished at its end is valued
alike for all policies: the remaining share of each job times its energy in its reference configuration
(``ReferenceRuns``), at the mean price of the interval. So a policy gains nothing by leaving work undone, and none is
charged for a cluster that empties slowly after the last submission: that is the tail, which is shown only.

A reading that spans an edge is split there in proportion to time; decisions, meter and ledger stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from commonwatt.control.controller import Controller
from commonwatt.control.engine import Reading
from commonwatt.control.job_registry import Status
from commonwatt.control.ledger import Account
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.electricity import Tariff
from commonwatt.model.jobs import JobArrays
from commonwatt.model.units import J_PER_KWH, MICRO, NANO
from commonwatt.simulation.reference import ReferenceRuns

__all__ = ["Window"]


@dataclass
class Window:
    """The interval *from_s* to *to_s* of one run, fed by its ledger and its ticks.

    Attributes
    ----------
    before, inside, after
        What was metered before, in and after it: they sum to the meter exactly. ``gpu_us`` is of allocated GPUs.
    epochs
        True number of epochs of each job, by row of the table: a controller need not know it.
    left
        Remaining share of each job at its end, by row of the table; NaN until then.
    """

    from_s: float
    to_s: float
    tariff: Tariff
    reference: ReferenceRuns
    before: Account = field(default_factory=Account)
    inside: Account = field(default_factory=Account)
    after: Account = field(default_factory=Account)
    epochs: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    left: Floats = field(default_factory=lambda: np.zeros(0))
    closed: bool = False

    @classmethod
    def of(cls, table: JobArrays, tariff: Tariff, reference: ReferenceRuns) -> Window:
        """Return the window of the jobs of *table*."""
        first_s, last_s = float(table.submit_s.min()), float(table.submit_s.max())
        return cls(first_s, last_s, tariff, reference, epochs=table.epochs, left=np.full(len(table), np.nan))

    @property
    def length_s(self) -> float:
        """Length of the interval, s; 0 if all jobs are submitted at once."""
        return self.to_s - self.from_s

    def metered(self, reading: Reading, whole: Account) -> None:
        """Take note of a reading and of its energy, cost and carbon."""
        used = sum(holder.counted_gpus for holder in reading.holders)
        if self.from_s <= reading.from_s and (reading.to_s <= self.to_s or reading.from_s >= self.to_s):
            account = self.inside if reading.to_s <= self.to_s else self.after
            account.add(self._upto(reading, whole, used, np.inf))
            return
        done = Account()
        for account, upto_s in ((self.before, self.from_s), (self.inside, self.to_s), (self.after, np.inf)):
            part = self._upto(reading, whole, used, upto_s)
            account.add(_difference(part, done))
            done = part
            if reading.to_s <= upto_s:
                return

    def tick(self, controller: Controller, rows: dict[str, int], now_s: float) -> None:
        """Value what is unfinished, at the first tick that is at the end or later; *rows* are those of the table."""
        if self.closed or now_s < self.to_s:
            return
        registry = controller.registry
        handles = np.arange(len(registry))
        own = np.array([rows[name] for name in registry.names], dtype=np.int64)
        done = controller.engine.progress(handles).done_epochs / self.epochs[own]
        left = np.where(registry.job("status") == Status.COMPLETED, 0.0, 1.0 - done)
        self.close(own, left)

    def close(self, rows: Ints, left: Floats) -> None:
        """Set the remaining share of the jobs in *rows* at the end of the window."""
        self.left[rows] = left
        self.closed = True

    @property
    def unfinished_kwh(self) -> float | None:
        """Energy of what is unfinished at the end, kWh; ``None`` if the run ended before it."""
        if not self.closed:
            return None
        return float(np.nansum(self.left * self.reference.energy_j)) / J_PER_KWH

    @property
    def unfinished_cost(self) -> float | None:
        """Its cost at the mean price of the window, PUE included; currency."""
        if self.unfinished_kwh is None:
            return None
        span_s = self.length_s or 1.0
        price = float(self.tariff.cost(1.0, self.from_s, self.from_s + span_s)) / span_s  # of a joule
        return self.unfinished_kwh * J_PER_KWH * price

    @property
    def energy_kwh(self) -> float | None:
        """Energy metered and unfinished, kWh."""
        if self.inside.energy_uj is None or self.unfinished_kwh is None:
            return None
        return self.inside.energy_uj / MICRO / J_PER_KWH + self.unfinished_kwh

    @property
    def cost(self) -> float | None:
        """Cost of that energy; currency."""
        if self.inside.cost_n is None or self.unfinished_cost is None:
            return None
        return self.inside.cost_n / NANO + self.unfinished_cost

    def _upto(self, reading: Reading, whole: Account, used: int, upto_s: float) -> Account:
        """Return what was metered from the start of *reading* to *upto_s*."""
        from_s, end_s = reading.from_s, min(max(upto_s, reading.from_s), reading.to_s)
        gpu_us = round(used * MICRO * (end_s - from_s))
        if end_s == reading.to_s:
            return Account(whole.energy_uj, whole.cost_n, whole.carbon_ug, gpu_us)
        if reading.energy_uj is None:
            return Account(None, None, None, gpu_us)
        length_s = reading.to_s - from_s
        energy_uj = int(reading.energy_uj * ((end_s - from_s) / length_s))
        mean_w = reading.energy_uj / MICRO / length_s
        grams = self.tariff.carbon_g(mean_w, from_s, end_s)
        cost_n = round(float(self.tariff.cost(mean_w, from_s, end_s)) * NANO)
        return Account(energy_uj, cost_n, None if grams is None else round(float(grams) * MICRO), gpu_us)


def _difference(a: Account, b: Account) -> Account:
    return Account(
        _less(a.energy_uj, b.energy_uj), _less(a.cost_n, b.cost_n), _less(a.carbon_ug, b.carbon_ug), a.gpu_us - b.gpu_us
    )


def _less(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a - b
