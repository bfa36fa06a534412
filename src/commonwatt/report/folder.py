"""The output folder of a simulation, written completely or not at all."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import yaml

from commonwatt.model.errors import ArgumentError
from commonwatt.model.nodes import GpuTypeSpec
from commonwatt.model.results import SimulationResult, SweepResult
from commonwatt.model.scenario import Scenario, ScenarioJob
from commonwatt.simulation.record import RUNS, KeptRuns, Record
from commonwatt.simulation.runner import Prepared, document_of, keys_of

if TYPE_CHECKING:
    import polars as pl

__all__ = ["WRITTEN", "check_folder", "check_kept", "kept_runs", "result_json", "write_run"]

WRITTEN = frozenset({"report.html", "result.json", "events.parquet", "jobs.parquet", "scenario.yaml"})
_KEPT = re.compile(r"[0-9a-f]{64}\.npz|\.[0-9a-f]{64}\.npz\.[0-9a-f]+\.tmp")


Profiled = TypeVar("Profiled", ScenarioJob, GpuTypeSpec)


def check_folder(folder: Path, *, overwrite: bool) -> None:
    """Raise ``InputError`` if *folder* cannot become the output folder. Nothing is written yet.

    That of an interrupted command can; whether it was this command, ``check_kept`` tells.
    """
    target = folder.resolve()
    try:
        there = {entry.name for entry in target.iterdir()}
    except FileNotFoundError:
        there = set()
    except NotADirectoryError:
        raise ArgumentError("a folder", field="out", value=folder) from None
    except OSError as error:
        raise ArgumentError(f"a readable folder ({error.strerror})", field="out", value=folder) from None
    if there and not overwrite and RUNS not in there:
        raise ArgumentError("a new or empty folder, or `overwrite`", field="out", value=folder)
    kept = {entry.name for entry in (target / RUNS).iterdir()} if (target / RUNS).is_dir() else set()
    others = {f"{RUNS}/{name}" for name in kept if not _KEPT.fullmatch(name)} | (there - WRITTEN - {RUNS})
    if others:
        other = sorted(others)[0]
        raise ArgumentError(f"a folder with only the files of an earlier run, not {other}", field="out", value=folder)
    above = next(parent for parent in target.parents if parent.exists())
    if not above.is_dir():
        raise ArgumentError("a path below a folder", field="out", value=folder)
    if not os.access(above, os.W_OK | os.X_OK):
        raise ArgumentError(f"a writable folder, unlike {above}", field="out", value=folder)


def check_kept(folder: Path, keys: Collection[str], *, overwrite: bool) -> int:
    """Return how many of the runs *keys* an interrupted command has left in *folder*.

    Raises ``InputError`` if it has left others only, which are not to be overwritten.
    """
    own = len({path.stem for path in (folder / RUNS).glob("*.npz")} & set(keys))
    if not own and not overwrite and (folder / RUNS).exists():
        raise ArgumentError(
            "a new or empty folder, the same command as before, or `overwrite`", field="out", value=folder
        )
    return own


def kept_runs(folder: Path, prepared: Sequence[Prepared], *, overwrite: bool) -> KeptRuns:
    """Return where the runs of *prepared* are kept until *folder* is written; raises as both checks do."""
    check_folder(folder, overwrite=overwrite)
    check_kept(folder, keys_of(prepared), overwrite=overwrite)
    return KeptRuns(folder)


def result_json(document: SimulationResult | SweepResult) -> str:
    """Return the text of ``result.json``: the result without wall-clock times, independent of the machine."""
    data = document.model_dump(mode="json")
    for run in data.get("runs", [data]):
        for policy in run["policies"]:
            policy["scheduler_s"] = None
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def write_run(
    folder: Path, scenario: Scenario, base: Path, results: Sequence[SimulationResult], records: Sequence[Record], *,
    interrupted: bool = False,
) -> None:  # fmt: skip
    """Write report, result, events, jobs and the scenario as run; *folder* is replaced once all are complete.

    *results* are those of each seed, *records* those of the first; paths in *scenario* are relative to *base*. If the
    command was *interrupted*, the finished runs kept in the folder stay there, else they are dropped. Raises
    ``InputError`` if it cannot be written; an earlier folder stays then.
    """
    from commonwatt.report.html import render

    report = render(results[0], records)
    target = folder.resolve()
    unique = secrets.token_hex(4)
    partial, old = (target.with_name(f".{target.name}.{unique}.{end}") for end in ("partial", "old"))
    made = [parent for parent in target.parents if not parent.exists()]
    try:
        partial.mkdir(parents=True)
        (partial / "report.html").write_text(report, encoding="utf-8")
        (partial / "result.json").write_text(result_json(document_of(results)), encoding="utf-8")
        again = _seen_from(target, scenario, base).model_dump(mode="json")
        (partial / "scenario.yaml").write_text(
            yaml.safe_dump(again, sort_keys=False, allow_unicode=True), encoding="utf-8"
        )
        _events(records).write_parquet(partial / "events.parquet")
        _jobs(records).write_parquet(partial / "jobs.parquet")
        if target.exists():
            target.rename(old)
        try:
            if interrupted and (old / RUNS).exists():
                (old / RUNS).rename(partial / RUNS)
            partial.rename(target)
        except OSError:
            if (partial / RUNS).exists():
                (partial / RUNS).rename(old / RUNS)
            if old.exists():
                old.rename(target)
            raise
        made = []
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise ArgumentError(f"a writable folder ({error.strerror})", field="out", value=folder) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        for parent in made:
            with suppress(OSError):
                parent.rmdir()


def _seen_from(out: Path, scenario: Scenario, base: Path) -> Scenario:
    """Return *scenario* with its paths relative to *out* instead of *base*, so that it can be run again."""

    def moved(path: str) -> str:
        return path if Path(path).is_absolute() else os.path.relpath((base / path).resolve(), out.resolve())

    def profiles_moved(part: Profiled) -> Profiled:
        return part.model_copy(update={"profile": tuple(map(moved, part.profiles))}) if part.profiles else part

    workload = scenario.workload
    path, jobs = getattr(workload, "path", None), getattr(workload, "jobs", None)
    if workload is not None and path is not None:
        workload = workload.model_copy(update={"path": moved(path)})
    if workload is not None and isinstance(jobs, tuple):
        workload = workload.model_copy(update={"jobs": tuple(map(profiles_moved, jobs))})
    types = {name: profiles_moved(spec) for name, spec in scenario.gpu_types.items()}
    services = tuple(
        service.model_copy(update={"load": service.load.model_copy(update={"path": moved(load_path)})})
        if (load_path := getattr(service.load, "path", None)) is not None
        else service
        for service in scenario.services
    )
    return scenario.model_copy(update={"workload": workload, "gpu_types": types, "services": services})


def _events(records: Sequence[Record]) -> pl.DataFrame:
    import polars as pl

    return pl.concat(
        [
            pl.DataFrame(
                {
                    "policy": [record.policy] * len(record.events.kind),
                    "time_s": record.events.time_s,
                    "kind": record.events.kind,
                    "job": [record.jobs.name[j] if j >= 0 else "" for j in record.events.job],
                    "nodes": record.events.nodes,
                    "gpus": record.events.gpus,
                    "reason": record.events.reason,
                    "sentence": record.events.sentence,
                    "lost_s": record.events.lost_s,
                }
            ).with_columns(pl.col("lost_s").fill_nan(None))
            for record in records
        ]
    )


def _jobs(records: Sequence[Record]) -> pl.DataFrame:
    import polars as pl

    names = (
        "name", "tenant", "submit_s", "due_s", "began_s", "ended_s", "late_s", "tardiness_cost", "starts", "energy_j",
        "energy_cost", "gpu_s", "why_late",
    )  # fmt: skip
    return pl.concat(
        [
            pl.DataFrame(
                {
                    "policy": [record.policy] * len(record.jobs.name),
                    **{name: getattr(record.jobs, name) for name in names},
                }
            ).with_columns(pl.col("energy_j", "energy_cost").fill_nan(None))
            for record in records
        ]
    )
