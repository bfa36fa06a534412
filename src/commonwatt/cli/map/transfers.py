"""Files of ``commonwatt map --save-transfer`` and ``--transfer``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commonwatt.cli.output import blamed_on, say

if TYPE_CHECKING:
    from pathlib import Path

    from commonwatt.mapping.encoding import Mapping
    from commonwatt.mapping.problem import Problem
    from commonwatt.mapping.search import Algorithm

__all__ = ["save_transfer", "transferred"]


def save_transfer(path: Path, problem: Problem, mapping: Mapping) -> None:
    """Keep what a mapping shows for other batches."""
    import numpy as np

    from commonwatt.data.files import write_atomic
    from commonwatt.mapping.transfer import Transfer
    from commonwatt.model.map_file import TransferFile

    learnt = Transfer.learn(problem, mapping)
    latency = [[float(c) if np.isfinite(c) else None for c in row] for row in learnt.latency]
    file = TransferFile(
        accelerator=tuple(learnt.mapping.accelerator.tolist()), priority=tuple(learnt.mapping.priority.tolist()),
        latency_cycles=tuple(map(tuple, latency)), bandwidth_gbs=tuple(map(tuple, learnt.bandwidth.tolist())),
        stretch=learnt.stretch,
    )  # fmt: skip
    write_atomic(path, file.model_dump_json(indent=1) + "\n")
    say(f"written: {path}")


def transferred(path: Path, problem: Problem, epochs: int, match: str) -> Algorithm:
    """Read a transfer and return what applies it to a problem; raises ``InputError`` if they do not go together."""
    import numpy as np

    from commonwatt.data.files import load_yaml
    from commonwatt.mapping.encoding import Mapping, check
    from commonwatt.mapping.problem import Problem
    from commonwatt.mapping.transfer import Transfer, Transferred
    from commonwatt.model.map_file import MapFile, MapTable, TransferFile

    file = load_yaml(path, TransferFile)
    with blamed_on(path):
        table = MapTable(latency_cycles=file.latency_cycles, bandwidth_gbs=file.bandwidth_gbs)
        batch = Problem.of(MapFile(system_bandwidth_gbs=problem.system_bandwidth, table=table))
        mapping = Mapping(np.array(file.accelerator, dtype=np.int64), np.array(file.priority, dtype=np.float64))
        check(batch, mapping)
        learnt = Transfer(mapping, batch.latency, batch.bandwidth, file.stretch)
        learnt.apply(problem)
    return Transferred(learnt, epochs, "rank" if match == "rank" else "nearest")
