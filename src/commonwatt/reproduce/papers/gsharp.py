"""G# (Kao, Krishna): mapping layers of many networks onto unequal sub-accelerators under one bandwidth."""

from __future__ import annotations

from functools import partial

from commonwatt.reproduce.topic import Answer, Request, Topic

__all__ = ["TOPICS"]

_PAPER = "G# (Kao, Krishna, Domain-specific Genetic Algorithm for Multi-tenant DNN Accelerator Scheduling)"
_PARTS = {
    "figure-6": ("Cycles and bandwidth of layers on both dataflows", "means of six networks and three classes"),
    "figure-7": ("Makespans on S1, S2, S4 and S5", "how much longer other methods take, and where that comes from"),
    "figure-8": ("Makespans against bandwidth", "that G# is never behind"),
    "figure-9": ("Homogeneous, heterogeneous and BigLittle", "which is best at 1 and at 256 GB/s"),
    "figure-10": ("Sixteen sub-accelerators", "how much longer other methods take"),
    "figure-11": ("Fixed and flexible arrays", "mean cycles and bandwidth of jobs, makespans"),
    "figure-12": ("Ablation of the genetic operators", "that each makes the search converge sooner"),
    "figure-13": ("A schedule and its bandwidth", "bandwidth in use under FCFS-OLB and G#"),
    "figure-14": ("Satisfaction of a target order", "24% before and 96% after the search"),
    "table-6": ("Transfer to other batches", "makespans over the full search's after 0, 1 and 30 epochs"),
    "table-7": ("Search time and makespan", "makespans over those of heuristics, seconds to converge"),
    "searches": ("Other searches with nevergrad and learning", "their makespans and times; all of it with --full only"),
    "cost-models": ("The same conclusions under a physically honest cost model", "which of Fig. 9 to 11 still hold"),
}


def _run(request: Request, parts: tuple[str, ...]) -> Answer:
    from commonwatt.reproduce.papers._gsharp_answer import answer

    return answer(request, parts)


def _run_all(request: Request) -> Answer:
    """All parts; other searches, which take hours in full and say little in part, only where all is asked for."""
    return _run(request, tuple(part for part in _PARTS if part != "searches" or request.extent == "full"))


def _where(part: str) -> str:
    kind, _, number = part.partition("-")
    known = {"figure": f"Fig. {number}", "table": f"Table {number}", "searches": "Fig. 7, Table 7"}
    return known.get(kind, "Fig. 9 to 11")


TOPICS = (
    Topic(
        "gsharp",
        "The evaluation: layers, makespans, platforms, flexible arrays, operators, satisfaction, transfer, search time",
        f"{_PAPER}, Fig. 6 to 14, Tables 6 and 7",
        "every number the paper prints about them, and the published code's",
        _run_all,
        "the figures on one page",
    ),
    *(
        Topic(
            f"gsharp-{part}", title, f"{_PAPER}, {_where(part)}", compares, partial(_run, parts=(part,)), "the figure",
        )
        for part, (title, compares) in _PARTS.items()
    ),
)  # fmt: skip
