"""Homogeneous, heterogeneous and BigLittle platforms: Fig. 9, by whichever cost model."""

from __future__ import annotations

from functools import partial

import numpy as np

from commonwatt.mapping.costs.models import ModelName
from commonwatt.reproduce.papers import _gsharp_plots as plots
from commonwatt.reproduce.papers._gsharp_methods import beside_published
from commonwatt.reproduce.papers._gsharp_study import TASKS, Part, Study

__all__ = ["claims_9", "figure_9", "totals_9"]

_SETTINGS = ("S3", "S4", "S5")
_BANDWIDTHS = (1.0, 16.0, 256.0)
MARGIN = 0.01
"""A makespan that is shorter by less counts as equal."""

Totals = dict[tuple[str, float], float]


def totals_9(study: Study, model: ModelName) -> Totals:
    """Return G#'s total makespan by setting and bandwidth."""
    return {(s, gbs): study.total("gsharp", (s, gbs), model) for s in _SETTINGS for gbs in _BANDWIDTHS}


def claims_9(totals: Totals) -> dict[str, tuple[bool, str]]:
    """Return whether each conclusion of 5.4.2 holds by 1% or more, and the ratio behind it."""
    claims = {
        "at 1 GB/s heterogeneous (S4) beats homogeneous (S3)": ("S4", "S3", 1.0),
        "at 1 GB/s BigLittle (S5) beats S4": ("S5", "S4", 1.0),
        "at 256 GB/s homogeneous (S3) beats heterogeneous (S4)": ("S3", "S4", 256.0),
        "at 256 GB/s S4 beats BigLittle (S5)": ("S4", "S5", 256.0),
    }
    found = {}
    for claim, (winner, other, gbs) in claims.items():
        ratio = totals[winner, gbs] / totals[other, gbs]
        found[claim] = ratio < 1 - MARGIN, f"{winner} over {other}: {ratio:.3f}"
    return found


def figure_9(study: Study, part: Part) -> None:
    """Mean cycles and bandwidth of jobs, and G#'s makespans."""
    cycles, gbs = {}, {}
    for setting in _SETTINGS:
        tables = [study.table(task, setting, i) for task in TASKS for i in study.instances]
        cycles[setting] = float(np.mean([table.latency.mean() for table in tables]))
        gbs[setting] = float(np.mean([table.bandwidth.mean() for table in tables]))
        part.row(f"{setting}: mean cycles of a job", None, cycles[setting], "cycles")
        part.row(f"{setting}: mean bandwidth a job asks for", None, gbs[setting], "GB/s")
    part.row("jobs take longer on S4 than on S3 but ask for less bandwidth", paper=True,
             ours=cycles["S4"] > cycles["S3"] and gbs["S4"] < gbs["S3"])  # fmt: skip
    part.row("jobs ask for less bandwidth on S5 than on S4", paper=True, ours=gbs["S5"] < gbs["S4"])
    totals = totals_9(study, "maestro")
    for (setting, at), total in totals.items():
        part.point(setting, "total makespan of G#", at, total, "cycles")
    for claim, (holds, said) in claims_9(totals).items():
        part.row(claim, paper=True, ours=holds, note=said)
    for case in (("S4", 1.0), ("S5", 1.0)):
        beside_published(study, part, case)
    part.draw("total makespan of G#", partial(plots.lines, points=part.points, x_name="bandwidth, GB/s"))
