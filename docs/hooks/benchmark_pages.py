"""What benchmarks gave, and tables of it: no number of theirs on a page is typed.

``python docs/hooks/benchmark_pages.py KEY [--drop NAME] -- COMMAND ...`` runs a command that prints one JSON document,
and keeps it as ``docs/data/benchmarks/KEY.json`` with the command, less ``--json`` and ``--out``, and how busy the
machine was. ``--drop`` leaves out what no page shows, at any depth. Forms in ``docs/data/pages``, and texts in
``docs/data/remarks.txt``, show it:

``{command: KEY}``, ``{load: KEY}``
    The command; the average number of programs that wanted a core, over the minute before it began and ended.
``{value: KEY rows[0][energy_kwh]:.2f}``
    One value, by path and format.
``{less: KEY rows[0][energy_kwh] | rows[1][energy_kwh]:.0%}``
    By what part the first value is less than the second.
``{rows: KEY rows}`` ... ``{end}``
    The last line between them is the form of a row, written once for each entry of the list at that path; the lines
    before are the head. Of a mapping, each entry has its ``name``. ``{rows: KEY rows | scenario=1 or 2, costly=False}``
    takes those with these values only.
``{pivot: KEY rows | jobs knowledge | policy | energy_kwh:.0f}``
    A table with a row for each combination of the first names, a column for each value of the second, and the third in
    cells.

Formats are Python's, and besides: ``?yes/no`` for a truth value, ``/1000 .2f`` and ``*100 .1f`` for a scaled number;
``None``, and what is in it, is shown as nothing, or as the text after ``@``: ``.2f@not run``; ``~, at most ~.2f`` is
shown with the text before it, where there is a value.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

from commonwatt import __version__

KEPT = Path(__file__).parents[1] / "data" / "benchmarks"
_FIELD = re.compile(r"\{(command|load|value|less|pivot): ([\w-]+)([^{}]*)\}")
_ROWS = re.compile(r"\{rows: ([\w-]+) ([\w\[\]]*)(?: \| ([^{}]*))?\}\n(.*?)\n\{end\}", re.S)
_MINUS_ZERO = re.compile(r"^[-+](0(?:\.0+)?%?)$")
_SCALED = re.compile(r"([*/])(\S+) (.*)")


class _Values(Formatter):
    """Format fields of pages."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401, ARG002
        return at(kwargs, field_name), field_name

    def format_field(self, value: Any, format_spec: str) -> str:  # noqa: ANN401
        form, _, absent = format_spec.partition("@")
        if value is None:
            return absent
        if form.startswith("~"):
            _, before, form = form.split("~", 2)
            return before + self.format_field(value, form)
        if form.startswith("?"):
            yes, _, no = form[1:].partition("/")
            return yes if value else no
        if scaled := _SCALED.fullmatch(form):
            sign, by, form = scaled.groups()
            value = value / float(by) if sign == "/" else value * float(by)
        return _MINUS_ZERO.sub(r"\1", format(value, form))


def recorded(key: str) -> dict[str, Any]:
    """Return what was recorded as *key*; raises ``KeyError`` if nothing was."""
    if key not in _all():
        raise KeyError(key)
    return _all()[key]


@cache
def _all() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(KEPT.glob("*.json"))}


def shown(text: str) -> str:
    """Return *text* with its fields filled in; raises ``KeyError`` for what was not recorded."""
    return _FIELD.sub(_field, _ROWS.sub(_rows, text))


def at(value: Any, path: str) -> Any:  # noqa: ANN401
    """Return what is at *path* (``rows[0][energy_kwh]``) within *value*; ``None`` within ``None``."""
    for part in path.replace("]", "").split("["):
        if value is None:
            return None
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


def _rows(match: re.Match[str]) -> str:
    key, path, wanted, lines = match.groups()
    *head, form = lines.split("\n")
    chosen = [pair.split("=") for pair in (wanted or "").split(", ") if pair]
    found = at(recorded(key)["result"], path)
    every = [{"name": name, **row} for name, row in found.items()] if isinstance(found, dict) else found
    rows = [row for row in every if all(str(row[name]) in values.split(" or ") for name, values in chosen)]
    if not rows:
        raise KeyError(match.group(0))
    return "\n".join([*head, *(_Values().vformat(form, (), row) for row in rows)])


def _field(match: re.Match[str]) -> str:
    kind, key, rest = match.groups()
    found = recorded(key)
    if kind == "command":
        return f"`{found['command']}`"
    if kind == "load":
        low, high = sorted(found["load"])
        return f"{low:.1f} to {high:.1f}"
    if kind == "pivot":
        return _pivot(key, *(part.strip() for part in rest.split("|")))
    path, _, form = rest.strip().partition(":")
    if kind == "less":
        first, second = (at(found["result"], part) for part in path.split(" | "))
        return _Values().format_field(1 - first / second, form)
    return _Values().format_field(at(recorded(key)["result"], path), form)


def _pivot(key: str, path: str, by: str, across: str, cell: str) -> str:
    names = by.split()
    name, _, form = cell.partition(":")
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    columns: dict[str, None] = {}
    for row in at(recorded(key)["result"], path):
        column = str(row[across])
        columns[column] = None
        place = tuple(_plain(row[n]) for n in names)
        rows.setdefault(place, {})[column] = _Values().format_field(row[name], form)
    return _table([*names, *columns], ([*place, *(cells.get(c, "") for c in columns)] for place, cells in rows.items()))


def _plain(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---:"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def record(key: str, command: Sequence[str], drop: Sequence[str]) -> None:
    """Run *command* and keep its document as *key*; raises ``CalledProcessError`` if it fails."""
    before = os.getloadavg()[0]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
    after = os.getloadavg()[0]
    out = [k for k, word in enumerate(command) if word == "--out"]
    left_out = {k + n for k in out for n in (0, 1)}
    said = [word for k, word in enumerate(command[1:], 1) if word != "--json" and k not in left_out]
    kept = {
        "command": shlex.join([Path(command[0]).name, *said]), "version": __version__, "cores": os.cpu_count(),
        "load": [round(before, 1), round(after, 1)], "result": _without(json.loads(done.stdout), set(drop)),
    }  # fmt: skip
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{key}.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _without(value: Any, names: set[str]) -> Any:  # noqa: ANN401
    if isinstance(value, Mapping):
        return {key: _without(part, names) for key, part in value.items() if key not in names}
    if isinstance(value, list):
        return [_without(part, names) for part in value]
    return round(value, 6) if isinstance(value, float) else value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("key")
    parser.add_argument("--drop", nargs="+", default=[])
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:split])
    if not sys.argv[split + 1 :]:
        parser.error("expected -- and the command to run")
    record(options.key, sys.argv[split + 1 :], options.drop)
