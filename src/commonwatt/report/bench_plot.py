"""The scores of ``commonwatt bench`` as a static figure."""

from __future__ import annotations

from pathlib import Path

from commonwatt.model.suite_results import BenchResult
from commonwatt.report.palette import policy_colour
from commonwatt.report.saving import saved

__all__ = ["save_bench"]

_KINDS = ("ours", "baseline", "peer", "plugin")


def save_bench(result: BenchResult, path: Path) -> None:
    """Draw the score of every solver, suite by suite, and save it to *path*. Raises as ``saved``."""
    suites = [(suite, [s for s in suite.solvers if s.score is not None]) for suite in result.suites]
    rows = [max(1, len(solvers)) for _, solvers in suites]
    with saved(path, (8.0, 0.6 + 0.24 * sum(rows) + 0.7 * len(rows))) as figure:
        grid = figure.subplots(len(rows), 1, squeeze=False, height_ratios=[n + 1.5 for n in rows])[:, 0]
        for axes, (suite, solvers) in zip(grid, suites, strict=True):
            scores = [solver.score or 0.0 for solver in solvers]
            colours = [policy_colour(_KINDS.index(solver.kind)) for solver in solvers]
            axes.barh(range(len(solvers)), scores, color=colours, height=0.7)
            axes.axvline(1.0, color="black", linewidth=0.8)
            if scores and max(scores) > 20 * min(scores):
                axes.set_xscale("log")
                axes.xaxis.set_major_formatter("{x:g}")
            axes.set_yticks(range(len(solvers)), [f"{s.name} ({s.kind})" for s in solvers], fontsize=7)
            axes.invert_yaxis()
            axes.set_title(f"{suite.name}: over {suite.against}; less is better")
