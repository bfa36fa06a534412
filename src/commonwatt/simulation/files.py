"""The folder a simulation leaves behind, written whole or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from commonwatt.model.errors import InputError
from commonwatt.model.results import SimulationResult, SweepResult
from commonwatt.model.scenario import Scenario
from commonwatt.simulation.record import Record

if TYPE_CHECKING:
    import polars as pl

__all__ = ["check_folder", "result_json", "write_run"]


def check_folder(folder: Path, *, overwrite: bool) -> None:
    """Raise ``InputError`` if *folder* cannot become the output folder. Nothing is written yet."""
    if folder.exists() and not folder.is_dir():
        raise InputError("a folder", field="--out", value=folder)
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise InputError("a new or empty folder, or --overwrite", field="--out", value=folder)
    if not folder.absolute().parent.is_dir() and folder.absolute().parent.exists():
        raise InputError("a folder in a folder", field="--out", value=folder)


def result_json(document: SimulationResult | SweepResult) -> str:
    """Text of ``result.json``: the result without wall-clock times, so that it does not depend on the machine."""
    data = document.model_dump(mode="json")
    for run in data.get("runs", [data]):
        for policy in run["policies"]:
            policy["scheduler_s"] = None
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def write_run(
    folder: Path, scenario: Scenario, document: SimulationResult | SweepResult, result: SimulationResult,
    records: Sequence[Record],
) -> None:  # fmt: skip
    """Write report, result, events, jobs and the scenario as run; *folder* is replaced in one step."""
    from commonwatt.report.html import render

    target = folder.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / f".{target.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        (partial / "report.html").write_text(render(result, records), encoding="utf-8")
        (partial / "result.json").write_text(result_json(document), encoding="utf-8")
        (partial / "scenario.yaml").write_text(
            yaml.safe_dump(scenario.model_dump(mode="json"), sort_keys=False, allow_unicode=True), encoding="utf-8"
        )
        _events(records).write_parquet(partial / "events.parquet")
        _jobs(records).write_parquet(partial / "jobs.parquet")
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _events(records: Sequence[Record]) -> pl.DataFrame:
    import polars as pl

    return pl.concat(
        [
            pl.DataFrame(
                {
                    "policy": [record.policy] * len(record.events.kind),
                    "time_s": record.events.time_s,
                    "kind": record.events.kind,
                    "job": [record.jobs.name[j] for j in record.events.job],
                    "nodes": record.events.nodes,
                    "gpus": record.events.gpus,
                    "reason": record.events.reason,
                    "sentence": record.events.sentence,
                }
            )
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
