"""Map the jobs of a problem file by any algorithm, or score a mapping; a typed reason and one sentence for each job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from commonwatt.mapping._auto import Auto, Report, warmed
from commonwatt.mapping._baselines import List, StandardGenetic
from commonwatt.mapping._encoding import Mapping, check
from commonwatt.mapping._exact import BranchAndBound
from commonwatt.mapping._external_searches import LEARNERS, NEVERGRAD, Learner, Nevergrad
from commonwatt.mapping._goal import OBJECTIVES, Goal
from commonwatt.mapping._gsharp import GSharp
from commonwatt.mapping._integer_bound import PROVEN, sharp_bound
from commonwatt.mapping._lower_bound import lower_bound
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._scoring import MappingTimeline, satisfaction, tails, timeline
from commonwatt.mapping._search import Algorithm
from commonwatt.mapping._transfer import Transferred
from commonwatt.model.errors import InputError, SolverError
from commonwatt.model.fields import stamp
from commonwatt.model.map_file import MapFile
from commonwatt.model.map_results import (
    MapBandwidth,
    MapEvaluateResult,
    MapJobResult,
    MapProgress,
    MapResult,
    MapSchedule,
    MapTenant,
    ScheduledBandwidth,
    ScheduledJob,
)  # fmt: skip
from commonwatt.model.names import check_choice, check_count, check_number
from commonwatt.optimize import seeded, within

__all__ = ["ALGORITHMS", "MappingExplanation", "build_schedule", "evaluate", "explain", "solve_file"]

EXACT_S = 60.0
DEFAULT_BUDGET = 10_000
UNLIMITED = 10**9
BoundName = Literal["sharp", "quick"]

SLICE = 0.1
"""Part of a time limit that each program with integers may take."""


def solve_file(
    file: MapFile, *, clock: Callable[[], float], algorithm: str | Algorithm = "auto", budget: int | None = None,
    time_limit_s: float | None = None, objective: str | None = None, start: Mapping | None = None, seed: int = 0,
    report: Report | None = None, bound: BoundName = "sharp",
) -> MapResult:  # fmt: skip
    """Map the jobs of *file*, which has its job table, onto its sub-accelerators.

    Parameters
    ----------
    clock
        Seconds from any instant, such as ``time.perf_counter``.
    algorithm
        One of ``ALGORITHMS``, or an algorithm, such as a transfer from another batch; the answer has its ``name``.
    budget
        Mappings to evaluate at most. If ``None``, 10,000 without a time limit, and no limit with one (``hammersley``,
        which has to know its budget, keeps 10,000).
    time_limit_s
        Stop after so long with the best mapping found; 60 s for ``exact`` if ``None``. The result then depends on the
        speed of the machine; with a budget alone it does not.
    objective
        What is minimised; the file's if ``None``.
    start
        Mapping to search from.
    seed
        Seed of the search.
    report
        Called by ``auto`` between rounds with the best cost and the bound on the makespan (0: none yet).
    bound
        ``"sharp"``: all bounds there are, up to seconds where bandwidth is short; ``"quick"``: that of one linear
        program, within milliseconds. What the search itself has proven counts in both cases.

    Raises
    ------
    InputError
        If something is wrong in the problem or an argument; the message names it.
    MissingExtraError
        If the algorithm needs a package that is not installed.
    """
    check_count("budget", budget)
    check_number("time_limit_s", time_limit_s, above=True)
    check_count("seed", seed, 0)
    check_choice("bound", bound, get_args(BoundName))
    if objective is not None:
        check_choice("objective", objective, OBJECTIVES)
        file = file.model_copy(update={"objective": objective})
    problem = MappingProblem.of(file)
    name = algorithm if isinstance(algorithm, str) else _name(algorithm)
    if budget is None:
        budget = DEFAULT_BUDGET if time_limit_s is None or name == "hammersley" else UNLIMITED
    chosen = _made(algorithm, budget) if start is None else warmed(_made(algorithm, budget), start)
    if name == "exact" and time_limit_s is None:
        time_limit_s = EXACT_S
    began_s = clock()
    if isinstance(chosen, Auto):
        chosen = replace(chosen, report=report)
        if time_limit_s is not None:
            limit_s = time_limit_s
            chosen = replace(chosen, slice_s=SLICE * limit_s, used=lambda: (clock() - began_s) / limit_s)
    search = chosen.solve(problem, seeded(seed), within(time_limit_s, clock))
    if not isinstance(algorithm, str):
        try:
            check(problem, search.best)
        except InputError as error:
            msg = f"no mapping of this problem: {error}"
            raise SolverError(msg) from None
    search_s = clock() - began_s
    proven = lower_bound(problem) if search.bound is None and bound == "quick" else search.bound
    return MapResult(
        **_described(file, problem, search.best, seed, proven, optimal=bool(search.optimal)),
        algorithm=name,
        evaluations=search.evaluations,
        history=tuple(MapProgress(evaluations=spent, best=best) for spent, best in search.history),
        search_s=search_s,
    )


def _name(algorithm: Algorithm) -> str:
    if isinstance(algorithm, Transferred):
        return "transfer"
    return str(getattr(algorithm, "name", type(algorithm).__name__))


def _made(algorithm: str | Algorithm, budget: int) -> Algorithm:
    if not isinstance(algorithm, str):
        return algorithm
    check_choice("algorithm", algorithm, ALGORITHMS)
    return ALGORITHMS[algorithm](budget)


def evaluate(file: MapFile, mapping: Mapping, *, seed: int = 0) -> MapEvaluateResult:
    """Score *mapping* of the jobs of *file*; *seed* is recorded in the answer, nothing here is random.

    Raises
    ------
    InputError
        If something is wrong in the problem, or the mapping does not suit it.
    """
    problem = MappingProblem.of(file)
    return MapEvaluateResult(**_described(file, problem, mapping, seed))


def _described(
    file: MapFile, problem: MappingProblem, mapping: Mapping, seed: int, bound: float | None = None,
    *, optimal: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return the fields of ``MapEvaluateResult``; *bound* and *optimal* are what the search has proven."""
    check(problem, mapping)
    played = timeline(problem, mapping)
    if bound is None:
        bound = sharp_bound(problem, played.makespan)
    goal = _goal(file, problem, mapping, played)
    late = any(tenant.target_met is False for tenant in goal["tenants"])
    met = problem.goal.objective == "latency" and not late and played.makespan <= bound * (1 + PROVEN)
    over = played.requested > problem.system_bandwidth
    ends = [played.end[mapping.accelerator == a].max(initial=0.0) for a in range(problem.accelerators)]
    return {
        **stamp(file, seed),
        "makespan_cycles": played.makespan,
        "lower_bound_cycles": bound,
        "gap": max(0.0, played.makespan / bound - 1.0),
        "optimal": True if optimal or met else None,
        **goal,
        "accelerator": tuple(mapping.accelerator.tolist()),
        "priority": tuple(mapping.priority.tolist()),
        "accelerator_end_cycles": tuple(map(float, ends)),
        "system_bandwidth_gbs": problem.system_bandwidth,
        "bandwidth_limited_cycles": float(np.diff(played.edges)[over].sum()),
        **_details(problem, mapping, played),
    }


