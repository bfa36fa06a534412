"""Fairness over a whole cluster: the part of a policy that guarantees tenants their share, whatever the solver."""

from __future__ import annotations

from commonwatt.model.fields import FileModel, ResultModel, quantity

__all__ = ["FairnessResult", "FairnessSpec", "TenantShareResult"]


class FairnessSpec(FileModel):
    """Energy-time fairness among tenants: what each is entitled to comes before what costs least."""

    phi: float = quantity(
        "part of a tenant's fair share of GPU time that is guaranteed; the rest evens out energy over weight. 1: fair "
        "share, 0: energy fairness",
        "-", 1.0, ge=0, le=1,
    )  # fmt: skip
    memory: float = quantity(
        "how much use in the past counts, with the half-life of the policy: 1: as much as use now, 0: not at all", "-",
        1.0, ge=0, le=10,
    )  # fmt: skip


class TenantShareResult(ResultModel):
    """What one tenant received of what it was entitled to."""

    tenant: str = quantity("name of the tenant")
    weight: float = quantity("its weight")
    entitled_gpu_hours: float = quantity("weighted max-min share of the GPUs under the demands of each moment", "GPU h")
    received_gpu_hours: float = quantity("GPU time of its training jobs", "GPU h")
    kept_share: float = quantity("part of its entitlement that it had when it was entitled to it")


class FairnessResult(ResultModel):
    """GPU time received against entitled, over tenants, without memory; the same for every policy."""

    worst_share: float = quantity("least kept share of a tenant")
    mean_share: float = quantity("mean kept share")
    evenness: float | None = quantity("Jain's index of kept shares; null: fewer than two tenants")
    tenants: tuple[TenantShareResult, ...] = quantity("per tenant")
