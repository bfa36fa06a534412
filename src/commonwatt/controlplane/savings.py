"""Estimates what the policy saves against a baseline: the jobs of the last days are simulated under both.

The same jobs, with the times they really took once they have ended, run through the simulator twice, each time with the
capacity plan that belongs to the policy. No meter is used, so that both runs leave out the same things.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from commonwatt.control.events import EventKind
from commonwatt.controlplane.capacity import since_s
from commonwatt.controlplane.jobs import JobMaker, TimeFigure
from commonwatt.controlplane.observer import SETTING, observed_jobs
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.errors import CommonwattError, InputError, SolverError
from commonwatt.model.jobs import Job, JobArrays
from commonwatt.model.nodes import Cluster
from commonwatt.model.pools import Pools
from commonwatt.model.scenario import PolicySpec, Scenario, UnusedNodes
from commonwatt.model.units import DAY_S, J_PER_KWH, MICRO, NANO
from commonwatt.planning.capacity import Past, check_capacity, demand_of_samples
from commonwatt.store.api_store import ApiStore
from commonwatt.store.database import Database
from commonwatt.store.queries import events_of, worked_gpu_s
from commonwatt.store.records import ACTIVE, EventRow, JobRow, JobStatus

if TYPE_CHECKING:
    from commonwatt.simulation.run_setup import PolicyRun

__all__ = [
    "Estimator",
    "Stay",
    "baseline_of",
    "estimate",
    "jobs_for_estimate",
    "past_of",
    "plans_of",
    "runtime_ratio",
    "runtime_ratios",
    "stays_of",
]

log = logging.getLogger("commonwatt.savings")

MOST_JOBS = 5_000
DAYS = 7.0
_LOOK_S = 0.2  # how often to check whether an estimate is still wanted
_SHORTEST_S = 1e-3  # a job takes some time
Saved = dict[str, float | str | None]
SAVED = "saved"
"""Setting of the store with the last estimate."""
_NICE = 10
"""Of the process that estimates: decisions and answers go before it."""


def baseline_of(config: Scenario) -> PolicySpec:
    """Return the policy to compare with: the last of the configuration, FIFO if there is only one."""
    return config.policies[-1] if len(config.policies) > 1 else PolicySpec(solver="fifo")


def jobs_for_estimate(
    rows: Sequence[JobRow], maker: JobMaker, now_s: float, observed: Sequence[Mapping[str, Any]] = (),
    ratios: Mapping[int, float] = MappingProxyType({}),
) -> tuple[list[Job], float]:  # fmt: skip
    """Return the jobs of the last days as a simulation takes them, the first at 0, and the time since then, seconds.

    Cancelled jobs are left out, jobs that ended without having run, and jobs whose configurations the cluster has no
    more. *observed* are external jobs (``observer``), *ratios* the run times of ended jobs relative to the plan, by id
    (``runtime_ratio``).
    """
    since_s = now_s - DAYS * DAY_S
    recent = [row for row in rows if row.submit_s > since_s and row.status is not JobStatus.CANCELLED]
    recent = [row for row in recent if ratios.get(row.id, 1.0) > 0][-MOST_JOBS:]
    others = observed_jobs(observed, maker.cluster, since_s)
    began_s = min([*(row.submit_s for row in recent), *(submit_s for submit_s, _ in others)], default=now_s)
    jobs = []
    for row in recent:
        try:
            figures = _still_there(row.times, maker.cluster) if row.times else maker.check(row.file)
            if not figures:
                continue
            figures = [_times(figure, ratios.get(row.id, 1.0)) for figure in figures]
            due_s = None if row.due_s is None else row.due_s - began_s
            jobs.append(maker.make(replace(row, submit_s=row.submit_s - began_s, due_s=due_s), figures))
        except InputError:
            continue
    jobs += [replace(job, submit_s=submit_s - began_s) for submit_s, job in others]
    return sorted(jobs, key=lambda job: job.submit_s), now_s - began_s


def _still_there(times: Sequence[Mapping[str, Any]], cluster: Cluster) -> list[TimeFigure]:
    figures = [TimeFigure(**figure) for figure in times]
    return [figure for figure in figures if cluster.shapes(figure.gpu_type, figure.gpus)]


def _times(figure: TimeFigure, factor: float) -> TimeFigure:
    return replace(figure, time_s=max(_SHORTEST_S, figure.time_s * factor))


def _compared(config: Scenario) -> tuple[PolicySpec, PolicySpec]:
    return config.policies[0], baseline_of(config)


@dataclass(frozen=True)
class ClusterPart:
    """Nodes on which one policy places jobs, with these jobs: ``until_s`` is their time, which began at ``began_s``."""

    config: Scenario
    jobs: Sequence[Job]
    until_s: float
    past: Past | None = None
    began_s: float = 0.0


def placed_in(config: Scenario, *, ours: bool) -> Scenario:
    """Return *config* with the nodes of partitions that are handed over alone, or with the others."""
    placed = set(config.live.slurm.place_in)
    nodes = tuple(node for node in config.nodes if bool(placed.intersection(node.partitions)) == ours)

    def alone(plan: CapacitySpec | None) -> CapacitySpec | None:  # shared with pools that may be elsewhere
        return None if plan is None else plan.model_copy(update={"share": ()})

    policies = tuple(own.model_copy(update={"capacity": alone(own.capacity)}) for own in config.policies)
    return config.model_copy(update={"nodes": nodes, "capacity": alone(config.capacity), "policies": policies})


def added_up(parts: Sequence[Saved]) -> Saved:
    """Return what is saved on several parts of a cluster together."""
    whole: Saved = dict(parts[0])
    for part in parts[1:]:
        for key, value in part.items():
            own = whole[key]
            if key == "period_s":
                whole[key] = max(float(own or 0.0), float(value or 0.0))
            elif isinstance(own, float) and isinstance(value, float):
                whole[key] = own + value
            elif key == "no_forecast" and value is not None:
                whole[key] = value if own is None or own == value else f"{own}; {value}"
    return whole


def with_power_alone(config: Scenario) -> Scenario:
    """Return *config* as mode ``power`` runs it: the baseline places jobs, and our capacity plan is carried out."""
    ours, baseline = _compared(config)
    placed = baseline.model_copy(update={"capacity": ours.capacity or config.capacity})
    return config.model_copy(update={"policies": (placed, baseline)})


def plans_of(config: Scenario) -> tuple[CapacitySpec | None, CapacitySpec | None]:
    """Return the capacity plan in force and that of the baseline, which has none but its own."""
    ours, baseline = _compared(config)
    return ours.capacity or config.capacity, baseline.capacity


def estimate(
    config: Scenario, jobs: Sequence[Job], until_s: float, seed: int, past: Past | None = None, began_s: float = 0.0
) -> Saved:
    """Simulate *jobs* until *until_s* under the policy of *config* and its baseline; returns what ours saves.

    Nodes reserved for profiling are left out of both. *past* is the demand before the period, which capacity plans are
    fitted to; *began_s* is when the period began, for prices that change over time.
    """
    from commonwatt.simulation.run_setup import run_policy  # with all that simulates; the first estimate is later

    profiling = config.live.profiling
    cluster = Cluster.of(config.nodes).without(profiling.nodes if profiling else ())
    plain = {"unused_nodes": UnusedNodes(state=None), "outages": (), "capacity": None}
    scenario = config.model_copy(update={**plain, "electricity": config.electricity.seen_from(began_s)})
    table = JobArrays.of(jobs)

    def run(spec: PolicySpec, plan: CapacitySpec | None) -> PolicyRun:
        own = spec.model_copy(update={"capacity": plan, "unused_nodes": None})
        return run_policy(scenario, own, cluster, table, seed, past=past, until_s=until_s)

    totals: dict[str, tuple[float, float, float]] = {}
    plans: dict[str, str | None] = {}
    failures: list[str] = []
    for name, spec, plan in zip(("ours", "baseline"), _compared(config), plans_of(config), strict=True):
        ran, cause = _run_with(plan, cluster, past or Past(), partial(run, spec))
        plans[name] = None if ran.capacity is None else ran.capacity.policy
        failures += [] if cause is None else [f"{spec.label}: {cause}"]
        controller = ran.controller
        meter = controller.ledger.meter
        ended_s = np.nan_to_num(controller.registry.job("ended_s"), nan=until_s)
        late_s = np.maximum(0.0, ended_s - controller.registry.job("due_s"))
        tardiness = float((controller.registry.job("weight") * late_s).sum())
        totals[name] = ((meter.energy_uj or 0) / MICRO / J_PER_KWH, (meter.cost_n or 0) / NANO, tardiness)
    ours, baseline = totals["ours"], totals["baseline"]
    return {
        "baseline": baseline_of(config).label,
        "energy_kwh": baseline[0] - ours[0],
        "cost": baseline[1] - ours[1],
        "tardiness_cost": baseline[2] - ours[2],
        "baseline_energy_kwh": baseline[0],
        "baseline_cost": baseline[1],
        "capacity": plans["ours"],
        "baseline_capacity": plans["baseline"],
        "no_forecast": "; ".join(failures) or None,
        "jobs": float(len(jobs)),
        "period_s": until_s,
    }


def _run_with(
    plan: CapacitySpec | None, cluster: Cluster, past: Past, run: Callable[[CapacitySpec | None], PolicyRun]
) -> tuple[PolicyRun, str | None]:
    """Run with *plan*; if its forecaster fails, run with the last value instead, and return the cause as well."""
    if plan is None or not plan.forecasts:
        return run(plan), None
    fitting = plan.model_copy(update={"floor_gpus": min(plan.floor_gpus, cluster.total_gpus)})
    try:
        check_capacity(fitting, cluster, past)
        return run(fitting), None
    except Exception as error:  # the forecasters' libraries raise what they like, as ``live_capacity`` knows
        cause = str(error)
    return run(plan.model_copy(update={"policy": "last-value"})), cause


def past_of(config: Scenario, store: ApiStore, folder: Path, began_s: float, *, whole: bool = True) -> Past:
    """Return the demand before *began_s*, as far as plans need it; *folder* is that of the configuration.

    Not *whole*: *config* has some of the nodes whose demand was sampled.
    """
    past, cluster = Past({}, folder), Cluster.of(config.nodes)
    for plan in plans_of(config):
        if plan is None or not plan.forecasts:
            continue
        if not whole and plan.pools is None:  # samples do not tell parts of the cluster apart
            continue
        samples = [one for one in store.samples(since_s(plan, began_s), limit=1_000_000) if one.time_s < began_s]
        names = Pools.of(plan, cluster).names
        for name in names:
            part = past if plan.pools is None else past.pools.setdefault((plan.pools, name), Past({}, folder))
            demand = demand_of_samples(samples, plan.step_s, name if len(names) > 1 else None)
            if demand is not None:
                part.demands[plan.step_s, plan.history_days] = demand
    return past


class Estimator:
    """Renews the estimate now and then, in a process of its own, so that nothing waits for it."""

    def __init__(
        self, config: Scenario, store: ApiStore, maker: JobMaker, now_s: Callable[[], float], *, first_s: float = 60.0,
        every_s: float = 900.0, seed: int = 0, folder: Path = Path(), active: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        self._config, self._store, self._maker, self._now_s = config, store, maker, now_s
        self._first_s, self._every_s, self._seed = first_s, every_s, seed
        self._folder, self._active = folder, active
        self._stopping = threading.Event()
        earlier: Saved | None = store.setting(SAVED)
        fits = earlier is not None and earlier.get("baseline") == baseline_of(config).label
        self._saved = earlier if fits else None
        self._thread = threading.Thread(target=self._run, name="savings", daemon=True)

    def start(self) -> None:
        """Start; the first estimate comes after a while."""
        self._thread.start()

    def stop(self) -> None:
        """Stop."""
        self._stopping.set()

    def saved(self) -> Saved | None:
        """Return the last estimate, also from an earlier controller; ``None`` before the first."""
        return self._saved

    def look(self) -> Saved | None:
        """Make the estimate now, in a process of its own; ``None`` without jobs, or if it is stopped meanwhile.

        Raises the errors of that process, ``SolverError`` if it dies.
        """
        rows = self._store.jobs(limit=MOST_JOBS, newest_first=True)[::-1]
        observed = self._store.setting(SETTING, ())
        now_s = self._now_s()
        parts = self._parts(rows, observed, now_s)
        if not parts:
            return None
        context = get_context("spawn")
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(target=_estimate_to, args=(writer, parts, self._seed), daemon=True)
        process.start()
        writer.close()
        try:
            while not reader.poll(_LOOK_S):
                if self._stopping.is_set():
                    return None
            answer: Saved | CommonwattError = reader.recv()
        except EOFError:
            msg = "the process that makes the estimate has died"
            raise SolverError(msg) from None
        finally:
            process.kill()
            process.join()
            reader.close()
        if isinstance(answer, CommonwattError):
            raise answer
        return answer

    def _parts(self, rows: Sequence[JobRow], observed: Sequence[Mapping[str, Any]], now_s: float) -> list[ClusterPart]:
        """Return what is to be simulated: all jobs on all nodes, or ours where they are placed and others elsewhere."""
        config, cluster = self._config, Cluster.of(self._config.nodes)
        ratios = runtime_ratios(rows, cluster, self._store.database)
        mode = self._store.setting("mode", config.live.mode)
        if mode != "live" or not config.live.slurm.place_in:
            chosen = with_power_alone(config) if mode == "power" else config
            maker = replace(self._maker, cluster=cluster) if config.live.slurm.place_in else self._maker
            found = [(chosen, jobs_for_estimate(rows, maker, now_s, observed, ratios))]
        else:
            found = [(placed_in(config, ours=True), jobs_for_estimate(rows, self._maker, now_s, (), ratios))]
            others = with_power_alone(placed_in(config, ours=False))
            if others.nodes:
                elsewhere = replace(self._maker, cluster=Cluster.of(others.nodes))
                found.append((others, jobs_for_estimate((), elsewhere, now_s, observed)))
        parts = []
        for own, (jobs, period_s) in found:
            if jobs:
                began_s = now_s - period_s
                whole = len(own.nodes) == len(config.nodes)
                past = past_of(own, self._store, self._folder, began_s, whole=whole)
                parts.append(ClusterPart(own, jobs, period_s, past, began_s))
        return parts

    def _run(self) -> None:
        pause_s = self._first_s
        while not self._stopping.wait(pause_s):
            if not self._active():  # a standby: the other controller estimates
                continue
            pause_s = self._every_s
            try:
                if (saved := self.look()) is None:
                    continue
                self._saved = saved
                log.info("estimated savings", extra=saved)
                self._store.keep_setting(SAVED, saved)
            except (CommonwattError, OSError) as error:
                log.warning("no estimate of savings", extra={"cause": str(error)})


def _estimate_to(pipe: Connection, parts: Sequence[ClusterPart], seed: int) -> None:
    answer: Saved | CommonwattError
    os.nice(_NICE)
    try:
        own = [estimate(part.config, part.jobs, part.until_s, seed, part.past, part.began_s) for part in parts]
        answer = added_up(own)
    except CommonwattError as error:
        answer = error
    except Exception as error:  # it is for the log of the control plane, not for this process's standard error
        answer = SolverError(f"the estimate failed ({type(error).__name__}: {error})")
    pipe.send(answer)


_BEGINS = (EventKind.STARTED, EventKind.RESUMED, EventKind.RESIZED, EventKind.MIGRATED)
_ENDS = (
    EventKind.PREEMPTED, EventKind.INTERRUPTED, EventKind.NOT_STARTED, EventKind.COMPLETED, EventKind.FAILED,
    EventKind.CANCELLED,
)  # fmt: skip
_KEEPS = (EventKind.COMPLETED, EventKind.FAILED, EventKind.CANCELLED)  # the ledger lets a job that is over lose nothing


@dataclass(frozen=True)
class Stay:
    """A job had so many GPUs of these nodes for so long, and lost the work of ``lost_s``; ``None``: unknown."""

    nodes: tuple[str, ...]
    gpus: int
    seconds: float
    lost_s: float | None = 0.0


def runtime_ratios(rows: Sequence[JobRow], cluster: Cluster, database: Database) -> dict[int, float]:
    """Return, for each job of *rows* that has ended, its run time relative to the plan; 0 if it never ran.

    *cluster* has all nodes, those reserved for profiling included.
    """
    ended = {row.id: row for row in rows if row.status not in ACTIVE}
    jobs = sorted(ended)
    worked = worked_gpu_s(database, jobs)
    events = groupby(events_of(database, jobs, (*_BEGINS, *_ENDS)), key=lambda event: event.job)
    stays = {job: stays_of(own) for job, own in events}
    return {job: runtime_ratio(row, worked.get(job, 0.0), stays.get(job, ()), cluster) for job, row in ended.items()}


def stays_of(events: Iterable[EventRow]) -> list[Stay]:
    """Return the stays of a job from its *events* that begin and end one."""
    stays: list[Stay] = []
    began: EventRow | None = None
    for event in events:
        if began is not None and event.kind != EventKind.NOT_STARTED:
            lost_s = 0.0 if event.kind in _KEEPS else event.lost_s
            stays.append(Stay(began.nodes, began.gpus, max(0.0, event.time_s - began.time_s), lost_s))
        began = event if event.kind in _BEGINS else None
    return stays


def runtime_ratio(row: JobRow, worked_gpu_s: float, stays: Sequence[Stay], cluster: Cluster) -> float:
    """Return the run time of a job, which worked so many GPU seconds during *stays*, relative to the plan.

    Each stay counts by the time planned for its configuration, without lost work. If no stay is on a node of the
    cluster, because it is long ago or the cluster has changed, all configurations count alike.
    """
    planned_s = {(figure["gpu_type"], int(figure["gpus"])): float(figure["time_s"]) for figure in row.times or ()}
    kinds = dict(zip(cluster.names, cluster.klass.tolist(), strict=True))
    kept_gpu_s = parts = 0.0
    for stay, kept_s in zip(stays, _kept_s(stays, worked_gpu_s), strict=True):
        types = {cluster.classes[kinds[name]].gpu_type for name in stay.nodes if name in kinds}
        whole_s = planned_s.get((types.pop(), stay.gpus)) if len(types) == 1 else None
        if whole_s is not None:
            kept_gpu_s += stay.gpus * kept_s
            parts += kept_s / whole_s
    if kept_gpu_s > 0:
        return worked_gpu_s * parts / kept_gpu_s
    shares = [1.0 / (gpus * time_s) for (_, gpus), time_s in planned_s.items()]
    return worked_gpu_s * sum(shares) / len(shares) if shares else 0.0


def _kept_s(stays: Sequence[Stay], worked_gpu_s: float) -> list[float]:
    """Return the seconds of each stay without those lost.

    Work that is missing beyond known losses is taken from the stays whose loss is unknown, from each the same share.
    """
    lost = [min(stay.seconds, stay.lost_s or 0.0) for stay in stays]
    missing_gpu_s = sum(s.gpus * (s.seconds - lost_s) for s, lost_s in zip(stays, lost, strict=True)) - worked_gpu_s
    unknown_gpu_s = sum(stay.gpus * stay.seconds for stay in stays if stay.lost_s is None)
    share = min(1.0, max(0.0, missing_gpu_s) / unknown_gpu_s) if unknown_gpu_s > 0 else 0.0
    rest = [share * stay.seconds if stay.lost_s is None else 0.0 for stay in stays]
    return [stay.seconds - lost_s - more_s for stay, lost_s, more_s in zip(stays, lost, rest, strict=True)]
