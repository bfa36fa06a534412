"""What a cluster says of its nodes beside their GPUs: where they are in the network, features, and what they draw.

``scontrol show topology`` prints a line for each switch (topology/tree), with its nodes and the switches below it, or
for each block (topology/block), and for several blocks that are a larger one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from commonwatt.model.features import FEATURE
from commonwatt.model.units import plural

__all__ = [
    "MeasuredPower", "domain_of", "features_of_kinds", "measured_power", "slurm_domains", "split_topology",
    "without_free_text",
]  # fmt: skip

_LINE = re.compile(r"^[ \t]*(?:SwitchName|BlockName|AggregatedBlock)=.*(?:\n|\Z)", re.MULTILINE)
_SHOWN = 8
_FIELD = re.compile(r"(\w+)=(\S+)")
_Expand = Callable[[str], Sequence[str]]
_Path = tuple[str, ...]


def split_topology(text: str) -> tuple[str, str]:
    """Return *text* without the lines of ``scontrol show topology``, and these lines."""
    return _LINE.sub("", text), "\n".join(line.strip() for line in _LINE.findall(text))


def domain_of(path: Sequence[str]) -> str | None:
    """Return *path*, the names of domains from wide to narrow, as ``NodeSpec`` has it; ``None`` if it is empty."""
    return "/".join(re.sub(r"[/\s]+", "-", name) for name in path) or None


def features_of_kinds(kinds: Sequence[object], features: Sequence[str]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return the features that all nodes of a kind have, by node, and what there is to tell of the others.

    *features* of a node have commas between them. Those that only some nodes of a kind have would tell apart nodes that
    are otherwise alike: a job of several nodes, which gets nodes alike, would find fewer of them.
    """
    own = [dict.fromkeys(filter(None, text.split(","))) for text in features]
    shared: dict[object, set[str]] = {}
    for kind, names in zip(kinds, own, strict=True):
        shared[kind] = shared.get(kind, set(names)) & names.keys()
    kept = [
        tuple(name for name in names if name in shared[kind] and re.fullmatch(FEATURE, name))
        for kind, names in zip(kinds, own, strict=True)
    ]
    left = list(
        dict.fromkeys(name for names, some in zip(own, kept, strict=True) for name in names if name not in some)
    )
    shown = ", ".join(left[:_SHOWN]) + (f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else "")
    note = f"features left out, as they tell apart nodes that are otherwise alike: {shown}"
    return kept, [f"{note}; add them to `features` of nodes if jobs ask for them"] if left else []


def slurm_domains(topology: str, expand: _Expand, nodes: Collection[str]) -> tuple[dict[str, str | None], list[str]]:
    """Return the domain of each of *nodes* that *topology* has, and what there is to tell.

    Levels that all nodes share are left out, from the widest on. All paths are of one length: a switch that is higher
    up than others, and has nodes, stands for the levels below it, too. *expand* reads lists of names as Slurm writes
    them; where it cannot (``ValueError``), no node has a domain.
    """
    lines = [dict(_FIELD.findall(line)) for line in topology.splitlines()]
    try:
        found = _of_blocks(lines, expand) | _of_switches(lines, expand)
    except ValueError as error:
        return {}, [f"the topology of Slurm is left out: {error} is no list of names"]
    paths = {node: found[node] for node in nodes if node in found}
    depth = max(map(len, paths.values()), default=0)
    paths = {node: path + path[-1:] * (depth - len(path)) for node, path in paths.items()}
    shared = 0
    if len(paths) == len(set(nodes)):
        levels = zip(*paths.values(), strict=True)
        shared = next((level for level, names in enumerate(levels) if len(set(names)) > 1), depth)
    return {node: domain_of(path[shared:]) for node, path in paths.items()}, []


def _names(fields: Mapping[str, str], key: str, expand: _Expand) -> Sequence[str]:
    text = fields.get(key, "")
    if text.count("[") != text.count("]"):  # cut off
        raise ValueError(text)
    try:
        return expand(text)
    except ValueError:
        raise ValueError(text) from None


