"""G#'s evaluation run again: all parts that are asked for, in one answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from commonwatt.reproduce.papers._etf_plots import draw
from commonwatt.reproduce.papers._gsharp_costs import cost_models
from commonwatt.reproduce.papers._gsharp_jobs import figure_6, figure_11
from commonwatt.reproduce.papers._gsharp_methods import figure_7, figure_8, figure_10, table_7
from commonwatt.reproduce.papers._gsharp_platforms import figure_9
from commonwatt.reproduce.papers._gsharp_search import figure_12, figure_13, figure_14
from commonwatt.reproduce.papers._gsharp_searches import searches
from commonwatt.reproduce.papers._gsharp_study import Part, Study
from commonwatt.reproduce.papers._gsharp_transfer import table_6
from commonwatt.reproduce.topic import Answer, Extent, Request

__all__ = ["answer"]

_PARTS: dict[str, tuple[str, Callable[[Study, Part], None]]] = {
    "figure-6": ("Fig. 6", figure_6),
    "figure-7": ("Fig. 7", figure_7),
    "figure-8": ("Fig. 8", figure_8),
    "figure-9": ("Fig. 9", figure_9),
    "figure-10": ("Fig. 10", figure_10),
    "figure-11": ("Fig. 11", figure_11),
    "figure-12": ("Fig. 12", figure_12),
    "figure-13": ("Fig. 13", figure_13),
    "figure-14": ("Fig. 14", figure_14),
    "table-6": ("Table 6", table_6),
    "table-7": ("Table 7", table_7),
    "searches": ("Searches", searches),
    "cost-models": ("Cost models", cost_models),
}
_BUDGETS: dict[Extent, int] = {"quick": 3000, "default": 10_000, "full": 10_000}
_SEEDS: dict[Extent, int] = {"quick": 1, "default": 3, "full": 10}
_INSTANCES: dict[Extent, tuple[int, ...]] = {"quick": (0,), "default": (0,), "full": (0, 1, 2, 3, 4)}
_NOTES = (
    (
        "Job tables by the published cost model in closed form; by it a layer moves one tile, which makes bandwidth "
        "look cheap. 'Cost models' repeats the conclusions with every byte moved."
    ),
    (
        "Where the paper's large ratios come from: on LB an average language layer takes 200 and a recommendation "
        "layer 4,000 times as long as on HB. A rule that does not look at latencies (OLB, RR) puts jobs there, and "
        "one of them then decides the makespan. Without the LB sub-accelerators the same rules are close to G#."
    ),
    "The paper averages over methods without listing them; ours are FCFS and SJF with OLB, MET and RR, and HEFT.",
)


def answer(request: Request, parts: tuple[str, ...]) -> Answer:
    """Run the parts called *parts*."""
    seeds = tuple(range(request.seed, request.seed + (request.seeds or _SEEDS[request.extent])))
    done: list[Part] = []
    with request.progress(len(parts), 1.0) as bar:
        study = Study(seeds, _BUDGETS[request.extent], _INSTANCES[request.extent], request.extent == "quick")
        for name in parts:
            label, run = _PARTS[name]
            part = Part(label)
            run(study, part)
            done.append(part)
            bar.done()
    notes: tuple[str, ...] = _NOTES
    if study.folder is None:
        notes = (*notes, "The published batches are not at hand: 100 layers drawn from our tables of networks instead.")
    panels = [panel for part in done for panel in part.panels]
    return Answer(
        seeds=seeds,
        digests=tuple(study.digests),
        rows=tuple(row for part in done for row in part.rows),
        points=tuple(point for part in done for point in part.points),
        x_name="GB/s, or evaluations in Fig. 12",
        notes=notes,
        draw=partial(draw, panels),
    )
