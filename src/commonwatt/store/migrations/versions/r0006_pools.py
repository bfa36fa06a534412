"""Samples say what each pool of the capacity plan wanted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

__all__ = ["ADDED", "branch_labels", "depends_on", "down_revision", "revision", "upgrade"]

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

ADDED = {"samples": ("wanted_by_pool",)}
"""Columns by table: a backup of an earlier revision lacks them. Null: there was one pool."""


def upgrade() -> None:
    """Go on to this revision."""
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("samples")}
    if "wanted_by_pool" not in there:  # MariaDB keeps it although what follows is interrupted
        op.add_column("samples", sa.Column("wanted_by_pool", sa.JSON(none_as_null=True), nullable=True))
