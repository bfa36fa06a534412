"""Public traces and profiles that can be read, and which format a file has where its content leaves no doubt.

This repository holds none of the data: get it from its publishers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from commonwatt.data import third_party
from commonwatt.data.profiles import gavel, zeus
from commonwatt.data.readers.plain import plainly
from commonwatt.data.readers.slurm import is_for_people
from commonwatt.data.text import read_text
from commonwatt.model.errors import ArgumentError

__all__ = ["CATALOG", "FORMATS", "Dataset", "formats_of", "guess_format"]

FORMATS = {
    "slurm": "Slurm accounting: sacct --json, sacct --parsable2 with AllocTRES, or its table with nothing cut off",
    "swf": "Standard Workload Format, of the Parallel Workloads Archive; its processors are read as GPUs",
    "csv": "any table with submit_s, duration_s and gpus, or start_s, end_s and gpus; --column renames them",
}
"""Further formats of job logs, with descriptions."""


@dataclass(frozen=True)
class Dataset:
    """A public trace or table of profiles."""

    name: str  # also of its format
    what: str
    files: str  # files to download, and the formats that are read
    url: str
    licence: str
    local_name: str  # of the tidied table in the folder of traces; "": none

    def local_path(self) -> Path | None:
        """Return its path on this machine, or ``None``."""
        return third_party.find(self.local_name) if self.local_name else None

    @property
    def kind(self) -> str:
        """Return ``job log`` or ``profiles``."""
        return "profiles" if self.name in ("gavel", "zeus") else "job log"


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


# -- formats


_HEADERS = {  # columns that only this format has together
    "philly": ({"job_id", "submit_time", "duration_s", "num_gpus", "virtual_cluster"},),
    "alibaba": (
        {"name", "num_gpu", "creation_time", "deletion_time"},
        {"job_id", "num_gpu", "submit_s", "scheduled_s", "deletion_s"},
    ),
    "helios": ({"job_id", "gpu_num", "submit_time", "start_time", "duration"},),
    "slurm": ({"JobID", "State"},),
    "gavel": ({"model", "gpu_type", "num_gpus", "consolidated", "steps_per_s"},),
    "zeus": (
        {"model", "gpu_type", "power_limit_w", "time_per_epoch_s"},
        {"network", "power_limit", "time_per_epoch"},
    ),
    "csv": (
        {"submit_s", "duration_s", "gpus"},
        {"start_s", "end_s", "gpus"},
        {"start_time", "end_time", "gpus"},
        {"start_time", "end_time", "num_gpus"},
        {"start", "end", "gpus"},
        {"start", "end", "num_gpus"},
    ),
}
_HEAD = 4000  # characters that are looked at


def guess_format(path: Path) -> str:
    """Return the format *path* has by its content.

    Raises ``InputError`` if the file cannot be read, or if the formats it could have are none or several.
    """
    text = read_text(path)
    head, formats = text[:_HEAD].lstrip(), formats_of(text)
    if len(formats) != 1 or (head[0] == "{" and not _names_slurm(head)):
        _refuse_documents(path, text)
    if len(formats) != 1:
        names = ", ".join(dict.fromkeys([*(entry.name for entry in CATALOG), *FORMATS]))
        if not formats and path.suffix.lower() in (".csv", ".tsv"):
            what = (
                "a table with columns gpus, and submit_s and duration_s or start_s and end_s (other names: --column "
                f"OURS=THEIRS); or another format, by --format: {names}"
            )
            raise ArgumentError(what, file=path, field="columns", value=text.lstrip().split("\n", 1)[0].strip()[:100])
        what = (
            f"a format: it could be {' or '.join(formats)}" if formats else f"one of {names}, as the file does not tell"
        )
        raise ArgumentError(what, file=path, field="source")
    return formats[0]


def formats_of(text: str) -> list[str]:
    """Return the formats of logs and profiles that *text* could have."""
    head = text[:_HEAD].lstrip()
    return _by_brackets(head) if head[0] in "[{" else _by_lines(head)


def _by_brackets(head: str) -> list[str]:
    if head[0] == "[":
        return ["philly"] if '"vc"' in head and '"jobid"' in head else []
    if re.match(r'\{\s*"\w+"\s*:\s*\{\s*"\(\'', head):
        return ["gavel"]
    return ["slurm"] if _names_slurm(head) or re.search(r'"jobs"\s*:', head) else []


def _names_slurm(head: str) -> bool:
    return '"job_id"' in head or '"slurm"' in head.casefold()


def _refuse_documents(path: Path, text: str) -> None:
    """Raise ``InputError`` if *text* is a document or a table of commonwatt, which is no log."""
    from commonwatt.data.file_kinds import other_kind

    error = other_kind(path, text, "a job log")
    if error is not None:
        raise error


def _by_lines(head: str) -> list[str]:
    lines = head.splitlines()
    numbers = next((line.split() for line in lines if line.strip() and not line.startswith(";")), [])
    if len(numbers) >= 18 and all(re.fullmatch(r"-?\d+(\.\d+)?", cell) for cell in numbers):
        return ["swf"]
    if head.startswith(";"):
        return ["swf"] if not numbers else []
    if is_for_people(head):
        return ["slurm"]
    columns = {cell.strip().strip('"') for cell in re.split(r"[,;\t|]", lines[0])}
    own = [name for name, sets in _HEADERS.items() if any(wanted <= columns for wanted in sets)]
    plain = {plainly(column) for column in columns}
    return own or (["csv"] if any(wanted <= plain for wanted in _HEADERS["csv"]) else [])
