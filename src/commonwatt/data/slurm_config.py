"""A scheduler as Slurm's configuration has it (``scontrol show config``): weights of its priority, and preemption."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from commonwatt.data.readers.slurm import duration_s
from commonwatt.model.errors import InputError
from commonwatt.model.scenario import PolicySpec

__all__ = ["SlurmPreemption", "configured", "preemption_of"]

_BESIDE_AGE = {"fair_share_weight": "FairShare", "size_weight": "JobSize", "qos_weight": "QOS"}
_LITTLE = (
    1e-6  # weight of age beside the least other, where it has none: of equals, Slurm takes the one that came first
)
_FOR_EVER_S = 1e12
_DEPTHS = {"bf_max_job_test": 500, "default_queue_depth": 100}  # of Slurm, where nothing is said


@dataclass(frozen=True)
class SlurmPreemption:
    """What Slurm's configuration says of preemption, for QOS that do not say so themselves."""

    by_qos: bool
    mode: str
    exempt_s: float
    notes: tuple[str, ...] = ()


def configured(spec: PolicySpec, config: Mapping[str, str], path: Path) -> tuple[PolicySpec, tuple[str, ...]]:
    """Return *spec*, a baseline, with the weights of *config*, and what of them is not modelled.

    Raises ``InputError`` on a value that cannot be one.
    """
    notes, multifactor = list[str](), config["PriorityType"].endswith("multifactor")
    weights = {name: _weight(config, key, path) if multifactor else 0 for name, key in _BESIDE_AGE.items()}
    if weights["size_weight"] and config.get("PriorityFavorSmall", "No").casefold() == "yes":
        weights["size_weight"] = 0
        notes.append("that small jobs come first (PriorityFavorSmall) is not modelled")
    age = _weight(config, "Age", path) if multifactor else 1
    unit = age or min((weight for weight in weights.values() if weight), default=1) * _LITTLE
    others = [key for key in ("Assoc", "Partition", "TRES") if config.get(f"PriorityWeight{key}", "0") not in ("", "0")]
    if others and multifactor:
        notes.append(f"not modelled of the priority: {', '.join(f'PriorityWeight{key}' for key in others)}")
    if not config.get("SchedulerType", "sched/backfill").endswith("backfill"):
        notes.append(f"SchedulerType {config['SchedulerType']} is taken for sched/backfill")
    matches = {name: re.search(rf"\b{name}=(\d+)", config["SchedulerParameters"]) for name in _DEPTHS}
    depth = max(int(match[1]) if (match := matches[name]) else usual for name, usual in _DEPTHS.items())
    update = {
        **{name: weight / unit for name, weight in weights.items()}, "solver": "fair-share",
        "half_life_s": _time_s(config, "PriorityDecayHalfLife", path, 7 * 86400.0) or _FOR_EVER_S,
        "max_age_s": _time_s(config, "PriorityMaxAge", path, 7 * 86400.0) or 1.0, "backfill_depth": max(1, depth),
    }  # fmt: skip
    return spec.model_copy(update=update), tuple(notes)


def preemption_of(config: Mapping[str, str], path: Path) -> SlurmPreemption:
    """Return what *config* says of preemption; raises ``InputError``."""
    by_qos = config.get("PreemptType", "preempt/none").endswith("/qos")
    mode = config.get("PreemptMode", "OFF").casefold().partition(",")[0]
    notes = []
    if "youngest_first" in config["SchedulerParameters"] + config.get("PreemptParameters", "") and by_qos:
        notes.append("that the youngest are preempted first is not modelled: those of the lowest priority are")
    exempt_s = _time_s(config, "PreemptExemptTime", path, 0.0)
    return SlurmPreemption(by_qos and mode != "off", mode, exempt_s, tuple(notes))


def _weight(config: Mapping[str, str], key: str, path: Path) -> int:
    name = f"PriorityWeight{key}"
    if not (value := config.get(name, "0")).isdecimal():
        raise InputError("a whole number, 0 or more", file=path, field=name, value=value)
    return int(value)


def _time_s(config: Mapping[str, str], name: str, path: Path, usual_s: float) -> float:
    if (value := config.get(name, "")) in ("", "NONE", "-1"):
        return usual_s
    try:
        return duration_s(value)
    except ValueError:
        raise InputError("a time, such as 7-00:00:00", file=path, field=name, value=value) from None
