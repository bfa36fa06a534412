"""All topics by name, and the run of one.

This module is light to import: a topic's code is imported when the topic runs.
"""

from __future__ import annotations

import hashlib
from functools import partial
from importlib.resources import files
from time import perf_counter
from typing import TYPE_CHECKING

from commonwatt.reproduce.topic import Topic, TopicAnswer, TopicRequest

if TYPE_CHECKING:
    from commonwatt.model.results import ReproduceListResult, ReproduceResult

__all__ = ["find", "left_out", "listed", "of_papers", "reproduce", "topics"]


# -- ANDREAS: scheduling of training jobs on a GPU cluster

_ANDREAS = "ANDREAS (Filippini, Ardagna, Lattuada, Amaldi and others, 2021)"


def _sweep(request: TopicRequest, scenario: int) -> TopicAnswer:
    from commonwatt.reproduce.papers.andreas_sweep import run

    return run(request, scenario)


def _table_3(request: TopicRequest) -> TopicAnswer:
    from commonwatt.reproduce.papers.andreas_armida import table_3

    return table_3(request)


def _figure_4(request: TopicRequest) -> TopicAnswer:
    from commonwatt.reproduce.papers.andreas_armida import figure_4

    return figure_4(request)


_ANDREAS_TOPICS = (
    Topic(
        "andreas-scenario-1",
        "Costs, time to complete all jobs and optimizer time against the number of nodes; nodes of 2 V100 or 1 T4",
        f"{_ANDREAS}, section V-B, Fig. 3 by the text (the captions of Fig. 2 and 3 are swapped)",
        "reduction of the total cost by randomized greedy against FIFO, EDF and PS (62%), optimizer time (0.1 s)",
        partial(_sweep, scenario=1),
        "energy cost, total cost, makespan and optimizer time against the number of nodes",
        long=True,
    ),
    Topic(
        "andreas-scenario-2",
        "Costs, time to complete all jobs and optimizer time against the number of nodes; nodes of 4 V100 or 2 T4",
        f"{_ANDREAS}, section V-B, Fig. 2 by the text (the captions of Fig. 2 and 3 are swapped)",
        "reduction of the total cost by randomized greedy against FIFO, EDF and PS (30%), optimizer time (0.01 s)",
        partial(_sweep, scenario=2),
        "energy cost, total cost, makespan and optimizer time against the number of nodes",
        long=True,
    ),
    Topic(
        "andreas-table-3",
        "Validation on ARMIDA: three nodes, eight jobs",
        f"{_ANDREAS}, section V-C, Tables II, III and V",
        "energy cost, predicted and measured; due dates; the baselines on this instance",
        _table_3,
        "costs of all policies, GPUs in use, waiting and power",
    ),
    Topic(
        "andreas-armida",
        "Trace of job executions on ARMIDA",
        f"{_ANDREAS}, appendix B, Fig. 4",
        "which job ran where with how many GPUs, and when; GPU sharing and preemption",
        _figure_4,
        "nodes and GPUs over time",
    ),
)


# -- CUFF: forecasts of GPU demand by quantiles, and a knob


def _run_cuff(request: TopicRequest) -> TopicAnswer:
    from commonwatt.reproduce.papers.cuff import run_topic

    return run_topic(request)


_CUFF_TOPICS = (
    Topic(
        "cuff",
        "GPU demand of public clusters: networks trained on quantiles and on squared error, performance against saving",
        "CUFF (Mammen, Bashir, Kolluri, Lee, Shenoy), Tables 2 to 4, Fig. 3 to 5",
        "energy overhead of delays, MAE and under-prediction of three networks, performance against energy saving",
        _run_cuff,
        "an average day, MAE and under-prediction by level, performance against saving",
        ("traces/earth_demand_1min.csv.gz",),
    ),
)


# -- ETF: energy-time fairness on one GPU

