"""The job file: what a person submits to the live control plane (``commonwatt submit``)."""

from __future__ import annotations

import shlex
from typing import Any

from pydantic import field_validator, model_validator

from commonwatt.model.errors import InputError
from commonwatt.model.fields import FileModel, FileVersion, quantity

__all__ = ["MOST_GPUS", "JobFile", "check_image"]

MOST_GPUS = 1024
_LONGEST = 8192


def check_image(image: str) -> str:
    """Return *image*; raises ``InputError`` on one that a runtime could take for an option, or that no name can be."""
    if not image or image.startswith("-") or any(not sign.isprintable() or sign.isspace() for sign in image):
        raise InputError("the name of an image: no blanks, not beginning with '-'", field="image", value=image)
    return image


class JobFile(FileModel):
    """One training job."""

    name: str = quantity("name of the job", "-", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    command: tuple[str, ...] = quantity(
        "program and arguments, run without a shell; a text is split as a shell would", "-", min_length=1
    )
    image: str | None = quantity(
        "container image to run the command in, by the site's command template", "-", None, min_length=1, max_length=512
    )
    folder: str | None = quantity(
        "working directory, absolute; the site's, or one of the job's own, if absent", "-", None
    )
    environment: dict[str, str] = quantity("environment variables of the job", "-", dict)
    snapshots: str | None = quantity(
        "folder its snapshots are kept in, absolute; one of the site's if absent", "-", None
    )
    epochs: int = quantity("number of epochs; a snapshot is taken after each", "-", 1, ge=1, le=1_000_000_000)
    due: str | None = quantity("when it should be finished (ISO 8601; UTC if no zone is given)", "-", None)
    due_in_s: float | None = quantity("the same, counted from submission", "s", None, gt=0)
    tardiness_weight: float = quantity("cost of each second of lateness (omega)", "currency/s", 0.0, ge=0, le=1e9)
    gpus: int = quantity("GPUs its owner asks for", "GPUs", 1, ge=1, le=MOST_GPUS)
    gpu_type: str | None = quantity(
        "GPU type its owner asks for; any if absent", "-", None, min_length=1, max_length=100
    )
    gpu_types: tuple[str, ...] | None = quantity("GPU types it may run on; all if absent", "-", None, min_length=1)
    gpu_counts: tuple[int, ...] | None = quantity(
        "GPU counts it may run on; only `gpus`, if absent and no times are given", "GPUs", None, min_length=1
    )
    times_s: dict[str, tuple[float | None, ...] | dict[int, float]] | None = quantity(
        "run time of the whole job by GPU type, if known: a list for 1, 2, ... GPUs (null: not possible) or a map from "
        "GPU count",
        "s",
        None,
    )
    time_limit_s: float | None = quantity(
        "longest time it may run; by which it is planned if nothing else is known", "s", None, gt=0
    )
    kind: str = quantity("free label: jobs of one kind are taken to scale alike", "-", "", max_length=100)
    version: FileVersion = quantity("version of this format", "-", 1)

    @field_validator("command", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:  # noqa: ANN401
        if not isinstance(value, str):
            return tuple(value) if isinstance(value, list) else value
        try:
            return tuple(shlex.split(value))
        except ValueError as error:
            msg = f"got {value!r}, expected a command a shell could split ({error})"
            raise ValueError(msg) from None

    @model_validator(mode="after")
    def _check(self) -> JobFile:
        texts = {"command": self.command, "environment": (*self.environment, *self.environment.values())}
        texts |= {"folder": (self.folder or "",), "snapshots": (self.snapshots or "",), "image": (self.image or "",)}
        for field, values in texts.items():
            if any("\0" in value for value in values):
                msg = f"{field}: expected text without NUL characters"
                raise ValueError(msg)
            if sum(map(len, values)) > _LONGEST:
                msg = f"{field}: expected {_LONGEST} characters at most"
                raise ValueError(msg)
        if not self.command[0]:
            msg = "command: expected the name of a program first"
            raise ValueError(msg)
        for field in ("folder", "snapshots"):
            if not (getattr(self, field) or "/").startswith("/"):
                msg = f"{field}: got {getattr(self, field)!r}, expected an absolute path"
                raise ValueError(msg)
        if self.image is not None and self.image.startswith("-"):
            msg = f"image: got {self.image!r}, expected the name of an image"
            raise ValueError(msg)
        for name in self.environment:
            if not name or "=" in name or name.startswith(("COMMONWATT_", "SLURM_")) or name == "CUDA_VISIBLE_DEVICES":
                msg = f"environment: got {name!r}, expected a name that is not ours, Slurm's or empty"
                raise ValueError(msg)
        if self.due is not None and self.due_in_s is not None:
            msg = "due_in_s: expected `due` or `due_in_s`, not both"
            raise ValueError(msg)
        return self
