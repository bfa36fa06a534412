"""Pools: parts of a cluster whose nodes only their own jobs may use, each with its demand and its promise.

A column of a series file (a virtual cluster) names the pools. In a job log, a job's tenant, GPU type, partition, user
or QOS does, or its shape: jobs that need whole nodes, and the others. Pools that share their nodes are one pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np

from commonwatt import __version__
from commonwatt.data.demand import demand_of
from commonwatt.data.log import JobLog, part_of
from commonwatt.data.series_files import LONGEST_GAP_S, SeriesFile, read_series_by
from commonwatt.forecasting import joint_pools
from commonwatt.model.arrays import Floats
from commonwatt.model.capacity import Target, WaitingTarget, target_label, target_of
from commonwatt.model.demand import Arrivals, DemandSeries, Notices, Predictor
from commonwatt.model.errors import InputError
from commonwatt.model.forecast_results import ForecastPool, ForecastPoolsResult, ForecastPoolsWay
from commonwatt.model.names import one_of
from commonwatt.model.units import HOUR_S, plural
from commonwatt.planning.replay import ReplayedPlan, plan_series
from commonwatt.planning.series import LoadedSeries, check_features, job_log, refuse_blank, refuse_features
from commonwatt.planning.waiting import Hindsight, Price

__all__ = ["LOG_POOLS", "load_pools", "plan_pools"]

LOG_POOLS = ("tenant", "gpu_type", "partition", "user", "qos", "shape")
"""What may name the pools of a job log."""


def load_pools(
    path: Path, by: str, column: str = "gpus", time_column: str | None = None, where: Mapping[str, str] | None = None,
    longest_gap_s: float = LONGEST_GAP_S, *, node_gpus: int | None = None, together: Sequence[Sequence[str]] = (),
    features: Sequence[str] = (),
) -> dict[str, LoadedSeries]:  # fmt: skip
    """Read the demand of each pool, all over the same period: the demand of a pool outside its own rows is unknown.

    Parameters
    ----------
    by
        A column of a series file, or one of ``LOG_POOLS`` for a job log.
    node_gpus
        GPUs of a node; needed for ``shape``: jobs of at least that many GPUs need whole nodes.
    together
        Names of pools that share their nodes: each group becomes one pool.
    features
        Columns of counts that are read beside the demand of a series file.

    Raises
    ------
    InputError
        As ``load_series``; for a job log without that column, shapes without the size of a node, pools that are named
        twice or do not exist, pools without a common period, and pools whose rows begin or end further apart than
        *longest_gap_s*.
    """
    log = job_log(path, where) if time_column is None and path.suffix.lower() != ".parquet" else None
    if log is None:
        check_features(features, column, time_column)
        read = read_series_by(path, by, column, time_column, where, longest_gap_s, features)
        refuse_blank(path, features, [file.series for file in read.values()])
        pools = {name: LoadedSeries(file) for name, file in _common(read, by, longest_gap_s).items()}
    else:
        refuse_features(features)
        pools = _of_log(log, by, column, node_gpus)
    return _joined(pools, together)


def _of_log(log: JobLog, by: str, column: str, node_gpus: int | None) -> dict[str, LoadedSeries]:
    labels = _labels(log, by, node_gpus)
    first_s, last_s = log.whole_from_s, log.span_s[1]
    pools = {}
    for name in sorted(set(labels)):
        part = part_of(log, np.array([label == name for label in labels]), f"of other {by}s")
        counted = demand_of(part, begin_s=first_s, end_s=last_s)
        both = {"gpus": (counted.running, counted.started), "wanted_gpus": (counted.wanted, counted.submitted)}
        if column not in both:
            raise InputError("gpus or wanted_gpus, as this is a job log", field="column", value=column)
        series, arrivals = both[column]
        pools[name] = LoadedSeries(SeriesFile(series, counted.dated, 0), arrivals)
    return pools


def _labels(log: JobLog, by: str, node_gpus: int | None) -> Sequence[str]:
    """Return the pool of each job."""
    if by not in LOG_POOLS:
        raise InputError(f"{one_of(LOG_POOLS, by)}, as this is a job log", field="pools", value=by)
    if by == "shape":
        if node_gpus is None:
            raise InputError("--node-gpus, which tells jobs of whole nodes from others", field="pools", value=by)
        gpus = plural(node_gpus, "GPU")
        small, whole = f"less than {gpus}", f"{gpus} or more"
        return [whole if gpus >= node_gpus else small for gpus in log.gpus.tolist()]
    labels: Sequence[str] = getattr(log, by)
    if not any(labels):
        raise InputError(f"a job log that says the {by} of jobs", file=log.path, field="pools", value=by)
    return [label or f"no {by}" for label in labels]


def _common(files: Mapping[str, SeriesFile], by: str, longest_gap_s: float) -> dict[str, SeriesFile]:
    """Fill all series to the period from the first instant of any to the last: demand outside its own is unknown."""
    one = next(iter(files.values())).series
    for name, file in files.items():
        if not np.isclose(file.series.step_s, one.step_s):
            expected = f"the same step in every pool, {one.step_s:g} s"
            raise InputError(expected, field="pools", value=f"{file.series.step_s:g} s in {by}={name}")
    early = min(files, key=lambda name: files[name].series.start_s)
    late = max(files, key=lambda name: files[name].series.end_s)
    first_s, last_s = files[early].series.start_s, files[late].series.end_s
    start_s = max(file.series.start_s for file in files.values())
    end_s = min(file.series.end_s for file in files.values())
    filled = {}
    for name, file in files.items():
        own, step_s = file.series, one.step_s
        before, after = round((own.start_s - first_s) / step_s), round((last_s - own.end_s) / step_s)
        if end_s - start_s < 0.5 * step_s or abs(first_s + before * step_s - own.start_s) > 0.01 * step_s:
            raise InputError("pools with instants in common", field="pools", value=f"none in {by}={name}")
        for missing, verb, other, index in ((before, "begins", early, 0), (after, "ends", late, -1)):
            if missing * step_s > longest_gap_s:
                theirs = files[other]
                expected = (
                    f"pools whose rows {verb[:-1]} at most {longest_gap_s / 3600:g} h apart (--max-gap), "
                    f"as {by}={other} {verb} at {theirs.moment(index % len(theirs.series))}"
                )
                value = f"{by}={name}, which {verb} at {file.moment(index % len(own))}"
                raise InputError(expected, field="pools", value=value)
        gpus, *beside = (
            np.pad(values, (before, after), constant_values=np.nan) for values in (own.gpus, *own.features.values())
        )
        series = DemandSeries(first_s, step_s, gpus, dict(zip(own.features, beside, strict=True)))
        filled[name] = replace(file, series=series, holes=file.holes + before + after)
    return filled


def _joined(pools: Mapping[str, LoadedSeries], together: Sequence[Sequence[str]]) -> dict[str, LoadedSeries]:
    """Join the pools that share nodes."""
    left = dict(pools)
    for group in together:
        own = {}
        for name in group:
            if name not in left:
                expected = f"pools, each named once ({one_of(sorted(pools), name)})"
                raise InputError(expected, field="share", value=name)
            own[name] = left.pop(name)
        left["+".join(own)] = _sum(own.values())
    return dict(sorted(left.items()))


def _sum(pools: Iterable[LoadedSeries]) -> LoadedSeries:
    """Return all demand and all jobs of *pools*, as one pool."""
    members = list(pools)
    one = members[0].file
    gpus: Floats = np.sum([member.file.series.gpus for member in members], axis=0)
    features = {
        name: np.sum([member.file.series.features[name] for member in members], axis=0) for name in one.series.features
    }
    series = DemandSeries(one.series.start_s, one.series.step_s, gpus, features)
    jobs = [member.arrivals for member in members if member.arrivals is not None]
    if len(jobs) < len(members):
        return LoadedSeries(replace(one, series=series))
    index = np.concatenate([own.index for own in jobs])
    order = np.argsort(index, kind="stable")
    announced_at = np.concatenate([own.index if own.notice_index is None else own.notice_index for own in jobs])
    size = np.concatenate([own.gpus for own in jobs])
    said = [own.notices for own in jobs if own.notices is not None]
    notices = Notices(*map(np.concatenate, zip(*map(astuple, said), strict=True))) if said else None
    own = Arrivals.of(series, index[order], size[order], announced_at[order], notices)
    return LoadedSeries(replace(one, series=series), own)


def plan_pools(
    pools: Mapping[str, LoadedSeries], predictor: Callable[[], Predictor], test_from: int | None = None, *, by: str,
    target: Target = 0.98, pool_gpus: Mapping[str, int] | None = None, node_gpus: int | None = None,
    price: Price | None = None, joint: bool = True, seed: int = 0,
) -> ForecastPoolsResult:  # fmt: skip
    """Plan each of *pools* by itself, and all of them as one; score both over the replay.

    Parameters
    ----------
    predictor
        Returns a new predictor for each plan, as ``load_predictor``.
    pool_gpus
        GPUs of each pool; ``None``: no limits.
    joint
        Fit one LightGBM model to all pools, as ``joint_pools``. Other predictors are fitted to each pool by itself.

    Raises
    ------
    InputError
        As ``plan_series``; for a pool that has no GPUs, GPUs of a pool that does not exist, and a budget, a tariff or
        a price of delay.
    """
    limits, price = _limits(pools, pool_gpus), price or Price()
    if price.tariff is not None or price.limits or price.delay_per_gpu_h is not None:
        expected = "the power of a GPU and one price of a kWh: no budget, tariff or price of delay with pools"
        raise InputError(expected, field="price", value="more")
    demands = {name: loaded.file.series for name, loaded in pools.items()}
    for name, loaded in pools.items():
        _check_demand(loaded.file, test_from, f"{by}={name}")
    members = joint_pools(demands, predictor(), limits or None) if joint else None
    plans = {}
    for name, loaded in pools.items():
        if isinstance(target, WaitingTarget) and not len(loaded.arrivals or ()):
            raise InputError("a job log with jobs in every pool", field="target", value=f"none in {by}={name}")
        series, own = (loaded.file.series, predictor()) if members is None else members[name]
        member = LoadedSeries(replace(loaded.file, series=series), loaded.arrivals)
        plans[name] = plan_series(
            member, own, test_from, target=target, total_gpus=limits.get(name), node_gpus=node_gpus, price=price,
            seed=seed,
        )  # fmt: skip
    everything = _sum(pools.values())
    total = sum(limits.values()) if limits else None
    shared = plan_series(
        everything, predictor(), test_from, target=target, total_gpus=total, node_gpus=node_gpus, price=price, seed=seed
    )
    ways = _ways(pools, plans, everything, shared, target, node_gpus, price)
    finite = ~np.isnan(shared.actual)
    result = shared.result
    return ForecastPoolsResult(
        version=__version__,
        currency=price.currency,
        seed=seed,
        input_digest=result.input_digest,
        model=result.model,
        m=result.m,
        step_s=result.step_s,
        of=target_of(target),
        label=target_label(target),
        by=by,
        joint=members is not None,
        replayed_from=result.replayed_from,
        replayed=int(finite.sum()),
        pools=tuple(_pool(name, plan, limits.get(name), node_gpus, finite) for name, plan in plans.items()),
        ways=ways,
        apart_pct=100 * (ways[0].gpu_hours / ways[1].gpu_hours - 1.0) if ways[1].gpu_hours else None,
    )


def _check_demand(file: SeriesFile, test_from: int | None, name: str) -> None:
    """Raise ``InputError`` if no demand of a pool is known in the replay."""
    instants, begin = (
        np.flatnonzero(file.series.has_value),
        len(file.series) * 6 // 7 if test_from is None else test_from,
    )
    if not (instants >= begin).any():
        last = file.moment(int(instants[-1]))
        raise InputError(f"a known demand of every pool after it: that of {name} ends at {last}", field="test_from",
                         value=begin)  # fmt: skip


def _limits(pools: Mapping[str, LoadedSeries], pool_gpus: Mapping[str, int] | None) -> dict[str, int]:
    limits = dict(pool_gpus or {})
    for name in limits:
        if name not in pools:
            raise InputError(f"a pool ({one_of(list(pools), name)})", field="pool_gpus", value=name)
    for name in pools if limits else ():
        if limits.get(name, 0) < 1:
            expected = f"GPUs for every pool: no node serves {name}"
            raise InputError(expected, field="pool_gpus", value=limits.get(name, "none"))
    return limits


def _pool(name: str, plan: ReplayedPlan, total: int | None, node_gpus: int | None, finite: np.ndarray) -> ForecastPool:
    result = plan.result
    own = result.replay[0]
    return ForecastPool(
        name=name,
        total_gpus=total,
        mean_wanted_gpus=float(plan.actual[finite].mean()),
        mean_gpus_on=float(plan.on[finite].mean()),
        mean_nodes_on=None if node_gpus is None else float(_whole(plan.on[finite], node_gpus).mean()) / node_gpus,
        achieved=result.promise.achieved,
        fallback=result.fallback,
        kept=result.promise.kept,
        sentence=result.promise.sentence,
        waiting=own.waiting,
        plan=result.plan,
    )


def _whole(gpus: Floats, node_gpus: int | None) -> Floats:
    """GPUs of the whole nodes that *gpus* need."""
    return gpus if node_gpus is None else node_gpus * np.ceil(gpus / node_gpus)


def _ways(
    pools: Mapping[str, LoadedSeries], plans: Mapping[str, ReplayedPlan], everything: LoadedSeries,
    shared: ReplayedPlan, target: Target, node_gpus: int | None, price: Price,
) -> tuple[ForecastPoolsWay, ...]:  # fmt: skip
    """Score pools kept apart, and one pool of all, each by its plan and with perfect foresight."""
    step_s, m = shared.result.step_s, shared.result.m
    finite = ~np.isnan(shared.actual)

    def way(name: str, parts: Sequence[tuple[LoadedSeries, Floats, Floats]]) -> ForecastPoolsWay:
        on = np.sum([_whole(gpus, node_gpus) for _, gpus, _ in parts], axis=0)
        outcomes = [
            Hindsight.of(own.file.series.gpus, shared.begin, own.arrivals, step_s, m, price) for own, _, _ in parts
        ]
        enough = np.all([gpus >= wanted for _, gpus, wanted in parts], axis=0)
        hours = float(on[finite].sum()) * step_s / HOUR_S
        energy = None if price.gpu_w is None else hours * price.gpu_w / 1000
        return ForecastPoolsWay(
            name=name,
            mean_gpus_on=float(on[finite].mean()),
            mean_nodes_on=None if node_gpus is None else float(on[finite].mean()) / node_gpus,
            gpu_hours=hours,
            energy_kwh=energy,
            cost=None if energy is None or price.per_kwh is None else energy * price.per_kwh,
            achieved=_achieved(outcomes, [gpus for _, gpus, _ in parts], target),
            all_served=float(enough[finite].mean()),
        )

    apart = [(pools[name], plan.on.astype(float), plan.actual) for name, plan in plans.items()]
    one = [(everything, shared.on.astype(float), shared.actual)]
    return (
        way("apart", apart), way("shared", one),
        way("perfect-foresight-apart", [(own, np.ceil(wanted), wanted) for own, _, wanted in apart]),
        way("perfect-foresight-shared", [(own, np.ceil(wanted), wanted) for own, _, wanted in one]),
    )  # fmt: skip


def _achieved(outcomes: Sequence[Hindsight], on: Sequence[Floats], target: Target) -> float | None:
    """Return what was achieved of *target*: of jobs by all jobs, of a budget its sum, of instants the mean of pools."""
    achievements = [(own, own.achieved(target, gpus)) for own, gpus in zip(outcomes, on, strict=True)]
    counted = [(len(own.arrivals or ()), value) for own, value in achievements if value is not None]
    if not counted:
        return None
    if target_of(target) == "delayed_gpu_h":
        return sum(value for _, value in counted)
    weights = [count if isinstance(target, WaitingTarget) else 1 for count, _ in counted]
    return float(np.average([value for _, value in counted], weights=weights))
