"""Runs the rows of a study on all its periods and seeds, and keeps what is done."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from commonwatt import __version__
from commonwatt.data.files import write_atomic
from commonwatt.data.log import JobLog, time_of
from commonwatt.data.workload import PUBLIC_LOGS, FitTypes, read_whole_log
from commonwatt.model.errors import ArgumentError, InputError
from commonwatt.model.scenario import Knowledge, LogWorkload, Scenario
from commonwatt.model.study_file import StudyFile, StudyWorkload
from commonwatt.model.study_results import RunService
from commonwatt.model.units import DAY_S
from commonwatt.simulation.as_logged import LogReplay, replay_log
from commonwatt.simulation.record import code_digest
from commonwatt.simulation.run_setup import check_runs
from commonwatt.simulation.runner import Listener, Prepared, run_each, warm_up_all, workers_for
from commonwatt.simulation.workload import check_tenants, prepare
from commonwatt.studies.rows import StudyRow, rows_of, scenario_of

__all__ = ["StudyInterruptedError", "StudyOutcome", "StudyPlan", "plan_study", "run_study"]

ROWS = "rows"
"""Folder of finished runs, below that of the study."""

ROWS_VERSION = 2
"""Of what is kept of a run: 2 has what each job got."""

Following = Callable[[Sequence[Prepared]], AbstractContextManager[Listener]]


@dataclass(frozen=True)
class StudyPlan:
    """What a study runs: for each row, period and seed a prepared scenario. Runs of equal digest are run once."""

    file: StudyFile
    log: JobLog | None  # None: a generated workload
    knowledge: Knowledge
    names_types: bool
    starts: tuple[str, ...]  # of the periods
    seeds: tuple[int, ...]
    rows: tuple[StudyRow, ...]
    runs: dict[tuple[int, int, int], str]  # by row, period and seed: the digest
    prepared: dict[str, Prepared] = field(repr=False)

    def digest(self) -> str:
        """Return the SHA-256 of all runs in order."""
        return hashlib.sha256("".join(self.runs.values()).encode()).hexdigest()

    def first(self) -> Prepared:
        """Return the first run's scenario: the baseline in the first period."""
        return self.prepared[self.runs[0, 0, 0]]


@dataclass(frozen=True)
class StudyOutcome:
    """The results of a plan, by digest, and the log as it was."""

    results: dict[str, RunService]
    logged: dict[tuple[int, int], LogReplay]  # by period and seed; empty where the log does not tell

    def of(self, plan: StudyPlan, row: int) -> list[list[RunService | None]]:
        """Return the results of a row, [period][seed]; ``None``: not run yet."""
        return [
            [self.results.get(plan.runs[row, week, seed]) for seed in range(len(plan.seeds))]
            for week in range(len(plan.starts))
        ]


class StudyInterruptedError(KeyboardInterrupt):
    """Ctrl-C during a study; *done* of *total* runs are kept."""

    def __init__(self, outcome: StudyOutcome, done: int, total: int) -> None:
        self.outcome, self.done, self.total = outcome, done, total
        super().__init__()


def plan_study(file: StudyFile, folder: Path, seed: int) -> StudyPlan:
    """Return what *file*, whose paths are relative to *folder*, runs.

    Raises ``InputError`` for whatever is wrong in it or in its log.
    """
    log = read_whole_log(file.workload, folder) if isinstance(file.workload, LogWorkload) else None
    if log is None and file.weeks > 1:
        raise InputError("1 for a generated workload, whose seeds are other weeks", field="weeks", value=file.weeks)
    file = _of_own_cluster(file, log)
    names_types = log is not None and any(log.gpu_type)
    knowledge = _knowledge(file, log)
    workloads = _periods(file, log)
    seeds = tuple(range(seed, seed + file.seeds))
    rows = tuple(rows_of(file))
    runs: dict[tuple[int, int, int], str] = {}
    prepared: dict[str, Prepared] = {}
    made: dict[tuple[str, int], Prepared] = {}  # by workload and seed: rows mostly share their jobs
    for r, row in enumerate(rows):
        for w, workload in enumerate(workloads):
            scenario = scenario_of(file, row, workload, names_types=names_types, knowledge=knowledge)
            for s, own in enumerate(seeds):
                one = _prepared(scenario, folder, own, made, "own" if names_types else "any")
                runs[r, w, s] = _key(one)
                prepared.setdefault(runs[r, w, s], one)
    names = {name for one in made.values() for name in one.table.tenants} | set(() if log is None else log.tenant)
    check_tenants(file.tenants, sorted(names))
    starts = tuple(getattr(workload, "begin", None) or "its first submission" for workload in workloads)
    return StudyPlan(file, log, knowledge, names_types, starts, seeds, rows, runs, prepared)


def _of_own_cluster(file: StudyFile, log: JobLog | None) -> StudyFile:
    """Return *file* with its cluster's GPU type for jobs whose own log names none, if the cluster has only one."""
    types = {node.gpu_type for node in file.nodes}
    own = file.workload.source not in PUBLIC_LOGS and file.workload.logged_gpu_type is None
    if log is None or all(log.gpu_type) or len(types) > 1 or not own:
        return file
    return file.model_copy(update={"workload": file.workload.model_copy(update={"logged_gpu_type": types.pop()})})


