"""Slurm accounting: ``sacct --json``, ``sacct --parsable2`` with its header, or its table for people.

For the latter two use ``--format=JobID,Account,User,Submit,Start,Elapsed,Timelimit,State,AllocTRES,ReqTRES``, and
``NodeList`` to know where jobs ran, ``Partition`` to know where they may, ``QOS`` for what limits them, ``Eligible`` to
know when they might start, ``ConsumedEnergyRaw`` for their energy. The account is the tenant, else the user is. Job
steps are skipped. A job counts as submitted when it is eligible: nobody waits for a scheduler while a dependency, a
hold or a begin time keeps a job back. A requeued job counts once: its first submission and its last run. A run that is
there twice, as in dumps that overlap, counts once, as it was seen last. A job still running counts with the time it has
run so far. Times are local, or seconds since 1970 (``SLURM_TIME_FORMAT=%s``). Those without a zone are read as UTC
(``sacct`` prints local time: a change to summer time shifts the rest of the log by an hour).

What both forms of Slurm accounting say about a job.

``sacct --json`` of Slurm 21 to 24: the same facts in slowly changing shapes.

``sacct --parsable2``, a header and rows separated by bars; or its table for people, if nothing in it is cut off.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from commonwatt.data.log import JobLog, utc
from commonwatt.data.table import MOMENT, MOST_GPUS, TextTable, moment_s, read_table
from commonwatt.data.text import read_text
from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError

__all__ = [
    "ASK",
    "ASK_NAMES",
    "SacctJob",
    "accounted",
    "duration_s",
    "gpus_of",
    "is_for_people",
    "read",
    "read_json",
    "read_rows",
]


@dataclass(frozen=True)
class SacctJob:
    """One run of one job."""

    name: str
    tenant: str
    submit_s: float  # since 1970
    start_s: float  # since 1970; NaN: never started
    elapsed_s: float
    limit_s: float  # infinity: unlimited; NaN: not said
    gpus: int
    gpu_type: str  # "": not said, or several
    running: bool
    nodes: str = ""  # a list of hosts; "": not said
    series: str = ""  # its owner and what they called it
    energy_j: float = math.nan  # NaN: not measured
    partition: str = ""  # several have commas between them; "": not said
    eligible_s: float = math.nan  # since 1970; NaN: not said
    user: str = ""
    qos: str = ""
    cpus: float = 0.0  # of all its nodes; 0: not said
    memory_gib: float = 0.0


def gpus_of(resources: Iterable[tuple[str, int]]) -> tuple[int, str]:
    """GPU count and type from trackable resources, such as ``("gres/gpu:v100", 4)``.

    Slurm counts typed GPUs twice, once with their type and once without: the plain entry is the total. Raises
    ``ValueError`` on a count that cannot be one.
    """
    total, typed = 0, {}
    for name, count in resources:
        if not 0 <= count <= MOST_GPUS:
            raise ValueError(f"{name}={count}")
        match = re.fullmatch(r"(?:gres/)?gpu(?::(.+))?", name)
        if match and match[1]:
            typed[match[1]] = count
        elif match:
            total = count
    used = [gpu_type for gpu_type, count in typed.items() if count]
    return total or sum(typed.values()), used[0] if len(used) == 1 else ""


_YEAR_10000_S = 253402300800.0  # a moment computers can name lies before it


def read_json(path: Path, text: str) -> list[SacctJob]:
    """Read every job of the document."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError("valid JSON", file=f"{path}, line {error.lineno}", value=error.msg) from None
    records = document.get("jobs")
    if not isinstance(records, list):
        raise InputError("a list of jobs, as sacct --json prints", file=path, field="jobs", value=records)
    return [_job(path, i, record) for i, record in enumerate(records)]


