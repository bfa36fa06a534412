"""The local engine over time: other configurations, old records, full disks and clocks that are set."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from commonwatt.control.engine import JobEnded, JobInterrupted, MeterMark, Outcome, Start, Stop
from commonwatt.engines.local.engine import LocalEngine
from commonwatt.engines.local.folder import End
from commonwatt.engines.meters import DeclaredPower, Meters
from commonwatt.engines.run_spec import JobWork, RunSpec
from commonwatt.model.errors import EngineDownError
from commonwatt.model.nodes import Cluster, NodeSpec


def cluster(*names: str, gpus: int = 2) -> Cluster:
    return Cluster.of([NodeSpec(name=name, gpu_type="V100", gpus=gpus, idle_w=100, gpu_w=50) for name in names])


def sleeper(name: str) -> JobWork:
    seconds = name.partition("-")[2] or "60"
    return JobWork((sys.executable, "-I", "-c", f"import time; time.sleep({seconds})"), Path("/"), 4.0, mark=f"m{name}")


@pytest.fixture
def folder(tmp_path):
    yield tmp_path
    for record in tmp_path.glob("runs/*/runner.json"):
        known = json.loads(record.read_text())
        for kill, process in ((os.kill, known["runner"]), (os.killpg, known["job"])):
            with suppress(ProcessLookupError):
                kill(process, signal.SIGKILL)


def began(folder: Path, run: str) -> None:
    until(folder / "runs" / run / "runner.json")


def until(path: Path, limit_s: float = 60.0) -> None:
    end_s = time.monotonic() + limit_s
    while not path.exists():
        assert time.monotonic() < end_s, path
        time.sleep(0.01)


def places(engine: LocalEngine) -> dict[int, tuple[int, ...]]:
    return {found.handle: found.nodes for found in engine.recorded_runs()}


SLOTS = {"a": (0, 1), "b": (2, 3), "c": (4, 5)}


def engine_of(folder: Path, *names: str, slots=SLOTS, **more) -> LocalEngine:
    given = [slots[name] for name in names]
    return LocalEngine(cluster(*names), folder, sleeper, slots=given, **{"grace_s": 0.5, **more})


def test_jobs_are_found_on_their_nodes_whatever_their_order_in_the_configuration(folder):
    first = engine_of(folder, "a", "b")
    first.apply([Start(1, "1", (0,), 2), Start(2, "2", (1,), 1)])
    for run in ("1-1", "2-1"):
        began(folder, run)
    second = engine_of(folder, "b", "c", "a")
    assert places(second) == {1: (2,), 2: (0,)}
    assert [found.mark for found in second.recorded_runs()] == ["m1", "m2"]
    assert second._free(0) == [3]


@pytest.mark.parametrize(
    ("names", "slots"), [(("b",), SLOTS), (("b", "a"), {"a": (7, 8), "b": (2, 3)})], ids=["node gone", "other GPUs"]
)
def test_what_has_no_place_any_more_is_stopped_and_can_go_on_elsewhere(folder, names, slots):
    first = engine_of(folder, "a", "b")
    first.apply([Start(1, "1", (0,), 2), Start(2, "2", (1,), 1)])
    for run in ("1-1", "2-1"):
        began(folder, run)
    second = engine_of(folder, *names, slots=slots)
    assert list(second.evict_unplaced(dry=True)) == [1]
    assert list(second.poll()) == []
    assert sorted(second._runs) == [1, 2]
    assert list(second.evict_unplaced(dry=False)) == [1]
    assert places(second) == {1: (), 2: (0,)}
    (change,) = second.poll()
    assert isinstance(change, JobInterrupted)
    assert (change.handle, change.cause) == (1, "its place is not in the configuration any more")
    second.apply([Start(1, "1", (0,), 1)])
    assert places(second)[1] == (0,)


def test_old_records_are_forgotten_and_snapshots_kept(folder):
    engine = engine_of(folder, "a")
    for k in (1, 2):
        engine.apply([Start(1, "1", (0,), 1)])
        began(folder, f"1-{k}")
        engine.apply([Stop(1)])
    engine.apply([Start(2, "2", (0,), 1)])
    assert engine.prunable() == [1]
    engine.prune([1, 2, 3])
    assert [path.name for path in (folder / "runs").iterdir()] == ["2-1"]
    assert (folder / "jobs" / "1").is_dir()
    assert list(places(engine)) == list(places(engine_of(folder, "a"))) == [2]


def test_records_of_another_store_are_put_aside_and_their_numbers_are_free(folder):
    first = engine_of(folder, "a")
    first.apply([Start(1, "1-0.01", (0,), 1)])
    until(folder / "runs" / "1-1" / "end.json")
    (folder / "jobs" / "1" / "progress").write_text("3")
    second = engine_of(folder, "a")
    second.prune([1], aside=True)
    assert second.poll() == []
    assert not list((folder / "runs").iterdir())
    assert sorted(path.name for path in (folder / "aside").glob("*/*")) == ["jobs-1", "runs-1-1"]
    second.apply([Start(1, "1", (0,), 1)])
    assert second.recorded_runs()[0].attempts == 1
    order = json.loads((folder / "runs" / "1-1" / "run.json").read_text())
    assert order["base_epochs"] == 0


def test_where_no_order_can_be_written_the_engine_is_down_and_no_job_has_failed(folder):
    engine = engine_of(folder, "a")
    (folder / "runs").write_text("")  # in the way of a folder
    with pytest.raises(EngineDownError, match="cannot be written"):
        engine.apply([Start(1, "1", (0,), 1)])
    assert places(engine) == {}


@pytest.mark.slow
def test_an_end_that_cannot_be_written_is_written_later(folder):
    """As on a full disk: the run is not over before."""
    engine = engine_of(folder, "a")
    run = folder / "runs" / "1-1"
    run.mkdir(parents=True)
    (run / "end.json.part").mkdir()  # in the way of the record
    engine.apply([Start(1, "1-0.01", (0,), 1)])
    began(folder, "1-1")
    time.sleep(0.3)
    assert engine.poll() == []
    (run / "end.json.part").rmdir()
    until(run / "end.json")
    end_s = time.monotonic() + 60
    while not (changes := engine.poll()):
        assert time.monotonic() < end_s
        time.sleep(0.01)
    assert [(change.handle, change.outcome) for change in changes] == [(1, Outcome.COMPLETED)]


class Clock:
    def __init__(self) -> None:
        self.wall_s, self.steady_s = 1e9, 50.0

    def wall(self) -> float:
        return self.wall_s

    def steady(self) -> float:
        return self.steady_s

    def pass_(self, seconds: float, jump_s: float = 0.0) -> None:
        self.steady_s += seconds
        self.wall_s += seconds + jump_s


@pytest.mark.parametrize("jump_s", [0.0, 7200.0, -7200.0])
def test_a_reading_is_as_long_as_it_took_wherever_the_clock_is_set(jump_s):
    clock, nodes = Clock(), cluster("a")
    meters = Meters(1, power_w=DeclaredPower(nodes), now_s=clock.wall, steady_s=clock.steady)
    for k in range(6):
        clock.pass_(10.0, jump_s if k == 2 else 0.0)
        meters.close(0, ())
    readings = meters.take()
    assert [r.to_s - r.from_s for r in readings] == pytest.approx([10.0] * 6)
    assert [r.energy_uj for r in readings] == [1_000_000_000] * 6


def test_time_without_an_engine_is_metered_when_the_next_one_comes():
    clock, nodes = Clock(), cluster("a")
    meters = Meters(1, power_w=DeclaredPower(nodes), now_s=clock.wall, steady_s=clock.steady)
    meters.resume(0, clock.wall_s - 100.0, None)
    meters.close(0, (), at_s=clock.wall_s - 40.0)
    clock.pass_(5.0)
    meters.close(0, ())
    assert [(r.from_s - 1e9, r.to_s - 1e9) for r in meters.take()] == [(-100, -40), (-40, 5)]


def test_a_mark_from_the_future_charges_nothing():
    clock, nodes = Clock(), cluster("a")
    meters = Meters(1, power_w=DeclaredPower(nodes), now_s=clock.wall, steady_s=clock.steady)
    meters.resume(0, clock.wall_s + 3600.0, None)
    clock.pass_(1.0)
    meters.close(0, ())
    assert [r.energy_uj for r in meters.take()] == [100_000_000]


def ended(at_s: float, ran_s: float | None = None) -> End:
    return End(0, stopped=False, at_s=at_s, cause="", ran_s=ran_s)


@pytest.mark.parametrize(
    ("end", "at_s"),
    [
        (ended(130.0, 25.0), 130.0),
        (ended(90.0, 25.0), 125.0),  # the clock was set back meanwhile
        (ended(9000.0, 25.0), 125.0),  # the controller does not know yet that it was set ahead
        (ended(90.0), 100.0),
        (ended(9000.0, 500.0), 200.0),
    ],
)
def test_a_run_ends_between_its_order_and_now(end, at_s):
    order = RunSpec(1, 1, "x", (0,), 1, ((0,),), 100.0, 0.0, (), "/", {}, 1.0)
    assert end.timely(order, 200.0).at_s == at_s


def test_work_lost_is_counted_by_a_clock_nobody_sets(folder):
    now = [1e9]
    engine = engine_of(folder, "a", now_s=lambda: now[0])
    engine.apply([Start(1, "1", (0,), 1)])
    began(folder, "1-1")
    now[0] += 36_000  # ahead by ten hours
    (stopped,) = engine.apply([Stop(1)])
    assert stopped.lost_s < 600


def test_what_a_stopped_run_has_lost_is_told_to_the_controller_after_the_one_that_died_with_it(folder):
    """The job's progress was cut down to its snapshot by then; a third one is told the same."""
    first = engine_of(folder, "a")
    first.apply([Start(1, "1", (0,), 1)])
    began(folder, "1-1")
    (folder / "jobs" / "1" / "progress").write_text('{"done_epochs": 3, "kept_epochs": 1}')
    (stopped,) = first.apply([Stop(1)])
    assert stopped.lost_s > 0
    for _ in range(2):
        later = engine_of(folder, "a")
        assert later.progress(np.array([1])).done_epochs.tolist() == [1.0]
        (change,) = later.poll()
        assert (type(change), change.lost_s) == (JobInterrupted, stopped.lost_s)
    later.apply([Start(1, "1", (0,), 1)])  # of its next run, another may be lost
    began(folder, "1-2")
    (folder / "jobs" / "1" / "progress").write_text('{"done_epochs": 1.5, "kept_epochs": 1.5}')
    assert later.apply([Stop(1)])[0].lost_s == 0


