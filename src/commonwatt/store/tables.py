"""The tables. Times are seconds since 1970-01-01 UTC; energy is in microjoules, money in nano-currency."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from commonwatt.store.columns import Whole

__all__ = [
    "audit", "events", "intents", "jobs", "ledger", "metadata", "profiles", "requests", "samples", "settings",
    "tenants", "tokens", "totals",
]  # fmt: skip

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_NAME = sa.String(128)
_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mariadb")
_REAL: sa.Double[float] = sa.Double()
# Row numbers are never given again, even after pruning; texts are compared byte by byte, with trailing blanks.
_HOW: dict[str, Any] = {
    "sqlite_autoincrement": True, "mariadb_engine": "InnoDB", "mariadb_default_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_nopad_bin",
}  # fmt: skip


def _id() -> sa.Column[int]:
    return sa.Column("id", _BIG, primary_key=True, autoincrement=True)


settings = sa.Table(
    "settings",
    metadata,
    sa.Column("name", _NAME, primary_key=True),
    sa.Column("value", sa.JSON, nullable=False),
    **_HOW,
)
"""``mode``, ``drained`` (node names), ``claim`` (whose store it is), ``pruned_s``, ``trusted_s``, and more."""

tenants = sa.Table(
    "tenants",
    metadata,
    sa.Column("name", _NAME, primary_key=True),
    sa.Column("weight", _REAL, nullable=False),
    sa.Column("created_s", _REAL, nullable=False),
    **_HOW,
)

tokens = sa.Table(
    "tokens",
    metadata,
    _id(),
    sa.Column("digest", sa.String(64), nullable=False, unique=True),  # SHA-256 of the token, in hexadecimal
    sa.Column("tenant", _NAME, sa.ForeignKey("tenants.name"), nullable=True),  # null: an operator's
    sa.Column("label", _NAME, nullable=False),
    sa.Column("created_s", _REAL, nullable=False),
    sa.Column("revoked_s", _REAL, nullable=True),
    sa.Column("role", sa.String(16), nullable=True),  # viewer, admin; null: an ordinary member, or an operator
    sa.Column("expires_s", _REAL, nullable=True),
    **_HOW,
)

jobs = sa.Table(
    "jobs",
    metadata,
    _id(),
    sa.Column("name", _NAME, nullable=False),
    sa.Column("tenant", _NAME, sa.ForeignKey("tenants.name"), nullable=False),
    sa.Column("idempotency_key", _NAME, nullable=True),
    sa.Column("file", sa.JSON, nullable=False),  # JobFile as validated
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("held", sa.Boolean, nullable=False, default=False),
    sa.Column("submit_s", _REAL, nullable=False),
    sa.Column("due_s", _REAL, nullable=True),
    sa.Column("attempts", sa.Integer, nullable=False, default=0),  # times it was started
    sa.Column("settled", sa.Integer, nullable=False, default=0),  # last attempt whose end was processed
    sa.Column("failures", sa.Integer, nullable=False, default=0),  # interruptions since it last made progress
    sa.Column("began_s", _REAL, nullable=True),
    sa.Column("started_s", _REAL, nullable=True),  # of its present or last run
    sa.Column("ended_s", _REAL, nullable=True),
    sa.Column("nodes", sa.JSON, nullable=False),  # names; [] unless it runs
    sa.Column("gpu_type", _NAME, nullable=True),
    sa.Column("gpus_per_node", sa.Integer, nullable=False, default=0),
    sa.Column("done_epochs", _REAL, nullable=False, default=0.0),
    sa.Column("kept_epochs", _REAL, nullable=False, default=0.0),
    sa.Column("times", sa.JSON, nullable=True),  # configurations with time, power and their source
    sa.Column("reason", _NAME, nullable=True),
    sa.Column("sentence", _TEXT, nullable=True),
    sa.Column("facts", sa.JSON, nullable=True),  # of the reason, where a sentence is made of them when it is asked for
    sa.Column("expected_start_s", _REAL, nullable=True),
    sa.Column("expected_end_s", _REAL, nullable=True),
    sa.UniqueConstraint("tenant", "idempotency_key"),
    sa.Index("ix_jobs_ended_s_id", "ended_s", "id"),
    sa.Index("ix_jobs_status_id", "status", "id"),
    sa.Index("ix_jobs_tenant_ended_s_id", "tenant", "ended_s", "id"),
    sa.Index("ix_jobs_tenant_id", "tenant", "id"),
    sa.Index("ix_jobs_tenant_status", "tenant", "status"),
    **_HOW,
)

requests = sa.Table(
    "requests",
    metadata,
    _id(),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("job", _BIG, nullable=True),
    sa.Column("node", _NAME, nullable=True),
    sa.Column("value", sa.JSON, nullable=True),
    sa.Column("at_s", _REAL, nullable=False),
    sa.Column("done", sa.Boolean, nullable=False, default=False),
    sa.Index("ix_requests_done_id", "done", "id"),
    **_HOW,
)
"""Requests to the controller: submit, cancel, hold, release, drain, ..."""

intents = sa.Table(
    "intents",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),  # KIND-JOB-ATTEMPT-RANDOM
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("job", _BIG, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("nodes", sa.JSON, nullable=False),
    sa.Column("gpus_per_node", sa.Integer, nullable=False),
    sa.Column("at_s", _REAL, nullable=False),
    sa.Column("outcome", sa.String(16), nullable=True),  # null: not known yet; done, failed, void
    sa.Column("cause", _TEXT, nullable=True),
    sa.Index("ix_intents_outcome", "outcome"),
    sa.Index("ix_intents_job", "job"),
    **_HOW,
)
"""Commands to the engine, written before they are given."""

events = sa.Table(
    "events",
    metadata,
    _id(),
    sa.Column("time_s", _REAL, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("job", _BIG, nullable=True),
    sa.Column("nodes", sa.JSON, nullable=False),
    sa.Column("gpus", sa.Integer, nullable=False),
    sa.Column("reason", _NAME, nullable=False),
    sa.Column("sentence", _TEXT, nullable=False),
    sa.Column("lost_s", _REAL, nullable=True),  # work since the last checkpoint that is lost; null: unknown, or none
    sa.Column("requester", sa.String(16), nullable=True),  # tenant, operator; null: nobody, or unknown
    sa.Index("ix_events_job_id", "job", "id"),
    sa.Index("ix_events_time_s", "time_s"),
    **_HOW,
)

ledger = sa.Table(
    "ledger",
    metadata,
    sa.Column("row", sa.String(16), primary_key=True),  # job, segment, idle, starting, lost work, waking, asleep, meter
    sa.Column("job", _BIG, primary_key=True, autoincrement=False),  # 0: of no job
    sa.Column("energy_uj", Whole(), nullable=True),
    sa.Column("cost_n", Whole(), nullable=True),
    sa.Column("carbon_ug", Whole(), nullable=True),
    sa.Column("gpu_us", Whole(), nullable=False),
    **_HOW,
)

totals = sa.Table(
    "totals",
    metadata,
    sa.Column("row", sa.String(16), primary_key=True),
    sa.Column("tenant", _NAME, primary_key=True),  # "": of no job
    sa.Column("energy_uj", Whole(), nullable=True),
    sa.Column("cost_n", Whole(), nullable=True),
    sa.Column("carbon_ug", Whole(), nullable=True),
    sa.Column("gpu_us", Whole(), nullable=True),
    **_HOW,
)
"""Sums of the ledger's rows by tenant, without segments, which are few: written whenever the ledger is."""

