"""ANDREAS (Filippini et al., 2021): scheduling of training jobs on a GPU cluster."""

from __future__ import annotations

from functools import partial

from commonwatt.reproduce.topic import Answer, Request, Topic

__all__ = ["TOPICS"]

_PAPER = "ANDREAS (Filippini, Ardagna, Lattuada, Amaldi and others, 2021)"


def _sweep(request: Request, scenario: int) -> Answer:
    from commonwatt.reproduce.papers._andreas_sweep import run

    return run(request, scenario)


def _table_3(request: Request) -> Answer:
    from commonwatt.reproduce.papers._andreas_armida import table_3

    return table_3(request)


def _figure_4(request: Request) -> Answer:
    from commonwatt.reproduce.papers._andreas_armida import figure_4

    return figure_4(request)


TOPICS = (
    Topic(
        "andreas-scenario-1",
        "Costs, time to complete all jobs and optimizer time against the number of nodes; nodes of 2 V100 or 1 T4",
        f"{_PAPER}, section V-B, Fig. 3 by the text (the captions of Fig. 2 and 3 are swapped)",
        "reduction of the total cost by randomized greedy against FIFO, EDF and PS (62%), optimizer time (0.1 s)",
        partial(_sweep, scenario=1),
        "energy cost, total cost, makespan and optimizer time against the number of nodes",
    ),
    Topic(
        "andreas-scenario-2",
        "Costs, time to complete all jobs and optimizer time against the number of nodes; nodes of 4 V100 or 2 T4",
        f"{_PAPER}, section V-B, Fig. 2 by the text (the captions of Fig. 2 and 3 are swapped)",
        "reduction of the total cost by randomized greedy against FIFO, EDF and PS (30%), optimizer time (0.01 s)",
        partial(_sweep, scenario=2),
        "energy cost, total cost, makespan and optimizer time against the number of nodes",
    ),
    Topic(
        "andreas-table-3",
        "Validation on ARMIDA: three nodes, eight jobs",
        f"{_PAPER}, section V-C, Tables II, III and V",
        "energy cost, predicted and measured; due dates; GPU sharing and preemption; the baselines on this instance",
        _table_3,
        "costs of all policies, GPUs in use, waiting and power",
    ),
    Topic(
        "andreas-armida",
        "Trace of job executions on ARMIDA",
        f"{_PAPER}, appendix B, Fig. 4",
        "which job ran where with how many GPUs, and when",
        _figure_4,
        "nodes and GPUs over time",
    ),
)
