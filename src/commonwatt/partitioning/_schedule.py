"""From shares to PEs: what PEs are worth to a tenant, and how fractional shares are scheduled on whole ones.

**Throughput** is the model of section 3.3, from PEs to the speedup of a tenant on a configuration.
A **PE** is the unit of allocation: a core or a hardware thread, as the input defines it. (Section 4.1.4 of the thesis
says a core, but CFG2 of its Table 5.3 differs from CFG1 in little more than threads.) It has a clock frequency f and,
for each tenant, a retiring rate r: operations of that tenant completed per cycle.

**The schedule** allocates whole PEs, and time-shares the remaining ones.

**Space shares.** A tenant with the share x holds ``n = floor(x)`` PEs throughout a period and one more PE for the
fraction ``x - n`` of it. The remaining PEs are filled tenant by tenant (McNaughton's wrap-around rule); as no tenant
needs one for longer than a period, none is on two of them at once. The tenant runs at s(n) or s(n + 1), on average on
a chord of the concave s. The loss is at most ``k (1 - sqrt F) / (1 + sqrt F)`` below one PE, where eq. (3.2)
overstates what a machine can do, and ``(s'(n) - s'(n + 1)) / 4`` above. Rounding turns to whole time units adds at
most ``s(n + 1) - s(n)`` divided by the units of a period.

**Chords.** Under other laws a share can lie on a chord between n and m PEs that are not neighbours (see
``_market``). The tenant then holds n PEs throughout and m - n more, all at once, for a fraction of the period. The
largest turns are placed first, in the units with most free PEs. A turn that does not fit is dropped: the tenant then
runs at s(n).

**Time shares.** Tenants take turns on the whole core cluster. Only rounding to whole units is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.errors import InputError
from commonwatt.model.partition_file import PartitionConfiguration, PartitionFile
from commonwatt.partitioning._curves import Curves
from commonwatt.partitioning._market import Market, make_law
from commonwatt.partitioning._scaling_laws import Amdahl, ScalingLaw

__all__ = [
    "Pe",
    "PeSchedule",
    "average_parallel_frequency",
    "laws_of",
    "loss_bound",
    "market_of",
    "parallel_throughput",
    "run",
    "schedule",
    "serial_speedup",
    "speedup",
    "timeslice_weights",
]

# -- throughput


@dataclass(frozen=True)
class Pe:
    """A processing element (Definition 3.3.2)."""

    frequency_mhz: float
    retiring_rate: tuple[float, ...]  # by tenant

    def throughput(self, tenant: int) -> float:
        """Return the apparent throughput f r (Definition 3.3.6), in million operations a second."""
        return self.frequency_mhz * self.retiring_rate[tenant]


def parallel_throughput(core_cluster: Sequence[Pe], tenant: int) -> float:
    """Return the apparent parallel throughput: the sum over PEs, in million operations/s (Definition 3.3.7)."""
    if not core_cluster:
        raise InputError("a core cluster with at least one PE", field="core_cluster", value=[])
    return sum(pe.throughput(tenant) for pe in core_cluster)


def average_parallel_frequency(core_cluster: Sequence[Pe], tenant: int) -> float:
    """Return the mean apparent throughput of a PE, in million operations/s (Definition 3.3.8)."""
    return parallel_throughput(core_cluster, tenant) / len(core_cluster)


def speedup(
    core_cluster: Sequence[Pe], tenant: int, parallel_fraction: float, base_mhz: float, share: float | None = None
) -> float:
    """Return the speedup over one base PE with a *share* of a core cluster in PEs (eq. 3.2); by default all (eq. 3.1).

    Below one PE the equation overstates: half a PE cannot run serial work at full speed; see the schedule above.
    """
    rate = np.array([[average_parallel_frequency(core_cluster, tenant) / base_mhz]])
    pes = np.array([[float(len(core_cluster) if share is None else share)]])
    return float(Curves.amdahl(rate, np.array([[parallel_fraction]])).speedups(pes)[0, 0])


def serial_speedup(
    core_cluster: Sequence[Pe], tenant: int, parallel_fraction: float, base_mhz: float, serial: Pe
) -> float:
    """Return the speedup if serial work runs on the PE *serial* instead of an average one (text before eq. 3.1)."""
    parallel = parallel_throughput(core_cluster, tenant)
    return 1.0 / (
        (1.0 - parallel_fraction) * base_mhz / serial.throughput(tenant) + parallel_fraction * base_mhz / parallel
    )


def market_of(file: PartitionFile, configuration: PartitionConfiguration) -> Market:
    """Return the market of *configuration* with the PEs and the space or time shares that *file* specifies."""
    if configuration.core_clusters is None:
        pes, rate = np.array(configuration.pe_count, float), np.array(configuration.rate, float)
    else:
        each = configuration.core_clusters
        pes = np.array([c.cores * (c.threads if file.pe == "core-x-thread" else 1) for c in each], float)
        clocks = np.array([c.frequency_mhz for c in each]) / file.base_frequency_mhz
        rate = np.array(configuration.retiring_rate, float) * clocks
    weights: Floats = np.array([tenant.weight for tenant in file.tenants])
    market = Market.make(pes, weights, rate, np.ones_like(rate))
    market = market.under(laws_of(file, configuration), linear_below_one=file.below_one_pe == "linear")
    return market.turns() if file.shares == "time" else market


def laws_of(file: PartitionFile, configuration: PartitionConfiguration) -> list[list[ScalingLaw]]:
    """Return the scaling law of each tenant on each core cluster.

    Raises ``InputError`` for a ``characterized`` law whose file was not read (``data.partition.load_partition`` does).
    """
    rows: list[list[ScalingLaw]] = []
    for i in range(len(file.tenants)):
        row: list[ScalingLaw] = []
        for c in range(configuration.width()):
            spec = file.law(configuration, i, c)
            fractions = configuration.parallel_fraction
            row.append(make_law(spec) if spec is not None else Amdahl(fractions[i][c] if fractions else 1.0))
        rows.append(row)
    return rows


# -- the schedule


@dataclass(frozen=True)
class PeSchedule:
    """Allocations that repeat in every period of *units* time units."""

    units: int
    whole: Ints  # PEs a tenant holds throughout, [N, C]
    turns: Ints  # units with one more PE (space shares), or with the whole core cluster (time shares), [N, C]
    by_time: bool = False
    more: Ints | None = None  # additional PEs during turns, if not one; [N, C]
    when: Bools | None = None  # units of these turns, [N, C, units]


def schedule(market: Market, shares: Floats, units: int = 1000, *, by_time: bool = False) -> PeSchedule:
    """Return a schedule for *shares* (in PEs, [N, C]).

    Raises ``InputError`` if *units* is below 1 or a core cluster has a fractional number of PEs.
    """
    if units < 1:
        raise InputError("a whole number, 1 or more", field="units", value=units)
    pes = np.rint(market.pe_count)
    if not by_time and not np.allclose(pes, market.pe_count, rtol=0, atol=1e-9):
        raise InputError("whole numbers of PEs", field="pe_count", value=market.pe_count.tolist())
    if by_time:
        turns = _whole_units(shares / market.pe_count * units, np.full(len(pes), units))
        return PeSchedule(units, np.zeros_like(turns), turns, by_time=True)
    if not market.curves.endless:
        return _by_chords(market, market.curves, shares, units)
    near = np.rint(shares)
    whole = np.where(np.abs(shares - near) < 1e-9, near, np.floor(shares)).astype(np.int64)
    left = pes.astype(np.int64) - whole.sum(axis=0)
    turns = _whole_units(np.maximum(shares - whole, 0.0) * units, left * units)
    return PeSchedule(units, whole, np.minimum(turns, units))


def _by_chords(market: Market, curves: Curves, shares: Floats, units: int) -> PeSchedule:
    """Schedule each share by the ends of its chord; elsewhere by the whole numbers of PEs next to it."""
    low, high = curves.chords(shares)
    whole = np.rint(low).astype(np.int64)
    more = np.maximum(1, np.rint(high - low)).astype(np.int64)
    wanted = np.floor(np.clip((shares - whole) / more, 0.0, 1.0) * units + 1e-9).astype(np.int64)
    n, c = shares.shape
    when, turns = np.zeros((n, c, units), np.bool_), np.zeros((n, c), np.int64)
    for at in range(c):
        free = np.full(units, round(float(market.pe_count[at])) - int(whole[:, at].sum()))
        for i in np.argsort(-more[:, at], kind="stable"):
            best = np.argsort(-free, kind="stable")[: wanted[i, at]]
            chosen = best[free[best] >= more[i, at]]
            when[i, at, chosen] = True
            free[chosen] -= more[i, at]
            turns[i, at] = len(chosen)
    return PeSchedule(units, whole, turns, more=more, when=when)


def _whole_units(wanted: Floats, room: Ints) -> Ints:
    """Round down to whole units; hand out the rest of *room* ([C]) by largest remainder, ties to the earlier tenant."""
    units = np.floor(wanted + 1e-9).astype(np.int64)
    for c in range(wanted.shape[1]):
        missing = min(int(room[c]), round(float(wanted[:, c].sum()))) - int(units[:, c].sum())
        order = np.argsort(units[:, c] - wanted[:, c], kind="stable")
        units[order[: max(0, missing)], c] += 1
    return units


def loss_bound(market: Market, shares: Floats, units: int = 1000) -> Floats:
    """Return an upper bound on the speedup that a space schedule loses on each core cluster. Shape [N, C]."""
    curves = market.curves
    low, high = curves.chords(shares)
    step = curves.speedups(high) - curves.speedups(low)
    part = np.divide(shares - low, high - low, out=np.zeros_like(low), where=high > low)
    bend = np.maximum(0.0, (curves.marginal(low) - curves.marginal(high)) / 4.0)
    if curves.endless:  # below one PE eq. (3.2) overstates what a machine can do
        root = np.sqrt(1.0 / (1.0 + curves.linear[:, :, 0]))
        bend = np.where(shares < 1, market.rate * (1 - root) / (1 + root), bend)
    together = ((high - low > 1.5) & (part > 0)).any(axis=0)  # some turns may not fit
    return np.where(together, np.maximum(part * step, bend), bend) + step / units


def run(market: Market, plan: PeSchedule) -> Floats:
    """Simulate one period unit by unit; return each tenant's mean speedup on each core cluster. Shape [N, C].

    For time shares pass the market of space shares, which gives the speedup on a whole core cluster.
    """
    n, c = market.rate.shape
    done = np.zeros((n, c))
    if plan.when is not None and plan.more is not None:
        for unit in range(plan.units):
            done += market.speedups((plan.whole + plan.more * plan.when[:, :, unit]).astype(float))
        return done / plan.units
    for at in range(c):
        lanes, curves = _lanes(plan, at, round(float(market.pe_count[at]))), market.curves.columns([at])
        for unit in range(plan.units):
            pes = np.bincount(lanes[:, unit][lanes[:, unit] >= 0], minlength=n).astype(float)
            done[:, at] += curves.speedups(pes[:, None])[:, 0]
    return done / plan.units


def _lanes(plan: PeSchedule, at: int, pes: int) -> Ints:
    """Return the tenant on each PE of a core cluster in each unit, -1 for none. Shape [PEs, units]."""
    lanes = np.full((pes, plan.units), -1, np.int64)
    tenants = np.arange(len(plan.turns))
    if plan.by_time:
        order = np.repeat(tenants, plan.turns[:, at])
        lanes[:, : len(order)] = order
        return lanes
    always = np.repeat(tenants, plan.whole[:, at])
    lanes[: len(always)] = always[:, None]
    shared = lanes[len(always) :].reshape(-1)
    order = np.repeat(tenants, plan.turns[:, at])
    shared[: len(order)] = order
    return lanes


def timeslice_weights(market: Market, shares: Floats) -> Floats:
    """Return the weights with which ``timeslicing`` enforces *shares* as time on each core cluster. Shape [N, C]."""
    return shares / market.pe_count
