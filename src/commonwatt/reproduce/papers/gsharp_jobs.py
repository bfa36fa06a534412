"""What layers ask of arrays: Fig. 6 on both dataflows, Fig. 11 on fixed and flexible shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from commonwatt.data.layer_batches import as_published
from commonwatt.data.networks import network_layers, task_layers
from commonwatt.mapping import GSharp, MappingProblem
from commonwatt.mapping.costs import MODELS, PLATFORMS, Array, JobTable, Layer, ModelName, TaskClass, job_table
from commonwatt.reproduce.papers import gsharp_plots as plots
from commonwatt.reproduce.papers.gsharp_study import PAPERS, GSharpPart, GSharpStudy

__all__ = ["Pair", "figure_6", "figure_11", "flexible", "makespan", "random_jobs"]

_HIGH, _LOW = Array("HB", 64), Array("LB", 64)


class _Printed(NamedTuple):
    hb_cycles: float
    lb_cycles: float
    hb_gbs: float
    lb_gbs: float | None = None  # in our copy of the paper for three networks only


_NETWORKS: dict[TaskClass, dict[str, _Printed]] = {
    "vision": {
        "mobilenet-v2": _Printed(3.1e5, 1.1e6, 0.68, 8.8e-2),
        "resnet50": _Printed(8.5e4, 7.0e6, 0.52, 3.6e-4),
        "shufflenet-v2": _Printed(9.6e4, 4.9e5, 1.5, 2.3e-2),
    },
    "language": {
        "gpt2": _Printed(1.7e4, 3.5e6, 0.34),
        "mobilebert": _Printed(5.5e2, 1.1e5, 11.0),
        "t5": _Printed(4.5e3, 9.2e5, 1.3),
    },
    "recommendation": {
        "dlrm-mlperf": _Printed(2.4e2, 9.7e5, 56.0),
        "wide-deep": _Printed(2.8e2, 1.1e6, 30.0),
        "ncf": _Printed(4.6e1, 1.8e5, 370.0),
    },
}
_UNPRINTED = (None, None, None, None)
_CLASSES: dict[TaskClass, _Printed] = {
    "vision": _Printed(1.7e5, 2.8e6, 0.9),
    "language": _Printed(7.4e3, 1.5e6, 4.1),
    "recommendation": _Printed(1.9e2, 7.6e5, 150.0),
}
_NOTES = {
    "t5": "printed as TransformerXL, whose own layers take six times as long; T5's give these numbers",
    "dlrm-mlperf": "printed as DLRM; which one is not said",
} | dict.fromkeys(_NETWORKS["vision"], "the row has no name in our copy; only this network gives its numbers")


def _means(layers: Sequence[Layer]) -> _Printed:
    table = job_table(layers, (_HIGH, _LOW), MODELS["maestro"])
    (hb, lb), (hb_gbs, lb_gbs) = table.latency.mean(axis=0).tolist(), table.bandwidth.mean(axis=0).tolist()
    return _Printed(hb, lb, hb_gbs, lb_gbs)


def figure_6(study: GSharpStudy, part: GSharpPart) -> None:
    """Means over the layers of networks in the form of the published code, and over classes."""
    means: dict[str, _Printed] = {}
    averages: dict[str, _Printed] = {}
    for task, networks in _NETWORKS.items():
        found = {name: _means(as_published(network_layers(name))) for name in networks}
        for name, printed in networks.items():
            _three(part, name, printed, found[name], _NOTES.get(name, ""))
        averages[task] = average = _Printed(*np.mean([each[:3] for each in found.values()], axis=0).tolist())
        _three(part, f"{task}, average of the three", _CLASSES[task], average)
        batches = _means([layer for i in study.instances for layer in study.layers(task, i)])
        means[task] = batches
        _three(part, f"{task}, all layers of our tables", None, _means(as_published(task_layers(task))))
        _three(part, f"{task}, the batches", None, batches)
    _order(part, averages)
    cycles = {"HB": [m.hb_cycles for m in means.values()], "LB": [m.lb_cycles for m in means.values()]}
    gbs = {"HB": [m.hb_gbs for m in means.values()]}
    names, logarithmic = list(means), True
    part.draw("mean cycles", partial(plots.bars, values=cycles, groups=names, logarithmic=logarithmic))
    part.draw("mean bandwidth, GB/s", partial(plots.bars, values=gbs, groups=names, logarithmic=logarithmic))


def _order(part: GSharpPart, averages: dict[str, _Printed]) -> None:
    """Add what 5.2 says of the classes: which takes longest, and which asks for most and least bandwidth."""
    slowest = max(averages, key=lambda task: averages[task].hb_cycles)
    least, most = (of(averages, key=lambda task: averages[task].hb_gbs) for of in (min, max))
    part.row("jobs of vision take longest on HB64, of the classes", paper=True, ours=slowest == "vision")
    part.row("vision asks for least bandwidth on HB64, recommendation for most", paper=True,
             ours=(least, most) == ("vision", "recommendation"))  # fmt: skip


def _three(part: GSharpPart, who: str, printed: _Printed | None, ours: _Printed, note: str = "") -> None:
    """Add what is known of *who*; *printed* is ``None`` where the paper has no such number."""
    rows = (("cycles on HB64", "cycles"), ("cycles on LB64", "cycles"), ("bandwidth on HB64", "GB/s"),
            ("bandwidth on LB64", "GB/s"))  # fmt: skip
    for (what, unit), paper, own in zip(rows, printed or _UNPRINTED, ours, strict=True):
        if what != "bandwidth on LB64" or paper is not None:
            part.row(f"{who}: mean {what}", paper, own, unit, note)


def random_jobs(layers: Sequence[Layer], rng: np.random.Generator) -> tuple[Layer, ...]:
    """Return layers whose channels and maps are each scaled by a random factor of 0.5 to 1.5 (5.5)."""

    def changed(size: int, least: int = 1) -> int:
        return max(least, round(size * rng.uniform(0.5, 1.5))) if size > 1 else size

    return tuple(
        Layer(
            layer.kind, changed(layer.k), changed(layer.c), changed(layer.y, layer.r), changed(layer.x, layer.s),
            layer.r, layer.s,
        )
        for layer in layers
    )  # fmt: skip


class Pair(NamedTuple):
    """A batch on fixed and on flexible arrays of one size."""

    fixed: JobTable
    flexible: JobTable

    def ratio(self, what: str) -> float:
        """Mean of *what* on flexible arrays over that on fixed ones."""
        return float(getattr(self.flexible, what).mean() / getattr(self.fixed, what).mean())


def flexible(study: GSharpStudy, model: ModelName, *, same_buffers: bool = False) -> dict[tuple[str, str], Pair]:
    """Return the tables of Fig. 11 by jobs and setting; with *same_buffers* fixed arrays have the flexible ones'."""
    batches = {
        "Vision": study.layers("vision"),
        "Random": random_jobs(study.layers("mix"), np.random.default_rng(study.seeds[0])),
    }
    return {
        (jobs, setting): Pair(
            job_table(layers, fixed if same_buffers else PLATFORMS[setting], MODELS[model]),
            job_table(layers, PLATFORMS[f"{setting}-flexible"], MODELS[model]),
        )
        for jobs, layers in batches.items()
        for setting in ("S1", "S3")
        for fixed in ([replace(array, flexible=False) for array in PLATFORMS[f"{setting}-flexible"]],)
    }


