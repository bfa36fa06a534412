"""Static figures of decisions: divisions among tenants, mappings, a quantum and shares over time.

Of a market: prices by iteration, shares, speedup against entitlement, welfare. Of a mapping, as in Fig. 13 of the G#
paper: sub-accelerators with their jobs, the bandwidth in use, the search. Of a shared device, as in Fig. 3 and 9 of the
ETF paper: a quantum divided, and shares over time.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.model.map_results import MapEvaluateResult, MapResult
from commonwatt.model.units import plural, welfare_name
from commonwatt.report.pictures import TENANTS, policy_colour, saved, tenant_colours

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from commonwatt.model.partition_results import (
        ConfigurationResult,
        MigAnswer,
        MigGpuResult,
        PartitionResult,
        PartitionSweepResult,
    )
    from commonwatt.model.timeslice_results import TimeslicePlanResult, TimesliceRunResult

__all__ = [
    "draw_bandwidth",
    "draw_jobs",
    "draw_prices",
    "draw_search",
    "draw_shares",
    "draw_speedups",
    "draw_welfare",
    "piecewise_shares",
    "save_layouts",
    "save_map",
    "save_partition",
    "save_plan",
    "save_run",
    "save_scaling",
    "save_sweep",
    "shares_over_time",
]


def save_partition(result: PartitionResult, path: Path) -> None:
    """Draw the chosen configuration, and all of them by welfare. Raises ``InputError`` as ``saved``."""
    chosen = next(one for one in result.configurations if one.name == result.chosen)
    with saved(path, (9.0, 6.0)) as figure:
        figure.suptitle(f"{result.chosen}, chosen by {welfare_name(result.welfare)} welfare; {result.mechanism}")
        (prices, shares), (speedups, welfare) = figure.subplots(2, 2)
        draw_prices(prices, chosen)
        draw_shares(shares, chosen)
        draw_speedups(speedups, chosen)
        draw_welfare(welfare, result)


def save_sweep(result: PartitionSweepResult, path: Path) -> None:
    """Draw welfare and speedups by the weight of one tenant. Raises ``InputError`` as ``saved``."""
    weights = [point.weight for point in result.points]
    with saved(path, (9.0, 3.8)) as figure:
        welfare, speedups = figure.subplots(1, 2)
        for at, name in enumerate(result.points[0].welfare):
            values = [point.welfare[name] for point in result.points]
            welfare.plot(weights, values, marker="o", markersize=3, label=name, color=policy_colour(at))
        kind = f"{welfare_name(result.welfare)} welfare"
        welfare.set_title(kind + (", logarithm" if "nash" in result.welfare else ""))
        names = list(result.points[0].utilities)
        for name, colour in tenant_colours(names).items():
            values = [point.utilities[name] for point in result.points]
            speedups.plot(weights, values, marker="o", markersize=3, label=name, color=colour)
        speedups.set_title("speedup in the chosen configuration")
        for axes in (welfare, speedups):
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
            axes.set_xlabel(f"weight of {result.tenant}")
            axes.legend(fontsize=7)


def draw_prices(axes: Axes, one: ConfigurationResult) -> None:
    """Draw the price of a PE of each core cluster by iteration."""
    axes.set_title("prices by iteration")
    if not one.price_history:
        axes.text(0.5, 0.5, "no prices", ha="center", transform=axes.transAxes)
        return
    history = np.array(one.price_history)
    for c, name in enumerate(one.core_clusters[:12]):
        axes.plot(history[:, c], label=name, color=policy_colour(c))
    axes.axvline(one.rounds, color="#8a94a0", linestyle=":", label="Newton's steps from here")
    axes.set_xlabel("iteration")
    axes.set_ylabel("price of a PE, budgets sum to 1")
    axes.legend(fontsize=7, loc="best")


def draw_shares(axes: Axes, one: ConfigurationResult) -> None:
    """Draw who has what part of each core cluster, stacked."""
    axes.set_title("shares of each core cluster")
    names = list(one.shares)
    at, base = np.arange(len(one.core_clusters)), np.zeros(len(one.core_clusters))
    for name, colour in tenant_colours(names).items():
        part = 100 * np.array(one.shares[name]) / np.array(one.pe_count)
        axes.bar(at, part, 0.7, bottom=base, color=colour, label=name if len(names) <= 12 else None)
        base += part
    axes.set_xticks(at, one.core_clusters, rotation=20 if len(at) > 4 else 0, fontsize=7)
    axes.set_ylabel("share of PEs, %")
    axes.grid(visible=False, axis="x")
    axes.legend(fontsize=7, loc="lower left", bbox_to_anchor=(0, 1.08), ncols=4)


def draw_speedups(axes: Axes, one: ConfigurationResult) -> None:
    """Draw each tenant's speedup beside that of its entitlement."""
    axes.set_title("speedup against entitlement")
    names = list(one.utilities)
    at = np.arange(len(names))
    axes.bar(at - 0.2, list(one.utilities.values()), 0.38, color=list(tenant_colours(names).values()), label="now")
    axes.bar(at + 0.2, list(one.entitlement_utilities.values()), 0.38, color="#c8ced4", label="entitlement")
    if len(names) <= 20:
        axes.set_xticks(at, names)
    axes.set_ylabel("speedup over a base PE")
    axes.grid(visible=False, axis="x")
    axes.legend(fontsize=7)


