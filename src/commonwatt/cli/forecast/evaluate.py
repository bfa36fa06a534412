"""``commonwatt forecast evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.forecast._options import (
    MOST_GPUS,
    NumberRange,
    features_option,
    load,
    measured,
    names,
    naming_options,
    power_option,
    promised,
    series_options,
    target_option,
    window_options,
)
from commonwatt.cli.output import compiling, json_option, print_json, progress_bar, seed_option
from commonwatt.model.units import plural

if TYPE_CHECKING:
    from commonwatt.model.capacity import Target
    from commonwatt.model.forecast_results import ForecastEvaluateResult

__all__ = ["evaluate"]


@click.command(short_help="Score forecasts and promises on unseen instants.")
@click.argument("series", type=click.Path(path_type=Path))
@click.option(
    "--model",
    "name",
    default="last-value",
    show_default=True,
    metavar="NAME",
    help="gru, bilstm, cnn, gru-point, ..., last-value, seasonal-naive, moving-max, lightgbm, auto-ets, "
    "or a file written by forecast fit.",
)
@click.option("--test-from", required=True, metavar="TIME", help="Score forecasts from TIME on: ISO 8601, or seconds.")
@target_option
@click.option("--total-gpus", type=click.IntRange(1, MOST_GPUS), metavar="N", help="GPUs of the cluster.")
@click.option(
    "--margin",
    type=NumberRange(0, 1e6),
    metavar="PERCENT",
    help="Threshold method: at every level, add this to the median or the point forecast.",
)
@click.option(
    "--refit-every", type=click.IntRange(1), metavar="STEPS", help="Refit after this many steps; not with a model file."
)
@click.option(
    "--score-steps", metavar="STEPS", help="Score these steps ahead too, such as 1,5,15,30,60; at most --horizon."
)
@click.option(
    "--known-share",
    type=NumberRange(0, 1),
    metavar="SHARE",
    help="For a job log: assume this share of jobs was announced one horizon ahead (drawn by --seed).",
)
@power_option
@features_option
@window_options
@series_options
@seed_option
@json_option
def evaluate(
    series: Path, *, name: str, test_from: str, target: Target, total_gpus: int | None, gpu_w: float | None,
    score_steps: str | None, margin: float | None, refit_every: int | None, features: str | None,
    look_back: int | None, horizon: int | None, known_share: float | None, column: str, time_column: str | None,
    where: tuple[str, ...], max_gap: float, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Fit on SERIES before TIME, forecast every later instant from the values before it, and score the forecasts.

    SERIES is a CSV or Parquet file with a time column and a column of GPUs, or a job log. Forecasts are rounded up to
    whole GPUs. Scores are those of the last step of the horizon.

    \b
    Examples:
      commonwatt forecast evaluate demand.csv --test-from 2024-01-13 --model last-value --total-gpus 1000
      commonwatt forecast evaluate demand.csv --test-from 2024-01-13 --model gru --target 0.95 --json
      commonwatt forecast evaluate demand.csv --test-from 2024-01-13 --model lightgbm --features pending_gpus
      commonwatt forecast evaluate jobs.csv --test-from 2024-01-13 --target jobs:0.98 --known-share 0.5
    """
    from commonwatt.data.series_files import read_moment
    from commonwatt.planning.evaluation import evaluate_series
    from commonwatt.planning.predictors import features_of, load_predictor
    from commonwatt.planning.waiting import Price

    with naming_options():
        predictor = load_predictor(name, look_back, horizon, names(features))
    loaded = load(series, column, time_column, where, max_gap, features_of(predictor))
    begin = read_moment(test_from, loaded.file, "--test-from")
    if known_share is not None:
        with naming_options(series):
            loaded = loaded.with_notice(known_share, predictor.horizon, seed)
    with (
        naming_options(series), compiling(f"forecaster {predictor.name}") as watch,
        progress_bar(f"fitting {predictor.name}", 1, 1.0) as bar,
    ):  # fmt: skip
        result = evaluate_series(
            loaded, predictor, begin, target=target, total_gpus=total_gpus, price=Price(gpu_w),
            margin=None if margin is None else margin / 100, refit_every=refit_every,
            steps=_numbers(score_steps), seed=seed,
            progress=lambda part: bar.at(predictor.name, part), clock=lambda: watch.elapsed_s,
        )  # fmt: skip
        bar.done()
    if as_json:
        print_json(result)
    else:
        _show(result)