def _prepared(
    scenario: Scenario, folder: Path, seed: int, made: dict[tuple[str, int], Prepared], fit_types: FitTypes
) -> Prepared:
    """Return *scenario* with its jobs; those of equal workloads are *made* once.

    Jobs that fit no node under the rules of today are left out, in every row alike.
    """
    workload = scenario.workload
    same = "" if workload is None else f"{workload.model_dump_json()} {scenario.power_limits}", seed
    if same not in made:  # a tenant may have no jobs in some period
        made[same] = prepare(scenario.model_copy(update={"tenants": ()}), folder, seed, fit_types=fit_types)
    here = tuple(tenant for tenant in scenario.tenants if tenant.name in made[same].table.tenants)
    workload = made[same].scenario.workload  # it says on which GPU type a job ran whose log names none
    scenario = scenario.model_copy(update={"tenants": here, "workload": workload})
    prepared = replace(made[same], scenario=scenario)
    check_runs(scenario, prepared.cluster, prepared.table)
    return prepared


def _key(prepared: Prepared) -> str:
    return hashlib.sha256(
        f"{__version__} {ROWS_VERSION} {code_digest()} {prepared.seed} {prepared.digest()}".encode()
    ).hexdigest()


def _knowledge(file: StudyFile, log: JobLog | None) -> Knowledge:
    """Return what is known of run times; ``auto``: the limits where half of the jobs have one, else predictions."""
    if file.knowledge != "auto":
        return file.knowledge
    limited = log is not None and float((log.time_limit_s < np.inf).mean()) >= 0.5
    return "user-limit" if limited else "predicted"


def _periods(file: StudyFile, log: JobLog | None) -> list[StudyWorkload]:
    workload = file.workload
    if log is None or not isinstance(workload, LogWorkload) or file.weeks == 1:
        return [workload]
    begin_s = log.span_s[0] if workload.begin is None else time_of(log, workload.begin)
    starts = [begin_s + k * workload.days * DAY_S for k in range(file.weeks)]
    texts = [f"{at:.0f}" if log.origin is None else log.moment(at) for at in starts]
    return [workload.model_copy(update={"begin": text}) for text in texts]


def run_study(
    plan: StudyPlan, *, folder: Path | None = None, jobs: int | None = 1,
    following: Following | None = None,
) -> StudyOutcome:  # fmt: skip
    """Run *plan*, *jobs* runs at a time; if ``None``, one per CPU, or one by one if all are short.

    Parameters
    ----------
    folder
        Where finished runs are kept, and found again by the next study. ``None``: they are not kept.
    following
        Opens a listener of the runs that are left to do.

    Raises
    ------
    StudyInterruptedError
        On Ctrl-C.
    """
    results = {} if folder is None else dict(_kept(folder, plan))
    left = [key for key in plan.prepared if key not in results]
    todo = [plan.prepared[key] for key in left]
    try:
        if todo:
            with nullcontext() if following is None else following(todo) as listener:
                warm_up_all([p.scenario.policies[0] for p in todo], plan.knowledge)
                for k, result in run_each(todo, jobs=workers_for(todo, jobs, runs=len(todo)), listener=listener):
                    results[left[k]] = result
                    if folder is not None:
                        _keep(folder, left[k], result)
    except KeyboardInterrupt:
        raise StudyInterruptedError(StudyOutcome(results, {}), len(results), len(plan.prepared)) from None
    return StudyOutcome(results, dict(_as_logged(plan)))


def _as_logged(plan: StudyPlan) -> Iterator[tuple[tuple[int, int], LogReplay]]:
    """Yield the log itself, replayed with the kinds of model of each seed; nothing if it does not tell starts."""
    if plan.log is None or np.isnan(plan.log.start_s).all():
        return
    for week in range(len(plan.starts)):
        for seed in range(len(plan.seeds)):
            yield (week, seed), replay_log(plan.prepared[plan.runs[0, week, seed]], lower_bound=0.0)


def _kept(folder: Path, plan: StudyPlan) -> Iterator[tuple[str, RunService]]:
    """Yield the runs of *plan* that an earlier study finished; what cannot be read is run again."""
    for key in plan.prepared:
        try:
            text = (folder / ROWS / f"{key}.json").read_text(encoding="utf-8")
            yield key, RunService.model_validate_json(text)
        except (FileNotFoundError, ValidationError):
            continue
        except OSError as error:
            raise ArgumentError(f"a readable folder ({error.strerror})", field="out", value=folder) from None


def _keep(folder: Path, key: str, run: RunService) -> None:
    try:
        (folder / ROWS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"a writable folder ({error.strerror})", field="out", value=folder) from None
    kept = run.model_copy(update={"result": run.result.model_copy(update={"scheduler_s": None})})
    write_atomic(folder / ROWS / f"{key}.json", kept.model_dump_json() + "\n")
