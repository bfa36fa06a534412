"""How many nodes stay on: the ``capacity`` of a scenario."""

from __future__ import annotations

from typing import Literal

from commonwatt.model.fields import FileModel, quantity

__all__ = ["CapacityName", "CapacitySpec"]

CapacityName = Literal["always-on", "last-value", "threshold", "cuff", "foresight"]


class CapacitySpec(FileModel):
    """A policy for the power states of unused nodes; replaces `unused_nodes`."""

    policy: CapacityName = quantity(
        "always-on: every node; last-value: the demand of now; threshold: the forecaster's median and a margin; cuff: "
        "what the promise needs, and beyond it the least expected cost; foresight: future demand, known from a run "
        "with every node on",
        "-",
        "cuff",
    )
    target: float = quantity("cuff: share of instants at which the GPUs on must suffice", "-", 0.98, gt=0, le=1)
    forecaster: str = quantity(
        "threshold, cuff: name of a predictor, fitted to the demand before the period, or a fitted model's file, "
        "relative to this file",
        "-",
        "last-value",
    )
    margin: float = quantity("threshold: share added to the median", "-", 0.05, ge=0)
    states: tuple[str, ...] | None = quantity("states that may be used, by name; all of a node's if null", "-", None)
    step_s: float = quantity("time between plans; of the demand series, too", "s", 60.0, gt=0)
    floor_gpus: int = quantity("GPUs that are always on", "GPUs", 0, ge=0)
    hold_s: float = quantity("a promised node stays promised for this long (hysteresis)", "s", 0.0, ge=0)
    history_days: float = quantity(
        "length of the demand before the period a predictor is fitted to", "days", 21.0, gt=0
    )

    @property
    def forecasts(self) -> bool:
        """Whether a forecaster is needed."""
        return self.policy in ("threshold", "cuff")