def _job(path: Path, index: int, record: dict[str, Any]) -> SacctJob:
    where = f"jobs[{index}]"
    try:
        times, tres = record["time"], record["tres"]
        states = _states(record.get("state"))
        gpus, gpu_type = gpus_of(_resources(tres.get("allocated")))
        if not gpus:
            gpus, gpu_type = gpus_of(_resources(tres.get("requested")))
        submit_s, start_s, elapsed_s = (_number(times.get(k)) for k in ("submission", "start", "elapsed"))
        limit_s = _number(times.get("limit")) * 60  # Slurm counts limits in minutes
        name, tenant = _name(record), _tenant_of_json(record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        expected = "a job with job_id, time and tres, as sacct --json prints"
        value = f"no {error}" if isinstance(error, KeyError) else repr(error)
        raise InputError(expected, file=path, field=where, value=value) from None
    if not 0 < submit_s < _YEAR_10000_S:
        raise InputError(
            "seconds since 1970", file=path, field=f"{where}.time.submission", value=times.get("submission")
        )
    for name_, seconds in (("start", start_s), ("elapsed", elapsed_s)):
        if not (math.isnan(seconds) or 0 <= seconds < _YEAR_10000_S):
            expected = "a number of seconds, 0 or more"
            raise InputError(expected, file=path, field=f"{where}.time.{name_}", value=times.get(name_))
    return SacctJob(
        name=name,
        tenant=tenant,
        submit_s=submit_s,
        start_s=start_s if start_s > 0 else math.nan,
        elapsed_s=0.0 if math.isnan(elapsed_s) else elapsed_s,
        limit_s=limit_s if limit_s > 0 else math.nan,
        gpus=gpus,
        gpu_type=gpu_type,
        running="RUNNING" in states or "SUSPENDED" in states,
        nodes=_nodes(record.get("nodes")),
        series=f"{record.get('user') or ''}/{record.get('name') or ''}",
        energy_j=_energy_of_json(tres),
        partition=str(record.get("partition") or ""),
        eligible_s=_since_1970(_number(times.get("eligible"))),
        user=str(record.get("user") or ""),
        qos=str(record.get("qos") or ""),
        cpus=_count_of(tres, "cpu"),
        memory_gib=_count_of(tres, "mem") / 1024.0,  # Slurm counts MiB
    )


def _since_1970(seconds: float) -> float:
    """Return a moment; NaN for the numbers that stand for none."""
    return seconds if 0 < seconds < _YEAR_10000_S else math.nan


def _number(value: Any) -> float:  # noqa: ANN401
    """Read a number, or the record newer versions wrap it in; NaN if it is not set."""
    if isinstance(value, dict):
        if value.get("infinite"):
            return math.inf
        value = value.get("number") if value.get("set", True) else None
    return math.nan if value is None else float(value)


def _states(state: Any) -> list[str]:  # noqa: ANN401
    current = state.get("current") if isinstance(state, dict) else state
    return [current] if isinstance(current, str) else list(current or ())


def _resources(entries: list[dict[str, Any]] | None) -> list[tuple[str, int]]:
    gres = (e for e in entries or () if e.get("type") == "gres")
    return [(str(e.get("name")), int(_number(e.get("count")))) for e in gres]


_MOST_J = 1e15  # Slurm writes the largest integers where nothing was measured


def _energy_of_json(tres: Mapping[str, Any]) -> float:
    energies = [e for e in tres.get("allocated") or () if e.get("type") == "energy"]
    return _measured_j(_number(energies[0].get("count"))) if energies else math.nan


def _count_of(tres: Mapping[str, Any], kind: str) -> float:
    """Return how many of a resource a job was allocated, or asked for; 0 if it is not said."""
    for which in ("allocated", "requested"):
        for entry in tres.get(which) or ():
            count = _number(entry.get("count")) if entry.get("type") == kind else math.nan
            if 0 < count < _MOST_J:
                return count
    return 0.0


def _measured_j(energy_j: float) -> float:
    """Return *energy_j*, NaN where it says that nothing was measured."""
    return energy_j if 0 < energy_j < _MOST_J else math.nan


def _name(record: dict[str, Any]) -> str:
    array = record.get("array") or {}
    task = _number(array.get("task_id"))
    if array.get("job_id") and not math.isnan(task):
        return f"{array['job_id']}_{task:.0f}"
    return str(record["job_id"])


def _nodes(text: Any) -> str:  # noqa: ANN401
    return text if isinstance(text, str) and text not in ("", "None assigned", "Unknown") else ""


def _tenant_of_json(record: dict[str, Any]) -> str:
    association = record.get("association") or {}
    return str(record.get("account") or association.get("account") or record.get("user") or "unknown")


SACCT_FIELDS = (
    "JobID", "Account", "User", "Submit", "Eligible", "Start", "Elapsed", "Timelimit", "State", "AllocTRES", "ReqTRES",
    "NodeList", "Partition", "QOS", "ConsumedEnergyRaw",
)  # fmt: skip
"""Fields of ``sacct`` that are read."""
ASK = f"sacct --allusers --starttime=now-7days --parsable2 --format={','.join(SACCT_FIELDS)} > jobs.txt"
"""The command that prints what is read."""
_NEEDED = ("JobID", "Submit", "Start", "State")
_CUT = {
    "JobID",
    "Account",
    "User",
    "Submit",
    "Eligible",
    "Start",
    "Elapsed",
    "AllocTRES",
    "ReqTRES",
    "NodeList",
    "Partition",
    "QOS",
}  # useless when cut off
_UNKNOWN = {"", "Unknown", "None", "N/A"}
_DURATION = "a time such as 1-02:03:04 or 02:03:04"
_Read = Callable[[str], float]
_CLOCK = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)(?:\.\d+)?")


