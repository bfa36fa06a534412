"""The job file (``commonwatt submit``), and figures of a job's speed and power by configuration."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, field_validator, model_validator

from commonwatt.model.dependencies import Dependency
from commonwatt.model.errors import FieldError, InputError
from commonwatt.model.features import check_constraint
from commonwatt.model.fields import FileModel, FileVersion, quantity

__all__ = [
    "ADDRESS",
    "LONGEST_EPOCH_S",
    "LONGEST_SCRIPT",
    "MOST_GPUS",
    "MOST_GPU_W",
    "PASSED_ON",
    "SHORTEST_EPOCH_S",
    "Configuration",
    "Figure",
    "JobFile",
    "Measurement",
    "ScriptSpec",
    "Source",
    "Unprofilable",
    "WorkloadSpec",
    "bounded_s",
    "check_image",
    "check_passed_on",
]

SHORTEST_EPOCH_S, LONGEST_EPOCH_S, MOST_GPU_W = 1e-15, 1e15, 1e9
"""Ranges of declared and reported epochs and GPU powers, within which computed figures neither overflow nor vanish."""


def bounded_s(epoch_s: float) -> float:
    """Return the seconds of an epoch, clipped to the shortest and the longest; NaN becomes the longest."""
    return LONGEST_EPOCH_S if math.isnan(epoch_s) else min(max(epoch_s, SHORTEST_EPOCH_S), LONGEST_EPOCH_S)


@dataclass(frozen=True, order=True)
class Configuration:
    """A GPU type and a number of GPUs."""

    gpu_type: str
    gpus: int


class Source(StrEnum):
    """Source of a figure, the most reliable first."""

    MEASURED = "measured"
    PREDICTED = "predicted"  # from measurements of this job alone
    SIMILAR = "similar"  # from jobs of the same kind
    DECLARED = "declared"  # by its owner; scaled if measurements show an error
    HISTORY = "history"  # from the run times of jobs that have ended
    TIME_LIMIT = "time limit"  # that its owner gave
    UNKNOWN = "unknown"  # the site's default, by which it is planned


class Unprofilable(StrEnum):
    """Reason why a job is not profiled. The store contains these values: they never change."""

    NO_NODE = "no profiling node has a GPU type it may run on"
    NO_PROGRESS = "it tells no progress"
    CRASHED = "it ends with an error while it is measured"


@dataclass(frozen=True)
class Measurement:
    """Time and power of a job in one configuration.

    Attributes
    ----------
    kind
        Label of jobs that scale alike; "" for none.
    job
        Number of the job.
    epoch_s
        Seconds of an epoch.
    gpu_w
        Power added by each GPU, W; ``None`` without a meter.
    epochs
        Number of epochs measured.
    measured_s
        Time of the measurement; the latest of a configuration counts.
    """

    kind: str
    job: int
    gpu_type: str
    gpus: int
    epoch_s: float
    gpu_w: float | None = None
    epochs: float = 1.0
    measured_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.epoch_s < math.inf:
            raise InputError("a number of seconds above 0", field="epoch_s", value=self.epoch_s)
        if self.gpus < 1:
            raise InputError("a GPU count of 1 or more", field="gpus", value=self.gpus)
        if self.gpu_w is not None and not 0 <= self.gpu_w < math.inf:
            raise InputError("a power of 0 W or more", field="gpu_w", value=self.gpu_w)

    @property
    def configuration(self) -> Configuration:
        """Configuration of the measurement."""
        return Configuration(self.gpu_type, self.gpus)


@dataclass(frozen=True)
class Figure:
    """Expected speed and power of a job in one configuration.

    ``epoch_s`` is the duration of an epoch; ``gpu_w`` the power added by each GPU (W), ``None`` for the node's figure.
    """

    configuration: Configuration
    epoch_s: float
    gpu_w: float | None
    source: Source


MOST_GPUS = 1024
_LONGEST, _LONGEST_ENVIRONMENT = 8192, 65_536
ADDRESS = r"^[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+$"
"""A mail address, without a display name or quotes."""
LONGEST_SCRIPT = 262_144
"""Characters of a batch script."""
_VALUE = re.compile(r"[A-Za-z0-9_.:,@/-]{1,200}")


def check_image(image: str) -> str:
    """Return *image*; raises ``InputError`` on a name that is invalid or looks like an option."""
    if not image or image.startswith("-") or any(not sign.isprintable() or sign.isspace() for sign in image):
        raise InputError("the name of an image, without blanks and not beginning with '-'", field="image", value=image)
    return image


class ScriptSpec(FileModel):
    """A batch script as ``sbatch`` takes it, and what it asks for beside GPUs.

    ``command`` of the job has the script's name and its arguments.
    """

    script: str = quantity("the script, beginning with #!", "-", pattern=r"^#!", max_length=LONGEST_SCRIPT)
    submit_folder: str = quantity("folder it was submitted from (SLURM_SUBMIT_DIR)", "-", pattern="^/", max_length=4096)
    output: str | None = quantity(
        "file for its output, absolute; %j, %x, %u, %A, %a as in sbatch; absent: `commonwatt log` alone has it", "-",
        None, pattern="^/", max_length=4096,
    )  # fmt: skip
    error: str | None = quantity(
        "file for its standard error; absent: that of its output", "-", None, pattern="^/", max_length=4096
    )
    append: bool = quantity("whether its first run appends to these files", "-", False)  # noqa: FBT003
    array: tuple[int, int, int, int, int] | None = quantity(
        "as a task of an array: number of its first job (0: itself), its index, count, least and largest index", "-",
        None,
    )  # fmt: skip
    array_most: int | None = quantity("tasks of its array that may run at once; absent: all", "jobs", None, ge=1)
    tasks_per_node: int = quantity("tasks on each node", "-", 1, ge=1, le=4096)
    cpus_per_task: int | None = quantity("CPUs of each task; absent: the site's", "CPUs", None, ge=1, le=4096)
    options: tuple[str, ...] = quantity(
        "further options for Slurm, as --name=value (engine `slurm` only)", "-", (), max_length=16
    )

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        for option in options:
            check_passed_on(option)
        return options


PASSED_ON = ("--mem", "--mem-per-cpu", "--mem-per-gpu", "--qos", "--licenses", "--tmp")
"""Options of a batch script that Slurm itself keeps; no option that could change where a job runs."""


def check_passed_on(option: str) -> str:
    """Return *option*; raises ``ValueError`` unless it is one of ``PASSED_ON`` with a value."""
    name, _, value = option.partition("=")
    if name not in PASSED_ON or not _VALUE.fullmatch(value):
        raise FieldError(f"one of {', '.join(PASSED_ON)}, with =VALUE", value=option)
    return option


class WorkloadSpec(FileModel):
    """A Job, JobSet or PyTorchJob that somebody has created in Kubernetes, and the controller starts."""

    namespace: str = quantity("its namespace", "-", min_length=1, max_length=63)
    name: str = quantity("its name", "-", min_length=1, max_length=253)
    uid: str = quantity("its uid, which another Job of this name does not have", "-", min_length=1, max_length=64)
    kind: Literal["Job", "JobSet", "PyTorchJob"] = quantity("what it is", "-", "Job")
    pods: int | None = quantity("its pods with GPUs, equally many on each node; absent: one on each", "-", None, ge=1)

    @property
    def pods_of(self) -> str:
        """What `kubectl logs` takes for its pods."""
        if self.kind == "Job":
            return f"job/{self.name}"
        label = "jobset.sigs.k8s.io/jobset-name" if self.kind == "JobSet" else "training.kubeflow.org/job-name"
        return f"--prefix --selector {label}={self.name}"


class JobFile(FileModel):
    """One training job."""

    name: str = quantity("name of the job", "-", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    command: tuple[str, ...] = quantity(
        "program and arguments, run without a shell; a string is split like in a shell", "-", min_length=1
    )
    image: str | None = quantity(
        "container image to run the command in, by the site's command template", "-", None, min_length=1, max_length=512
    )
    folder: str | None = quantity(
        "working directory, absolute; absent: the site's default, or a folder for this job", "-", None
    )
    environment: dict[str, str] = quantity("environment variables of the job", "-", dict)
    snapshots: str | None = quantity("folder for checkpoints, absolute; absent: a folder of the site", "-", None)
    epochs: int = quantity("number of epochs; a checkpoint is taken after each", "-", 1, ge=1, le=1_000_000_000)
    due: str | None = quantity("due date (ISO 8601; UTC without a time zone)", "-", None)
    due_in_s: float | None = quantity("due date, as seconds from submission", "s", None, gt=0)
    tardiness_weight: float = quantity("cost of each second of lateness (omega)", "currency/s", 0.0, ge=0, le=1e9)
    gpus: int = quantity("requested GPUs", "GPUs", 1, ge=1, le=MOST_GPUS)
    gpu_type: str | None = quantity("requested GPU type; absent: any", "-", None, min_length=1, max_length=100)
    gpu_types: tuple[str, ...] | None = quantity("allowed GPU types; absent: all", "-", None, min_length=1)
    gpu_counts: tuple[int, ...] | None = quantity(
        "allowed GPU counts; absent: only `gpus`, unless `times_s` is given", "GPUs", None, min_length=1
    )
    times_s: dict[str, tuple[float | None, ...] | dict[int, float]] | None = quantity(
        "run time of the whole job by GPU type, if known: a list for 1, 2, ... GPUs (null: not possible) or a map from "
        "GPU count",
        "s",
        None,
    )
    time_limit_s: float | None = quantity(
        "time limit of a run; used for planning if no times are known", "s", None, gt=0
    )
    cpus_per_gpu: float | None = quantity(
        "CPUs it needs for each GPU; absent: what the site gives", "CPUs", None, gt=0, le=4096
    )
    memory_gib_per_gpu: float | None = quantity(
        "memory it needs for each GPU; absent: what the site gives", "GiB", None, gt=0, le=65_536
    )
    nodes: int = quantity("nodes, with equally many GPUs each; 0: as few as possible", "-", 0, ge=0, le=MOST_GPUS)
    gpus_per_node: int = quantity("GPUs on each of its nodes, however many; 0: any", "GPUs", 0, ge=0, le=MOST_GPUS)
    partition: str = quantity(
        "partitions it may run in, with commas between them; empty: any", "-", "",
        pattern=r"^([A-Za-z0-9_.-]+(,[A-Za-z0-9_.-]+)*)?$", max_length=512,
    )  # fmt: skip
    constraint: Annotated[str, AfterValidator(check_constraint)] = quantity(
        "features its nodes must have, joined by & or |, with parentheses where both are; empty: none", "-", "",
        max_length=512,
    )  # fmt: skip
    begin: str | None = quantity(
        "time before which it does not start (ISO 8601; UTC without a time zone)", "-", None, max_length=64
    )
    after: dict[int, Dependency] = quantity(
        "jobs it waits for, by number: until they have started (after), ended (afterany), completed (afterok) or "
        "failed (afternotok)", "-", dict, max_length=100,
    )  # fmt: skip
    mail_to: str | None = quantity(
        "address that receives mail about the job, if the site sends mail", "-", None, pattern=ADDRESS, max_length=254
    )
    mail_on: tuple[Literal["begin", "end", "fail", "requeue"], ...] = quantity(
        "what it receives: the first start, the end of any kind, a failure, being stopped to be started again", "-",
        ("end",), max_length=4,
    )  # fmt: skip
    batch: ScriptSpec | None = quantity("batch script to run; absent: `command` is run", "-", None)
    workload: WorkloadSpec | None = quantity(
        "Job of Kubernetes that does the work; written by the control plane, refused from anybody else", "-", None
    )
    kind: str = quantity("free label; jobs of one kind are assumed to scale alike", "-", "", max_length=100)
    version: FileVersion = quantity("version of this format", "-", 1)

    @property
    def width(self) -> int:
        """Its nodes, as ``Cluster.shapes`` takes them: negative for GPUs on each."""
        return self.nodes or -self.gpus_per_node

    @field_validator("command", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:  # noqa: ANN401
        if not isinstance(value, str):
            return tuple(value) if isinstance(value, list) else value
        try:
            return tuple(shlex.split(value))
        except ValueError as error:
            raise FieldError(f"a command that a shell can split ({error})", value=value) from None

    @model_validator(mode="after")
    def _check(self) -> JobFile:
        texts = {"command": self.command, "environment": (*self.environment, *self.environment.values())}
        texts |= {"folder": (self.folder or "",), "snapshots": (self.snapshots or "",), "image": (self.image or "",)}
        for field, values in texts.items():
            if any("\0" in value for value in values):
                raise FieldError("text without NUL characters", field=field)
            most = _LONGEST_ENVIRONMENT if field == "environment" and self.batch is not None else _LONGEST
            if sum(map(len, values)) > most:
                raise FieldError(f"at most {most} characters", field=field)
        if not self.command[0]:
            raise FieldError("the name of a program first", field="command")
        for field in ("folder", "snapshots"):
            if not (getattr(self, field) or "/").startswith("/"):
                raise FieldError("an absolute path", field=field, value=getattr(self, field))
        if self.image is not None and self.image.startswith("-"):
            raise FieldError("the name of an image", field="image", value=self.image)
        for name in self.environment:
            if not name or "=" in name or name.startswith(("COMMONWATT_", "SLURM_")) or name == "CUDA_VISIBLE_DEVICES":
                reserved = "COMMONWATT_*, SLURM_*, CUDA_VISIBLE_DEVICES"
                raise FieldError(
                    f"a name that is neither empty nor reserved ({reserved})", field="environment", value=name
                )
        each = self.gpus_per_node
        if each and (self.nodes or any(count % each for count in self.gpu_counts or (self.gpus,))):
            expected = "0 where `nodes` is given, or a divisor of all GPU counts"
            raise FieldError(expected, field="gpus_per_node", value=each)
        if self.due is not None and self.due_in_s is not None:
            raise FieldError("`due` or `due_in_s`, not both", field="due_in_s")
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle values only: the names of all fields would be most of the bytes, and so would those that were set."""
        return _restored, (_values(vars(self)), bytes(map(_AT.__getitem__, self.model_fields_set)))


_FIELDS = tuple(JobFile.model_fields)
_AT = {name: at for at, name in enumerate(_FIELDS)}
_values = itemgetter(*_FIELDS)


def _restored(values: tuple[Any, ...], given: bytes) -> JobFile:
    """Return a file that was valid when it was pickled; ``model_construct`` takes several times as long."""
    file = JobFile.__new__(JobFile)
    object.__setattr__(file, "__dict__", dict(zip(_FIELDS, values, strict=True)))
    object.__setattr__(file, "__pydantic_fields_set__", set(map(_FIELDS.__getitem__, given)))
    for name in ("__pydantic_extra__", "__pydantic_private__"):
        object.__setattr__(file, name, None)
    return file
