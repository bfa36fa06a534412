"""Parses what Slurm's commands print of jobs and nodes: JSON of any version, plain output, lists of node names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

__all__ = [
    "JOB_FIELDS",
    "NODE_FIELDS",
    "NodeDraw",
    "SlurmJob",
    "SlurmNode",
    "host_names",
    "jobs_of_json",
    "jobs_of_text",
    "node_draws",
    "nodes_of_json",
    "nodes_of_text",
]

_WORD = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+")
_PIECE = re.compile(r"\[([^\]]*)\]|([^\[\]]+)")


@lru_cache(maxsize=16_384)
def host_names(text: str) -> tuple[str, ...]:
    """Return the names of a list such as ``n-[001-003,7],big``; raises ``ValueError`` if *text* is no such list."""
    if "[" not in text:
        return tuple(name for name in text.split(",") if name)
    names: list[str] = []
    for word in _WORD.findall(text):
        pieces = [[plain] if plain else _numbers(ranges) for ranges, plain in _PIECE.findall(word)]
        names += filter(None, map("".join, product(*pieces)))
    return tuple(names)


_MOST_NAMES = 100_000  # of a range


def _numbers(ranges: str) -> list[str]:
    """Return the numbers of ``1-3,07``, each as wide as the first of its range is written."""
    numbers: list[str] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if int(last or first) - int(first) >= _MOST_NAMES:
            raise ValueError(ranges)
        numbers += (f"{number:0{len(first)}d}" for number in range(int(first), int(last or first) + 1))
    return numbers


JOB_FIELDS = "%A|%u|%T|%C|%r|%k"
"""``squeue --format``: id, user, state, CPUs, reason, comment; an unpredictable mark goes before it.

The comment is last: it may contain anything, even what looks like a further line.
"""

NODE_FIELDS = "NodeList:|,StateComplete:|,Gres:|,GresUsed:|,CPUsState:|,Features:|,NodeAddr:|"
"""``sinfo --Format``: name, state and flags, GPUs, GPUs in use, CPUs allocated/idle/other/total, features, address."""

_OVER = frozenset({
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
})  # fmt: skip
_HOLDS = frozenset({"CONFIGURING", "RESIZING", "RUNNING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"})
_OUT = frozenset({
    "blocked", "down", "drain", "drained", "draining", "error", "fail", "failing", "future", "inval", "invalid",
    "invalid_reg", "maint", "maintenance", "power_drain", "reboot", "reboot_issued", "reboot_requested", "reserved",
})  # fmt: skip
_DOWN = frozenset({"down", "error", "future", "inval", "invalid", "invalid_reg", "reboot_issued"})
_SILENT = frozenset({"not_responding", "no_respond", "unknown"})
_GPUS = re.compile(r"(?:^|,)gpu(?::([^:,()]+))?:(\d+)(?=$|[,(])")


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job as Slurm sees it now."""

    id: int
    user: str
    state: str
    cpus: int
    reason: str
    comment: str

    @property
    def over(self) -> bool:
        """Whether it will not run again and has released everything."""
        return self.state in _OVER

    @property
    def allocated(self) -> bool:
        """Whether it has its GPUs now."""
        return self.state in _HOLDS

    @property
    def completing(self) -> bool:
        """Whether it has ended and Slurm is taking it off its nodes, which may take as long as an epilog."""
        return self.state == "COMPLETING"


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node as Slurm sees it now."""

    name: str
    states: frozenset[str]  # its state and all its flags, in lower case
    gpus: Mapping[str, int]  # by type; "" where Slurm has no types
    used_gpus: Mapping[str, int]
    cpus: int
    used_cpus: int
    features: tuple[str, ...] = ()
    address: str = ""  # as Slurm reaches it; "" where that is unknown

    @property
    def out(self) -> bool:
        """Whether its administrator or Slurm keeps jobs away from it."""
        return bool(self.states & _OUT)

    @property
    def down(self) -> bool:
        """Whether Slurm says that it is down, or not fit for use."""
        return bool(self.states & _DOWN)

    @property
    def silent(self) -> bool:
        """Whether it is on but does not respond, for now: its jobs keep running, and no job is started there."""
        return bool(self.states & _SILENT) and not (self.asleep or self.waking)

    @property
    def asleep(self) -> bool:
        """Whether it is powered down, or powering down."""
        if self.used_cpus and not self.states & {"powering_down", "powered_down"}:
            return False  # it goes down once its jobs have ended
        return bool(self.states & {"power_down", "powering_down", "powered_down"})

    @property
    def powered_down(self) -> bool:
        """Whether it is powered down: only such a node can be woken."""
        return "powered_down" in self.states and not self.states & {"powering_down", "powering_up", "power_up"}

    @property
    def waking(self) -> bool:
        """Whether it is powering up."""
        return bool(self.states & {"powering_up", "power_up"})

    @property
    def completing(self) -> bool:
        """Whether a job that has ended is still on it: its GPUs are neither free nor counted as used."""
        return "completing" in self.states

    @property
    def used(self) -> bool:
        """Whether any job is on it."""
        return bool(self.used_cpus) or any(self.used_gpus.values()) or self.completing

    @property
    def ready(self) -> bool:
        """Whether it would run a job now."""
        return not (self.out or self.silent or self.asleep or self.waking)

    def type_for(self, gpu_type: str) -> str:
        """Slurm's name for its GPUs of the declared *gpu_type*; "" where none is needed."""
        types = [kind for kind in self.gpus if kind]
        alike = [kind for kind in types if kind.casefold() == gpu_type.casefold()]
        return alike[0] if alike else types[0] if len(self.gpus) == 1 and types else ""

    def count(self, gpus: Mapping[str, int], gpu_type: str) -> int:
        """Count those *gpus* that are of a type; all where Slurm has no types."""
        kind = self.type_for(gpu_type)
        return gpus.get(kind, 0) if kind else sum(gpus.values())