def read_rows(path: Path, text: str, ask: str = ASK) -> list[SacctJob]:
    """Read every job, leaving out its steps; *ask* is the command that prints what is needed."""
    table = read_table(path, text=_with_bars(path, text) if is_for_people(text) else text)
    missing = [name for name in _NEEDED if name not in table]
    if missing:
        raise InputError(f"this column; run: {ask}", file=path, field=missing[0])
    elapsed_s = _one_of(table, {"ElapsedRaw": (1.0, _plain), "Elapsed": (1.0, duration_s)})
    limit_s = _one_of(table, {"TimelimitRaw": (60.0, _limit), "Timelimit": (1.0, _limit)}, np.nan)
    submit_s = table.parse("Submit", _moment_s, MOMENT)
    start_s = table.parse("Start", _started, MOMENT)
    eligible_s = table.parse("Eligible", _started, MOMENT) if "Eligible" in table else np.full(len(table), np.nan)
    ids, states = table.text("JobID"), table.text("State")
    nodes, partition, user, qos = (
        table.text(name) if name in table else [""] * len(table) for name in ("NodeList", "Partition", "User", "QOS")
    )
    raw = "ConsumedEnergyRaw"
    energy_j = table.parse(raw, _plain, "joules, a whole number", 0.0) if raw in table else np.zeros(len(table))
    resources = [table.text(name) for name in ("AllocTRES", "ReqTRES") if name in table]
    if not resources:
        raise InputError(f"this column or ReqTRES; run: {ask}", file=path, field="AllocTRES")
    called = [table.text(name) for name in ("User", "JobName") if name in table]
    jobs = []
    for row, name in enumerate(ids):
        if "." in name:
            continue
        cells = [column[row] for column in resources]
        gpus, gpu_type = _gpus(table, row, cells)
        jobs.append(
            SacctJob(
                name=name,
                tenant=_tenant(table, row),
                submit_s=submit_s[row],
                start_s=start_s[row],
                elapsed_s=elapsed_s[row],
                limit_s=limit_s[row],
                gpus=gpus,
                gpu_type=gpu_type,
                running=states[row].startswith(("RUNNING", "SUSPENDED")),
                nodes=_nodes(nodes[row]),
                series="/".join(column[row] for column in called),
                energy_j=_measured_j(float(energy_j[row])),
                partition=partition[row],
                eligible_s=float(eligible_s[row]),
                user=user[row],
                qos=qos[row],
                cpus=_amount(cells, "cpu", {"": 1.0}),
                memory_gib=_amount(cells, "mem", _GIB),
            )
        )
    return jobs


def is_for_people(text: str) -> bool:
    """Whether *text* is a table with a line of dashes below its header, as ``sacct`` prints it by default."""
    lines = text.splitlines()
    return len(lines) > 1 and "JobID" in lines[0] and re.fullmatch(r"-+( +-+)* *", lines[1]) is not None


