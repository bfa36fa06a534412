"""Throughput model of section 3.3: from PEs to the speedup of a tenant on a configuration.

A **PE** is the unit of allocation: a core or a hardware thread, as the input defines it. (Section 4.1.4 of the thesis
says a core, but CFG2 of its Table 5.3 differs from CFG1 in little more than threads.) It has a clock frequency f and,
for each tenant, a retiring rate r: operations of that tenant completed per cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError
from commonwatt.model.partition_file import PartitionConfiguration, PartitionFile
from commonwatt.partitioning._curves import Curves
from commonwatt.partitioning._envelope import law_of
from commonwatt.partitioning._market import Market
from commonwatt.partitioning._scaling_laws import Amdahl, ScalingLaw

__all__ = [
    "Pe",
    "average_parallel_frequency",
    "laws_of",
    "market_of",
    "parallel_throughput",
    "serial_speedup",
    "speedup",
]


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

    Below one PE the equation overstates: half a PE cannot run serial work at full speed. See ``_schedule``.
    """
    rate = np.array([[average_parallel_frequency(core_cluster, tenant) / base_mhz]])
    held = np.array([[float(len(core_cluster) if share is None else share)]])
    return float(Curves.amdahl(rate, np.array([[parallel_fraction]])).speedups(held)[0, 0])


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
            row.append(law_of(spec) if spec is not None else Amdahl(fractions[i][c] if fractions else 1.0))
        rows.append(row)
    return rows