def jobs_of_json(text: str) -> list[SlurmJob]:
    """Read ``squeue --json``; raises ``ValueError`` if it is invalid, or reports an error."""
    return [_job(raw) for raw in _rows(text, "jobs")]


def jobs_of_text(text: str, mark: str) -> list[SlurmJob]:
    """Read ``squeue --format=MARK|JOB_FIELDS``; lines without the mark are parts of comments.

    Raises ``ValueError`` unless a marked header comes first and the last line is whole: an empty list has a header.
    """
    lines = text.splitlines() if text.endswith("\n") else []
    rows = [line.split("|", 6)[1:] for line in lines if line.startswith(f"{mark}|")]
    header = rows[0] if rows and lines[0].startswith(f"{mark}|") else []
    if len(header) != 6 or header[0].isdigit():
        msg = f"no list of jobs: {text.strip()[:80]!r}"
        raise ValueError(msg)
    if wrong := next((row for row in rows[1:] if len(row) != 6 or not row[0].isdigit()), None):
        msg = f"a line that is no job: {'|'.join(wrong)[:80]!r}"
        raise ValueError(msg)
    return [
        SlurmJob(int(row[0]), row[1], row[2], _count(row[3]), row[4], "" if row[5] == "(null)" else row[5])
        for row in rows[1:]
    ]


def nodes_of_json(text: str) -> list[SlurmNode]:
    """Read ``sinfo --json`` or ``scontrol show nodes --json``; raises ``ValueError`` as ``jobs_of_json`` does."""
    return [_node(raw) for raw in _rows(text, "nodes")]


def nodes_of_text(text: str) -> list[SlurmNode]:
    """Read ``sinfo --Node --Format=NODE_FIELDS``; a node in several partitions is returned once.

    Raises ``ValueError`` unless a header comes first and each line has all fields.
    """
    rows = [[field.strip() for field in line.split("|")] for line in text.splitlines() if line.strip()]
    if not rows or rows[0][0] != "NODELIST" or not text.endswith("\n"):
        msg = f"no list of nodes: {text.strip()[:80]!r}"
        raise ValueError(msg)
    nodes = {}
    for fields in rows:
        if len(fields) < 6:
            msg = f"a line that is no node: {'|'.join(fields)[:80]!r}"
            raise ValueError(msg)
        if fields is rows[0]:
            continue
        name, state, gres, used, cpus, features = fields[:6]
        address = fields[6] if len(fields) > 6 else ""
        counts = [_count(part) for part in cpus.split("/")]
        allocated, total = (counts[0], counts[3]) if len(counts) == 4 else (0, 0)
        nodes[name] = SlurmNode(
            name,
            _states(state.split("+")),
            _gpus(gres),
            _gpus(used),
            total,
            allocated,
            _words(features),
            address,
        )
    return list(nodes.values())


