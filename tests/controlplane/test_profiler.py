"""The profiler in the control plane at work, with real jobs on the local engine."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import yaml

pytest.importorskip("sqlalchemy")

from commonwatt.controlplane.wiring import open_live
from commonwatt.engines.local.run import LocalRun
from commonwatt.model.errors import InputError, JobNeverFitsError
from commonwatt.model.job_file import JobFile, WorkloadSpec
from commonwatt.store.controller_store import ControllerStore
from commonwatt.store.records import JobStatus, RequestKind
from tests.controlplane.chaos import config_in, opening, problems, running, store_of, stream, until_all_end, witness

TRAIN = str(Path(__file__).parents[2] / "examples" / "train.py")
NODE = {"gpu_type": "V", "gpus": 2, "idle_w": 100.0, "gpu_w": 50.0}


def config(folder: Path, **live) -> Path:
    document = {
        "engine": "local", "nodes": [{"name": "apart", **NODE}, {"name": "work", **NODE}],
        "tenants": [{"name": "t"}], "policies": [{"solver": "random-greedy"}], "interval_s": 0.5,
        "live": {"local": {"meter": "declared"}, **live},
    }  # fmt: skip
    path = folder / "live.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


PROFILING = {"nodes": ["apart"], "epochs": 2, "limit_s": 300.0}


@pytest.fixture
def opened(tmp_path):
    with opening(partial(config, tmp_path)) as begin:
        yield begin
    subprocess.run(["pkill", "-KILL", "-f", str(tmp_path)], check=False)  # runners; their jobs die with them


def submit(plane, *command, **more) -> int:
    file = JobFile(name="j", command=command or train(), **{"gpu_counts": (1, 2), "epochs": 400, **more})
    row, _ = plane.store.submit("t", file, time.time())
    plane.supervisor.wake()
    return row.id


def train(epoch_s: float = 0.1) -> tuple[str, ...]:
    return (sys.executable, TRAIN, "--epochs", "400", "--epoch-s", str(epoch_s), "--parallel", "0.8")


def until(plane, true, limit_s=240.0):
    end_s = time.monotonic() + limit_s
    while not (value := true()):
        assert plane.supervisor.snapshot().trouble is None
        assert time.monotonic() < end_s
        time.sleep(0.02)
    return value


def job(plane, number):
    return plane.store.job(number)


def sources(row) -> dict[tuple[str, int], str]:
    return {(figure["gpu_type"], figure["gpus"]): figure["source"] for figure in row.times or []}


def times(row) -> dict[tuple[str, int], float]:
    return {(figure["gpu_type"], figure["gpus"]): figure["time_s"] for figure in row.times}


def events(plane, number) -> list[tuple[str, str]]:
    return [(event.kind, event.reason) for event in plane.store.events(job=number)]


@pytest.mark.long
def test_a_new_job_is_measured_in_all_it_may_get_then_placed_elsewhere(opened):
    plane = opened(profiling=PROFILING)
    number = submit(plane)
    row = until(plane, lambda: (row := job(plane, number)).nodes == ("work",) and row)
    assert sources(row) == {("V", 1): "measured", ("V", 2): "measured"}
    assert times(row)["V", 1] > 400 * 0.1 / 2  # it sleeps for 0.1 s an epoch
    assert {(r["job"], r["gpus"]) for r in ControllerStore(plane.database).profiles()} == {(number, 1), (number, 2)}
    happened = events(plane, number)
    assert [kind for kind, reason in happened if reason == "profiling"] == ["started", "resumed"]
    assert [kind for kind, reason in happened if reason == "measured"] == ["preempted", "preempted"]
    assert row.kept_epochs >= 2  # what it did there counts


@pytest.mark.slow
def test_without_profiling_it_is_corrected_while_it_runs(opened):
    plane = opened()
    number = submit(plane, times_s={"V": [4000.0, 2000.0]})
    row = until(plane, lambda: "measured" in sources(row := job(plane, number)).values() and row)
    here = ("V", row.gpus)
    (other,) = sources(row).keys() - {here}
    assert sources(row) == {here: "measured", other: "declared"}
    off = times(row)[here] / {1: 4000.0, 2: 2000.0}[here[1]]
    assert times(row)[other] == pytest.approx({1: 4000.0, 2: 2000.0}[other[1]] * off)
    assert row.expected_end_s < time.time() + 1000


@pytest.mark.slow
def test_power_is_that_of_the_meter_of_its_node(opened):
    plane = opened(profiling=PROFILING)
    number = submit(plane)
    row = until(plane, lambda: (row := job(plane, number)).nodes == ("work",) and row)
    assert [figure["gpu_w"] for figure in row.times] == [pytest.approx(50, rel=0.01)] * 2


@pytest.mark.long
def test_jobs_of_its_kind_tell_of_a_job_before_it_is_measured(opened):
    plane = opened(profiling=PROFILING)
    first = submit(plane, kind="line")
    until(plane, lambda: job(plane, first).nodes == ("work",))
    plane.store.ask(RequestKind.DRAIN, time.time(), node="apart")
    second = submit(plane, *train(epoch_s=100), kind="line")
    row = until(plane, lambda: (row := job(plane, second)).times and row)
    assert sources(row) == {("V", 1): "similar", ("V", 2): "similar"}
    told = {(r["gpu_type"], r["gpus"]): 400 * r["epoch_s"] for r in ControllerStore(plane.database).profiles()}
    assert times(row) == pytest.approx(told)


@pytest.mark.slow
def test_a_job_that_tells_nothing_keeps_its_time_limit_and_says_why(opened):
    plane = opened(profiling={**PROFILING, "limit_s": 0.3})
    number = submit(plane, sys.executable, "-c", "import time; time.sleep(600)", time_limit_s=700)
    row = until(plane, lambda: (row := job(plane, number)).nodes == ("work",) and row)
    assert set(sources(row).values()) == {"time limit"}
    (said,) = [event.sentence for event in plane.store.events(job=number) if event.reason == "unprofilable"]
    assert said == "j could not be measured with 1 V: it tells no progress"


@pytest.mark.slow
def test_a_job_that_crashes_while_it_is_measured_is_tried_with_more_gpus_then_placed_as_declared(opened):
    plane = opened(profiling=PROFILING)
    number = submit(plane, sys.executable, "-c", "raise SystemExit(3)", times_s={"V": [30.0, 20.0]})
    row = until(plane, lambda: (row := job(plane, number)).status is JobStatus.FAILED and row)
    assert set(sources(row).values()) == {"declared"}
    happened = events(plane, number)
    said = [event.sentence for event in plane.store.events(job=number) if event.kind == "interrupted"]
    assert said == [f"{number}-j was interrupted: it ended with an error while it was measured"] * 2
    assert [kind for kind, reason in happened if reason == "unprofilable"] == ["waits"] * 2
    assert happened[-1][0] == "failed"
    vain = happened.index(("interrupted", "interrupted"))
    assert happened[vain + 1] == ("waits", "unprofilable")
    assert row.attempts == 3  # twice measured, and then once more where it was placed


@pytest.mark.long
def test_a_job_that_ends_while_it_is_measured_has_ended(opened):
    plane = opened(profiling=PROFILING)
    command = (sys.executable, TRAIN, "--epochs", "3", "--epoch-s", "0.3")
    number = submit(plane, *command, epochs=3, kind="short", gpu_counts=(1,))
    row = until(plane, lambda: (row := job(plane, number)).status is JobStatus.COMPLETED and row)
    assert row.done_epochs == 3
    assert row.attempts <= 2


@pytest.mark.long
def test_a_controller_that_comes_back_goes_on_measuring(opened):
    plane = opened(profiling={**PROFILING, "epochs": 300})  # the first measurement is not over before it is closed
    number = submit(plane, *train(epoch_s=0.5))
    until(plane, lambda: job(plane, number).nodes == ("apart",))
    plane.close()
    again = opened(profiling=PROFILING)
    row = until(again, lambda: (row := job(again, number)).nodes == ("work",) and row)
    assert set(sources(row).values()) == {"measured"}
    assert row.failures == 0


@pytest.mark.long
def test_a_measurement_cut_off_before_it_began_is_begun_anew(opened, monkeypatch):
    """Its controller ended when the run was written down, and its runner had not started yet."""
    plane = opened(profiling=PROFILING)
    with monkeypatch.context() as patched:
        patched.setattr(LocalRun, "launch", lambda run: None)
        patched.setattr(LocalRun, "ended", lambda run: None)
        number = submit(plane)
        until(plane, lambda: job(plane, number).nodes == ("apart",))
        plane.close()
    again = opened(profiling=PROFILING)
    row = until(again, lambda: (row := job(again, number)).nodes == ("work",) and row)
    assert set(sources(row).values()) == {"measured"}


@pytest.mark.slow
def test_a_controller_that_comes_back_does_not_measure_again_what_gave_nothing(opened):
    plane = opened(profiling={**PROFILING, "limit_s": 1.0})
    plane.store.ask(RequestKind.DRAIN, time.time(), node="work")
    silent = submit(plane, sys.executable, "-c", "import time; time.sleep(600)", time_limit_s=700)
    until(plane, lambda: ("waits", "unprofilable") in events(plane, silent))
    plane.close()
    again = opened(profiling=PROFILING)
    tells = submit(again, *train())
    until(again, lambda: ("started", "profiling") in events(again, tells))
    assert [reason for _, reason in events(again, silent)].count("profiling") == 1
    assert job(again, silent).status is JobStatus.WAITING


@pytest.mark.slow
def test_while_the_profiling_node_is_taken_jobs_are_placed_like_any_other(opened):
    plane = opened(profiling={**PROFILING, "epochs": 100})
    first = submit(plane, *train(epoch_s=1.0))
    until(plane, lambda: job(plane, first).nodes == ("apart",))
    second = submit(plane)
    until(plane, lambda: job(plane, second).nodes == ("work",))
    assert job(plane, first).nodes == ("apart",)


@pytest.mark.slow
def test_nothing_is_measured_in_a_dry_run(opened):
    plane = opened(profiling=PROFILING, mode="dry-run")
    number = submit(plane)
    until(plane, lambda: ("would-start", "") in [(kind, "") for kind, _ in events(plane, number)])
    assert job(plane, number).status is JobStatus.WAITING


def test_a_job_that_only_profiling_nodes_could_run_is_refused(opened):
    plane = opened(profiling=PROFILING)
    with pytest.raises(JobNeverFitsError):
        plane.maker.check(JobFile(name="j", command="true", gpus=4))  # two on each node, but one is set aside


def test_some_node_is_left_for_work(tmp_path):
    path = config(tmp_path, profiling={"nodes": ["apart", "work"]})
    with pytest.raises(InputError, match=r"live.profiling.nodes.*expected a node that is left for work"):
        open_live(path)


@pytest.mark.long
def test_nothing_is_lost_or_twice_while_jobs_are_measured_and_the_controller_is_killed(tmp_path):
    live = {"local": {"grace_s": 2}, "default_time_limit_s": 5}
    path = config_in(tmp_path, live={**live, "profiling": {"nodes": ["n-1"], "epochs": 1, "limit_s": 1.0}})
    store = store_of(path)
    for name in "ab":
        store.add_tenant(name, 1.0, 0.0)
    jobs = stream(path, store, tmp_path, 5, seed=5)
    with running(path):
        until_all_end(store, jobs)
        last = witness("last", tmp_path, 0.3, epochs=3)  # one at least finds the profiling node free
        jobs.append(store.submit("a", last, time.time())[0].id)
        until_all_end(store, jobs)
    tried_again = [row.name for row in map(store.job, jobs) if row.status is JobStatus.FAILED]
    found = [
        problem for problem in problems(store, tmp_path, jobs)
        if not (problem.split()[0] in tried_again and "came to its end" in problem)  # once measured, once for good
    ]  # fmt: skip
    assert found == []
    assert "profiling" in {event.reason for job in jobs for event in store.events(job=job)}


@pytest.mark.slow
def test_a_job_that_kubernetes_runs_is_not_measured_and_not_run_by_another_engine(opened):
    plane = opened(profiling=PROFILING)
    there = WorkloadSpec(namespace="team-a", name="x", uid="u")
    number = submit(plane, "true", gpu_counts=(1,), epochs=1, time_limit_s=60.0, workload=there)
    told = "is a Job of Kubernetes, which engine local does not run"
    until(plane, lambda: any(told in event.sentence for event in plane.store.events(job=number)))
    kinds = {event.kind for event in plane.store.events(job=number)}
    assert kinds <= {"submitted", "started", "resumed", "not-started"}
    assert all(event.nodes != ("apart",) for event in plane.store.events(job=number))
