"""The fleet of a simulation: services, fractional jobs and shared GPUs, for the terminal, the page and a figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING

from commonwatt.model.fleet_results import FleetResult, ServiceResult
from commonwatt.model.results import PolicyResult, SimulationResult
from commonwatt.report import format as fmt
from commonwatt.report.pictures import policy_colour
from commonwatt.report.sections import Cell, Column, html_table, in_one_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

__all__ = ["WORTH", "above_caps", "fleet_section", "fleet_table", "has_fleet", "late_share", "worth_bars"]

WORTH: tuple[tuple[str, str, Callable[[PolicyResult], float | None]], ...] = (
    ("Energy in the window", "kWh", lambda p: p.window_energy_kwh),
    ("Cost of that energy", "currency", lambda p: p.window_cost),
    ("Late training jobs", "jobs", lambda p: p.late_jobs),
    ("Late requests", "% of requests", lambda p: _percent(late_share(p.fleet))),
    ("Mean wait of training jobs", "s", lambda p: p.mean_wait_s),
    ("Stretch of fractional jobs", "x", lambda p: _fractional(p.fleet, "mean_stretch")),
    ("Shared GPUs", "GPU h", lambda p: None if p.fleet is None else _gpu_hours(p.fleet)),
    ("Evenness of energy over weight", "Jain", lambda p: None if p.fleet is None else p.fleet.energy_evenness),
)
"""What a decision may be worth: name, unit, and the number of a policy."""

_TITLES = ("Their\nenergy", "Late\nrequests", "In time", "Shared\nGPUs", "Fraction\nwait", "Stretch", "Cuts", "Stops")


def has_fleet(result: SimulationResult) -> bool:
    """Return whether anything but training jobs ran."""
    return any(policy.fleet is not None for policy in result.policies)


def late_share(fleet: FleetResult | None) -> float | None:
    """Return late requests over requests of all services; ``None`` if there were none."""
    return None if fleet is None or not fleet.requests else fleet.late_requests / fleet.requests


def fleet_table(result: SimulationResult) -> Table:
    """Return a row for each policy: what services and fractional jobs got. Fits 80 columns."""
    from rich import box
    from rich.markup import escape as escaped
    from rich.table import Table
    from rich.text import Text

    caption = (
        "Their energy: of services and fractional jobs. In time: share of the time in which the promised quantile of "
        "requests was, worst service. Shared GPUs: hours that training jobs did not have. "
        "Stretch: of fractional jobs, submission to end over run time as requested. Cuts: of GPUs by MIG. Stops: of "
        "jobs to make room for services, and of fractional jobs with their node."
    )
    caption = " ".join([caption, *above_caps(result)])
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, caption_justify="left", caption=escaped(caption))
    shown.add_column("Policy", overflow="fold", min_width=min(14, max(len(p.policy) for p in result.policies)))
    for title in _TITLES:
        shown.add_column(title, justify="right", overflow="fold")
    policies = [policy for policy in result.policies if policy.fleet is not None]
    energies = fmt.column(fmt.energy, [_energy_kwh(policy.fleet) for policy in policies if policy.fleet is not None])
    for policy, energy in zip(policies, energies, strict=True):
        style = "bold" if policy is result.policies[0] else ""
        shown.add_row(*(Text(cell, style=style) for cell in (policy.policy, energy, *map(_brief, _numbers(policy)))))
    return shown


def above_caps(result: SimulationResult) -> list[str]:
    """Return a sentence for each policy under which services made the nodes draw more than their power cap."""
    sentences = []
    for policy in result.policies:
        cap = None if policy.fleet is None else policy.fleet.power_cap
        if cap is None or not cap.most_over_w:
            continue
        beside = f", and for {fmt.duration(cap.over_beside_jobs_s)} beside jobs that may not be stopped"
        sentences.append(
            f"Above the power cap under {policy.policy}: for {fmt.duration(cap.over_s)} by services alone"
            f"{beside if cap.over_beside_jobs_s else ''}, by {cap.most_over_w:,.0f} W at most."
        )
    return sentences


def _brief(text: str) -> str:
    return text.replace("less than ", "<")


def _numbers(policy: PolicyResult) -> tuple[str, ...]:
    fleet = policy.fleet
    assert fleet is not None
    in_time = [service.met_share for service in fleet.services if service.met_share is not None]
    stops = fleet.made_room + int(_fractional(fleet, "stops") or 0)
    return (
        fmt.percent(share) if (share := late_share(fleet)) is not None else "-",
        fmt.percent(min(in_time)) if in_time else "-",
        f"{_gpu_hours(fleet):,.0f} h",
        fmt.duration(_fractional(fleet, "mean_wait_s")) if fleet.fractional else "-",
        fmt.ratio(_fractional(fleet, "mean_stretch")) if fleet.fractional else "-",
        fmt.count(fleet.layouts),
        fmt.count(stops),
    )


def fleet_section(result: SimulationResult) -> str:
    """Return the section of the page: services and tenants of every policy; empty without a fleet."""
    if not has_fleet(result):
        return ""
    return f"""<section aria-labelledby="h-fleet">
