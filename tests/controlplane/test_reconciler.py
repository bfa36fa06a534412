"""What the controller does with requests, faults and restarts, one look at a time."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
import yaml

pytest.importorskip("sqlalchemy")

from commonwatt.controlplane.snapshot import why_of
from commonwatt.controlplane.supervisor import _many_made
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.model.job_file import JobFile
from commonwatt.store.check import check
from commonwatt.store.controller_store import Tick
from commonwatt.store.records import JobStatus, RequestKind
from tests.controlplane.bench import Bench, ended_kinds, node
from tests.controlplane.chaos import config_in, store_of


@pytest.fixture
def bench(tmp_path, opened):
    def make(**changes) -> Bench:
        return opened(Bench(tmp_path, **changes))

    return make


def test_a_job_runs_to_its_end(bench):
    b = bench()
    job = b.submit(100.0)
    b.look()
    assert b.status(job) is JobStatus.RUNNING
    b.advance(100.5)
    b.look()
    assert b.kinds(job) == ["submitted", "started", "completed"]
    assert b.row(job).done_epochs == b.row(job).kept_epochs == 10
    assert b.row(job).gpu_type is None  # it is said of jobs that run


def test_a_job_that_was_late_when_it_came_is_not_told_to_be_late_since_then(bench):
    b = bench(nodes=[node("n", gpus=1)])
    first = b.submit(100.0, due="2020-01-01", tardiness_weight=1.0)
    second = b.submit(100.0, due="2020-01-01", tardiness_weight=1.0)
    b.look()
    for job in (first, second):
        assert why_of(b.row(job))[1].endswith("; it was submitted at its due date or later")


def test_waiting_jobs_start_after_a_restart_though_nothing_happens(bench):
    b = bench(live={"mode": "dry-run", "default_time_limit_s": 5})
    job = b.submit()
    b.look()
    assert b.status(job) is JobStatus.WAITING
    b.supervisor._write(Tick(settings={"mode": "live"}))
    b.begin()
    b.look()
    assert b.status(job) is JobStatus.RUNNING


def test_a_job_that_ended_before_it_could_be_cancelled_has_ended_once(bench):
    b = bench()
    job = b.submit(100.0)
    b.look()
    apply = b.engine.apply

    def late(commands):
        b.advance(200.0)  # while the command is under way
        return apply(commands)

    b.engine.apply = late
    b.ask(RequestKind.CANCEL, job=job)
    b.settle()
    assert ended_kinds(b.kinds(job)) == ["completed"]
    assert b.status(job) is JobStatus.COMPLETED


@pytest.mark.slow
def test_cancel_waiting_and_running_jobs_and_those_that_have_ended(bench):
    b = bench()
    running, waiting = b.submit(gpus=2), [b.submit(gpus=2) for _ in range(2)][1]
    b.look()
    b.ask(RequestKind.CANCEL, job=running)
    b.ask(RequestKind.CANCEL, job=waiting)
    b.ask(RequestKind.CANCEL, job=waiting)
    b.ask(RequestKind.CANCEL, job=10_000)
    b.settle()
    for job in (running, waiting):
        assert ended_kinds(b.kinds(job)) == ["cancelled"]
    assert b.live.store.setting("mode") == "live"
    assert not b.reconciler.store.requests()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("by", "reason", "sentence"),
    [
        ("operator", "cancelled-by-operator", "cancelled by an operator"),
        ("tenant", "cancelled", "cancelled by its owner"),
        (None, "cancelled", "cancelled"),
    ],
)  # fmt: skip
def test_a_cancelled_job_says_who_cancelled_it(bench, by, reason, sentence):
    b = bench()
    running, waiting = b.submit(gpus=2), [b.submit(gpus=2) for _ in range(2)][1]
    b.look()
    for job in (running, waiting):
        b.ask(RequestKind.CANCEL, job=job, value=None if by is None else {"by": by})
    b.settle()
    for job in (running, waiting):
        event = b.live.store.events(job=job)[-1]
        assert (event.kind, event.reason, event.sentence) == ("cancelled", reason, sentence)
        assert event.requester == by


@pytest.mark.slow
def test_a_held_job_waits_until_it_is_released_also_over_a_restart(bench):
    b = bench()
    b.ask(RequestKind.MODE, value="dry-run")
    job, other = b.submit(), b.submit()
    b.look()
    b.ask(RequestKind.HOLD, job=job)
    b.ask(RequestKind.MODE, value="live")
    b.settle()
    assert (b.status(job), b.status(other)) == (JobStatus.WAITING, JobStatus.RUNNING)
    assert b.row(job).held
    assert b.snapshot().jobs[job].expected_start_s is None
    b.begin()
    b.settle()
    assert b.status(job) is JobStatus.WAITING
    b.ask(RequestKind.RELEASE, job=job)
    b.look()
    assert b.status(job) is JobStatus.RUNNING
    b.ask(RequestKind.HOLD, job=job)  # one that runs stays
    b.settle()
    assert b.status(job) is JobStatus.RUNNING


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["random-greedy", "fifo", "edf"])
def test_on_a_drained_node_jobs_stay_and_none_begins(bench, solver):
    b = bench(policies=[{"solver": solver}])
    first = b.submit(1000.0, gpus=2)
    b.look()
    (node,) = b.row(first).nodes
    b.ask(RequestKind.DRAIN, node=node)
    others = [b.submit(10.0, gpus=1, due_in_s=20.0, tardiness_weight=1.0) for _ in range(6)]
    for _ in range(12):
        b.advance(5.0)
        b.look()
        for other in others:
            assert node not in b.row(other).nodes
    assert all(b.status(other) is JobStatus.COMPLETED for other in others)
    assert node in b.row(first).nodes or b.status(first) is JobStatus.WAITING or solver == "random-greedy"
    b.begin()  # the drain lasts
    late = b.submit(10.0, gpus=2)
    b.settle()
    assert node not in b.row(late).nodes
    b.ask(RequestKind.UNDRAIN, node=node)
    b.settle()
    assert b.reconciler.drains.names == ()


def test_an_engine_that_starts_jobs_of_others_hears_of_drains_while_live(bench):
    b, told = bench(), []
    b.engine.drain = lambda nodes: told.append(sorted(nodes))
    b.engine.capabilities = replace(b.engine.capabilities, drain=True)
    b.begin()
    b.settle()
    assert told == [[]]  # what another controller may have left
    b.ask(RequestKind.DRAIN, node="n-2")
    b.settle()
    assert told == [[], [1]]
    b.ask(RequestKind.MODE, value="dry-run")
    b.ask(RequestKind.UNDRAIN, node="n-2")
    b.settle()
    assert told == [[], [1]]
    b.ask(RequestKind.MODE, value="live")
    b.settle()
    assert told == [[], [1], []]


def test_an_engine_may_refuse_to_drain_which_is_said_once_and_one_that_is_away_is_asked_again(bench):
    b, told = bench(), []
    errors = [EngineDownError("away"), EngineError("Access denied"), EngineError("Access denied")]

    def refuse(nodes):
        told.append(set(nodes))
        if errors:
            raise errors.pop(0)

    b.ask(RequestKind.DRAIN, node="n-1")
    b.look()
    b.engine.drain = refuse
    b.engine.capabilities = replace(b.engine.capabilities, drain=True)
    b.begin()
    with pytest.raises(EngineDownError):
        b.look()
    b.begin()
    b.settle()
    b.settle()
    assert len(told) == 2  # what is refused is not asked for at each step
    for _ in range(5):
        b.advance(60.0)
        b.settle()
    assert len(told) == 4  # until it is allowed
    (event,) = b.live.store.events()
    assert (event.kind, event.nodes, event.job) == ("not-drained", ("n-1",), None)
    assert event.sentence == "the engine may still start other jobs on drained nodes: Access denied"
    assert b.reconciler.drains.names == ("n-1",)


def test_a_dry_run_says_of_each_job_what_would_become_of_it(bench):
    b = bench(live={"mode": "dry-run", "default_time_limit_s": 5}, nodes=[node("n")])
    first, second = b.submit(gpus=2), b.submit(gpus=2)
    b.settle()
    starts, waits = sorted((b.row(first), b.row(second)), key=lambda row: row.reason != "would-start")
    assert (starts.reason, starts.status) == ("would-start", JobStatus.WAITING)
    assert why_of(starts)[1].startswith("in mode live it would start: ")
    assert " would run on n with 2 GPUs" in why_of(starts)[1]
    assert any(" would run on n" in (event.sentence or "") for event in b.live.store.events(job=starts.id))
    assert waits.reason == "no-room"
    assert b.kinds(waits.id) == ["submitted", "waits"]


def test_what_a_job_has_done_is_known_though_it_is_cancelled(bench):
    """What is in no snapshot is lost, and not written down all the time; but it was done."""
    b = bench()
    job = b.submit(1000.0, epochs=10)
    b.settle()
    for seconds in (101.0, 19.0):
        b.advance(seconds)
        b.look()
    assert b.row(job).done_epochs == pytest.approx(1.01)
    b.ask(RequestKind.CANCEL, job=job)
    b.look()
    assert b.row(job).done_epochs == pytest.approx(1.2)


@pytest.mark.slow
def test_accounts_go_on_though_there_is_always_something_to_decide(bench):
    b = bench()
    job, other = b.submit(1000.0), b.submit(1000.0)
    b.settle()
    for _ in range(20):
        b.advance(2.0)
        b.ask(RequestKind.RELEASE, job=other)
        b.look()
    assert b.live.store.account(job)["gpu_us"] >= 30e6


@pytest.mark.slow
def test_only_accounts_that_have_changed_are_written(bench):
    """With many jobs that run, somebody comes or goes all the time."""
    b = bench(nodes=[node("n-1"), node("n-2")])
    first, second = b.submit(1000.0, gpus=2), b.submit(1000.0)
    b.settle()
    ticks, write = [], b.supervisor._write
    b.supervisor._write = lambda tick: ticks.append(tick) or write(tick)
    b.advance(2.0)
    third = b.submit(1000.0)
    b.look()
    assert set(ticks[-1].segments) == {second, third}  # they share a node, where somebody came
    b.advance(10.0)
    b.settle()
    assert set(ticks[-1].segments) == {first, second, third}
    b.begin()
    b.advance(1.0)
    b.ask(RequestKind.CANCEL, job=first)
    b.settle()
    b.supervisor._write(b.reconciler.finish())
    held_us = [b.live.store.account(job)["gpu_us"] for job in (first, second, third)]
    assert held_us == [26_000_000, 13_000_000, 11_000_000]


@pytest.mark.slow
def test_an_outgrown_session_leaves_nothing_unwritten(bench):
    b = bench()
    job = b.submit(1000.0)
    b.settle()
    b.advance(2.0)  # too soon for its account, or its progress, to be written anyhow
    b.supervisor._write(b.reconciler.finish())
    assert b.live.store.account(job)["gpu_us"] == 2_000_000
    assert b.row(job).done_epochs == pytest.approx(0.02)


@pytest.mark.slow
def test_dry_run_commands_nothing_says_each_thing_once_and_goes_live(bench):
    b = bench()
    b.ask(RequestKind.MODE, value="dry-run")
    job = b.submit()
    for _ in range(4):
        b.look()
        b.advance(60.0)
    assert b.engine.prunable() == []
    assert b.engine.recorded_runs() == []
    assert b.kinds(job) == ["submitted", "would-start"]
    assert b.snapshot().mode == "dry-run"
    b.ask(RequestKind.MODE, value="live")
    b.look()
    assert b.status(job) is JobStatus.RUNNING
    other = b.submit(gpus=2)
    b.ask(RequestKind.MODE, value="dry-run")
    b.look()
    b.ask(RequestKind.MODE, value="live")
    b.ask(RequestKind.MODE, value="dry-run")
    b.look()
    assert b.kinds(other).count("would-start") == 2  # said anew: it had been live in between


def test_virtual_work_goes_on_when_the_controller_begins_anew(bench):
    b = bench()
    runs, ends = b.submit(100.0), b.submit(30.0)
    b.look()
    b.advance(50.0)
    b.begin()
    b.settle()
    assert b.kinds(runs) == ["submitted", "started"]
    assert b.kinds(ends) == ["submitted", "started", "completed"]
    b.advance(51.0)
    b.settle()
    assert b.kinds(runs) == ["submitted", "started", "completed"]


@pytest.mark.slow
@pytest.mark.parametrize("given", ["again later", "again before the controller is back"])
def test_what_jobs_of_another_life_drew_is_idle_and_no_other_job_pays_for_it(bench, given):
    """An older store was restored: it never heard of a job that ran, and gives its number again."""
    b = bench(nodes=[node("n")])
    first = b.submit(10.0)
    b.settle()
    b.advance(11.0)
    b.settle()
    b.close()
    older = (b.folder / "commonwatt.db").read_bytes()
    b.open()
    forgotten = b.submit(100.0, gpus=2)
    b.settle()
    b.advance(200.0)  # it ends, and nobody has looked yet
    b.close()
    for left in b.folder.glob("commonwatt.db*"):
        left.unlink()
    (b.folder / "commonwatt.db").write_bytes(older)
    recorded_runs, job = b.virtual.recorded_runs, None
    b.virtual.recorded_runs = lambda: [replace(f, mark="" if f.handle == first else "another") for f in recorded_runs()]
    if given != "again later":
        store = store_of(b.path)
        job = store.submit("b", JobFile(name="j", command=("true",), times_s={"V100": {1: 1.0}}), b.clock())[0].id
        store.database.close()
    b.open()
    b.settle()
    job = job or b.submit(1.0, tenant="b")
    b.settle()
    b.advance(2.0)
    b.settle()
    assert (job, b.status(job)) == (forgotten, JobStatus.COMPLETED)
    b.advance(20.0)
    b.settle()
    assert check(b.live.database).problems == ()
    assert b.live.store.account(job)["energy_uj"] == 250_000_000  # 200 W and half of 100 W for a second
    idle = sum(row["energy_uj"] for row in b.live.store.ledger() if row["row"] == "idle")
    assert idle > 100 * 500_000_000


def test_a_start_that_was_not_written_down_is_taken_over(bench):
    b = bench()
    job = b.submit(100.0)
    write = b.reconciler.store.write
    b.reconciler.store.write = lambda tick: None  # as if it were killed before
    b.look()
    b.reconciler.store.write = write
    assert b.status(job) is JobStatus.WAITING
    b.begin()
    b.settle()
    assert b.kinds(job) == ["submitted", "started"]
    assert b.status(job) is JobStatus.RUNNING
    b.advance(101.0)
    b.settle()
    assert b.kinds(job) == ["submitted", "started", "completed"]


def change(b: Bench, **changes) -> None:
    """Change the configuration, and start again with it."""
    config = yaml.safe_load(b.path.read_text())
    b.close()
    b.path.write_text(yaml.safe_dump(config | changes))
    b.open()


def test_a_job_no_node_can_run_any_more_is_stopped_and_fails_with_its_reason(bench):
    b = bench(nodes=[node("n"), node("m", "A100")])
    job = b.submit(100.0, times_s={"A100": {1: 100.0}})
    b.look()
    b.advance(10.0)
    b.look()
    stopped = []
    apply = b.engine.apply
    b.engine.apply = lambda commands: stopped.extend(commands) or apply(commands)
    change(b, nodes=[node("n")])
    b.settle()
    assert (b.status(job), b.row(job).reason) == (JobStatus.FAILED, "never-fits")
    assert ended_kinds(b.kinds(job)) == ["failed"]
    assert [command.handle for command in stopped] == [job]
    rows = b.live.store.ledger()
    assert not any(row["row"] == "segment" for row in rows)
    assert b.live.store.account(job)["energy_uj"] > 0


def commanded(b) -> list:
    """Everything the engine is told from now on."""
    told, apply = [], b.engine.apply
    b.engine.apply = lambda commands: told.extend(commands) or apply(commands)
    return told


@pytest.mark.slow
def test_a_dry_run_that_begins_leaves_alone_what_does_not_fit_until_it_is_over(bench):
    b = bench(nodes=[node("n", count=2), node("m", "A100")])
    gone = b.submit(1000.0, times_s={"A100": {1: 1000.0}})
    fits = b.submit(1000.0)
    b.look()
    b.ask(RequestKind.MODE, value="dry-run")
    b.look()
    told = commanded(b)
    change(b, nodes=[node("n", count=2), node("m", "H100")])
    b.settle()
    assert [b.status(job) for job in (gone, fits)] == [JobStatus.RUNNING] * 2
    assert b.row(gone).sentence.endswith("a dry run leaves it alone")
    assert told == []
    assert b.reconciler.store.segments().keys() == {gone, fits}
    assert not b.reconciler.outgrown()
    b.ask(RequestKind.MODE, value="live")
    b.look()
    assert b.reconciler.outgrown()
    b.begin()
    b.settle()
    assert (b.status(gone), b.row(gone).reason) == (JobStatus.FAILED, "never-fits")
    assert [command.handle for command in told] == [gone]
    b.advance(1001.0)
    b.settle()
    assert b.status(fits) is JobStatus.COMPLETED


@pytest.mark.slow
def test_a_dry_run_that_begins_leaves_alone_what_runs_as_it_must_not(bench):
    b = bench(nodes=[node("n", count=2, gpus=4)])
    job = b.submit(1000.0, times_s={"V100": {1: 1000.0, 2: 600.0}}, due_in_s=620.0, tardiness_weight=1.0)
    b.look()
    assert b.row(job).gpus == 2
    b.ask(RequestKind.MODE, value="dry-run")
    b.look()
    told = commanded(b)
    b.supervisor._write(Tick(jobs={job: {"times": [row for row in b.row(job).times if row["gpus"] == 1]}}))
    change(b, nodes=[node("n", count=2, gpus=1)])
    b.settle()
    assert b.status(job) is JobStatus.RUNNING
    assert told == []
    b.advance(601.0)
    b.settle()
    assert b.status(job) is JobStatus.COMPLETED


def test_a_job_goes_on_with_the_types_that_are_left(bench):
    b = bench(nodes=[node("n"), node("m", "A100")])
    b.ask(RequestKind.MODE, value="dry-run")
    jobs = [
        b.submit(times_s={"A100": {1: 10.0}, "V100": {1: 100.0}}),
        b.submit(times_s=None, gpu_types=("A100", "V100")),
        b.submit(times_s={"A100": {1: 10.0}, "V100": {1: 100.0}}, gpu_type="A100"),
    ]
    b.look()
    b.ask(RequestKind.MODE, value="live")
    b.virtual = None
    change(b, nodes=[node("n", count=2)])
    b.settle()
    assert [b.status(job) for job in jobs] == [JobStatus.RUNNING] * 3


def test_the_weight_of_a_tenant_counts_from_the_next_decision_on(bench):
    b = bench()
    b.live.store.add_tenant("new", 7.0, 0.0)
    b.submit(tenant="new")
    b.look()
    assert b.reconciler.controller._weights["new"] == 7.0
    b.live.store.add_tenant("new", 3.0, 0.0)
    b.submit()
    b.look()
    assert b.reconciler.controller._weights["new"] == 3.0


def test_what_jobs_received_lasts_over_a_restart(bench):
    b = bench(policies=[{"solver": "las", "queues_gpu_s": [100]}])
    jobs = [b.submit(5000, gpus=2), b.submit(5000, gpus=2)]
    b.settle()
    b.hand.time_s += 300
    b.settle()

    def received() -> dict[int, tuple[float, float]]:
        registry, service = b.reconciler.controller.registry, b.reconciler.controller.service
        handles = [b.reconciler.engine.handle_of(job) for job in jobs]
        had = service.received(np.array(handles), b.clock())
        assert len(registry) == len(jobs)
        return dict(zip(jobs, zip(had.job_s[:, 0].tolist(), had.gpu_s.tolist(), strict=True), strict=True))

    before = received()
    assert sum(gpu_s for _, gpu_s in before.values()) == pytest.approx(1200, rel=0.05)  # both run
    b.settle()
    b.begin()
    assert received() == {job: pytest.approx(had) for job, had in before.items()}


def test_usage_lasts_over_a_restart_also_of_a_tenant_without_jobs(bench):
    b = bench()
    b.submit(100.0, tenant="b")
    b.look()
    b.advance(101.0)
    b.settle()
    used = b.reconciler.controller.usage()[1]["b"]
    assert used == pytest.approx(101.0, rel=1e-3)
    b.begin()
    b.settle()
    assert b.reconciler.controller.usage()[1]["b"] == pytest.approx(used)


def test_use_since_the_last_decision_survives_a_restart(bench):
    b = bench()
    b.submit(2000.0)
    b.look()
    before = b.reconciler.controller.usage()
    b.advance(40.0)
    b.look()
    assert b.reconciler.controller.usage() == before  # no decision was due
    b.begin()
    b.advance(60.0)
    b.settle()
    at_s, used = b.reconciler.controller.usage()
    assert used["a"] == pytest.approx(at_s - before[0], rel=1e-3)


@pytest.mark.slow
def test_a_job_of_which_nobody_knows_how_it_ended_is_started_again(bench):
    b = bench()
    job = b.submit(100.0)
    b.look()
    b.advance(55.0)
    b.look()
    b.virtual = None  # virtual work ends with its process
    b.close()
    b.open()
    b.settle()
    assert b.kinds(job) == ["submitted", "started", "interrupted", "resumed"]


@pytest.mark.slow
def test_a_session_with_many_ended_jobs_is_replaced(bench, monkeypatch):
    monkeypatch.setattr("commonwatt.controlplane.reconciler._MOST_ENDED", 3)
    b = bench()
    jobs = [b.submit(10.0) for _ in range(8)]
    assert not b.reconciler.outgrown()
    for _ in range(4):
        b.look()
        b.advance(11.0)
    assert all(b.status(job) is JobStatus.COMPLETED for job in jobs)
    assert b.reconciler.outgrown()
    b.begin()
    assert not b.reconciler.outgrown()
    assert len(b.reconciler.controller.registry) == 0


@pytest.mark.slow
def test_what_just_goes_on_is_written_now_and_then_and_nothing_of_it_is_lost(bench):
    """Accounts every 5 s, epochs in no snapshot every minute; those who look see all progress."""
    b = bench(policies=[{"solver": "fifo"}])
    job = b.submit(1000.0, epochs=2)
    b.settle()
    written, store = [], b.reconciler.store
    store.write, write = lambda tick: (written.append(tick), write(tick)), store.write
    for _ in range(30):  # new jobs, one after the other, that find no place
        b.advance(1.0)
        b.submit(500.0, gpus=2)
        b.look()
    accounts = [tick for tick in written if tick.segments or tick.ledger]
    assert len(accounts) <= 30 / 5 + 3  # and those in which jobs began
    assert all("metered" in tick.settings for tick in accounts)
    assert all("metered" not in tick.settings for tick in written if tick not in accounts)
    assert sum(job in tick.jobs for tick in written) <= 1
    assert b.snapshot().jobs[job].done_epochs > b.row(job).done_epochs
    b.begin()  # as after a crash
    b.advance(6.0)
    b.settle()
    ledger = b.live.store.ledger()
    metered = sum(row["energy_uj"] for row in ledger if row["row"] == "meter")
    assert metered == sum(row["energy_uj"] for row in ledger if row["row"] != "meter") > 0


@pytest.mark.long
def test_a_clock_that_is_far_ahead_for_a_while_has_nothing_deleted(bench, monkeypatch):
    """Neither our clock, which follows one that jumps ahead, nor a wall clock that was wrong from the beginning on."""
    b = bench()
    job = b.submit(5.0)
    b.settle()
    b.advance(10.0)
    b.settle()
    kinds = b.kinds(job)
    b.advance(3600.0)
    b.supervisor._clear(b.reconciler)
    b.advance(200 * 86400.0)  # of 180
    b.settle()
    b.supervisor._clear(b.reconciler)
    assert b.live.store.setting("pruned_s") < 1_800_000_000.0 - 178 * 86400.0
    assert b.virtual.prunable() == [job]
    jumped_s = b.live.store.setting("trusted_s")
    b.hand.time_s -= 200 * 86400.0  # set right again
    monkeypatch.setattr(b.clock, "_steady", lambda: b.hand.time_s + 200 * 86400.0)
    for _ in range(200):
        b.advance(3600.0)
        b.supervisor._clear(b.reconciler)
    assert b.live.store.setting("trusted_s") == b.hand.time_s > jumped_s
    assert b.kinds(job) == kinds == ["submitted", "started", "completed"]
    b.advance(190 * 86400.0)
    for _ in range(200):
        b.advance(3600.0)
        b.supervisor._clear(b.reconciler)
    assert b.kinds(job) == []
    assert b.virtual.prunable() == []


def test_a_job_that_was_interrupted_thousands_of_times_is_left_alone_no_longer_than_others(bench):
    b = bench(live={"retries": 10_000, "default_time_limit_s": 5})
    job = b.submit()
    b.look()
    b.reconciler.engine.jobs[0].failures = 2_000
    b.reconciler.engine.report_interrupted(0, "its node went away")
    b.look()
    assert b.status(job) is JobStatus.WAITING
    assert b.clock() < b.reconciler.next_s() <= b.clock() + 60


@pytest.mark.slow
def test_a_job_that_cannot_be_stopped_does_not_keep_a_controller_from_beginning(bench):
    b = bench(nodes=[node("n-1"), node("n-2")])
    over, other = b.submit(10_000.0, gpus=2), b.submit(100.0)
    b.settle()
    b.supervisor._write(Tick(jobs={over: {"status": JobStatus.CANCELLED, "ended_s": b.clock(), "nodes": []}}))
    b.cannot_stop(over)
    b.begin()
    b.advance(101.0)
    b.settle()
    assert b.status(other) is JobStatus.COMPLETED
    assert over in b.engine._running


@pytest.mark.slow
def test_phi_of_tenants_is_set_while_it_runs_and_kept_until_the_configuration_has_another(tmp_path):
    def phi(b: Bench) -> float:
        return b.reconciler.controller.policy.fairness.phi

    policy = {"solver": "lookahead", "fairness": {"phi": 1.0}}
    b = Bench(tmp_path, policies=[policy])
    b.settle()
    assert phi(b) == 1.0
    b.ask(RequestKind.FAIRNESS, value=0.3)
    b.settle()
    assert phi(b) == 0.3
    assert b.live.store.setting("fairness") == {"phi": 0.3, "instead_of": 1.0}
    b.close()
    b.open()
    b.settle()
    assert phi(b) == 0.3
    b.close()
    config_in(tmp_path, engine="simulated", policies=[{**policy, "fairness": {"phi": 0.8}}], interval_s=50)
    b.open()
    b.settle()
    assert phi(b) == 0.8
    b.close()
    config_in(tmp_path, engine="simulated", policies=[{"solver": "lookahead"}], interval_s=50)
    b.open()
    b.ask(RequestKind.FAIRNESS, value=0.3)  # of a client that knew the configuration before
    b.settle()
    assert b.reconciler.controller.policy.fairness is None
    b.close()


@pytest.mark.long
def test_full_collections_leave_out_what_a_controller_begins_with():
    class Node:
        def __init__(self):
            self.own = self

    before, kept = gc.get_threshold(), []

    def begin():
        with _many_made(again=False):
            assert gc.get_threshold()[:2] == before[:2]
            assert gc.get_threshold()[2] > 10**6
            kept.append(Node())
            raise RuntimeError

    gc.unfreeze()
    try:
        with pytest.raises(RuntimeError):
            begin()
        assert gc.get_threshold() == before
        assert gc.get_freeze_count()
        gone = weakref.ref(kept.pop())
        gc.collect()
        assert gone() is not None  # not looked at, until the next controller begins
        with _many_made(again=True):
            assert gone() is None
    finally:
        gc.unfreeze()


FAIR = {"solver": "lookahead", "half_life_s": 1000, "fairness": {"phi": 1.0}}


@pytest.mark.slow
def test_shares_of_tenants_are_what_the_last_decision_entitled_them_to(bench):
    b = bench(nodes=[node("n", gpus=4)], policies=[FAIR])
    assert b.supervisor.snapshot().shares == ()
    for _ in range(4):
        b.submit(1000.0, tenant="a")
    b.settle()
    assert b.supervisor.snapshot().shares == ()  # one tenant shares with nobody
    b.advance(500.0)
    b.submit(2000.0, tenant="b", gpus=4)
    b.settle()
    a, c = b.supervisor.snapshot().shares
    assert (a.name, c.name) == ("a", "b")
    assert a.entitled_gpus + c.entitled_gpus == pytest.approx(4)  # both together ask for more
    assert c.entitled_gpus > a.entitled_gpus  # which has used the cluster alone
    assert a.used_gpu_s == pytest.approx(2000, rel=0.01)
    assert (a.used_share, c.used_share) == (1.0, 0.0)
    assert (a.entitled_share, c.entitled_share) == (pytest.approx(1 / 3), pytest.approx(2 / 3))  # their weights
    assert a.debt_gpu_s == pytest.approx(-a.used_gpu_s * 2 / 3)
    assert c.debt_gpu_s == pytest.approx(a.used_gpu_s * 2 / 3)
    assert (a.allocated_gpus, c.allocated_gpus) == (0, 4)
    b.advance(5000.0)
    b.settle()
    b.advance(5000.0)
    b.settle()
    assert b.supervisor.snapshot().shares == ()  # nobody asks for anything


@pytest.mark.parametrize("policy", [{"solver": "lookahead"}, {"solver": "fair-share"}, {"solver": "las"}])
def test_where_nothing_is_guaranteed_nobody_has_a_share(bench, policy):
    b = bench(nodes=[node("n", gpus=4)], policies=[policy])
    for tenant in ("a", "b"):
        b.submit(1000.0, tenant=tenant)
    b.settle()
    assert b.supervisor.snapshot().running == 2
    assert b.supervisor.snapshot().shares == ()
