"""``commonwatt map evaluate``."""

from __future__ import annotations

from pathlib import Path

import click

from commonwatt.cli.map.show import read_mapping, tell
from commonwatt.cli.output import blamed_on, json_option, plot_option, print_json, say, seed_option

__all__ = ["evaluate"]


@click.command()
@click.argument("problem", type=click.Path(path_type=Path))
@click.argument("mapping", type=click.Path(path_type=Path))
@plot_option("the schedule")
@seed_option
@json_option
def evaluate(problem: Path, mapping: Path, *, plot: Path | None, seed: int, as_json: bool) -> None:
    """Score MAPPING, a file with ``accelerator`` and ``priority`` of every job of PROBLEM.

    \b
    Example:
      commonwatt map evaluate examples/map.yaml mapping.json --json
    """
    from commonwatt.data.map_problem import load_map
    from commonwatt.mapping import evaluate as score

    file = load_map(problem)
    with blamed_on(problem):
        result = score(file, read_mapping(mapping, file), seed=seed)
    if plot is not None:
        from commonwatt.report.map_plots import save_map

        save_map(result, plot)
        say(f"written: {plot}")
    if as_json:
        print_json(result)
    else:
        tell(result, f"{mapping}")