def draw_welfare(axes: Axes, result: PartitionResult) -> None:
    """Draw the welfare of every configuration."""
    axes.set_title(f"{welfare_name(result.welfare)} welfare" + (", logarithm" if "nash" in result.welfare else ""))
    names = [one.name for one in result.configurations]
    colours = ["#0072B2" if name == result.chosen else "#9A9A9A" for name in names]
    axes.bar(names, [one.welfare for one in result.configurations], 0.6, color=colours)
    axes.grid(visible=False, axis="x")


_MEMORY = {"1g": 1, "2g": 2, "3g": 4, "4g": 4, "7g": 8}


def save_layouts(answer: MigAnswer, path: Path) -> None:
    """Draw the memory slices of each GPU; each instance is divided by its users' time. Raises as ``saved``."""
    names = [t.name for t in sorted(answer.tenants, key=lambda t: -t.weight)]
    colours = tenant_colours(names)
    with saved(path, (9.0, 1.6 + 0.75 * len(answer.gpus))) as figure:
        figure.suptitle(f"{answer.mode}: layouts and tenants")
        axes = figure.subplots()
        for row, gpu in enumerate(answer.gpus):
            _draw_gpu(axes, row, gpu, colours)
        axes.set_yticks(range(len(answer.gpus)), [f"{gpu.name}\n{gpu.type}" for gpu in answer.gpus])
        axes.set_ylim(len(answer.gpus) - 0.4, -0.6)
        axes.set_xlim(0, 8)
        axes.set_xlabel("memory slice (in an instance, height is time; hatched: free; *: new)")
        axes.grid(visible=False)
        for name in names[:8]:
            axes.plot([], [], color=colours[name], linewidth=6, label=name)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=min(8, len(names)))


def _draw_gpu(axes: Axes, row: int, gpu: MigGpuResult, colours: Mapping[str, str]) -> None:
    starts = [i.start for i in gpu.instances] + [8]
    for number, instance in enumerate(gpu.instances):
        key = instance.profile.split(".", 1)[0]
        double = key == "1g" and starts[number + 1] - instance.start >= 2 and instance.profile.endswith(_twice(gpu))
        width = 2 if double else _MEMORY[key]
        foot = row + 0.36
        axes.barh(row, width, 0.72, instance.start, color="none", edgecolor="#cfd6dd", hatch="////")
        for user in instance.users:
            height = 0.72 * user.share
            axes.bar(
                instance.start,
                height,
                width,
                foot - height,
                align="edge",
                color=colours[user.tenant],
                edgecolor="white",
            )
            foot -= height
        axes.barh(row, width, 0.72, instance.start, color="none", edgecolor="#333333", linewidth=1.2)
        label = instance.profile + ("" if instance.stays else " *")
        axes.text(instance.start + width / 2, row, label, ha="center", va="center", fontsize=8)


def _twice(gpu: MigGpuResult) -> tuple[str, ...]:
    """How names of profiles with two memory slices end on this GPU."""
    return {"A100-40GB": ("10gb",), "H200-141GB": ("35gb",)}.get(gpu.type, ("20gb",))


