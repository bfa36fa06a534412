"""``commonwatt forecast compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.forecast._options import (
    MOST_GPUS,
    check_price,
    load,
    naming_options,
    price_options,
    series_options,
    window_options,
)
from commonwatt.cli.output import (
    compiling,
    json_option,
    plot_option,
    print_json,
    print_message,
    progress_bar,
    seed_option,
)
from commonwatt.model.units import plural

if TYPE_CHECKING:
    from commonwatt.model.forecast_results import ForecastCompareResult

__all__ = ["compare"]


@click.command(short_help="Compare capacity policies on a job log.")
@click.argument("jobs", type=click.Path(path_type=Path))
@click.option(
    "--model", "name", default="last-value", show_default=True, metavar="NAME",
    help="A predictor to fit (lightgbm, gru, ...), or a file that `forecast fit` wrote.",
)  # fmt: skip
@click.option(
    "--test-from", metavar="TIME", help="Replay from here: ISO 8601, or seconds.  [default: the last seventh]"
)
@click.option(
    "--total-gpus", type=click.IntRange(1, MOST_GPUS), metavar="N",
    help="GPUs of the cluster.  [default: the most ever wanted]",
)  # fmt: skip
@price_options
@window_options
@plot_option("GPUs on against the 99th percentile and the mean of waiting, a line for each way")
@series_options
@seed_option
@json_option
def compare(
    jobs: Path, *, name: str, test_from: str | None, total_gpus: int | None, gpu_w: float | None,
    price_per_kwh: float | None, currency: str, look_back: int | None, horizon: int | None, plot: Path | None,
    column: str, time_column: str | None, where: tuple[str, ...], max_gap: float, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Compare capacity policies on the last part of job log JOBS: energy against waiting.

    Always on, last value and more, max-k (the maximum of the last k values), threshold (the median and a margin), CUFF
    (promises of instants), ours (promises of jobs) and perfect foresight, each over a range of settings.

    \b
    Examples:
      commonwatt forecast compare jobs.csv --total-gpus 1000 --plot ways.png
      commonwatt forecast compare jobs.csv --gpu-w 50 --price-per-kwh 0.2 --json
    """
    from commonwatt.data.series_files import read_moment
    from commonwatt.planning.evaluation import compare_ways
    from commonwatt.planning.predictors import features_of, load_predictor
    from commonwatt.planning.waiting import Price

    check_price(gpu_w, price_per_kwh)
    with naming_options():
        predictor = load_predictor(name, look_back, horizon)
    loaded = load(jobs, column, time_column, where, max_gap, features_of(predictor))
    begin = None if test_from is None else read_moment(test_from, loaded.file, "--test-from")
    with (
        naming_options(jobs), compiling(f"forecaster {name}"), progress_bar("replaying promises", 1, 1.0) as bar,
    ):  # fmt: skip
        result = compare_ways(
            loaded, predictor, begin, total_gpus=total_gpus, seed=seed,
            price=Price(gpu_w, price_per_kwh, currency=currency), progress=lambda part: bar.at("promises", part),
        )  # fmt: skip
        bar.done()
    if plot is not None:
        from commonwatt.report.forecast_plots import save_comparison

        save_comparison(result, plot)
        print_message(f"written: {plot}")
    if as_json:
        print_json(result)
    else:
        _show(result)


def _show(result: ForecastCompareResult) -> None:
    ahead = f"{plural(result.m, 'step')} of {result.step_s:g} s ahead"
    given = "" if result.total_gpus_given else " (the most ever wanted; set --total-gpus)"
    click.echo(f"{result.model}, {ahead}; {plural(result.total_gpus, 'GPU')}{given}")
    click.echo(f"replayed from {result.replayed_from}: {plural(result.replayed, 'instant')}")
    foresight = result.ways[-1].gpu_hours
    money = any(row.cost is not None for row in result.ways)
    kwh, cost = "" if result.ways[0].energy_kwh is None else f"{'kWh':>10}", f"{result.currency:>10}" if money else ""
    click.echo(
        f"{'way':<18}{'setting':<14}{'GPU h':>10}{kwh}{cost}{'of foresight':>14}{'jobs':>9}{'mean wait':>11}{'p99':>7}"
    )
    for row in result.ways:
        energy = "" if row.energy_kwh is None else f"{row.energy_kwh:>10,.0f}"
        cost = "" if row.cost is None else f"{row.cost:>10,.0f}"
        part = f"{100 * row.gpu_hours / foresight:.1f}%" if foresight else ""
        waiting = row.waiting
        waits = "" if waiting is None else (
            f"{100 * waiting.jobs_served:>8.2f}%{waiting.mean_delay_s:>9.1f} s{waiting.p99_delay_s:>5.0f} s"
        )  # fmt: skip
        click.echo(f"{row.name:<18}{row.setting:<14}{row.gpu_hours:>10,.0f}{energy}{cost}{part:>14}{waits}")
