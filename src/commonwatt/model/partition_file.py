"""The files ``commonwatt partition`` and ``partition mig`` read.

The first has tenants, configurations of core clusters to choose from, and by which law a tenant's work scales. The
second has GPUs that MIG divides into instances, and the tenants that want a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Discriminator, Tag, model_validator

from commonwatt.model.errors import FieldError
from commonwatt.model.fields import FileModel, quantity

__all__ = [
    "CoreClusterSpec",
    "LawOrName",
    "LawSpec",
    "MigFile",
    "MigGpu",
    "MigTenant",
    "PartitionConfiguration",
    "PartitionFile",
    "PartitionTenant",
]

_NEEDS = {
    "amdahl": ("parallel_fraction",), "linear": (), "usl": ("contention", "coherence"), "table": ("pes", "speedups"),
    "fit": ("pes", "speedups"), "characterized": ("file",),
}  # fmt: skip
_MAY = {"characterized": ("kernel",)}


class LawSpec(FileModel):
    """A scaling law: speedup over one PE by the number of PEs."""

    law: Literal["amdahl", "linear", "usl", "table", "fit", "characterized"] = quantity(
        "amdahl; linear (F = 1); usl (Universal Scalability Law); table: as measured, nothing in between and beyond; "
        "fit: the law that fits the table best; characterized: what `partition characterize --out` wrote",
    )
    parallel_fraction: float | None = quantity("amdahl: parallel part of the work (F)", "-", None, ge=0, le=1)
    contention: float | None = quantity("usl: sigma, the part that waits for others", "-", None, ge=0)
    coherence: float | None = quantity("usl: kappa, the cost of each pair of PEs", "-", None, ge=0)
    pes: tuple[float, ...] | None = quantity("table, fit: PEs measured, one or more each", "PEs", None, min_length=1)
    speedups: tuple[float, ...] | None = quantity("table, fit: speedup over one PE at each", "-", None, min_length=1)
    file: str | None = quantity("characterized: the result's file, relative to the problem's", "-", None)
    kernel: str | None = quantity("characterized: name of the program; none: the only one", "-", None)

    @model_validator(mode="after")
    def _check(self) -> LawSpec:
        given = {name for name in type(self).model_fields if name != "law" and getattr(self, name) is not None}
        for name in _NEEDS[self.law]:
            if name not in given:
                raise FieldError(f"a value for the law {self.law}", field=name, value="none")
        for name in sorted(given - {*_NEEDS[self.law], *_MAY.get(self.law, ())}):
            raise FieldError(f"none for the law {self.law}", field=name, value="a value")
        _check_table(self.pes or (), self.speedups or ())
        return self


def _check_table(pes: tuple[float, ...], speedups: tuple[float, ...]) -> None:
    if len(pes) != len(speedups):
        raise FieldError(f"{len(pes)}, one for each of pes", field="speedups", value=f"{len(speedups)} numbers")
    for place, (n, s) in enumerate(zip(pes, speedups, strict=True)):
        if n < 1 or n in pes[:place]:
            raise FieldError("1 or more, each once", field=f"pes.{place}", value=f"{n:g}")
        if s <= 0 or (n == 1 and s != 1):
            raise FieldError(
                "a speedup over one PE: above 0, and 1 at one PE", field=f"speedups.{place}", value=f"{s:g}"
            )


def _kind(value: object) -> str:
    return "a-name" if isinstance(value, str) else "a-law"


LawOrName = Annotated[Annotated[LawSpec, Tag("a-law")] | Annotated[str, Tag("a-name")], Discriminator(_kind)]
"""A law, or the name of one; which of them is meant is clear before it is looked at, and so is the error."""


Rows = tuple[tuple[float, ...], ...]


class PartitionTenant(FileModel):
    """A tenant that shares the hardware."""

    name: str = quantity("name of the tenant", "-", min_length=1)
    weight: float = quantity("entitlement relative to the other tenants: its budget", "-", 1.0, gt=0)
    law: LawOrName | None = quantity(
        "scaling law on all core clusters, or the name of one; none: Amdahl's with parallel_fraction", "-", None
    )


class CoreClusterSpec(FileModel):
    """Like cores with one clock; what a PE is among them, the file says."""

    name: str = quantity("name of the core cluster; empty: its number", "-", "")
    cores: int = quantity("cores", "cores", ge=1)
    threads: int = quantity("hardware threads of each core", "threads", 1, ge=1)
    frequency_mhz: float = quantity("clock frequency", "MHz", gt=0)


class PartitionConfiguration(FileModel):
    """Core clusters, and how fast each tenant is on each: by ``pe_count`` and ``rate``, or from the hardware's data."""

    name: str = quantity("name of the configuration", "-", min_length=1)
    pe_count: tuple[float, ...] | None = quantity("PEs of each core cluster", "PEs", None, min_length=1)
    rate: Rows | None = quantity(
        "average throughput of a PE over that of the base PE, a row for each tenant, 0 is useless (f / f_base)",
        "-",
        None,
    )
    core_clusters: tuple[CoreClusterSpec, ...] | None = quantity(
        "instead of pe_count and rate: the hardware", "-", None, min_length=1
    )
    retiring_rate: Rows | None = quantity(
        "with core_clusters: operations a PE retires in a cycle, a row for each tenant", "1/cycle", None
    )
    parallel_fraction: Rows | None = quantity(
        "parallel part of the work (F) by Amdahl's law, a row for each tenant; none: laws say it all", "-", None
    )
    laws: tuple[tuple[LawOrName | None, ...], ...] | None = quantity(
        "scaling law, a row for each tenant: a law, the name of one, or null: the tenant's own, or parallel_fraction's",
        "-",
        None,
    )

    def width(self) -> int:
        """Return the number of core clusters."""
        return len(self.core_clusters or self.pe_count or ())

    def names(self) -> tuple[str, ...]:
        """Return the names of the core clusters, numbered where they have none."""
        given = [c.name for c in self.core_clusters or ()] or [""] * self.width()
        return tuple(name or f"core cluster {number}" for number, name in enumerate(given, 1))


