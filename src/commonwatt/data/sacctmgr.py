"""Qualities of service and associations, as ``sacctmgr --parsable2`` prints them, and Slurm's own configuration.

What is not modelled is said in notes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from commonwatt.data.files import load_yaml
from commonwatt.data.profiles import standard_name
from commonwatt.data.readers.slurm import duration_s
from commonwatt.data.table import TextTable, read_table
from commonwatt.data.text import read_text
from commonwatt.model.accounting import Association, Qos, check_qos, check_tree
from commonwatt.model.errors import FieldError, InputError
from commonwatt.model.scenario import Scenario

__all__ = [
    "ASK_ASSOCIATIONS", "ASK_CONFIG", "ASK_QOS", "AssociationTable", "QosTable", "read_associations", "read_config",
    "read_qos", "spelt",
]  # fmt: skip

ASK_QOS = "sacctmgr --parsable2 show qos > qos.txt"
ASK_CONFIG = "scontrol show config > config.txt"
ASK_ASSOCIATIONS = "sacctmgr --parsable2 show associations tree > associations.txt"
"""The commands that print what is read."""

_Columns = Mapping[str, tuple[str, ...]]
_JOBS: _Columns = {
    "max_jobs": ("GrpJobs",), "max_jobs_per_account": ("MaxJobsPA", "MaxJobsPerAccount"),
    "max_jobs_per_user": ("MaxJobsPU", "MaxJobsPerUser"),
}  # fmt: skip
_GPUS: _Columns = {
    "max_gpus": ("GrpTRES",), "max_gpus_per_account": ("MaxTRESPA", "MaxTRESPerAccount"),
    "max_gpus_per_user": ("MaxTRESPU", "MaxTRESPerUser"), "max_gpus_per_job": ("MaxTRES", "MaxTRESPJ", "MaxTRESPerJob"),
}  # fmt: skip
_ASSOCIATION_JOBS: _Columns = {"max_jobs": ("GrpJobs",), "max_jobs_per_user": ("MaxJobs",)}
_ASSOCIATION_GPUS: _Columns = {name: _GPUS[name] for name in ("max_gpus", "max_gpus_per_job")}
_SHARES = ("Share", "Fairshare", "RawShares")
_PASSED_OVER = ("GrpTRESMins", "GrpTRESRunMins", "MaxTRESMins", "MaxTRESRunMinsPU", "MaxTRESRunMinsPA", "GrpWall")
_COUNT = "a whole number, 0 or more"
_WITHOUT_GPUS = ("suspend", "gang", "within")
"""Modes of preemption that give no job GPUs of another: Slurm's suspended jobs keep theirs."""
_PARENT = ("parent", "2147483647")  # as newer and older versions write it