samples = sa.Table(
    "samples",
    metadata,
    sa.Column("time_s", _REAL, primary_key=True),
    sa.Column("busy_gpus", sa.Integer, nullable=False),
    sa.Column("power_w", _REAL, nullable=True),
    sa.Column("running", sa.Integer, nullable=False),
    sa.Column("waiting", sa.Integer, nullable=False),
    sa.Column("on_gpus", sa.Integer, nullable=False),
    sa.Column("wanted_gpus", sa.Integer, nullable=False),
    sa.Column("tick_s", _REAL, nullable=False),
    sa.Column("wanted_by_pool", sa.JSON(none_as_null=True), nullable=True),
    **_HOW,
)

profiles = sa.Table(
    "profiles",
    metadata,
    _id(),
    sa.Column("kind", _NAME, nullable=False),
    sa.Column("job", _BIG, nullable=True),
    sa.Column("gpu_type", _NAME, nullable=False),
    sa.Column("gpus", sa.Integer, nullable=False),
    sa.Column("epoch_s", _REAL, nullable=False),
    sa.Column("gpu_w", _REAL, nullable=True),
    sa.Column("epochs", _REAL, nullable=False),
    sa.Column("measured_s", _REAL, nullable=False),
    sa.Index("ix_profiles_kind", "kind"),
    **_HOW,
)

audit = sa.Table(
    "audit",
    metadata,
    _id(),
    sa.Column("at_s", _REAL, nullable=False),
    sa.Column("actor", _NAME, nullable=False),
    sa.Column("action", sa.String(32), nullable=False),
    sa.Column("target", _NAME, nullable=False),
    sa.Column("outcome", sa.String(32), nullable=False),
    sa.Column("detail", sa.JSON, nullable=True),
    sa.Index("ix_audit_at_s", "at_s"),
    **_HOW,
)
