"""Batch scripts of Slurm: their ``#SBATCH`` lines become a job file, or are refused by name, file and line."""

from __future__ import annotations

import getopt
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from commonwatt.model.errors import FieldError, InputError
from commonwatt.model.features import check_constraint
from commonwatt.model.job_file import ADDRESS, LONGEST_SCRIPT, PASSED_ON, JobFile, check_passed_on
from commonwatt.model.units import memory_gib, slurm_time_s

__all__ = ["BatchScript", "conditions_of", "is_batch_script", "mail_kinds", "read_batch_script"]

_SHORT = {
    "A": "account", "a": "array", "b": "begin", "c": "cpus-per-task", "C": "constraint", "d": "dependency",
    "D": "chdir", "e": "error", "F": "nodefile", "G": "gpus", "H": "hold", "i": "input", "J": "job-name",
    "k": "no-kill", "L": "licenses", "m": "distribution", "M": "clusters", "N": "nodes", "n": "ntasks", "o": "output",
    "O": "overcommit", "p": "partition", "q": "qos", "Q": "quiet", "s": "oversubscribe", "S": "core-spec", "t": "time",
    "w": "nodelist", "W": "wait", "x": "exclude",
}  # fmt: skip
_FLAGS = frozenset({
    "hold", "no-kill", "overcommit", "quiet", "oversubscribe", "wait", "contiguous", "exclusive", "ignore-pbs",
    "no-requeue", "parsable", "reboot", "requeue", "spread-job", "test-only", "use-min-nodes", "verbose",
})  # fmt: skip
_OPTIONAL = frozenset({"exclusive", "no-kill", "oversubscribe"})  # long options that may have a value
_WITHOUT_EFFECT = frozenset({"comment", "ignore-pbs", "quiet", "requeue", "verbose"})
"""Options that change nothing here: jobs are always started again after an interruption."""
_PASSED_ON = frozenset(option.removeprefix("--") for option in PASSED_ON)
_MAIL = {"BEGIN": ("begin",), "END": ("end",), "FAIL": ("fail",), "REQUEUE": ("requeue",), "NONE": (),
         "ALL": ("begin", "end", "fail", "requeue")}  # fmt: skip
_NO_MAIL = frozenset({
    "INVALID_DEPEND", "STAGE_OUT", "TIME_LIMIT", "TIME_LIMIT_90", "TIME_LIMIT_80", "TIME_LIMIT_50", "ARRAY_TASKS",
})  # fmt: skip
_GPUS = ("gpus-per-node", "gres", "gpus", "gpus-per-task")
_COUNT = re.compile(r"[1-9][0-9]{0,5}")
_RANGE = re.compile(r"([1-9]\d{0,3})-([1-9]\d{0,3})")
_MOST_WIDTHS = 64
_ARRAY = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::([1-9]\d{0,6}))?)?")
_DEPENDENCY = re.compile(r"(after|afterany|afterok|afternotok)((?::\d{1,15})+)")
_TIMES = {"midnight": (0, 0), "noon": (12, 0), "teatime": (16, 0), "elevenses": (11, 0), "fika": (15, 0)}
_AFTER = re.compile(r"now(?:\+(\d{1,9})(seconds?|minutes?|hours?|days?|weeks?)?)?")
_MOST_TASKS = 10_000


@dataclass(frozen=True)
class BatchScript:
    """A batch script as read.

    Attributes
    ----------
    fields
        Of the job file; without ``environment``.
    account
        Its account: the tenant to submit for; ``None`` if it names none.
    export
        What ``--export`` says; ``None``: everything.
    tasks
        Indices of its array; none if it is no array.
    warnings
        What is accepted and has no effect.
    parsable
        Whether only the job's number is to be printed.
    """

    fields: Mapping[str, Any]
    account: str | None = None
    export: str | None = None
    tasks: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    parsable: bool = False

    def jobs(self, job: JobFile) -> Iterator[Callable[[int], JobFile]]:
        """Yield a function for each job of *job* that takes the number of the first one, as far as it is known."""
        assert job.batch is not None
        batch = job.batch
        if not self.tasks:
            yield lambda _: job
        for index in self.tasks:
            ends = len(self.tasks), min(self.tasks), max(self.tasks)

            def task(first: int, index: int = index, ends: tuple[int, int, int] = ends) -> JobFile:
                return job.model_copy(update={"batch": batch.model_copy(update={"array": (first, index, *ends)})})

            yield task