def _goal(file: MapFile, problem: MappingProblem, mapping: Mapping, played: MappingTimeline) -> dict[str, Any]:
    goal, jobs, end = problem.goal, len(problem), played.end
    energy = float(problem.energy[np.arange(jobs), mapping.accelerator].sum()) if problem.energy.size else None
    least = np.where(problem.possible, problem.energy, np.inf).min(axis=1).sum() if problem.energy.size else None
    satisfied = float(satisfaction(end, goal.place, problem.accelerators)) if len(goal.place) else None
    whose, weights = goal.of_tenants(jobs), goal.weights
    tail = tails(end, whose, len(weights), goal.tail)
    names = tuple(dict.fromkeys(file.tenants)) if file.tenants else (None,)
    values = {
        "latency": played.makespan,
        "energy": energy,
        "edp": None if energy is None else energy * played.makespan,
        "satisfaction": satisfied,
        "tail": float(tail @ weights / weights.sum()),
        "completion": float(end @ weights[whose] / weights[whose].sum()),
    }
    return {
        "objective": goal.objective,
        "objective_value": values[goal.objective],
        "energy_nj": energy,
        "least_energy_nj": None if least is None else float(least),
        "satisfaction": satisfied,
        "target_met": bool(played.makespan <= goal.target_cycles) if np.isfinite(goal.target_cycles) else None,
        "tenants": tuple(
            MapTenant(
                tenant=name, weight=weights[t], jobs=int((whose == t).sum()), tail_cycles=tail[t],
                mean_end_cycles=float(end[whose == t].mean()), **_target(goal, t, float(tail[t])),
            )
            for t, name in enumerate(names)
        ),
    }  # fmt: skip


def _target(goal: Goal, tenant: int, tail_cycles: float) -> dict[str, Any]:
    if not len(goal.targets) or not np.isfinite(goal.targets[tenant]):
        return {}
    target = float(goal.targets[tenant])
    return {"target_cycles": target, "target_met": tail_cycles <= target}


def _details(problem: MappingProblem, mapping: Mapping, played: MappingTimeline) -> dict[str, Any]:
    why = explain(problem, mapping, played)
    jobs = tuple(
        MapJobResult(
            job=j, accelerator=a, start_cycles=start, end_cycles=end, latency_cycles=problem.latency[j, a],
            stall_cycles=max(0.0, end - start - problem.latency[j, a]), bandwidth_gbs=problem.bandwidth[j, a],
            reason=why[j].reason, sentence=why[j].sentence,
        )
        for j, (a, start, end) in enumerate(
            zip(mapping.accelerator.tolist(), played.start.tolist(), played.end.tolist(), strict=True)
        )
    )  # fmt: skip
    edges = played.edges.tolist()
    rows = zip(edges, edges[1:], played.requested.tolist(), played.used.tolist(), strict=False)
    intervals = tuple(
        MapBandwidth(
            from_cycles=start, to_cycles=end, requested_gbs=asked, used_gbs=used,
            running=tuple(None if j < 0 else j for j in running), granted_gbs=tuple(granted),
        )
        for (start, end, asked, used), running, granted in zip(
            rows, played.running.tolist(), played.granted.tolist(), strict=True
        )
    )  # fmt: skip
    return {"jobs": jobs, "timeline": intervals}