@pytest.mark.slow
def test_a_job_over_its_time_limit_says_so_in_a_word(folder):
    limited = JobWork((sys.executable, "-I", "-c", "import time; time.sleep(60)"), Path("/"), time_limit_s=0.2)
    engine = LocalEngine(cluster("a"), folder, lambda _: limited, grace_s=0.2)
    engine.apply([Start(1, "1", (0,), 1)])
    end_s = time.monotonic() + 60
    while not (changes := engine.poll()):
        assert time.monotonic() < end_s
        time.sleep(0.01)
    assert isinstance(changes[0], JobEnded)
    assert (changes[0].outcome, changes[0].reason) == (Outcome.FAILED, "time-limit")


def test_meters_go_on_counting_while_no_controller_runs_and_one_that_was_set_back_counts_from_there(tmp_path):
    time_s, says_j = [1000.0], {0: 500.0, 1: 700.0}

    def engine(since=None) -> LocalEngine:
        clocks = {"now_s": lambda: time_s[0], "steady_s": lambda: time_s[0]}
        return LocalEngine(cluster("a", "b"), tmp_path, sleeper, node_energy_j=says_j.get, since=since, **clocks)

    marks = engine().marks()
    assert marks == {0: MeterMark(1000.0, 500.0), 1: MeterMark(1000.0, 700.0)}
    time_s[0] = 1300.0
    says_j |= {0: 900.0, 1: 20.0}
    after = engine(since=marks)
    time_s[0] = 1400.0
    says_j |= {0: 950.0, 1: 60.0}
    drawn = [(r.node, r.from_s, r.to_s, r.energy_uj) for r in after.readings(up_to_now=True)]
    assert sorted(drawn) == [
        (0, 1000.0, 1300.0, 400 * 10**6), (0, 1300.0, 1400.0, 50 * 10**6),
        (1, 1000.0, 1300.0, 0), (1, 1300.0, 1400.0, 40 * 10**6),
    ]  # fmt: skip
