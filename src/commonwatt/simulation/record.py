"""Data of a run in columns, from which reports, results and files are made; and finished runs kept in a folder."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from commonwatt.data.files import write_atomic
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import ArgumentError
from commonwatt.model.nodes import Cluster
from commonwatt.model.results import PolicyResult
from commonwatt.model.study_results import RunService

__all__ = ["RUNS", "EventColumns", "JobColumns", "KeptRuns", "Record", "SampleColumns", "Segments", "code_digest"]

RUNS = "runs"
"""Folder of the finished runs of a simulation that is not at its end, below that of its results."""

SOURCE = Path(__file__).resolve().parents[1]
DECIDES = (
    "capacity", "control", "data", "engines/simulated", "forecasting", "mapping", "model", "optimize", "partitioning",
    "placement", "planning", "runtimes", "simulation", "timeslicing",
)  # fmt: skip
"""Packages whose code decides the result of a run: with other code, it is run again."""


@dataclass(frozen=True)
class JobColumns:
    """Jobs, in order of submission."""

    name: tuple[str, ...]
    tenant: tuple[str, ...]
    submit_s: Floats  # of a job that waited for others: when it might start
    due_s: Floats  # infinity: none
    began_s: Floats  # first start
    ended_s: Floats
    tardiness_weight: Floats  # currency/s
    starts: Ints  # including moves and restarts
    energy_j: Floats  # NaN: unknown; without overhead
    energy_cost: Floats  # currency; NaN: unknown
    gpu_s: Floats
    fastest_s: Floats  # shortest possible run time
    why_late: tuple[str, ...]  # one sentence for a late job, else ""

    @property
    def late_s(self) -> Floats:
        """Seconds after the due date, 0 if in time."""
        return np.maximum(0.0, self.ended_s - self.due_s)

    @property
    def tardiness_cost(self) -> Floats:
        """Cost of lateness, currency."""
        return self.tardiness_weight * self.late_s


@dataclass(frozen=True)
class Segments:
    """Allocations over time for the Gantt chart: a row for each job, node and uninterrupted allocation."""

    job: Ints  # row in JobColumns
    node: Ints  # index into the cluster
    gpus: Ints
    from_s: Floats
    to_s: Floats


@dataclass(frozen=True)
class SampleColumns:
    """The cluster after each rescheduling point; values are valid until the next one."""

    time_s: Floats
    busy_gpus: Ints
    power_w: Floats  # NaN: unknown
    running: Ints
    waiting: Ints
    on_gpus: Ints  # of nodes that are on or waking
    wanted_gpus: Ints  # allocated, or requested by waiting jobs that are not held back


@dataclass(frozen=True)
class EventColumns:
    """The event log."""

    time_s: Floats
    kind: tuple[str, ...]
    job: Ints  # row in JobColumns
    nodes: tuple[str, ...]  # names, comma-separated
    gpus: Ints
    reason: tuple[str, ...]
    sentence: tuple[str, ...]
    lost_s: Floats  # work since the last checkpoint that is lost; NaN: none can be lost


@dataclass(frozen=True)
class Record:
    """A finished run of one policy."""

    policy: str
    cluster: Cluster
    result: PolicyResult
    jobs: JobColumns
    segments: Segments
    samples: SampleColumns
    events: EventColumns
    slowdown: Floats = field(default_factory=lambda: np.zeros(0))  # bounded slowdown of each job

    def service(self) -> RunService:
        """Return what each job got, which percentiles over several runs need."""
        tenants = tuple(dict.fromkeys(self.jobs.tenant))
        at = {name: k for k, name in enumerate(tenants)}
        return RunService(
            result=self.result,
            tenants=tenants,
            tenant=tuple(at[name] for name in self.jobs.tenant),
            wait_s=tuple((self.jobs.began_s - self.jobs.submit_s).tolist()),
            slowdown=tuple(self.slowdown.tolist()),
        )


@cache
def code_digest() -> str:
    """Return the SHA-256 of the source and the tables that decide the result of a run; read once a process."""
    sha = hashlib.sha256()
    for package in DECIDES:
        for path in sorted(path for path in (SOURCE / package).rglob("*") if path.suffix in (".py", ".csv", ".json")):
            sha.update(path.relative_to(SOURCE).as_posix().encode() + b"\0" + path.read_bytes())
    return sha.hexdigest()


_PARTS: dict[str, Any] = {"jobs": JobColumns, "segments": Segments, "samples": SampleColumns, "events": EventColumns}


class KeptRuns:
    """Finished runs in a folder, by the digest of what they ran: NumPy archives, from which nothing is executed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / RUNS

    def find(self, key: str, cluster: Cluster) -> Record | PolicyResult | None:
        """Return the run *key*, with its columns if these were kept; ``None``: there is none that can be read."""
        try:
            with np.load(io.BytesIO(self._path(key).read_bytes()), allow_pickle=False) as archive:
                columns = dict(archive)
            result = PolicyResult.model_validate_json(columns["result"].tobytes())
            if "slowdown" not in columns:
                return result
            parts: dict[str, Any] = {
                name: part(**{column.name: _unpacked(columns, f"{name}.{column.name}") for column in fields(part)})
                for name, part in _PARTS.items()
            }
            policy = columns["policy"].tobytes().decode()
            return Record(policy=policy, cluster=cluster, result=result, slowdown=columns["slowdown"], **parts)
        except FileNotFoundError:
            return None
        except (ValidationError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
            return None  # not written by this version, or not as a whole: it is run again
        except OSError as error:
            raise ArgumentError(f"a readable folder ({error.strerror})", field="out", value=self.folder) from None

    def keep(self, key: str, run: Record | PolicyResult) -> None:
        """Write a finished run; raises ``InputError`` if the folder cannot be written to."""
        columns: dict[str, Any] = {}
        result = run.result if isinstance(run, Record) else run
        if isinstance(run, Record):
            columns = {"slowdown": run.slowdown, "policy": np.frombuffer(run.policy.encode(), dtype=np.uint8)}
            for name in _PARTS:
                for column, values in vars(getattr(run, name)).items():
                    columns |= _packed(f"{name}.{column}", values)
        columns["result"] = np.frombuffer(result.model_dump_json().encode(), dtype=np.uint8)
        content = io.BytesIO()
        np.savez_compressed(content, **columns)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArgumentError(f"a writable folder ({error.strerror})", field="out", value=self.folder) from None
        write_atomic(self._path(key), content.getvalue())

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.npz"


def _packed(name: str, values: Floats | Ints | tuple[str, ...]) -> dict[str, Any]:
    """Return a column as arrays: of text, the UTF-8 of all and where each ends."""
    if isinstance(values, np.ndarray):
        return {name: values}
    encoded = [text.encode() for text in values]
    ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    return {f"{name}.text": np.frombuffer(b"".join(encoded), dtype=np.uint8), f"{name}.ends": ends}


def _unpacked(columns: dict[str, Any], name: str) -> Floats | Ints | tuple[str, ...]:
    if name in columns:
        values: Floats | Ints = columns[name]
        return values
    content, ends = columns[f"{name}.text"].tobytes(), columns[f"{name}.ends"].tolist()
    return tuple(content[begin:end].decode() for begin, end in zip([0, *ends[:-1]], ends, strict=True))
