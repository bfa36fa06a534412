"""How the choice of a configuration changes with the weight of one tenant."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from commonwatt import __version__
from commonwatt.cli.output import digest, say
from commonwatt.cli.partition._answer import chosen_only
from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError
from commonwatt.model.partition_file import PartitionFile
from commonwatt.model.partition_results import PartitionSweepResult, SweepPoint

__all__ = ["sweep", "tell"]

_MOST = 1000


def sweep(
    file: PartitionFile, what: str, mechanism: str, kind: str, seed: int, tolerance: float, iterations: int | None
) -> PartitionSweepResult:  # fmt: skip
    """Divide and choose for every weight that *what* (TENANT=FROM:TO:N) asks for; raises ``InputError``."""
    tenant, weights = _asked(file, what)
    names, tenants = [one.name for one in file.configurations], [one.name for one in file.tenants]
    points = []
    for weight in weights.tolist():
        changed = tuple(
            one.model_copy(update={"weight": weight}) if one.name == tenant else one for one in file.tenants
        )
        choice, found = chosen_only(
            file.model_copy(update={"tenants": changed}), mechanism, kind, tolerance, iterations
        )  # fmt: skip
        points.append(
            SweepPoint(
                weight=weight, chosen=names[choice.best],
                margin=choice.margin if choice.margin is not None and np.isfinite(choice.margin) else None,
                welfare=dict(zip(names, choice.values, strict=True)),
                utilities=dict(zip(tenants, found[choice.best].tolist(), strict=True)),
            )
        )  # fmt: skip
    return PartitionSweepResult(
        version=__version__, seed=seed, input_digest=digest(file), mechanism=mechanism, welfare=kind, tenant=tenant,
        points=tuple(points), sentence=_sentence(tenant, points),
    )  # fmt: skip


def _asked(file: PartitionFile, what: str) -> tuple[str, Floats]:
    tenant, _, span = what.rpartition("=")
    words = span.split(":")
    wanted = "TENANT=FROM:TO:N, such as user1=0.1:10:9, with weights above 0 and N of 2 or more"
    try:
        low, high, count = float(words[0]), float(words[1]), int(words[2])
    except (ValueError, IndexError):
        raise InputError(wanted, field="--sweep-weight", value=what) from None
    if not (0 < low < high < np.inf) or not 2 <= count <= _MOST or len(words) != 3:
        raise InputError(wanted, field="--sweep-weight", value=what)
    if tenant not in (known := [one.name for one in file.tenants]):
        raise InputError(f"one of the tenants {', '.join(known)}", field="--sweep-weight", value=tenant)
    return tenant, np.geomspace(low, high, count)


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


def tell(result: PartitionSweepResult) -> None:
    """Print the sweep as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{result.mechanism}, {result.welfare} welfare, by the weight of {result.tenant}")
    for heading in ("weight", "chosen", "margin", *(f"speedup {name}" for name in result.points[0].utilities)):
        table.add_column(heading, justify="left" if heading == "chosen" else "right")
    for point in result.points:
        margin = "unknown" if point.margin is None else f"{100 * point.margin:.2f}%"
        table.add_row(f"{point.weight:.4g}", point.chosen, margin, *(f"{u:.3f}" for u in point.utilities.values()))
    Console().print(table)
    say(result.sentence)
