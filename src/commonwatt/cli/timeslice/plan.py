"""``commonwatt timeslice plan``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.compiling import compiling
from commonwatt.cli.output import PluginChoice, blamed_on, json_option, plot_option, print_json, say, seed_option

if TYPE_CHECKING:
    from commonwatt.model.timeslice_results import TimeslicePlanResult

__all__ = ["plan"]

POLICIES = ("etf", "tf", "ef", "etf-energy")


@click.command()
@click.argument("problem", type=click.Path(path_type=Path))
@click.option(
    "--policy", type=PluginChoice(POLICIES, "schedulers"), default="etf", show_default=True,
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
    from commonwatt.model.timeslice_file import PlanFile
    from commonwatt.plugins import chosen, valid
    from commonwatt.timeslicing import answer

    file = load_yaml(problem, PlanFile)
    by = chosen("schedulers", policy, POLICIES, file.phi if phi is None else phi)
    with blamed_on(problem), compiling(f"policy {policy}"), valid("schedulers", policy, POLICIES):
        result = answer(file, policy=by, phi=phi, seed=seed)
    if plot is not None:
        from commonwatt.report.timeslice_plots import save_plan

        save_plan(result, plot)
        say(f"written: {plot}")
    if as_json:
        print_json(result)
    else:
        _tell(result)


def _tell(result: TimeslicePlanResult) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{result.policy}, phi {result.phi:g}: {result.quantum} units of {result.unit_s:g} s")
    for heading in ("tenant", "weight", "power, W", "time, units", "energy, J", "why"):
        table.add_column(heading, overflow="fold", justify="left" if heading in {"tenant", "why"} else "right")
    for t in result.tenants:
        table.add_row(t.name, f"{t.weight:g}", f"{t.power_w:g}", str(t.time), f"{t.energy_j:.6g}", t.sentence)
    Console().print(table)
    say(
        f"fairness of time {_shown(result.time_fairness)}, of energy {_shown(result.energy_fairness)}, "
        f"of both {_shown(result.system_fairness)}; energy can be perfectly fair up to phi {result.phi_fair:.3f}"
    )
    if result.unused:
        say(f"{result.unused} units are not used: all demand is met")


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
