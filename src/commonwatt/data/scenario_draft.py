"""A scenario file for a cluster that was found: what ``commonwatt init`` writes."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path

import yaml

from commonwatt import __version__
from commonwatt.data._node_details import domain_of, split_topology
from commonwatt.data.inventory import UNNAMED, Expand, Inventory, InventoryNode, board_power, read_inventory
from commonwatt.data.profiles.base import canonical, mig_slice
from commonwatt.data.profiles.declared import is_known
from commonwatt.model.admin_results import InitNode, InitResult
from commonwatt.model.errors import ArgumentError
from commonwatt.model.nodes import REFERENCE_TYPE
from commonwatt.model.units import plural

__all__ = [
    "UNNAMED", "by_labels", "draft_scenario", "draft_text", "drafted_nodes", "estimated_types", "observed_text",
    "unknown_types",
]  # fmt: skip

HOST_W = 200.0
"""Assumed power of a node without its GPUs."""
IDLE_PART = 0.1
"""Assumed power of an idle GPU, as a part of its limit."""
PLACEHOLDER_W = 300.0
"""Stands for the power limit of a GPU nobody knows."""
JOBS_PER_GPU = 2.5
"""Generated submissions a day for each GPU: a cluster that is busy, not full."""


_PLAIN = re.compile(r"(?=.*\d)[A-Za-z][A-Za-z0-9.-]*")
"""Names that YAML reads as text without quotes, most names of nodes among them."""


def draft_scenario(
    text: str, expand: Expand, *, file: object = None, host: str = "node", out: Path | None = None,
    topology: str | None = None, near: Sequence[str] = (),
) -> tuple[str, InitResult]:  # fmt: skip
    """Return a scenario for the cluster that *text* lists, and the document of ``commonwatt init``.

    Parameters
    ----------
    text, expand, file, host
        As ``read_inventory`` takes them: the output of a cluster tool.
    out
        File that the scenario is for; nothing is written.
    topology, near
        Labels of nodes, as ``by_labels`` takes them.

    Raises
    ------
    InputError
        For a text that lists no nodes with GPUs, and as ``by_labels`` does.
    """
    inventory = by_labels(read_inventory(text, expand, file=file, host=host), text, topology, near)
    nodes = drafted_nodes(inventory.nodes)
    unknown = unknown_types(nodes)
    notes = list(inventory.notes)
    if any(node.gpu_type == UNNAMED for node in nodes):
        notes.append(f"the cluster names no GPU type for some nodes: write it in place of {UNNAMED}")
    for kind in unknown:
        if kind != UNNAMED:
            notes.append(f"the speed of {kind} is not known: gpu_types.{kind}.speed is a placeholder")
    if estimated := estimated_types(nodes):
        notes.append(f"the speed of {', '.join(estimated)} is an estimate from data sheets; gpu_types can declare it")
    if any(node.power_source is None for node in nodes):
        notes.append("the power of some GPU types is not known: gpu_w is a placeholder")
    notes += [note for note in inventory.power_notes() if "Slurm" in note]
    result = InitResult(
        version=__version__, seed=0, input_digest=hashlib.sha256(text.encode()).hexdigest(), source=inventory.source,
        nodes=nodes, left_out=inventory.without_gpus, unknown_gpu_types=unknown, notes=tuple(notes),
        written=None if out is None else str(out),
    )  # fmt: skip
    return draft_text(inventory, nodes, out or Path("cluster.yaml")), result


def by_labels(inventory: Inventory, text: str, topology: str | None = None, near: Sequence[str] = ()) -> Inventory:
    """Return the nodes that *text* lists, with what their labels say of where they are.

    Each is in the partition that its label *topology* names: a job of several nodes has nodes of the same partitions
    only. Its domain is the values of its labels *near*, from wide to narrow, up to the first that it lacks: such a job
    has nodes in the fewest domains.

    Raises ``ArgumentError`` if no node has one of the labels (a narrower one beside the wider ones), or the text is not
    of Kubernetes, whose nodes have labels.
    """
    if topology is None and not near:
        return inventory
    if inventory.source != "kubernetes":
        expected = "nodes of Kubernetes, which have labels"
        if near:
            expected += "; over Slurm, put what `scontrol show topology` prints after what `scontrol show node` does"
            raise ArgumentError(expected, field="near", value=near[0])
        raise ArgumentError(expected, field="topology", value=topology)
    document = json.loads(split_topology(text)[0])
    metas = [item["metadata"] for item in document.get("items", [document]) if isinstance(item, dict)]
    labels = {meta["name"]: meta.get("labels") or {} for meta in metas}
    if topology is not None:
        inventory = _in_partitions(inventory, labels, topology)
    return _in_domains(inventory, labels, near) if near else inventory


_Labels = Mapping[str, Mapping[str, str]]  # of each node


def _in_partitions(inventory: Inventory, labels: _Labels, topology: str) -> Inventory:
    values = {name: own.get(topology) for name, own in labels.items()}
    nodes = tuple(
        replace(node, partitions=(value,) if (value := values[node.host or node.name]) else ())
        for node in inventory.nodes
    )
    without = len({node.host or node.name for node in nodes if not node.partitions})
    if not any(node.partitions for node in nodes):
        raise ArgumentError("a label that nodes with GPUs have", field="topology", value=topology)
    note = f"no label {topology} on {plural(without, 'node')}: a job of several nodes may have any of these together"
    return replace(inventory, nodes=nodes, notes=(*inventory.notes, note) if without else inventory.notes)


def _in_domains(inventory: Inventory, labels: _Labels, near: Sequence[str]) -> Inventory:
    paths: dict[str, list[str]] = {node.host or node.name: [] for node in inventory.nodes}
    notes: list[str] = []
    there = list(paths)
    for label in near:
        having = [name for name in there if labels[name].get(label)]
        if not having:
            raise ArgumentError("a label that nodes with GPUs have", field="near", value=label)
        for name in having:
            paths[name].append(str(labels[name][label]))
        if without := len(there) - len(having):
            notes.append(f"no label {label} on {plural(without, 'node')}: by it, no node is near any of these")
        there = having
    nodes = tuple(replace(node, domain=domain_of(paths[node.host or node.name])) for node in inventory.nodes)
    return replace(inventory, nodes=nodes, notes=(*inventory.notes, *notes))


def drafted_nodes(inventory: Iterable[InventoryNode]) -> tuple[InitNode, ...]:
    """Return the nodes as a scenario declares them; those called NAME-1 to NAME-n and alike become one entry.

    A node with several GPU types has an entry for each, with its idle power in proportion to the GPUs.
    """
    nodes = sorted(map(_node, inventory), key=lambda node: _natural(node.name))
    drafted: list[InitNode] = []
    for _, alike in groupby(nodes, key=_series):
        own = list(alike)
        stem, _, first = own[0].name.rpartition("-")
        whole = [f"{stem}-{i:0{len(str(len(own)))}}" for i in range(1, len(own) + 1)]
        if own[0].host is not None:
            drafted += _shared(own)
        elif len(own) > 1 and first.isdecimal() and [node.name for node in own] == whole:
            drafted.append(own[0].model_copy(update={"name": stem, "count": len(own)}))
        else:
            drafted += own
    return tuple(drafted)


def _shared(parts: Sequence[InitNode]) -> list[InitNode]:
    """Return the parts of one node with one host's idle power among them."""
    idle_w = _round(sum(part.idle_w for part in parts) - (len(parts) - 1) * HOST_W)
    gpus = sum(part.gpus for part in parts)
    return [part.model_copy(update={"idle_w": idle_w * part.gpus / gpus}) for part in parts]


