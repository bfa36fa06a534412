"""How the choice of a configuration changes with the weight of one tenant."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from commonwatt.model.errors import InputError
from commonwatt.model.fields import stamp
from commonwatt.model.partition_file import PartitionFile
from commonwatt.model.partition_results import PartitionSweepResult, SweepPoint
from commonwatt.partitioning._answer import divide_all

__all__ = ["sweep"]


def sweep(
    file: PartitionFile, tenant: str, weights: Sequence[float], *, mechanism: str = "fisher", welfare: str = "nash",
    tolerance: float = 1e-9, iterations: int | None = None, seed: int = 0,
) -> PartitionSweepResult:  # fmt: skip
    """Divide and choose for every weight of *tenant*, the other tenants keeping theirs.

    Parameters
    ----------
    weights
        Positive, in ascending order.
    mechanism, welfare, tolerance, iterations, seed
        As in ``answer``.

    Raises
    ------
    InputError
        If there is no such tenant, or a weight or the problem is wrong.
    SolverError
        If a market does not reach *tolerance*.
    """
    names, tenants = [one.name for one in file.configurations], [one.name for one in file.tenants]
    if tenant not in tenants:
        raise InputError(f"one of the tenants {', '.join(tenants)}", field="tenant", value=tenant)
    if not len(weights) or not all(0 < weight < np.inf for weight in weights):
        raise InputError("at least one weight, each above 0", field="weights", value=list(weights))
    points = []
    for weight in weights:
        changed = tuple(
            one.model_copy(update={"weight": float(weight)}) if one.name == tenant else one for one in file.tenants
        )
        choice, divided = divide_all(
            file.model_copy(update={"tenants": changed}), mechanism, welfare, tolerance, iterations
        )
        utilities = divided[choice.best].utilities.tolist()
        points.append(
            SweepPoint(
                weight=float(weight), chosen=names[choice.best],
                margin=choice.margin if choice.margin is not None and np.isfinite(choice.margin) else None,
                welfare=dict(zip(names, choice.values, strict=True)),
                utilities=dict(zip(tenants, utilities, strict=True)),
            )
        )  # fmt: skip
    return PartitionSweepResult(
        **stamp(file, seed), mechanism=mechanism, welfare=welfare, tenant=tenant, points=tuple(points),
        sentence=_sentence(tenant, points),
    )  # fmt: skip


def _sentence(tenant: str, points: list[SweepPoint]) -> str:
    changes = [
        f"{after.chosen} from {after.weight:.3g} on"
        for before, after in pairwise(points)
        if before.chosen != after.chosen
    ]
    first, least, most = points[0].chosen, points[0].weight, points[-1].weight
    if not changes:
        return f"{first} is chosen for every weight of {tenant} from {least:.3g} to {most:.3g}."
    return f"With the weight of {tenant} at {least:.3g} {first} is chosen, {', '.join(changes)}."