<h2 id="h-fleet">Services and shared GPUs</h2>
{_gpu_table(result)}{"".join(f"<p>{escape(sentence)}</p>" for sentence in above_caps(result))}
{_service_table(result)}
{_tenant_table(result)}
</section>"""


def _each(result: SimulationResult) -> list[tuple[Cell, FleetResult]]:
    return [
        (Cell(policy.policy, colour=policy_colour(i)), policy.fleet)
        for i, policy in enumerate(result.policies)
        if policy.fleet is not None
    ]


def _gpu_table(result: SimulationResult) -> str:
    columns = [
        Column("", number=False), Column("Late requests", "of all services"), Column("Whole", "GPU h for one resident"),
        Column("MIG", "GPU h"), Column("Shared in time", "GPU h"), Column("Reserved", "of that time"),
        Column("Cuts", "of GPUs by MIG"), Column("Drained", "instances in use"),
        Column("Room made", "training jobs stopped"), Column("Fractional jobs ended", ""),
        Column("Mean wait", "of these"), Column("Stretch", "over run time as requested"),
        Column("Mean phi", "in force"), Column("Evenness of energy", "Jain's index over weights"),
    ]  # fmt: skip
    rows = []
    for name, fleet in _each(result):
        small = fleet.fractional
        rows.append([
            name, _share(late_share(fleet)), _number(fleet.whole_gpu_hours), _number(fleet.mig_gpu_hours),
            _number(fleet.time_gpu_hours), _share(fleet.reserved_share), _number(fleet.layouts),
            _number(fleet.drained), _number(fleet.made_room),
            Cell("-" if small is None else f"{small.ended} of {small.jobs}", None if small is None else small.ended),
            Cell(fmt.duration(_fractional(fleet, "mean_wait_s")), _fractional(fleet, "mean_wait_s")),
            _number(None if small is None else small.mean_stretch, 2), _number(fleet.mean_phi, 2),
            _number(fleet.energy_evenness, 3),
        ])  # fmt: skip
    return html_table("Shared GPUs", columns, in_one_unit(rows, {10: fmt.duration}))


def _service_table(result: SimulationResult) -> str:
    columns = [
        Column("", number=False), Column("Service", number=False), Column("Tenant", number=False), Column("Requests"),
        Column("Late", "later than the target"), Column("In time", "share of time with the quantile in time"),
        Column("Replicas", "mean"), Column("GPU hours", "reserved"), Column("Moves"), Column("Energy"), Column("Cost"),
    ]  # fmt: skip
    rows = [
        [name, *_service_cells(service, result.currency)] for name, fleet in _each(result) for service in fleet.services
    ]
    return html_table("Services", columns, in_one_unit(rows, {9: fmt.energy}), empty="There are no services.")


def _service_cells(service: ServiceResult, currency: str) -> Sequence[Cell]:
    return [
        Cell(service.service), Cell(service.tenant), _number(service.requests), _share(service.late_share),
        _share(service.met_share), _number(service.mean_replicas, 2), _number(service.gpu_hours, 1),
        _number(service.moves), Cell(fmt.energy(service.energy_kwh), service.energy_kwh),
        Cell(fmt.money(service.energy_cost, currency), service.energy_cost),
    ]  # fmt: skip


def _tenant_table(result: SimulationResult) -> str:
    columns = [
        Column("", number=False), Column("Tenant", number=False), Column("Weight"), Column("Energy", "of all it ran"),
        Column("GPU hours", "of all it ran"), Column("Mean wait", "of its jobs"), Column("Late requests"),
    ]  # fmt: skip
    rows = [
        [
            name, Cell(tenant.tenant), _number(tenant.weight, 1),
            Cell(fmt.energy(tenant.energy_kwh), tenant.energy_kwh),
            _number(tenant.gpu_hours, 1), Cell(fmt.duration(tenant.mean_wait_s), tenant.mean_wait_s),
            _number(tenant.late_requests),
        ]
        for name, fleet in _each(result)
        for tenant in fleet.tenants
    ]  # fmt: skip
    return html_table("Tenants over all they run", columns, in_one_unit(rows, {3: fmt.energy, 5: fmt.duration}))


def worth_bars(axes: Axes, names: Sequence[str], values: Sequence[float | None]) -> None:
    """Draw one number of every policy as a bar."""
    at = list(range(len(names)))
    shown = [0.0 if value is None else value for value in values]
    axes.barh(at, shown, color=[policy_colour(i) for i in at])
    axes.set_yticks(at, names)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")


def _number(value: float | None, digits: int = 0) -> Cell:
    return Cell(fmt.UNKNOWN if value is None else f"{value:,.{digits}f}", value)


def _share(value: float | None) -> Cell:
    return Cell(fmt.percent(value), value)


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _energy_kwh(fleet: FleetResult) -> float:
    return sum(service.energy_kwh for service in fleet.services) + (_fractional(fleet, "energy_kwh") or 0.0)


def _gpu_hours(fleet: FleetResult) -> float:
    return fleet.whole_gpu_hours + fleet.mig_gpu_hours + fleet.time_gpu_hours


def _fractional(fleet: FleetResult | None, name: str) -> float | None:
    value: float | None = None if fleet is None or fleet.fractional is None else getattr(fleet.fractional, name)
    return value
