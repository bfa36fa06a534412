"""Qualities of service: what a job's QOS counts for, and what jobs that share one may have at once, as Slurm has it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from commonwatt.model.fields import FileModel, quantity

__all__ = ["QOS_SCOPES", "Qos", "QosScope", "QosSpecs"]

QosScope = Literal["all", "account", "user"]
QOS_SCOPES: tuple[QosScope, ...] = ("all", "account", "user")
"""Whose jobs a limit counts together: all of the QOS, those of an account (tenant), or those of a user."""


class Qos(FileModel):
    """A quality of service; a limit that is null is none."""

    name: str = quantity("name of the QOS", "-", min_length=1)
    priority: float = quantity("its priority, of which `qos_weight` weighs the part of the highest", "-", 0.0, ge=0)
    max_jobs: int | None = quantity("running jobs at once (GrpJobs)", "jobs", None, ge=0)
    max_gpus: int | None = quantity("GPUs of running jobs (GrpTRES)", "GPUs", None, ge=0)
    max_jobs_per_account: int | None = quantity("running jobs of a tenant (MaxJobsPerAccount)", "jobs", None, ge=0)
    max_gpus_per_account: int | None = quantity("GPUs of a tenant's jobs (MaxTRESPerAccount)", "GPUs", None, ge=0)
    max_jobs_per_user: int | None = quantity("running jobs of a user (MaxJobsPerUser)", "jobs", None, ge=0)
    max_gpus_per_user: int | None = quantity("GPUs of a user's jobs (MaxTRESPerUser)", "GPUs", None, ge=0)

    def limits(self, scope: QosScope) -> tuple[int | None, int | None]:
        """Return the largest numbers of jobs and of GPUs at once for *scope*."""
        suffix = "" if scope == "all" else f"_per_{scope}"
        return getattr(self, f"max_jobs{suffix}"), getattr(self, f"max_gpus{suffix}")


def _distinct(qos: tuple[Qos, ...]) -> tuple[Qos, ...]:
    names = [one.name for one in qos]
    if twice := [name for name in names if names.count(name) > 1]:
        msg = f"got {twice[0]!r} twice, expected distinct names"
        raise ValueError(msg)
    return qos


QosSpecs = Annotated[tuple[Qos, ...], AfterValidator(_distinct)]
