"""The part of the page on how many nodes were on; nothing where no policy planned that."""

from __future__ import annotations

from commonwatt.model.results import CapacityResult, SimulationResult
from commonwatt.report import format as fmt
from commonwatt.report.palette import policy_colour
from commonwatt.report.tables import Cell, Column, html_table

__all__ = ["capacity_section", "plans_capacity"]

_COLUMNS = (
    ("Plan", "of capacity"), ("Mean GPUs on", "waking ones included"), ("Mean GPUs in use", ""),
    ("Instants served", "of plans: enough GPUs on for what was wanted"), ("Energy", "at the nodes"),
    ("Had no node slept", "energy of the same schedule"), ("Saved", ""), ("Jobs delayed", "waited for nodes to wake"),
    ("Mean delay", "of these"), ("Wakes", "of nodes"), ("Fell back", "plans with everything on for want of a promise"),
)  # fmt: skip


def plans_capacity(result: SimulationResult) -> bool:
    """Return whether a policy planned capacity."""
    return any(policy.capacity is not None for policy in result.policies)


def capacity_section(result: SimulationResult) -> str:
    """Return the section: figure and table."""
    if not plans_capacity(result):
        return ""
    columns = [Column("", number=False), *(Column(name, note, number=i > 0) for i, (name, note) in enumerate(_COLUMNS))]
    rows = [
        [Cell(policy.policy, colour=policy_colour(i)), *_cells(policy.capacity, policy.energy_kwh)]
        for i, policy in enumerate(result.policies)
        if policy.capacity is not None
    ]
    table = html_table("Capacity plans", columns, rows)
    return f"""<section aria-labelledby="h-capacity">
<h2 id="h-capacity">How many nodes were on</h2>
<div class="grid">
<figure class="card full"><figcaption><h3>GPUs on against GPUs in use</h3></figcaption>
<div class="figure" id="fig-on" role="img" aria-label="GPUs of nodes that are on, over time, under each policy"></div>
</figure>
</div>
{table}
</section>"""


def _cells(plan: CapacityResult, energy_kwh: float | None) -> list[Cell]:
    saved = None if plan.saving_pct is None else plan.saving_pct / 100
    return [
        Cell(plan.policy if plan.forecaster is None else f"{plan.policy}, {plan.forecaster}"),
        Cell(f"{plan.mean_gpus_on:,.1f}", plan.mean_gpus_on),
        Cell(f"{plan.mean_gpus_used:,.1f}", plan.mean_gpus_used),
        Cell(fmt.percent(plan.slots_served), plan.slots_served),
        Cell(fmt.energy(energy_kwh), energy_kwh),
        Cell(fmt.energy(plan.energy_all_on_kwh), plan.energy_all_on_kwh),
        Cell(fmt.percent(saved), saved),
        Cell(fmt.count(plan.jobs_delayed), plan.jobs_delayed),
        Cell(fmt.UNKNOWN if plan.mean_delay_s is None else fmt.duration(plan.mean_delay_s), plan.mean_delay_s),
        Cell(fmt.count(plan.wakes), plan.wakes),
        Cell(fmt.count(plan.fallback_plans), plan.fallback_plans),
    ]
