"""How many nodes stay on: the ``capacity`` of a scenario."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from commonwatt.model.demand import HORIZON
from commonwatt.model.errors import FieldError, InputError
from commonwatt.model.fields import FileModel, quantity
from commonwatt.model.units import HOUR_S

__all__ = [
    "CapacityName",
    "CapacitySpec",
    "PoolsBy",
    "Target",
    "WaitingTarget",
    "parse_target",
    "share_at",
    "target_label",
    "target_number",
    "target_of",
]

CapacityName = Literal["always-on", "last-value", "threshold", "cuff", "foresight"]

PoolsBy = Literal["gpu_type", "partition", "node_class", "shape"]
"""What names the pools of a cluster; a node class is a number of GPUs of one type."""

_BUDGET_SHARE = 0.98
"""Where a quantile or a price needs a share and the promise is a budget."""


class WaitingTarget(FileModel):
    """A promise in the terms of those who wait: give one of the keys."""

    jobs: float | None = quantity("share of jobs whose GPUs are on when they come", "-", None, gt=0, le=1)
    delay_s: dict[str, float] | None = quantity(
        "longest delay by percentile, one of them, such as {p99: 60}: 99% of jobs wait for at most a minute", "s", None
    )
    delayed_gpu_h: float | None = quantity("GPU hours that may be spent waiting, a day", "GPU h", None, gt=0)

    @model_validator(mode="after")
    def _one(self) -> WaitingTarget:
        given = [name for name in ("jobs", "delay_s", "delayed_gpu_h") if getattr(self, name) is not None]
        if len(given) != 1:
            raise FieldError("one of jobs, delay_s and delayed_gpu_h", value=" and ".join(given) or "nothing")
        for name, delay_s in (self.delay_s or {}).items():
            if _percentile(name) is None or delay_s < 0:
                raise FieldError("a percentile and seconds, such as p99: 60", value=f"delay_s {name}: {delay_s:g}")
        if self.delay_s is not None and len(self.delay_s) != 1:
            raise FieldError("one", value=f"{len(self.delay_s)} percentiles of delay_s")
        return self

    @property
    def of(self) -> Literal["jobs", "delay_s", "delayed_gpu_h"]:
        """What the promise is of."""
        return "jobs" if self.jobs is not None else "delay_s" if self.delay_s is not None else "delayed_gpu_h"

    @property
    def share(self) -> float:
        """Share of jobs that must not wait longer than ``patience_s``; of a budget, which has none, .98."""
        if self.jobs is not None:
            return self.jobs
        return (_percentile(next(iter(self.delay_s))) or _BUDGET_SHARE) if self.delay_s else _BUDGET_SHARE

    @property
    def patience_s(self) -> float:
        """How long a job may wait and still count as served, s."""
        return next(iter(self.delay_s.values())) if self.delay_s else 0.0

    @property
    def budget_gpu_s(self) -> float:
        """GPU seconds that may be spent waiting, a day; 0 for the other promises."""
        return (self.delayed_gpu_h or 0.0) * HOUR_S

    @property
    def label(self) -> str:
        """The target as it is typed."""
        if self.jobs is not None:
            return f"jobs:{self.jobs:g}"
        if self.delay_s:
            name, delay_s = next(iter(self.delay_s.items()))
            return f"delay_s:{name}:{delay_s:g}"
        return f"delayed_gpu_h:{self.delayed_gpu_h:g}"


def _percentile(name: str) -> float | None:
    """Return the share that a name such as p99 stands for; ``None`` for others."""
    digits = name.removeprefix("p")
    if digits == name or not digits.replace(".", "", 1).isdecimal():
        return None
    return float(digits) / 100 if 0 < float(digits) < 100 else None


Target = float | WaitingTarget
"""A share of instants, or a promise about waiting."""


def target_label(target: Target) -> str:
    """Return a target as it is typed."""
    return target.label if isinstance(target, WaitingTarget) else f"{target:g}"


def target_number(target: Target) -> float:
    """Return the share promised; of a budget, its GPU hours."""
    if not isinstance(target, WaitingTarget):
        return target
    return target.share if target.delayed_gpu_h is None else target.delayed_gpu_h


def share_at(target: Target) -> float:
    """Return the quantile level a target begins with, by which delay is priced: its share, or .98 for a budget."""
    return target.share if isinstance(target, WaitingTarget) else target


def target_of(target: Target) -> str:
    """Return what a target is a promise of."""
    return target.of if isinstance(target, WaitingTarget) else "instants"


def parse_target(text: str | float) -> Target:
    """Read a target as it is typed: 0.98, instants:0.98, jobs:0.98, delay_s:p99:60 or delayed_gpu_h:2.

    Raises
    ------
    InputError
        For any other text.
    """
    of, _, rest = (
        str(text).strip().rpartition(":") if not str(text).startswith("delay_s:") else str(text).partition(":")
    )
    try:
        if of in ("", "instants"):
            share = float(rest)
            if 0 < share <= 1:
                return share
        elif of in ("jobs", "delayed_gpu_h"):
            return WaitingTarget.model_validate({of: float(rest)})
        elif of == "delay_s":
            name, _, delay_s = rest.partition(":")
            return WaitingTarget(delay_s={name: float(delay_s)})
    except ValueError:  # of a number, or of the model
        pass
    expected = (
        "a finite share above 0, at most 1, of instants (0.98) or jobs (jobs:0.98), a percentile of delays "
        "(delay_s:p99:60) or GPU hours of waiting a day (delayed_gpu_h:2)"
    )
    raise InputError(expected, field="target", value=text)


class CapacitySpec(FileModel):
    """A policy for the power states of unused nodes; replaces `unused_nodes`."""

    policy: CapacityName = quantity(
        "always-on: every node; last-value: the demand of now, and jobs known to come; threshold: the forecaster's "
        "median and a margin; cuff: what the promise needs, and beyond it the least expected cost; foresight: future "
        "demand, known from a run with every node on",
        "-",
        "cuff",
    )
    target: Annotated[float, Field(gt=0, le=1)] | WaitingTarget = quantity(
        "cuff: share of instants at which the GPUs on must suffice, or a promise about waiting: {jobs: 0.98}, "
        "{delay_s: {p99: 60}} or {delayed_gpu_h: 2}",
        "-",
        0.98,
    )
    forecaster: str = quantity(
        "threshold, cuff: name of a predictor, fitted to the demand before the period, or a fitted model's file, "
        "relative to this file",
        "-",
        "last-value",
    )
    margin: float = quantity("threshold: share added to the median", "-", 0.05, ge=0)
    states: tuple[str, ...] | None = quantity("states that may be used, by name; all of a node's if null", "-", None)
    step_s: float = quantity("time between plans; of the demand series, too", "s", 60.0, gt=0)
    horizon: int = quantity(
        "steps to forecast; states that are entered and left within them can be used: 5 steps of a minute reach sleep "
        "and deep sleep, a node that boots for ten minutes takes 15",
        "steps", HORIZON, ge=1, le=10_000,
    )  # fmt: skip
    floor_gpus: int = quantity("GPUs that are always on", "GPUs", 0, ge=0)
    hold_s: float = quantity("a promised node stays promised for this long (hysteresis)", "s", 0.0, ge=0)
    history_days: float = quantity(
        "length of the demand before the period a predictor is fitted to", "days", 21.0, gt=0
    )
    pools: PoolsBy | None = quantity(
        "keep demand and promise apart for each gpu_type, partition or node_class (GPUs of a node and their type) of "
        "the nodes, or by shape: within each node_class, jobs that need whole nodes and others; null: one pool",
        "-", None,
    )  # fmt: skip
    share: tuple[tuple[str, ...], ...] = quantity(
        "groups of pools that share their nodes: each group is planned as one", "-", ()
    )
    power_kw: float | None = quantity(
        "most that all nodes may draw together, those that are on counted with all GPUs busy; null: only "
        "`electricity.power_cap_w`, if there is one",
        "kW", None, gt=0,
    )  # fmt: skip
    delay_price: float | None = quantity(
        "cuff: price of a GPU hour of waiting; in place of `target`, the promise to jobs that was cheapest over the "
        "record of demand, energy and delay together",
        "currency/GPU h", None, ge=0,
    )  # fmt: skip

    @model_validator(mode="after")
    def _consistent(self) -> CapacitySpec:
        if self.share and self.pools is None:
            raise FieldError("none without pools", field="share", value="+".join(self.share[0]))
        if self.delay_price is not None and "target" in self.model_fields_set:
            raise FieldError(
                "one of them, as it chooses a target",
                field="delay_price",
                value=f"{self.delay_price:g} beside a target",
            )
        if self.delay_price is not None and self.policy != "cuff":
            raise FieldError(
                f"none: policy {self.policy} promises nothing", field="delay_price", value=f"{self.delay_price:g}"
            )
        return self

    @property
    def promised_share(self) -> float:
        """Share by which the delay of nodes beyond the promise is priced; .98 where the promise is a budget."""
        return share_at(self.target)

    @property
    def forecasts(self) -> bool:
        """Whether a forecaster is needed."""
        return self.policy in ("threshold", "cuff")
