"""Speed against GPU type and count, and power, by kind of model.

- ``base``: ``Profiles``, the interface of profiles; names of GPU types and MIG slices.
- ``gavel``, ``zeus``: readers of the measured tables. ``lucid``: of those of jobs that share a GPU, and a law.
- ``declared``: types that a scenario declares, MIG slices, clusters of one type.
- ``Measured``: profiles from the tables; ``law``: fitted scaling laws, estimates from data sheets.
- ``fit``: the fit of the laws, from these tables and Sia's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from commonwatt.data import third_party
from commonwatt.data.profiles import gavel, zeus
from commonwatt.data.profiles.base import CLASSES, GPU_TYPES, Profiles, canonical, known_gpu_type
from commonwatt.data.profiles.declared import (
    DEFAULT_LOGGED,
    is_known,
    preferred,
    profiles_for,
    standard_name,
    type_name,
    types_of_assumed_speed,
)
from commonwatt.data.profiles.law import LAW
from commonwatt.model.errors import InputError
from commonwatt.model.names import one_of

__all__ = [
    "DEFAULT_LOGGED",
    "GPU_TYPES",
    "LAW",
    "Measured",
    "Profiles",
    "canonical",
    "is_known",
    "known_gpu_type",
    "load_profiles",
    "preferred",
    "profiles_for",
    "standard_name",
    "type_name",
    "types_of_assumed_speed",
]


def load_profiles(choice: str = "auto") -> Profiles:
    """Return the profiles of a workload: ``measured``, ``law``, or ``auto``: measured if the table is available.

    Raises ``InputError`` if ``measured`` is requested without Gavel's table.
    """
    if choice not in ("auto", "measured", "law"):
        raise InputError("one of auto, measured, law", field="profiles", value=choice)
    table = None if choice == "law" else third_party.find(gavel.FILE)
    if table is not None:
        return Measured.read(table, third_party.find(zeus.FILE))
    if choice == "measured":
        expected = f"{gavel.FILE} in the folder {third_party.VARIABLE} names"
        raise InputError(expected, field="profiles", value=choice)
    return LAW


_CLASS_OF = {stand.gavel: kind for kind, stand in CLASSES.items() if stand.gavel}


@dataclass(frozen=True)
class _Run:
    of_class: str | None
    batch_size: int
    speeds: Mapping[tuple[str, int], float]  # (GPU type, GPUs): samples per second


@dataclass(frozen=True)
class Measured:
    """Gavel's runs, and Zeus' trainings for their power.

    A kind is one of the runs, such as ``resnet50-b64`` (ResNet-50, batch size 64 per GPU).
    Figures of the table are kept as measured, jumps and all. What the table lacks follows the law of the run's class:

    - another count on a measured type: from the nearest smaller measured count by the law's exponent;
    - a type Gavel did not measure (T4, A100, ...): from one V100 by the law's ratio;
    - A3C and CycleGAN have no law: they run on one K80, P100 or V100 only.

    Power is Zeus' for the model that stands for the class, at the nearest batch size; without Zeus' table the law's.
    """

    runs: Mapping[str, _Run]
    trainings: Mapping[zeus.Training, Mapping[str, tuple[float, float]]] = field(default_factory=dict)
    limits: Mapping[zeus.Training, Mapping[str, zeus.LimitCurve]] = field(default_factory=dict)

    @classmethod
    def read(cls, gavel_path: Path, zeus_path: Path | None = None) -> Measured:
        """Read the tables, without runs that were never measured on one P100, the unit of speed."""
        table = gavel.read_gavel(gavel_path)
        runs = {
            _kind(run): _Run(_CLASS_OF.get(run.model), run.batch_size, speeds)
            for run, speeds in table.items()
            if ("P100", 1) in speeds
        }
        if not runs:
            raise InputError("at least one run on one P100", file=gavel_path, value="none")
        if zeus_path is None:
            return cls(runs)
        return cls(runs, zeus.read_zeus(zeus_path), zeus.read_limits(zeus_path))

    @property
    def kinds(self) -> tuple[str, ...]:
        """Runs, in the order of the table."""
        return tuple(self.runs)

    @property
    def source(self) -> str:
        """Return the source of the figures."""
        power = "power by Zeus" if self.trainings else "power by the fitted laws"
        return f"speeds measured by Gavel, elsewhere by scaling laws; {power}"

    def type_named(self, name: str, field: str | None = None, file: object = None) -> str:
        """Return the known GPU type that *name* means; raises ``InputError`` listing them if there is none."""
        return known_gpu_type(name, field, file)

    def speed(self, kind: str, gpu_type: str, gpus: int) -> float | None:
        """Samples per second relative to one P100; ``None`` if neither the table nor a law has it."""
        name, run = known_gpu_type(gpu_type), self._run(kind)
        of_p100 = run.speeds["P100", 1]
        if (name, gpus) in run.speeds:
            return run.speeds[name, gpus] / of_p100
        if run.of_class is None:
            return None
        wanted = LAW.speed(run.of_class, name, gpus)
        near = max(((t, g) for t, g in run.speeds if t == name and g < gpus), default=("V100", 1))
        if wanted is None or near not in run.speeds:
            return wanted
        by_law = LAW.speed(run.of_class, *near)
        return None if by_law is None else run.speeds[near] / of_p100 * wanted / by_law

    def gpu_w(self, kind: str, gpu_type: str) -> float | None:
        """Power of one GPU's board while it trains, watts; ``None`` if neither Zeus nor a law has it."""
        name, run = known_gpu_type(gpu_type), self._run(kind)
        if run.of_class is None:
            return None
        training = self._nearest(run, name, self.trainings)
        return LAW.gpu_w(run.of_class, name) if training is None else self.trainings[training][name][1]

    def limited(self, kind: str, gpu_type: str, limit: float) -> tuple[float, float] | None:
        """Return time and power with a power limit, as Zeus measured them on one GPU; without its table the law's."""
        name, run = known_gpu_type(gpu_type), self._run(kind)
        if run.of_class is None:
            return None
        training = self._nearest(run, name, self.limits)
        return LAW.limited(run.of_class, name, limit) if training is None else self.limits[training][name].at(limit)

    @staticmethod
    def _nearest(run: _Run, gpu_type: str, table: Mapping[zeus.Training, Mapping[str, object]]) -> zeus.Training | None:
        """Return the training on *gpu_type* that stands for *run*'s class, of the nearest batch size, if any."""
        stand = CLASSES[run.of_class].zeus if run.of_class else ()
        trainings = [
            training for training, by_type in table.items()
            if (training.dataset, training.model, training.optimizer) in stand and gpu_type in by_type
        ]  # fmt: skip
        return min(trainings, key=lambda t: abs(np.log(t.batch_size / max(run.batch_size, 1))), default=None)

    def _run(self, kind: str) -> _Run:
        if kind not in self.runs:
            raise InputError(one_of(self.runs, kind), field="kind", value=kind)
        return self.runs[kind]


def _kind(run: gavel.GavelRun) -> str:
    name = run.model.lower().replace("-", "")
    return f"{name}-b{run.batch_size}" if run.batch_size else name