_ETF = "ETF (Liang, Hanafy, Bashir, Irwin, Shenoy, SEC 2023)"
_ETF_FIGURES = {
    "1": ("Power of networks against the clock", "that it differs between them"),
    "2": ("Unfairness of time-fair and energy-fair schedulers", "time and energy of two tenants"),
    "3": ("The example of section 4.3", "time slices and energies of three tenants"),
    "5": ("Two tenants under TF, EF and ETF", "F_T, F_E and F_S; improvement of ETF (2x)"),
    "6": ("System fairness against power disparity, 13 clocks", "power ratio (7.9), improvement of ETF (2x, 1.6x)"),
    "7": ("Time and energy against phi", "largest phi with perfect energy fairness (0.3)"),
    "8": ("Time and energy against phi at the power ratio of an A10G (2.2)", "that it lies higher than in Fig. 7"),
    "9": ("Three tenants that come and go", "guaranteed shares, power ratios (1.5, 2.5), use of the device"),
    "10": ("Incentive to save energy", "throughput (1.3x) and latency (-10%) of the tenant that lowers its clock"),
    "11": ("Weights 2 to 1 against phi", "largest phi with perfect energy fairness (0.6), energy in the ratio 2"),
}


def _run_etf(request: TopicRequest, figures: tuple[str, ...]) -> TopicAnswer:
    from commonwatt.reproduce.papers.etf_figures import run_topic

    return run_topic(request, figures)


_ETF_TOPICS = (
    Topic(
        "etf",
        "All figures of the evaluation, on profiles of a Jetson TX2 in virtual time",
        f"{_ETF}, Fig. 1 to 3 and 5 to 11",
        "every number the paper prints about them",
        partial(_run_etf, figures=tuple(_ETF_FIGURES)),
        "the ten figures on one page",
    ),
    *(
        Topic(
            f"etf-figure-{number}", title, f"{_ETF}, Fig. {number}", compares, partial(_run_etf, figures=(number,)),
            "the figure",
        )
        for number, (title, compares) in _ETF_FIGURES.items()
    ),
)  # fmt: skip


# -- G#: mapping layers of many networks onto unequal sub-accelerators under one bandwidth

_GSHARP = "G# (Kao, Krishna, Domain-specific Genetic Algorithm for Multi-tenant DNN Accelerator Scheduling)"
_GSHARP_PARTS = {
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
    "learners": ("Reinforcement learning", "makespans and times of A2C and PPO; 10,000 mappings with --full only"),
    "searches": ("Other searches with nevergrad", "their makespans and times; all settings with --full only"),
    "cost-models": ("The same conclusions under a physically honest cost model", "which of Fig. 9 to 11 still hold"),
}
_OTHERS = ("searches", "learners")
_UNDRAWN = {"figure-10", "figure-14", "table-6", "table-7", *_OTHERS}


def _run_gsharp(request: TopicRequest, parts: tuple[str, ...]) -> TopicAnswer:
    from commonwatt.reproduce.papers.gsharp import run_topic

    return run_topic(request, parts)


def _run_gsharp_all(request: TopicRequest) -> TopicAnswer:
    """Run all parts; other searches, which take long in full and say little in part, only with the full extent."""
    others = _OTHERS if request.extent != "full" else ()
    return _run_gsharp(request, tuple(part for part in _GSHARP_PARTS if part not in others))


def _gsharp_where(part: str) -> str:
    kind, _, number = part.partition("-")
    places = {"figure": f"Fig. {number}", "table": f"Table {number}", **dict.fromkeys(_OTHERS, "Fig. 7, Table 7")}
    return places.get(kind, "Fig. 9 to 11")


_GSHARP_TOPICS = (
    Topic(
        "gsharp",
        "The evaluation: layers, makespans, platforms, flexible arrays, operators, satisfaction, transfer, search time",
        f"{_GSHARP}, Fig. 6 to 14, Tables 6 and 7",
        "every number the paper prints about them, and the published code's",
        _run_gsharp_all,
        "the figures on one page",
    ),
    *(
        Topic(
            f"gsharp-{part}", title, f"{_GSHARP}, {_gsharp_where(part)}", compares,
            partial(_run_gsharp, parts=(part,)), "" if part in _UNDRAWN else "the figure", ("mapping/instances",),
            part in {*_OTHERS, "cost-models"},
        )
        for part, (title, compares) in _GSHARP_PARTS.items()
    ),
)  # fmt: skip


# -- Fair hardware sharing by a Fisher market: a thesis' case study on a configurable GPU


def _run_market(request: TopicRequest) -> TopicAnswer:
    from commonwatt.reproduce.papers.market import run_topic

    return run_topic(request)


_MARKET_TOPICS = (
    Topic(
        "market",
        "Three configurations, three user sets: convergence, shares, speedups, utilization, and other mechanisms",
        "Thesis on sharing hardware accelerators by a Fisher market, Fig. 5.3 to 5.10, Tables 5.1 to 5.6",
        "every claim of chapter 5, and in how many draws of the unprinted inputs it holds",
        _run_market,
        "prices, speedups of each user set, ratio to the entitlement, utilization of three mechanisms",
    ),
)