def _of_switches(lines: Sequence[Mapping[str, str]], expand: _Expand) -> dict[str, _Path]:
    """Return the switches above each node, from the top down; Slurm lists nodes at every switch above them, too."""
    above: dict[str, str] = {}
    switches = [fields for fields in lines if "SwitchName" in fields]
    for fields in switches:
        for below in _names(fields, "Switches", expand):
            above.setdefault(below, fields["SwitchName"])
    paths: dict[str, _Path] = {}
    for fields in switches:
        path: _Path = (fields["SwitchName"],)
        while (upper := above.get(path[0])) is not None and upper not in path:
            path = (upper, *path)
        for node in _names(fields, "Nodes", expand):
            if len(path) > len(paths.get(node, ())):
                paths[node] = path
    return paths


def _of_blocks(lines: Sequence[Mapping[str, str]], expand: _Expand) -> dict[str, _Path]:
    """Return the blocks that each node is in, the largest first."""
    blocks = []
    for fields in lines:
        name = fields.get("AggregatedBlock") or fields.get("BlockName")
        if name is not None:
            nodes, size = _names(fields, "Nodes", expand), fields.get("BlockSize", "")
            blocks.append((int(size) if size.isdecimal() else len(nodes), "AggregatedBlock" in fields, name, nodes))
    blocks.sort(key=lambda block: block[:2], reverse=True)
    paths: dict[str, _Path] = {}
    for _, _, name, nodes in blocks:
        for node in nodes:
            paths[node] = (*paths.get(node, ()), name)
    return paths


_LEAST_HOST_W, _LEAST_GPU_W, _LEAST_PART = 40.0, 5.0, 0.05
"""What an idle node takes at least, W, and an idle GPU, also as a part of its limit."""


class MeasuredPower(NamedTuple):
    """What Slurm measures nodes of a kind to draw: idle, and for each busy GPU beside that, W; and on how many."""

    idle_w: float
    gpu_w: float | None
    source: str

    def of_whole_nodes(self, gpus: int, limit_w: float | None) -> bool:
        """Whether it can be: some of Slurm's plugins measure processors and memory alone.

        *limit_w* is the power limit of each of the *gpus* of a node, if it is known.
        """
        board_w = limit_w or 0.0
        idle = self.idle_w >= _LEAST_HOST_W + gpus * max(_LEAST_GPU_W, _LEAST_PART * board_w)
        return idle and (self.gpu_w is None or 0.1 * board_w < self.gpu_w < 2.0 * (board_w or math.inf))

    @property
    def words(self) -> str:
        """What was measured."""
        return f"{self.idle_w:g} W idle" + ("" if self.gpu_w is None else f", {self.gpu_w:g} W for a busy GPU")


class _Drawn(NamedTuple):
    watts: float
    busy_gpus: int
    idle: bool