def build_schedule(file: MapFile, result: MapEvaluateResult, *, begin_cycles: float = 0.0) -> MapSchedule:
    """Return *result*, of the jobs of *file*, as a schedule that begins at *begin_cycles*."""
    grants: list[list[ScheduledBandwidth]] = [[] for _ in result.jobs]
    for part in result.timeline:
        start, end = begin_cycles + part.from_cycles, begin_cycles + part.to_cycles
        for j, gbs in zip(part.running, part.granted_gbs, strict=True):
            if j is None:
                continue
            if grants[j] and grants[j][-1].gbs == gbs:
                start_before = grants[j].pop().from_cycles
                grants[j].append(ScheduledBandwidth(from_cycles=start_before, to_cycles=end, gbs=gbs))
            else:
                grants[j].append(ScheduledBandwidth(from_cycles=start, to_cycles=end, gbs=gbs))
    place = np.zeros(len(result.jobs), dtype=np.int64)
    queued = [0] * len(result.accelerator_end_cycles)
    for job in sorted(result.jobs, key=lambda job: (job.start_cycles, job.end_cycles, job.job)):
        place[job.job] = queued[job.accelerator]
        queued[job.accelerator] += 1
    names = file.names or tuple(map(str, range(len(result.jobs))))
    jobs = tuple(
        ScheduledJob(
            job=names[job.job], tenant=file.tenants[job.job] if file.tenants else None, accelerator=job.accelerator,
            position=int(place[job.job]), start_cycles=begin_cycles + job.start_cycles,
            end_cycles=begin_cycles + job.end_cycles, bandwidth=tuple(grants[job.job]),
        )
        for job in result.jobs
    )  # fmt: skip
    return MapSchedule(
        version=result.version, seed=result.seed, input_digest=result.input_digest, begin_cycles=begin_cycles,
        end_cycles=begin_cycles + result.makespan_cycles,
        lower_bound_cycles=begin_cycles + result.lower_bound_cycles, optimal=result.optimal, jobs=jobs,
        accelerator=result.accelerator, priority=result.priority, problem=file,
    )  # fmt: skip


@dataclass(frozen=True)
class MappingExplanation:
    """Why a job is mapped where it is, by the job table and the timeline."""

    reason: str
    sentence: str


def explain(problem: MappingProblem, mapping: Mapping, played: MappingTimeline) -> list[MappingExplanation]:
    """Return the explanation of each job."""
    return [_explain(problem, j, a, played) for j, a in enumerate(mapping.accelerator.tolist())]


def _explain(problem: MappingProblem, job: int, a: int, played: MappingTimeline) -> MappingExplanation:
    latency, alone = problem.latency[job], problem.alone[job]
    here = f"job {job} runs on {a}"
    stall = played.end[job] - played.start[job] - latency[a]
    waits = f", and stalls {stall:.6g} cycles for bandwidth" if stall > 1e-9 * latency[a] else ""
    if len(problem.fixed) and problem.fixed[job] >= 0:
        return MappingExplanation("fixed", f"{here}, as the problem fixes it{waits}")
    if problem.possible[job].sum() == 1:
        return MappingExplanation("only-choice", f"{here}, the only sub-accelerator that can run it{waits}")
    best = int(np.argmin(alone))
    if alone[a] <= alone[best]:
        return MappingExplanation("fastest", f"{here}, the fastest for it at {latency[a]:.6g} cycles{waits}")
    than = f"takes {latency[a]:.6g} cycles instead of {latency[best]:.6g} on {best}"
    if problem.volume[job, a] < problem.volume[job, best]:
        return MappingExplanation("less-bandwidth", f"{here}: it {than}, but moves less data{waits}")
    return MappingExplanation("spread-out", f"{here}: it {than}, which is left to other jobs{waits}")


def _rule(order: str, rule: str) -> Callable[[int], Algorithm]:
    return lambda _: List(order, rule)


ALGORITHMS: dict[str, Callable[[int], Algorithm]] = {
    "auto": Auto,
    "gsharp": GSharp,
    "heft": _rule("longest", "eft"),
    **{f"{o}-{r}": _rule(o, r) for o in ("fcfs", "sjf", "random") for r in ("olb", "met", "rr", "random")},
    "exact": lambda _: BranchAndBound(),
    "standard-ga": StandardGenetic,
    **{name: partial(Nevergrad, name) for name in NEVERGRAD},
    **{name: partial(Learner, name) for name in LEARNERS},
}
"""Each made for a budget of mappings, which rules without search do not use.

``heft`` is longest first, earliest finish. Those of nevergrad need the extra ``search``, ``a2c`` and ``ppo`` ``rl``.
"""
