"""What ``commonwatt check`` answers."""

from __future__ import annotations

from typing import Literal

from commonwatt.model.fields import AnswerModel, ResultModel, quantity

__all__ = ["CheckLine", "CheckResult", "Verdict"]

Verdict = Literal["ok", "warning", "failed"]


class CheckLine(ResultModel):
    """One thing that was looked at."""

    what: str = quantity("what was looked at")
    verdict: Verdict = quantity("ok, warning (it will run, but) or failed (it will not)")
    found: str = quantity("what was found")
    advice: str | None = quantity("what to do about it; null if nothing is to be done")


class CheckResult(AnswerModel):
    """Whether a control plane can run here."""

    verdict: Verdict = quantity("the worst of all")
    checks: tuple[CheckLine, ...] = quantity("everything that was looked at, in order")