class NodeDraw(NamedTuple):
    """What Slurm says of a node's power: measured, W (``None``: it is not), GPUs of jobs, and whether it is off."""

    watts: float | None
    gpus: int
    off: bool


_FIELD = re.compile(r"(\w+)=(\S*)")
_FREE_TEXT = re.compile(r"\b(?:Reason|Comment|Extra)=.*")
_MOST_W = 1_000_000
"""More than any node draws: Slurm writes a large number where it does not know."""


def node_draws(text: str) -> dict[str, NodeDraw]:
    """Read ``scontrol --details --oneliner show node``; raises ``ValueError`` if it lists no node."""
    found = {}
    for line in text.splitlines():
        fields = dict(_FIELD.findall(_FREE_TEXT.sub("", line)))
        if "NodeName" in fields:
            watts, states = fields.get("CurrentWatts", ""), _states(fields.get("State", "").split("+"))
            known = watts.isdecimal() and len(watts) < 9 and 0 < int(watts) < _MOST_W
            held = sum(_gpus(fields.get("GresUsed", "")).values())
            found[fields["NodeName"]] = NodeDraw(int(watts) if known else None, held, "powered_down" in states)
    if not found:
        msg = f"no list of nodes: {text.strip()[:80]!r}"
        raise ValueError(msg)
    return found


def _rows(text: str, key: str) -> list[dict[str, Any]]:
    document = json.loads(text)
    rows = document.get(key) if isinstance(document, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        msg = f"no list of {key}"
        raise ValueError(msg)
    if document.get("errors"):  # with an exit status of 0 and an empty list if there is no controller
        msg = str(document["errors"][0].get("description") or document["errors"][0].get("error"))
        raise ValueError(msg)
    return rows


def _job(raw: dict[str, Any]) -> SlurmJob:
    words = raw.get("job_state", "")
    states = [words] if isinstance(words, str) else list(words)
    state = "COMPLETING" if "COMPLETING" in states else str(states[0]) if states else ""
    user = str(raw.get("user_name", ""))
    return SlurmJob(
        int(raw["job_id"]), user, state, _number(raw.get("cpus")), str(raw.get("state_reason", "")), _comment(raw)
    )


def _comment(raw: dict[str, Any]) -> str:
    value = raw.get("comment", "")
    return str(value.get("job", "")) if isinstance(value, dict) else str(value or "")


def _node(raw: dict[str, Any]) -> SlurmNode:
    state = raw.get("state", "")
    words = [*([state] if isinstance(state, str) else state), *raw.get("state_flags", ())]
    features = raw.get("features") or ()
    return SlurmNode(
        str(raw["name"]),
        _states(words),
        _gpus(str(raw.get("gres", ""))),
        _gpus(str(raw.get("gres_used", ""))),
        _number(raw.get("cpus")),
        _number(raw.get("alloc_cpus")),
        _words(features) if isinstance(features, str) else tuple(str(feature) for feature in features),
        str(raw.get("address") or ""),
    )


def _number(value: Any) -> int:  # noqa: ANN401
    """Newer versions write ``{"set": true, "number": 4}`` for 4."""
    value = value.get("number") if isinstance(value, dict) else value
    return int(value) if isinstance(value, int | float) else 0


def _count(value: str) -> int:
    return int(value) if value.isdigit() else 0


def _states(words: Iterable[str]) -> frozenset[str]:
    return frozenset(word.lower().strip("*~#!%$@^-") for word in words if word)


def _words(value: str) -> tuple[str, ...]:
    return tuple(word for word in value.split(",") if word and word != "(null)")


def _gpus(gres: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for kind, count in _GPUS.findall(gres):
        counts[kind] = counts.get(kind, 0) + int(count)
    return counts
