"""Looks at the power saving of a Slurm: whether it is on, and whether the plan alone decides who sleeps."""

from __future__ import annotations

import re
from collections.abc import Iterator

from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.hostlist import host_names
from commonwatt.live.check_lines import failed, fine, warning
from commonwatt.model.check_results import CheckLine
from commonwatt.model.errors import EngineError
from commonwatt.model.nodes import Cluster
from commonwatt.model.units import DAY_S

__all__ = ["power_saving"]

_WHAT = "power saving"
_NEVER_S = 30 * DAY_S
"""A node that is idle for so long was not meant to be on."""
_SETTING = re.compile(r"(\w+)\s*=\s?(.*)")
_NONE = {"", "(null)", "NONE"}


def power_saving(slurm: Slurm, cluster: Cluster, *, planned: bool = False) -> Iterator[CheckLine]:
    """Look at what a Slurm that is to put nodes to sleep for us is set to do, and what it would do by itself.

    If there is a plan for it (*planned*), it has to be able to do it.
    """
    try:
        said = slurm.run("scontrol", "show", "config")
        settings = {m[1]: m[2] for line in said.splitlines() if (m := _SETTING.match(line.strip()))}
        kept = _kept_on(slurm, settings.get("SuspendExcNodes", ""), settings.get("SuspendExcParts", ""))
    except (EngineError, ValueError) as error:
        yield warning(_WHAT, str(error), "see whether `scontrol show config` works for this user")
        return
    off = [f"{name} is not set" for name in ("SuspendProgram", "ResumeProgram") if settings.get(name, "") in _NONE]
    surely = bool(off)  # a partition may have a time of its own, but no program
    idle = settings.get("SuspendTime", "").partition(" ")[0]
    if not idle.isdigit():
        off.append(f"SuspendTime is {idle or 'not set'}")
    if off:
        advice = "set SuspendProgram, ResumeProgram and SuspendTime=31536000 in slurm.conf, and restart slurmctld"
        found = f"off in Slurm, which will refuse to put nodes to sleep: {', '.join(off)}"
        yield (failed if planned and surely else warning)(_WHAT, found, advice)
        return
    left = [name for name in cluster.names if name not in kept]
    if left and int(idle) < _NEVER_S:
        named = f"{', '.join(left[:5])}{f' and {len(left) - 5} more' if len(left) > 5 else ''}"
        found = f"Slurm by itself puts nodes to sleep that were idle for {idle} s, even those a plan keeps on: {named}"
        yield warning(_WHAT, found, "set SuspendTime=31536000 in slurm.conf, or list these nodes in SuspendExcNodes")
        return
    yield fine(_WHAT, "set up in Slurm, which by itself puts none of these nodes to sleep")


def _kept_on(slurm: Slurm, nodes: str, partitions: str) -> set[str]:
    """Return the nodes Slurm never puts to sleep by itself; of a list with a count behind it, it keeps only some."""
    found: set[str] = set()
    if nodes not in _NONE:
        lists = re.findall(r"(?:[^,\[\]:]|\[[^\]]*\])+(?::\d+)?", nodes)
        found |= {name for text in lists if ":" not in text for name in host_names(text)}
    if partitions not in _NONE:
        ask = ("--noheader", "--all", "--Node", f"--partition={partitions}", "--format=%N")
        found |= set(slurm.run("sinfo", *ask).split())
    return found
