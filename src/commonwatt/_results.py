"""What the functions of ``import commonwatt`` return: the documents of the commands, as a notebook shows them.

Each is the result model of the command with the same fields (``model_dump_json`` gives what ``--json`` prints), and
adds ``to_frame()``, a polars frame of its rows, ``plot()``, its picture, and an HTML view of both numbers and sentence.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, PrivateAttr

from commonwatt.model.forecast_results import ForecastPlanResult
from commonwatt.model.map_results import MapResult
from commonwatt.model.partition_results import MigResult, PartitionResult
from commonwatt.model.results import PlaceResult, SimulationResult, SweepResult
from commonwatt.model.study_results import StudyResult
from commonwatt.model.timeslice_results import TimeslicePlanResult
from commonwatt.model.units import plural, welfare_name, welfare_shown

if TYPE_CHECKING:
    import polars as pl

    from commonwatt.model.map_file import MapFile, TransferFile
    from commonwatt.model.map_results import MapSchedule
    from commonwatt.simulation.record import Record

__all__ = [
    "ForecastPlan",
    "LayerMapping",
    "MigPartition",
    "Partition",
    "Placement",
    "Shown",
    "Simulation",
    "Study",
    "SvgPicture",
    "Sweep",
    "TimeslicePlan",
]

Draw = Callable[[Path], object]


class SvgPicture:
    """A drawing in memory, as SVG; a notebook shows it."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def _repr_svg_(self) -> str:
        return self.svg


class Shown(BaseModel, ABC):
    """How a result is shown: as a frame, a picture and HTML."""

    _draw: Draw | None = PrivateAttr(default=None)

    def to_frame(self) -> pl.DataFrame:
        """Return the rows of the result as a polars frame."""
        return _frame(self._rows())

    def plot(self, path: str | Path | None = None) -> SvgPicture | None:
        """Draw the result: to *path* (.png, .svg or .pdf), else in memory, for a notebook to show.

        Raises
        ------
        InputError
            The result was read from a document, without what a drawing needs, or *path* cannot be written.
        """
        from commonwatt.model.errors import InputError

        if self._draw is None:
            raise InputError("a result as it was computed, not one read from a document", field="plot")
        if path is not None:
            self._draw(Path(path))
            return None
        with tempfile.TemporaryDirectory() as folder:
            drawn = Path(folder) / "picture.svg"
            self._draw(drawn)
            return SvgPicture(drawn.read_text(encoding="utf-8"))

    def _repr_html_(self) -> str:
        return f"<p>{escape(self._headline())}</p>{self.to_frame()._repr_html_()}"

    @abstractmethod
    def _rows(self) -> Iterable[BaseModel | dict[str, Any]]: ...

    @abstractmethod
    def _headline(self) -> str: ...


def _frame(rows: Iterable[BaseModel | dict[str, Any]]) -> pl.DataFrame:
    """Return *rows* as a frame; fields that hold rows of their own are left out."""
    import polars as pl

    dumped = [row if isinstance(row, dict) else row.model_dump() for row in rows]
    nested = {key for row in dumped for key, value in row.items() if isinstance(value, dict) or _holds_rows(value)}
    return pl.DataFrame(
        [{key: value for key, value in row.items() if key not in nested} for row in dumped], infer_schema_length=None
    )


def _holds_rows(value: object) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(part, (dict, list, tuple)) for part in value)


class Simulation(Shown, SimulationResult):
    """A workload under several policies; one row for each policy."""

    _records: list[Record] = PrivateAttr(default_factory=list)

    @property
    def records(self) -> tuple[Record, ...]:
        """Jobs, allocations, samples and events of each policy, in columns."""
        return tuple(self._records)

    def _rows(self) -> Iterable[BaseModel]:
        return self.policies

    def _headline(self) -> str:
        from commonwatt.report.text import summary

        return summary(self)


class Sweep(Shown, SweepResult):
    """A workload under several policies and seeds; mean and spread, one row for each policy."""

    def _rows(self) -> Iterable[dict[str, Any]]:
        for policy in self.policies:
            row: dict[str, Any] = {"policy": policy.policy}
            for name in type(policy).model_fields:
                if name != "policy":
                    spread = getattr(policy, name)
                    row[f"{name}_mean"], row[f"{name}_sd"] = spread.mean, spread.sd
            yield row

    def _headline(self) -> str:
        return f"{self.scenario}: mean and standard deviation of {plural(len(self.seeds), 'seed')}"


