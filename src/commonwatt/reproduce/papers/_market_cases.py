"""Configurations and user sets of chapter 5. F and retiring rates are ours: the thesis prints none."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.partitioning.problem import Market

__all__ = ["CONFIGURATIONS", "SAMPLE", "SETS", "Configuration", "Inputs", "drawn", "market"]


@dataclass(frozen=True)
class Configuration:
    """A column of Table 5.3."""

    name: str
    cores: tuple[int, ...]
    threads: tuple[int, ...]
    fpu: tuple[bool, ...]
    mhz: tuple[float, ...]


CONFIGURATIONS = (
    Configuration("CFG1", (2, 2, 4, 8), (4, 4, 4, 4), (True, True, False, False), (80, 80, 120, 110)),
    Configuration("CFG2", (2, 2, 4, 8), (4, 8, 2, 4), (True, True, False, False), (80, 73, 120, 110)),
    Configuration("CFG3", (2, 2, 4, 8), (8, 8, 4, 4), (False, False, False, False), (80, 80, 110, 110)),
)
SAMPLE = Configuration("Table 5.1", (2, 2, 4, 8), (1, 1, 1, 1), (True, True, False, False), (100, 100, 100, 100))
"""Table 5.1 prints neither threads nor clocks: one thread a core and one clock for all."""

SETS: dict[int, tuple[tuple[str, ...], ...]] = {
    1: (("resnet",) * 4, ("kmeans",) * 4, ("mlp",) * 4),
    2: (("resnet",) * 4, ("kmeans", "kmeans", "alexnet", "alexnet"), ("mlp", "mlp", "yolonet", "yolonet")),
    3: (("resnet",) * 4,) * 3,
}
"""Tables 5.4 to 5.6: what each user runs on each core cluster."""


@dataclass(frozen=True)
class Inputs:
    """What the thesis does not print, in values that fit its words."""

    f: dict[str, float] = field(
        default_factory=lambda: {"resnet": 0.98, "alexnet": 0.97, "yolonet": 0.96, "kmeans": 0.95, "mlp": 0.50}
    )
    """"Highly parallel" inference, "somewhat parallel" k-means, "mostly serial" MLP (5.1.4)."""
    slowdown: dict[str, float] = field(default_factory=lambda: {"kmeans": 17.6, "mlp": 22.2})
    """Floating point in software on a core without FPU, as measured on a cycle-level simulator of the same GPU."""


def drawn(rng: np.random.Generator) -> Inputs:
    """Return other values that fit the words as well."""
    f = {name: float(rng.uniform(0.9, 0.995)) for name in ("resnet", "alexnet", "yolonet")}
    f |= {"kmeans": float(rng.uniform(0.7, 0.97)), "mlp": float(rng.uniform(0.2, 0.8))}
    return Inputs(f, {name: float(rng.uniform(2.0, 25.0)) for name in ("kmeans", "mlp")})


def market(
    configuration: Configuration, users: tuple[tuple[str, ...], ...], inputs: Inputs, *, threads: bool,
    weights: tuple[float, ...] = (1, 4, 1),
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
