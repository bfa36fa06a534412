"""Nodes and their GPUs, from the output of cluster tools.

``scontrol show node`` (also ``-o`` and ``--json``; ``scontrol show topology`` may follow), ``sinfo`` with node names
and gres, ``nvidia-smi`` (a query as CSV, ``-L``, or its table), and ``kubectl get nodes -o json``. The text itself says
which of them it is. The power limit of a GPU type comes from data sheets (``gpu_power.csv``).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

from commonwatt.data._node_details import (
    MeasuredPower,
    features_of_kinds,
    measured_power,
    slurm_domains,
    split_topology,
    without_free_text,
)
from commonwatt.data.catalog import formats_of
from commonwatt.data.file_kinds import other_kind
from commonwatt.data.profiles.base import MIG_SLICES, mig_slice, type_in
from commonwatt.data.table import read_table
from commonwatt.model.errors import InputError
from commonwatt.model.units import plural

__all__ = [
    "UNNAMED",
    "BoardPower",
    "Expand",
    "Inventory",
    "InventoryNode",
    "Source",
    "board_power",
    "read_inventory",
    "type_of",
]

Source = Literal["scontrol", "sinfo", "nvidia-smi", "kubernetes"]
Expand = Callable[[str], Sequence[str]]

UNNAMED = "GPU"
"""GPU type where the cluster names none."""
SINFO = "sinfo -N -h -o '%N|%G'"
_WANTED = (
    "what `scontrol show node`, `nvidia-smi --query-gpu=name,power.limit --format=csv` or "
    f"`kubectl get nodes -o json` prints, or {SINFO}"
)
_AWAY = re.compile(r"DOWN|DRAIN|FAIL|MAINT|\*")  # states of nodes that run nothing new
_GRES = re.compile(r"gpu(?::([^:,()\s=]+))??:(\d+)(?=[,(\s|]|$)")
_PRODUCTS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator",
             "node.kubernetes.io/accelerator", "accelerator")  # fmt: skip
_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
_MIG = "nvidia.com/mig-"
_COUNT = re.compile(r"[1-9]\d{0,11}")
_BOARD = re.compile(r"^\|\s+\d+\s+(\S.*?\S)\s+(?:On|Off|N/A)\s+\|", re.MULTILINE)
_BOARD_POWER = re.compile(r"^\|[^|]*?(?:\d+W|N/A)\s*/\s*(\d+|N/A)W?\s*\|", re.MULTILINE)
_LISTED = re.compile(r"^GPU \d+: (.+?) \(UUID", re.MULTILINE)


@dataclass(frozen=True)
class InventoryNode:
    """A node with GPUs of one type, or the GPUs of one type on a node that has several."""

    name: str
    gpu_type: str  # "": the cluster does not say
    gpus: int
    product: str = ""  # the type as the cluster spells it
    limit_w: float | None = None  # power limit of a GPU, if it is known
    host: str | None = None  # of a node that has several types
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    domain: str | None = None  # where it is in the network, wide to narrow
    cpus: int | None = None  # None: the text does not say, or the node has several types
    memory_gib: float | None = None
    power: MeasuredPower | None = None  # of nodes of its kind, where Slurm measures it


@dataclass(frozen=True)
class Inventory:
    """What a text says of a cluster."""

    source: Source
    nodes: tuple[InventoryNode, ...]
    without_gpus: int  # nodes left out
    notes: tuple[str, ...] = ()

    def power_notes(self) -> list[str]:
        """Return what is to be said of the power of nodes: what is measured, not believed, and assumed."""
        notes: dict[str, None] = {}
        measured = 0
        for node in self.nodes:
            if (power := node.power) is None:
                continue
            table = board_power(node.product or node.gpu_type)
            if power.of_whole_nodes(node.gpus, node.limit_w or (table.board_w if table else None)):
                notes[f"{node.gpu_type}: {power.source}"] = None
                measured += 1
            else:
                notes[f"{node.gpu_type}: what Slurm measures ({power.words}) is not whole nodes: it is left out"] = None
        if measured < len(self.nodes):
            some = "of other nodes" if measured else "of nodes"
            notes[f"the power {some} is assumed, from data sheets where they are known: set idle_w and gpu_w"] = None
        return list(notes)


def read_inventory(text: str, expand: Expand, file: object = None, host: str = "node") -> Inventory:
    """Read *text*; *expand* reads lists of host names as Slurm writes them, *host* names the node of ``nvidia-smi``.

    Raises ``InputError`` for a text of no such kind, and for one without GPUs.
    """
    listed, topology = split_topology(text)
    try:
        inventory = _read(listed.strip() or text.strip(), expand, file, host)
    except InputError as error:
        raise (_other_text(text, file) or error) from None
    if not inventory.nodes:
        value = f"{plural(inventory.without_gpus, 'node')} without"
        raise _other_text(text, file) or InputError("at least one node with GPUs", file=file, value=value)
    domains, notes = slurm_domains(topology, expand, [node.host or node.name for node in inventory.nodes])
    whole = [node for node in inventory.nodes if node.host is None] if inventory.source == "scontrol" else []
    kinds = {node.name: (node.gpu_type, node.gpus) for node in whole}
    power = measured_power(listed, kinds, {node.name: node.gpus for node in whole})
    nodes = tuple(
        replace(node, domain=domains.get(node.host or node.name), power=power.get(kinds.get(node.name)))
        for node in inventory.nodes
    )
    return replace(inventory, nodes=nodes, notes=(*inventory.notes, *notes))


def _read(text: str, expand: Expand, file: object, host: str) -> Inventory:
    if text.startswith(("{", "[")):
        return _json(text, file)
    if "NodeName=" in text:
        return _scontrol(text, expand, file)
    if "NVIDIA-SMI" in text or _LISTED.search(text) or re.match(r"(?:\w+(?:\.\w+)*,\s*)*name\b", text):
        return _nvidia_smi(text, file, host)
    if text.startswith(("NODELIST", "PARTITION")) or re.search(r"\|\s*(?:\S*\bgpu:|\(null\))", text):
        return _sinfo(text, expand, file)
    raise InputError(_WANTED, file=file, value=text.split("\n", 1)[0] or "nothing")


def _other_text(text: str, file: object) -> InputError | None:
    """Return the error for a job log, and for a file of commonwatt; ``None`` for any other text."""
    log = [] if '"nodes"' in text else formats_of(text)
    if log:
        what = f"this is a job log ({' or '.join(log)}): use `commonwatt data check`, or `commonwatt study LOG`"
        return InputError(f"{_WANTED}; {what}", file=file)
    return None if "NodeName=" in text else other_kind(file, text, _WANTED)


def _scontrol(text: str, expand: Expand, file: object) -> Inventory:
    rows: list[_Row] = []
    away = []
    for block in re.split(r"(?=\bNodeName=)", without_free_text(text)):
        fields = dict(re.findall(r"(\w+)=(\S+)", block))
        if "NodeName" in fields:
            size = _size(fields, ("CPUEfctv", "CPUTot"), "RealMemory")
            features = fields.get("ActiveFeatures") or fields.get("Feature", "")  # the latter in slurm.conf
            for name in _hosts(fields["NodeName"], expand, file):
                rows.append((name, fields.get("Gres", ""), fields.get("Partitions", ""), features, *size))
            if _AWAY.search(fields.get("State", "")) and _GRES.search(fields.get("Gres", "")):
                away.append(f"{fields['NodeName']} ({fields['State']})")
    inventory = _of_gres("scontrol", rows)
    note = f"counted as if they were up: {', '.join(away)}"
    return replace(inventory, notes=(*inventory.notes, note)) if away else inventory


def _hosts(name: str, expand: Expand, file: object) -> Sequence[str]:
    """Return the nodes of *name*: one as scontrol prints it, or a list as in slurm.conf."""
    try:
        names = expand(name) if name.count("[") == name.count("]") else ()
    except ValueError:
        names = ()
    if not names:
        raise InputError("a node, or a list of nodes such as n[1-8]", file=file, field="NodeName", value=name)
    return names


def _size(fields: Mapping[str, Any], cpus: Sequence[str], memory_mib: str) -> _Size:
    """CPUs (what is left of them for jobs, if that is said) and memory (GiB) of a node; ``None``: not said."""
    many = next((int(match[0]) for name in cpus if (match := _COUNT.fullmatch(str(fields.get(name))))), None)
    match = _COUNT.fullmatch(str(fields.get(memory_mib)))
    return many, int(match[0]) / 1024.0 if match else None


def _sinfo(text: str, expand: Expand, file: object) -> Inventory:
    lines = [line for line in text.splitlines() if line.strip()]
    header = re.split(r"[|\s]+", lines[0].strip())
    split = re.compile(r"\s*\|\s*" if "|" in lines[0] else r"\s+")
    names, gres = 0, 1
    if "NODELIST" in header:
        if "GRES" not in header:
            raise InputError(f"a column GRES, as in: {SINFO}", file=file, value=" ".join(header))
        names, gres, lines = header.index("NODELIST"), header.index("GRES"), lines[1:]
    rows = []
    for line in lines:
        cells = split.split(line.strip())
        if len(cells) <= max(names, gres):
            raise InputError(f"a node and its gres, as in: {SINFO}", file=file, value=line)
        try:
            rows += [(name, cells[gres], "", "", None, None) for name in expand(cells[names])]
        except ValueError:
            raise InputError("a list of node names", file=file, value=cells[names]) from None
    return _of_gres("sinfo", list(dict.fromkeys(rows)))


def _listed(names: object) -> str:
    """Return a list with commas, as which older versions of Slurm write it, too."""
    return ",".join(map(str, names)) if isinstance(names, list) else str(names or "")


_Size = tuple[int | None, float | None]
_Row = tuple[str, str, str, str, int | None, float | None]  # name, gres, partitions, features, CPUs, memory in GiB


def _of_gres(source: Source, rows: Sequence[_Row]) -> Inventory:
    nodes: list[InventoryNode] = []
    notes: list[str] = []
    with_gpus = 0
    features: list[str] = []
    for name, gres, partitions, own, cpus, memory_gib in rows:
        kinds: dict[str, int] = {}
        for kind, count in _GRES.findall(gres):
            kinds[kind] = kinds.get(kind, 0) + int(count)
        if not any(kinds.values()):
            continue
        parts = _parts(name, [(_own_name(kind), count, kind, None) for kind, count in kinds.items() if count], notes)
        alone: dict[str, Any] = {"cpus": cpus, "memory_gib": memory_gib} if len(parts) == 1 else {}
        there = tuple(filter(None, partitions.split(",")))
        nodes += [replace(node, partitions=there, **alone) for node in parts]
        features += [own.replace("(null)", "")] * len(parts)
        with_gpus += 1
    kept, more = features_of_kinds([replace(node, name="", host=None) for node in nodes], features)
    nodes = [replace(node, features=names) for node, names in zip(nodes, kept, strict=True)]
    return Inventory(source, tuple(nodes), len(rows) - with_gpus, (*notes, *more))


Part = tuple[str, int, str, float | None]  # GPU type, GPUs, as it is spelt, power limit


def _parts(name: str, parts: Sequence[Part], notes: list[str]) -> list[InventoryNode]:
    """Return a node, or one for each of its types; *notes* then gets one more."""
    if len(parts) == 1:
        return [InventoryNode(name, *parts[0])]
    shown = ", ".join(product or "unnamed" for _, _, product, _ in parts)
    notes.append(f"{name} has several GPU types ({shown}): it stays on, as it cannot sleep by halves")
    return [InventoryNode(f"{name}:{part[0] or UNNAMED}", *part, host=name) for part in parts]


def _json(text: str, file: object) -> Inventory:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError("valid JSON", file=file, value=error.msg) from None
    if not isinstance(document, dict):
        raise InputError("the JSON of kubectl get nodes or scontrol show node", file=file, value="a list")
    if "nodes" in document:
        if not isinstance(document["nodes"], list) or not all(isinstance(node, dict) for node in document["nodes"]):
            raise InputError("a list of nodes, as scontrol show node --json prints", file=file, field="nodes")
        rows = [
            (
                str(node.get("name")),
                str(node.get("gres") or ""),
                _listed(node.get("partitions")),
                _listed(node.get("active_features")),
                *_size(node, ("effective_cpus", "cpus"), "real_memory"),
            )
            for node in document["nodes"]
        ]
        return _of_gres("scontrol", rows)
    items = document.get("items", [document] if document.get("kind") == "Node" else None)
    if not isinstance(items, list):
        raise InputError("a list of nodes, as kubectl get nodes -o json prints", file=file, field="items")
    notes: list[str] = []
    nodes = [_of_kubernetes(item, file, notes) if isinstance(item, dict) else [] for item in items]
    return Inventory("kubernetes", tuple(n for own in nodes for n in own), sum(not own for own in nodes), tuple(notes))


def _of_kubernetes(item: Mapping[str, Any], file: object, notes: list[str]) -> list[InventoryNode]:
    try:
        name, labels = str(item["metadata"]["name"]), item["metadata"].get("labels") or {}
        capacity = item["status"].get("capacity") or {}
        gpus = next((int(capacity[key]) for key in _RESOURCES if int(capacity.get(key, 0))), 0)
        slices = {key.removeprefix(_MIG): int(many) for key, many in capacity.items() if key.startswith(_MIG)}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError("a node with metadata.name and status.capacity", file=file, value=repr(error)) from None
    product = next((str(labels[key]) for key in _PRODUCTS if labels.get(key)), "")
    whole = [(_short(product), gpus, product, None)] if gpus else []
    cut = [(_short(f"{product}-{kind}"), many, f"{product}-{kind}", None) for kind, many in slices.items() if many]
    return _parts(name, [*whole, *cut], notes) if whole or cut else []


def _nvidia_smi(text: str, file: object, host: str) -> Inventory:
    boards = _boards(text, file)
    if not boards:
        return Inventory("nvidia-smi", (), 1)
    types = [product for product, _ in boards]
    limits = {kind: [limit for product, limit in boards if product == kind and limit is not None] for kind in types}
    notes: list[str] = []
    parts = [(_short(kind), types.count(kind), kind, max(own) if own else None) for kind, own in limits.items()]
    return Inventory("nvidia-smi", tuple(_parts(host, parts, notes)), 0, tuple(notes))


def _boards(text: str, file: object) -> list[tuple[str, float | None]]:
    """Name and power limit of every GPU."""
    if listed := _LISTED.findall(text):
        return [(name, None) for name in listed]
    if "NVIDIA-SMI" in text:
        limits = [_watts(limit) for limit in _BOARD_POWER.findall(text)]
        names = _BOARD.findall(text)
        return list(zip(names, limits if len(limits) == len(names) else [None] * len(names), strict=True))
    rows = list(csv.reader(io.StringIO(text), skipinitialspace=True))
    header = [cell.partition(" [")[0].strip() for cell in rows[0]]
    at = next((header.index(key) for key in ("power.limit", "power.default_limit") if key in header), None)
    if any(len(row) != len(header) for row in rows[1:] if row):
        raise InputError("as many cells in each row as in the header", file=file)
    return [
        (row[header.index("name")].strip(), None if at is None else _watts(row[at].removesuffix("W").strip()))
        for row in rows[1:]
        if row
    ]


def _watts(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _own_name(kind: str) -> str:
    """Return a type as Slurm spells it, which Slurm goes on asking for, but in the usual capitals."""
    usual = type_of(kind)
    return usual if usual is not None and usual.casefold() == kind.casefold() else kind


def _short(product: str) -> str:
    """Return the type that the name of a product says: ``Tesla-V100-SXM2-16GB`` is V100."""
    part = mig_slice(product)
    if part is not None and part.whole:
        return f"{_short(part.whole)}-{part.profile}"
    return type_of(product) or re.sub(r"^(?:nvidia|amd)[ _-]+", "", product, flags=re.IGNORECASE).replace(" ", "-")


@dataclass(frozen=True)
class BoardPower:
    """A row of the table."""

    gpu_type: str
    form: str  # SXM2, PCIE, ...; empty where there is one
    board_w: float
    source: str


@cache
def _rows() -> tuple[BoardPower, ...]:
    table = read_table(Path(__file__).with_name("gpu_power.csv"))
    cells = zip(table.text("gpu_type"), table.text("form"), table.numbers("board_w"), table.text("source"), strict=True)
    return tuple(BoardPower(gpu_type, form, float(board_w), source) for gpu_type, form, board_w, source in cells)


def type_of(product: str) -> str | None:
    """Return the GPU type of the table that *product* means, in any spelling, or ``None``."""
    return type_in(product, _types())


@cache
def _types() -> dict[str, str]:
    return {row.gpu_type.upper(): row.gpu_type for row in _rows()}


@lru_cache(1024)
def board_power(product: str) -> BoardPower | None:
    """Return the row for *product*: that of its form if the name says one, else the type's first; ``None``: unknown.

    A MIG slice has its share of the GPU's compute slices.
    """
    part = mig_slice(product)
    if part is not None:
        whole = board_power(part.whole)
        share = f"{part.slices}/{MIG_SLICES} of {whole.board_w:g} W, {whole.source}" if whole else ""
        return whole and BoardPower(product, whole.form, whole.board_w * part.slices / MIG_SLICES, share)
    own = [row for row in _rows() if row.gpu_type == type_of(product)]
    said = product.upper().replace("PCI-E", "PCIE")
    fits = (row for row in own if row.form and all(part[:3] in said for part in row.form.split("-")))
    return next(fits, own[0] if own else None)
