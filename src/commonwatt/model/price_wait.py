"""Waiting for a lower price of electricity: the part of a policy that says which jobs may be held, and for how long."""

from __future__ import annotations

from typing import Literal

from commonwatt.model.fields import FileModel, quantity

__all__ = ["PriceWait"]


class PriceWait(FileModel):
    """Waiting for a lower price: jobs are held until they cost least, of all times at which they end in time."""

    minimise: Literal["cost", "carbon"] = quantity("what a job waits to have less of", "-", "cost")
    carbon_price_per_kg: float = quantity(
        "what a kilogram of CO2 counts for beside the price, in this plan only", "currency/kg", 0.0, ge=0
    )
    may_wait_s: float = quantity(
        "time since submission that a job without a due date may wait; 0: it does not wait", "s", 0.0, ge=0
    )
    margin_s: float = quantity("time before its due date by which a job that waited must end", "s", 600.0, ge=0)
    sure: float = quantity("probability with which it does, where run times are not certain", "-", 0.9, gt=0, le=1)
    least_saving: float = quantity(
        "part of the cost of its energy that a job must save by waiting", "-", 0.05, ge=0, lt=1
    )
    delay_cost_per_h: float = quantity(
        "what an hour of waiting counts for, for each job; above 0, a job may wait longer than "
        "`limits.max_deliberate_wait_s` where it saves more than that",
        "currency/h", 0.0, ge=0,
    )  # fmt: skip
    preempt: bool = quantity(
        "whether jobs also pause while the price is high, where that saves more than their restart and the work since "
        "the last snapshot cost",
        "-",
        False,  # noqa: FBT003
    )
    known_s: float | None = quantity(
        "how far ahead prices are known; null: to the end of the series, whose last value then holds", "s", None, gt=0
    )
