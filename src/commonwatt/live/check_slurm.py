"""Looks at a Slurm before a controller does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from commonwatt.live.check_lines import failed, fine, warning, writable
from commonwatt.model.check_results import CheckLine
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import Scenario

__all__ = ["slurm_checks"]

_PROGRAMS = ("sbatch", "scancel", "scontrol", "sinfo", "squeue")


def slurm_checks(config: Scenario, cluster: Cluster, folder: Path) -> Iterator[CheckLine]:
    """Look at Slurm's commands, its nodes against the declared ones, and the folder all nodes must see."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        yield failed("engine", f"not installed here: {', '.join(missing)}", "install Slurm's client commands")
    else:
        yield fine("engine", f"Slurm's commands are here, for {len(cluster)} declared nodes")
    yield writable("state folder", folder / config.live.slurm.state)
    yield warning("power readings", "none of Slurm's nodes: energy and cost will be unknown", "see docs/engines.md")