_AWAKE = re.compile(r"IDLE|MIXED|ALLOC", re.IGNORECASE)
_OFF = re.compile(r"POWER|DOWN|REBOOT|RESPOND|[*~#%@]", re.IGNORECASE)
_BUSY = re.compile(r"(?:^|,)gres/gpu=(\d{1,6})(?=,|$)")
_USED = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:(\d{1,6})(?=$|[,(])")
_FREE_TEXT = re.compile(r"\b(?:Reason|Comment|Extra)=.*")
_MOSTLY = 0.5
"""Part of a node's GPUs that must be busy for what it draws to say anything of one."""
_MOST_W = 1e6
"""More than any node draws: Slurm writes a large number where it does not know."""


def without_free_text(text: str) -> str:
    """Return what ``scontrol show node`` prints without what people have written there."""
    return _FREE_TEXT.sub("", text)


def measured_power(text: str, kinds: Mapping[str, Hashable], gpus: Mapping[str, int]) -> dict[Hashable, MeasuredPower]:
    """Return the power of each of *kinds* of nodes, by name, as ``scontrol show node`` has it (text or JSON).

    Medians over nodes: what one draws without any job, and what the busy GPUs (of *gpus*) of another add to that. Kinds
    are left out none of whose nodes is idle and measured; Slurm measures where ``AcctGatherEnergyType`` is set.
    """
    idle: dict[Hashable, list[float]] = {}
    busy: dict[Hashable, list[tuple[float, int]]] = {}
    for name, drawn in _drawn(text):
        if name not in kinds:
            continue
        if drawn.idle:
            idle.setdefault(kinds[name], []).append(drawn.watts)
        elif drawn.busy_gpus >= _MOSTLY * gpus[name]:
            busy.setdefault(kinds[name], []).append((drawn.watts, drawn.busy_gpus))
    found = {}
    for kind, watts in idle.items():
        idle_w = median(watts)
        added = [(w - idle_w) / count for w, count in busy.get(kind, ())]
        if added and median(added) <= 0:  # one of both is not what it seems
            continue
        gpu_w = median(added) if added else None
        source = f"idle_w measured by Slurm on {plural(len(watts), 'idle node')}"
        if gpu_w is not None:
            source = f"measured by Slurm: idle_w on {plural(len(watts), 'idle node')}, gpu_w on {len(added)} busy"
        found[kind] = MeasuredPower(idle_w, gpu_w, source)
    return found


def _drawn(text: str) -> Iterator[tuple[str, _Drawn]]:
    """Yield what nodes draw that are on, by name."""
    for name, state, watts, busy_gpus, cpus in _of_json(text) if text.lstrip().startswith("{") else _of_text(text):
        if 0 < watts < _MOST_W and _AWAKE.search(state) and not _OFF.search(state):
            yield name, _Drawn(watts, busy_gpus, cpus == 0 and "IDLE" in state.upper())


_Listed = Iterator[tuple[str, str, float, int, float]]


def _busy(gres_used: str, tres: str) -> int:
    """Return the GPUs in use: as gres, which only ``--details`` and JSON have, or as TRES, which not every site has."""
    used = [int(count) for count in _USED.findall(gres_used)]
    counted = _BUSY.search(tres)
    return sum(used) if used else int(counted[1]) if counted else 0


def _of_text(text: str) -> _Listed:
    for block in re.split(r"(?=\bNodeName=)", without_free_text(text)):
        fields = dict(_FIELD.findall(block))
        watts, cpus = fields.get("CurrentWatts", ""), fields.get("CPUAlloc", "")
        if watts.isdecimal() and cpus.isdecimal() and max(len(watts), len(cpus)) < _DIGITS:
            busy_gpus = _busy(fields.get("GresUsed", ""), fields.get("AllocTRES", ""))
            yield fields.get("NodeName", ""), fields.get("State", ""), float(watts), busy_gpus, float(cpus)


_DIGITS = 12


def _of_json(text: str) -> _Listed:
    document = json.loads(text)
    nodes = document.get("nodes") if isinstance(document, dict) else None
    for node in nodes if isinstance(nodes, list) else ():
        if not isinstance(node, dict):
            continue
        energy = node.get("energy")
        watts = _number(energy.get("current_watts")) if isinstance(energy, dict) else None
        cpus = _number(node.get("alloc_cpus"))
        if watts is not None and cpus is not None:
            states = [node.get("state"), node.get("state_flags")]
            words = [str(word) for part in states for word in (part if isinstance(part, list) else [part])]
            busy_gpus = _busy(_word(node.get("gres_used")), _word(node.get("tres_used")))
            yield str(node.get("name")), "+".join(words), watts, busy_gpus, cpus


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    """Return a number, which newer versions of Slurm say is set, infinite, or none; ``None``: there is none."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") is True and not value.get("infinite") else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < _MOST_W else None
