"""Static figures of partitions. Of a market: prices by iteration, shares, speedup against entitlement, welfare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from commonwatt.report.palette import policy_colour, tenant_colours
from commonwatt.report.saving import saved

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.axes import Axes

    from commonwatt.model.mig_results import MigAnswer, MigGpuResult
    from commonwatt.model.partition_results import ConfigurationResult, PartitionResult, PartitionSweepResult

__all__ = [
    "draw_prices",
    "draw_shares",
    "draw_speedups",
    "draw_welfare",
    "save_layouts",
    "save_partition",
    "save_scaling",
    "save_sweep",
]


def save_partition(result: PartitionResult, path: Path) -> None:
    """Draw the chosen configuration, and all of them by welfare. Raises ``InputError`` as ``saved``."""
    chosen = next(one for one in result.configurations if one.name == result.chosen)
    with saved(path, (9.0, 6.0)) as figure:
        figure.suptitle(f"{result.chosen}, chosen by {result.welfare} welfare; {result.mechanism}")
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
        welfare.set_title(f"{result.welfare} welfare" + (", logarithm" if "nash" in result.welfare else ""))
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
    axes.set_title(f"{result.welfare} welfare" + (", logarithm" if "nash" in result.welfare else ""))
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