@dataclass(frozen=True)
class QosTable:
    """Qualities of service, and what of them is not modelled."""

    qos: tuple[Qos, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class AssociationTable:
    """Associations, and what of them is not modelled."""

    associations: tuple[Association, ...]
    notes: tuple[str, ...] = ()


def read_config(path: Path) -> dict[str, str]:
    """Return the settings that ``scontrol show config`` printed, by name; raises ``InputError`` for another file."""
    lines = (line.partition("=") for line in read_text(path).splitlines())
    settings = {name.strip(): value.strip() for name, mark, value in lines if mark}
    basic = settings.get("PriorityType", "").endswith("basic")  # then it has no weights
    for name in ("PriorityType", "SchedulerParameters", *(() if basic else ("PriorityWeightAge",))):
        if name not in settings:
            raise InputError(f"this setting; run: {ASK_CONFIG}", file=path, field=name, value="none")
    return {name: "" if value == "(null)" else value for name, value in settings.items()}


def read_qos(path: Path, *, mode: str = "cluster", exempt_s: float = 0.0) -> QosTable:
    """Read what ``sacctmgr`` printed, or the ``qos`` of a scenario (.yaml).

    Jobs of a QOS that does not say so itself are preempted by the *mode* of the cluster, and not before they have run
    *exempt_s*. Raises ``InputError`` for a file that is neither.
    """
    if _is_scenario(path):
        return QosTable(_declared(path, load_yaml(path, Scenario).qos, "qos"))
    table, _ = _table(path, ASK_QOS, ("Name", "Priority"))
    names = table.text("Name")
    for row, name in enumerate(names):
        if not name or name in names[:row]:
            raise table.error(row, "Name", "a name that no row above has")
    modes = [_mode(table, row, mode) for row in range(len(table))]
    qos = tuple(_qos(table, row, modes[row], exempt_s) for row in range(len(table)))
    _checked(check_qos, qos, path, "Preempt")
    return QosTable(qos, tuple(_notes(table, qos, modes)))


def read_associations(path: Path) -> AssociationTable:
    """Read what ``sacctmgr`` printed of the associations of one cluster, or the ``associations`` of a scenario (.yaml).

    Which account is in which is said by ``ParentName``, else by how far ``tree`` indents them.

    Raises ``InputError`` for a file that is neither.
    """
    if _is_scenario(path):
        return AssociationTable(_declared(path, load_yaml(path, Scenario).associations, "associations"))
    table, raw = _table(path, ASK_ASSOCIATIONS, ("Account", "User"))
    limit_columns = {
        name for columns in (*_ASSOCIATION_JOBS.values(), *_ASSOCIATION_GPUS.values(), _SHARES) for name in columns
    }
    if not limit_columns & table.columns.keys():
        raise InputError(f"columns of limits or shares; run: {ASK_ASSOCIATIONS}", file=path, field="GrpTRES")
    if "Cluster" in table:
        for row, name in enumerate(clusters := table.text("Cluster")):
            if name != clusters[0]:
                raise table.error(row, "Cluster", f"one cluster, {clusters[0]}: add cluster=NAME to the command")
    parents, notes = _parents(table, raw)
    seen: set[tuple[str, ...]] = set()
    rows = []
    for row, parent in enumerate(parents):
        one = _association(table, row, parent)
        if one.name in seen:
            raise table.error(row, "User" if one.user else "Account", "an association that no row above is of")
        seen.add(one.name)
        rows.append(one)
    _checked(check_tree, rows, path, "ParentName")
    over = _over_time(table, lambda row: ", ".join(filter(None, rows[row].name)))
    return AssociationTable(tuple(rows), (*notes, *([f"limits of GPU time are not kept, of {over}"] if over else [])))


_Limits = TypeVar("_Limits", Qos, Association)


def spelt(rows: Sequence[_Limits], gpu_types: Iterable[str]) -> tuple[tuple[_Limits, ...], tuple[str, ...]]:
    """Return *rows* with GPU types as the nodes spell them, and the types that no node has, whose limits are left out.

    Slurm's ``a100`` is whatever type of the nodes has this name, or the same usual name.
    """
    own = {name.casefold(): name for name in gpu_types}
    usual = {usual: name for name in own.values() if (usual := standard_name(name)) is not None}
    unknown: dict[str, None] = {}

    def of(counts: Mapping[str, int]) -> dict[str, int]:
        named: dict[str, int] = {}
        for name, count in counts.items():
            there = own.get(name.casefold()) or usual.get(standard_name(name) or name)
            if there is None or there in named:
                unknown[name] = None
            else:
                named[there] = count
        return named

    changed = []
    for one in rows:
        fields = {name: of(counts) for name in type(one).model_fields if name.endswith("_of")
                  if (counts := getattr(one, name))}  # fmt: skip
        changed.append(one.model_copy(update=fields) if fields else one)
    return tuple(changed), tuple(unknown)


# -- reading


def _is_scenario(path: Path) -> bool:
    return path.suffix.lower() in (".yaml", ".yml")


def _declared(path: Path, rows: tuple[_Limits, ...], field: str) -> tuple[_Limits, ...]:
    if not rows:
        raise InputError("at least one", file=path, field=field, value="none")
    return rows


def _table(path: Path, ask: str, needed: Sequence[str]) -> tuple[TextTable, list[str]]:
    """Return the table, and the lines of the file."""
    text = read_text(path)
    if "|" not in text.split("\n", 1)[0]:
        raise InputError(f"columns with bars between them; run: {ask}", file=path, value=text.split("\n", 1)[0])
    table = read_table(path, text=text)
    for name in needed:
        if name not in table:
            raise InputError(f"this column; run: {ask}", file=path, field=name)
    return table, text.splitlines()


_Rows = TypeVar("_Rows")


def _checked(check: Callable[[_Rows], object], rows: _Rows, path: Path, field: str) -> None:
    try:
        check(rows)
    except FieldError as error:
        raise InputError(error.expected, file=path, field=field, value=error.value) from None


def _qos(table: TextTable, row: int, mode: str, exempt_s: float) -> Qos:
    names = table.text("Name")
    priority = _whole(table, row, "Priority", table.text("Priority")[row] or "0")
    preempts = tuple(other for other in _cell(table, row, ("Preempt",))[1].split(",") if other in names)
    return Qos(
        name=names[row], priority=priority, preempts=preempts,
        exempt_s=_seconds(table, row, "PreemptExemptTime", exempt_s),
        preempt_mode="cancel" if mode == "cancel" else "off" if mode in _WITHOUT_GPUS else "requeue",
        grace_s=_seconds(table, row, "GraceTime", 0.0), **_limits(table, row, _JOBS, _GPUS),
    )  # fmt: skip


def _mode(table: TextTable, row: int, usual: str) -> str:
    """Return how jobs of a QOS are preempted; as is *usual* if that is not said."""
    column, cell = _cell(table, row, ("PreemptMode",))
    mode = cell.casefold().partition(",")[0] or "cluster"
    if mode in ("off", "cluster"):  # the manual says: off is unset
        return usual
    if mode not in ("requeue", "cancel", "checkpoint", *_WITHOUT_GPUS):
        raise table.error(row, column, "cluster, requeue, cancel, suspend or gang")
    return mode


def _seconds(table: TextTable, row: int, column: str, usual_s: float) -> float:
    _, cell = _cell(table, row, (column,))
    if not cell or cell in ("-1", "NONE", "INVALID"):
        return usual_s
    try:
        return duration_s(cell)
    except ValueError:
        raise table.error(row, column, "a time, such as 00:05:00") from None


def _association(table: TextTable, row: int, parent: str) -> Association:
    account, user = table.text("Account")[row], table.text("User")[row]
    if not account:
        raise table.error(row, "Account", "the name of an account")
    column, share = _cell(table, row, _SHARES)
    shares = None if share.casefold() in _PARENT else _whole(table, row, column, share or "1")
    partition = _cell(table, row, ("Partition",))[1] if user else ""
    return Association(
        account=account, user=user, partition=partition, parent=parent, shares=shares,
        **_limits(table, row, _ASSOCIATION_JOBS, _ASSOCIATION_GPUS),
    )  # fmt: skip


def _parents(table: TextTable, raw: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the account that the account of each row is in, "" for none and of users; and what is not known of it."""
    accounts, users = table.text("Account"), table.text("User")
    there = {account for account, user in zip(accounts, users, strict=True) if not user}
    if "ParentName" in table:
        parent_names = [name if not user else "" for name, user in zip(table.text("ParentName"), users, strict=True)]
        lacking = sorted({name for name in parent_names if name and name not in there})
        note = f"not listed, so without limits here, are the accounts above: {', '.join(lacking)}"
        return [name if name in there else "" for name in parent_names], [note] if lacking else []
    header = [name.strip() for name in raw[0].split("|")]
    cells = [raw[line - 1].split("|")[header.index("Account")] for line in table.lines]
    depths = [len(cell) - len(cell.lstrip(" ")) for cell in cells]
    if not any(depths):
        several = len(there - {"root"}) > 1
        note = "which account is in which is not said, so limits of an account hold for its own jobs only: add tree"
        top = "root" if "root" in there else ""
        return ["" if user or name == top else top for name, user in zip(accounts, users, strict=True)], (
            [note] if several else []
        )
    parents, above = [], dict[int, str]()
    for depth, account, user in zip(depths, accounts, users, strict=True):
        parents.append("" if user else above.get(depth - 1, ""))
        if not user:
            above = {**{d: name for d, name in above.items() if d < depth}, depth: account}
    return parents, []


def _limits(table: TextTable, row: int, jobs: _Columns, gpus: _Columns) -> dict[str, Any]:
    """Return the fields of the limits that a row has."""
    limits: dict[str, Any] = {}
    for field, columns in jobs.items():
        column, cell = _cell(table, row, columns)
        limits[field] = _whole(table, row, column, cell) if cell else None
    for field, columns in gpus.items():
        counts = _gpus(table, row, columns)
        limits[field] = counts.pop("", None)
        limits[f"{field}_of"] = counts
    return limits


def _cell(table: TextTable, row: int, columns: tuple[str, ...]) -> tuple[str, str]:
    """Return the column of a limit that there is, and its cell."""
    column = next((name for name in columns if name in table), columns[0])
    return column, table.text(column)[row] if column in table else ""


def _gpus(table: TextTable, row: int, columns: tuple[str, ...]) -> dict[str, int]:
    """Return numbers of GPUs by type, of any type under ""."""
    column, cell = _cell(table, row, columns)
    counts: dict[str, int] = {}
    for part in cell.split(","):
        resource, _, count = part.partition("=")
        kind = resource.removeprefix("gres/")
        if kind == "gpu" or kind.startswith("gpu:"):
            counts[kind.removeprefix("gpu").removeprefix(":")] = _whole(table, row, column, count)
    return counts


def _whole(table: TextTable, row: int, column: str, text: str) -> int:
    if not text.isdecimal():
        raise table.error(row, column, _COUNT)
    return int(text)


# -- what is not modelled


def _over_time(table: TextTable, name: Callable[[int], str]) -> str:
    """Return what has limits of GPU time, and which."""
    passed = []
    for row in range(len(table)):
        columns = [column for column in _PASSED_OVER if column in table and "gpu" in table.text(column)[row]]
        passed += [f"{name(row)} ({', '.join(columns)})"] if columns else []
    return ", ".join(passed)


def _notes(table: TextTable, qos: Sequence[Qos], modes: Sequence[str]) -> Iterator[str]:
    """Say what is not modelled, by QOS, and what is taken for granted."""
    if over := _over_time(table, lambda row: qos[row].name):
        yield f"limits of GPU time are not kept, of QOS {over}"
    by_mode: dict[str, list[str]] = {}
    for one, mode in zip(qos, modes, strict=True):
        if any(one.name in other.preempts for other in qos):
            by_mode.setdefault(mode, []).append(one.name)
    for mode, names in by_mode.items():
        whose = f"jobs of QOS {', '.join(names)}"
        if mode == "cluster":
            yield f"{whose} are requeued when they are preempted: see PreemptMode of the cluster"
        elif mode in ("cancel", "checkpoint"):
            yield f"{whose} wait again when they are preempted, though the cluster would {mode} them"
        elif mode in _WITHOUT_GPUS:
            yield f"{whose} are not preempted: with PreemptMode {mode} they would keep their GPUs"
