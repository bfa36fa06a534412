"""The result of a study from the results of its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from commonwatt import __version__
from commonwatt.data.fitting import TOO_LARGE, UNFIT
from commonwatt.data.workload import NEVER
from commonwatt.model.arrays import Floats
from commonwatt.model.results import PolicyResult
from commonwatt.model.study_results import (
    STEP_NAMES,
    LoggedEnergy,
    RunService,
    StudyLog,
    StudyPolicy,
    StudyResult,
    StudyTenant,
    WaterfallStep,
)
from commonwatt.model.units import J_PER_KWH, plural
from commonwatt.simulation.as_logged import AS_LOGGED
from commonwatt.simulation.summary import percentiles_s
from commonwatt.studies.assumptions import STEP_ASSUMES, STEP_SWITCH, assumptions_of
from commonwatt.studies.rows import BASELINE, StudyRow
from commonwatt.studies.run import StudyOutcome, StudyPlan
from commonwatt.studies.savings import interval, mean, saved_pct

__all__ = ["study_result"]

Table = list[list[RunService | None]]  # [period][seed]
MOST_VALUED_PCT = 20.0
"""Part of the energy that may be valued, not metered, without a note."""
LEAST_LOST_PCT = 0.1
"""Less than that is not worth a note."""
_UNKNOWN: Table = [[None]]


def study_result(plan: StudyPlan, outcome: StudyOutcome) -> StudyResult:
    """Return the result of *plan*; what an interruption has left out is null."""
    tables = [outcome.of(plan, r) for r in range(len(plan.rows))]
    base = tables[0]
    ours = tables[next(r for r, row in enumerate(plan.rows) if row.kind == "ours")]
    reference = _reference(plan, tables)
    steps = tuple(_waterfall(plan, tables))
    whole = all(result is not None for table in tables for result in _flat(table))
    return StudyResult(
        version=__version__,
        seed=plan.seeds[0],
        input_digest=plan.digest(),
        study=plan.file.name,
        currency=plan.file.electricity.currency,
        about=_about(plan, outcome),
        baseline=plan.file.baseline.label,
        knowledge=plan.knowledge,
        conservative_saving_pct=saved_pct(_energy(ours), _energy(reference)),
        conservative_cost_saving_pct=saved_pct(_cost(ours), _cost(reference)),
        conservative_saving_interval=interval(_array(ours), _array(reference)),
        conservative_against="baseline" if reference is base else "thrifty baseline",
        waterfall=steps,
        policies=tuple(_policies(plan, tables, outcome)),
        assumptions=assumptions_of(plan),
        notes=(*_notes(plan, tables[0]), *_lost_note(steps), *_energy_note(_logged_energy(plan, outcome))),
        finished=whole,
    )


def _chooses(plan: StudyPlan) -> bool:
    """Whether schedulers choose GPU types although nothing is relaxed: the log names none, and the nodes differ."""
    return not plan.names_types and len(plan.first().cluster.gpu_types) > 1


def _reference(plan: StudyPlan, tables: Sequence[Table]) -> Table:
    """Return the row the conservative saving is against.

    Where ours chooses GPU types, it is today's scheduler that chooses them by energy, if that takes less.
    """
    if _chooses(plan):
        today = mean(_energy(tables[0]))
        for row, table in zip(plan.rows, tables, strict=True):
            thrifty = mean(_energy(table)) if row.kind == "alone" and row.step == "thrifty-type" else None
            if today is not None and thrifty is not None and thrifty < today:
                return table
    return tables[0]


def _energy_note(energy: LoggedEnergy | None) -> Iterator[str]:
    if energy is not None:
        off = f"{100.0 * (energy.modelled_kwh / energy.logged_kwh - 1.0):+.0f}%".replace("-", "\N{MINUS SIGN}")
        yield (
            f"The log has the energy of {plural(energy.jobs, 'job')}: {energy.logged_kwh:,.1f} kWh. At the same times "
            f"and places the model gives them {energy.modelled_kwh:,.1f} kWh ({off}), with their part of their "
            "nodes' idle power. A meter that reads whole nodes counts jobs that share one several times."
        )


def _lost_note(steps: Sequence[WaterfallStep]) -> Iterator[str]:
    """Say which steps cost energy: a reader expects each to save some."""
    with_saving = [step for step in steps if step.saved_pct is not None]
    lost = [b.step for a, b in pairwise(with_saving) if (b.saved_pct or 0.0) < (a.saved_pct or 0.0) - LEAST_LOST_PCT]
    if lost:
        names = [STEP_NAMES.get(step, step).replace("thrifty", "the thrifty") for step in lost]
        yield (
            f"Adding {' and '.join(filter(None, (', '.join(names[:-1]), names[-1])))} reduced the saving. Schedulers "
            "weigh waiting beside energy, work lost to a stop is done again, and another GPU type may draw more in all."
        )


def _flat(table: Table) -> Iterator[RunService | None]:
    for row in table:
        yield from row


def _numbers(table: Table, of: Callable[[PolicyResult], float | None]) -> list[float | None]:
    return [None if result is None else of(result.result) for result in _flat(table)]


def _energy(table: Table) -> list[float | None]:
    return _numbers(table, lambda result: result.window_energy_kwh)


def _cost(table: Table) -> list[float | None]:
    return _numbers(table, lambda result: result.window_cost)


def _array(table: Table) -> np.ndarray:
    values = [np.nan if value is None else value for value in _energy(table)]
    return np.array(values, dtype=float).reshape(len(table), -1)


def _about(plan: StudyPlan, outcome: StudyOutcome) -> StudyLog:
    first, treatments = plan.first(), _treatments(plan, outcome)
    tables = [plan.prepared[plan.runs[0, w, 0]].table for w in range(len(plan.starts))]
    spans = [float(table.submit_s.max() - table.submit_s.min()) for table in tables]
    return StudyLog(
        source=_source(plan),
        begin=plan.starts,
        days=plan.file.workload.days,
        weeks=len(plan.starts),
        seeds=plan.seeds,
        jobs=sum(len(table) for table in tables),
        tenants=len({name for table in tables for name in table.tenants}),
        nodes=len(first.cluster),
        gpus=first.cluster.total_gpus,
        gpu_types=first.cluster.gpu_types,
        names_gpu_types=plan.names_types,
        window_s=float(np.mean(spans)),
        treatments=treatments,
        left_out={how: treatments[how] for how in (TOO_LARGE, UNFIT, NEVER) if how in treatments},
        energy=_logged_energy(plan, outcome),
    )


def _logged_energy(plan: StudyPlan, outcome: StudyOutcome) -> LoggedEnergy | None:
    energies = [replay.measured for replay in outcome.logged.values() if replay.measured is not None]
    if not energies:
        return None
    seeds = len(plan.seeds)
    return LoggedEnergy(
        jobs=sum(one.jobs for one in energies) // seeds,
        logged_kwh=sum(one.logged_j for one in energies) / seeds / J_PER_KWH,
        modelled_kwh=sum(one.modelled_j for one in energies) / seeds / J_PER_KWH,
    )


def _treatments(plan: StudyPlan, outcome: StudyOutcome) -> dict[str, int]:
    """Return how many jobs of all periods were not taken as the log has them, by what was done."""
    counts: dict[str, int] = {}
    of_the_log = {} if plan.log is None else plan.log.left_out()  # not of a period
    for week in range(len(plan.starts)):
        logged = outcome.logged.get((week, 0))
        own = plan.prepared[plan.runs[0, week, 0]].treatments if logged is None else logged.treatments
        for how, count in own.items():
            counts[how] = count if how in of_the_log else counts.get(how, 0) + count
    extra = max((replay.extra_nodes for replay in outcome.logged.values()), default=0)
    return counts | ({"nodes the log needs beyond those given, as logged": extra} if extra else {})


def _source(plan: StudyPlan) -> str:
    """Return the source of the jobs and of their speeds; of one period with its jobs."""
    first = plan.first()
    if plan.log is None or len(plan.starts) == 1:
        return first.sentence
    return f"{plan.log.source}, {len(plan.starts)} periods from {plan.starts[0]}; {first.speeds}"


def _waterfall(plan: StudyPlan, tables: Sequence[Table]) -> Iterator[WaterfallStep]:
    base = tables[0]
    yield WaterfallStep(
        step=BASELINE, energy_kwh=mean(_energy(base)), cost=mean(_cost(base)), saved_pct=0.0, cost_saved_pct=0.0,
        alone_pct=None, alone_cost_pct=None, alone_against=None, p95_wait_s=_p95_wait_s(base),
        longest_wait_s=_most_of(base, "longest_wait_s"), switch="baseline",
        assumes="What the cluster runs today, simulated with the jobs of the log.",
    )  # fmt: skip
    by_taken = {row.taken: tables[r] for r, row in enumerate(plan.rows) if row.kind in ("baseline", "ours", "alone")}
    upto = {row.step: tables[r] for r, row in enumerate(plan.rows) if row.kind == "step"}
    for r, row in enumerate(plan.rows):
        if row.kind != "alone" or row.step is None:
            continue
        against = by_taken[row.against]
        has_price = row.step != "price" or bool(plan.file.electricity.series)
        there, alone = (upto[row.step], tables[r]) if has_price else (_UNKNOWN, _UNKNOWN)
        yield WaterfallStep(
            step=row.step,
            energy_kwh=mean(_energy(there)),
            cost=mean(_cost(there)),
            saved_pct=saved_pct(_energy(there), _energy(base)),
            cost_saved_pct=saved_pct(_cost(there), _cost(base)),
            alone_pct=saved_pct(_energy(alone), _energy(against)),
            alone_cost_pct=saved_pct(_cost(alone), _cost(against)),
            alone_against="planning" if row.against else "baseline",
            p95_wait_s=_p95_wait_s(there),
            longest_wait_s=_most_of(there, "longest_wait_s"),
            switch=STEP_SWITCH[row.step],
            assumes=STEP_ASSUMES[row.step] + ("" if has_price else " The price given here is constant."),
        )


def _p95_wait_s(table: Table) -> float | None:
    """Return the percentile over the jobs of all periods and seeds; ``None`` if a run is missing."""
    runs = [run for run in _flat(table) if run is not None]
    complete = runs and len(runs) == sum(map(len, table))
    return float(np.percentile(np.concatenate([run.wait_s for run in runs]), 95)) if complete else None


def _most_of(table: Table, name: str) -> float | None:
    values = _numbers(table, lambda result: getattr(result, name))
    numbers = [value for value in values if value is not None]
    return max(numbers) if len(numbers) == len(values) else None


def _policies(plan: StudyPlan, tables: Sequence[Table], outcome: StudyOutcome) -> Iterator[StudyPolicy]:
    if outcome.logged:
        weeks, seeds = len(plan.starts), len(plan.seeds)
        logged: Table = [[outcome.logged[w, s].record.service() for s in range(seeds)] for w in range(weeks)]
        yield _policy(AS_LOGGED, "as-logged", None, logged, tables[0])
    for row, table in zip(plan.rows, tables, strict=True):
        if row.kind in ("baseline", "alternative", "ours") and all(result is not None for result in _flat(table)):
            done = _policy(row.name, row.kind, row, table, tables[0])
            chooses = row.kind == "alternative" and bool(row.taken) and plan.names_types
            yield done.model_copy(update={"relaxes": "GPU type" if chooses else None})


def _policy(name: str, role: str, row: StudyRow | None, table: Table, base: Table) -> StudyPolicy:
    runs = [run for run in _flat(table) if run is not None]
    results = [run.result for run in runs]
    wait_s, slowdown = (np.concatenate([getattr(run, name) for run in runs]) for name in ("wait_s", "slowdown"))
    jobs = [result.jobs for result in results]
    return StudyPolicy(
        policy=name,
        role=role,
        solver=None if row is None else row.policy.solver,
        energy_kwh=mean(_energy(table)),
        cost=mean(_cost(table)),
        saved_pct=saved_pct(_energy(table), _energy(base)),
        unfinished_pct=_unfinished_pct(table),
        gpu_utilization=mean([result.window_gpu_utilization for result in results]),
        mean_wait_s=float(wait_s.mean()),
        **percentiles_s(wait_s),
        mean_total_wait_s=float(np.average([result.mean_total_wait_s for result in results], weights=jobs)),
        slowdown_p50=float(np.percentile(slowdown, 50)),
        slowdown_p99=float(np.percentile(slowdown, 99)),
        tail_s=float(np.mean([result.tail_s for result in results])),
        unfairness_worst=mean([result.finish_time_fairness.worst for result in results]),
        most_starts=max(result.most_starts for result in results),
        tenants=tuple(_tenants(runs, seeds=len(table[0]))),
    )


def _unfinished_pct(table: Table) -> float | None:
    valued = mean(_numbers(table, lambda result: result.unfinished_energy_kwh))
    whole = mean(_energy(table))
    return None if valued is None or not whole else 100.0 * valued / whole


def _tenants(runs: Sequence[RunService], seeds: int) -> list[StudyTenant]:
    """Return the waits of each tenant over the jobs of all *runs*, which are every period once for each seed."""
    by_name: dict[str, list[Floats]] = {}
    for run in runs:
        wait_s, tenant = np.array(run.wait_s), np.array(run.tenant)
        for k, name in enumerate(run.tenants):
            by_name.setdefault(name, []).append(wait_s[tenant == k])
    own = {name: np.concatenate(parts) for name, parts in by_name.items()}
    rows = [StudyTenant(tenant=name, jobs=len(wait) / seeds, **percentiles_s(wait)) for name, wait in own.items()]
    return sorted(rows, key=lambda row: (-row.jobs, row.tenant))


def _notes(plan: StudyPlan, base: Table) -> Iterator[str]:
    file = plan.file
    if plan.knowledge == "oracle":
        yield "Every scheduler here knows every run time exactly. No real one does: read all savings as upper limits."
    if _chooses(plan):
        yield (
            "The log names no GPU type, so every scheduler chooses one, and a job may run longer on it than it did. "
            + (
                "The headline is against today's scheduler with that choice, if it takes less energy than without."
                if "thrifty-type" in file.steps
                else "The headline contains that choice, which thrifty EASY has too."
            )
        )
    if len(plan.starts) > 1:
        yield (
            f"Energy and cost are means of {len(plan.starts)} periods; waits and their percentiles are of all jobs of "
            "all periods."
        )
    if len(plan.starts) == 1 and len(plan.seeds) == 1:
        yield "One period and one seed: how much the saving would differ in another week is not known."
    elif len(plan.starts) == 1:
        yield "One period: the interval covers what is drawn, not other weeks."
    valued = _unfinished_pct(base)
    if valued is not None and valued > MOST_VALUED_PCT:
        yield (
            f"{valued:.0f}% of the energy is work that is unfinished at the end of a period: valued, not metered. The "
            "period is short for jobs as long as these; give more days."
        )
    if plan.log is None or np.isnan(plan.log.start_s).all():
        yield "The log itself is not among the rows: it does not tell when jobs started."
    if any(spec.solver == "srtf" for spec in file.alternatives):
        yield "SRTF knows every run time: a yardstick for waiting, not a scheduler to run."
    if any(spec.gpu_type_choice == "thrifty" for spec in file.alternatives) and plan.names_types:
        yield "Thrifty EASY gives jobs another GPU type than they asked for."
    if isinstance(file.due_dates, str):
        yield "Jobs have no due dates here, so schedulers that plan order them by size and run time alone."
