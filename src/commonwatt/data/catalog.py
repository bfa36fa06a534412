"""Public traces and profiles that can be read.

This repository holds none of them: get them from their publishers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from commonwatt.data import locate
from commonwatt.data.profiles import gavel, zeus

__all__ = ["CATALOG", "FORMATS", "Dataset"]

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

    def found(self) -> Path | None:
        """Return its path on this machine, or ``None``."""
        return locate.find(self.local_name) if self.local_name else None

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
