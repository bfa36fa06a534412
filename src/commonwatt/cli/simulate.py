"""``commonwatt simulate``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import blamed_on, json_option, plot_option, print_json, progress_bar, say, seed_option

if TYPE_CHECKING:
    from commonwatt.model.results import SweepResult
    from commonwatt.model.scenario import Scenario
    from commonwatt.simulation.runner import Backend

__all__ = ["command"]


@click.command()
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write report.html, result.json and the events to DIR.",
)
@click.option("--overwrite", is_flag=True, help="Replace DIR if it is there.")
@plot_option("an overview")
@click.option("--policy", "only", multiple=True, metavar="NAME", help="Run only this policy; repeatable.")
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="Run N seeds, from --seed on.")
@click.option("--jobs", type=click.IntRange(min=1), help="Runs at a time, in processes; one per CPU if not given.")
@click.option(
    "--backend", type=click.Choice(["loky", "ray"]), default="loky", show_default=True,
    help="Where runs go: processes on this machine, or the Ray cluster this machine is part of.",
)  # fmt: skip
@seed_option
@json_option
def command(
    scenario: Path, *, out: Path | None, overwrite: bool, plot: Path | None, only: tuple[str, ...], seeds: int,
    jobs: int | None, backend: Backend, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Replay the workload of SCENARIO (YAML or JSON) on its cluster, once under each of its policies.

    \b
    Examples:
      commonwatt simulate examples/week.yaml --out out/week
      commonwatt simulate examples/andreas.yaml --seeds 10 --json
    """
    from commonwatt.data.files import load_yaml
    from commonwatt.model.scenario import Scenario
    from commonwatt.report.folder import check_folder, write_run
    from commonwatt.simulation.runner import run_seeds, sweep_result
    from commonwatt.simulation.workload import prepare

    file = _restricted(load_yaml(scenario, Scenario), only)
    if out is not None:
        check_folder(out, overwrite=overwrite)
    with blamed_on(scenario):
        prepared = [prepare(file, scenario.parent, s) for s in range(seed, seed + seeds)]
        first = prepared[0]
        say(f"{first.sentence}: {len(first.table)} jobs, {len(first.cluster)} nodes, {first.cluster.total_gpus} GPUs")
        runs = len(file.policies) * seeds
        workers = min(runs, jobs or os.cpu_count() or 1)
        with progress_bar("runs", runs, float(first.table.submit_s.max())) as listener:
            results, records = run_seeds(prepared, jobs=workers, backend=backend, listener=listener)
    document = results[0] if seeds == 1 else sweep_result(results)
    if plot is not None:
        from commonwatt.report.plots import save_overview

        save_overview(results[0], records, plot)
    if out is not None:
        write_run(out, _seen_from(out, file, scenario.parent), document, results[0], records)
        say(f"written: {out / 'report.html'}")
    if as_json:
        print_json(document)
    elif seeds == 1:
        from rich.console import Console

        from commonwatt.report.terminal import summary, table

        Console().print(table(results[0]))
        click.echo(summary(results[0]))
    else:
        _tell_sweep(sweep_result(results))


def _seen_from(out: Path, scenario: Scenario, folder: Path) -> Scenario:
    """Return *scenario* with the path of its log relative to *out* instead of *folder*, so that it can be run again."""
    path = getattr(scenario.workload, "path", None)
    if scenario.workload is None or path is None or Path(path).is_absolute():
        return scenario
    moved = os.path.relpath((folder / path).resolve(), out.resolve())
    return scenario.model_copy(update={"workload": scenario.workload.model_copy(update={"path": moved})})


def _restricted(scenario: Scenario, only: tuple[str, ...]) -> Scenario:
    """Keep the policies named *only*; all, if none is named."""
    from commonwatt.model.errors import InputError

    labels = [policy.label for policy in scenario.policies]
    for name in only:
        if name not in labels:
            raise InputError(f"a policy of the scenario ({', '.join(labels)})", field="--policy", value=name)
    kept = tuple(policy for policy in scenario.policies if not only or policy.label in only)
    return scenario.model_copy(update={"policies": kept})


def _tell_sweep(document: SweepResult) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{document.scenario}: mean of {len(document.seeds)} seeds (± standard deviation)")
    table.add_column("policy")
    headings = {
        "total_cost": f"total {document.currency}", "energy_cost": "energy", "tardiness_cost": "tardiness",
        "lower_bound_cost": "bound", "late_jobs": "late", "mean_jct_s": "mean JCT s",
    }  # fmt: skip
    for heading in headings.values():
        table.add_column(heading, justify="right")
    for policy in document.policies:
        spreads = [getattr(policy, name) for name in headings]
        cells = ["unknown" if s.mean is None else f"{s.mean:.5g} ± {s.sd or 0:.2g}" for s in spreads]
        table.add_row(policy.policy, *cells)
    Console().print(table)
