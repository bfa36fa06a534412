"""Why each job is where it is: a typed reason and one sentence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonwatt.mapping.encoding import Mapping
from commonwatt.mapping.evaluator import Timeline
from commonwatt.mapping.problem import Problem

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True)
class Explanation:
    """What can be said of one job's place by looking at the job table and the timeline."""

    reason: str
    sentence: str


def explain(problem: Problem, mapping: Mapping, played: Timeline) -> list[Explanation]:
    """Return the explanation of each job."""
    return [_explain(problem, j, a, played) for j, a in enumerate(mapping.accelerator.tolist())]


def _explain(problem: Problem, job: int, a: int, played: Timeline) -> Explanation:
    latency, alone = problem.latency[job], problem.alone[job]
    here = f"job {job} runs on {a}"
    stall = played.end[job] - played.start[job] - latency[a]
    waits = f", and waits {stall:.6g} for bandwidth" if stall > 1e-9 * latency[a] else ""
    if len(problem.fixed) and problem.fixed[job] >= 0:
        return Explanation("fixed", f"{here}, where the problem puts it{waits}")
    if problem.possible[job].sum() == 1:
        return Explanation("only-choice", f"{here}, the only sub-accelerator that can{waits}")
    best = int(np.argmin(alone))
    if alone[a] <= alone[best]:
        return Explanation("fastest", f"{here}, where it takes {latency[a]:.6g} cycles; none is faster{waits}")
    than = f"takes {latency[a]:.6g} cycles instead of {latency[best]:.6g} on {best}"
    if problem.volume[job, a] < problem.volume[job, best]:
        return Explanation("less-bandwidth", f"{here}, {than}, but moves less data{waits}")
    return Explanation("spread-out", f"{here} and {than}, which is left to other jobs{waits}")
