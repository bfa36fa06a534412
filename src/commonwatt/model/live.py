"""What a scenario file says in addition when it goes live (``commonwatt serve``)."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import field_validator

from commonwatt.model.fields import FileModel, quantity

__all__ = ["LiveSpec", "LocalSpec", "ProfilingSpec", "ServerSpec", "SlurmSpec"]


class LocalSpec(FileModel):
    """Engine `local`: processes on this machine."""

    state: str = quantity("folder of the engine's records, relative to this file", "-", "state")
    slots: dict[str, tuple[int, ...]] = quantity(
        "GPU indices (CUDA_VISIBLE_DEVICES) of a node, by its name; counted through from 0 where not given", "-", dict
    )
    grace_s: float = quantity("time between asking a job to stop and killing it", "s", 10.0, ge=0, le=3600)
    meter: Literal["none", "declared", "nvml"] = quantity(
        "energy readings: none, computed from the declared power of nodes and GPUs, or from the GPUs' own counters "
        "beside the declared idle power",
        "-",
        "declared",
    )


class SlurmSpec(FileModel):
    """Engine `slurm`."""

    state: str = quantity("folder of job scripts and records, seen by all nodes, relative to this file", "-", "state")
    cluster_id: str = quantity(
        "marks our jobs in Slurm", "-", "commonwatt", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,40}$"
    )
    partition: str | None = quantity("partition our jobs go to; Slurm's default if absent", "-", None)
    conf: str | None = quantity("SLURM_CONF, if it is not in its usual place", "-", None)
    grace_s: float = quantity("time between asking a job to stop and killing it", "s", 30.0, ge=0, le=3600)
    command_timeout_s: float = quantity("time a client command of Slurm may take", "s", 20.0, gt=0, le=600)
    use_json: bool = quantity(
        "whether Slurm is asked for JSON first; its plain output is faster where others have thousands of jobs",
        "-",
        True,  # noqa: FBT003
    )
    poll_s: float = quantity("time between looks at Slurm", "s", 2.0, gt=0, le=600)
    power: bool = quantity("whether nodes may be powered down by a capacity plan", "-", False)  # noqa: FBT003
    meter: Literal["none", "declared"] = quantity(
        "energy readings: none, or computed from the declared power of nodes and GPUs", "-", "declared"
    )
    options: tuple[str, ...] = quantity("further options of sbatch for every job, such as --account=ml", "-", ())
    cpus_per_gpu: int = quantity("CPUs asked for with each GPU", "CPUs", 1, ge=1, le=1024)
    python: str = quantity("Python 3.9 or newer on the nodes, which runs the batch script", "-", "/usr/bin/python3")
    start_s: float = quantity(
        "how long a job may wait in Slurm's queue for GPUs that were free, before it is taken back", "s", 60.0, gt=0
    )
    lag_s: float = quantity(
        "how late a file written on a node may be seen here, after Slurm said that the job is over", "s", 10.0, ge=0
    )


class ProfilingSpec(FileModel):
    """The job profiler (ANDREAS section III)."""

    nodes: tuple[str, ...] = quantity("names of the nodes set aside for profiling", "-", min_length=1)
    epochs: int = quantity("epochs a configuration is measured for", "-", 2, ge=1, le=1000)
    limit_s: float = quantity("longest time of a measurement", "s", 3600.0, gt=0)


class ServerSpec(FileModel):
    """The REST API and the dashboard."""

    host: str = quantity("address to listen on", "-", "127.0.0.1", min_length=1)
    port: int = quantity("port to listen on; 0: any free one", "-", 8470, ge=0, le=65535)
    requests_per_s: float = quantity(
        "requests a token may make on average; bursts of twice as many", "1/s", 100.0, gt=0
    )
    past_due: Literal["warn", "refuse"] = quantity(
        "what becomes of a job whose due date has passed already", "-", "warn"
    )
    public_url: str | None = quantity(
        "address people reach it by, where that is another one; told when it starts", "-", None
    )

    @field_validator("public_url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"https?://[^\s/@]+(/\S*)?", value):
            msg = f"got {value!r}, expected an address such as https://commonwatt.example.org"
            raise ValueError(msg)
        return value


class LiveSpec(FileModel):
    """Going live."""

    mode: Literal["live", "dry-run"] = quantity(
        "whether decisions are carried out, or only written down beside what would have been saved", "-", "live"
    )
    store: str = quantity(
        "database: a SQLAlchemy address (mysql+pymysql://..., postgresql+psycopg://...) or a file of SQLite relative "
        "to this file; $NAME and ${NAME} stand for environment variables",
        "-",
        "commonwatt.db",
        min_length=1,
    )
    local: LocalSpec = quantity("engine `local`", "-", LocalSpec)
    slurm: SlurmSpec = quantity("engine `slurm`", "-", SlurmSpec)
    server: ServerSpec = quantity("REST API and dashboard", "-", ServerSpec)
    profiling: ProfilingSpec | None = quantity("measure new jobs on nodes set aside; not if absent", "-", None)
    image_command: tuple[str, ...] = quantity(
        "how a command is run in an image: arguments, of which {image} and {command} are replaced", "-",
        ("apptainer", "exec", "--nv", "{image}", "{command}"), min_length=1,
    )  # fmt: skip
    folder: str | None = quantity(
        "working directory of a job that names none, absolute; if absent, one of its own, `jobs/NUMBER` in the "
        "state folder",
        "-",
        None,
    )
    default_time_limit_s: float = quantity(
        "run time by which a job is planned of which nothing is known", "s", 86400.0, gt=0
    )
    decision_limit_s: float = quantity(
        "longest time a decision may take; the best schedule found by then counts", "s", 10.0, gt=0
    )
    keep_days: float = quantity(
        "how long samples, the audit log and the events of jobs that have ended are kept; jobs and the ledger are kept "
        "for ever",
        "days",
        180.0,
        gt=0,
        le=36_500,
    )
    retries: int = quantity(
        "times a job is started again after interruptions without progress in between", "-", 3, ge=0
    )

    @field_validator("folder")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("/"):
            msg = f"got {value!r}, expected an absolute path"
            raise ValueError(msg)
        if "\0" in (value or ""):
            msg = f"got {value!r}, expected a path without NUL characters"
            raise ValueError(msg)
        return value
