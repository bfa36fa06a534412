"""The Gantt chart of one policy: every segment of every job, or a heat map for large clusters."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from commonwatt.report.figures import plain, rounded, short
from commonwatt.report.pictures import OTHERS, TENANTS, tenant_colours
from commonwatt.report.reduction import heat_map
from commonwatt.report.timeline import TimeAxis, end_s, node_rows, to_bars
from commonwatt.simulation.record import Record

__all__ = ["MOST_NODES", "MOST_SEGMENTS", "gantt", "tenants_by_use"]

MOST_NODES = 60
MOST_SEGMENTS = 5000


def tenants_by_use(record: Record) -> list[str]:
    """Return the tenants, most GPU time first."""
    use: dict[str, float] = {}
    for tenant, gpu_s in zip(record.jobs.tenant, np.nan_to_num(record.jobs.gpu_s).tolist(), strict=True):
        use[tenant] = use.get(tenant, 0.0) + gpu_s
    return sorted(use, key=lambda tenant: (-use[tenant], tenant))


def gantt(record: Record, axis: TimeAxis, tenants: list[str], most_segments: int = MOST_SEGMENTS) -> dict[str, Any]:
    """Return the data that ``report.js`` draws: ``kind`` is ``bars`` or ``heat``.

    The order of *tenants* decides their colours, which are the same for all policies.
    """
    if len(record.cluster) > MOST_NODES or len(record.segments.job) > most_segments:
        return _heat(record, axis)
    return _bars(record, axis, tenants)


def _bars(record: Record, axis: TimeAxis, tenants: list[str]) -> dict[str, Any]:
    cluster, segments, jobs = record.cluster, record.segments, record.jobs
    bars, (tops, bottoms) = to_bars(cluster.gpus, segments), node_rows(cluster.gpus)
    shown, inverse = np.unique(segments.job, return_inverse=True)
    colours = tenant_colours(tenants)
    ranks = {tenant: i for i, tenant in enumerate(tenants)}
    alone = len(tenants) == 1  # then neighbouring jobs differ in colour
    legend = (
        [["", c] for c in TENANTS] if alone else [[plain(short(t, 24)), c] for t, c in colours.items() if c != OTHERS]
    )
    seg = bars.segment
    start = axis.to_axis(segments.from_s)
    return {
        "kind": "bars",
        "title": axis.title,
        "unit": axis.unit,
        **_ranges(record, axis),
        "height": int(np.clip(14 * bottoms[-1], 180, 1100)) + 90,
        "nodes": [plain(name) for name in cluster.names],
        "ticks": [plain(short(name, 14)) for name in cluster.names],
        "tops": tops.tolist(),
        "bottoms": bottoms.tolist(),
        "legend": legend,
        "named": not alone,
        "others": OTHERS,
        "tenants": [plain(jobs.tenant[j]) for j in shown.tolist()],
        "jobs": [plain(jobs.name[j]) for j in shown.tolist()],
        "rank": [j % len(TENANTS) if alone else ranks[jobs.tenant[j]] for j in shown.tolist()],
        "late": [int(late > 0) for late in jobs.late_s[shown].tolist()],
        "job": inverse[seg].tolist(),
        "node": segments.node[seg].tolist(),
        "gpus": segments.gpus[seg].tolist(),
        "from": rounded(start[seg], 5),
        "long": rounded((segments.to_s - segments.from_s)[seg] / axis.unit_s, 5),
        "lane": bars.lane.tolist(),
        "lanes": bars.lanes.tolist(),
    }


def _heat(record: Record, axis: TimeAxis) -> dict[str, Any]:
    busy = heat_map(record.cluster, record.segments, axis.edges_s(end_s(record)))
    rows, columns = busy.share.shape
    percent = np.round(busy.share * 100).astype(np.uint8)
    return {
        "kind": "heat",
        "title": axis.title,
        "unit": axis.unit,
        "height": int(np.clip(4 * rows, 260, 760)) + 90,
        "rows": [plain(first if first == last else f"{first} to {last}") for first, last in busy.nodes],
        "ticks": [plain(short(first, 14)) for first, _ in busy.nodes],
        "shape": [rows, columns],
        **_ranges(record, axis),
        "edges": rounded(axis.to_axis(busy.edges_s), 5),
        "percent": base64.b64encode(percent.tobytes()).decode("ascii"),
    }


def _ranges(record: Record, axis: TimeAxis) -> dict[str, Any]:
    end = end_s(record)
    shown = axis.to_axis(np.array([axis.origin_s, min(end, axis.focus_s), end]))
    first, focus, last = rounded(shown, 5)
    return {"focus": [first, focus], "whole": [first, last]}
