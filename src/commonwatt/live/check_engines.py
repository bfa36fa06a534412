"""Looks at an engine before a controller does; nothing is started, changed or left behind."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from commonwatt.live.check_lines import failed, fine, warning
from commonwatt.live.check_slurm import slurm_checks
from commonwatt.live.check_state import state_folder
from commonwatt.live.engines import slots_of
from commonwatt.live.gpus import GpusHere, gpus_here
from commonwatt.model.check_results import CheckLine
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import Scenario

__all__ = ["engine_checks"]


def engine_checks(
    config: Scenario, cluster: Cluster, folder: Path, gpus: Callable[[], GpusHere] = gpus_here
) -> Iterator[CheckLine]:
    """Look at the engine, its folders and its power readings."""
    if config.engine == "simulated":
        yield warning("engine", "simulated: nothing really runs", "set `engine` to local or slurm to run jobs")
        return
    if config.engine == "local":
        yield from _local(config, cluster, folder, gpus())
    else:
        yield from slurm_checks(config, cluster, folder)
    program = config.live.image_command[0]
    found = shutil.which(program)
    if found is not None:
        yield fine("images", f"{found} runs container images")
    else:
        advice = f"install {program}, or set live.image_command; jobs without an image are not concerned"
        yield warning("images", f"{program} is not installed here", advice)


def _local(config: Scenario, cluster: Cluster, folder: Path, gpus: GpusHere) -> Iterator[CheckLine]:
    spec = config.live.local
    declared = f"{len(cluster)} nodes with {cluster.total_gpus} slots"
    yield fine("engine", f"local: processes on this machine, {declared}")
    yield state_folder(config, folder, folder / spec.state)
    yield _slots(config, cluster, gpus)
    if config.live.folder is not None:
        path = Path(config.live.folder)
        if path.is_dir() and os.access(path, os.R_OK | os.X_OK):
            yield fine("working folder", f"jobs that name none begin in {path}")
        else:
            yield failed("working folder", f"{path} is not a folder one can enter", "make it, or change live.folder")
    yield _meter(config, gpus)


def _slots(config: Scenario, cluster: Cluster, gpus: GpusHere) -> CheckLine:
    what = "GPUs"
    used: dict[int, str] = {}
    for name, count, own in zip(cluster.names, map(int, cluster.gpus), slots_of(config, cluster), strict=True):
        if min(own, default=0) < 0:
            advice = "0 is the first GPU, 1 the second"
            return failed(what, f"live.local.slots.{name} has a number below 0", advice)
        if len(set(own)) != count:
            found = f"node {name} has {count} GPUs and {len(set(own))} different slots"
            return failed(what, found, f"give live.local.slots.{name} as many different indices as it has GPUs")
        for slot in own:
            if slot in used:
                found = f"slot {slot} belongs to {used[slot]} and to {name}"
                return failed(what, found, "name different GPUs in live.local.slots")
            used[slot] = name
    if gpus.names is None:
        found = f"no GPU to be seen ({gpus.trouble}): the {len(used)} slots are places for jobs, nothing more"
        return fine(what, found)
    missing = sorted(slot for slot in used if slot >= len(gpus.names))
    here = f"{len(gpus.names)} here ({', '.join(sorted(set(gpus.names))) or 'none'})"
    if missing and gpus.names:
        return failed(what, f"{here}, but slots {missing} are declared", "declare as many GPUs as there are")
    left = len(gpus.names) - len(used)
    if left > 0:
        return warning(what, f"{here}, {left} of them not declared", "declare them, unless others use them")
    return fine(what, f"{here}, all declared" if gpus.names else f"{here}: slots are places for jobs, nothing more")


def _meter(config: Scenario, gpus: GpusHere) -> CheckLine:
    what, meter = "power readings", config.live.local.meter
    if meter == "none":
        return warning(what, "none: energy and cost will be unknown", "set live.local.meter to declared or nvml")
    if meter == "declared":
        return fine(what, "computed from the declared power of nodes and GPUs, not measured")
    if gpus.names is None:
        return failed(what, gpus.trouble, "install the driver and commonwatt[gpu], or set live.local.meter to declared")
    without = [str(index) for index, metered in enumerate(gpus.metered) if not metered]
    if without or not gpus.names:
        found = f"GPUs {', '.join(without)} have no energy counter" if without else "there is no GPU"
        return failed(what, found, "set live.local.meter to declared")
    return fine(what, "every GPU has an energy counter (NVML)")
