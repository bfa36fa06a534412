"""The public traces and profiles that can be read.

This repository holds none of them: get them from their publishers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from commonwatt.data import locate
from commonwatt.data.log import JobLog
from commonwatt.data.profiles import gavel, zeus
from commonwatt.data.readers import READERS, read_log
from commonwatt.model.errors import InputError
from commonwatt.model.fields import ResultModel, quantity
from commonwatt.model.units import DAY_S, HOUR_S

__all__ = ["CATALOG", "CheckResult", "Dataset", "check"]


@dataclass(frozen=True)
class Dataset:
    """A public trace or table of profiles."""

    name: str  # what ``check`` calls its format
    what: str
    files: str  # what to get, and in which forms it is read
    url: str
    licence: str
    local_name: str  # of the tidied table, in the folder of traces; "" if there is none

    def found(self) -> Path | None:
        """Where it lies on this machine, or ``None``."""
        return locate.find(self.local_name) if self.local_name else None


CATALOG = (
    Dataset(
        "philly",
        "GPU jobs of Microsoft's Philly clusters, August to December 2017",
        "cluster_job_log (JSON) from trace-data.tar.gz, or a table with job_id, submit_time, duration_s, num_gpus, "
        "virtual_cluster",
        "https://github.com/msr-fiddle/philly-traces",
        "CC BY 4.0",
        "philly_jobs.csv.gz",
    ),
    Dataset(
        "alibaba",
        "sample of GPU pods of an Alibaba cluster of 6,212 GPUs, 2023",
        "openb_pod_list_default.csv, or the same with job_id, submit_s, scheduled_s, deletion_s",
        "https://github.com/alibaba/clusterdata/tree/master/cluster-trace-gpu-v2023",
        "none stated for this folder; cite FGD (ATC'23)",
        "alibaba_jobs.csv.gz",
    ),
    Dataset(
        "helios",
        "jobs of SenseTime's Helios clusters, April to September 2020 (Venus is public)",
        "cluster_log.csv",
        "https://github.com/S-Lab-System-Group/HeliosData",
        "CC BY 4.0",
        "",
    ),
    Dataset(
        "gavel",
        "training speed by model, batch size, GPU type (K80, P100, V100) and count",
        "scheduler/simulation_throughputs.json, or a table with model, batch_size, gpu_type, num_gpus, consolidated, "
        "steps_per_s, samples_per_s",
        "https://github.com/stanford-futuredata/gavel",
        "MIT",
        gavel.FILE,
    ),
    Dataset(
        "zeus",
        "time and power of training by model, batch size, GPU type (P100, V100, RTX6000, A40) and power limit",
        "summary_power_GPU.csv from examples/research_reproducibility/zeus_nsdi23/trace, or one table with gpu_type",
        "https://github.com/ml-energy/zeus",
        "Apache-2.0",
        zeus.FILE,
    ),
)


class CheckResult(ResultModel):
    """What a file holds; what does not apply to its format is null."""

    file: str = quantity("the file")
    format: str = quantity("the format it was read as")
    rows: int = quantity("jobs, or profiles of a model at a batch size")
    first: str | None = quantity("first submission", default=None)
    last: str | None = quantity("last submission", default=None)
    span_days: float | None = quantity("time between them", "days", None)
    gpu_hours: float | None = quantity("GPU time of all jobs", "GPU h", None)
    largest_job: int | None = quantity("most GPUs of a job", "GPUs", None)
    tenants: int | None = quantity("tenants", default=None)
    still_running: int | None = quantity("jobs whose run time is cut off by the end of the log", default=None)
    left_out: dict[str, int] = quantity("records left out, by reason", default=dict)
    gpu_types: tuple[str, ...] = quantity("GPU types named", default=())


def check(path: str | Path, source: str) -> CheckResult:
    """Read *path* as the format *source* and say what it holds; raises ``InputError`` if it cannot be read as that."""
    path = Path(path)
    if source in READERS:
        return _of_log(read_log(source, path), source)
    if source == "gavel":
        runs = gavel.read_gavel(path)
        types = {name for speeds in runs.values() for name, _ in speeds}
        return CheckResult(file=str(path), format=source, rows=len(runs), gpu_types=tuple(sorted(types)))
    if source == "zeus":
        trainings = zeus.read_zeus(path)
        types = {name for by_type in trainings.values() for name in by_type}
        return CheckResult(file=str(path), format=source, rows=len(trainings), gpu_types=tuple(sorted(types)))
    raise InputError(f"one of {', '.join([*READERS, 'gavel', 'zeus'])}", field="source", value=source)


def _of_log(log: JobLog, source: str) -> CheckResult:
    first, last = log.span_s
    return CheckResult(
        file=str(log.path),
        format=source,
        rows=len(log),
        first=log.moment(first),
        last=log.moment(last),
        span_days=(last - first) / DAY_S,
        gpu_hours=float((log.duration_s * log.gpus).sum()) / HOUR_S,
        largest_job=int(log.gpus.max()),
        tenants=len(set(log.tenant)),
        still_running=int(log.censored.sum()),
        left_out=dict(log.dropped),
        gpu_types=tuple(sorted({name for name in log.gpu_type if name})),
    )