class PartitionFile(FileModel):
    """A partitioning problem."""

    tenants: tuple[PartitionTenant, ...] = quantity("tenants, in the order of the rows", "-", min_length=1)
    configurations: tuple[PartitionConfiguration, ...] = quantity("configurations to choose from", "-", min_length=1)
    shares: Literal["space", "time"] = quantity(
        "space: PEs are divided, eq. (3.2); time: tenants take turns on whole core clusters, linear in the share",
        "-", "space",
    )  # fmt: skip
    laws: dict[str, LawSpec] = quantity("scaling laws by name", "-", dict)
    below_one_pe: Literal["as-printed", "linear"] = quantity(
        "less than one PE by Amdahl's law: as-printed: eq. (3.2), which overstates it; linear: turns on one PE",
        "-",
        "as-printed",
    )
    pe: Literal["core", "core-x-thread"] = quantity("what a PE is where core_clusters are given", "-", "core")
    base_frequency_mhz: float = quantity(
        "frequency of the base PE, which retires 1 operation in a cycle", "MHz", 100.0, ge=1e-6
    )

    @model_validator(mode="after")
    def _check(self) -> PartitionFile:
        for what, names in (
            ("tenants", [tenant.name for tenant in self.tenants]),
            ("configurations", [one.name for one in self.configurations]),
        ):
            seen: set[str] = set()
            for place, name in enumerate(names):
                if name in seen:
                    raise FieldError("each name once", field=f"{what}.{place}.name", value=f"{name!r} twice")
                seen.add(name)
        for number, one in enumerate(self.configurations):
            for wrong in (*_wrong(one, [t.name for t in self.tenants]), *_lawless(self, one)):
                raise wrong.below(f"configurations.{number}")
        for place, tenant in enumerate(self.tenants):
            if isinstance(tenant.law, str) and tenant.law not in self.laws:
                raise FieldError(_names(self), field=f"tenants.{place}.law", value=tenant.law)
        return self

    def law(self, configuration: PartitionConfiguration, tenant: int, cluster: int) -> LawSpec | None:
        """Return the law of a tenant on a core cluster; None: Amdahl's with ``parallel_fraction``."""
        rows = configuration.laws
        given = None if rows is None else rows[tenant][cluster]
        if given is None:
            given = self.tenants[tenant].law
        return self.laws[given] if isinstance(given, str) else given


def _names(file: PartitionFile) -> str:
    return f"the name of one of laws ({', '.join(file.laws) or 'there is none'})"


def _lawless(file: PartitionFile, one: PartitionConfiguration) -> Iterator[FieldError]:
    """Yield where a configuration's laws are not of its shape, not known, or missing."""
    if one.laws is not None:
        if wrong := list(_ragged("laws", one.laws, len(file.tenants), one.width(), "laws")):
            yield wrong[0]
            return
        for i, row in enumerate(one.laws):
            for c, law in enumerate(row):
                if isinstance(law, str) and law not in file.laws:
                    yield FieldError(_names(file), field=f"laws.{i}.{c}", value=law)
    if one.parallel_fraction is None:
        for i, tenant in enumerate(file.tenants):
            if tenant.law is None and (one.laws is None or None in one.laws[i]):
                yield FieldError(
                    f"it to be given, or a law for tenant {tenant.name}", field="parallel_fraction", value="none"
                )


