"""Where nodes are in the network, from what ``scontrol show topology`` prints.

Of topology/tree, a line for each switch, with its nodes and the switches below it. Of topology/block, a line for each
block, and for several blocks that are a larger one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

__all__ = ["domain_of", "slurm_domains", "split_topology"]

_LINE = re.compile(r"^[ \t]*(?:SwitchName|BlockName|AggregatedBlock)=.*(?:\n|\Z)", re.MULTILINE)
_FIELD = re.compile(r"(\w+)=(\S+)")
_Expand = Callable[[str], Sequence[str]]
_Path = tuple[str, ...]


def split_topology(text: str) -> tuple[str, str]:
    """Return *text* without the lines of ``scontrol show topology``, and these lines."""
    return _LINE.sub("", text), "\n".join(line.strip() for line in _LINE.findall(text))


def domain_of(path: Sequence[str]) -> str | None:
    """Return *path*, the names of domains from wide to narrow, as ``NodeSpec`` has it; ``None`` if it is empty."""
    return "/".join(re.sub(r"[/\s]+", "-", name) for name in path) or None


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
