"""Facts in columns of their own that were only in sentences: lost work, who asked for something, why a job runs."""

from __future__ import annotations

import re
from typing import Any

import sqlalchemy as sa
from alembic import op

__all__ = ["ADDED", "branch_labels", "depends_on", "down_revision", "fill", "revision", "upgrade"]

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

ADDED = {"events": ("lost_s", "requester"), "jobs": ("facts",)}
"""Columns by table: a backup of an earlier revision lacks them."""

_PAGE = 1000
_LOST = re.compile(r"(?:^|; )(\d+) s of work since the last snapshot are lost$")  # as 0.1 wrote it


def upgrade() -> None:
    """Go on to this revision."""
    types: dict[str, Any] = {"lost_s": sa.Double(), "requester": sa.String(16), "facts": sa.JSON()}
    for table, names in ADDED.items():
        there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}
        for name in names:  # MariaDB keeps each although what follows is interrupted
            if name not in there:
                op.add_column(table, sa.Column(name, types[name], nullable=True))
    fill(op.get_bind())


def fill(connection: sa.Connection) -> None:
    """Fill the new columns from what earlier versions wrote."""
    events = sa.table("events", *map(sa.column, ("id", "kind", "sentence", "lost_s")))
    query = sa.select(events.c.id, events.c.sentence).order_by(events.c.id).limit(_PAGE)
    query = query.where(events.c.kind.in_(("preempted", "interrupted")), events.c.lost_s.is_(None))
    update = events.update().where(events.c.id == sa.bindparam("row")).values(lost_s=sa.bindparam("lost"))
    last = 0
    while rows := connection.execute(query.where(events.c.id > last)).all():
        last = rows[-1].id
        lost = [(row.id, match[1]) for row in rows if (match := _LOST.search(row.sentence))]
        if lost:
            connection.execute(update, [{"row": number, "lost": float(seconds)} for number, seconds in lost])
