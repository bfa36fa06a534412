"""The result of a study in sentences and in a table for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commonwatt.model.study_results import STEP_NAMES, StudyPolicy, StudyResult, StudyTenant, WaterfallStep
from commonwatt.report import format as fmt

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "STEP_NAMES", "about", "headline", "interval_text", "left_out", "longer_waits", "policies_table", "policy_of",
    "shown_steps", "signed_pct", "treated", "unpriced", "waiting", "waterfall_table",
]  # fmt: skip


def signed_pct(value: float | None) -> str:
    """Return percent with a true minus: ``12.3%``, ``-0.2%``; a value that rounds to 0 has no sign."""
    if value is None:
        return fmt.UNKNOWN
    rounded = round(value, 1) + 0.0
    sign = "\N{MINUS SIGN}" if rounded < 0 else ""
    return f"{sign}{abs(rounded):.1f}%"


def policy_of(result: StudyResult, role: str) -> StudyPolicy | None:
    """Return the first policy of this *role*."""
    return next((policy for policy in result.policies if policy.role == role), None)


def headline(result: StudyResult) -> str:
    """Return the conservative saving in one sentence."""
    saved = result.conservative_saving_pct
    if saved is None:
        return (
            "How much energy would be saved is not known: the nodes have no power (idle_w and gpu_w are 0)."
            if result.finished
            else "How much energy would be saved is not known yet."
        )
    rounded = round(saved, 1)
    if result.conservative_against != "baseline":
        other = "today's scheduler would take if it, too, chose GPU types by energy"
        word = "less" if rounded > 0 else "more"
        text = f"{abs(rounded):.1f}% {word} energy than {other}" if rounded else f"As much energy as {other}"
        return f"{text}{_against_today(result)}."
    if rounded == 0:
        return "No energy is saved while every job gets what its owner asked for."
    word = "less" if rounded > 0 else "more"
    return f"{abs(rounded):.1f}% {word} energy, while every job gets what its owner asked for."


def _against_today(result: StudyResult) -> str:
    """Return the saving against what runs today, where the headline is against something else."""
    ours = policy_of(result, "ours")
    if ours is None or ours.saved_pct is None:
        return ""
    rounded = round(ours.saved_pct, 1)
    than = "than today's scheduler uses (see the tables)"
    return f"; {abs(rounded):.1f}% {'less' if rounded >= 0 else 'more'} {than}"


def waiting(result: StudyResult) -> str:
    """Return how waiting changes with that, in one sentence; "" if it is not known yet."""
    today, ours = policy_of(result, "baseline"), policy_of(result, "ours")
    if today is None or ours is None:
        return ""
    fields = (("mean", "mean_wait_s"), ("p95", "p95_wait_s"), ("longest", "longest_wait_s"))
    pairs = [(name, fmt.duration(getattr(ours, f)), fmt.duration(getattr(today, f))) for name, f in fields]
    if all(then == now for _, then, now in pairs):
        same = ", ".join(f"{name} {now}" for name, _, now in pairs)
        nobody = today.longest_wait_s == ours.longest_wait_s == 0
        return "Waits do not change." if nobody else f"Waits do not change: {same}."
    parts = [f"{name} {then} (today {now})" for name, then, now in pairs]
    return f"Waits change: {', '.join(parts)}."


def interval_text(result: StudyResult) -> str:
    """Return how far the conservative saving can be trusted."""
    interval = result.conservative_saving_interval
    if interval is None:
        if result.conservative_saving_pct is None:
            return "" if result.finished else "Not all runs are done."
        return "No interval: one period and one seed do not say how another week would differ."
    of = fmt.plural(interval.units, "period" if interval.over == "weeks" else "seed")
    only = "" if interval.over == "weeks" else "; it says nothing of other weeks"
    return (
        f"{100 * interval.level:g}% interval of the saving: {signed_pct(interval.low)} to {signed_pct(interval.high)} "
        f"(jackknife and t over {of}{only})."
    )


def about(result: StudyResult) -> str:
    """Return who the study is about."""
    log = result.about
    of_periods = (
        f", {fmt.plural(log.weeks, 'period')} of {log.days:g} day{'' if log.days == 1 else 's'}"
        if log.weeks > 1
        else ""
    )
    return (
        f"{fmt.plural(log.jobs, 'job')} of {fmt.plural(log.tenants, 'tenant')} on {fmt.plural(log.nodes, 'node')} with "
        f"{fmt.plural(log.gpus, 'GPU')} ({', '.join(log.gpu_types)}){of_periods}; window {fmt.duration(log.window_s)}, "
        "from the first to the last submission."
    )


def longer_waits(result: StudyResult) -> list[tuple[StudyTenant, StudyTenant]]:
    """Return each tenant as today and under ours, those whose 95th percentile grows most first."""
    today, ours = policy_of(result, "baseline"), policy_of(result, "ours")
    if today is None or ours is None:
        return []
    after = {tenant.tenant: tenant for tenant in ours.tenants}
    pairs = [(tenant, after[tenant.tenant]) for tenant in today.tenants if tenant.tenant in after]
    return sorted(pairs, key=lambda pair: (pair[0].p95_wait_s - pair[1].p95_wait_s, pair[0].tenant))


def treated(result: StudyResult) -> list[str]:
    """Return how many jobs were not taken as logged, and what was done, in words."""
    said, about = _left_out(result), result.about
    return [said.get(how, f"{count:,} {how}") for how, count in about.treatments.items()]


def left_out(result: StudyResult) -> list[str]:
    """Return the jobs left out as the cluster cannot run them, a sentence for each reason."""
    return [f"{text}." for text in _left_out(result).values()]


def _left_out(result: StudyResult) -> dict[str, str]:
    return {
        how: f"{fmt.plural(count, 'job')} {how if count > 1 else how.replace('they request', 'it requests')}"
        for how, count in result.about.left_out.items()
    }


def unpriced(result: StudyResult) -> str:
    """Return why the step *price* is not shown; "" if it is, or is still to come."""
    off = any(step.step == "price" and step.energy_kwh is None for step in result.waterfall) and result.finished
    return "The step price is left out, as no price series is given." if off else ""


def shown_steps(result: StudyResult) -> list[WaterfallStep]:
    """Return the steps of the waterfall, without a price that does not change."""
    return [step for step in result.waterfall if not (step.step == "price" and unpriced(result))]


def waterfall_table(result: StudyResult) -> Table:
    """Return the waterfall as a table that fits 80 columns."""
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), caption_justify="left")
    shown.add_column("Step", min_width=16)
    for title in ("Energy", "Cost", "So far", "Alone", "p95 wait", "Longest"):
        shown.add_column(title, justify="right")
    steps = shown_steps(result)
    energies = fmt.column(fmt.energy, [step.energy_kwh for step in steps])
    waits = fmt.column(fmt.duration, [step.p95_wait_s for step in steps])
    longest = fmt.column(fmt.duration, [step.longest_wait_s for step in steps])
    for step, energy, wait, most in zip(steps, energies, waits, longest, strict=True):
        name = STEP_NAMES.get(step.step, step.step)
        alone = "" if step.alone_against is None else signed_pct(step.alone_pct)
        saved = "" if step.alone_against is None else signed_pct(step.saved_pct)
        shown.add_row(name, energy, fmt.money(step.cost, result.currency), saved, alone, wait, most)
    return shown


def policies_table(result: StudyResult) -> Table:
    """Return the policies under the conservative settings as a table that fits 80 columns."""
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    shown.add_column("Policy", min_width=14)
    for title in ("Energy", "Saved", "p50 wait", "p95", "p99", "Longest"):
        shown.add_column(title, justify="right")
    policies = result.policies
    columns = [
        fmt.column(fmt.energy, [p.energy_kwh for p in policies]),
        ["" if p.role == "baseline" else signed_pct(p.saved_pct) for p in policies],
        *(
            fmt.column(fmt.duration, [getattr(p, name) for p in policies])
            for name in ("p50_wait_s", "p95_wait_s", "p99_wait_s", "longest_wait_s")
        ),
    ]
    for policy, *cells in zip(policies, *columns, strict=True):
        shown.add_row(policy.policy, *cells)
    return shown