def save_scaling(
    threads: Sequence[float],
    speedups: Sequence[float],
    laws: Mapping[str, Callable[[float], float]],
    chosen: str,
    path: Path,
) -> None:
    """Draw measured speedups and the laws fitted to them. Raises as ``saved``."""
    with saved(path, (7.0, 4.4)) as figure:
        axes = figure.subplots()
        at = np.geomspace(min(threads), max(threads), 200)
        axes.plot(at, at, color="#b8c0c8", linestyle=":", label="ideal")
        for number, (name, law) in enumerate(laws.items()):
            style = "-" if name == chosen else "--"
            axes.plot(at, [law(float(n)) for n in at], style, color=policy_colour(number), label=name)
        axes.plot(threads, speedups, "o", color="#222222", label="measured")
        axes.set_xscale("log", base=2)
        axes.set_xlabel("threads")
        axes.set_ylabel("speedup")
        axes.set_title(f"chosen: {chosen}")
        axes.set_ylim(0, 1.25 * max(speedups))
        axes.legend()


# -- mappings


_NAMED = 0.02  # part of the makespan from which on a job has room for its number


def save_map(result: MapEvaluateResult, path: Path) -> None:
    """Draw the mapping to *path*. Raises ``InputError`` as ``saved``."""
    rows = len(result.accelerator_end_cycles)
    searched = isinstance(result, MapResult) and len(result.history) > 1
    heights = (0.28 * rows + 0.4, 1.8, *([1.6] if searched else []))
    with saved(path, (9.0, 1.2 + sum(heights) + (0.5 if searched else 0.0))) as figure:
        worth = "the best possible" if result.gap < 1e-9 else f"at most {100 * result.gap:.3g}% above the best possible"
        figure.suptitle(f"makespan {result.makespan_cycles:.5g} cycles, {worth}")
        above, below, *last = figure.subplots(len(heights), 1, height_ratios=heights)
        above.sharex(below)
        above.tick_params(labelbottom=False)
        draw_jobs(above, result)
        draw_bandwidth(below, result)
        if isinstance(result, MapResult) and last:
            draw_search(last[0], result)
        _settle(figure)


