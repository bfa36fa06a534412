"""What both ``map`` commands show of a mapping."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commonwatt.cli.output import blamed_on, say

if TYPE_CHECKING:
    from pathlib import Path

    from commonwatt.mapping import Mapping
    from commonwatt.model.map_file import MapFile
    from commonwatt.model.map_results import MapEvaluateResult

__all__ = ["read_mapping", "tell"]

_UNITS = {
    "energy": " nJ", "edp": " nJ cycles", "satisfaction": " of the jobs", "tail": " cycles", "completion": " cycles",
}  # fmt: skip


def read_mapping(path: Path, file: MapFile) -> Mapping:
    """Read a mapping file; raises ``InputError`` unless it places every job of the problem where it can run."""
    from commonwatt.data.files import load_yaml
    from commonwatt.mapping import Mapping, MappingProblem
    from commonwatt.model.map_file import MappingFile

    genes, problem = load_yaml(path, MappingFile), MappingProblem.of(file)
    with blamed_on(path):
        return Mapping.of(genes, problem)


def tell(result: MapEvaluateResult, title: str) -> None:
    """Print the sub-accelerators with their jobs, then what all of it comes to."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for heading in ("sub-accelerator", "jobs", "ends, cycles", "in this order"):
        table.add_column(heading, overflow="fold", justify="left" if heading == "in this order" else "right")
    for a, end in enumerate(result.accelerator_end_cycles):
        order = [job.job for job in sorted(result.jobs, key=lambda job: job.start_cycles) if job.accelerator == a]
        table.add_row(str(a), str(len(order)), f"{end:.6g}", ", ".join(map(str, order)))
    Console().print(table)
    worth = "the best possible" if result.gap < 1e-9 else f"at most {100 * result.gap:.3g}% above the best possible"
    if result.objective != "latency":
        say(f"{result.objective}: {result.objective_value:.6g}{_UNITS[result.objective]}")
    if result.target_met is not None:
        say("the target of the makespan is " + ("met" if result.target_met else "not met"))
    say(
        f"makespan {result.makespan_cycles:.6g} cycles, {worth} (lower bound "
        f"{result.lower_bound_cycles:.6g}); bandwidth is short for {result.bandwidth_limited_cycles:.6g} cycles"
    )
