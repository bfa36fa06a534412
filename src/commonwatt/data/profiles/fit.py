"""Fits the scaling laws of ``law`` to the measured tables.

``python -m commonwatt.data.profiles.fit`` prints them with their misfit. For each class of model:

- Speed of one GPU, relative to one P100: geometric mean over batch sizes. K80, P100, V100 from Gavel (BERT: Zeus).
  A40 and RTX6000 by Zeus' ratio to V100; T4, RTX2080Ti and A100 by Sia's ratio to RTX6000 on top of that.
- Exponent a of speed(g) = speed(1) * g**a: least squares in logarithms over batch sizes and counts within one node,
  at most 1.
- Power: median of the board power over batch sizes at the highest power limit (Zeus).

Where a table lacks a class, the most similar model in it is used, as listed in ``base.CLASSES``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commonwatt.data import third_party
from commonwatt.data.profiles import gavel, zeus
from commonwatt.data.profiles.base import CLASSES, ClassRepresentatives, known_gpu_type
from commonwatt.data.profiles.law import LIMITS, Law
from commonwatt.data.table import read_table
from commonwatt.model.errors import InputError

__all__ = ["SIA_FILE", "FittedLaw", "SiaStep", "fit_law", "main", "read_sia"]

SIA_FILE = "sia_scaling.csv.gz"
_CLUSTERS = {"aws", "rtx", "quad", "dgx"}  # azure names no GPU type; dgx-ext is the same GPU, partly extrapolated


@dataclass(frozen=True)
class SiaStep:
    """A training step of *model* with *batch* samples on each GPU."""

    model: str
    batch: float


def read_sia(path: Path) -> dict[SiaStep, dict[tuple[str, int], float]]:
    """Samples per second of each step by ``(GPU type, GPUs)``, all GPUs in one node."""
    table = read_table(path)
    nodes, gpus = table.counts("num_nodes"), table.counts("num_gpus")
    batch, time_s = table.seconds("local_bsz"), table.seconds("step_time_s")
    models, clusters, types, tables = (table.text(name) for name in ("model", "cluster", "gpu_type", "table"))
    speeds: dict[SiaStep, dict[tuple[str, int], float]] = {}
    for row in np.flatnonzero(nodes == 1):
        if clusters[row] in _CLUSTERS and tables[row] == "placements":
            key = known_gpu_type(types[row], "gpu_type", path), int(gpus[row])
            speeds.setdefault(SiaStep(models[row], float(batch[row])), {})[key] = gpus[row] * batch[row] / time_s[row]
    return speeds


Speeds = Mapping[tuple[str, int], float]
_GAVEL_TYPES = ("K80", "P100", "V100")
_ZEUS_TYPES = ("A40", "RTX6000")
_SIA_TYPES = ("T4", "RTX2080Ti", "A100")


@dataclass(frozen=True)
class _Tables:
    gavel: Mapping[gavel.GavelRun, Speeds]
    zeus: Mapping[zeus.Training, Mapping[str, tuple[float, float]]]
    sia: Mapping[SiaStep, Speeds]

    def of_gavel(self, stand: ClassRepresentatives) -> list[Speeds]:
        return [speeds for run, speeds in self.gavel.items() if run.model == stand.gavel]

    def of_zeus(self, stand: ClassRepresentatives) -> list[Mapping[str, tuple[float, float]]]:
        return [times for run, times in self.zeus.items() if (run.dataset, run.model, run.optimizer) in stand.zeus]

    def of_sia(self, stand: ClassRepresentatives) -> list[Speeds]:
        return [speeds for step, speeds in self.sia.items() if step.model == stand.sia]


@dataclass(frozen=True)
class FittedLaw:
    """A law and, by class and GPU type, the root mean square of ``ln(measured / law)`` of its scaling."""

    law: Law
    misfit: Mapping[str, Mapping[str, float]]


def fit_law(folder: Path) -> FittedLaw:
    """Fit to the tables in *folder*; raises ``InputError`` if one is missing."""
    tables = _Tables(
        gavel.read_gavel(folder / gavel.FILE), zeus.read_zeus(folder / zeus.FILE), read_sia(folder / SIA_FILE)
    )
    speed = {kind: _speeds(tables, stand) for kind, stand in CLASSES.items()}
    scaling = {kind: _scaling(tables, stand) for kind, stand in CLASSES.items()}
    exponent = {kind: {t: min(1.0, a) for t, (a, _) in by_type.items()} for kind, by_type in scaling.items()}
    misfit = {kind: {t: rms for t, (_, rms) in by_type.items()} for kind, by_type in scaling.items()}
    power_w = {kind: _power(tables, stand) for kind, stand in CLASSES.items()}
    curves = zeus.read_limits(folder / zeus.FILE)
    at_limit = {kind: _at_limits(curves, stand) for kind, stand in CLASSES.items()}
    return FittedLaw(Law(speed, exponent, power_w, at_limit), misfit)


def _at_limits(
    curves: Mapping[zeus.Training, Mapping[str, zeus.LimitCurve]], stand: ClassRepresentatives
) -> list[tuple[float, float]]:
    own = [by_type for run, by_type in curves.items() if (run.dataset, run.model, run.optimizer) in stand.zeus]
    names = sorted({name for by_type in own for name in by_type})
    figures = np.array([
        [np.mean([by_type[name].at(limit) for by_type in own if name in by_type], axis=0) for name in names]
        for limit in LIMITS
    ])  # fmt: skip
    return [(float(time), float(power)) for time, power in figures.mean(axis=1)]


def _speeds(tables: _Tables, stand: ClassRepresentatives) -> dict[str, float]:
    measured, trained, stepped = tables.of_gavel(stand), tables.of_zeus(stand), tables.of_sia(stand)
    speeds = {"P100": 1.0}
    if stand.gavel:
        for name in ("K80", "V100"):
            speeds[name] = _ratio((row.get((name, 1)), row.get(("P100", 1))) for row in measured)
    else:
        speeds["V100"] = _times(trained, "V100", "P100")
    for name in _ZEUS_TYPES:
        speeds[name] = speeds["V100"] * _times(trained, name, "V100")
    for name in _SIA_TYPES:
        ratio = _ratio((row.get((name, 1)), row.get(("RTX6000", 1))) for row in stepped)
        speeds[name] = speeds["RTX6000"] * ratio
    return speeds


def _times(trained: Iterable[Mapping[str, tuple[float, float]]], fast: str, slow: str) -> float:
    return _ratio((row[slow][0], row[fast][0]) for row in trained if slow in row and fast in row)


def _ratio(pairs: Iterable[tuple[float | None, float | None]]) -> float:
    """Geometric mean of first over second, of the pairs that have both."""
    return float(np.exp(np.mean([np.log(a / b) for a, b in pairs if a and b])))


def _scaling(tables: _Tables, stand: ClassRepresentatives) -> dict[str, tuple[float, float]]:
    """Exponent and misfit by GPU type."""
    own = tables.of_gavel(stand)
    stepped = tables.of_sia(stand)
    fits = {name: _exponent([own], [name]) for name in _GAVEL_TYPES} if own else {}
    if any(np.isnan(rms) for _, rms in fits.values()):  # Gavel has Recommendation on one GPU only
        fits = dict.fromkeys(_GAVEL_TYPES, _exponent([stepped], ["T4", "RTX2080Ti", "RTX6000"]))
    if not own:  # BERT is a transformer
        fits = {name: _exponent([tables.of_gavel(CLASSES["transformer"])], [name]) for name in ("P100", "V100")}
    elsewhere = ("T4", "RTX2080Ti", "RTX6000", "A100")
    if stand.sia_scales:
        fits |= {name: _exponent([stepped], [name]) for name in elsewhere}
    else:
        fits |= dict.fromkeys(elsewhere, _exponent([own], list(_GAVEL_TYPES)))
    return fits | {"A40": fits["RTX6000"]}  # there is no measurement of several A40


def _exponent(tables: Iterable[Iterable[Speeds]], types: list[str]) -> tuple[float, float]:
    logs = [
        (np.log(gpus), np.log(speed / row[name, 1]))
        for table in tables
        for row in table
        for (name, gpus), speed in row.items()
        if name in types and gpus > 1 and (name, 1) in row
    ]
    if not logs:
        return np.nan, np.nan
    x, y = np.array(logs).T
    slope = float(x @ y / (x @ x))
    return slope, float(np.sqrt(np.mean((y - min(1.0, slope) * x) ** 2)))


def _power(tables: _Tables, stand: ClassRepresentatives) -> dict[str, float]:
    trained = tables.of_zeus(stand)
    names = ("P100", "V100", "RTX6000", "A40")
    return {name: float(np.median([row[name][1] for row in trained if name in row])) for name in names}


def main() -> None:
    """Print the fitted figures in the form of ``law``."""
    root = third_party.folder()
    if root is None:
        raise InputError(f"a folder of measured tables in {third_party.VARIABLE}", value="none")
    fitted = fit_law(root)
    write = sys.stdout.write
    write("time and power at each limit\n")
    for kind, pairs in fitted.law.at_limit.items():
        write(f'    "{kind}": ({", ".join(f"({time:.2f}, {power:.2f})" for time, power in pairs)}),\n')
    for title, table, digits in (
        ("speed of one GPU, relative to one P100", fitted.law.speed_of_one, 2),
        ("exponent", fitted.law.exponent, 2),
        ("power, W", fitted.law.power_w, 0),
        ("misfit of the exponent, rms of ln", fitted.misfit, 2),
    ):
        write(f"{title}\n")
        for kind, by_type in table.items():
            figures = ", ".join(f'"{name}": {value:.{digits}f}' for name, value in by_type.items())
            write(f'    "{kind}": {{{figures}}},\n')


if __name__ == "__main__":
    main()