def unknown_types(nodes: Iterable[InitNode]) -> tuple[str, ...]:
    """Return the GPU types of *nodes* whose speed has to be declared; a cluster of one type needs none."""
    types = tuple(dict.fromkeys(node.gpu_type for node in nodes))
    return tuple(name for name in types if not is_known(name)) if len(types) > 1 else ()


def estimated_types(nodes: Iterable[InitNode]) -> tuple[str, ...]:
    """Return the GPU types of *nodes* whose speed relative to the others is an estimate from data sheets."""
    types = tuple(dict.fromkeys(node.gpu_type for node in nodes))
    estimates = (name for name in types if is_known(name) and mig_slice(name) is None and canonical(name) is None)
    return tuple(estimates) if len(types) > 1 else ()


def draft_text(inventory: Inventory, nodes: Sequence[InitNode], path: Path) -> str:
    """Return the text for the file *path*, with what was assumed in comments."""
    lines = [
        f"# Written by `commonwatt init` from {inventory.source}. Look at power and electricity, then:",
        f"#   commonwatt simulate {path} --out out/{path.stem}",
        f"name: {_flow(path.stem)}",
        _workload(nodes),
        "#   for your own log, `commonwatt data check LOG` prints what to put here",
        *_cluster(nodes, sizes=True),
        "electricity: {price_per_kwh: 0.20, pue: 1.4, currency: EUR}   # placeholder: put your own",
        *_POLICIES,
        "  - {solver: fifo}",
    ]
    return "\n".join(lines) + "\n"