def _wrong(one: PartitionConfiguration, tenants: list[str]) -> Iterator[FieldError]:
    """Yield what is wrong with a configuration: field, value and expectation."""
    hardware = one.core_clusters is not None
    own = "retiring_rate" if hardware else "rate"
    for name, needed in (("pe_count", not hardware), ("rate", not hardware), ("retiring_rate", hardware)):
        if (getattr(one, name) is not None) != needed:
            instead = "core_clusters and retiring_rate" if hardware else "pe_count and rate (or core_clusters)"
            yield FieldError(f"{instead} to be given together", field=name, value="none" if needed else "a value")
    for place, pes in enumerate(one.pe_count or ()):
        if pes <= 0:
            yield FieldError("a number of PEs above 0", field=f"pe_count.{place}", value=f"{pes:g}")
    if hardware:
        names = list(one.names())
        for place, name in enumerate(names):
            if name in names[:place]:
                yield FieldError("each name once", field=f"core_clusters.{place}.name", value=f"{name!r} twice")
    rates = getattr(one, own) or ()
    fractions = one.parallel_fraction
    yield from _ragged(own, rates, len(tenants), one.width())
    if fractions is not None:
        yield from _ragged("parallel_fraction", fractions, len(tenants), one.width())
    for i, row in enumerate(rates):
        for c, value in enumerate(row):
            if value < 0:
                yield FieldError("a number, 0 or more", field=f"{own}.{i}.{c}", value=f"{value:g}")
        if not any(row):
            yield FieldError(f"a core cluster that tenant {tenants[i]} can use", field=f"{own}.{i}", value=list(row))
    for i, row in enumerate(fractions or ()):
        for c, value in enumerate(row):
            if not 0 <= value <= 1:
                yield FieldError("a number from 0 to 1", field=f"parallel_fraction.{i}.{c}", value=f"{value:g}")


def _ragged(
    field: str, rows: Sequence[Sequence[object]], tall: int, wide: int, what: str = "numbers"
) -> Iterator[FieldError]:
    if len(rows) != tall:
        yield FieldError(f"{tall}, one for each tenant", field=field, value=f"{len(rows)} rows")
    for i, row in enumerate(rows):
        if len(row) != wide:
            yield FieldError(f"{wide}, one for each core cluster", field=f"{field}.{i}", value=f"{len(row)} {what}")


# -- MIG


class MigGpu(FileModel):
    """A GPU in MIG mode."""

    name: str = quantity("name of the GPU", "-", min_length=1)
    type: str = quantity("type: A100-40GB, A100-80GB, H100-80GB or H200-141GB", "-")
    present: tuple[str, ...] | None = quantity(
        "instances it has now, each as PROFILE@SLICE (the memory slice it begins at) or all without; absent: unknown",
        "-", None,
    )  # fmt: skip


class MigTenant(FileModel):
    """A tenant: what it runs, and how fast that is on an instance."""

    name: str = quantity("name of the tenant", "-", min_length=1)
    weight: float = quantity("budget relative to the other tenants", "-", 1.0, gt=0)
    memory_gb: float = quantity("memory each of its programs needs, in GB as in the names of profiles", "GB", 0.0, ge=0)
    parallel_fraction: float | None = quantity(
        "F of Amdahl's law over SMs or slices; or else speed", "-", None, ge=0, le=1
    )
    speed: dict[str, float] | None = quantity(
        "speed on each profile (1g, 3g.40gb or H100-80GB/3g), any unit; profiles left out are never used", "-", None
    )
    gpu_speed: dict[str, float] = quantity("factor on its speed for each type of GPU; 1 if absent", "-", dict)
    max_instances: int | None = quantity(
        "most instances it can use at a time; absent: any number", "instances", None, ge=1
    )

    @model_validator(mode="after")
    def _check_speed(self) -> MigTenant:
        if (self.parallel_fraction is None) == (self.speed is None):
            given = "neither" if self.speed is None else "both"
            raise FieldError("either parallel_fraction or speed", value=given)
        for key, value in (self.speed or {}).items():
            if not value >= 0:
                raise FieldError("a number, 0 or more", field=f"speed.{key}", value=value)
        for key, value in self.gpu_speed.items():
            if not value > 0:
                raise FieldError("a number above 0", field=f"gpu_speed.{key}", value=value)
        return self


class MigFile(FileModel):
    """GPUs to cut up and tenants to share them."""

    gpus: tuple[MigGpu, ...] = quantity("GPUs that can be cut up", "-", min_length=1)
    tenants: tuple[MigTenant, ...] = quantity("tenants that share them", "-", min_length=1)
    parallel_over: Literal["sms", "slices"] = quantity(
        "what parallel_fraction counts: SMs or compute slices", "-", "sms"
    )
    profiles: Literal["plain", "all"] = quantity(
        "plain: 1g, 2g, 3g, 4g, 7g; all: also 1g with twice the memory", "-", "plain"
    )
    memory_reserve_gb: float = quantity("memory of each instance that programs cannot use", "GB", 0.0, ge=0)
    drain_penalty: float = quantity(
        "what one drained instance costs, as a part of welfare; the default only breaks ties", "-", 1e-6, ge=0, le=100
    )

    @model_validator(mode="after")
    def _check_names(self) -> MigFile:
        for field, entries in (("gpus", self.gpus), ("tenants", self.tenants)):
            names = [entry.name for entry in entries]
            for place, name in enumerate(names):
                if name in names[:place]:
                    raise FieldError("each name once", field=f"{field}.{place}.name", value=f"{name!r} twice")
        return self
