"""``commonwatt forecast plan``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.forecast._options import (
    MOST_GPUS,
    check_price,
    features_option,
    load,
    measured,
    names,
    naming_options,
    pairs,
    plan_price_options,
    price_options,
    promised,
    read_tariff,
    series_options,
    target_option,
    window_options,
)
from commonwatt.cli.output import compiling, json_option, plot_option, print_json, print_message, seed_option
from commonwatt.model.units import money, plural

if TYPE_CHECKING:
    from commonwatt.model.capacity import Target
    from commonwatt.model.forecast_results import ForecastPlanResult, ForecastPoolsResult
    from commonwatt.planning.series import LoadedSeries

__all__ = ["plan"]


@click.command(short_help="Plan how many GPUs stay on to keep a promise.")
@click.argument("series", type=click.Path(path_type=Path))
@target_option
@click.option(
    "--model",
    "name",
    default="last-value",
    show_default=True,
    metavar="NAME",
    help="A predictor to fit (gru, lightgbm, ...), or a file that `forecast fit` wrote.",
)
@click.option(
    "--test-from", metavar="TIME", help="Replay from here: ISO 8601, or seconds.  [default: the last seventh]"
)
@click.option(
    "--total-gpus",
    type=click.IntRange(1, MOST_GPUS),
    metavar="N",
    help="GPUs of the cluster.  [default: no limit; savings against peak demand]",
)
@click.option("--node-gpus", type=click.IntRange(1, MOST_GPUS), metavar="N", help="GPUs per node, to plan whole nodes.")
@click.option(
    "--pools",
    "by",
    metavar="COLUMN",
    help="Plan each pool of nodes by itself: a column such as virtual_cluster; for a job log tenant, gpu_type, "
    "partition, user, qos, or shape (jobs of whole nodes and others, by --node-gpus).",
)
@click.option("--share", multiple=True, metavar="POOL,POOL", help="These pools may share their nodes; repeatable.")
@click.option("--pool-gpus", multiple=True, metavar="POOL=N", help="GPUs of each pool; for all pools or none.")
@click.option(
    "--joint/--no-joint", default=None,
    help="With --pools and lightgbm: fit one model to all pools, or one to each.  [default: joint]",
)  # fmt: skip
@price_options
@plan_price_options
@features_option
@window_options
@plot_option("fan chart with actual demand, GPUs on against used, the knob with the chosen point, and savings")
@series_options
@seed_option
@json_option
def plan(
    series: Path, *, target: Target, name: str, test_from: str | None, total_gpus: int | None, node_gpus: int | None,
    by: str | None, share: tuple[str, ...], pool_gpus: tuple[str, ...], joint: bool | None, gpu_w: float | None,
    price_per_kwh: float | None, currency: str, delay_price: float | None, power_kw: float | None,
    electricity: Path | None, features: str | None, look_back: int | None, horizon: int | None, plot: Path | None,
    column: str, time_column: str | None, where: tuple[str, ...], max_gap: float, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Plan how many GPUs stay on after the end of SERIES to keep a promise, and replay the plan from TIME on.

    The predictor is trained on the values more than a week before TIME, the knob and the calibration on that week. A
    model file is used as it is: fit it with --train-until a week before TIME, or it is calibrated on what it learned.
    The replay forecasts each instant one horizon ahead. With --pools each pool keeps the promise, and what that takes
    is set against one pool of all nodes.

    \b
    Examples:
      commonwatt forecast plan demand.csv --target 0.98 --total-gpus 1000 --plot plan.png
      commonwatt forecast plan demand.csv --model gru.safetensors --target 0.95 --node-gpus 8 --json
      commonwatt forecast plan jobs.csv --target jobs:0.98 --gpu-w 50 --price-per-kwh 0.2
      commonwatt forecast plan jobs.csv --pools tenant --node-gpus 8 --share vision,speech
      commonwatt forecast plan jobs.csv --gpu-w 300 --power-kw 120 --price-per-kwh 0.2 --delay-price 1.5
    """
    from commonwatt.data.series_files import read_moment
    from commonwatt.planning.pools import plan_pools
    from commonwatt.planning.predictors import features_of, load_predictor
    from commonwatt.planning.replay import plan_series
    from commonwatt.planning.waiting import Price

    _check_options(by, share, pool_gpus, plot, total_gpus)
    _check_joint(by, name, joint)
    _check_prices(by, gpu_w, price_per_kwh, delay_price, power_kw, electricity)
    tariff = read_tariff(electricity)
    currency = tariff.currency if tariff is not None and tariff.currency else currency
    price = Price(gpu_w, price_per_kwh, tariff, power_kw and 1000 * power_kw, delay_price, currency)
    with naming_options():
        predictor = load_predictor(name, look_back, horizon, names(features))
    if by is not None:
        columns = features_of(predictor)
        pools = _load_pools(series, by, column, time_column, where, max_gap, node_gpus, share, columns)
        begin = None if test_from is None else read_moment(test_from, next(iter(pools.values())).file, "--test-from")
        with naming_options(series), compiling(f"forecaster {name}"):
            pool_plans = plan_pools(
                pools, lambda: load_predictor(name, look_back, horizon, names(features)), begin, by=by, target=target,
                pool_gpus=_counts(pool_gpus), node_gpus=node_gpus, price=price, joint=joint is not False, seed=seed,
            )  # fmt: skip
        print_json(pool_plans) if as_json else _show_pools(pool_plans)
        return
    loaded = load(series, column, time_column, where, max_gap, features_of(predictor))
    file = loaded.file
    begin = None if test_from is None else read_moment(test_from, file, "--test-from")
    with naming_options(series), compiling(f"forecaster {name}"):
        replayed = plan_series(
            loaded, predictor, begin, target=target, total_gpus=total_gpus, node_gpus=node_gpus,
            price=price, seed=seed,
        )  # fmt: skip
    if plot is not None:
        from commonwatt.report.forecast_plots import save_plan

        save_plan(replayed, file, plot)
        print_message(f"written: {plot}")
    if as_json:
        print_json(replayed.result)
    else:
        _show(replayed.result)


