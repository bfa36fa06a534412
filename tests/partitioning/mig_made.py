"""MIG problems for tests, and slow ways to solve them."""

from itertools import combinations_with_replacement, product

import numpy as np

from commonwatt.model.partition_file import MigFile
from commonwatt.partitioning._comparison import welfare
from commonwatt.partitioning.mig._problem import MigProblem


def tenant(name="a", **more):
    given = {"parallel_fraction": 0.95} if "speed" not in more else {}
    return {"name": name, "memory_gb": 5} | given | more


def document(gpus=1, tenants=2, kind="H100-80GB", **more):
    """As many GPUs and tenants as asked for; tenants differ in weight and parallel fraction."""
    made = [tenant(f"t{i}", weight=i + 1, parallel_fraction=0.9 + 0.01 * i) for i in range(tenants)]
    return {"gpus": [{"name": f"g{i}", "type": kind} for i in range(gpus)], "tenants": made} | more


def problem(**more):
    return MigProblem.of(MigFile.model_validate(document(**more)))


def random_problem(rng, gpus, tenants, kind="A100-80GB"):
    made = []
    for i in range(tenants):
        speeds = np.sort(rng.uniform(0.5, 6, 5)) * (rng.random(5) < 0.8)
        speeds[4] = 7.0
        speed = {p: round(float(s), 3) for p, s in zip(("1g", "2g", "3g", "4g", "7g"), speeds, strict=True)}
        made.append(
            {
                "name": f"t{i}",
                "weight": float(rng.uniform(0.5, 4)),
                "memory_gb": float(rng.choice([5, 15])),
                "speed": speed,
            }
        )
    gpus_made = [{"name": f"g{i}", "type": kind} for i in range(gpus)]
    return MigProblem.of(MigFile.model_validate({"gpus": gpus_made, "tenants": made}))


def drained(problem, picked):
    return sum(
        n * choice.drained
        for group, numbers in zip(problem.groups, picked, strict=True)
        for choice, n in zip(group.choices, numbers, strict=True)
    )


def all_layouts(problem):
    """Every way to cut all GPUs; GPUs that are alike are not told apart."""
    per_group = []
    for group in problem.groups:
        ways = combinations_with_replacement(range(len(group.choices)), len(group.members))
        per_group.append([[way.count(c) for c in range(len(group.choices))] for way in ways])
    return (list(parts) for parts in product(*per_group))


def splits(count, tenants):
    """Every way to hand *count* equal things to *tenants*, some kept back."""
    return (way for way in product(range(count + 1), repeat=tenants) if sum(way) <= count)


def brute_force(problem, kind):
    """The best welfare of whole instances, by trying everything; minus infinity if nobody can be served."""
    n = len(problem.tenants)
    best = -np.inf
    for picked in all_layouts(problem):
        totals = problem.totals(picked)
        ways = [list(splits(int(count), n)) for count in totals]
        for parts in product(*ways):
            instances = np.array(parts).T
            if (instances.sum(axis=1) > problem.limits).any() or (instances[problem.rates == 0] > 0).any():
                continue
            utilities = (problem.rates * instances).sum(axis=1)
            if (instances.sum(axis=1) < 1).any():
                continue
            best = max(
                best, welfare(kind, problem.weights, utilities) - problem.drain_penalty * drained(problem, picked)
            )
    return best
