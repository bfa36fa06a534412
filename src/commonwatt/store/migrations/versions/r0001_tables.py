"""The tables as they were first."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

__all__ = ["branch_labels", "depends_on", "down_revision", "revision", "upgrade"]

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_WHOLE = sa.Numeric(38, 0).with_variant(sa.String(40), "sqlite")
_NAME = sa.String(128)
_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mariadb")
_REAL: sa.Double[float] = sa.Double()
_HOW: dict[str, Any] = {
    "sqlite_autoincrement": True, "mariadb_engine": "InnoDB", "mariadb_default_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_nopad_bin",
}  # fmt: skip


def upgrade() -> None:
    """Create all tables."""
    op.create_table(
        "audit",
        sa.Column("id", _BIG, autoincrement=True, nullable=False),
        sa.Column("at_s", _REAL, nullable=False),
        sa.Column("actor", _NAME, nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("target", _NAME, nullable=False),
        sa.Column("outcome", sa.String(length=32), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
        **_HOW,
    )
    op.create_index("ix_audit_at_s", "audit", ["at_s"])
    op.create_table(
        "events",
        sa.Column("id", _BIG, autoincrement=True, nullable=False),
        sa.Column("time_s", _REAL, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("job", _BIG, nullable=True),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("reason", _NAME, nullable=False),
        sa.Column("sentence", _TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        **_HOW,
    )
    op.create_index("ix_events_job_id", "events", ["job", "id"])
    op.create_index("ix_events_time_s", "events", ["time_s"])
    op.create_table(
        "intents",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("job", _BIG, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("gpus_per_node", sa.Integer(), nullable=False),
        sa.Column("at_s", _REAL, nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.Column("cause", _TEXT, nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_intents")),
        **_HOW,
    )
    op.create_index("ix_intents_job", "intents", ["job"])
    op.create_index("ix_intents_outcome", "intents", ["outcome"])
    op.create_table(
        "ledger",
        sa.Column("row", sa.String(length=16), nullable=False),
        sa.Column("job", _BIG, autoincrement=False, nullable=False),
        sa.Column("energy_uj", _WHOLE, nullable=True),
        sa.Column("cost_n", _WHOLE, nullable=True),
        sa.Column("carbon_ug", _WHOLE, nullable=True),
        sa.Column("gpu_us", _WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("row", "job", name=op.f("pk_ledger")),
        **_HOW,
    )
    op.create_table(
        "profiles",
        sa.Column("id", _BIG, autoincrement=True, nullable=False),
        sa.Column("kind", _NAME, nullable=False),
        sa.Column("job", _BIG, nullable=True),
        sa.Column("gpu_type", _NAME, nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("epoch_s", _REAL, nullable=False),
        sa.Column("gpu_w", _REAL, nullable=True),
        sa.Column("epochs", _REAL, nullable=False),
        sa.Column("measured_s", _REAL, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_profiles")),
        **_HOW,
    )
    op.create_index("ix_profiles_kind", "profiles", ["kind"])
    op.create_table(
        "requests",
        sa.Column("id", _BIG, autoincrement=True, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("job", _BIG, nullable=True),
        sa.Column("node", _NAME, nullable=True),
        sa.Column("value", sa.JSON(), nullable=True),
        sa.Column("at_s", _REAL, nullable=False),
        sa.Column("done", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_requests")),
        **_HOW,
    )
    op.create_index("ix_requests_done_id", "requests", ["done", "id"])
    op.create_table(
        "samples",
        sa.Column("time_s", _REAL, nullable=False),
        sa.Column("busy_gpus", sa.Integer(), nullable=False),
        sa.Column("power_w", _REAL, nullable=True),
        sa.Column("running", sa.Integer(), nullable=False),
        sa.Column("waiting", sa.Integer(), nullable=False),
        sa.Column("on_gpus", sa.Integer(), nullable=False),
        sa.Column("wanted_gpus", sa.Integer(), nullable=False),
        sa.Column("tick_s", _REAL, nullable=False),
        sa.PrimaryKeyConstraint("time_s", name=op.f("pk_samples")),
        **_HOW,
    )
    op.create_table(
        "settings",
        sa.Column("name", _NAME, nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_settings")),
        **_HOW,
    )
    op.create_table(
        "tenants",
        sa.Column("name", _NAME, nullable=False),
        sa.Column("weight", _REAL, nullable=False),
        sa.Column("created_s", _REAL, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_tenants")),
        **_HOW,
    )
    op.create_table(
        "jobs",
        sa.Column("id", _BIG, autoincrement=True, nullable=False),
        sa.Column("name", _NAME, nullable=False),
        sa.Column("tenant", _NAME, nullable=False),
        sa.Column("idempotency_key", _NAME, nullable=True),
        sa.Column("file", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("held", sa.Boolean(), nullable=False),
        sa.Column("submit_s", _REAL, nullable=False),
        sa.Column("due_s", _REAL, nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("settled", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("began_s", _REAL, nullable=True),
        sa.Column("started_s", _REAL, nullable=True),
        sa.Column("ended_s", _REAL, nullable=True),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("gpu_type", _NAME, nullable=True),
        sa.Column("gpus_per_node", sa.Integer(), nullable=False),
        sa.Column("done_epochs", _REAL, nullable=False),
        sa.Column("kept_epochs", _REAL, nullable=False),
        sa.Column("times", sa.JSON(), nullable=True),
        sa.Column("reason", _NAME, nullable=True),
        sa.Column("sentence", _TEXT, nullable=True),
        sa.Column("expected_start_s", _REAL, nullable=True),
        sa.Column("expected_end_s", _REAL, nullable=True),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name=op.f("fk_jobs_tenant")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("tenant", "idempotency_key", name=op.f("uq_jobs_tenant_idempotency_key")),
        **_HOW,
    )
    op.create_index("ix_jobs_status_id", "jobs", ["status", "id"])
    op.create_index("ix_jobs_tenant_id", "jobs", ["tenant", "id"])
    op.create_index("ix_jobs_tenant_status", "jobs", ["tenant", "status"])
    op.create_table(
        "tokens",
        sa.Column("id", _BIG, autoincrement=True, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("tenant", _NAME, nullable=True),
        sa.Column("label", _NAME, nullable=False),
        sa.Column("created_s", _REAL, nullable=False),
        sa.Column("revoked_s", _REAL, nullable=True),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name=op.f("fk_tokens_tenant")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_tokens_digest")),
        **_HOW,
    )
