"""A capacity plan in the control plane: nodes sleep and wake, and it learns from what was wanted so far."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.control.capacity import Capacity
from commonwatt.control.engine import SetPower, Start
from commonwatt.controlplane.capacity import live_capacity
from commonwatt.controlplane.wiring import open_live, read_config
from commonwatt.data.forecast_model import write_model
from commonwatt.forecasting._baselines import LastValue
from commonwatt.forecasting._lightgbm_quantile import LightGbmQuantile
from commonwatt.forecasting._predictors import PREDICTORS
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.errors import EngineError, InputError, MissingExtraError
from commonwatt.model.nodes import Cluster, NodeSpec
from commonwatt.planning.capacity import FitCache, demand_of_samples
from commonwatt.store.controller_store import Tick
from commonwatt.store.records import JobStatus, RequestKind, SampleRow
from tests.cli.console import run
from tests.controlplane.bench import Bench
from tests.controlplane.chaos import config_in
from tests.forecasting.made import walk

NODES = [
    {
        "name": "n", "count": 3, "gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 200,
        "states": [{"name": "off", "power_w": 5, "enter_s": 10, "wake_s": 30}],
    }
]  # fmt: skip
PLAN = {"policy": "cuff", "forecaster": "last-value", "step_s": 60, "floor_gpus": 2}


@pytest.fixture
def bench(tmp_path, opened):
    def make(**changes) -> Bench:
        return opened(Bench(tmp_path, nodes=NODES, **changes))

    return make


def go_on(b: Bench, seconds: float, step_s: float = 10.0) -> None:
    for _ in range(int(seconds / step_s)):
        b.advance(step_s)
        b.look()


def sample(time_s: float, wanted: int) -> SampleRow:
    return SampleRow(time_s, wanted, None, 0, 0, 6, wanted, 0.01)


@pytest.mark.slow
def test_nodes_nobody_wants_sleep_and_are_woken_for_a_job(bench):
    b = bench(capacity={**PLAN, "policy": "last-value"})
    b.settle()
    go_on(b, 120)
    assert b.reconciler.controller.engine.nodes().power_state.tolist().count(0) == 2
    jobs = [b.submit(500.0, gpus=2) for _ in range(3)]
    go_on(b, 200)
    assert {b.status(job) for job in jobs} == {JobStatus.RUNNING}
    assert b.reconciler.controller.engine.nodes().power_state.tolist() == [-1, -1, -1]


@pytest.mark.slow
def test_a_plan_goes_on_while_there_are_no_jobs(bench):
    b = bench(capacity={**PLAN, "policy": "last-value", "floor_gpus": 0, "hold_s": 600})
    b.settle()
    for _ in range(3):
        b.submit(500.0, gpus=2)
    go_on(b, 700)
    assert b.reconciler.controller.engine.nodes().power_state.tolist() == [-1, -1, -1]  # what was promised is held
    go_on(b, 1000)
    assert b.reconciler.controller.engine.nodes().power_state.tolist() == [0, 0, 0]


@pytest.mark.slow
def test_in_a_dry_run_nodes_are_left_as_they_are(bench):
    b = bench(capacity={**PLAN, "policy": "last-value"}, live={"mode": "dry-run", "default_time_limit_s": 5})
    b.settle()
    go_on(b, 120)
    assert b.reconciler.controller.engine.nodes().power_state.tolist() == [-1, -1, -1]


def said(b: Bench) -> list[tuple[str, tuple[str, ...]]]:
    return [(event.kind, event.nodes) for event in b.live.store.events() if event.job is None]


@pytest.mark.slow
def test_a_dry_run_says_once_what_a_plan_would_do(bench):
    b = bench(capacity={**PLAN, "policy": "last-value"}, live={"mode": "dry-run", "default_time_limit_s": 5})
    b.settle()
    go_on(b, 300)
    assert said(b) == [("would-sleep", ("n-2", "n-3"))]
    b.submit(500.0, gpus=2)
    b.submit(500.0, gpus=2)
    go_on(b, 300)
    assert said(b)[1:] == [("would-wake", ("n-2",))]


@pytest.mark.slow
def test_a_dry_run_does_not_wake_nodes_that_sleep_or_went_down_as_if_they_were_on(bench):
    b = bench(capacity={**PLAN, "policy": "last-value"}, live={"mode": "dry-run", "default_time_limit_s": 5})
    b.settle()
    go_on(b, 120)
    before = [("would-sleep", ("n-2", "n-3"))]
    assert said(b) == before
    b.engine.apply([SetPower(1, "off")])  # somebody else does what the plan wants
    b.engine._fail(2)
    go_on(b, 300)
    assert said(b) == before
    assert b.engine.nodes().power_state.tolist() == [-1, 0, -1]


@pytest.mark.slow
def test_a_dry_run_says_where_a_job_would_start_on_nodes_that_would_be_woken_for_it(bench):
    b = bench(capacity={**PLAN, "policy": "last-value"})
    b.settle()
    go_on(b, 120)
    b.ask(RequestKind.MODE, value="dry-run")
    jobs = [b.submit(500.0, gpus=2) for _ in range(2)]
    go_on(b, 50)
    assert asleep(b) == [False, True, True]
    assert [b.row(job).reason for job in jobs] == ["would-start"] * 2
    slept, (kind, nodes) = said(b)
    assert slept == ("put-to-sleep", ("n-2", "n-3"))
    assert (kind, len(nodes)) == ("would-wake", 1)
    places = [event.nodes for job in jobs for event in b.live.store.events(job=job) if event.kind == "would-start"]
    assert sorted(places) == [("n-1",), nodes]


def asleep(b: Bench) -> list[bool]:
    return (b.reconciler.controller.engine.nodes().power_state >= 0).tolist()


@pytest.mark.slow
def test_a_drained_node_is_not_woken_for_a_job_that_may_not_begin_there(bench):
    b = bench(capacity={**PLAN, "policy": "last-value", "floor_gpus": 0})
    b.settle()
    for name in ("n-1", "n-2"):
        b.ask(RequestKind.DRAIN, node=name)
    b.settle()
    assert asleep(b) == [True, True, True]
    job = b.submit(500.0, gpus=2)
    go_on(b, 100)
    assert asleep(b) == [True, True, False]
    assert b.row(job).nodes == ("n-3",)
    gang = b.submit(500.0, gpus=2)  # there is no more room than that
    go_on(b, 100)
    assert asleep(b) == [True, True, False]
    assert b.status(gang) is JobStatus.WAITING


@pytest.mark.slow
def test_a_node_wakes_in_time_for_a_job_with_a_begin_time_and_not_before(bench):
    b = bench(capacity={**PLAN, "policy": "last-value", "floor_gpus": 0})
    b.settle()
    go_on(b, 120)
    begin_s = b.clock() + 1_200.0
    job = b.submit(500.0, gpus=2, begin=datetime.fromtimestamp(begin_s, UTC).isoformat())
    gone = b.submit(500.0, gpus=2, begin=datetime.fromtimestamp(begin_s, UTC).isoformat())
    go_on(b, 300)
    assert asleep(b) == [True, True, True]
    assert b.reconciler.controller.capacity.announced_jobs.coming(b.clock(), begin_s)[1].tolist() == [2, 2]
    b.ask(RequestKind.CANCEL, job=gone)
    go_on(b, begin_s - b.clock() - 20)
    assert asleep(b).count(True) == 2
    assert b.status(job) is JobStatus.WAITING
    go_on(b, 40)
    assert b.status(job) is JobStatus.RUNNING
    counters = b.reconciler.controller.capacity.counters
    assert counters.delays_s == {}


@pytest.mark.slow
def test_no_node_is_on_for_a_job_on_hold(bench):
    b = bench(capacity={**PLAN, "policy": "last-value", "floor_gpus": 0})
    b.settle()
    go_on(b, 120)
    assert asleep(b) == [True, True, True]
    job = b.submit(500.0, gpus=2)
    b.ask(RequestKind.HOLD, job=job)
    go_on(b, 200)
    assert b.status(job) is JobStatus.WAITING
    assert asleep(b) == [True, True, True]
    b.ask(RequestKind.RELEASE, job=job)
    go_on(b, 60)
    assert b.status(job) is JobStatus.RUNNING
    b.ask(RequestKind.HOLD, job=b.submit(500.0, gpus=2))
    go_on(b, 200)
    assert asleep(b).count(False) == 1  # what runs is wanted


@pytest.mark.slow
def test_a_job_that_was_refused_keeps_its_node_on_while_it_is_left_alone(bench):
    b = bench(capacity={**PLAN, "policy": "last-value", "floor_gpus": 0})
    b.settle()
    apply, refused = b.engine.apply, []

    def refuse(commands):
        if any(isinstance(command, Start) for command in commands):
            refused.append(b.hand.time_s)
            msg = "it is still booting"
            raise EngineError(msg)
        return apply(commands)

    b.engine.apply = refuse
    go_on(b, 120)
    assert asleep(b) == [True, True, True]
    b.submit(500.0, gpus=2)
    go_on(b, 60)
    seen = []
    for _ in range(60):
        go_on(b, 10)
        seen.append(asleep(b).count(False))
    assert set(seen) == {1}
    assert 3 < len(refused) < 30


@pytest.mark.slow
def test_what_is_always_on_are_nodes_that_jobs_may_have(bench):
    """Neither drained ones nor those set aside for measurements, which are left as they are."""
    b = bench(
        capacity={**PLAN, "policy": "last-value"},
        live={"default_time_limit_s": 5, "profiling": {"nodes": ["n-1"], "epochs": 1}},
    )
    b.settle()
    assert asleep(b) == [False, False, True]
    b.ask(RequestKind.DRAIN, node="n-2")
    b.settle()
    b.submit(5000.0, gpus=2)
    go_on(b, 100)
    assert asleep(b) == [False, False, False]


@pytest.mark.slow
def test_with_too_little_history_what_is_wanted_stays_on_until_there_is_more(bench):
    b = bench(capacity=PLAN)
    b.settle()
    assert b.reconciler.controller.capacity.renew_s == pytest.approx(b.clock() + 3600.0, abs=1.0)
    go_on(b, 120)
    assert b.reconciler.controller.engine.nodes().power_state.tolist().count(0) == 2
    assert not b.reconciler.outgrown()
    hours_of_samples(b, 300)
    assert b.reconciler.outgrown()
    b.begin()
    assert b.reconciler.controller.capacity.renew_s == math.inf
    go_on(b, 120)


def hours_of_samples(b: Bench, count: int) -> None:
    began_s = b.clock()
    for k in range(count):
        b.supervisor._write(Tick(sample=sample(began_s + 60.0 * k, k % 5)))
    b.advance(60.0 * count)


class Broken(LastValue):
    """As a library that fails on some demand."""

    def fit(self, series, rng):
        msg = "num_data > 0"
        raise RuntimeError(msg)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [False, True])
def test_a_forecaster_that_cannot_be_fitted_stops_nothing(bench, monkeypatch, caplog, broken):
    """Seasonal naive needs more than a day: what is wanted now stays on, and jobs are placed."""
    if broken:
        entry = replace(PREDICTORS["last-value"], target=f"{__name__}:Broken")
        monkeypatch.setitem(PREDICTORS, "last-value", entry)
    b = bench(capacity={**PLAN, "forecaster": "last-value" if broken else "seasonal-naive"})
    b.settle()
    hours_of_samples(b, 300)
    for _ in range(2):
        b.begin()
        assert b.reconciler.controller.capacity.renew_s == pytest.approx(b.clock() + 3600.0, abs=1.0)
    causes = [record.cause for record in caplog.records if hasattr(record, "cause")]
    assert ("num_data" if broken else "1445 values") in causes[-1]
    job = b.submit(50.0, gpus=2)
    go_on(b, 200)
    assert b.status(job) is JobStatus.COMPLETED


@pytest.mark.slow
def test_a_new_session_takes_up_what_the_last_one_fitted(bench, monkeypatch):
    pytest.importorskip("lightgbm")
    fitted = quick_trees(monkeypatch)
    b = bench(capacity={**PLAN, "forecaster": "lightgbm"})
    b.settle()
    hours_of_samples(b, 300)
    due_s = b.clock() + 300 * 60.0
    for _ in range(2):
        b.begin()
        assert b.reconciler.controller.capacity.renew_s == pytest.approx(due_s, abs=120.0)
    assert len(fitted) == 1
    job = b.submit(50.0, gpus=2)
    go_on(b, 200)
    assert b.status(job) is JobStatus.COMPLETED


def quick_trees(monkeypatch, **more) -> list[int]:
    """Make LightGBM a matter of moments that takes any history; return what it is fitted on, values each time."""
    pytest.importorskip("lightgbm")
    entry = replace(PREDICTORS["lightgbm"], **{"options": (("trees", 2), ("steps", (5,))), "least": 0} | more)
    monkeypatch.setitem(PREDICTORS, "lightgbm", entry)
    fitted, fit = [], LightGbmQuantile.fit
    monkeypatch.setattr(
        LightGbmQuantile, "fit", lambda own, series, rng: (fitted.append(len(series)), fit(own, series, rng))
    )
    return fitted


def minutes(count: int) -> list[SampleRow]:
    return [sample(60.0 * k, k % 5) for k in range(count + 2)]


def planned(forecaster: str, count: int, fits: FitCache, **more) -> Capacity:
    """The plan of a cluster that has run for so many minutes."""
    plan = CapacitySpec.model_validate({**PLAN, "forecaster": forecaster, **more})
    cluster = Cluster.of([NodeSpec.model_validate(node) for node in NODES])
    return live_capacity(plan, cluster, minutes(count), Path(), 0, 60.0 * count, fits)


@pytest.mark.long
def test_a_forecaster_is_fitted_anew_with_twice_the_history_and_each_day(monkeypatch):
    fitted, fits, counts, due = quick_trees(monkeypatch), FitCache(), [], 300
    for _ in range(6):
        again = planned("lightgbm", due - 1, fits) if counts else None
        before = len(fitted)
        made = planned("lightgbm", due, fits)
        assert again is None or (len(fitted), again.renew_s) == (before + 1, 60.0 * due)
        counts.append(due)
        due = round(made.renew_s / 60)
    assert counts == [300, 601, 1203, 2407, 3847, 5287]
    assert [fit / count for fit, count in zip(fitted, counts, strict=True)] == [pytest.approx(2 / 3, abs=0.01)] * 6


@pytest.mark.parametrize("forecaster", ["last-value", "moving-max"])
def test_what_learns_nothing_by_a_fit_is_not_fitted_anew(forecaster):
    assert planned(forecaster, 300, FitCache()).renew_s == math.inf


@pytest.mark.slow
def test_trees_are_fitted_once_there_is_enough_to_split_by(monkeypatch, caplog):
    fitted = quick_trees(monkeypatch, least=PREDICTORS["lightgbm"].least)
    assert planned("lightgbm", 2_990, FitCache()).renew_s == 60.0 * 2_990 + 3_600
    assert "steps of demand to fit to" in [r.cause for r in caplog.records if hasattr(r, "cause")][-1]
    assert fitted == []
    planned("lightgbm", 3_010, FitCache())
    assert len(fitted) == 1
    for steps in (1_440, 1_437):
        planned("lightgbm", steps, FitCache(), history_days=1)  # there will never be more
    assert len(fitted) == 3


@pytest.mark.slow
def test_a_model_file_that_is_gone_stops_nothing_either(bench, tmp_path):
    pytest.importorskip("lightgbm")
    pytest.importorskip("safetensors")
    trees = LightGbmQuantile(trees=2, steps=(5,))
    trees.fit(walk(300), np.random.default_rng(0))
    write_model(trees, tmp_path / "m.safetensors", 0)
    b = bench(capacity={**PLAN, "forecaster": "m.safetensors"})
    assert b.reconciler.controller.capacity.renew_s == math.inf
    (tmp_path / "m.safetensors").unlink()
    b.begin()
    assert b.reconciler.controller.capacity.renew_s == pytest.approx(b.clock() + 3600.0, abs=1.0)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"policy": "foresight"}, "needs no future"),
        ({"forecaster": "oracle"}, "last-value"),
        ({"states": ["hibernate"]}, "a power state of a node"),
        ({"floor_gpus": 7}, "at most the 6 GPUs"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_before_anything_runs(bench, tmp_path, plan, said):
    with pytest.raises(InputError, match=said):
        bench(capacity={**PLAN, **plan})
    with pytest.raises(InputError, match="live.yaml.*" + said):
        read_config(tmp_path / "live.yaml")


SEVERAL = [{**NODES[0], "states": [*NODES[0]["states"], {"name": "sleep", "power_w": 50, "enter_s": 1, "wake_s": 1}]}]
OWN = {"policies": [{"solver": "fifo", "capacity": {"policy": "last-value", "floor_gpus": 7}}]}
BASELINE = {"policies": [{"solver": "fifo"}, {"solver": "edf", "capacity": {**PLAN, "forecaster": "gone.safetensors"}}]}
SLURM = {"engine": "slurm", "live": {"slurm": {"power": True}}}


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"capacity": {**PLAN, "states": ["hibernate"]}}, "capacity.states", "hibernate"),
        ({"capacity": {**PLAN, "forecaster": "gone.safetensors"}}, "capacity.forecaster", "gone.safetensors"),
        (OWN, "policies.0.capacity.floor_gpus", 7),
        (BASELINE, "policies.1.capacity.forecaster", "gone.safetensors"),
        ({**SLURM, "nodes": SEVERAL, "capacity": PLAN}, "nodes.states", "off, sleep"),
        ({**SLURM, "nodes": SEVERAL}, "nodes.states", "off, sleep"),
        ({**OWN, "engine": "local"}, "policies.0.capacity", "a plan"),
    ],
)
def test_what_is_wrong_with_a_plan_is_named_and_the_check_ends_with_2(tmp_path, changes, field, value):
    path = config_in(tmp_path, **{"engine": "simulated", "nodes": NODES, **changes})
    for refuses in (read_config, open_live):
        with pytest.raises(InputError) as refused:
            refuses(path)
        assert (refused.value.file, refused.value.field, refused.value.value) == (path, field, value)
    done = run("check", path)
    assert (done.code, done.out) == (2, "")
    assert str(refused.value) in done.err


LONG = {**PLAN, "forecaster": "m" * 300}
POLICIES = [{"solver": "fifo", "capacity": LONG}, {"solver": "edf"}]


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"capacity": LONG}, "capacity.forecaster"), ({"policies": POLICIES}, "policies.0.capacity.forecaster")],
)
def test_a_forecaster_of_a_name_too_long_for_a_file_is_refused(tmp_path, changes, field):
    path = config_in(tmp_path, engine="simulated", nodes=NODES, **changes)
    with pytest.raises(InputError, match="File name too long") as refused:
        read_config(path)
    assert (refused.value.file, refused.value.field) == (path, field)


@pytest.mark.parametrize("policies", [False, True])
def test_a_model_file_that_cannot_be_read_is_told_with_the_configuration_and_its_field(tmp_path, policies):
    pytest.importorskip("safetensors")
    (tmp_path / "m.safetensors").write_text("nonsense")
    plan = {"capacity": {**PLAN, "forecaster": "m.safetensors"}}
    changes = {"policies": [{"solver": "fifo"}, {"solver": "edf", **plan}]} if policies else plan
    path = config_in(tmp_path, engine="simulated", nodes=NODES, **changes)
    with pytest.raises(InputError, match=r"a model file, as `commonwatt .*, not 'a file of text'") as refused:
        read_config(path)
    field = "policies.1.capacity.forecaster" if policies else "capacity.forecaster"
    assert (refused.value.file, refused.value.field, refused.value.value) == (path, field, "m.safetensors")


def test_what_is_wrong_inside_a_model_file_is_told_with_its_own_field(tmp_path, monkeypatch):
    def wrong(plan, *_, **__):
        raise InputError("a model of the step", file=tmp_path / "m.safetensors", field="step_s", value=300.0)

    monkeypatch.setattr("commonwatt.controlplane.wiring.check_plan", wrong)
    path = config_in(tmp_path, engine="simulated", nodes=NODES, capacity={**PLAN, "forecaster": "m.safetensors"})
    with pytest.raises(InputError) as refused:
        read_config(path)
    assert (refused.value.file, refused.value.field, refused.value.value) == (
        path, "capacity.forecaster", "m.safetensors",
    )  # fmt: skip
    assert refused.value.expected == "a model of the step, not 300.0 in its step_s"


def test_a_plan_for_a_slurm_that_may_not_power_nodes_down_is_refused_by_what_serves(tmp_path):
    path = config_in(tmp_path, engine="slurm", nodes=NODES, capacity=PLAN)
    read_config(path)  # `check` looks at the rest, too, and then says so
    with pytest.raises(InputError) as refused:
        open_live(path)
    assert (refused.value.file, refused.value.field) == (path, "live.slurm.power")


@pytest.mark.long
def test_a_baseline_may_know_the_future(bench):
    """It is only ever simulated, on what has been."""
    b = bench(policies=[{"solver": "fifo"}, {"solver": "easy", "capacity": {**PLAN, "policy": "foresight"}}])
    b.submit(100.0)
    b.settle()
    b.advance(1000.0)
    saved = b.live.estimator.look()
    assert (saved["capacity"], saved["baseline_capacity"]) == (None, "foresight")
    assert saved["energy_kwh"] < 0


def test_a_package_that_is_missing_is_told_before_anything_runs(bench, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "chronos", None)
    with pytest.raises(MissingExtraError, match="chronos is not installed"):
        bench(capacity={**PLAN, "forecaster": "chronos"})
    done = run("check", tmp_path / "live.yaml")
    assert (done.code, done.out) == (2, "")
    assert done.err == "error: chronos is not installed; run: pip install 'commonwatt[chronos]'\n"


def test_demand_is_the_most_that_was_wanted_in_each_step():
    assert demand_of_samples([], 60.0) is None
    assert demand_of_samples([sample(0.0, 1), sample(59.0, 2)], 60.0) is None
    series = demand_of_samples([sample(50.0, 3), sample(70.0, 5), sample(80.0, 1), sample(250.0, 2)], 60.0)
    assert (series.start_s, series.step_s, series.gpus.tolist()) == (60.0, 60.0, [5.0, 1.0, 1.0])


def test_no_longer_history_is_waited_for_than_is_kept(bench, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "commonwatt.controlplane.wiring.live_capacity", lambda plan, *more: (seen.append(plan), None)[1]
    )
    bench(capacity=PLAN, live={"keep_days": 2, "default_time_limit_s": 5})
    bench(capacity={**PLAN, "history_days": 1}, live={"keep_days": 2, "default_time_limit_s": 5})
    assert [plan.history_days for plan in seen] == [2, 1]
