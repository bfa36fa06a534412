"""Configurations and user sets of chapter 5, from ``market.yaml``. F and retiring rates there are ours."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
import yaml

from commonwatt.model.arrays import Floats
from commonwatt.partitioning.problem import Market

__all__ = ["CONFIGURATIONS", "SAMPLE", "SETS", "WEIGHTS", "Configuration", "Inputs", "drawn", "market", "stated"]


@dataclass(frozen=True)
class Configuration:
    """A column of Table 5.3."""

    name: str
    cores: tuple[int, ...]
    threads: tuple[int, ...]
    fpu: tuple[bool, ...]
    mhz: tuple[float, ...]


@dataclass(frozen=True)
class Inputs:
    """What the thesis does not print: parallel fractions, and how much slower floating point is without an FPU."""

    f: dict[str, float]
    slowdown: dict[str, float]


_DATA: dict[str, Any] = yaml.safe_load(files(__package__).joinpath("market.yaml").read_text(encoding="utf-8"))
_KEYS = {"f": "parallel_fraction", "slowdown": "slowdown_without_fpu"}

CONFIGURATIONS = tuple(Configuration(**column) for column in _DATA["configurations"])
SAMPLE = Configuration(**_DATA["sample"])
SETS: dict[int, tuple[tuple[str, ...], ...]] = {
    number: tuple(tuple(row) for row in rows) for number, rows in _DATA["user_sets"].items()
}
WEIGHTS: tuple[float, ...] = tuple(_DATA["weights"])


def stated() -> Inputs:
    """Return the values the figures are made with."""
    return Inputs(**{name: {load: row["value"] for load, row in _DATA[key].items()} for name, key in _KEYS.items()})


def drawn(rng: np.random.Generator) -> Inputs:
    """Return other values that fit the words as well."""
    return Inputs(
        **{
            name: {load: float(rng.uniform(*row["between"])) for load, row in _DATA[key].items()}
            for name, key in _KEYS.items()
        }
    )


def market(
    configuration: Configuration, users: tuple[tuple[str, ...], ...], inputs: Inputs, *, threads: bool,
    weights: tuple[float, ...] = WEIGHTS,
) -> Market:  # fmt: skip
    """Return the market of *users* on *configuration*; a PE is a hardware thread, or else a core."""
    pes = [c * (t if threads else 1) for c, t in zip(configuration.cores, configuration.threads, strict=True)]
    rate: Floats = np.array(
        [
            [
                mhz / 100.0 / (1.0 if fpu else inputs.slowdown.get(load, 1.0))
                for load, fpu, mhz in zip(row, configuration.fpu, configuration.mhz, strict=True)
            ]
            for row in users
        ]
    )
    return Market.make(pes, weights, rate, [[inputs.f[load] for load in row] for row in users])
