"""``commonwatt simulate``."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import (
    compiling,
    completed_by,
    json_option,
    naming_file,
    pace_of,
    plot_option,
    print_json,
    print_message,
    progress_bar,
    seed_option,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commonwatt.model.results import SimulationResult, SweepResult
    from commonwatt.model.scenario import Scenario
    from commonwatt.simulation.record import KeptRuns, Record
    from commonwatt.simulation.runner import Backend, Prepared

__all__ = ["command"]


def _policies(ctx: click.Context) -> list[str]:
    """Names of the policies of the scenario typed so far."""
    from commonwatt.data.files import load_yaml
    from commonwatt.model.errors import InputError
    from commonwatt.model.scenario import Scenario

    for typed in filter(None, (ctx.params.get("scenario"), *ctx.args)):
        with suppress(InputError):
            return [policy.label for policy in load_yaml(typed, Scenario).policies]
    return []


@click.command()
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write report.html, result.json and the events to DIR.",
)
@click.option("--overwrite", is_flag=True, help="Replace DIR if it exists.")
@plot_option("an overview")
@click.option(
    "--policy", "policies", multiple=True, metavar="NAME", shell_complete=completed_by(_policies),
    help="Run only this policy; repeatable.",
)  # fmt: skip
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="Run N seeds, from --seed on.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Runs at a time, in processes; if not given, one per CPU, or one by one if all are short.",
)
@click.option(
    "--backend", type=click.Choice(["loky", "ray"]), default="loky", show_default=True,
    help="Where runs go: processes on this machine, or the Ray cluster this machine is part of.",
)  # fmt: skip
@seed_option
@json_option
def command(
    scenario: Path, *, out: Path | None, overwrite: bool, plot: Path | None, policies: tuple[str, ...], seeds: int,
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
    from commonwatt.report.folder import check_folder
    from commonwatt.simulation.record import KeptRuns
    from commonwatt.simulation.runner import RunsInterruptedError, document_of
    from commonwatt.simulation.workload import prepare, with_policies

    file = with_policies(load_yaml(scenario, Scenario), policies)
    if out is not None:
        check_folder(out, overwrite=overwrite)
    with naming_file(scenario):
        prepared = [prepare(file, scenario.parent, s) for s in range(seed, seed + seeds)]
        print_message(_sentence(prepared[0]))
        for how, number in prepared[0].treatments.items():
            print_message(f"{number:,} {how}")
        if out is not None:
            _tell_kept(prepared, out, overwrite=overwrite)
        try:
            results, records = _run(prepared, jobs, backend, None if out is None else KeptRuns(out))
        except RunsInterruptedError as stopped:
            if out is not None and stopped.results:
                _write(out, file, scenario.parent, stopped.results, stopped.records, interrupted=True)
            print_message(_complete(prepared, stopped.results, out))
            raise
    if plot is not None:
        from commonwatt.report.plots import save_overview

        save_overview(results[0], records, plot)
    if out is not None:
        _write(out, file, scenario.parent, results, records)
    if as_json:
        print_json(document_of(results))
    else:
        _show(results)


def _sentence(prepared: Prepared) -> str:
    from commonwatt.report.format import plural

    cluster = prepared.cluster
    sizes = (plural(len(prepared.table), "job"), plural(len(cluster), "node"), plural(cluster.total_gpus, "GPU"))
    return f"{prepared.sentence}: {', '.join(sizes)}"


def _tell_kept(prepared: Sequence[Prepared], out: Path, *, overwrite: bool) -> None:
    """Say how many runs an earlier command that was interrupted has left in *out*; raise if it was another command."""
    from commonwatt.report.folder import check_kept
    from commonwatt.simulation.runner import keys_of

    keys = keys_of(prepared)
    if runs := check_kept(out, keys, overwrite=overwrite):
        print_message(f"{runs} of {len(keys)} runs were kept in {out}: going on from there")


def _run(
    prepared: Sequence[Prepared], jobs: int | None, backend: Backend, kept: KeptRuns | None
) -> tuple[list[SimulationResult], list[Record]]:
    from commonwatt.simulation.runner import run_seeds, warm_up_all, workers_for

    policies = prepared[0].scenario.policies
    with compiling(f"solvers ({', '.join(dict.fromkeys(policy.solver for policy in policies))})"):
        warm_up_all(policies, prepared[0].scenario.knowledge)
    runs = len(policies) * len(prepared)
    workers = workers_for(prepared, jobs, backend, runs=runs)
    submit_s = sorted(prepared[0].table.submit_s.tolist())
    with progress_bar("runs", runs, submit_s[-1], pace_of(submit_s)) as listener:
        return run_seeds(prepared, jobs=workers, backend=backend, listener=listener, kept=kept)


def _write(
    out: Path, scenario: Scenario, folder: Path, results: list[SimulationResult], records: list[Record], *,
    interrupted: bool = False,
) -> None:  # fmt: skip
    from commonwatt.report.folder import write_run

    write_run(out, scenario, folder, results, records, interrupted=interrupted)
    print_message(f"written: {out / 'report.html'}")


def _complete(prepared: Sequence[Prepared], results: list[SimulationResult], out: Path | None) -> str:
    """Say what an interruption has left of the runs."""
    from commonwatt.report.folder import check_kept
    from commonwatt.simulation.runner import keys_of

    policies = len(prepared[0].scenario.policies)
    again = f"run the same command to resume from {out}"
    if not results:
        keys = keys_of(prepared)
        runs = 0 if out is None else check_kept(out, keys, overwrite=True)
        return (
            f"stopped after {runs} of {len(keys)} runs; {again}"
            if runs
            else "stopped before a run ended: nothing is kept"
        )
    where = "nothing is written, as there is no --out" if out is None else again
    if len(prepared) > 1:
        return f"stopped after {len(results)} of {len(prepared)} seeds; {where}"
    ended = [policy.policy for policy in results[0].policies]
    return f"stopped after {len(ended)} of {policies} policies ({', '.join(ended)}); {where}"


def _show(results: list[SimulationResult]) -> None:
    from rich.console import Console

    from commonwatt.report.fleet import fleet_table, has_fleet
    from commonwatt.report.text import service_table, summary, table
    from commonwatt.simulation.runner import sweep_result

    if len(results) == 1:
        Console().print(table(results[0]))
        Console().print(service_table(results[0]))
        if has_fleet(results[0]):
            Console().print(fleet_table(results[0]))
        click.echo(summary(results[0]))
    else:
        _tell_sweep(sweep_result(results))


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
