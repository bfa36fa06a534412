"""Figures of all policies together, as Plotly traces and layouts; ``report.js`` adapts them to the screen.

Colours written ``var(--name)`` come from the style sheet, light or dark, when a figure is drawn.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commonwatt.model.arrays import Floats
from commonwatt.model.results import PolicyResult, SimulationResult
from commonwatt.model.units import DAY_S, HOUR_S
from commonwatt.report import format as fmt
from commonwatt.report.pictures import policy_colour, policy_dash
from commonwatt.report.reduction import Steps, distribution, shrink
from commonwatt.report.timeline import TimeAxis, end_s
from commonwatt.simulation.record import Record

__all__ = [
    "DURATION_TICKS",
    "cost",
    "energy_cost",
    "gpus_in_use",
    "gpus_on",
    "plain",
    "power",
    "queue",
    "rounded",
    "short",
    "spread",
]

Figure = dict[str, Any]

_MOST_POINTS = 12_000  # of all curves in one figure

DURATION_TICKS = (
    (1.0, "1 s"), (10.0, "10 s"), (60.0, "1 min"), (600.0, "10 min"), (HOUR_S, "1 h"), (8 * HOUR_S, "8 h"),
    (3 * DAY_S, "3 days"), (30 * DAY_S, "30 days"), (365 * DAY_S, "1 year"),
)  # fmt: skip


def plain(text: str) -> str:
    """Return *text* escaped for Plotly, which interprets some HTML tags."""
    return html.escape(text, quote=False)


def short(text: str, most: int = 18) -> str:
    """Return *text*, shortened in the middle to *most* characters."""
    if len(text) <= most:
        return text
    return f"{text[: (most - 1) // 2 + 1]}…{text[len(text) - most // 2 + 1 :]}"


def rounded(values: Floats, digits: int) -> list[float | None]:
    """Return *values* for JSON; unknown becomes ``null``."""
    return [None if not math.isfinite(v) else int(v) if v == int(v) else v for v in np.round(values, digits).tolist()]


def cost(result: SimulationResult) -> Figure:
    """Cost of each policy, energy and tardiness stacked, against the lower bound; also on a logarithmic axis."""
    policies = result.policies
    bars = [
        _bars(result, "energy", [p.energy_cost for p in policies], solid=True),
        _bars(result, "late jobs", [p.tardiness_cost for p in policies], solid=False),
        _labels([p.total_cost for p in policies], result.currency),
    ]
    dots = [
        _dots(result, "energy", [p.energy_cost for p in policies], "circle"),
        _dots(result, "late jobs", [p.tardiness_cost for p in policies], "diamond-open"),
        _dots(result, "total", [p.total_cost for p in policies], "square"),
    ]
    amounts = [v for p in policies for v in (p.total_cost, p.energy_cost, p.tardiness_cost, p.lower_bound_cost)]
    low, high = _range(amounts)
    log_axis = {
        "xaxis.type": "log",
        "xaxis.range": [math.log10(low) - 0.15, math.log10(high) + 0.15],
        "xaxis.tickmode": "array",
        "xaxis.tickvals": _log_ticks(low, high),
    }
    layout = _policy_axis(result) | {
        "barmode": "stack",
        "xaxis": {"title": {"text": f"cost, {plain(result.currency)}"}, "range": [0, high * 1.22]},
        "shapes": _bound_lines(policies),
    }
    linear_axis = {"xaxis.type": "linear", "xaxis.range": [0, high * 1.22], "xaxis.tickmode": "auto"}
    return {
        "data": bars + [dict(trace, visible=False) for trace in dots],
        "layout": layout,
        "linear": {"visible": [True] * 3 + [False] * 3, "layout": linear_axis},
        "log": {"visible": [False] * 3 + [True] * 3, "layout": log_axis},
    }


def energy_cost(result: SimulationResult) -> Figure:
    """Cost of energy alone, readable at any tardiness cost."""
    values = [p.energy_cost for p in result.policies]
    high = _range(values)[1]
    title = f"cost of energy, {plain(result.currency)}"
    return {
        "data": [_bars(result, "energy", values, solid=True), _labels(values, result.currency)],
        "layout": _policy_axis(result) | {"xaxis": {"title": {"text": title}, "range": [0, high * 1.3]}},
    }


def gpus_in_use(result: SimulationResult, records: Sequence[Record], axis: TimeAxis) -> Figure:
    """GPUs allocated to jobs over time, and their total."""
    figure = _curves(result, records, axis, lambda r: r.samples.busy_gpus, "GPUs in use", "GPUs", 1.0)
    ends = figure["whole"]
    capacity = {
        "type": "scatter",
        "mode": "lines",
        "name": f"all {fmt.plural(result.gpus, 'GPU')}",
        "x": ends,
        "y": [result.gpus] * 2,
        "line": {"color": "var(--muted)", "width": 1.5, "dash": "dash"},
        "hoverinfo": "skip",
    }
    figure["data"].append(capacity)
    return figure


def gpus_on(result: SimulationResult, records: Sequence[Record], axis: TimeAxis) -> Figure:
    """GPUs of nodes that are on or waking, and as a thin line those allocated under the first policy."""
    figure = _curves(result, records, axis, lambda r: r.samples.on_gpus, "GPUs on", "GPUs on", 1.0)
    (used,) = _curves(result, records[:1], axis, lambda r: r.samples.busy_gpus, "", "GPUs in use", 1.0)["data"]
    used["name"] = f"in use, {used['name']}"
    used["line"] = {"color": "var(--muted)", "width": 1, "shape": "hv"}
    figure["data"].append(used)
    return figure


def power(result: SimulationResult, records: Sequence[Record], axis: TimeAxis) -> Figure:
    """Power of all nodes over time."""
    watts = [r.samples.power_w[np.isfinite(r.samples.power_w)] for r in records]
    unit, size = fmt.power_unit(max((float(w.max()) for w in watts if len(w)), default=0.0))
    return _curves(result, records, axis, lambda r: r.samples.power_w, f"power, {unit}", unit, size)


def queue(result: SimulationResult, records: Sequence[Record], axis: TimeAxis) -> Figure:
    """Jobs waiting over time."""
    return _curves(result, records, axis, lambda r: r.samples.waiting, "jobs waiting", "jobs waiting", 1.0)


def spread(
    result: SimulationResult,
    records: Sequence[Record],
    seconds: Callable[[Record], Floats],
    what: str,
    least_s: float = 1.0,
) -> Figure:
    """Distribution of a duration over the jobs, on a logarithmic axis from *least_s*."""
    traces, high = [], least_s * 10
    distributions = [(r, distribution(seconds(r), least=least_s)) for r in records]
    high = max([high, *(float(d.value[-1]) for _, d in distributions if len(d.value))])
    low = min([high, *(float(d.value[0]) for _, d in distributions if len(d.value))])
    low = min(10 ** math.floor(math.log10(low) + 1e-9), high / 10)
    for record, spread_ in distributions:
        if not len(spread_.value):
            continue
        # A step from 0 at the first value, and a line to the right end.
        x = np.concatenate([spread_.value[:1], spread_.value, [high * 1.2]])
        y = np.concatenate([[0.0], spread_.share, [1.0]]) * 100
        trace = _line(result, record) | {"x": [float(f"{v:.5g}") for v in x], "y": rounded(y, 2)}
        trace["customdata"] = [fmt.duration(v) for v in x]
        trace["hovertemplate"] = "%{y:.1f}% of jobs: %{customdata} or less"
        traces.append(trace)
    ticks = [tick for tick in DURATION_TICKS if low * 0.99 <= tick[0] <= high * 1.2]
    layout = {
        "xaxis": {
            "type": "log",
            "title": {"text": what},
            "range": [math.log10(low) - 0.03, math.log10(high * 1.2)],
            "tickvals": [seconds for seconds, _ in ticks],
            "ticktext": [f"≤ {text}" if seconds == least_s else text for seconds, text in ticks],
        },
        "yaxis": {"title": {"text": "jobs at or below, %"}, "range": [-2, 102]},
    }
    return {"data": traces, "layout": layout}


def _curves(
    result: SimulationResult,
    records: Sequence[Record],
    axis: TimeAxis,
    values: Callable[[Record], NDArray[Any]],
    title: str,
    unit: str,
    size: float,
) -> Figure:
    traces = []
    most = min(2000, _MOST_POINTS // max(1, len(records)))
    for record in reversed(records):  # ours last, on top
        end = end_s(record)
        curve = shrink(
            Steps.of(record.samples.time_s, np.asarray(values(record), dtype=np.float64), end),
            most=most,
            until_s=axis.focus_s,
        )
        if not len(curve.time_s):
            continue
        x = axis.to_axis(np.append(curve.time_s, end))
        y = np.append(curve.value, curve.value[-1]) / size
        trace = _line(result, record) | {"x": rounded(x, 5), "y": rounded(y, 3)}
        trace["hovertemplate"] = f"{axis.unit} %{{x:.4~r}}: %{{y:,.4~r}} {unit}"
        traces.append(trace)
    highest = max((y for trace in traces for y in trace["y"] if y is not None), default=0.0)
    whole = {"dtick": 1} if size == 1.0 and highest < 6 else {}
    layout = {
        "xaxis": {"title": {"text": axis.title}},
        "yaxis": {"title": {"text": title}, "rangemode": "tozero"} | whole,
        "legend": {"traceorder": "reversed"},
    }
    first, focus, last = rounded(axis.to_axis(np.array([axis.origin_s, axis.focus_s, axis.end_s])), 5)
    return {"data": traces, "layout": layout, "focus": [first, focus], "whole": [first, last]}


def _line(result: SimulationResult, record: Record) -> dict[str, Any]:
    index = [policy.policy for policy in result.policies].index(record.policy)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plain(short(record.policy, 28)),
        "line": {
            "shape": "hv",
            "color": policy_colour(index),
            "dash": policy_dash(index),
            "width": 2.2 if index == 0 else 1.4,
        },
        "connectgaps": False,
    }


def _policy_axis(result: SimulationResult) -> dict[str, Any]:
    """Policies from top to bottom, by number, as shortened names could coincide."""
    number = len(result.policies)
    names = [plain(short(policy.policy)) for policy in result.policies]
    yaxis = {
        "tickvals": list(range(number)),
        "ticktext": names,
        "range": [number - 0.4, -0.6],
        "fixedrange": True,
        "showgrid": False,
        "zeroline": False,
    }
    return {"yaxis": yaxis, "height": 44 * number + 70, "showlegend": False}


def _bars(result: SimulationResult, name: str, values: Sequence[float | None], *, solid: bool) -> dict[str, Any]:
    colours = [policy_colour(i) for i in range(len(values))]
    marker: dict[str, Any] = {"color": colours, "line": {"width": 1, "color": colours}}
    if not solid:
        marker["pattern"] = {
            "shape": "/",
            "size": 6,
            "solidity": 0.5,
            "fgcolor": colours,
            "bgcolor": "var(--card)",
        }
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": list(range(len(values))),
        "x": [v if fmt.is_finite(v) else None for v in values],
        "width": 0.62,
        "marker": marker,
    } | _hover(result, name, values)


def _dots(result: SimulationResult, name: str, values: Sequence[float | None], symbol: str) -> dict[str, Any]:
    colours = [policy_colour(i) for i in range(len(values))]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "y": list(range(len(values))),
        "x": [v if v is not None and fmt.is_finite(v) and v > 0 else None for v in values],
        "marker": {"color": colours, "symbol": symbol, "size": 13, "line": {"width": 2, "color": colours}},
    } | _hover(result, name, values)


def _hover(result: SimulationResult, name: str, values: Sequence[float | None]) -> dict[str, Any]:
    amounts = [plain(fmt.money(v, result.currency)) for v in values]
    return {"customdata": amounts, "hovertemplate": f"{name}: %{{customdata}}<extra></extra>"}


def _labels(values: Sequence[float | None], currency: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "text",
        "y": list(range(len(values))),
        "x": [v if fmt.is_finite(v) else 0 for v in values],
        "text": [f" {plain(fmt.money(v, currency))}" for v in values],
        "textposition": "middle right",
        "hoverinfo": "skip",
        "cliponaxis": False,
    }


def _bound_lines(policies: Sequence[PolicyResult]) -> list[dict[str, Any]]:
    """Return one line across all policies if they share the lower bound, else a line for each."""
    bounds = [policy.lower_bound_cost for policy in policies]
    line = {"color": "var(--ink)", "width": 2}
    one = max(bounds) - min(bounds) <= 1e-9 * abs(max(bounds))
    spans = [(bounds[0], -0.6, len(bounds) - 0.4)] if one else [(b, i - 0.45, i + 0.45) for i, b in enumerate(bounds)]
    return [
        {"type": "line", "x0": b, "x1": b, "y0": y0, "y1": y1, "line": line}
        for b, y0, y1 in spans
        if fmt.is_finite(b) and b > 0
    ]


def _range(values: Sequence[float | None]) -> tuple[float, float]:
    """Return the smallest and largest positive value; (1, 10) without one."""
    positive = [v for v in values if v is not None and fmt.is_finite(v) and v > 0]
    return (min(positive), max(positive)) if positive else (1.0, 10.0)


def _log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2, 5, 10, ... over a short range, powers of ten (of 1,000, ...) over a longer one."""
    first, last = math.floor(math.log10(low) - 0.15), math.ceil(math.log10(high) + 0.15)
    if last - first <= 2:
        return [float(f"{digit}e{power}") for power in range(first, last + 1) for digit in (1, 2, 5)]
    return [float(f"1e{power}") for power in range(first, last + 1, 1 + (last - first) // 6)]
