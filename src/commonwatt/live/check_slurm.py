"""Looks at a Slurm before a controller does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.discover import differences, discover
from commonwatt.engines.slurm.open import slurm_of
from commonwatt.engines.slurm.reading import SlurmNode
from commonwatt.live.check_lines import failed, fine, warning
from commonwatt.live.check_power import power_saving
from commonwatt.live.check_state import state_folder
from commonwatt.model.check_results import CheckLine
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import Scenario

__all__ = ["slurm_checks"]

_PROGRAMS = ("sbatch", "scancel", "scontrol", "sinfo", "squeue")


def slurm_checks(config: Scenario, cluster: Cluster, folder: Path) -> Iterator[CheckLine]:
    """Look at Slurm's commands, its nodes against the declared ones, and the folder all nodes must see."""
    spec = config.live.slurm
    planned = bool(config.capacity or config.policies[0].capacity)
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        yield failed("engine", f"not installed here: {', '.join(missing)}", "install Slurm's client commands")
    else:
        yield from _asked(slurm_of(spec), cluster, power=spec.power, planned=planned)
    line = state_folder(config, folder, folder / spec.state)
    if line.verdict == "ok":
        line = fine(line.what, f"{line.found}; all nodes must see it under this name, which is not checked here")
    yield line
    if spec.meter == "declared":
        yield fine("power readings", "computed from the declared power of nodes and GPUs, not measured")
    else:
        yield warning("power readings", "none: energy and cost will be unknown", "set live.slurm.meter to declared")
    if planned and not spec.power:
        advice = "set live.slurm.power, if Slurm's power saving is set up, or take `capacity` out"
        yield failed("power saving", "a capacity plan is asked for, but nodes may not be powered down", advice)


def _asked(slurm: Slurm, cluster: Cluster, *, power: bool, planned: bool) -> Iterator[CheckLine]:
    try:
        said = " ".join(slurm.run("sinfo", "--version").split())
        jobs, nodes, found = slurm.jobs(), slurm.nodes(), discover(slurm)
    except EngineDownError as error:
        yield failed("engine", str(error), "start slurmctld; `scontrol ping` says whether it answers")
        return
    except EngineError as error:
        yield failed("engine", str(error), "see whether sinfo and squeue work for this user, and live.slurm.conf")
        return
    yield fine("engine", f"{said} answers: {len(nodes)} nodes, {len(jobs)} jobs; those of others are left alone")
    told = differences(cluster, found)
    spare = [text for text in told if text.endswith("not declared")]
    wrong = [text for text in told if text not in spare]
    if wrong:
        yield failed("nodes", _shortened(wrong), "declare nodes as `scontrol show node` names them, GPUs as in Gres")
    elif spare:
        yield warning("nodes", _shortened(spare), "declare them if jobs may run there")
    else:
        yield fine("nodes", f"{len(cluster)} declared, as Slurm has them")
    yield from _states(cluster, nodes)
    if power:
        yield from power_saving(slurm, cluster, planned=planned)


def _states(cluster: Cluster, nodes: Sequence[SlurmNode]) -> Iterator[CheckLine]:
    ours = [node for node in nodes if node.name in set(cluster.names)]
    away = sorted(node.name for node in ours if node.out or node.silent)
    if away:
        found = f"{len(away)} of {len(ours)} take no jobs now: {', '.join(away[:10])}"
        yield warning("node states", found, "`sinfo -R` says why; they are used again as soon as Slurm has them back")


def _shortened(told: Sequence[str]) -> str:
    more = f" and {len(told) - 5} more" if len(told) > 5 else ""
    return "; ".join(told[:5]) + more