def _settle(figure: Figure) -> None:
    """Lay out now, to nine digits: the last ones depend on addresses in memory, and names in an SVG on them."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (round(float(part), 9) for part in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))


def draw_jobs(axes: Axes, result: MapEvaluateResult) -> None:
    """Draw each job as a bar on the row of its sub-accelerator; a line where the lower bound is."""
    start = np.array([job.start_cycles for job in result.jobs])
    length = np.array([job.end_cycles for job in result.jobs]) - start
    colours = [TENANTS[job.job % len(TENANTS)] for job in result.jobs]
    axes.barh(result.accelerator, length, left=start, height=0.8, color=colours, edgecolor="white", linewidth=0.4)
    for job, left, width in zip(result.jobs, start.tolist(), length.tolist(), strict=True):
        if width > _NAMED * result.makespan_cycles:
            axes.text(left + width / 2, job.accelerator, str(job.job), ha="center", va="center", fontsize=7)
    axes.axvline(result.lower_bound_cycles, color="#1F2933", linestyle="--", linewidth=1.0, label="lower bound")
    axes.set_yticks(range(len(result.accelerator_end_cycles)))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_ylabel("sub-accelerator")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1))


def draw_bandwidth(axes: Axes, result: MapEvaluateResult) -> None:
    """Draw the bandwidth requested and used over time, against the system bandwidth."""
    edges = np.array([0.0, *(interval.to_cycles for interval in result.timeline)])
    used = [interval.used_gbs for interval in result.timeline]
    asked = [interval.requested_gbs for interval in result.timeline]
    limit = result.system_bandwidth_gbs
    axes.stairs(used, edges, fill=True, color="#56B4E9", label="used")
    axes.stairs(asked, edges, color="#8a94a0", linewidth=0.8, label="requested")
    axes.axhline(limit, color="#D55E00", linewidth=1.0, label=f"there is ({limit:g})")
    axes.set_ylim(0, 2.0 * limit if max(asked) > limit else 1.2 * limit)
    axes.set_xlim(0, result.makespan_cycles)
    axes.set_xlabel("cycles")
    axes.set_ylabel("bandwidth, GB/s")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3)


def draw_search(axes: Axes, result: MapResult) -> None:
    """Draw the best so far against the mappings evaluated: of a makespan, by how much it is above the lower bound."""
    spent = np.array([step.evaluations for step in result.history], dtype=np.float64)
    best = np.array([step.best for step in result.history])
    label = f"{result.objective}, best so far"
    if result.objective == "latency":
        best, label = 100.0 * np.maximum(0.0, best / result.lower_bound_cycles - 1.0), "above the bound, %"
        axes.axhline(0.0, color="#1F2933", linestyle="--", linewidth=1.0)
    axes.step(
        np.append(spent, result.evaluations), np.append(best, best[-1]), where="post", color="#0072B2", linewidth=1.2
    )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    if best[-1] > 0 and best[0] > 20 * best[-1]:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlim(1, max(2, result.evaluations))
    axes.set_xlabel("mappings evaluated")
    axes.set_ylabel(label)


# -- timeslices


def save_plan(result: TimeslicePlanResult, path: Path) -> None:
    """Draw time and energy of each tenant; the guaranteed part is hatched. Raises ``InputError`` as ``saved``."""
    names = [tenant.name for tenant in result.tenants]
    colours = list(tenant_colours(names).values())
    sure = np.array([tenant.guaranteed for tenant in result.tenants], dtype=float)
    whole = np.array([tenant.time for tenant in result.tenants], dtype=float)
    powers = np.array([tenant.power_w for tenant in result.tenants])
    with saved(path, (8.0, 1.4 + 0.35 * len(names))) as figure:
        figure.suptitle(f"{result.policy}, phi {result.phi:g}: a quantum of {plural(result.quantum, 'unit')}")
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, factor, title in (
            (left, np.ones(len(names)), "time, units"),
            (right, powers * result.unit_s, "energy, J"),
        ):
            rows = np.arange(len(names))
            axes.barh(rows, sure * factor, color="white", edgecolor=colours, hatch="////", height=0.62)
            axes.barh(rows, (whole - sure) * factor, left=sure * factor, color=colours, edgecolor=colours, height=0.62)
            axes.set_yticks(rows, names)
            axes.grid(visible=False, axis="y")
            axes.set_xlabel(f"{title} (guaranteed: hatched)")
        left.invert_yaxis()


def save_run(result: TimesliceRunResult, path: Path) -> None:
    """Draw each tenant's share of time and energy over the run. Raises ``InputError`` as ``saved``."""
    with saved(path, (8.0, 5.0)) as figure:
        figure.suptitle(f"{result.policy}, phi {result.phi:g}, on {result.device}")
        above, below = figure.subplots(2, 1, sharex=True)
        shares_over_time(above, result, "time")
        shares_over_time(below, result, "energy")
        below.set_xlabel("time, s")


def shares_over_time(axes: Axes, result: TimesliceRunResult, what: str, *, legend: bool = True) -> None:
    """Draw the tenants' shares of *what* (time or energy), stacked, over intervals of the run."""
    names = [tenant.name for tenant in result.tenants]
    at = np.array([sample.at_s for sample in result.timeline])
    used = np.array([sample.time_s if what == "time" else sample.energy_j for sample in result.timeline])
    at, shares = piecewise_shares(at, used)
    colours = list(tenant_colours(names).values())
    axes.stackplot(at, 100 * shares.T, labels=names, colors=colours, step="post")
    axes.set_ylim(0, 100)
    axes.set_xlim(0, result.duration_s)
    axes.set_ylabel(f"share of {what}, %")
    if legend and what == "time":
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=min(8, len(names)))


def piecewise_shares(at_s: Floats, used: Floats, pieces: int = 40) -> tuple[Floats, Floats]:
    """Turn cumulative use ([M, N] at *at_s*, [M]) into shares in each of about *pieces* intervals ([K + 1, N])."""
    step = max(1, (len(at_s) - 1) // pieces)
    picked = np.unique(np.append(np.arange(0, len(at_s), step), len(at_s) - 1))
    grown = np.diff(used[picked], axis=0)
    whole = grown.sum(axis=1, keepdims=True)
    shares = np.divide(grown, whole, out=np.zeros_like(grown), where=whole > 0)
    return at_s[picked], np.vstack([shares, shares[-1:]]) if len(shares) else np.zeros((len(picked), used.shape[1]))