def mail_kinds(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what ``--mail-type`` asks for as ``mail_on`` of a job has it, and what of it is never sent.

    Raises ``ValueError``, saying what is expected, for a type that is none.
    """
    asked: dict[str, None] = {}
    words = [word.strip() for word in text.upper().split(",") if word.strip()]
    for word in words:
        if word not in _MAIL and word not in _NO_MAIL:
            msg = f"{', '.join(_MAIL)}, with commas between"
            raise ValueError(msg)
        asked |= dict.fromkeys(_MAIL.get(word, ()))
    return tuple(asked), tuple(word for word in words if word in _NO_MAIL)


def is_batch_script(path: Path) -> bool:
    """Whether the file *path* begins as a script does."""
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def read_batch_script(
    path: Path, arguments: Sequence[str], folder: Path, now: datetime, options: Mapping[str, str] | None = None,
    content: bytes | None = None,
) -> BatchScript:  # fmt: skip
    """Read the batch script *path*, submitted from *folder* at *now*.

    *options* (by their long names) replace those in the script, as on the command line of ``sbatch``. *content* is
    that of a script that came from standard input, which *path* only names, as ``-``. Raises
    ``InputError`` naming file, line and option for what is not supported.
    """
    try:
        text = (path.read_bytes() if content is None else content).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(f"a batch script that can be read ({cause})", file=path) from None
    if not text.startswith("#!"):
        raise InputError("a script that begins with #! and the path of its interpreter", file=path, field="line 1")
    if "\r" in text:
        raise InputError("lines that end as on Unix (dos2unix converts them)", file=path, value="line ends of DOS")
    if len(text) > LONGEST_SCRIPT or "\0" in text:
        raise InputError(f"text of at most {LONGEST_SCRIPT} characters", file=path)
    reader = _Reader(path, folder, now)
    for number, line in _lines(text):
        reader.take(_parsed(line, path, number), number)
    if any(name in _GPUS for name in options or ()):  # they say the same in other ways
        for name in _GPUS:
            reader.values.pop(name, None)
    for name, value in (options or {}).items():
        reader.at = f"--{name}"
        reader.set(name, value)
    return reader.result(text, path.name if content is None else "sbatch", arguments)


def conditions_of(options: Mapping[str, str], now: datetime) -> dict[str, Any]:
    """Return the fields of a job file that *options* of ``sbatch``, by their long names, stand for.

    These are ``dependency``, ``begin``, ``partition``, ``nodes`` and ``constraint``. Raises ``InputError``.
    """
    reader = _Reader(None, Path(), now)
    for name, value in options.items():
        reader.at = f"--{name}"
        reader.set(name, value)
    fields = reader.conditions()
    return fields if (nodes := reader.count("nodes")) is None else {**fields, "nodes": nodes}


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the options of ``#SBATCH`` lines before the first command, with their line numbers."""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            return
        if line.startswith("#SBATCH") and line[7:8] in (" ", "\t"):
            yield number, line[7:]


def _parsed(line: str, path: Path, number: int) -> list[tuple[str, str]]:
    try:
        words = shlex.split(line, comments=True)
        short = "".join(letter + ("" if name in _FLAGS else ":") for letter, name in _SHORT.items())
        named = {word.partition("=")[0][2:] for word in words if word.startswith("--")}
        long = [name + ("" if _bare(name, words) else "=") for name in sorted(named)]
        pairs, rest = getopt.getopt(words, short, long)
    except (ValueError, getopt.GetoptError) as error:
        raise InputError(
            f"options of sbatch ({error})", file=path, field=f"line {number}", value=line.strip()
        ) from None
    if rest:
        raise InputError("options of sbatch only", file=path, field=f"line {number}", value=rest[0])
    return [(_SHORT[name[1:]] if not name.startswith("--") else name[2:], value) for name, value in pairs]


def _bare(name: str, words: Sequence[str]) -> bool:
    """Whether a long option stands without a value."""
    return name in _FLAGS and not (name in _OPTIONAL and any(word.startswith(f"--{name}=") for word in words))


@dataclass
class _Reader:
    path: Path | None
    folder: Path
    now: datetime
    at: str = ""
    values: dict[str, tuple[str, str]] = field(default_factory=dict)  # value and where, by option
    warnings: list[str] = field(default_factory=list)

    def take(self, options: Sequence[tuple[str, str]], number: int) -> None:
        for name, value in options:
            self.at = f"line {number}, --{name}"
            self.set(name, value)

    def set(self, name: str, value: str) -> None:
        if name not in _WITHOUT_EFFECT:
            if name not in _OPTIONS and name not in _PASSED_ON:
                raise self.wrong("an option that commonwatt supports", value)
            self.values[name] = value, self.at

    def wrong(self, expected: str, value: str, at: str | None = None) -> InputError:
        return InputError(expected, file=self.path, field=at or self.at, value=value)

    def get(self, name: str) -> str | None:
        if name not in self.values:
            return None
        value, self.at = self.values[name]
        return value

    def count(self, name: str, default: int | None = None) -> int | None:
        text = self.get(name)
        if text is None:
            return default
        if not _COUNT.fullmatch(text):
            raise self.wrong("a whole number, 1 or more", text)
        return int(text)

    def place(self, name: str, folder: Path) -> str | None:
        text = self.get(name)
        if text is None or text in ("", "none"):
            return None
        return str(folder / text)

    def result(self, text: str, script: str, arguments: Sequence[str]) -> BatchScript:
        folder = Path(self.place("chdir", self.folder) or self.folder)
        name = self.get("job-name") or script
        fields: dict[str, Any] = {
            "name": re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip("._-")[:100] or "job",
            "command": (script, *arguments), "folder": str(folder),
        }  # fmt: skip
        nodes, most_nodes = self._nodes()
        fields |= self._gpus(nodes)
        if most_nodes is not None:
            fields |= self._of_each_width(nodes or 1, most_nodes, fields["gpus"])
        tasks, at_once = self.array()
        batch: dict[str, Any] = {
            "script": text, "submit_folder": str(self.folder), "tasks_per_node": self._tasks(nodes or 1),
            "cpus_per_task": self.count("cpus-per-task"), "append": self._append(),
            "output": self.place("output", folder) or str(folder / ("slurm-%A_%a.out" if tasks else "slurm-%j.out")),
            "error": self.place("error", folder), "array_most": at_once,
        }  # fmt: skip
        batch["options"] = tuple(self._passed_on())
        fields |= {"batch": batch, **self.conditions()}
        if (cpus := self.count("cpus-per-gpu")) is not None:
            if "cpus-per-task" in self.values:
                raise self.wrong("--cpus-per-gpu or --cpus-per-task, not both", str(cpus))
            fields["cpus_per_gpu"] = cpus
        if (limit := self.get("time")) is not None:
            fields["time_limit_s"] = self._limit_s(limit)
        if (due := self.get("deadline")) is not None:
            fields["due"] = self.moment(due)
        fields |= self._mail()
        account, export, parsable = self.get("account"), self.get("export"), "parsable" in self.values
        return BatchScript(fields, account, export, tasks, tuple(self.warnings), parsable)

    def conditions(self) -> dict[str, Any]:
        """Return when and where the job may start, as far as options say so."""
        readers: dict[str, tuple[str, Callable[[str], Any]]] = {
            "dependency": ("after", self.dependency), "partition": ("partition", str),
            "constraint": ("constraint", self.features), "begin": ("begin", self.moment),
        }  # fmt: skip
        given = ((field, read, self.get(name)) for name, (field, read) in readers.items())
        return {field: read(text) for field, read, text in given if text is not None}

    def _mail(self) -> dict[str, Any]:
        """Return whom to mail, and when; Slurm mails the submitting user where no address is given, which we cannot."""
        text = self.get("mail-type")
        where = self.at
        address = self.get("mail-user")
        try:
            asked, unsent = mail_kinds(text or "")
        except ValueError as error:
            raise self.wrong(str(error), text or "", where) from None
        self.warnings += [f"{self.path}: {where}: no mail is sent for {word}" for word in unsent]
        if asked and (address is None or not re.fullmatch(ADDRESS, address)):
            self.warnings.append(f"{self.path}: {where}: no mail is sent without an address (--mail-user=NAME@DOMAIN)")
            return {}
        return {"mail_to": address, "mail_on": asked} if asked else {}

    def features(self, text: str) -> str:
        try:
            return check_constraint(text)
        except FieldError as error:
            raise self.wrong(error.expected, text) from None

    def _limit_s(self, text: str) -> float:
        limit_s = slurm_time_s(text)
        if not limit_s:
            raise self.wrong("a time above 0: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS", text)
        return limit_s

    def _passed_on(self) -> Iterator[str]:
        for name in sorted(_PASSED_ON & self.values.keys()):
            value = self.get(name) or ""
            try:
                yield check_passed_on(f"--{name}={value}")
                if name.startswith(("mem", "tmp")):
                    memory_gib(value)
            except ValueError as error:
                raise self.wrong(str(error), value) from None

    def _append(self) -> bool:
        text = self.get("open-mode")
        if text not in (None, "append", "truncate"):
            raise self.wrong("append or truncate", str(text))
        return text == "append"

    def _gpus(self, nodes: int | None) -> dict[str, Any]:
        each = next((name for name in _GPUS if name in self.values), None)
        if each is None:
            raise self.wrong("GPUs: --gpus, --gpus-per-node or --gres (jobs without any are not placed here)", "none",
                             "#SBATCH")  # fmt: skip
        text = self.get(each) or ""
        if each == "gres":
            if not re.fullmatch(r"gpu(:.*)?", text):
                raise self.wrong("GPUs only, such as gpu:2 or gpu:v100:2", text)
            text = text.partition(":")[2] or "1"
        kind, colon, count = text.rpartition(":")
        if not _COUNT.fullmatch(count):
            kind, colon, count = (text, ":", "1") if each == "gres" else (kind, colon, "")
        if not count or (colon and not kind) or ":" in kind:
            raise self.wrong("a number of GPUs, or TYPE:NUMBER", text)
        if each == "gpus-per-node" and "gres" in self.values:
            raise self.wrong("--gpus-per-node or --gres, not both", text)
        if each in ("gpus-per-node", "gres") and (of_all := self.get("gpus")) is not None:
            return self._on_each(int(count), kind, of_all, nodes)
        at, whole = self.at, each in ("gpus", "gpus-per-task")
        total = int(count) * (self._all_tasks(nodes) if each == "gpus-per-task" else 1 if whole else nodes or 1)
        if whole and nodes and total % nodes:
            raise self.wrong(f"a multiple of the {nodes} nodes", text, at)
        for_each = self.get("gpus-per-task")
        if for_each is not None and each != "gpus-per-task":
            at, tasks = self.at, self._all_tasks(nodes)
            if for_each.rpartition(":")[2] != f"{total / tasks:g}":
                raise self.wrong(f"{total / tasks:g}, by --{each} ({text}) and {tasks} tasks", for_each, at)
        fixed = nodes or (0 if whole else 1)
        return {"gpus": total, "nodes": fixed} | ({"gpu_type": kind} if kind else {})

    def _on_each(self, each: int, kind: str, of_all: str, nodes: int | None) -> dict[str, Any]:
        """Return what a number of GPUs in all, with one for each node, asks for."""
        own, _, count = of_all.rpartition(":")
        total = int(count) if _COUNT.fullmatch(count) else 0
        if own and kind and own != kind:
            raise self.wrong(f"GPUs of one type, {kind}", of_all)
        if not total or total % each or nodes not in (None, total // each):
            expected = f"a multiple of the {each} GPUs of each node" if nodes is None else f"{each * nodes}, by --nodes"
            raise self.wrong(expected, of_all)
        return {"gpus": total, "nodes": total // each} | ({"gpu_type": kind or own} if kind or own else {})

    def _nodes(self) -> tuple[int | None, int | None]:
        """Return the nodes asked for, ``None`` if it does not say; of a range, the fewest and the most."""
        text = self.get("nodes")
        match = None if text is None else _RANGE.fullmatch(text)
        if match is None:
            return self.count("nodes"), None
        fewest, most = int(match[1]), int(match[2])
        if not fewest <= most < fewest + _MOST_WIDTHS:
            raise self.wrong(f"the fewest and the most nodes, {_MOST_WIDTHS - 1} more at most", match[0])
        return (fewest, None) if fewest == most else (fewest, most)

    def _of_each_width(self, fewest: int, most: int, gpus: int) -> dict[str, Any]:
        """Return the GPU counts of *fewest* to *most* nodes, of which the fewest have *gpus*."""
        for name in ("gpus", "gpus-per-task", "ntasks"):
            if (text := self.get(name)) is not None:
                expected = "GPUs and tasks of each node (--gpus-per-node, --ntasks-per-node) where --nodes is a range"
                raise self.wrong(expected, text)
        each = gpus // fewest
        counts = tuple(each * nodes for nodes in range(fewest, most + 1))
        return {"gpus": counts[-1], "gpu_counts": counts, "gpus_per_node": each, "nodes": 0}

    def _all_tasks(self, nodes: int | None) -> int:
        """Return the number of tasks, which ``--gpus-per-task`` has to know."""
        at, text = self.at, self.get("gpus-per-task") or ""
        total, each = self.count("ntasks"), self.count("ntasks-per-node")
        if total is None and each is None:
            raise self.wrong("the number of tasks, too (--ntasks)", text, at)
        return total or (each or 1) * (nodes or 1)

    def _tasks(self, nodes: int) -> int:
        each, total = self.count("ntasks-per-node"), self.count("ntasks")
        if total is not None and each is None:
            if total % nodes:
                raise self.wrong(f"a multiple of the {nodes} nodes", str(total))
            return total // nodes
        if total is not None and each is not None and total != each * nodes:
            raise self.wrong(f"{each * nodes}, by --ntasks-per-node and --nodes", str(total))
        return each or 1

    def array(self) -> tuple[tuple[int, ...], int | None]:
        """Return the indices of an array, none if it is none, and how many of its tasks may run at once."""
        text = self.get("array")
        if text is None:
            return (), None
        listed, limit, at_once = text.partition("%")
        if limit and not _COUNT.fullmatch(at_once):
            raise self.wrong("after %, how many tasks may run at once, 1 or more", text)
        indices: list[int] = []
        for part in listed.split(","):
            match = _ARRAY.fullmatch(part)
            if match is None:
                raise self.wrong("indices such as 0-15, 1,3,5 or 1-7:2", text)
            first = int(match[1])
            last, step = int(match[2] or first), int(match[3] or 1)
            if last < first or (last - first) // step >= _MOST_TASKS:
                raise self.wrong(f"at most {_MOST_TASKS} indices, the least first", text)
            indices += range(first, last + 1, step)
        tasks = tuple(sorted(set(indices)))
        if len(tasks) > _MOST_TASKS:
            raise self.wrong(f"at most {_MOST_TASKS} indices", text)
        return tasks, int(at_once) if limit else None

    def dependency(self, text: str) -> dict[int, str]:
        dependencies: dict[int, str] = {}
        for part in text.split(",") if text else ():
            match = _DEPENDENCY.fullmatch(part)
            if match is None:
                raise self.wrong("after, afterany, afterok or afternotok and :NUMBER, with commas between", part)
            dependencies |= dict.fromkeys(map(int, match[2][1:].split(":")), match[1])
        return dependencies

    def moment(self, text: str) -> str:
        """Return a time of ``sbatch --begin``, in this machine's zone, as ISO 8601."""
        lower = text.lower()
        if (after := _AFTER.fullmatch(lower)) is not None:
            unit = (after[2] or "seconds").rstrip("s") + "s"
            try:
                return (self.now + timedelta(**{unit: int(after[1] or 0)})).isoformat()
            except OverflowError:
                raise self.wrong("a time before the year 10000", text) from None
        day = self.now.replace(hour=0, minute=0, second=0, microsecond=0)
        if lower in ("today", "tomorrow"):
            return (day + timedelta(days=lower == "tomorrow")).isoformat()
        if lower in _TIMES:
            hour, minute = _TIMES[lower]
            return self._next(day.replace(hour=hour, minute=minute)).isoformat()
        if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", text):
            parts = [int(part) for part in text.split(":")]
            if parts[0] < 24 and max(parts[1:]) < 60:
                return self._next(day.replace(hour=parts[0], minute=parts[1], second=(*parts, 0)[2])).isoformat()
        try:
            begin = datetime.fromisoformat(text)
        except ValueError:
            expected = "now+2hours, 16:00, tomorrow, midnight, noon or a date such as 2026-12-01T08:00"
            raise self.wrong(expected, text) from None
        return (begin if begin.tzinfo else begin.replace(tzinfo=self.now.tzinfo)).isoformat()

    def _next(self, moment: datetime) -> datetime:
        return moment if moment > self.now else moment + timedelta(days=1)


_OPTIONS = frozenset({
    "account", "array", "begin", "chdir", "constraint", "cpus-per-gpu", "cpus-per-task", "deadline", "dependency",
    "error", "export", "gpus", "gpus-per-node", "gpus-per-task", "gres", "job-name", "mail-type", "mail-user", "nodes",
    "ntasks", "ntasks-per-node", "open-mode", "output", "parsable", "partition", "time",
})  # fmt: skip
