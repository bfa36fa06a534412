"""Parts of the static figures, on the caller's matplotlib axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.results import SimulationResult
from commonwatt.report import format as fmt
from commonwatt.report.figures import DURATION_TICKS, short
from commonwatt.report.pictures import OTHERS, TENANTS, policy_colour, policy_dash, tenant_colours
from commonwatt.report.reduction import HeatMap, Steps, distribution, shrink
from commonwatt.report.timeline import Bars, TimeAxis, end_s, node_rows, time_unit, to_bars
from commonwatt.simulation.record import Record, Segments

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["MOST_NAMED", "cost", "gantt", "gantt_height", "gpus_in_use", "heat", "power", "time_axis", "waiting"]


MOST_NAMED = 60  # segments with a name in the bar
_DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}


def cost(axes: Axes, result: SimulationResult) -> None:
    """Draw energy and tardiness cost of each policy, stacked, and the lower bound."""
    policies, rows = result.policies, np.arange(len(result.policies))
    colours = [policy_colour(i) for i in rows.tolist()]
    energy = np.array([np.nan_to_num(p.energy_cost or 0.0) for p in policies])
    late = np.array([p.tardiness_cost for p in policies])
    axes.barh(rows, energy, color=colours, edgecolor=colours, height=0.62)
    axes.barh(rows, late, left=energy, color="white", edgecolor=colours, height=0.62, hatch="////")
    axes.vlines([p.lower_bound_cost for p in policies], rows - 0.5, rows + 0.5, color="black", linewidth=1.5)
    for row, policy in zip(rows.tolist(), policies, strict=True):
        axes.text(energy[row] + late[row], row, f"  {fmt.money(policy.total_cost, result.currency)}", va="center")
    axes.set_yticks(rows, [short(p.policy) for p in policies])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    highest = max([*(energy + late), *(p.lower_bound_cost for p in policies)])
    axes.set_xlim(0, 1.28 * highest or 1.0)
    axes.locator_params(axis="x", nbins=5)
    if highest >= 1000:
        axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_title("Cost: energy (solid), lateness (hatched), lower bound (line)")
    axes.set_xlabel(f"cost, {result.currency}")


def gpus_in_use(axes: Axes, result: SimulationResult, records: Sequence[Record], axis: TimeAxis) -> None:
    """Draw the GPUs allocated to jobs over time, and their total."""
    from matplotlib.ticker import MaxNLocator

    _curves(axes, result, records, axis, lambda r: r.samples.busy_gpus, 1.0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, 1.05 * result.gpus)
    axes.axhline(result.gpus, color="#5a6675", linestyle="--", linewidth=1)
    axes.set_title(f"GPUs in use, of {fmt.count(result.gpus)}")


def power(axes: Axes, result: SimulationResult, records: Sequence[Record], axis: TimeAxis) -> None:
    """Draw the power of all nodes over time."""
    powers_w = [r.samples.power_w[np.isfinite(r.samples.power_w)] for r in records]
    unit, size = fmt.power_unit(max((float(w.max()) for w in powers_w if len(w)), default=0.0))
    _curves(axes, result, records, axis, lambda r: r.samples.power_w, size)
    axes.set_title(f"Power of the nodes, {unit}")


def waiting(axes: Axes, result: SimulationResult, records: Sequence[Record]) -> None:
    """Draw the distribution of waiting times."""
    highest = 10.0
    for record in records:
        cdf = distribution(record.jobs.began_s - record.jobs.submit_s, least=1.0)
        if not len(cdf.value):
            continue
        highest = max(highest, float(cdf.value[-1]))
        x = np.append(cdf.value[:1], cdf.value)
        axes.plot(x, np.append(0.0, cdf.share * 100), drawstyle="steps-post", **_style(result, record))
    ticks = [(s, text) for s, text in DURATION_TICKS if s <= highest * 1.2]
    axes.set_xscale("log")
    axes.set_xticks([s for s, _ in ticks], ["≤ 1 s" if s == 1 else text for s, text in ticks])
    axes.minorticks_off()
    axes.set_xlim(0.9, highest * 1.2)
    axes.set_title("Waiting: jobs that started within, %")


def heat(axes: Axes, busy: HeatMap, axis: TimeAxis) -> None:
    """Draw the busy share of nodes over time."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("busy", ["#eff3f6", "#6aaed6", "#08306b"])
    edges = axis.to_axis(busy.edges_s)
    rows = len(busy.nodes)
    image = axes.imshow(
        busy.share * 100, cmap=colours, vmin=0, vmax=100, aspect="auto", interpolation="nearest",
        extent=(float(edges[0]), float(edges[-1]), rows - 0.5, -0.5),
    )  # fmt: skip
    shown = range(0, rows, max(1, -(-rows // 25)))
    axes.set_yticks(list(shown), [short(busy.nodes[i][0], 16) for i in shown])
    axes.grid(visible=False)
    axes.set_xlabel(f"{axis.title}{_until(axis)}")
    axes.figure.colorbar(image, ax=axes, label="busy GPUs, %", shrink=0.6, aspect=30)


def gantt_height(gpus: Ints) -> float:
    """Return the height of a figure in inches that shows every GPU of a few nodes, or every one of many nodes."""
    return float(np.clip(0.24 * node_rows(gpus)[1][-1], 1.2, 9.0) + 1.3)


def gantt(
    axes: Axes, nodes: Sequence[str], gpus: Ints, segments: Segments, jobs: Sequence[str], tenants: Sequence[str],
    zero_s: float, *, named: bool = True,
) -> None:  # fmt: skip
    """Draw every segment of every job, in seconds since *zero_s*.

    A few jobs have their own colours and, if *named*, their names in the bars; many have the colours of their tenants.
    """
    from matplotlib.collections import PolyCollection

    bars, (tops, bottoms) = to_bars(gpus, segments), node_rows(gpus)
    for top, bottom in zip(tops, bottoms, strict=True):
        axes.axhspan(top, bottom, color="#f1f4f6", zorder=0)
    corners = _corners(bars, segments, tops, zero_s)
    colours = _bar_colours(axes, segments, bars.segment, jobs, tenants)
    edge = 0.5 if len(corners) <= 1500 else 0.0
    axes.add_collection(PolyCollection(list(corners), facecolors=colours, edgecolors="white", linewidths=edge))
    if named and len(corners) <= MOST_NAMED:
        centres, job = corners.mean(axis=1).tolist(), segments.job[bars.segment].tolist()
        for (x, y), j, colour in zip(centres, job, colours, strict=True):
            ink = "white" if _dark(colour) else "black"
            axes.text(x, y, short(jobs[j], 14), ha="center", va="center", fontsize=7.5, clip_on=True, color=ink)
    every = max(1, -(-len(nodes) // 45))
    axes.set_yticks(((tops + bottoms) / 2)[::every], [short(name, 16) for name in nodes[::every]])
    axes.grid(visible=False, axis="y")
    axes.set_ylim(bottoms[-1] + 0.25, -0.25)


def time_axis(axes: Axes, span_s: float, since: str) -> None:
    """Label an axis in seconds from 0 to *span_s* in a suitable unit."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    unit, size = time_unit(span_s)
    locations = np.asarray(MaxNLocator(nbins=10, steps=[1, 2, 2.5, 5, 10]).tick_values(0, span_s / size))
    axes.set_xticks(locations * size)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / size:g}"))
    axes.set_xlim(0, span_s)
    axes.set_xlabel(f"{unit} {since}")


def _dark(colour: str) -> bool:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue < 100


def _corners(bars: Bars, segments: Segments, tops: Floats, zero_s: float) -> Floats:
    """Return the corners of every bar, [B, 4, 2]."""
    left, right = (times[bars.segment] - zero_s for times in (segments.from_s, segments.to_s))
    top = tops[segments.node[bars.segment]] + bars.lane + 0.04
    bottom = top + bars.lanes - 0.08
    return np.array([[left, right, right, left], [top, top, bottom, bottom]]).T.copy()


def _bar_colours(
    axes: Axes, segments: Segments, rows: Ints, jobs: Sequence[str], tenants: Sequence[str]
) -> list[str]:  # fmt: skip
    from matplotlib.patches import Patch

    job = segments.job[rows].tolist()
    if len(set(job)) <= 2 * len(TENANTS) or len(set(tenants)) == 1:
        order = {j: i for i, j in enumerate(dict.fromkeys(segments.job.tolist()))}
        return [TENANTS[order[j] % len(TENANTS)] for j in job]
    use = np.bincount(segments.job, segments.gpus * (segments.to_s - segments.from_s), len(jobs))
    totals: dict[str, float] = {}
    for tenant, used in zip(tenants, use.tolist(), strict=True):
        totals[tenant] = totals.get(tenant, 0.0) + used
    colours = tenant_colours(sorted(totals, key=lambda tenant: (-totals[tenant], tenant)))
    patches = [Patch(color=c, label=short(t, 20)) for t, c in colours.items() if c != OTHERS]
    if OTHERS in colours.values():
        patches.append(Patch(color=OTHERS, label="other tenants"))
    axes.figure.legend(handles=patches, loc="outside lower center", ncols=min(9, len(patches)), fontsize=8)
    return [colours[tenants[j]] for j in job]


def _curves(
    axes: Axes, result: SimulationResult, records: Sequence[Record], axis: TimeAxis,
    values: Callable[[Record], NDArray[Any]], size: float,
) -> None:  # fmt: skip
    for record in reversed(records):  # ours last, on top
        end = end_s(record)
        curve = Steps.of(record.samples.time_s, np.asarray(values(record), dtype=np.float64), end)
        if not len(curve.time_s):
            continue
        curve = shrink(curve, until_s=axis.focus_s)
        x = axis.to_axis(np.append(curve.time_s, end))
        axes.plot(x, np.append(curve.value, curve.value[-1]) / size, drawstyle="steps-post", **_style(result, record))
    axes.set_ylim(bottom=0)
    if axis.end_s > axis.origin_s:
        axes.set_xlim(0, float(axis.to_axis(axis.focus_s)))
    axes.set_xlabel(f"{axis.title}{_until(axis)}")


def _until(axis: TimeAxis) -> str:
    if not axis.focused:
        return ""
    return f", of {fmt.duration(axis.end_s - axis.origin_s)}"


def _style(result: SimulationResult, record: Record) -> dict[str, Any]:
    index = [policy.policy for policy in result.policies].index(record.policy)
    return {
        "label": short(record.policy, 24),
        "color": policy_colour(index),
        "linestyle": _DASHES[policy_dash(index)],
        "linewidth": 1.8 if index == 0 else 1.0,
    }
