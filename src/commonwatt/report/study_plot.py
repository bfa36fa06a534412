"""The waterfall of a study as a static figure."""

from __future__ import annotations

from pathlib import Path

from commonwatt.model.study_results import StudyResult
from commonwatt.report.saving import saved
from commonwatt.report.study_text import STEP_NAMES, headline, signed_pct

__all__ = ["save_waterfall"]

_UP, _DOWN = "#009E73", "#D55E00"


def save_waterfall(result: StudyResult, path: Path) -> None:
    """Draw the energy saved step by step, and what each step brings alone, and save it to *path*.

    Raises ``InputError`` if the suffix is none of ``SUFFIXES``.
    """
    steps = [step for step in result.waterfall if step.alone_against is not None and step.saved_pct is not None]
    with saved(path, (9.0, 1.6 + 0.45 * len(steps))) as figure:
        axes = figure.subplots()
        before = 0.0
        for row, step in enumerate(steps):
            now = step.saved_pct or 0.0
            axes.barh(row, now - before, left=before, height=0.62, color=_UP if now >= before else _DOWN)
            axes.annotate(signed_pct(now), (max(now, before), row), (4, 0), textcoords="offset points", va="center")
            if step.alone_pct is not None:
                axes.plot(step.alone_pct, row, "D", color="#17202c", markersize=4, label="alone" if row == 0 else None)
            before = now
        axes.axvline(0.0, color="#5a6675", linewidth=0.8)
        axes.set_yticks(range(len(steps)), [STEP_NAMES.get(step.step, step.step) for step in steps])
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlabel("energy saved in the window against what runs today, % (diamonds: the step alone)")
        figure.suptitle(f"{result.study}: {headline(result)}", x=0.01, ha="left", fontweight="bold")
