"""A standby takes over from a controller that dies, freezes or is cut off; the former one acts no more when it is back.

The attack: SIGSTOP. A frozen controller keeps its connections and locks, so that without a lease nobody can take over;
and when it thaws it goes on with whatever it was about to do.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.controlplane import state, wiring
from commonwatt.engines import state_folder
from commonwatt.model.errors import EngineError, StoreError
from commonwatt.store import claim as claims
from commonwatt.store.check import check
from commonwatt.store.records import JobStatus
from tests.controlplane.chaos import (
    ENDED,
    FAST,
    ROUNDS,
    config_in,
    controller,
    problems,
    store_of,
    until_all_end,
    witness,
)
from tests.controlplane.wire import Wire
from tests.store.conftest import mariadb, postgresql

__all__ = ["mariadb", "postgresql"]


def until(condition, limit_s=120.0):
    end_s = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < end_s
        time.sleep(0.05)
    return found


@pytest.fixture
def site(kind, request, tmp_path):
    """A configuration, its store on a server, and a function that starts controllers, all of which are killed."""
    server = request.getfixturevalue(kind)
    url = server.database()
    path = config_in(tmp_path, live={"local": {"grace_s": 2}, "default_time_limit_s": 5, "store": url})
    store = store_of(path, url)
    for name in "ab":
        store.add_tenant(name, 1.0, 0.0)
    children = []

    def begin():
        children.append(controller(path))
        return children[-1]

    yield path, store, begin
    for child in children:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    store.database.close()
    server.drop(url)


def active(store):
    """Process of the controller that has taken decisions under the present claim."""
    return until(lambda: (found := store.setting("controller")) and found["pid"] == store.setting("claim")["pid"]
                 and found["pid"])  # fmt: skip


def taken_over(store, before):
    return until(lambda: (pid := active(store)) != before and pid)


def submit(store, name, logs, seconds=0.3, **more):
    return store.submit("ab"[len(name) % 2], witness(name, logs, seconds, **more), time.time())[0].id


def several(store, name, logs, rng):
    """Submit six jobs, one after the other; returns them."""
    jobs = []
    for n in range(6):
        more = {"epochs": int(rng.integers(1, 4)), "gpus": int(rng.integers(1, 3))}
        jobs.append(submit(store, f"{name}-{n}", logs, float(rng.uniform(0.1, 1.5)), **more))
        time.sleep(float(rng.uniform(0.0, 0.2)))
    return jobs


@pytest.mark.long
@pytest.mark.parametrize("kind", ["postgresql"])
def test_two_that_start_at_once_are_one_and_the_other_takes_over_from_the_dead_and_the_frozen(site, tmp_path):
    _path, store, begin = site
    both = {begin(), begin()}
    first = active(store)
    (second,) = both - {first}
    jobs = [submit(store, "x", tmp_path), submit(store, "long", tmp_path, 12.0, epochs=4)]
    until_all_end(store, jobs[:1])
    assert active(store) == first  # the other one stands by
    os.kill(first, signal.SIGSTOP)
    jobs.append(submit(store, "while-frozen", tmp_path))
    assert taken_over(store, first) == second
    until_all_end(store, [jobs[-1]])
    assert os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) == -signal.SIGKILL  # on the same machine
    third = begin()
    os.kill(second, signal.SIGKILL)
    jobs.append(submit(store, "after-a-death", tmp_path))
    assert taken_over(store, second) == third
    until_all_end(store, jobs)
    assert problems(store, tmp_path, jobs) == []
    assert check(store.database).problems == ()
    kinds = [event.kind for event in store.events(job=jobs[1])]
    assert "interrupted" not in kinds  # it ran on through both


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mariadb"])
def test_who_was_frozen_at_any_moment_acts_no_more_when_it_thaws(site, tmp_path, monkeypatch):
    """As on another machine, where nobody can kill it."""
    _path, store, begin = site
    monkeypatch.setattr(state_folder, "_killed", lambda _: False)
    monkeypatch.setattr(claims, "_process", lambda _: None)
    rng = np.random.default_rng(1)
    begin(), begin()
    jobs = []
    for k in range(max(1, ROUNDS // 6)):
        now = active(store)
        jobs += several(store, f"j{k}", tmp_path, rng)
        os.kill(now, signal.SIGSTOP)
        taken_over(store, now)
        os.kill(now, signal.SIGCONT)
        time.sleep(float(rng.uniform(0.0, 1.0)))
    until_all_end(store, jobs)
    assert problems(store, tmp_path, jobs) == []
    assert check(store.database).problems == ()


@pytest.mark.long
@pytest.mark.parametrize("silently", [True, False])
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_who_is_cut_off_from_the_database_acts_no_more(site, tmp_path, monkeypatch, silently):
    """The network between a controller and the database is cut, at any moment; it goes on running meanwhile."""
    path, store, _ = site
    monkeypatch.setattr(state_folder, "_killed", lambda _: False)  # as on another machine
    monkeypatch.setattr(claims, "_process", lambda _: None)
    rng, jobs, wires = np.random.default_rng(3), [], {}
    path.write_text(path.read_text().replace(f":{store.database.url.port}/", ":${CUT_PORT}/"))
    hold = state.hold  # to both, it would be one address; here each has a wire of its own
    monkeypatch.setattr(state, "hold", lambda folder, _, **more: hold(folder, "the store", **more))
    try:
        for _ in range(2):
            wire = Wire(store.database.url.port)
            monkeypatch.setenv("CUT_PORT", str(wire.port))
            wires[controller(path)] = wire
        for k in range(max(1, ROUNDS // 6)):
            now = active(store)
            jobs += several(store, f"j{k}", tmp_path, rng)
            wires[now].cut(silently=silently)
            jobs.append(submit(store, f"cut{k}", tmp_path))
            other = taken_over(store, now)
            until_all_end(store, [jobs[-1]])
            wires[now].mend()
            time.sleep(float(rng.uniform(0.0, 1.0)))
            assert active(store) == other  # who was cut off stands by
        until_all_end(store, jobs)
        os.kill(other, signal.SIGKILL)
        jobs.append(submit(store, "after", tmp_path))
        assert taken_over(store, other) == now  # it is of use again
        until_all_end(store, jobs)
        assert problems(store, tmp_path, jobs) == []
        assert check(store.database).problems == ()
    finally:
        for child, wire in wires.items():
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            wire.close()


@contextmanager
def opened(path, **more):
    live = wiring.open_live(path, pace=FAST, **more)
    try:
        live.start()
        yield live
    finally:
        live.close()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["postgresql"])
def test_a_standby_shows_what_the_active_one_does_and_is_active_at_once_when_that_stops(site, tmp_path):
    path, store, _ = site
    with opened(path) as first:
        assert first.supervisor.active
        until(lambda: first.supervisor.snapshot().decided_s)
        job = submit(store, "job", tmp_path, 30.0)
        until(lambda: store.job(job).status is JobStatus.RUNNING)
        with opened(path) as second:
            assert not second.supervisor.active
            shown = second.supervisor.snapshot()
            assert (shown.role, shown.healthy, shown.mode) == ("standby", True, "live")
            assert {name for node in shown.nodes if job in node.jobs for name in [node.name]} == set(
                store.job(job).nodes
            )
            assert (shown.busy_gpus, shown.total_gpus, shown.running) == (1, 4, 1)
            assert {node.state for node in shown.nodes} == {"on"}
            assert {node.power_w for node in shown.nodes} == {None}  # nobody wrote it down
            with pytest.raises(StoreError, match=r"another controller, process .* already runs on the store"), \
                    opened(path, standby=False):  # fmt: skip
                pass
            first.supervisor.stop()
            until(lambda: second.supervisor.active and second.supervisor.snapshot().role == "active")
            store.ask("cancel", time.time(), job=job)
            until(lambda: store.job(job).status in ENDED)
    assert [event.kind for event in store.events(job=job)].count("started") == 1


@pytest.mark.parametrize("kind", ["postgresql"])
def test_a_standby_without_the_state_folder_of_the_jobs_is_refused(site, tmp_path):
    path, store, begin = site
    begin()
    active(store)
    other = tmp_path / "other"
    other.mkdir()
    copy = Path(other / "live.yaml")
    copy.write_text(path.read_text())
    with pytest.raises(EngineError, match="a standby needs the same folder"), opened(copy):
        pass
