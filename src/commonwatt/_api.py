"""The functions of ``import commonwatt``: one call for each command that decides something.

Each takes a path, a mapping or a validated model, raises ``InputError`` for what is wrong in it (with the file, where
there is one), and returns the command's document as a class of ``commonwatt._results``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_args

from commonwatt._stopwatch import without_compiling
from commonwatt.model.plugins import chosen, valid
from commonwatt.model.policies import SolverName

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from pydantic import BaseModel

    from commonwatt._results import (
        ForecastPlan,
        MigPartition,
        Partition,
        Placement,
        Shown,
        Simulation,
        Study,
        Sweep,
        TimeslicePlan,
    )
    from commonwatt.model.demand import DemandSeries
    from commonwatt.model.partition_file import MigFile, PartitionFile
    from commonwatt.model.place_file import PlaceFile
    from commonwatt.model.scenario import Scenario
    from commonwatt.model.study_file import StudyFile
    from commonwatt.model.timeslice_file import PlanFile
    from commonwatt.simulation.runner import Backend, Listener
    from commonwatt.studies.run import Following

__all__ = ["forecast", "partition", "partition_mig", "place", "simulate", "study", "timeslice"]

M = TypeVar("M", bound="BaseModel")
S = TypeVar("S", bound="Shown")
_SOLVERS, _POLICIES = ("best", *get_args(SolverName)), ("etf", "tf", "ef", "etf-energy")


def read_given(
    given: str | Path | Mapping[str, object] | M, model: type[M], name: str = "problem"
) -> tuple[M, Path | None]:
    """Return *given*, for the parameter *name*, as *model*, and the file it was read from."""
    from commonwatt.data.files import load_yaml, validate
    from commonwatt.model.errors import ArgumentError

    if isinstance(given, str | Path):
        return load_yaml(given, model), Path(given)
    if isinstance(given, Mapping):
        return validate(dict(given), model), None
    if not isinstance(given, model):
        raise ArgumentError(f"a path, a mapping or a {model.__name__}", field=name, value=repr(given))
    return given, None


@contextmanager
def naming_file(path: Path | None) -> Iterator[None]:
    """Let an ``InputError`` raised inside name *path*, where there is one."""
    from commonwatt.model.errors import InputError

    try:
        yield
    except InputError as error:
        raise (error if path is None else error.within(path)) from None


def simulate(
    scenario: str | Path | Mapping[str, object] | Scenario,
    *,
    policies: Sequence[str] = (),
    seed: int = 0,
    seeds: int = 1,
    jobs: int | None = None,
    backend: Backend = "loky",
    out: str | Path | None = None,
    overwrite: bool = False,
    folder: str | Path | None = None,
    listener: Listener | None = None,
) -> Simulation | Sweep:
    """Replay the workload of a scenario on its cluster, once under each of its policies.

    Parameters
    ----------
    scenario
        A file, its content as a mapping, or a validated scenario.
    policies
        Run only these, by name; all if empty.
    seed, seeds
        First seed, and how many from it on.
    jobs
        Runs at a time, in processes; if not given, one per CPU, or one by one if all are short.
    backend
        ``"loky"``, processes on this machine, or ``"ray"``.
    out
        Folder for report, result and events. What an interrupted call has done is kept there: the same call goes on.
    overwrite
        Replace the results of another call in *out*.
    folder
        Folder that paths in the scenario are relative to. [default: the file's, else the current one]
    listener
        Receives the progress of the runs.

    Returns
    -------
    Simulation or Sweep
        With more than one seed, means and standard deviations over the seeds.

    Raises
    ------
    InputError
        Something is wrong in the scenario, its workload or an argument.
    RunsInterruptedError
        On Ctrl-C; what was done is kept in *out*.
    """
    from commonwatt._results import Simulation, Sweep
    from commonwatt.model.names import check_choice, check_count
    from commonwatt.model.scenario import Scenario
    from commonwatt.report.folder import kept_runs, write_run
    from commonwatt.simulation.runner import BACKENDS, RunsInterruptedError, run_seeds, sweep_result, workers_for
    from commonwatt.simulation.workload import prepare, with_policies

    check_count("seed", seed, 0)
    check_count("seeds", seeds)
    check_count("jobs", jobs)
    check_choice("backend", backend, BACKENDS)
    file, path = read_given(scenario, Scenario, "scenario")
    base = Path(folder) if folder is not None else Path() if path is None else path.parent
    target = None if out is None else Path(out)
    with naming_file(path):
        file = with_policies(file, policies)
        prepared = [prepare(file, base, s) for s in range(seed, seed + seeds)]
        kept = None if target is None else kept_runs(target, prepared, overwrite=overwrite)
        workers = workers_for(prepared, jobs, backend, runs=len(file.policies) * seeds)
        try:
            results, records = run_seeds(prepared, jobs=workers, backend=backend, listener=listener, kept=kept)
        except RunsInterruptedError as stopped:
            if target is not None and stopped.results:
                write_run(target, file, base, stopped.results, stopped.records, interrupted=True)
            raise
    if target is not None:
        write_run(target, file, base, results, records)
    if seeds > 1:
        return Sweep(**dict(sweep_result(results)))
    simulation = Simulation(**dict(results[0]))
    simulation._records = records  # noqa: SLF001

    def draw(to: Path) -> None:
        from commonwatt.report.plots import save_overview

        save_overview(simulation, records, to)

    simulation._draw = draw  # noqa: SLF001
    return simulation


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)


def study(
    log: str | Path | Mapping[str, object] | StudyFile,
    *,
    nodes: str | Path | None = None,
    qos: str | Path | None = None,
    associations: str | Path | None = None,
    priority: str | Path | None = None,
    begin: str | None = None,
    days: float | None = None,
    weeks: int | None = None,
    seeds: int | None = None,
    knowledge: str | None = None,
    gpu_type: str | None = None,
    price_per_kwh: float | None = None,
    pue: float | None = None,
    currency: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    folder: str | Path | None = None,
    seed: int = 0,
    jobs: int | None = None,
    following: Following | None = None,
) -> Study:
    """Estimate what another scheduler would have saved on a log. The first estimate changes no job's request.

    Parameters
    ----------
    log
        A job log of any format that is read, the name of a public one, a study file or a scenario; or a study as a
        mapping or a model.
    nodes
        For a log: what ``scontrol show node`` printed, or a scenario with nodes.
    qos, associations, priority
        What ``sacctmgr --parsable2 show qos``, ``show associations tree`` and ``scontrol show config`` printed.
    begin, days, weeks
        Start, length and number of periods. [default: the file's; of a log its last whole weeks, up to 4]
    seeds
        Seeds of each period, from *seed* on.
    knowledge
        What schedulers know of run times: ``auto``, ``oracle``, ``user-limit``, ``predicted`` or ``none``.
    gpu_type
        GPU type of jobs whose log names none.
    price_per_kwh, pue, currency
        Of electricity.
    out
        Folder for report and result, where what is done is kept: the next study there goes on from it.
    overwrite
        Replace another study in *out*; finished runs that it shares are kept.
    folder
        Folder that paths of a mapping or model are relative to. [default: the current one]
    jobs
        Runs at a time, in processes; if not given, one per CPU, or one by one if all are short.
    following
        Opens a listener for the progress of the runs.

    Returns
    -------
    Study
        Conservative saving with its interval, waterfall, policies and assumptions. One row a policy in ``to_frame``.

    Raises
    ------
    InputError
        Something is wrong in a file or an argument.
    StudyInterruptedError
        On Ctrl-C; what was done is kept in *out*.
    """
    from commonwatt._results import Study
    from commonwatt.model.names import check_count
    from commonwatt.model.study_file import StudyFile
    from commonwatt.report.study_folder import check_study_folder, write_study
    from commonwatt.studies.draft import DraftOptions, apply_options, load_study
    from commonwatt.studies.run import plan_study, run_study
    from commonwatt.studies.summary import study_result

    check_count("jobs", jobs)
    check_count("seed", seed, 0)
    options = DraftOptions(
        nodes=_path(nodes), qos=_path(qos), associations=_path(associations), priority=_path(priority), begin=begin,
        days=days, weeks=weeks, seeds=seeds, knowledge=knowledge, gpu_type=gpu_type, price_per_kwh=price_per_kwh,
        pue=pue, currency=currency,
    )  # fmt: skip
    if isinstance(log, str | Path):
        file, base = load_study(log, options)
    else:
        file, base = apply_options(read_given(log, StudyFile, "log")[0], options), Path(folder or ".")
    target = None if out is None else Path(out)
    if target is not None:
        check_study_folder(target, file, base, overwrite=overwrite)
    plan = plan_study(file, base, seed)
    result = study_result(plan, run_study(plan, folder=target, jobs=jobs, following=following))
    if target is not None:
        write_study(target, file, base, result)

    def draw(to: Path) -> None:
        from commonwatt.report.plots import save_waterfall

        save_waterfall(result, to)

    return shown(Study, result, draw)


def place(
    problem: str | Path | Mapping[str, object] | PlaceFile,
    *,
    solver: str = "best",
    iterations: int = 1000,
    time_limit_s: float | None = None,
    seed: int = 0,
) -> Placement:
    """Decide which job runs on which node with how many GPUs now.

    Parameters
    ----------
    problem
        A file, its content as a mapping, or a validated problem.
    solver
        Name of a solver, as ``commonwatt place --solver`` takes it. ``best``: local search, and a bound on the optimum
        where the problem is not too large for one.
    iterations
        Candidates of ``random-greedy``; ``local-search`` and ``best`` take 20 steps for each.
    time_limit_s
        Stop after so many seconds with the best schedule found.
    seed
        Seed of everything random.

    Raises
    ------
    InputError
        Something is wrong in the problem, or the solver is unknown.
    """
    from commonwatt._results import Placement
    from commonwatt.model.place_file import PlaceFile
    from commonwatt.placement import solve_file

    file, path = read_given(problem, PlaceFile)
    with naming_file(path), without_compiling() as watch, valid("solvers", solver, _SOLVERS):
        result = solve_file(
            file, clock=lambda: watch.elapsed_s, solver=chosen("solvers", solver, _SOLVERS),
            iterations=iterations, time_limit_s=time_limit_s, seed=seed,
        )  # fmt: skip

    def draw(to: Path) -> None:
        from commonwatt.placement import PlacementProblem, Schedule
        from commonwatt.report.plots import save_schedule

        compiled = PlacementProblem.of(file)
        save_schedule(compiled, Schedule.of(compiled, result), to)

    return shown(Placement, result, draw)


def timeslice(
    problem: str | Path | Mapping[str, object] | PlanFile,
    *,
    policy: str = "etf",
    phi: float | None = None,
    seed: int = 0,
) -> TimeslicePlan:
    """Divide one quantum among the tenants of a problem.

    Parameters
    ----------
    problem
        A file, its content as a mapping, or a validated problem.
    policy
        ``etf``, ``tf`` (time-fair), ``ef`` (energy-fair) or ``etf-energy`` (energy is guaranteed, time evened out).
    phi
        Time-fair factor, 0 to 1; the problem's if not given.
    seed
        Recorded in the answer; nothing here is random.

    Raises
    ------
    InputError
        Something is wrong in the problem.
    """
    from commonwatt._results import TimeslicePlan
    from commonwatt.model.timeslice_file import PlanFile
    from commonwatt.timeslicing import solve_file

    file, path = read_given(problem, PlanFile)
    by = chosen("schedulers", policy, _POLICIES, file.phi if phi is None else phi)
    with naming_file(path), valid("schedulers", policy, _POLICIES):
        result = solve_file(file, policy=by, phi=phi, seed=seed)

    def draw(to: Path) -> None:
        from commonwatt.report.decision_plots import save_plan

        save_plan(result, to)

    return shown(TimeslicePlan, result, draw)


def partition(
    problem: str | Path | Mapping[str, object] | PartitionFile,
    *,
    mechanism: str = "fisher",
    welfare: str = "nash",
    tolerance: float = 1e-9,
    iterations: int | None = None,
    seed: int = 0,
) -> Partition:
    """Choose a configuration of core clusters for the tenants of a problem, and divide it among them.

    Parameters
    ----------
    problem
        A file, its content as a mapping, or a validated problem.
    mechanism
        What divides a configuration: ``fisher``, ``entitlement`` or ``weighted-equal-speedup``.
    welfare
        What chooses one: ``nash``, ``utilitarian`` or ``egalitarian``.
    tolerance
        Largest residual of an equilibrium.
    iterations
        Rounds of bidding at most.
    seed
        Recorded in the answer; nothing here is random.

    Raises
    ------
    InputError
        Something is wrong in the problem or an argument.
    SolverError
        A market does not reach *tolerance*.
    """
    from commonwatt._results import Partition
    from commonwatt.data.partition import load_partition
    from commonwatt.model.partition_file import PartitionFile
    from commonwatt.partitioning import MECHANISMS, solve_file

    if isinstance(problem, str | Path):
        path: Path | None = Path(problem)
        file = load_partition(Path(problem))
    else:
        file, path = read_given(problem, PartitionFile)
    with naming_file(path), valid("partitioners", mechanism, MECHANISMS):
        result = solve_file(
            file, mechanism=chosen("partitioners", mechanism, MECHANISMS), welfare=welfare, tolerance=tolerance,
            iterations=iterations, seed=seed,
        )  # fmt: skip

    def draw(to: Path) -> None:
        from commonwatt.report.decision_plots import save_partition

        save_partition(result, to)

    return shown(Partition, result, draw)


def partition_mig(
    problem: str | Path | Mapping[str, object] | MigFile,
    *,
    mode: str = "market",
    welfare: str = "nash",
    time_limit_s: float = 60.0,
    seed: int = 0,
) -> MigPartition:
    """Choose how MIG divides GPUs into instances, and which tenant gets which.

    Parameters
    ----------
    problem
        A file, its content as a mapping, or a validated problem.
    mode
        ``market``: time shares of instances, with prices; ``integer``: whole instances.
    welfare
        ``nash``, ``utilitarian`` or ``egalitarian``.
    time_limit_s
        Stop after so many seconds with the best found, and its bound.
    seed
        Recorded in the answer; nothing here is random.

    Raises
    ------
    InputError
        Something is wrong in the problem or an argument.
    """
    from commonwatt._results import MigPartition
    from commonwatt.model.partition_file import MigFile
    from commonwatt.partitioning.mig import solve_file

    file, path = read_given(problem, MigFile)
    with naming_file(path), without_compiling() as watch:
        result = solve_file(
            file, clock=lambda: watch.elapsed_s, mode=mode, welfare=welfare, time_limit_s=time_limit_s, seed=seed
        )

    def draw(to: Path) -> None:
        from commonwatt.report.decision_plots import save_layouts

        save_layouts(result.chosen, to)

    return shown(MigPartition, result, draw)


def forecast(
    series: str | Path | Mapping[str, object] | DemandSeries | pl.DataFrame | pd.DataFrame,
    *,
    model: str = "last-value",
    target: float | str = 0.98,
    test_from: str | None = None,
    total_gpus: int | None = None,
    node_gpus: int | None = None,
    column: str = "gpus",
    seed: int = 0,
) -> ForecastPlan:
    """Forecast demand, and plan how many GPUs stay on after the end of a series so that a promise is kept.

    Parameters
    ----------
    series
        A demand file or a job log; a mapping with ``gpus``, ``step_s`` and ``start_s`` (default 0); a frame with
        columns ``unique_id``, ``ds`` and ``y`` (polars or pandas, one series); or a ``DemandSeries``.
    model
        Name of a predictor, fitted here, or a file of ``commonwatt forecast fit``.
    target
        Share of instants with enough GPUs on that is promised, above 0, at most 1; or, of a job log, ``jobs:0.98``,
        ``delay_s:p99:60`` or ``delayed_gpu_h:2``.
    test_from
        Replay from here: ISO 8601, or seconds. [default: the last seventh]
    total_gpus
        All GPUs; no limit if not given.
    node_gpus
        GPUs of a node, to plan whole nodes.
    column
        Of a file: the column with the demand; of a job log ``gpus`` (running) or ``wanted_gpus``.
    seed
        Seed of everything random.

    Raises
    ------
    InputError
        Something is wrong in the series or an argument.
    MissingExtraError
        The predictor needs a package that is not installed.
    """
    from commonwatt._results import ForecastPlan
    from commonwatt.data.series_files import read_moment
    from commonwatt.model.capacity import parse_target
    from commonwatt.planning.predictors import features_of, load_predictor
    from commonwatt.planning.replay import plan_series
    from commonwatt.planning.series import given_series

    path = Path(series) if isinstance(series, str | Path) else None
    with naming_file(path):
        predictor = load_predictor(model)
        loaded = given_series(series, column, features_of(predictor))
        file, promised = loaded.file, parse_target(target)
        begin = None if test_from is None else read_moment(test_from, file, "test_from")
        replayed = plan_series(
            loaded, predictor, begin, target=promised, total_gpus=total_gpus, node_gpus=node_gpus, seed=seed
        )

    def draw(to: Path) -> None:
        from commonwatt.report.forecast_plots import save_plan

        save_plan(replayed, file, to)

    return shown(ForecastPlan, replayed.result, draw)


def shown(kind: type[S], result: BaseModel, draw: Callable[[Path], object]) -> S:
    """Return *result* as *kind*, which adds how it is shown."""
    made = kind(**dict(result))
    made._draw = draw  # noqa: SLF001
    return made