def makespan(study: GSharpStudy, table: JobTable, gbs: float) -> float:
    """Return the makespan of the paper's G# for a table, mean over the seeds."""
    problem = MappingProblem(table.latency, table.bandwidth, gbs)
    found = [GSharp(study.budget, PAPERS).solve(problem, np.random.default_rng(seed)).cost for seed in study.seeds]
    return float(np.mean(found))


def figure_11(study: GSharpStudy, part: GSharpPart) -> None:
    """Mean cycles and bandwidth, and makespans, of fixed and flexible arrays."""
    sooner = []
    for (jobs, setting), pair in flexible(study, "maestro").items():
        where = f"{jobs}, {setting}"
        part.row(f"{where}: flexible arrays take fewer cycles on average", paper=True, ours=pair.ratio("latency") < 1,
                 note=f"{pair.ratio('latency'):.3f} of fixed ones")  # fmt: skip
        part.row(f"{where}: flexible arrays ask for more bandwidth", paper=True, ours=pair.ratio("bandwidth") > 1,
                 note=f"{pair.ratio('bandwidth'):.3f} of fixed ones")  # fmt: skip
        for gbs in (1.0, 16.0, 256.0):
            fixed, shaped = makespan(study, pair.fixed, gbs), makespan(study, pair.flexible, gbs)
            sooner.append((where, gbs, shaped / fixed))
            part.point(where, "makespan on flexible arrays over fixed ones", gbs, shaped / fixed)
    later = ", ".join(f"{where} at {gbs:g} GB/s ({ratio:.3f})" for where, gbs, ratio in sooner if ratio > 1)
    part.row("flexible arrays end sooner in all cases", paper=True, ours=not later,
             note=f"later: {later}" if later else "")  # fmt: skip
    part.draw("makespan, flexible over fixed", partial(plots.lines, points=part.points, x_name="bandwidth, GB/s"))