def _check_options(
    by: str | None, share: tuple[str, ...], pool_gpus: tuple[str, ...], plot: Path | None, total_gpus: int | None
) -> None:
    """Raise ``InputError`` on options that would be ignored."""
    from commonwatt.model.errors import InputError

    for field, value in (("--share", share), ("--pool-gpus", pool_gpus)):
        if by is None and value:
            raise InputError("--pools beside it", field=field, value=value[0])
    if by is not None and plot is not None:
        raise InputError("no plot with --pools", field="--plot", value=plot)
    if by is not None and total_gpus is not None:
        raise InputError("--pool-gpus with --pools", field="--total-gpus", value=total_gpus)


def _check_joint(by: str | None, name: str, joint: bool | None) -> None:
    """Raise ``InputError`` on a switch that would be ignored."""
    from commonwatt.model.errors import InputError

    if joint is not None and (by is None or name != "lightgbm"):
        switch = "--joint" if joint else "--no-joint"
        raise InputError("--pools and --model lightgbm beside it", field=switch, value=name)


def _check_prices(
    by: str | None, gpu_w: float | None, price_per_kwh: float | None, delay_price: float | None,
    power_kw: float | None, electricity: Path | None,
) -> None:  # fmt: skip
    """Raise ``InputError`` on prices and limits that would be ignored."""
    from commonwatt.model.errors import InputError

    check_price(gpu_w, price_per_kwh)
    if electricity is not None and price_per_kwh is not None:
        raise InputError("a price in one place: --electricity has one", field="--price-per-kwh", value=price_per_kwh)
    for field, value in (("--power-kw", power_kw), ("--electricity", electricity), ("--delay-price", delay_price)):
        if value is not None and by is not None:
            raise InputError("none with --pools", field=field, value=value)
        if value is not None and gpu_w is None:
            raise InputError("--gpu-w beside it", field=field, value=value)
    given = click.get_current_context().get_parameter_source("target")
    if delay_price is not None and given is not click.core.ParameterSource.DEFAULT:
        raise InputError("no --target beside it, as it chooses one", field="--delay-price", value=delay_price)


