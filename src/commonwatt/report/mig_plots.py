"""Drawings of GPUs cut up by MIG, with the tenants in them; and of scaling laws beside what was measured."""

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

__all__ = ["save_layouts", "save_scaling"]

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
