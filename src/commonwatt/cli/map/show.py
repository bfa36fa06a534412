"""What both ``map`` commands tell of a mapping."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commonwatt.cli.output import blamed_on, digest, say

if TYPE_CHECKING:
    from pathlib import Path

    from commonwatt.mapping.encoding import Mapping
    from commonwatt.mapping.problem import Problem
    from commonwatt.model.map_file import MapFile
    from commonwatt.model.map_results import MapEvaluateResult

__all__ = ["described", "read_mapping", "tell"]

_UNITS = {
    "energy": " nJ", "edp": " nJ cycles", "satisfaction": " of the jobs", "tail": " cycles", "completion": " cycles",
}  # fmt: skip


def read_mapping(path: Path, problem: Problem) -> Mapping:
    """Read a mapping file; raises ``InputError`` unless it places every job of *problem* where it can run."""
    import numpy as np

    from commonwatt.data.files import load_yaml
    from commonwatt.mapping.encoding import Mapping, check
    from commonwatt.model.map_file import MappingFile

    genes = load_yaml(path, MappingFile)
    chosen = Mapping(np.array(genes.accelerator, dtype=np.int64), np.array(genes.priority, dtype=np.float64))
    with blamed_on(path):
        check(problem, chosen)
    return chosen


def described(file: MapFile, problem: Problem, mapping: Mapping, seed: int) -> dict[str, Any]:
    """Return the fields of ``MapEvaluateResult`` for a mapping of a problem."""
    import numpy as np

    from commonwatt import __version__
    from commonwatt.mapping.evaluator import timeline
    from commonwatt.mapping.lower_bound import lower_bound

    played, bound = timeline(problem, mapping), lower_bound(problem)
    over = played.requested > problem.system_bandwidth
    ends = [played.end[mapping.accelerator == a].max(initial=0.0) for a in range(problem.accelerators)]
    return {
        "version": __version__,
        "seed": seed,
        "input_digest": digest(file),
        "makespan_cycles": played.makespan,
        "lower_bound_cycles": bound,
        "gap": max(0.0, played.makespan / bound - 1.0),
        **_goal(file, problem, mapping, played),
        "accelerator": tuple(mapping.accelerator.tolist()),
        "priority": tuple(mapping.priority.tolist()),
        "accelerator_end_cycles": tuple(map(float, ends)),
        "system_bandwidth_gbs": problem.system_bandwidth,
        "bandwidth_limited_cycles": float(np.diff(played.edges)[over].sum()),
        **_details(problem, mapping, played),
    }


def _goal(file: MapFile, problem: Problem, mapping: Mapping, played: Any) -> dict[str, Any]:  # noqa: ANN401
    import numpy as np

    from commonwatt.mapping.scoring import satisfaction, tails
    from commonwatt.model.map_results import MapTenant

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
                mean_end_cycles=float(end[whose == t].mean()),
            )
            for t, name in enumerate(names)
        ),
    }  # fmt: skip


def _details(problem: Problem, mapping: Mapping, played: Any) -> dict[str, Any]:  # noqa: ANN401
    from commonwatt.mapping.explain import explain
    from commonwatt.model.map_results import MapBandwidth, MapJobResult

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


def tell(result: MapEvaluateResult, title: str) -> None:
    """Print the sub-accelerators with their jobs, then what all of it comes to."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for heading in ("sub-accelerator", "jobs", "ends, cycles", "in this order"):
        table.add_column(heading, overflow="fold", justify="left" if heading == "in this order" else "right")
    for a, end in enumerate(result.accelerator_end_cycles):
        order = [job.job for job in sorted(result.jobs, key=lambda job: job.start_cycles) if job.accelerator == a]
        table.add_row(str(a), str(len(order)), f"{end:.6g}", ", ".join(map(str, order)))
    Console().print(table)
    worth = "the best possible" if result.gap < 1e-9 else f"at most {100 * result.gap:.3g}% above the best possible"
    if result.objective != "latency":
        say(f"{result.objective}: {result.objective_value:.6g}{_UNITS[result.objective]}")
    if result.target_met is not None:
        say("the target of the makespan is " + ("met" if result.target_met else "not met"))
    say(
        f"makespan {result.makespan_cycles:.6g} cycles, {worth} (lower bound "
        f"{result.lower_bound_cycles:.6g}); bandwidth is short for {result.bandwidth_limited_cycles:.6g} cycles"
    )
