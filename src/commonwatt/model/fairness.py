"""Fairness over a whole cluster: the part of a policy that guarantees tenants their share, whatever the solver."""

from __future__ import annotations

from commonwatt.model.fields import FileModel, quantity

__all__ = ["FairnessSpec"]


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
