"""Goodput of the applications of Sia's simulator: by hand, beside the reference's run times, and its properties."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest

from commonwatt.data import third_party
from commonwatt.data.files import validate
from commonwatt.data.sia import read_sia
from commonwatt.data.sia_goodput import TYPES, GoodputModel, StepTimes, read_trainings
from commonwatt.model.errors import InputError
from commonwatt.model.scenario import Scenario, SiaWorkload
from commonwatt.simulation.run_setup import run_policy
from commonwatt.simulation.workload import prepare

SCALING = [
    "model,cluster,table,num_nodes,num_gpus,placement,local_bsz,step_time_s,sync_time_s",
    *("app,aws,placements,1,1,1,4,1.0,0", "app,aws,placements,1,1,1,8,1.6,0"),
    *("app,aws,placements,1,2,2,4,1.2,.2", "app,aws,placements,1,2,2,8,1.8,.2"),
    *("app,aws,placements,2,2,11,4,1.4,.4", "app,aws,placements,2,2,11,8,2.0,.4"),
    *("app,aws,placements,2,4,22,2,1.0,.5", "app,aws,placements,2,4,22,4,1.4,.6"),
    "app,azure,placements,1,1,1,8,9,0",  # a cluster that is not there
]
VALIDATION = [
    "model,batch_size,progress,iteration,metric,grad_sqr,grad_var",
    *("app,8,100,100,.5,1,3", "app,8,300,300,.9,1,1"),
    *("app,16,110,60,.5,1,3", "app,16,310,180,.9,1,1"),
]
JOBS = ["name,application,submission_s,num_gpus,batch_size", "j0,app,10,2,16", "j1,app,20,3,8"]
CLUSTER = {
    "gpu_types": [{"cluster": "aws", "nodes": 2, "gpus_per_node": 2}], "restart_s": {"app": 50}, "slowdown": {"app": 2}
}  # fmt: skip


def folder_of(folder: Path, *, cluster=None, **tables: list[str]) -> Path:
    """The layout of the reference folder; its tables are not compressed."""
    (folder / "throughput").mkdir()
    (folder / "workloads").mkdir()
    (folder / "cluster.json").write_text(json.dumps(CLUSTER | (cluster or {})))
    (folder / "throughput" / "scaling.csv.gz").write_text("\n".join(tables.get("scaling", SCALING)))
    (folder / "throughput" / "validation.csv.gz").write_text("\n".join(tables.get("validation", VALIDATION)))
    (folder / "workloads" / "core-1.csv").write_text("\n".join(tables.get("jobs", JOBS)))
    return folder


def adaptive(**more) -> SiaWorkload:
    return SiaWorkload.model_validate({"source": "sia", "path": ".", "batch": "adaptive"} | more)


@pytest.fixture
def app(tmp_path):
    return read_trainings(folder_of(tmp_path), CLUSTER["slowdown"])["app"]


# -- by hand


def test_the_gain_of_a_batch_by_hand(app):
    # the least batch is 8, so s = 2, then 1.5; epoch 1: (3 + 1) / (3 / s + 1); epoch 2: (1 + 1) / (1 / s + 1)
    assert app.gain(np.array([16.0])) == pytest.approx(np.array([[4 / 2.5, 2 / 1.5]]))
    assert app.gain(np.array([8.0, 12.0])) == pytest.approx(np.array([[1, 1], [4 / 3, 2 / (2 / 3 + 1)]]))
    assert app.progress.tolist() == [100, 200]  # the least of all batches


def test_gradients_between_measured_batches_are_interpolated():
    training = GoodputModel(
        np.array([8.0, 16.0]), np.array([1.0]), np.array([[1.0], [3.0]]), np.array([[2.0], [6.0]]), {}, 1.0
    )
    assert training.gain(np.array([12.0])) == pytest.approx(np.array([[(4 + 2) / (4 / 1.5 + 2)]]))


@pytest.mark.parametrize(
    ("placement", "batch", "seconds"),
    [
        ((2,), 8, 2 * 1.2 * (100 + 200)),  # 4 samples on each GPU
        ((2,), 16, 2 * 1.8 * (100 / 1.6 + 200 / (2 / 1.5))),  # 8 samples
        ((2,), 12, 2 * 1.5 * (100 / (4 / 3) + 200 / 1.2)),  # 6 samples: between 4 and 8
        ((1, 1), 8, 2 * 1.4 * 300),
        ((1,), 8, 2 * 1.6 * 300),
        ((1,), 16, 2 * (1.6 + 1.6) * (100 / 1.6 + 200 / (2 / 1.5))),  # two steps of 8
        ((1,), 10, 2 * (1.15 + 1.15) * (100 / (4 / 3.4) + 200 / (2 / 1.8))),  # two of 5: a single GPU accumulates
        ((2,), 4, math.inf),  # less than the least batch
        ((2, 2), 8, 2 * 1.0 * 300),  # 2 samples on each GPU, as nowhere else
        ((2, 2, 2), 16, math.inf),  # not measured
    ],
)
def test_the_time_of_a_training_by_hand(app, placement, batch, seconds):
    assert app.run_time_s("T4", placement, batch) == pytest.approx(seconds)


def test_the_best_batch_of_each_epoch_by_hand(app):
    # On 2 GPUs the batches are even. Epoch 1 with M takes 100 * 2 * (.6 + .075 M) * (24 / M + 1) / 4: 14 is best.
    # Epoch 2 takes 200 * 2 * (.6 + .075 M) * (8 / M + 1) / 2: 8 is best.
    assert app.best_s("T4", (2,)) == pytest.approx([330 * 19 / 28, 480])
    assert app.run_time_s("T4", (2,)) == pytest.approx(330 * 19 / 28 + 480)


def test_accumulation_does_not_synchronise(app):
    steps = {"T4": StepTimes({(2,): np.array([[2.0, 4.0], [1.0, 1.2], [0.2, 0.2]])}, {}, 2.0)}
    training = GoodputModel(app.batches, app.progress, app.sqr, app.var, steps, 1.0)
    # 16 on 2 GPUs are two steps of 4: the first takes 1.2 - .2
    assert training.run_time_s("T4", (2,), 16) == pytest.approx((1.2 + 1.0) * (100 / 1.6 + 200 / (2 / 1.5)))


def test_what_was_not_measured_is_interpolated_between_gpus_then_between_hosts():
    def steps(step_s: float, most: float = 8) -> np.ndarray:
        return np.array([[4.0, most], [step_s, step_s + most], [0.0, step_s / 2]])

    columns = {(1, 2): steps(1), (2, 2): steps(2), (2, 4): steps(4, 6), (4, 4): steps(6), (4, 8): steps(10)}
    found = StepTimes({(1, 2): steps(9)}, columns, 4.0)
    assert found.of((2, 1)) == pytest.approx(steps(9))  # from another host on, it is a rotation of what was measured
    assert found.of((1, 1)) == pytest.approx(steps(2))
    assert found.of((1, 3)) == pytest.approx(steps(4, 6))  # the mean of 2 hosts with 4 GPUs
    between = found.of((2, 2, 2))  # half way from (2, 2) to (2, 2, 2, 2), at the batches that both have
    assert between is not None
    assert between[0].tolist() == [4, 6]
    assert between[1, 0] == pytest.approx((4 + 10) / 2)
    assert found.of((1,)) is None
    assert found.of((2, 2, 2, 2, 2)) is None


# -- the workload


def test_jobs_may_have_the_sizes_of_sia_and_the_one_they_asked_for(tmp_path, app):
    # three GPUs are on 2 hosts, half way between 2 and 4 of them
    case = read_sia(adaptive(path=str(tmp_path)), Path())
    rows = [slice(case.table.start[j], case.table.start[j + 1]) for j in range(2)]
    assert [case.table.config_gpus[own].tolist() for own in rows] == [[1, 2, 4], [1, 2, 3, 4]]
    assert case.table.requested_gpus.tolist() == [2, 3]
    assert case.table.config_time_s[rows[0]][1] == pytest.approx(app.run_time_s("T4", (2,)))
    assert case.hosts.times_s["app", "T4", (1, 1)] == pytest.approx(app.run_time_s("T4", (1, 1)))
    assert case.hosts.times_s.get(("app", "T4", (2, 2, 2))) is None
    assert list(case.table.kinds) == ["app", "app"]
    assert "batches that adapt" in case.source


@pytest.mark.parametrize("policy", [{"solver": "sia"}, {"solver": "gavel", "objective": "fifo"}, {"solver": "srtf"}])
def test_schedulers_that_resize_jobs_and_others_run_it(tmp_path, policy):
    document = {
        "workload": {"source": "sia", "path": str(folder_of(tmp_path)), "batch": "adaptive"}, "policies": [policy],
        "rounds": {"length_s": 60}, "preemption": {"restart_s": 50, "lose_work": False, "first_start": True},
    }  # fmt: skip
    made = prepare(validate(document, Scenario), Path(), 0)
    run = run_policy(made.scenario, made.scenario.policies[0], made.cluster, made.table, 0, hosts=made.hosts)
    registry = run.controller.registry
    assert np.isfinite(registry.job("ended_s")).all()
    if policy["solver"] == "gavel":  # j0 asked for two GPUs: from 60, after a restart
        assert registry.job("ended_s")[0] == pytest.approx(60 + 50 + 330 * 19 / 28 + 480)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"scaling": ["model,cluster,table", "app,aws,placements"]}, ["scaling.csv.gz", "placement", "a column"]),
        ({"scaling": [*SCALING, "app,aws,placements,1,1,1,2,-1,0"]}, ["line 11", "step_time_s", "-1", "above 0"]),
        ({"scaling": [*SCALING, "app,aws,placements,1,1,1,2,1,-1"]}, ["line 11", "sync_time_s", "-1", "0 or more"]),
        (
            {"scaling": [*SCALING, "app,aws,placements,1,1,1,2,1,2"]},
            ["line 11", "sync_time_s", "2", "no more than step"],
        ),
        ({"scaling": [*SCALING, "app,aws,placements,1,1,1,0,1,0"]}, ["line 11", "local_bsz", "0", "1 or more"]),
        (
            {"scaling": [*SCALING, "app,aws,placements,2,3,1x,2,1,0"]},
            ["line 11", "placement", "1x", "3 GPUs on 2 hosts"],
        ),
        ({"scaling": [SCALING[0], "b,aws,placements,1,1,1,2,1,0"]}, ["scaling.csv.gz", "model", "rows of app"]),
        (
            {"validation": [*VALIDATION, "app,32,nan,9,9,1,1"]},
            ["validation.csv.gz, line 6", "progress", "nan", "seconds"],
        ),
        ({"validation": [*VALIDATION[:3], "app,16,90,9,9,-1,1"]}, ["line 4", "grad_sqr", "-1", "0 or more"]),
        ({"validation": [VALIDATION[0], "app,0,90,9,9,1,1"]}, ["line 2", "batch_size", "0", "1 or more"]),
        ({"validation": [*VALIDATION[:2], "app,8,100,9,9,1,1"]}, ["line 2", "progress", "more with every epoch"]),
        ({"cluster": {"slowdown": {}}}, ["cluster.json", "slowdown", "a factor for app"]),
        ({"cluster": {"restart_s": {"b": 1}}}, ["core-1.csv, line 2", "application", "restart time"]),
        ({"jobs": [JOBS[0], "j0,b,0,2,8"]}, ["core-1.csv, line 2", "application", "b", "validation.csv.gz (app)"]),
        ({"jobs": [JOBS[0], "j0,app,0,5,8"]}, ["core-1.csv, line 2", "num_gpus", "5", "measured of app"]),
    ],
)
def test_what_is_wrong_in_a_table_is_named(tmp_path, more, said):
    with pytest.raises(InputError) as error:
        read_sia(adaptive(path=str(folder_of(tmp_path, **more))), Path())
    assert all(part in str(error.value) for part in said), error.value


# -- properties


PLACEMENTS = ((1,), (2,), (4,), (4, 4))


def random_training(seed: int) -> GoodputModel:
    rng = np.random.default_rng(seed)
    batches, epochs = 2.0 ** np.arange(4, 4 + rng.integers(1, 5)), int(rng.integers(1, 6))
    placements = {}
    for counts in PLACEMENTS:
        batch = 2.0 ** np.arange(0, 6)
        step_s = np.sort(rng.uniform(0.1, 3, len(batch)))
        placements[counts] = np.stack((batch, step_s, step_s * rng.uniform(0, 1)))
    sqr, var = rng.exponential(size=(2, len(batches), epochs)) * (rng.random((2, 1, 1)) < 0.9)
    return GoodputModel(batches, rng.uniform(1, 9, epochs), sqr, var, {"T4": StepTimes(placements, {}, 1.0)}, 1.5)


@pytest.mark.parametrize("seed", range(20))
def test_no_batch_is_better_than_the_best_and_efficiency_is_from_0_to_1(seed):
    training = random_training(seed)
    for placement in PLACEMENTS:
        best_s = training.run_time_s("T4", placement)
        assert 0 < best_s < math.inf
        for batch in training.batches:
            assert best_s <= training.run_time_s("T4", placement, float(batch)) * (1 + 1e-12)
    batch = np.linspace(training.batches[0], training.batches[-1], 30)
    gain = training.gain(batch)
    assert (gain >= 1 - 1e-12).all()
    assert (gain / (batch / batch[0])[:, None] <= 1 + 1e-12).all()
    assert np.isfinite(gain).all()


# -- beside the reference


def reference() -> tuple[Path, dict[str, GoodputModel]]:
    folder = third_party.peer_folder("sia")
    if folder is None:
        pytest.skip("no reference tables: set COMMONWATT_DATA")
    return folder, read_trainings(folder, json.loads((folder / "cluster.json").read_text())["slowdown"])


@pytest.mark.data
def test_run_times_with_a_fixed_batch_are_those_of_the_reference():
    folder, trainings = reference()
    rates = (folder / "throughput" / "rigid_rates.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(rates.splitlines()))
    assert len(rows) > 50
    for row in rows:
        training, batch = trainings[row["application"]], float(row["batch_size"])
        at = TYPES[row["cluster"]], tuple(int(count) for count in row["placement"].split())
        assert training.run_time_s(*at, batch) == pytest.approx(float(row["run_time_unrounded_s"]), abs=0.06)
        assert training.run_time_s(*at) <= training.run_time_s(*at, batch)


@pytest.mark.data
@pytest.mark.parametrize("application", ["bert", "cifar10", "imagenet"])
def test_whole_hosts_that_were_not_placed_are_interpolated_as_the_reference_does(application):
    interpolate = pytest.importorskip("scipy.interpolate")
    _, trainings = reference()
    for gpu_type, placement in (("T4", (4,) * 5), ("T4", (4,) * 6), ("RTX2080Ti", (8, 8, 8))):
        steps = trainings[application].steps[gpu_type]
        columns = [np.column_stack((np.tile(key, (of.shape[1], 1)), of.T)) for key, of in steps.columns.items()]
        points = np.concatenate(columns)
        theirs = interpolate.LinearNDInterpolator(points[:, :3], points[:, 3:])
        own = steps.of(placement)
        assert own is not None
        asked = [(len(placement), sum(placement), batch) for batch in own[0]]
        assert pytest.approx(theirs(asked), rel=1e-3) == own[1:].T
