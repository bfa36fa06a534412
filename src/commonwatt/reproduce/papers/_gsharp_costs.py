"""What of the conclusions is left if every byte is moved: Fig. 9 and 11 under both cost models."""

from __future__ import annotations

from functools import partial

import numpy as np

from commonwatt.mapping.costs.models import ModelName
from commonwatt.mapping.platforms import PLATFORMS
from commonwatt.reproduce.papers import _gsharp_plots as plots
from commonwatt.reproduce.papers._gsharp_jobs import flexible, makespan
from commonwatt.reproduce.papers._gsharp_platforms import claims_9, totals_9
from commonwatt.reproduce.papers._gsharp_study import TASKS, Part, Study

__all__ = ["cost_models"]

_BOTH: tuple[ModelName, ...] = ("maestro", "roofline")


def cost_models(study: Study, part: Part) -> None:
    """The paper's claims by its model, and by the honest one."""
    totals = {model: totals_9(study, model) for model in _BOTH}
    published = claims_9(totals["maestro"])
    for claim, (holds, said) in claims_9(totals["roofline"]).items():
        held, then = published[claim]
        note = f"{said}; by the published model {then}, which {'holds' if held else 'does not hold'}"
        part.row(f"{claim}, roofline", paper=True, ours=holds, note=note)
    for gbs in (1.0, 16.0, 256.0):
        ratio = totals["roofline"]["S3", gbs] / totals["maestro"]["S3", gbs]
        part.row(f"S3, {gbs:g} GB/s: total makespan, roofline over published model", None, ratio, "x")
    for setting, total in totals["roofline"].items():
        part.point(setting[0], "total makespan of G#, roofline", setting[1], total, "cycles")
    _bytes(study, part)
    _flexible(study, part)
    panel = partial(plots.lines, points=part.points, x_name="bandwidth, GB/s", logarithmic=True)
    part.draw("total makespan, roofline", panel)


def _bytes(study: Study, part: Part) -> None:
    """What a job moves on LB over what it moves on HB, on S4."""
    low = next(a for a, array in enumerate(PLATFORMS["S4"]) if array.dataflow == "LB")
    for model in _BOTH:
        tables = [study.table(task, "S4", i, model) for task in TASKS for i in study.instances]
        moved = [table.latency * table.bandwidth for table in tables]
        ratio = sum(float(m[:, low].sum()) for m in moved) / sum(float(m[:, 0].sum()) for m in moved)
        asked = np.mean([table.bandwidth[:, low].mean() / table.bandwidth[:, 0].mean() for table in tables])
        part.row(f"S4: bytes moved on LB128 over HB128, {model}", None, ratio, "x",
                 f"it asks for {asked:.2g} of the bandwidth, for as much longer as it takes")  # fmt: skip


def _flexible(study: Study, part: Part) -> None:
    """Fig. 11; flexible arrays have 2 MB of SG, so that the shape counts only against arrays that have as much."""
    for model in _BOTH:
        for same in (False, True):
            for (jobs, setting), pair in flexible(study, model, same_buffers=same).items():
                if same and model == "maestro":
                    continue  # fixed arrays' buffers are not looked at
                ratios = [makespan(study, pair.flexible, gbs) / makespan(study, pair.fixed, gbs) for gbs in (1.0, 16.0)]
                note = f"mean cycles {pair.ratio('latency'):.3f}, bandwidth {pair.ratio('bandwidth'):.3f}"
                what = "fixed ones with their buffers" if same else "fixed ones"
                part.row(f"{jobs}, {setting}: makespan on flexible arrays over {what}, {model}", None,
                         f"{ratios[0]:.3f} at 1, {ratios[1]:.3f} at 16 GB/s", note=note)  # fmt: skip