class Study(Shown, StudyResult):
    """A log under several schedulers, as conservative as can be and step by step less so; one row for each policy."""

    def _rows(self) -> Iterable[BaseModel]:
        return self.policies

    def _headline(self) -> str:
        from commonwatt.report.study_text import headline, interval_text

        return f"{headline(self)} {interval_text(self)}"


class Placement(Shown, PlaceResult):
    """One placement decision; one row for each job."""

    def _rows(self) -> Iterable[dict[str, Any]]:
        placed = {assignment.job: assignment for assignment in self.assignments}
        for decision in self.decisions:
            a = placed.get(decision.job)
            yield {
                "job": decision.job, "nodes": list(a.nodes) if a else [], "gpus": a.gpus if a else 0,
                "reason": decision.reason, "sentence": decision.sentence,
            }  # fmt: skip

    def _headline(self) -> str:
        waiting = f", {len(self.postponed)} postponed" if self.postponed else ""
        return f"{self.solver}: {plural(len(self.assignments), 'job')} placed{waiting}; objective {self.objective:.6g}"


class TimeslicePlan(Shown, TimeslicePlanResult):
    """One quantum divided; one row for each tenant."""

    def _rows(self) -> Iterable[BaseModel]:
        return self.tenants

    def _headline(self) -> str:
        return f"{self.policy}, phi {self.phi:g}: {plural(self.quantum, 'unit')} of {self.unit_s:g} s"


class Partition(Shown, PartitionResult):
    """Core clusters divided among tenants; one row for each configuration and tenant."""

    def _rows(self) -> Iterable[dict[str, Any]]:
        for one in self.configurations:
            for tenant in one.tenants:
                yield {
                    "configuration": one.name, "chosen": one.name == self.chosen, "tenant": tenant.name,
                    "shares": list(one.shares[tenant.name]), "utility": one.utilities[tenant.name],
                    "entitlement_utility": one.entitlement_utilities[tenant.name],
                }  # fmt: skip

    def _headline(self) -> str:
        return self.sentence


class MigPartition(Shown, MigResult):
    """GPUs cut up by MIG; one row for each tenant."""

    def _rows(self) -> Iterable[BaseModel]:
        return self.chosen.tenants

    def _headline(self) -> str:
        proven = "optimal" if self.chosen.optimal else f"at most {self.chosen.gap:.3g} below the best"
        kind = self.welfare_kind
        return f"{self.mode}, {welfare_name(kind)} welfare {welfare_shown(kind, self.chosen.welfare)}, {proven}"


class LayerMapping(Shown, MapResult):
    """Layers on sub-accelerators; one row for each layer job."""

    _batch: MapFile | None = PrivateAttr(default=None)
    _begin_cycles: float = PrivateAttr(default=0.0)

    def schedule(self) -> MapSchedule:
        """Return start, end and bandwidth of each job, which ``map_layers(after=)`` and compilers read.

        Raises ``InputError`` on a result that was read from a document.
        """
        from commonwatt.mapping import build_schedule

        return build_schedule(self._mapped("schedule"), self, begin_cycles=self._begin_cycles)

    def transfer(self) -> TransferFile:
        """Return what the mapping of another batch can start from, ``map_layers(transfer=)``.

        Raises ``InputError`` on a result that was read from a document.
        """
        from commonwatt.mapping import Transfer

        return Transfer.of_result(self._mapped("transfer"), self).file()

    def of_batch(self, batch: MapFile, begin_cycles: float) -> LayerMapping:
        """Return this mapping as one of *batch*, which begins at *begin_cycles*."""
        self._batch, self._begin_cycles = batch, begin_cycles
        return self

    def _mapped(self, what: str) -> MapFile:
        from commonwatt.model.errors import InputError

        if self._batch is None:
            raise InputError("a result of map_layers, not one read from a document", field=what)
        return self._batch

    def _rows(self) -> Iterable[BaseModel]:
        return self.jobs

    def _headline(self) -> str:
        worth = "proven optimal" if self.optimal else f"at most {100 * self.gap:.2f}% above the least possible"
        return f"{self.algorithm}: {self.makespan_cycles:,.0f} cycles, {worth}"


class ForecastPlan(Shown, ForecastPlanResult):
    """How many GPUs to keep on after the end of a series, and how the promise was kept; one row for each step."""

    def _rows(self) -> Iterable[BaseModel]:
        return self.plan

    def _headline(self) -> str:
        promised = f"{100 * self.target:g}% of instants" if self.promise.of == "instants" else self.promise.label
        return f"{self.model}, {promised}: {self.promise.sentence}"