# -- The five decisions together: no paper has them


def _run_fleet(request: TopicRequest) -> TopicAnswer:
    from commonwatt.reproduce.fleet_worth import worth

    return worth(request)


def _run_fleet_alibaba(request: TopicRequest) -> TopicAnswer:
    from commonwatt.reproduce.fleet_worth import worth_on_alibaba

    return worth_on_alibaba(request)


def _run_fleet_edge(request: TopicRequest) -> TopicAnswer:
    from commonwatt.reproduce.fleet_worth import worth_on_edge

    return worth_on_edge(request)


_FLEET_TOPICS = (
    Topic(
        "fleet",
        "What each of the five decisions is worth on one cluster of jobs and services: without each, with one only",
        "No paper: see docs/explanation/fleet.md",
        "energy, cost, late jobs, late requests, waiting and evenness, with all decisions and without each",
        _run_fleet,
        "six of these numbers, as bars",
    ),
    Topic(
        "fleet-alibaba",
        "The same on the public pods of Alibaba's cluster of 2023, whole and fractional",
        "No paper: see docs/explanation/fleet.md",
        "energy, cost, waiting and stretch, with all decisions and without each",
        _run_fleet_alibaba,
        "six of these numbers, as bars",
    ),
    Topic(
        "fleet-edge",
        "The same on four Jetson TX2, the edge box of the ETF paper, with its two networks as services",
        "No paper: see docs/explanation/fleet.md",
        "energy, cost, late requests, waiting and stretch, with all decisions and without each",
        _run_fleet_edge,
        "six of these numbers, as bars",
    ),
)


def topics() -> tuple[Topic, ...]:
    """Return the topics of all papers, and our own."""
    return (*_ANDREAS_TOPICS, *_CUFF_TOPICS, *_ETF_TOPICS, *_GSHARP_TOPICS, *_MARKET_TOPICS, *_FLEET_TOPICS)


def of_papers() -> tuple[Topic, ...]:
    """Return every figure and table of the papers once: no topic that repeats others, and none of our own."""
    whole = {"etf", "gsharp"}
    own = {topic.name for topic in _FLEET_TOPICS}
    return tuple(topic for topic in topics() if topic.name not in whole | own)


def left_out() -> dict[str, list[str]]:
    """Return the figures and tables of each paper that have no claim, and parts of others, each with the reason."""
    import yaml

    text = files("commonwatt.reproduce.papers").joinpath("left_out.yaml").read_text(encoding="utf-8")
    return {
        paper: [*(f"{what}: {why}" for what, why in own["without"].items()), *own["parts"]]
        for paper, own in yaml.safe_load(text).items()
    }


def find(name: str) -> Topic:
    """Return the topic called *name*; raises ``InputError`` if there is none."""
    from commonwatt.model.errors import InputError
    from commonwatt.model.names import one_of

    by_name = {topic.name: topic for topic in topics()}
    if name not in by_name:
        raise InputError(one_of((*by_name, "all"), name), field="NAME", value=name)
    return by_name[name]


def listed() -> ReproduceListResult:
    """Return the list of topics."""
    from commonwatt import __version__
    from commonwatt.model.results import ReproduceListResult, ReproduceTopic

    return ReproduceListResult(
        version=__version__,
        topics=tuple(
            ReproduceTopic(name=topic.name, title=topic.title, paper=topic.paper, compares=topic.compares)
            for topic in topics()
        ),
    )


def reproduce(topic: Topic, request: TopicRequest) -> tuple[ReproduceResult, TopicAnswer]:
    """Run *topic*; return the document, and the answer with the picture."""
    from commonwatt import __version__
    from commonwatt.model.results import ReproduceResult

    began = perf_counter()
    run_topic = topic.run(request)
    return ReproduceResult(
        version=__version__,
        seed=request.seed,
        seeds=run_topic.seeds,
        input_digest=hashlib.sha256("\n".join(run_topic.digests).encode()).hexdigest(),
        name=topic.name,
        title=topic.title,
        paper=topic.paper,
        extent=request.extent,
        rows=run_topic.rows,
        x_name=run_topic.x_name,
        points=run_topic.points,
        story=run_topic.story,
        notes=run_topic.notes,
        wall_s=perf_counter() - began,
    ), run_topic
