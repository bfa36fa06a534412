"""HTML tables. Everything that comes from input is escaped here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Cell", "Column", "html_table"]


@dataclass(frozen=True)
class Column:
    """A column: its heading, what it means, and whether it holds numbers."""

    title: str
    meaning: str = ""
    number: bool = True
    wide: bool = False  # sentences


@dataclass(frozen=True)
class Cell:
    """Text to show, the number to sort by, a colour to mark it with, what it means."""

    text: str
    sort: float | None = None
    colour: str = ""
    note: str = ""


def html_table(
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Sequence[Cell]],
    *,
    empty: str = "",
    sortable: bool = True,
    last_is_sum: bool = False,
) -> str:
    """Return a table in a region that scrolls sideways and can be reached by keyboard.

    The first cell of a row is its heading. Without rows, the sentence *empty* takes its place.
    """
    body = "\n".join(_row(row, columns) for row in rows)
    if not body:
        return f'<p class="none">{escape(empty)}</p>'
    scroll = "scroll tall" if sortable else "scroll"
    kind = ' class="sortable"' if sortable else ' class="summed"' if last_is_sum else ""
    heads = "".join(
        f'<th scope="col"{_class(column)}{_title(column)}>{escape(column.title)}</th>' for column in columns
    )
    return (
        f'<div class="{scroll}" role="region" tabindex="0" aria-label="{escape(caption)}">\n<table{kind}>\n'
        f"<caption>{escape(caption)}</caption>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody>\n"
        "</table>\n</div>"
    )


def _row(row: Sequence[Cell], columns: Sequence[Column]) -> str:
    first, *rest = zip(row, columns, strict=True)
    cells = "".join(_cell("td", cell, column) for cell, column in rest)
    return "<tr>" + _cell('th scope="row"', *first) + cells + "</tr>"


def _cell(tag: str, cell: Cell, column: Column) -> str:
    value = "" if cell.sort is None or not math.isfinite(cell.sort) else f" data-v={cell.sort:.6g}"
    chip = f'<i class="chip" style="background:{cell.colour}"></i>' if cell.colour else ""
    note = f"<small>{escape(cell.note)}</small>" if cell.note else ""
    return f"<{tag}{_class(column)}{value}>{chip}{escape(cell.text)}{note}</{tag.split()[0]}>"


def _class(column: Column) -> str:
    return "" if column.number else " class=wide" if column.wide else " class=text"


def _title(column: Column) -> str:
    return f' title="{escape(column.meaning)}"' if column.meaning else ""