def observed_text(
    nodes: Sequence[InitNode], name: str, prices: tuple[float, float, str], *, sizes: bool = False
) -> str:  # fmt: skip
    """Return the text for a cluster that is observed: *prices* are those of a kWh, the PUE and the currency.

    With *sizes*, nodes have their CPUs and memory, which placement then keeps to.

    Savings are against backfill, as Slurm does it.
    """
    price, pue, currency = prices
    electricity = f"electricity: {{price_per_kwh: {price:g}, pue: {pue:g}, currency: {_flow(currency)}}}"
    cluster = _cluster(nodes, sizes=sizes)
    return "\n".join((f"name: {_flow(name)}", _workload(nodes), *cluster, electricity, *_POLICIES)) + "\n"


_POLICIES = (
    "policies:   # the first is compared with the others",
    "  # what waiting costs beside energy; when GPUs are reserved for the oldest job that cannot start:",
    "  - {solver: lookahead, slowdown_price: 0.01, limits: {reserve_after_s: 86400}}",
    "  - {solver: easy}",
)


def _workload(nodes: Sequence[InitNode]) -> str:
    jobs_per_day = max(10, round(JOBS_PER_GPU * sum(node.count * node.gpus for node in nodes)))
    return f"workload: {{source: week, jobs_per_day: {jobs_per_day}, days: 1}}   # generated jobs"


def _cluster(nodes: Sequence[InitNode], *, sizes: bool = False) -> list[str]:
    """Return the lines of the nodes; *sizes*: with their CPUs and memory, which schedulers then keep to."""
    return [
        *_speeds(unknown_types(nodes)),
        "nodes:   # names, GPU types, counts and sizes as found; power is assumed, or measured where it says so:",
        *_assumptions(nodes),
        *(f"  - {_entry(own, sizes=sizes)}" for own in _entries(nodes)),
    ]


def _speeds(unknown: Sequence[str]) -> list[str]:
    if not unknown:
        return []
    rows = (f"  {_flow(name)}: {{speed: 1.0, relative_to: {REFERENCE_TYPE}}}" for name in unknown)
    return ["gpu_types:   # placeholders: put the speed of training on one GPU, as a multiple of another type's", *rows]


def _entries(nodes: Sequence[InitNode]) -> list[list[InitNode]]:
    """Return *nodes*, those of one host together."""
    hosts: dict[object, list[InitNode]] = {}
    for place, node in enumerate(nodes):
        hosts.setdefault(place if node.host is None else node.host, []).append(node)
    return list(hosts.values())


def _assumptions(nodes: Sequence[InitNode]) -> list[str]:
    host = f"  # idle_w: {HOST_W:g} W for the host and {100 * IDLE_PART:g}% of each GPU's limit; gpu_w: the rest of it"
    limits = {node.gpu_type: node.power_source or f"{PLACEHOLDER_W:g} W, a placeholder" for node in nodes}
    return [host, *(f"  # {kind}: {source}" for kind, source in limits.items())]


