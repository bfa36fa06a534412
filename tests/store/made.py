"""Jobs, ticks and rows for tests of the store."""

from __future__ import annotations

import pytest

from commonwatt.model.job_file import JobFile
from commonwatt.store.records import EventRow, IntentRow, SampleRow
from commonwatt.store.tables import metadata

SERVERS_SLOW = ["sqlite", *(pytest.param(name, marks=pytest.mark.long) for name in ("mariadb", "postgresql"))]
"""For tests that start several processes: on SQLite always, on servers with the slow ones."""

__all__ = ["SERVERS_SLOW", "event", "everything", "file", "intent", "sample", "spent"]


def file(name="train", **more) -> JobFile:
    return JobFile(name=name, command="python train.py", **more)


def event(job=1, time_s=1.0, kind="started", nodes=("n1",), **more) -> EventRow:
    values = {"gpus": 1, "reason": "starts-now", "sentence": "it starts"} | more
    return EventRow(0, time_s, kind, job, nodes, **values)


def intent(job=1, attempt=1, kind="start", **more) -> IntentRow:
    return IntentRow(f"{kind}-{job}-{attempt}", kind, job, attempt, (0, 1), 2, 4.5, **more)


def sample(time_s=1.0, power_w=100.0) -> SampleRow:
    return SampleRow(time_s, 1, power_w, 1, 2, 4, 4, 0.01)


def spent(energy_uj=1, cost_n=2, carbon_ug=3, gpu_us=4) -> dict:
    return {"energy_uj": energy_uj, "cost_n": cost_n, "carbon_ug": carbon_ug, "gpu_us": gpu_us}


def everything(database) -> dict[str, list[tuple]]:
    """Every row of every table, but for what claims and ticks note of themselves."""
    with database.reading(snapshot=True) as c:
        rows = {
            t.name: sorted((tuple(map(repr, row)) for row in c.execute(t.select())), key=repr)
            for t in metadata.sorted_tables
        }
    rows["settings"] = [row for row in rows["settings"] if row[0] not in ("'claim'", "'tick'")]
    return rows
