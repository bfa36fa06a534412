"""``commonwatt timeslice plan`` and ``commonwatt timeslice run``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import (
    PluginChoice,
    compiling,
    json_option,
    naming_file,
    plot_option,
    print_json,
    print_message,
    progress_bar,
    seed_option,
)
from commonwatt.model.units import plural

if TYPE_CHECKING:
    from commonwatt.model.timeslice_results import TimeslicePlanResult, TimesliceRunResult

__all__ = ["plan", "run"]

PLAN_POLICIES = ("etf", "tf", "ef", "etf-energy")


@click.command()
@click.argument("problem", type=click.Path(path_type=Path))
@click.option(
    "--policy", type=PluginChoice(PLAN_POLICIES, "schedulers"), default="etf", show_default=True,
    help="tf: time-fair; ef: energy-fair; etf-energy: guarantees phi of the fair energy, then evens out time.",
)  # fmt: skip
@click.option("--phi", type=click.FloatRange(0, 1), help="Time-fair factor.  [default: the problem's]")
@plot_option("the slices")
@seed_option
@json_option
def plan(problem: Path, *, policy: str, phi: float | None, plot: Path | None, seed: int, as_json: bool) -> None:
    """Divide one quantum among the tenants of PROBLEM (YAML or JSON).

    \b
    Example:
      commonwatt timeslice plan examples/quantum.yaml --phi 0.7 --json
    """
    from commonwatt.data.files import load_yaml
    from commonwatt.model.plugins import chosen, valid
    from commonwatt.model.timeslice_file import PlanFile
    from commonwatt.timeslicing import solve_file

    file = load_yaml(problem, PlanFile)
    by = chosen("schedulers", policy, PLAN_POLICIES, file.phi if phi is None else phi)
    with naming_file(problem), compiling(f"policy {policy}"), valid("schedulers", policy, PLAN_POLICIES):
        result = solve_file(file, policy=by, phi=phi, seed=seed)
    if plot is not None:
        from commonwatt.report.decision_plots import save_plan

        save_plan(result, plot)
        print_message(f"written: {plot}")
    if as_json:
        print_json(result)
    else:
        _show_plan(result)


def _show_plan(result: TimeslicePlanResult) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{result.policy}, phi {result.phi:g}: {plural(result.quantum, 'unit')} of {result.unit_s:g} s")
    for heading in ("tenant", "weight", "power, W", "time, units", "energy, J", "why"):
        table.add_column(heading, overflow="fold", justify="left" if heading in {"tenant", "why"} else "right")
    for t in result.tenants:
        table.add_row(t.name, f"{t.weight:g}", f"{t.power_w:g}", str(t.time), f"{t.energy_j:.6g}", t.sentence)
    Console().print(table)
    print_message(
        f"fairness of time {_shown(result.time_fairness)}, of energy {_shown(result.energy_fairness)}, "
        f"of both {_shown(result.system_fairness)}; energy can be perfectly fair up to phi {result.phi_fair:.3f}"
    )
    if result.unused:
        print_message(f"{plural(result.unused, 'unit')} not used: all demand is met")


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


POLICIES = (*PLAN_POLICIES, "fifo")


@click.command(short_help="Run a load on a device and report the shares.")
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--policy", type=click.Choice(POLICIES), help="Sharing policy.  [default: the configuration's]")
@click.option("--phi", type=click.FloatRange(0, 1), help="Time-fair factor.  [default: the configuration's]")
@click.option(
    "--duration", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
    help="Time to run.  [default: the configuration's]",
)  # fmt: skip
@plot_option("the shares")
@seed_option
@json_option
def run(
    config: Path,
    *,
    policy: str | None,
    phi: float | None,
    duration: float | None,
    plot: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Run the load of CONFIG's tenants on its device, and report the time and energy of each.

    A simulated device runs in virtual time; a CPU or GPU runs the models themselves.

    \b
    Examples:
      commonwatt timeslice run examples/edge.yaml --plot shares.png
      commonwatt timeslice run examples/edge.yaml --policy tf --duration 60 --json
    """
    from commonwatt.data.files import load_yaml
    from commonwatt.model.timeslice_file import TimesliceConfig

    changed = {"policy": policy, "phi": phi, "duration_s": duration}
    file = load_yaml(config, TimesliceConfig).model_copy(update={k: v for k, v in changed.items() if v is not None})
    from commonwatt.devices.run import measure

    with naming_file(config), compiling(f"policy {file.policy}"), progress_bar("run", 1, file.duration_s) as bar:
        result = measure(file, config.parent, seed, lambda time_s: bar.at("", time_s))
    if plot is not None:
        from commonwatt.report.decision_plots import save_run

        save_run(result, plot)
        print_message(f"written: {plot}")
    if as_json:
        print_json(result)
    else:
        _tell(result)


def _tell(result: TimesliceRunResult) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{result.policy}, phi {result.phi:g}, {result.duration_s:.4g} s on {result.device}")
    for heading in (
        "tenant", "time", "plan", "energy", "plan", "J", "1/s", "mean, ms", "p99, ms",
    ):  # fmt: skip
        table.add_column(heading, justify="left" if heading == "tenant" else "right", overflow="fold")
    for t in result.tenants:
        table.add_row(
            t.name, _percent(t.time_share), _percent(t.planned_time_share), _percent(t.energy_share),
            _percent(t.planned_energy_share), f"{t.energy_j:.4g}", f"{t.throughput_per_s:.4g}",
            _milliseconds(t.latency_mean_s), _milliseconds(t.latency_p99_s),
        )  # fmt: skip
    table.add_row("(idle)", "", "", "", "", f"{result.idle.energy_j:.4g}", "", "", "")
    Console().print(table)
    sources = sorted({t.power_source for t in result.tenants})
    print_message(f"energy is {', '.join(sources)}; shares are kept by: {result.enforcement}")
    if result.system_fairness is not None:
        print_message(f"fairness of time {result.time_fairness:.3f}, of energy {result.energy_fairness:.3f}")
    if result.scheduling_share is not None:
        print_message(
            f"{plural(result.steps, 'step')}; scheduling took {100 * result.scheduling_share:.2g}% of the busy time"
        )
    refused = sum(t.refused for t in result.tenants)
    if refused:
        print_message(f"refused {plural(refused, 'request')}: queues were full")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}%"


def _milliseconds(time_s: float | None) -> str:
    return "" if time_s is None else f"{1e3 * time_s:.3g}"
