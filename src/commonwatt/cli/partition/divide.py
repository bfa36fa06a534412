"""``commonwatt partition PROBLEM`` and ``commonwatt partition characterize``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commonwatt.cli.output import (
    PluginChoice,
    compiling,
    json_option,
    naming_file,
    plot_option,
    print_json,
    print_message,
    seed_option,
)
from commonwatt.model.names import MECHANISMS, WELFARES
from commonwatt.model.units import welfare_name, welfare_shown

if TYPE_CHECKING:
    from commonwatt.model.partition_file import PartitionFile
    from commonwatt.model.partition_results import (
        CharacterizeResult,
        ConfigurationResult,
        KernelResult,
        PartitionResult,
        PartitionSweepResult,
    )

__all__ = ["characterize", "divide"]

_OLD_NAMES = {"weighted-nash": "nash"}
_MOST_POINTS = 1000


@click.command(hidden=True)
@click.argument("problem", type=click.Path(path_type=Path))
@click.option("--mechanism", type=PluginChoice(MECHANISMS, "partitioners"), default="fisher", show_default=True,
              help="Mechanism that divides a configuration.")  # fmt: skip
@click.option("--welfare", type=click.Choice((*WELFARES, *_OLD_NAMES)), default="nash", show_default=True,
              help="Welfare to maximize; weighted-nash is an older name of nash.")  # fmt: skip
@click.option("--tolerance", type=click.FloatRange(0, min_open=True), default=1e-9, show_default=True,
              help="Largest residual accepted as an equilibrium.")  # fmt: skip
@click.option("--iterations", type=click.IntRange(1), help="Most rounds of bidding.  [default: 30000]")
@click.option("--sweep-weight", metavar="TENANT=FROM:TO:N",
              help="Show instead how the choice and speedups change with a tenant's weight.")  # fmt: skip
@click.option("--explain", is_flag=True, help="Explain every tenant's share.")
@plot_option("shares, prices and welfare")
@seed_option
@json_option
def divide(
    problem: Path, *, mechanism: str, welfare: str, tolerance: float, iterations: int | None, sweep_weight: str | None,
    explain: bool, plot: Path | None, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Choose a configuration for the tenants of PROBLEM (YAML or JSON), and divide it among them."""
    from commonwatt.data.partition import load_partition
    from commonwatt.model.plugins import chosen, valid
    from commonwatt.partitioning import solve_file, sweep

    file, by = load_partition(problem), chosen("partitioners", mechanism, MECHANISMS)
    how: dict[str, Any] = {
        "mechanism": by, "welfare": _OLD_NAMES.get(welfare, welfare), "tolerance": tolerance,
        "iterations": iterations, "seed": seed,
    }  # fmt: skip
    if sweep_weight is not None:
        with naming_file(problem), compiling("the market solver"), valid("partitioners", mechanism, MECHANISMS):
            swept = sweep(file, *_range(file, sweep_weight), **how)
        _show_sweep(swept, plot, as_json=as_json)
        return
    with naming_file(problem), compiling("the market solver"), valid("partitioners", mechanism, MECHANISMS):
        result = solve_file(file, **how)
    if plot is not None:
        from commonwatt.report.decision_plots import save_partition

        save_partition(result, plot)
        print_message(f"written: {plot}")
    if as_json:
        print_json(result)
    else:
        _tell(result, explain=explain)


def _range(file: PartitionFile, text: str) -> tuple[str, list[float]]:
    """Return the tenant and its weights from TENANT=FROM:TO:N; raises ``InputError``."""
    import numpy as np

    from commonwatt.model.errors import InputError
    from commonwatt.model.names import one_of

    tenant, _, span = text.rpartition("=")
    words = span.split(":")
    wanted = "TENANT=FROM:TO:N, such as user1=0.1:10:9, with weights above 0 and N of 2 or more"
    try:
        low, high, count = float(words[0]), float(words[1]), int(words[2])
    except (ValueError, IndexError):
        raise InputError(wanted, field="--sweep-weight", value=text) from None
    if not (0 < low < high < np.inf) or not 2 <= count <= _MOST_POINTS or len(words) != 3:
        raise InputError(wanted, field="--sweep-weight", value=text)
    if tenant not in (names := [one.name for one in file.tenants]):
        raise InputError(one_of(names, tenant), field="--sweep-weight", value=tenant)
    return tenant, np.geomspace(low, high, count).tolist()


def _show_sweep(result: PartitionSweepResult, plot: Path | None, *, as_json: bool) -> None:
    if plot is not None:
        from commonwatt.report.decision_plots import save_sweep

        save_sweep(result, plot)
        print_message(f"written: {plot}")
    if as_json:
        print_json(result)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{result.mechanism}, {welfare_name(result.welfare)} welfare, by the weight of {result.tenant}")
    for heading in ("weight", "chosen", "margin", *(f"speedup {name}" for name in result.points[0].utilities)):
        table.add_column(heading, justify="left" if heading == "chosen" else "right")
    for point in result.points:
        margin = "unknown" if point.margin is None else f"{100 * point.margin:.2f}%"
        table.add_row(f"{point.weight:.4g}", point.chosen, margin, *(f"{u:.3f}" for u in point.utilities.values()))
    Console().print(table)
    print_message(result.sentence)


