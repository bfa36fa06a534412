"""Limits of tenants that hold at submission, checked in the transaction that accepts a job."""

from __future__ import annotations

import sqlalchemy as sa

from commonwatt.model.errors import QuotaError
from commonwatt.model.job_file import JobFile
from commonwatt.model.live import TenantLimits
from commonwatt.store import tables
from commonwatt.store.records import ACTIVE, JobStatus

__all__ = ["check_quotas"]

_ROUNDING = 1e-9  # relative: a sum of floats may be a little more than the budget it was made to fill
_ANY_ENDS = "one of its queued or running jobs ends, or is cancelled"


def check_quotas(c: sa.Connection, tenant: str, file: JobFile, limits: TenantLimits) -> None:
    """Raise ``QuotaError`` if the *limits* of a tenant leave no room for another job.

    Its submissions are checked one at a time, so that two at once cannot exceed a limit together.
    """
    if limits.queued_jobs is None and limits.tardiness_budget is None:
        return
    t, j = tables.tenants.c, tables.jobs.c
    c.execute(sa.select(t.name).where(t.name == tenant).with_for_update())
    if limits.queued_jobs is not None:
        own = sa.and_(j.tenant == tenant, j.status == JobStatus.WAITING)
        queued = int(c.scalar(sa.select(sa.func.count()).where(own)) or 0)
        if queued >= limits.queued_jobs:
            raise QuotaError(
                f"tenant {tenant} has {queued} queued jobs and may have {limits.queued_jobs}",
                reason="quota", field="queued_jobs", value=queued + 1,
                frees="one of them starts, or is cancelled",
            )  # fmt: skip
    if limits.tardiness_budget is not None and file.tardiness_weight > 0:
        own = sa.and_(j.tenant == tenant, j.status.in_(ACTIVE))
        weight = j.file["tardiness_weight"].as_float()
        used = float(c.scalar(sa.select(sa.func.sum(weight)).where(own)) or 0.0)
        if used + file.tardiness_weight > limits.tardiness_budget * (1 + _ROUNDING):
            raise QuotaError(
                f"the queued and running jobs of tenant {tenant} have tardiness weights of {used:g} in all and may "
                f"have {limits.tardiness_budget:g} per second, so this job may have "
                f"{max(0.0, limits.tardiness_budget - used):g}, not {file.tardiness_weight:g}",
                reason="budget", field="tardiness_budget", value=used + file.tardiness_weight, frees=_ANY_ENDS,
            )  # fmt: skip
