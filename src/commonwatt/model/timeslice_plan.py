"""The file ``commonwatt timeslice plan`` reads: one quantum of one device, as ETF section 4.2 describes it."""

from __future__ import annotations

from pydantic import model_validator

from commonwatt.model.fields import FileModel, quantity

__all__ = ["PlanFile", "PlanTenant"]


class PlanTenant(FileModel):
    """A tenant that shares the device (the paper's application)."""

    name: str = quantity("name of the tenant", "-", min_length=1)
    weight: float = quantity("entitlement relative to the other tenants (w)", "-", 1.0, gt=0)
    power_w: float = quantity("power of the device while it works for this tenant (P)", "W", gt=0)
    demand: int | None = quantity("time it can use in a quantum (d); absent: backlogged", "time units", None, ge=0)


class PlanFile(FileModel):
    """A quantum to divide."""

    quantum: int = quantity("length of the quantum (T)", "time units", ge=1)
    unit_s: float = quantity("length of a time unit", "s", 1.0, gt=0)
    phi: float = quantity("time-fair factor: the part of a fair share that is guaranteed", "-", 0.7, ge=0, le=1)
    tenants: tuple[PlanTenant, ...] = quantity("tenants that share the device; order breaks ties", "-", min_length=1)

    @model_validator(mode="after")
    def _check_names(self) -> PlanFile:
        names = [tenant.name for tenant in self.tenants]
        for place, name in enumerate(names):
            if name in names[:place]:
                msg = f"tenants.{place}.name: got {name!r} twice, expected each name once"
                raise ValueError(msg)
        return self
