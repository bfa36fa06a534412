"""Nothing lost, nothing twice: engines that fail, databases that go, disks that are full, clocks that are set."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")

import sqlalchemy as sa

from commonwatt.controlplane.supervisor import Pace, SteadyClock
from commonwatt.controlplane.wiring import open_live
from commonwatt.store.records import RequestKind
from tests.controlplane.chaos import FAST, config_in, ledger_problems, problems, store_of, until_all_end, witness
from tests.controlplane.faults import Faulty


@contextmanager
def keeping(path, *, clock=None, faulty=None, pace: Pace = FAST):
    """The controller in this process."""
    live = open_live(path, pace=pace, clock=clock)
    make = live.supervisor._make_engine
    if faulty is not None:
        live.supervisor._make_engine = lambda: Faulty(make(), *faulty)
    live.supervisor.start()
    try:
        yield live
    finally:
        live.close()


def submit(store, tmp_path, count: int, rng, seconds: float = 0.3, start: int = 0, **more) -> list[int]:
    jobs = []
    for k in range(start, start + count):
        file = witness(
            f"j{k}", tmp_path, float(rng.uniform(0.05, seconds)), epochs=int(rng.integers(1, 4)),
            gpus=int(rng.integers(1, 3)), **more,
        )  # fmt: skip
        jobs.append(store.submit("a", file, time.time(), key=f"k{k}")[0].id)
    return jobs


def prepared(tmp_path, url: str = "commonwatt.db", **live):
    given = {"local": {"grace_s": 2}, "default_time_limit_s": 5, "store": url, **live}
    path = config_in(tmp_path, live=given)
    store = store_of(path, url)
    store.add_tenant("a", 1.0, 0.0)
    return path, store


def zombies(tmp_path) -> list[str]:
    """Runners that have ended and that nobody has taken note of."""
    found = []
    for record in tmp_path.glob("state/runs/*/runner.json"):
        stat = Path(f"/proc/{json.loads(record.read_text())['runner']}/stat")
        with suppress(OSError):
            found += [stat.parts[2]] if stat.read_text().rsplit(")", 1)[1].split()[0] == "Z" else []
    return found


@pytest.mark.long
@pytest.mark.parametrize(("count", "how_often"), [(6, 0.15), pytest.param(24, 0.25, marks=pytest.mark.long)])
def test_engine_commands_that_fail_are_lost_or_hang(tmp_path, count, how_often):
    path, store = prepared(tmp_path)
    rng = np.random.default_rng(count)
    with keeping(path, faulty=(rng, how_often)) as live:
        jobs = submit(store, tmp_path, count, np.random.default_rng(1))
        until_all_end(store, jobs, 240.0)
        assert live.supervisor.snapshot().engine_errors > 0
        _until(lambda: not zombies(tmp_path))
    assert problems(store, tmp_path, jobs) == []


@pytest.mark.long
def test_a_database_that_is_full_for_a_while_takes_nothing_and_loses_nothing(tmp_path):
    path, store = prepared(tmp_path)
    rng = np.random.default_rng(0)
    with keeping(path) as live:
        _until(lambda: live.supervisor.snapshot().healthy)

        def full(connection, _):
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count={pages}")

        engine = live.database.engine
        sa.event.listen(engine, "connect", full)
        engine.dispose()
        jobs = submit(store, tmp_path, 32, rng, seconds=0.05)
        live.supervisor.wake()
        _until(lambda: live.supervisor.snapshot().store_errors > 1)
        sa.event.remove(engine, "connect", full)
        engine.dispose()
        until_all_end(store, jobs)
    assert problems(store, tmp_path, jobs) == []


@pytest.mark.long
def test_records_of_runs_that_cannot_be_written_cost_no_job(tmp_path):
    path, store = prepared(tmp_path, retries=0)
    runs = tmp_path / "state" / "runs"
    with keeping(path) as live:
        _until(lambda: live.supervisor.snapshot().healthy)
        runs.parent.mkdir(exist_ok=True)
        runs.write_text("")  # where the folders would be
        jobs = submit(store, tmp_path, 3, np.random.default_rng(0))
        live.supervisor.wake()
        _until(lambda: live.supervisor.snapshot().engine_errors > 2)
        assert all(store.job(job).status == "waiting" for job in jobs)
        runs.unlink()
        until_all_end(store, jobs)
    assert problems(store, tmp_path, jobs) == []


@pytest.mark.long
@pytest.mark.parametrize(
    "jumps_s",
    [
        (5400.0, -9000.0, 30.0),
        pytest.param((7200.0,), marks=pytest.mark.long),
        pytest.param((-7200.0,), marks=pytest.mark.long),
    ],
)
def test_a_clock_that_is_set(tmp_path, jumps_s):
    """What is metered is the time that passed, and every job ends once."""
    wall = [0.0]
    began_s = time.monotonic()
    clock = SteadyClock(lambda: time.time() + wall[0])
    path, store = prepared(tmp_path)
    rng = np.random.default_rng(2)
    with keeping(path, clock=clock) as live:
        jobs = submit(store, tmp_path, 2, rng)
        for k, jump_s in enumerate(jumps_s):
            wall[0] += jump_s
            jobs += submit(store, tmp_path, 2, rng, start=2 + 2 * k)
            live.supervisor.wake()
            before = live.supervisor.snapshot().ticks
            _until(lambda: live.supervisor.snapshot().ticks > before)  # noqa: B023
        until_all_end(store, jobs)
    passed_s = time.monotonic() - began_s
    assert problems(store, tmp_path, jobs) == []
    rows = store.ledger()
    assert all(row["energy_uj"] >= 0 and row["gpu_us"] >= 0 for row in rows)
    gpu_s = sum(row["gpu_us"] for row in rows if row["row"] == "meter") / 1e6
    assert gpu_s <= 4 * passed_s + 8  # 4 GPUs; a set clock is noticed to a second on each node
    for job in jobs:
        row = store.job(job)
        assert row.ended_s >= row.began_s


def _until(true, limit_s: float = 120.0) -> None:
    end_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.02)


@pytest.mark.slow
def test_a_job_over_its_time_limit_fails_and_says_so(tmp_path):
    path, store = prepared(tmp_path)
    with keeping(path):
        job = store.submit("a", witness("long", tmp_path, 60.0, time_limit_s=0.5), time.time())[0].id
        until_all_end(store, [job])
    row = store.job(job)
    assert (row.status, row.reason) == ("failed", "time-limit")
    assert "time limit of 0.5 s" in row.sentence


@pytest.mark.long
def test_a_restored_store_does_not_take_the_runs_of_another_life_for_its_own(tmp_path):
    path, store = prepared(tmp_path)
    with keeping(path):
        jobs = submit(store, tmp_path, 2, np.random.default_rng(0))
        until_all_end(store, jobs)
    store.database.close()
    for left in tmp_path.glob("commonwatt.db*"):
        left.unlink()
    for left in tmp_path.glob("j*"):
        left.unlink()
    path, store = prepared(tmp_path)
    again = submit(store, tmp_path, 2, np.random.default_rng(0))
    assert again == jobs
    with keeping(path):
        until_all_end(store, again)
    assert problems(store, tmp_path, again) == []
    assert len(list((tmp_path / "state" / "aside").glob("*/runs-*"))) == 2


@pytest.mark.slow
def test_what_is_old_is_deleted_outside_ticks(tmp_path, monkeypatch):
    monkeypatch.setattr("commonwatt.controlplane.supervisor._CLEAR_FIRST_S", 0.0)
    monkeypatch.setattr("commonwatt.controlplane.supervisor._CLEAR_S", 0.05)
    path, store = prepared(tmp_path, keep_days=1e-6)  # a tenth of a second
    with keeping(path):
        jobs = submit(store, tmp_path, 2, np.random.default_rng(0))
        until_all_end(store, jobs)
        _until(lambda: not list((tmp_path / "state" / "runs").iterdir()) and not store.events())
    assert [store.job(job).status for job in jobs] == ["completed"] * 2
    assert ledger_problems(store) == []


@pytest.mark.slow
def test_a_node_that_moves_in_the_configuration_keeps_its_jobs(tmp_path):
    nodes = [
        {"name": name, "gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 200} for name in ("left", "right", "more")
    ]
    slots = {"left": [0, 1], "right": [2, 3], "more": [4, 5]}
    live = {"local": {"grace_s": 2, "slots": {k: slots[k] for k in ("left", "right")}}, "retries": 0}
    path = config_in(tmp_path, nodes=nodes[:2], live=live)
    store = store_of(path)
    store.add_tenant("a", 1.0, 0.0)
    held = [tmp_path / f"j{k}.held" for k in range(2)]
    for file in held:
        file.touch()
    with keeping(path):
        jobs = [store.submit("a", witness(f"j{k}", tmp_path, 0.1, gpus=2), time.time())[0].id for k in range(2)]
        _until(lambda: all((tmp_path / f"j{k}.log").exists() for k in range(2)))
        _until(lambda: all(store.job(job).status == "running" for job in jobs))
    where = [store.job(job).nodes for job in jobs]
    live["local"]["slots"] = slots
    config_in(tmp_path, nodes=nodes[::-1], live=live)
    with keeping(path) as again:
        _until(lambda: again.supervisor.snapshot().ticks > 0)
        assert [again.supervisor.snapshot().jobs[job].nodes for job in jobs] == where
        for file in held:
            file.unlink()
        until_all_end(store, jobs)
    assert problems(store, tmp_path, jobs) == []
    assert all("resumed" not in [e.kind for e in store.events(job=job)] for job in jobs)


@pytest.mark.slow
def test_requests_are_dealt_with_while_jobs_run(tmp_path):
    path, store = prepared(tmp_path)
    with keeping(path) as live:
        job = store.submit("a", witness("long", tmp_path, 60.0), time.time())[0].id
        _until(lambda: store.job(job).status == "running")
        store.ask(RequestKind.CANCEL, time.time(), job=job)
        live.supervisor.wake()
        until_all_end(store, [job])
    assert store.job(job).status == "cancelled"
    records = list((tmp_path / "state" / "runs").glob("*/end.json"))
    assert len(records) == 1
    assert records[0].stat().st_size > 0
