"""Write the tables of this package anew: ``python -m commonwatt.data.networks.build [FOLDER]``."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from pathlib import Path

from commonwatt.data.files import write_atomic
from commonwatt.data.layer_files import layers_text
from commonwatt.data.networks.catalogue import ENTRIES
from commonwatt.data.networks.drawing import Drawing
from commonwatt.data.networks.language import LANGUAGE, TOKENS
from commonwatt.data.networks.recommendation import RECOMMENDATION
from commonwatt.data.networks.vision import VISION

__all__ = ["INDEX", "draw_all", "tables"]

INDEX = ("model", "title", "task", "in_table_3", "layers", "macs", "parameters", "source", "derived")


def draw_all(tokens: int = TOKENS) -> Iterator[Drawing]:
    """Draw every network, those of language over *tokens* tokens."""
    yield from (make() for make in VISION)
    yield from (make(tokens) for make in LANGUAGE)
    yield from (make() for make in RECOMMENDATION)


def tables() -> dict[str, str]:
    """Return the files of this package: layers by task, and an index of the networks."""
    nets = {net.model: net for net in draw_all()}
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(INDEX)
    for entry in ENTRIES:
        net = nets[entry.model]
        macs = sum(layer.macs for layer in net.layers)
        named = "yes" if entry.in_table_3 else "no"
        counts = (len(net.layers), macs, net.parameters)
        writer.writerow((entry.model, entry.title, net.task, named, *counts, entry.source, entry.derived))
    files = {"index.csv": out.getvalue()}
    for task in ("vision", "language", "recommendation"):
        files[f"{task}.csv"] = layers_text(layer for net in nets.values() if net.task == task for layer in net.layers)
    return files


def main(folder: Path) -> None:
    """Write the tables into *folder*."""
    for name, text in tables().items():
        write_atomic(folder / name, text)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
