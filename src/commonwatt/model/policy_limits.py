"""What a policy guarantees, whichever solver it uses: the ``limits`` of a policy in a scenario."""

from __future__ import annotations

from commonwatt.model.fields import FileModel, quantity

__all__ = ["PolicyLimits"]


class PolicyLimits(FileModel):
    """Limits on waiting, and on being stopped and moved; none of them by default."""

    reserve_after_s: float | None = quantity(
        "time since submission after which GPUs are reserved for the oldest waiting job; what starts later may not "
        "delay it, and it then runs to its end; null: no reservation",
        "s", None, ge=0,
    )  # fmt: skip
    max_deliberate_wait_s: float | None = quantity(
        "time a job may wait although it could run, over its life; then it starts at the next decision that finds "
        "room; backfill keeps its own reservation; null: no limit",
        "s", None, ge=0,
    )  # fmt: skip
    max_starts: int | None = quantity(
        "starts and moves of a job; it is not stopped or moved after the last; null: no limit", "-", None, ge=1
    )
    min_run_s: float | None = quantity("time a job runs before it may be stopped or moved; null: none", "s", None, ge=0)
