"""Tokens have a role, and may expire."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

__all__ = ["ADDED", "branch_labels", "depends_on", "down_revision", "revision", "upgrade"]

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

ADDED = {"tokens": ("role", "expires_s")}
"""Columns by table: a backup of an earlier revision lacks them. Null: an ordinary token, for ever."""


def upgrade() -> None:
    """Go on to this revision."""
    types: dict[str, Any] = {"role": sa.String(16), "expires_s": sa.Double()}
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("tokens")}
    for name in ADDED["tokens"]:  # MariaDB keeps each although what follows is interrupted
        if name not in there:
            op.add_column("tokens", sa.Column(name, types[name], nullable=True))
