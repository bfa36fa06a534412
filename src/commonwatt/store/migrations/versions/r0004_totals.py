"""Sums of the ledger by row and tenant, kept as it grows: to add up 100,000 jobs takes half a second."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from commonwatt.store.columns import Whole

__all__ = ["ADDED_TABLES", "branch_labels", "depends_on", "down_revision", "fill", "revision", "upgrade"]

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

ADDED_TABLES = ("totals",)
"""A backup of an earlier revision lacks them."""

_COLUMNS = ("energy_uj", "cost_n", "carbon_ug", "gpu_us")
_HOW: dict[str, Any] = {
    "sqlite_autoincrement": True, "mariadb_engine": "InnoDB", "mariadb_default_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_nopad_bin",
}  # fmt: skip


def upgrade() -> None:
    """Go on to this revision."""
    if not sa.inspect(op.get_bind()).has_table("totals"):  # MariaDB keeps it although what follows is interrupted
        op.create_table(
            "totals",
            sa.Column("row", sa.String(length=16), nullable=False),
            sa.Column("tenant", sa.String(128), nullable=False),
            sa.Column("energy_uj", Whole(), nullable=True),
            sa.Column("cost_n", Whole(), nullable=True),
            sa.Column("carbon_ug", Whole(), nullable=True),
            sa.Column("gpu_us", Whole(), nullable=True),
            sa.PrimaryKeyConstraint("row", "tenant", name=op.f("pk_totals")),
            **_HOW,
        )
    fill(op.get_bind())


def fill(connection: sa.Connection) -> None:
    """Add up the ledger that is there."""
    ledger = sa.table("ledger", sa.column("row", sa.String), sa.column("job", sa.BigInteger), *_wholes())
    jobs = sa.table("jobs", sa.column("id", sa.BigInteger), sa.column("tenant", sa.String))
    totals = sa.table("totals", sa.column("row", sa.String), sa.column("tenant", sa.String), *_wholes())
    query = sa.select(ledger.c.row, jobs.c.tenant, *(ledger.c[name] for name in _COLUMNS)).select_from(
        ledger.outerjoin(jobs, ledger.c.job == jobs.c.id)
    ).where(ledger.c.row != "segment")  # fmt: skip
    sums: dict[tuple[str, str], list[int | None]] = {}
    for row, tenant, *values in connection.execute(query):
        sum_ = sums.setdefault((row, tenant or ""), [0] * len(_COLUMNS))
        for k, value in enumerate(values):
            before = sum_[k]
            sum_[k] = None if before is None or value is None else before + value
    connection.execute(totals.delete())
    if sums:
        rows = [{"row": row, "tenant": name} | dict(zip(_COLUMNS, s, strict=True)) for (row, name), s in sums.items()]
        connection.execute(totals.insert(), rows)


def _wholes() -> list[sa.ColumnClause[int]]:
    return [sa.column(name, Whole()) for name in _COLUMNS]
