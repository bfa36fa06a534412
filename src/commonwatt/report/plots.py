"""Static figures for ``--plot``: PNG, SVG, PDF. The same input gives the same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from commonwatt.model.errors import InputError
from commonwatt.model.results import SimulationResult
from commonwatt.report import drawing
from commonwatt.report.gantt import MOST_NODES, MOST_SEGMENTS
from commonwatt.report.heatmap import heat_map
from commonwatt.report.timeline import end_s, timeline
from commonwatt.simulation.record import Record, Segments

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from commonwatt.placement.problem import Problem, Schedule

__all__ = ["SUFFIXES", "check_plot", "check_suffix", "save_gantt", "save_overview", "save_schedule"]

# What to leave out of each format, so that a file does not depend on when it was made.
_METADATA: dict[str, dict[str, None]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
SUFFIXES = tuple(_METADATA)
_SETTINGS: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a94a0",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e8ec",
    "legend.frameon": False,
    "svg.hashsalt": "commonwatt",
    "text.parse_math": False,  # a $ in a name is a $
}


def save_overview(result: SimulationResult, records: Sequence[Record], path: Path) -> None:
    """Draw cost against the lower bound, GPUs in use, waiting and power of all policies, and save it to *path*.

    Raises ``InputError`` if the suffix is none of ``SUFFIXES``.
    """
    with _saved(path, (11.0, 7.0)) as figure:
        axes = figure.subplots(2, 2)
        drawing.cost(axes[0, 0], result)
        axis = timeline(records)
        drawing.gpus_in_use(axes[0, 1], result, records, axis)
        drawing.waiting(axes[1, 0], result, records)
        drawing.power(axes[1, 1], result, records, axis)
        lines, names = axes[1, 0].get_legend_handles_labels()
        if lines:
            figure.legend(lines, names, loc="outside lower center", ncols=min(6, len(lines)))
        figure.suptitle(result.scenario, x=0.01, ha="left", fontsize=13, fontweight="bold")


def save_gantt(record: Record, path: Path) -> None:
    """Draw who held which GPUs when, and save it to *path*; at large scale the busy share of the nodes.

    Raises ``InputError`` if the suffix is none of ``SUFFIXES``.
    """
    axis, cluster, segments = timeline([record]), record.cluster, record.segments
    if len(cluster) > MOST_NODES or len(segments.job) > MOST_SEGMENTS:
        with _saved(path, (11.0, 6.5)) as figure:
            edges = np.linspace(axis.origin_s, max(axis.focus_s, axis.origin_s + 1.0), 401)
            drawing.heat(figure.subplots(), heat_map(cluster, segments, edges), axis)
            figure.suptitle(_gantt_title(record), x=0.01, ha="left", fontweight="bold")
        return
    with _saved(path, (11.0, drawing.gantt_height(cluster.gpus))) as figure:
        axes = figure.subplots()
        drawing.gantt(axes, cluster.names, cluster.gpus, segments, record.jobs.name, record.jobs.tenant, axis.origin_s)
        ends = axis.focus_s if axis.focused else end_s(record)
        drawing.time_axis(axes, ends - axis.origin_s, "since the first submission")
        figure.suptitle(_gantt_title(record), x=0.01, ha="left", fontweight="bold")


def save_schedule(problem: Problem, schedule: Schedule, path: Path) -> None:
    """Draw one placement decision from now to the expected end of each job, and save it to *path*.

    Raises ``InputError`` if the suffix is none of ``SUFFIXES``.
    """
    placed = [int(j) for j in np.flatnonzero(schedule.choice >= 0)]
    rows = [
        (j, int(node), int(problem.per_node[schedule.choice[j]]), 0.0, float(problem.time_s[schedule.choice[j]]))
        for j in placed
        for node in schedule.nodes_of(problem, j)
    ]
    columns = np.array(rows, dtype=float).reshape(-1, 5)
    job, node, each = columns[:, :3].astype(np.int64).T
    segments = Segments(job, node, each, columns[:, 3], columns[:, 4])
    gpus = np.asarray(problem.class_gpus, dtype=np.int64)[problem.node_class]
    tenants = tuple(problem.tenant_names[t] for t in problem.tenant.tolist())
    with _saved(path, (11.0, drawing.gantt_height(gpus))) as figure:
        axes = figure.subplots()
        drawing.gantt(axes, tuple(problem.node_names), gpus, segments, tuple(problem.job_names), tenants, 0.0)
        drawing.time_axis(axes, float(segments.to_s.max()) if len(rows) else 1.0, "from now")
        waiting = len(problem) - len(placed)
        title = f"{len(placed)} of {len(problem)} jobs placed, {waiting} wait"
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")


def check_suffix(path: Path) -> str:
    """Return the suffix of *path* in lower case; raises ``InputError`` if it is none of ``SUFFIXES``.

    For callers to ask before they spend time on what is to be drawn.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _METADATA:
        raise InputError(f"a file ending in {', '.join(SUFFIXES)}", field="--plot", value=str(path))
    return suffix


def check_plot(path: Path) -> None:
    """Raise ``InputError`` if no figure can be saved to *path*: a wrong suffix, a folder, or no folder to be in."""
    check_suffix(path)
    if Path(path).is_dir():
        raise InputError("a file, not a folder", field="--plot", value=path)
    if not Path(path).absolute().parent.is_dir():
        raise InputError("a file in a folder that exists", field="--plot", value=path)


@contextmanager
def _saved(path: Path, inches: tuple[float, float]) -> Iterator[Figure]:
    """Give a figure to draw on, then save it. Nothing of matplotlib's own state is left changed."""
    suffix = check_suffix(path)
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=inches, layout="constrained")
        yield figure
        try:
            figure.savefig(path, format=suffix[1:], dpi=150, metadata=_METADATA[suffix])
        except OSError as error:
            raise InputError(f"a file that can be written ({error.strerror})", field="--plot", value=path) from None


def _gantt_title(record: Record) -> str:
    return f"{record.policy}: {len(record.jobs.name):,} jobs on {len(record.cluster):,} nodes"
