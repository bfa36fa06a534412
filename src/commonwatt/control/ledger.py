"""Energy, cost and GPU time per job, plus idle and overhead, exact to the last unit.

Everything is kept in integers (microjoules, nano-currency, micrograms, GPU-microseconds), so that the rows add up to
the meter exactly. A node's energy is divided over an interval in proportion to what its users draw: a job with ``g``
of ``G`` GPUs counts for ``g * gpu_w + idle_w * g / G``, free GPUs for the rest of ``idle_w``. Of two jobs with the same
GPUs each has half of their time and of that idle power, and its own ``gpu_w``. Time a job has GPUs
without working (restart, waiting for a node to wake) and work lost by preemption are overhead, not the job's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from commonwatt.control.engine import Reading
from commonwatt.model.electricity import Tariff
from commonwatt.model.nodes import Cluster
from commonwatt.model.units import MICRO, NANO

__all__ = ["Account", "Ledger"]


@dataclass
class Account:
    """One row of the ledger. ``None``: unknown."""

    energy_uj: int | None = 0
    cost_n: int | None = 0  # nano-currency
    carbon_ug: int | None = 0  # micrograms
    gpu_us: int = 0

    def add(self, other: Account) -> None:
        """Add *other*; unknown plus anything is unknown."""
        self.energy_uj = _plus(self.energy_uj, other.energy_uj)
        self.cost_n = _plus(self.cost_n, other.cost_n)
        self.carbon_ug = _plus(self.carbon_ug, other.carbon_ug)
        self.gpu_us += other.gpu_us

    def take(self, share: float) -> Account:
        """Remove *share* (0 to 1) of this row and return it."""
        part = Account(
            _part(self.energy_uj, share),
            _part(self.cost_n, share),
            _part(self.carbon_ug, share),
            int(self.gpu_us * share),
        )
        self.energy_uj = _minus(self.energy_uj, part.energy_uj)
        self.cost_n = _minus(self.cost_n, part.cost_n)
        self.carbon_ug = _minus(self.carbon_ug, part.carbon_ug)
        self.gpu_us -= part.gpu_us
        return part


def _plus(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _minus(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a - b


def _part(a: int | None, share: float) -> int | None:
    return None if a is None else int(a * share)


@dataclass
class Ledger:
    """Accounts of all jobs, of idle nodes, and of overhead."""

    cluster: Cluster
    tariff: Tariff
    jobs: dict[int, Account] = field(default_factory=dict)
    idle: Account = field(default_factory=Account)
    overhead: dict[str, Account] = field(
        default_factory=lambda: {name: Account() for name in ("starting", "lost work", "waking", "asleep")}
    )
    meter: Account = field(default_factory=Account)
    on_metered: Callable[[Reading, Account], None] | None = None  # called with each reading and what it was charged
    slept_uj: int | None = 0  # idle energy that nodes did not draw because they were asleep
    _segments: dict[int, Account] = field(default_factory=dict)  # since the job was last started

    def charge(self, readings: Sequence[Reading]) -> None:
        """Divide *readings* among their users."""
        for reading in readings:
            self._charge(reading)

    def began(self, handle: int) -> None:
        """The job was (re)started: charges from now on can turn out to be lost work."""
        self.ended(handle)
        self._segments[handle] = Account()

    def ended(self, handle: int) -> None:
        """The job left its nodes and lost no work."""
        self.lost(handle, 0.0)

    def lost(self, handle: int, lost_gpu_s: float) -> None:
        """The job left its nodes and lost the last *lost_gpu_s* GPU-seconds of its work."""
        segment = self._segments.pop(handle, None)
        if segment is None:
            return
        if lost_gpu_s > 0 and segment.gpu_us > 0:
            self.overhead["lost work"].add(segment.take(min(1.0, lost_gpu_s * MICRO / segment.gpu_us)))
        self.account(handle).add(segment)

    def resume(self, handle: int, segment: Account) -> None:
        """Continue the account of a running job, which was charged *segment* since it was started."""
        self._segments[handle] = segment

    def take(self) -> tuple[dict[tuple[str, int], Account], dict[int, Account]]:
        """Return all rows and begin anew from zero: for a caller that keeps the ledger elsewhere.

        Rows are by kind and handle (-1: of no job). What running jobs were charged since they were started comes
        second, and is kept: it can still turn out to be lost.
        """
        rows = {("job", handle): account for handle, account in self.jobs.items()}
        rows |= {(name, -1): account for name, account in self.overhead.items()}
        rows |= {("idle", -1): self.idle, ("meter", -1): self.meter}
        self.jobs = {}
        self.overhead = {name: Account() for name in self.overhead}
        self.idle, self.meter = Account(), Account()
        return rows, self._segments

    def account(self, handle: int) -> Account:
        """The account of a job."""
        account = self.jobs.get(handle)
        if account is None:
            account = self.jobs[handle] = Account()
        return account

    def total(self) -> Account:
        """Sum of all rows: equal to ``meter``."""
        total = Account()
        for row in (*self.jobs.values(), *self._segments.values(), self.idle, *self.overhead.values()):
            total.add(row)
        return total

    def _charge(self, reading: Reading) -> None:
        if reading.to_s <= reading.from_s:
            return
        kind = self.cluster.classes[self.cluster.klass[reading.node]]
        whole = self._priced(reading, kind.gpus)
        self.meter.add(whole)
        if self.on_metered is not None:
            self.on_metered(reading, whole)
        if not reading.holders and (reading.waking or reading.asleep):
            self.overhead["waking" if reading.waking else "asleep"].add(whole)
            idle_uj = round(kind.idle_w * MICRO * (reading.to_s - reading.from_s))
            self.slept_uj = _plus(self.slept_uj, _minus(idle_uj, reading.energy_uj))
            return
        idle_each = kind.idle_w / kind.gpus
        own_gpus = [holder.gpus / (1 if holder.beside is None else 2) for holder in reading.holders]
        shares = [h.gpus * h.gpu_w + own * idle_each for h, own in zip(reading.holders, own_gpus, strict=True)]
        used = sum(holder.counted_gpus for holder in reading.holders)
        all_shares = sum(shares) + (kind.gpus - used) * idle_each
        if not reading.holders or all_shares <= 0:
            fractions = [own / kind.gpus for own in own_gpus]
        else:
            fractions = [share / all_shares for share in shares]
        left = whole
        remaining = 1.0
        for holder, fraction in zip(reading.holders, fractions, strict=True):
            part = left.take(min(1.0, fraction / remaining)) if remaining > 0 else Account()
            gpu_us = holder.gpu_us(_us(reading.to_s) - _us(reading.from_s))
            left.gpu_us += part.gpu_us - gpu_us
            part.gpu_us = gpu_us
            remaining -= fraction
            idle_s = min(reading.to_s, holder.work_from_s) - reading.from_s
            if idle_s > 0:
                self.overhead["starting"].add(part.take(min(1.0, idle_s / (reading.to_s - reading.from_s))))
            account, segment = self.account(holder.handle), self._segments.get(holder.handle)
            (account if segment is None else segment).add(part)
        self.idle.add(left)

    def _priced(self, reading: Reading, gpus: int) -> Account:
        gpu_us = gpus * (_us(reading.to_s) - _us(reading.from_s))
        if reading.energy_uj is None:
            return Account(None, None, None, gpu_us)
        mean_w = reading.energy_uj / MICRO / (reading.to_s - reading.from_s)
        cost, grams = self.tariff.metered(mean_w, reading.from_s, reading.to_s)
        carbon = None if grams is None else round(grams * MICRO)
        return Account(reading.energy_uj, round(cost * NANO), carbon, gpu_us)


def _us(time_s: float) -> int:
    return round(float(time_s) * MICRO)
