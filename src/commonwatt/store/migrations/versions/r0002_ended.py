"""Jobs are found by when they ended."""

from __future__ import annotations

from alembic import op

__all__ = ["branch_labels", "depends_on", "down_revision", "revision", "upgrade"]

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go on to this revision."""
    # On MariaDB each is kept although what follows is interrupted.
    op.create_index("ix_jobs_ended_s_id", "jobs", ["ended_s", "id"], if_not_exists=True)
    op.create_index("ix_jobs_tenant_ended_s_id", "jobs", ["tenant", "ended_s", "id"], if_not_exists=True)
