"""``commonwatt partition mig``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import (
    compiling,
    json_option,
    naming_file,
    plot_option,
    print_json,
    print_message,
    seed_option,
)
from commonwatt.model.names import MIG_MODES, WELFARES
from commonwatt.model.units import plural, welfare_name, welfare_shown

if TYPE_CHECKING:
    from commonwatt.model.partition_file import MigFile
    from commonwatt.model.partition_results import MigResult

__all__ = ["mig"]


@click.command(short_help="Choose MIG layouts and assign their instances.")
@click.argument("problem", type=click.Path(path_type=Path))
@click.option(
    "--mode", type=click.Choice(MIG_MODES), default="market", show_default=True,
    help="market: instances have prices, and tenants share them in time; integer: whole instances only.",
)  # fmt: skip
@click.option("--welfare", type=click.Choice(WELFARES), default="nash", show_default=True, help="Welfare to maximize.")
@click.option("--present", type=click.Path(path_type=Path), metavar="FILE",
              help="Present layouts: a result of this command, or a file of mig-parted.")  # fmt: skip
@click.option("--present-config", metavar="NAME", help="Configuration in that file of mig-parted to use.")
@click.option("--write", type=click.Path(path_type=Path), metavar="FILE", help="Write the layouts for mig-parted.")
@plot_option("the layouts")
@click.option(
    "--time-limit", "time_limit_s", type=click.FloatRange(min=0, min_open=True), default=60, show_default=True,
    metavar="S", help="Stop after this time with the best layouts so far.",
)  # fmt: skip
@seed_option
@json_option
def mig(
    problem: Path,
    *,
    mode: str,
    welfare: str,
    present: Path | None,
    present_config: str | None,
    write: Path | None,
    plot: Path | None,
    time_limit_s: float,
    seed: int,
    as_json: bool,
) -> None:
    """Choose MIG layouts for the GPUs of PROBLEM, and assign the instances to tenants.

    \b
    Example:
      commonwatt partition mig examples/mig.yaml --json
    """
    from commonwatt.data.files import load_yaml
    from commonwatt.data.mig_parted import parted_of, write_mig_parted
    from commonwatt.model.errors import InputError
    from commonwatt.model.partition_file import MigFile
    from commonwatt.partitioning.mig import solve_file

    file = load_yaml(problem, MigFile)
    if present is not None:
        file = _with_present(file, present, present_config)
    elif present_config is not None:
        raise InputError("--present to name the file it stands in", field="--present-config", value=present_config)
    with naming_file(problem), compiling("the market solver") as watch:
        result = solve_file(
            file, clock=lambda: watch.elapsed_s, mode=mode, welfare=welfare, time_limit_s=time_limit_s, seed=seed
        )
    if write is not None:
        write_mig_parted(parted_of(result.chosen), write)
        print_message(f"written: {write} (GPUs are numbered as in the problem)")
    if plot is not None:
        from commonwatt.report.decision_plots import save_layouts

        save_layouts(result.chosen, plot)
        print_message(f"written: {plot}")
    if as_json:
        print_json(result)
    else:
        _tell(result)


def _with_present(file: MigFile, path: Path, name: str | None) -> MigFile:
    """Give each GPU the instances it has: by its name in a result, by its place in the problem in a mig-parted file."""
    from commonwatt.data.mig_parted import read_present
    from commonwatt.model.errors import InputError
    from commonwatt.model.partition_results import MigResult
    from commonwatt.partitioning.mig import with_instances, with_result

    document = read_present(path)
    if isinstance(document, MigResult):
        if name is not None:
            raise InputError("a file of mig-parted beside it", file=path, field="--present-config", value=name)
        with naming_file(path):
            return with_result(file, document)
    if name is None:
        if len(document.configs) > 1:
            here = ", ".join(document.configs)
            raise InputError(f"--present-config to name one of {here}", file=path, field="--present-config")
        name = next(iter(document.configs))
    counts = [document.instances(name, place, path) for place in range(len(file.gpus))]
    with naming_file(path):
        return with_instances(file, counts, f"mig-configs.{name}")


def _tell(result: MigResult) -> None:
    from rich.console import Console
    from rich.table import Table

    chosen = result.chosen
    console = Console()
    kind = result.welfare_kind
    gpus = Table(title=f"{chosen.mode}, {welfare_name(kind)} welfare {welfare_shown(kind, chosen.welfare)}")
    for heading in ("GPU", "instances", "why"):
        gpus.add_column(heading, overflow="fold")
    for gpu in chosen.gpus:
        parts = [
            f"{i.profile}: {', '.join(f'{u.tenant} {u.share:.0%}' for u in i.users) or 'free'}" for i in gpu.instances
        ]
        gpus.add_row(gpu.name, "; ".join(parts), gpu.sentence)
    console.print(gpus)
    tenants = Table()
    for heading in ("tenant", "utility", "why"):
        tenants.add_column(heading, overflow="fold", justify="right" if heading == "utility" else "left")
    for t in chosen.tenants:
        tenants.add_row(t.name, f"{t.utility:.4g}", t.sentence)
    console.print(tenants)
    if chosen.prices:
        print_message("prices: " + ", ".join(f"{p.instance} {p.price:.3g}" for p in chosen.prices))
    proven = (
        "the best of all layouts" if chosen.optimal else f"not proven best: at most {chosen.gap:.3g} more is possible"
    )
    print_message(f"{proven}; solved in {chosen.solve_s:.3f} s")
    if chosen.drained:
        print_message(f"{plural(chosen.drained, 'instance')} must drain")
    if result.market_advantage is not None:
        print_message(
            f"time shares give {result.market_advantage:.2%} more than whole instances (weighted geometric mean)"
        )
    elif result.other_refusal:
        print_message(f"the other mode has no answer: {result.other_refusal}")