def _tell(result: PartitionResult, *, explain: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    welfare = f"{welfare_name(result.welfare)} welfare"
    ranking = Table(title=f"{result.mechanism}, {welfare}: {result.chosen}")
    for heading in ("rank", "configuration", welfare, "least speedup", "utilization", "residual"):
        ranking.add_column(heading, justify="left" if heading == "configuration" else "right")
    for one in sorted(result.configurations, key=lambda each: each.rank):
        ranking.add_row(
            str(one.rank), one.name, welfare_shown(result.welfare, one.welfare), f"{min(one.utilities.values()):.4g}",
            f"{100 * one.utilization:.1f}%", _shown(one.residual),
        )  # fmt: skip
    console = Console()
    console.print(ranking)
    chosen = next(one for one in result.configurations if one.name == result.chosen)
    console.print(_shares(chosen))
    print_message(result.sentence)
    if explain:
        for tenant in chosen.tenants:
            click.echo(f"{tenant.name}: {tenant.sentence}")


def _shares(one: ConfigurationResult) -> object:
    from rich.table import Table

    table = Table(title=f"{one.name}: PEs of each core cluster")
    table.add_column("tenant")
    for heading in (*one.core_clusters, "speedup", "entitlement"):
        table.add_column(heading, justify="right")
    for name, shares in one.shares.items():
        ends = (f"{one.utilities[name]:.4g}", f"{one.entitlement_utilities[name]:.4g}")
        table.add_row(name, *(f"{share:.3f}" for share in shares), *ends)
    if one.prices is not None:
        table.add_row("price of a PE", *(f"{price:.5f}" for price in one.prices), "", "")
    return table


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


@click.command(short_help="Fit a scaling law to a command of yours.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--threads", default="1,2,4", show_default=True, help="Thread counts to run; must include 1.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True, help="Runs at each thread count.")
@click.option("--env", default="OMP_NUM_THREADS", show_default=True, help="Environment variable for the thread count.")
@click.option(
    "--from", "source", type=click.Path(path_type=Path), metavar="FILE",
    help="Read measurements instead: columns threads, seconds or cycles; optionally kernel, size, cores.",
)  # fmt: skip
@click.option(
    "--counters", type=click.Path(path_type=Path), metavar="FILE",
    help="Also compute F from counters (eq. 4.3): active threads, and cycles with that many active; optionally kernel. "
    "Repeated rows are further runs.",
)  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the result (JSON).")
@plot_option("the first program's laws")
@seed_option
@json_option
def characterize(
    command: tuple[str, ...],
    *,
    threads: str,
    repeats: int,
    env: str,
    source: Path | None,
    counters: Path | None,
    out: Path | None,
    plot: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Time COMMAND at several thread counts, and fit a scaling law.

    \b
    Example:
      commonwatt partition characterize --threads 1,2 --repeats 3 -- python -c "sum(range(10**6))"
    """
    import numpy as np

    from commonwatt import partitioning
    from commonwatt.data.files import write_atomic
    from commonwatt.data.partition import cpu_count, measure, read_counters, read_timings
    from commonwatt.model.errors import InputError

    if (source is None) == (not command):
        raise InputError("either a command after -- or --from FILE", field="COMMAND")
    warnings, cpus = [], None
    if source is not None:
        timings, unit = read_timings(source)
    else:
        counts, cpus, unit = _counts(threads), cpu_count(), "s"
        if counts[-1] > cpus:
            warnings.append(f"{counts[-1]} threads on {cpus} CPUs: more threads than CPUs only take turns")
        timings = measure(command, counts, repeats, env)
    result = partitioning.characterize(
        timings, rng=np.random.default_rng(seed), seed=seed, unit=unit, cpus=cpus, warnings=warnings,
        counters=None if counters is None else read_counters(counters, tuple(timings)),
    )  # fmt: skip
    for warning in result.warnings:
        print_message(f"warning: {warning}")
    if out is not None:
        write_atomic(out, result.model_dump_json(indent=2) + "\n")
        print_message(f"written: {out}")
    if plot is not None:
        _draw(result.kernels[0], plot)
    if as_json:
        print_json(result)
    else:
        _show_scaling(result)


def _counts(text: str) -> list[int]:
    from commonwatt.model.errors import InputError

    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) >= 1 for word in words):
        raise InputError("numbers of threads, such as 1,2,4", field="--threads", value=text)
    counts = sorted({int(word) for word in words})
    if counts[0] != 1 or len(counts) < 2:
        raise InputError("1 and at least one more", field="--threads", value=text)
    return counts


def _draw(kernel: KernelResult, path: Path) -> None:
    from commonwatt.model.partition_file import LawSpec
    from commonwatt.partitioning import make_law
    from commonwatt.report.decision_plots import save_scaling

    threads, speedups = [float(r.threads) for r in kernel.runs], [r.speedup for r in kernel.runs]
    laws = {}
    for fit in kernel.laws:
        given = {"pes": threads[1:], "speedups": speedups[1:]} if fit.law == "table" else fit.parameters
        laws[fit.law] = make_law(LawSpec.model_validate({"law": fit.law, **given})).speedup
    save_scaling(threads, speedups, laws, kernel.chosen, path)
    print_message(f"written: {path}")


def _show_scaling(result: CharacterizeResult) -> None:
    from rich.console import Console
    from rich.table import Table

    for kernel in result.kernels:
        table = Table(title=kernel.name)
        for heading in ("threads", f"median, {result.unit}", "spread", "speedup"):
            table.add_column(heading, justify="right")
        for run in kernel.runs:
            table.add_row(str(run.threads), f"{run.median:.6g}", f"{run.spread:.1%}", f"{run.speedup:.3f}")
        Console().print(table)
        for f in kernel.fractions:
            error = "unknown" if f.standard_error is None else f"{f.standard_error:.2g}"
            off = "unknown" if f.misfit is None else f"{f.misfit:.1%}"
            print_message(f"F by {f.method}: {f.parallel_fraction:.4f}, standard error {error}; speedups off by {off}")
        print_message(f"{kernel.chosen}: {kernel.sentence}")