def _with_bars(path: Path, text: str) -> str:
    """Return the table for people as ``--parsable2`` would have it; the dashes say where columns are."""
    header, dashes, *rows = text.splitlines()
    spans: list[tuple[int, int | None]] = [match.span() for match in re.finditer("-+", dashes)]
    spans[-1] = spans[-1][0], None
    names = [header[a:b].strip() for a, b in spans]
    lines = ["|".join(names), ""]
    for number, row in enumerate(rows, start=3):
        cells = [row[a:b].strip() for a, b in spans]
        for name, cell in zip(names, cells, strict=True):
            if name in _CUT and cell.endswith("+"):
                expected = f"whole values, but sacct has cut this off; run: {ASK}"
                raise InputError(expected, file=f"{path}, line {number}", field=name, value=cell)
        lines.append("|".join(cells) if any(cells) else "")
    return "\n".join(lines) + "\n"


def duration_s(text: str) -> float:
    """Read Slurm's ``[[days-]hours:]minutes:seconds``; raises ``ValueError``."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError(_DURATION)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24.0 + hours) * 60 + minutes) * 60 + seconds


def _limit(text: str) -> float:
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return math.inf
    if text in _UNKNOWN or text == "Partition_Limit":
        return math.nan
    return _plain(text) if text.isdecimal() else duration_s(text)


def _plain(text: str) -> float:
    if not text.isdecimal():
        raise ValueError
    return float(text)


def _started(text: str) -> float:
    return math.nan if text in _UNKNOWN else _moment_s(text)


def _moment_s(text: str) -> float:
    """Read a moment, or seconds since 1970: ten digits or so, where a date has eight at most."""
    return float(text) if re.fullmatch(r"\d{9,11}", text) else moment_s(text)


def _one_of(table: TextTable, columns: Mapping[str, tuple[float, _Read]], blank: float | None = None) -> Floats:
    for name, (unit_s, read) in columns.items():
        if name in table:
            return table.parse(name, read, _DURATION, blank) * unit_s
    if blank is not None:
        return np.full(len(table), blank)
    raise InputError(f"this column; run: {ASK}", file=table.path, field=list(columns)[-1])


def _gpus(table: TextTable, row: int, cells: list[str]) -> tuple[int, str]:
    """Allocated GPUs, or requested ones where none were allocated."""
    for cell in cells:
        entries = (part.partition("=") for part in cell.split(",") if part)
        try:
            gpus, gpu_type = gpus_of((name, int(count)) for name, _, count in entries if "gpu" in name)
        except ValueError:
            raise InputError(
                "resources such as cpu=8,gres/gpu=4", file=f"{table.path}, line {table.lines[row]}",
                field="AllocTRES", value=cell,
            ) from None  # fmt: skip
        if gpus:
            return gpus, gpu_type
    return 0, ""


_GIB = {"": 2.0**-10, "K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10, "P": 2.0**20}


def _amount(cells: list[str], name: str, units: Mapping[str, float]) -> float:
    """Return what the first of *cells* says of a resource; 0 if none does."""
    for cell in cells:
        if match := re.search(rf"(?:^|,){name}=(\d+(?:\.\d+)?)([KMGTP]?)(?:,|$)", cell):
            return float(match[1]) * units.get(match[2], 0.0)
    return 0.0


def _tenant(table: TextTable, row: int) -> str:
    for name in ("Account", "User"):
        if name in table and table.text(name)[row]:
            return table.text(name)[row]
    return "unknown"


def read(path: Path) -> JobLog:
    """Read either form."""
    text = read_text(path)
    records = read_json(path, text) if text.lstrip().startswith("{") else read_rows(path, text)
    jobs, requeued, again = _last_runs(records)
    asked_s, start_s, eligible_s = (
        np.array([getattr(job, name) for job in jobs]) for name in ("submit_s", "start_s", "eligible_s")
    )
    submit_s = np.fmax(asked_s, np.where(eligible_s > start_s, start_s, eligible_s))  # ignores NaN
    early = start_s < submit_s
    duration_s = np.array([job.elapsed_s for job in jobs])
    gpus = np.array([job.gpus for job in jobs], dtype=np.int64)
    origin_s = float(submit_s.min()) if len(jobs) else 0.0
    return JobLog.of(
        f"Slurm accounting {path.name}",
        job=[job.name for job in jobs],
        tenant=[job.tenant for job in jobs],
        submit_s=submit_s - origin_s,
        duration_s=duration_s,
        gpus=gpus,
        gpu_type=[job.gpu_type for job in jobs],
        time_limit_s=[job.limit_s for job in jobs],
        series=[job.series for job in jobs],
        start_s=np.where(early, submit_s, start_s) - origin_s,
        censored=[job.running for job in jobs],
        origin=utc(origin_s),
        reasons={
            "without a GPU": gpus == 0,
            "never started": np.isnan(start_s),
            "without run time": duration_s == 0,
        },
        dropped={"earlier runs of requeued jobs": requeued, "runs that are there twice": again},
        path=path,
        nodes=_or_none(job.nodes for job in jobs),
        energy_j=[job.energy_j for job in jobs],
        partition=_or_none(job.partition for job in jobs),
        user=_or_none(job.user for job in jobs),
        qos=_or_none(job.qos for job in jobs),
        cpus=[job.cpus for job in jobs],
        memory_gib=[job.memory_gib for job in jobs],
        treated={LATE_ELIGIBLE: submit_s > asked_s, EARLY_START: early, PARTS: ["+" in job.name for job in jobs]},
    )


ASK_NAMES = (
    "sacct --allusers --duplicates --allocations --parsable2 --format=JobID,JobName,User,Submit,Start,ElapsedRaw,"
)
ASK_NAMES += "State,AllocTRES > jobs.txt"
"""The command that prints what ``accounted`` reads."""


def accounted(path: Path) -> tuple[dict[str, tuple[int, float]], float]:
    """Return the runs that ended and their GPU seconds by the name of the job, and when the first one began.

    Raises ``InputError`` as ``read`` does, and without the names of jobs.
    """
    text = read_text(path)
    jobs = read_json(path, text) if text.lstrip().startswith("{") else read_rows(path, text, ASK_NAMES)
    if jobs and not any("/" in job.series for job in jobs):  # its owner and its name
        raise InputError(f"this column; run: {ASK_NAMES}", file=path, field="JobName")
    runs: dict[tuple[str, float], SacctJob] = {}
    for job in jobs:
        if not math.isnan(job.start_s):
            runs[job.name, job.start_s] = _seen_last(runs.get((job.name, job.start_s), job), job)
    sums: dict[str, tuple[int, float]] = {}
    for job in runs.values():
        name = job.series.rpartition("/")[2]
        count, gpu_s = sums.get(name, (0, 0.0))
        sums[name] = count + 1, gpu_s + job.gpus * job.elapsed_s
    for job in runs.values():
        if job.running:
            sums.pop(job.series.rpartition("/")[2], None)
    return sums, min((job.start_s for job in runs.values()), default=math.inf)


LATE_ELIGIBLE = "kept back by a dependency, a hold or a begin time: as if submitted when they were eligible"
PARTS = "parts of heterogeneous jobs: each as a separate job"
EARLY_START = "started before they were submitted: at their submission"


def _or_none(column: Iterable[str]) -> list[str] | None:
    """Return a column; ``None`` if it says nothing of any job."""
    values = list(column)
    return values if any(values) else None


def _seen_last(one: SacctJob, other: SacctJob) -> SacctJob:
    """Return the entry of a run that is there twice which says more."""
    return max(one, other, key=lambda run: (not run.running, run.elapsed_s))


def _last_runs(records: list[SacctJob]) -> tuple[list[SacctJob], int, int]:
    """Return the last run of each job, and how many were left out: runs before a requeue, and runs seen again."""
    merged: dict[str, SacctJob] = {}
    requeued = again = 0
    for job in sorted(records, key=lambda job: job.submit_s):
        earlier = merged.get(job.name)
        if earlier is None:
            merged[job.name] = job
            continue
        if job.start_s == earlier.start_s or (math.isnan(earlier.start_s) and earlier.submit_s == job.submit_s):
            again += 1
            merged[job.name] = _seen_last(earlier, job)
        else:
            requeued += 1
            merged[job.name] = replace(job, submit_s=earlier.submit_s, eligible_s=earlier.eligible_s)
    return list(merged.values()), requeued, again
