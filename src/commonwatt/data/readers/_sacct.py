"""What both forms of Slurm accounting say about a job."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from commonwatt.data.table import MOST_GPUS

__all__ = ["SacctJob", "gpus_of"]


@dataclass(frozen=True)
class SacctJob:
    """One run of one job."""

    name: str
    tenant: str
    submit_s: float  # since 1970
    start_s: float  # since 1970; NaN: never started
    elapsed_s: float
    limit_s: float  # infinity: unlimited; NaN: not said
    gpus: int
    gpu_type: str  # "": not said, or several
    running: bool


def gpus_of(resources: Iterable[tuple[str, int]]) -> tuple[int, str]:
    """GPU count and type from trackable resources, such as ``("gres/gpu:v100", 4)``.

    Slurm counts typed GPUs twice, once with their type and once without: the plain entry is the total. Raises
    ``ValueError`` on a count that cannot be one.
    """
    total, typed = 0, {}
    for name, count in resources:
        if not 0 <= count <= MOST_GPUS:
            raise ValueError(f"{name}={count}")
        match = re.fullmatch(r"(?:gres/)?gpu(?::(.+))?", name)
        if match and match[1]:
            typed[match[1]] = count
        elif match:
            total = count
    used = [gpu_type for gpu_type, count in typed.items() if count]
    return total or sum(typed.values()), used[0] if len(used) == 1 else ""
