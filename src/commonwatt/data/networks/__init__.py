"""Layers of the networks of G#'s Table 3 and the two it leaves out (NCF, ShuffleNet-V2): tables that build.py makes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import cast

from commonwatt.data.layer_files import read_layers
from commonwatt.data.table import read_table
from commonwatt.mapping.costs import Layer, TaskClass
from commonwatt.model.errors import InputError
from commonwatt.model.names import one_of

__all__ = ["Network", "network", "network_layers", "networks", "task_layers"]


@dataclass(frozen=True)
class Network:
    """A network of the catalogue.

    Parameters
    ----------
    model, title, task
        Name here, name in the paper, class.
    in_table_3
        Whether Table 3 lists it.
    layers, macs, parameters
        How many layers; multiply-accumulates of one inference of one input (language: 20 tokens); trained numbers.
    source, derived
        Where it is defined, and what was made of it.
    """

    model: str
    title: str
    task: TaskClass
    in_table_3: bool
    layers: int
    macs: int
    parameters: int
    source: str
    derived: str


@cache
def networks() -> tuple[Network, ...]:
    """Return the catalogue, in the order of Table 3."""
    with resources.as_file(resources.files(__name__) / "index.csv") as path:
        table = read_table(path)
    return tuple(
        Network(
            model=model,
            title=table.columns["title"][row],
            task=cast("TaskClass", table.columns["task"][row]),
            in_table_3=table.columns["in_table_3"][row] == "yes",
            layers=int(table.columns["layers"][row]),
            macs=int(table.columns["macs"][row]),
            parameters=int(table.columns["parameters"][row]),
            source=table.columns["source"][row],
            derived=table.columns["derived"][row],
        )
        for row, model in enumerate(table.text("model"))
    )


def network(name: str) -> Network:
    """Return the network called *name*, in any case; raises ``InputError`` if there is none."""
    wanted = name.lower()
    for entry in networks():
        if wanted in (entry.model, entry.title.lower()):
            return entry
    expected = one_of((entry.model for entry in networks()), name, any_number=True)
    raise InputError(expected, field="network", value=name)


@cache
def task_layers(task: TaskClass) -> tuple[Layer, ...]:
    """Return all layers of the networks of a class, in Table 3 or not, network after network."""
    with resources.as_file(resources.files(__name__) / f"{task}.csv") as path:
        return read_layers(Path(path))


def network_layers(name: str, tokens: int | None = None) -> tuple[Layer, ...]:
    """Return the layers of the network called *name* in their order, of language over *tokens* tokens (default 20).

    Raises ``InputError`` if there is no such network, for tokens below 1 or where the network has none to choose.
    """
    entry = network(name)
    if tokens is None:
        return tuple(layer for layer in task_layers(entry.task) if layer.model == entry.model)
    if entry.task != "language":
        raise InputError(f"no number of tokens for {entry.model}", field="tokens", value=tokens)
    if not 1 <= tokens <= 10**6:
        raise InputError("a whole number from 1 to 1000000", field="tokens", value=tokens)
    from commonwatt.data.networks.language import LANGUAGE

    place = [other.model for other in networks() if other.task == "language"].index(entry.model)
    return tuple(LANGUAGE[place](tokens).layers)