def _entry(own: Sequence[InitNode], *, sizes: bool) -> str:
    node = own[0]
    if node.host is not None:
        gpus = {part.gpu_type: part.gpus for part in own}
        gpu_w = {part.gpu_type: _round(part.gpu_w) for part in own}
        idle_w = _round(sum(part.idle_w for part in own))
        there: dict[str, object] = {"partitions": list(node.partitions)} if node.partitions else {}
        there |= {"features": list(node.features)} if node.features else {}
        there |= {"domain": node.domain} if node.domain else {}
        return _flow({"name": node.host, "gpus": gpus, "idle_w": idle_w, "gpu_w": gpu_w, **there})
    rest = _size(
        None if node.count == 1 else node.count, node.gpu_type, node.gpus, node.cpus if sizes else None,
        node.memory_gib if sizes else None, node.partitions, node.features, node.domain,
        node.idle_w, node.gpu_w,
    )  # fmt: skip
    name = node.name if _PLAIN.fullmatch(node.name) else _flow([node.name])[1:-1]
    return f"{{name: {name}, {rest[1:]}"


@cache
def _size(
    count: int | None, gpu_type: str, gpus: int, cpus: int | None, memory_gib: float | None,
    partitions: tuple[str, ...], features: tuple[str, ...], domain: str | None, idle_w: float, gpu_w: float,
) -> str:  # fmt: skip
    """Return what an entry says after the name: a cluster has many nodes and few sizes."""
    fields = {
        "count": count, "gpu_type": gpu_type, "gpus": gpus, "cpus": cpus,
        "memory_gib": None if memory_gib is None else _round(math.floor(memory_gib * 10) / 10),
        "partitions": list(partitions) or None,
        "features": list(features) or None,
        "domain": domain,
        "idle_w": _round(idle_w), "gpu_w": _round(gpu_w),
    }  # fmt: skip
    return _flow({key: value for key, value in fields.items() if value is not None})


class _Dumper(yaml.SafeDumper):
    """Quotes what our files read as a number, and PyYAML does not: a node called 1e3, or 08."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?$"), list("-+.0123456789")
)


def _flow(value: object) -> str:
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True)
    return text.removesuffix("...\n").strip()


def _round(watts: float) -> int | float:
    return int(watts) if watts == int(watts) else round(watts, 1)


def _node(node: InventoryNode) -> InitNode:
    table = board_power(node.product or node.gpu_type)
    limit_w = node.limit_w or (table.board_w if table else None)
    source = "the limit nvidia-smi reports" if node.limit_w else table.source if table else None
    if limit_w and source:
        source = f"{limit_w:g} W, {source}"
    board_w = limit_w or PLACEHOLDER_W
    idle_w, gpu_w = HOST_W + IDLE_PART * board_w * node.gpus, (1 - IDLE_PART) * board_w
    if (power := node.power) is not None and power.of_whole_nodes(node.gpus, limit_w):
        idle_w, gpu_w = power.idle_w, gpu_w if power.gpu_w is None else power.gpu_w
        source = power.source if power.gpu_w is not None else f"{source}; {power.source}" if source else None
    return InitNode(
        name=node.name, host=node.host, count=1, gpu_type=node.gpu_type or UNNAMED, gpus=node.gpus,
        partitions=node.partitions, features=node.features, domain=node.domain, cpus=node.cpus,
        memory_gib=node.memory_gib, power_source=source,
        idle_w=idle_w, gpu_w=gpu_w,
    )  # fmt: skip


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def _series(node: InitNode) -> tuple[object, ...]:
    if node.host is not None:
        return (node.host,)
    size = node.gpu_type, node.gpus, node.cpus, node.memory_gib
    return node.name.rpartition("-")[0], *size, node.idle_w, node.gpu_w, node.partitions, node.features, node.domain