def _numbers(text: str | None) -> tuple[int, ...]:
    """Read ``1,5,15``; raises ``InputError``."""
    from commonwatt.model.errors import InputError

    if text is None:
        return ()
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise InputError("whole numbers such as 1,5,15", field="score_steps", value=text)
    return tuple(int(part) for part in text.split(","))


def _show(result: ForecastEvaluateResult) -> None:
    from rich.console import Console
    from rich.table import Table

    title = f"{result.model}: {plural(result.m, 'step')} of {result.step_s:g} s ahead, from {result.test_from}"
    table = Table(title=title, title_justify="left")
    for heading in ("q", "MAE, GPUs", "under-predicted", "pinball, GPUs", "coverage error"):
        table.add_column(heading, justify="right")
    for row in result.quantiles:
        table.add_row(
            f"{row.q:g}", _number(row.mae), _number(row.under_prediction_pct, "%"), _number(row.pinball),
            _number(row.coverage_error_pp, " pp"),
        )  # fmt: skip
    Console().print(table)
    promise = result.promise
    for step in result.steps if len(result.steps) > 1 else ():
        plain = _number(step.pinball_of_last_value)
        click.echo(
            f"{step.ahead_s:>6g} s    pinball {_number(step.pinball)} GPUs (last value {plain}), "
            f"{measured(promise.of, step.achieved)} with {_number(step.mean_gpus_on)} GPUs on"
        )
    instants = plural(result.test_values, "instant")
    click.echo(f"CRPS        {_number(result.crps)} GPUs, {instants}, {result.unknown:,} unknown")
    click.echo(f"promise     {promised(promise.of, promise.target, promise.label)}")
    raw = measured(promise.of, promise.achieved_raw)
    click.echo(f"achieved    {measured(promise.of, promise.achieved)} (without calibration: {raw})")
    if promise.hindsight_ratio is not None:
        click.echo(f"GPU hours   {_beside_best(promise.hindsight_ratio)}")
    if (waits := promise.waiting) is not None:
        click.echo(
            f"waiting     {waits.delayed_jobs:,} of {plural(waits.jobs, 'job')}; mean {waits.mean_delay_s:.1f} s, p95 "
            f"{waits.p95_delay_s:g} s, p99 {waits.p99_delay_s:g} s; {waits.delayed_gpu_h_per_day:.2f} GPU h a day"
        )
    test_instants = plural(result.test_values - result.unknown, "instant")
    everything = ", and everything stayed on" if promise.of == "instants" else ""
    click.echo(f"fallback    at {promise.fallback:,} of {test_instants} no promise could be made{everything}")
    if promise.beyond_total:
        click.echo(f"beyond      at {promise.beyond_total:,} of {test_instants} demand exceeded all GPUs")
    jobs = "" if promise.jobs_served is None else f", {_percent(promise.jobs_served)} of jobs"
    click.echo(f"served      {_percent(promise.gpus_served)} of the GPUs wanted{jobs}")
    if result.energy_saving_pct is not None:
        click.echo(f"saving      {result.energy_saving_pct:.1f}% of the energy of all GPUs on")
    click.echo("GPU hours at equal performance:")
    for way in result.equal_performance:
        energy = "" if way.energy_kwh is None else f", {way.energy_kwh:,.0f} kWh"
        hours = "unknown" if way.gpu_hours is None else f"{way.gpu_hours:,.0f}"
        click.echo(f"  {way.name:<20} {hours} GPU h{energy} at {measured(promise.of, way.performance)}")
    fit = f"fit {result.fit_s:.1f} s" if result.fits else "fitted before"
    click.echo(f"{fit}, forecast {result.predict_ms:.2f} ms, update {result.update_ms:.3f} ms")


def _beside_best(ratio: float) -> str:
    more_pct = round(100 * (ratio - 1), 1)
    best = "the best fixed margin, chosen in hindsight, would have needed"
    if not more_pct:
        return f"what {best}"
    return f"{abs(more_pct):.1f}% {'more' if more_pct > 0 else 'less'} than {best}"


def _number(value: float | None, unit: str = "") -> str:
    return "unknown" if value is None else f"{value:.3f}{unit}"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.2f}%"