def _load_pools(
    series: Path, by: str, column: str, time_column: str | None, where: tuple[str, ...], max_gap: float,
    node_gpus: int | None, share: tuple[str, ...], features: tuple[str, ...],
) -> dict[str, LoadedSeries]:  # fmt: skip
    from commonwatt.planning.pools import load_pools

    groups = [[name.strip() for name in group.split(",")] for group in share]
    with naming_options(series):
        return load_pools(
            series, by, column, time_column, pairs(where, "--where"), max_gap, node_gpus=node_gpus, together=groups,
            features=features,
        )  # fmt: skip


def _counts(given: tuple[str, ...]) -> dict[str, int] | None:
    """Read ``POOL=N`` options; raises ``InputError``."""
    from commonwatt.model.errors import InputError

    counts = {}
    for name, text in pairs(given, "--pool-gpus").items():
        if not text.isdecimal() or int(text) > MOST_GPUS:
            raise InputError("a pool and a number of GPUs, such as vision=64", field="--pool-gpus", value=text)
        counts[name] = int(text)
    return counts or None


def _show_pools(result: ForecastPoolsResult) -> None:
    click.echo(f"{result.model}, {plural(result.m, 'step')} of {result.step_s:g} s ahead; pools by {result.by}")
    click.echo(f"replayed from {result.replayed_from}: {plural(result.replayed, 'instant')}, target {result.label}")
    width = max(8, *(len(pool.name) for pool in result.pools))
    click.echo(f"{'pool':<{width}} {'wanted':>8} {'GPUs on':>8}  achieved")
    for pool in result.pools:
        kept = "" if pool.kept else f"; CANNOT be kept: {pool.sentence}"
        click.echo(
            f"{pool.name:<{width}} {pool.mean_wanted_gpus:>8,.1f} {pool.mean_gpus_on:>8,.1f}  "
            f"{measured(result.of, pool.achieved)}{kept}"
        )
    for way in result.ways:
        nodes = "" if way.mean_nodes_on is None else f", {way.mean_nodes_on:,.1f} whole nodes"
        energy = "" if way.energy_kwh is None else f", {way.energy_kwh:,.0f} kWh"
        cost = "" if way.cost is None else f", {money(way.cost, result.currency)}"
        click.echo(
            f"{way.name:<25} {way.mean_gpus_on:>8,.1f} GPUs on{nodes}, {way.gpu_hours:,.0f} GPU h{energy}{cost}; "
            f"{measured(result.of, way.achieved)}"
        )
    if result.apart_pct is not None:
        click.echo(f"kept apart, the pools take {result.apart_pct:.1f}% more than one pool of all nodes")


