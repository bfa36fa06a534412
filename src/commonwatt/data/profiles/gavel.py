"""Gavel's measured throughputs: training speed by model, batch size, GPU type (K80, P100, V100) and count.

Read from the tidied table or the publisher's ``simulation_throughputs.json``. Only figures with all GPUs in as few
servers as possible are used. The publisher's steps per second are summed over workers, so samples per second are
steps times batch size. Cells that are 0 or empty at the source are left out.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from commonwatt.data.profiles.base import known_gpu_type
from commonwatt.data.table import read_table
from commonwatt.data.text import read_text
from commonwatt.model.errors import InputError

__all__ = ["FILE", "GavelRun", "Throughputs", "read_gavel"]

FILE = "gavel_throughputs.csv"

_JOB = re.compile(r"\('(?P<model>.+?)(?: \(batch size (?P<batch>\d+)\))?', (?P<gpus>\d+)\)")


@dataclass(frozen=True)
class GavelRun:
    """A model at one batch size per GPU; A3C and CycleGAN have none (0)."""

    model: str
    batch_size: int


Throughputs = dict[GavelRun, dict[tuple[str, int], float]]


def read_gavel(path: Path) -> Throughputs:
    """Samples per second (steps, without a batch size) of each run by ``(GPU type, GPUs)``."""
    text = read_text(path)
    throughputs = _published(path, text) if text.lstrip().startswith("{") else _tidied(path, text)
    if not throughputs:
        raise InputError("at least one measured speed", file=path, value="none")
    return throughputs


def _tidied(path: Path, text: str) -> Throughputs:
    table = read_table(path, text=text)
    samples = table.seconds("samples_per_s", blank=0.0)
    steps = table.seconds("steps_per_s", blank=0.0)
    batch = table.counts("batch_size", blank=0)
    gpus, consolidated = table.counts("num_gpus"), table.counts("consolidated")
    models, types = table.text("model"), table.text("gpu_type")
    throughputs: Throughputs = {}
    for row in np.flatnonzero(consolidated == 1):
        speed = float(samples[row] if batch[row] else steps[row])
        if speed > 0:
            key = known_gpu_type(types[row], "gpu_type", f"{path}, line {table.lines[row]}"), int(gpus[row])
            throughputs.setdefault(GavelRun(models[row], int(batch[row])), {})[key] = speed
    return throughputs


def _published(path: Path, text: str) -> Throughputs:
    try:
        by_type: dict[str, dict[str, dict[str, Any]]] = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError("valid JSON", file=f"{path}, line {error.lineno}", value=error.msg) from None
    throughputs: Throughputs = {}
    for worker, jobs in by_type.items():
        if worker.endswith("_unconsolidated"):
            continue
        gpu_type = known_gpu_type(worker, None, path)
        for name, speeds in jobs.items():
            match = _JOB.fullmatch(name)
            steps = speeds.get("null")
            if match is None or not isinstance(steps, int | float):
                expected = "a job such as \"('ResNet-18 (batch size 16)', 1)\" with its steps per second under null"
                raise InputError(expected, file=path, field=f"{worker}.{name}", value=steps)
            if steps > 0:
                batch = int(match["batch"] or 0)
                speed = float(steps) * (batch or 1)
                throughputs.setdefault(GavelRun(match["model"], batch), {})[gpu_type, int(match["gpus"])] = speed
    return throughputs