def _show(result: ForecastPlanResult) -> None:
    from rich.console import Console
    from rich.table import Table

    given = "" if result.total_gpus_given else " (the peak of demand and forecast; set --total-gpus)"
    steps, instants = plural(result.m, "step"), plural(result.replayed, "instant")
    click.echo(f"{result.model}, {steps} of {result.step_s:g} s ahead; {plural(result.total_gpus, 'GPU')}{given}")
    of_jobs = result.promise.of != "instants"
    table = Table(title=f"replayed from {result.replayed_from}: {instants}", title_justify="left")
    table.add_column("", no_wrap=True)
    for heading in ("instants served", "GPUs served", "mean GPUs on", "energy saved"):
        table.add_column(heading, justify="right")
    for row in result.replay:
        table.add_row(
            row.name, f"{100 * row.performance:.2f}%", f"{100 * row.gpus_served:.2f}%", f"{row.mean_gpus_on:,.1f}",
            f"{row.energy_saving_pct:.2f}%",
        )  # fmt: skip
    Console().print(table)
    _show_worth(result)
    fallback = f"at {result.fallback:,} of {instants}"
    click.echo(f"fallback    {fallback} no promise could be made{'' if of_jobs else ', and everything stayed on'}")
    if result.beyond_total:
        beyond = f"at {result.beyond_total:,} of {instants}"
        click.echo(f"beyond      {beyond} demand exceeded all GPUs")
    if result.budget is not None:
        click.echo(f"budget      {result.budget.sentence}")
    for one in result.priced:
        best = "  <- cheapest, and promised" if one.label == result.promise.label else ""
        costs = one.energy_cost, one.delay_cost, one.energy_cost + one.delay_cost
        energy, delay, both = (f"{money(cost, result.currency):>10}" for cost in costs)
        click.echo(f"{one.label:<12}{energy} energy + {delay} delay = {both}{best}")
    chosen = result.chosen
    extra = f" and {plural(chosen.extra_gpus, 'GPU')}" if chosen.extra_gpus else ""
    setting = "everything on" if chosen.q >= 1 else f"quantile {chosen.q:g}{extra}"
    click.echo(
        f"knob        {setting}: {100 * chosen.performance:.2f}% served, {chosen.energy_saving_pct:.2f}% saved over "
        f"the history from {result.calibrated_from}"
    )
    whole = all(step.gpus_on == result.total_gpus for step in result.plan)
    promise = result.promise
    kept = "can be kept" if result.promise_kept else f"CANNOT be kept{', everything stays on' if whole else ''}"
    click.echo(f"promise     {promised(promise.of, promise.target, promise.label)} {kept}: {promise.sentence}")
    click.echo(f"achieved    {measured(promise.of, promise.achieved)} over the replay")
    for step in result.plan:
        nodes = "" if step.nodes_on is None else f" ({plural(step.nodes_on, 'node')})"
        click.echo(f"{step.at}  {plural(step.gpus_on, 'GPU')} on{nodes}, median demand {step.median_gpus:.0f}")


def _show_worth(result: ForecastPlanResult) -> None:
    """Show what each way costs, and whom it lets wait."""
    rows = result.worth
    headings = {
        "GPU h": [f"{row.gpu_hours:,.0f}" for row in rows],
        "kWh": ["" if row.energy_kwh is None else f"{row.energy_kwh:,.0f}" for row in rows],
        result.currency: ["" if row.cost is None else f"{row.cost:,.0f}" for row in rows],
        "kg CO2": ["" if row.carbon_kg is None else f"{row.carbon_kg:,.0f}" for row in rows],
        "instants": ["" if row.performance is None else f"{100 * row.performance:.2f}%" for row in rows],
        "jobs": ["" if row.waiting is None else f"{100 * row.waiting.jobs_served:.2f}%" for row in rows],
        "mean wait": ["" if row.waiting is None else f"{row.waiting.mean_delay_s:.1f} s" for row in rows],
        "p99": ["" if row.waiting is None else f"{row.waiting.p99_delay_s:,.0f} s" for row in rows],
    }
    shown = {heading: cells for heading, cells in headings.items() if any(cells)}
    widths = [max(len(heading), *map(len, cells)) for heading, cells in shown.items()]
    click.echo("worth".ljust(27) + " ".join(h.rjust(width) for h, width in zip(shown, widths, strict=True)))
    for number, row in enumerate(rows):
        cells = (column[number].rjust(width) for column, width in zip(shown.values(), widths, strict=True))
        click.echo(row.name.ljust(27) + " ".join(cells))
    if not any(headings["kWh"]):
        click.echo("energy      unknown; add --gpu-w for kWh and --price-per-kwh for cost")
