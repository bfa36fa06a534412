"""Profiles of own trainings in jobs, in logs and in submissions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.data.files import load_yaml, validate
from commonwatt.data.profiles import LAW, profiles_for
from commonwatt.data.training_profiles import SpeedCurve, read_profiles, times_of
from commonwatt.data.workload import make_workload
from commonwatt.model.errors import InputError
from commonwatt.model.nodes import GpuTypeSpec
from commonwatt.model.scenario import Scenario
from commonwatt.model.training_profile import TrainingProfile


def profile(gpu_type="H100", epochs_s=None, kind="mine", gpu_w=400.0):
    points = [{"gpus": g, "epoch_s": s, "gpu_w": gpu_w} for g, s in (epochs_s or {1: 100.0, 2: 60.0, 4: 40.0}).items()]
    return validate({"kind": kind, "gpu_type": gpu_type, "points": points}, TrainingProfile)


def text_of(one: TrainingProfile) -> str:
    return one.model_dump_json()


def test_the_own_clock_counts_else_the_highest():
    rows = [(1, 900, 9.0), (1, None, 5.0), (1, 1400, 4.0), (2, 900, 7.0), (2, 1400, 3.0)]
    points = [{"gpus": g, "clock_mhz": c, "epoch_s": s} for g, c, s in rows]
    found = validate({"kind": "k", "gpu_type": "T4", "points": points}, TrainingProfile)
    assert found.times_s(10) == {1: 50.0, 2: 30.0}
    assert found.mean_gpu_w() is None
    with pytest.raises(InputError, match=r"points.1.gpus: got|field 'points.1.gpus'"):
        validate({"kind": "k", "gpu_type": "T4", "points": [points[0]] * 2}, TrainingProfile)


@pytest.mark.slow
@settings(deadline=None)
@given(st.dictionaries(st.integers(1, 64), st.floats(0.1, 1e4), min_size=1, max_size=6), st.integers(1, 256))
def test_speeds_go_through_what_was_measured(epochs_s, gpus):
    curve = SpeedCurve(profile(epochs_s=epochs_s))
    for count, epoch_s in epochs_s.items():
        assert curve.speed(count) == pytest.approx(1 / epoch_s)
    speed, counts = curve.speed(gpus), sorted(epochs_s)
    if gpus < counts[0] or (len(counts) == 1 and gpus != counts[0]):
        assert speed is None
    elif gpus > counts[-1]:
        last = 1 / epochs_s[counts[-1]]
        assert last * (1 - 1e-9) <= speed <= last * gpus / counts[-1] * (1 + 1e-9)
    else:
        low = max(g for g in counts if g <= gpus)
        high = min(g for g in counts if g >= gpus)
        bounds = sorted((1 / epochs_s[low], 1 / epochs_s[high]))
        assert bounds[0] * (1 - 1e-9) <= speed <= bounds[1] * (1 + 1e-9)


def test_speeds_beyond_go_on_as_between_the_last_two():
    curve = SpeedCurve(profile(epochs_s={1: 8.0, 2: 4.0, 4: 2.0 * math.sqrt(2)}))
    assert curve.speed(16) == pytest.approx(curve.speed(4) * 2)  # an exponent of 1/2


# -- jobs

NODES = """\
nodes:
  - {name: n, gpu_type: h100, gpus: 8, idle_w: 100, gpu_w: 300}
  - {name: m, gpu_type: A100, gpus: 8, idle_w: 1, gpu_w: 1}
"""
JOB = "workload: {{source: jobs, jobs: [{{name: j, submit_s: 0, epochs: 10, {0}}}]}}\n"


@pytest.fixture
def make(write, no_traces):
    def build(text):
        path = write("s.yaml", text)
        return make_workload(load_yaml(path, Scenario), path.parent, np.random.default_rng(0))

    return build


def says(call, *args) -> str:
    with pytest.raises(InputError) as caught:
        call(*args)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_a_job_takes_its_times_from_profiles(make, write):
    write("h.json", text_of(profile()))
    write("a.json", text_of(profile("A100", {2: 90.0}, gpu_w=None)))
    table = make(NODES + JOB.format("profile: [h.json, a.json], requested_gpus: 2")).table
    names = [table.gpu_types[t] for t in table.config_type]
    assert list(zip(names, table.config_gpus.tolist(), table.config_time_s.tolist(), strict=True)) == [
        ("h100", 1, 1000.0), ("h100", 2, 600.0), ("h100", 4, 400.0), ("A100", 2, 900.0),
    ]  # fmt: skip
    assert table.config_gpu_w[:3].tolist() == [400.0] * 3
    assert np.isnan(table.config_gpu_w[3])
    assert make(NODES + JOB.format("profile: h.json, gpu_w: {h100: 5}")).table.config_gpu_w.tolist() == [5.0] * 3


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ("profile: no.json", "no.json: expected an existing file"),
        (
            "profile: [h.json, h.json]",
            "field 'workload.jobs.j.profile': got 'two of H100', expected one profile of",
        ),
        ("profile: [h.json, o.json]", "field 'workload.jobs.j.profile': got 'mine, other', expected profiles of one"),
        ("profile: s.yaml", "s.yaml: expected a profile of a training; this is a scenario"),
        ("times_s: {A100: [1]}, profile: h.json", "field 'workload.jobs.j.times_s': got 'both', expected either"),
        ("tenant: t", "expected either times_s or profile"),
    ],
)
def test_bad_profiles_of_jobs(make, write, fields, line):
    write("h.json", text_of(profile()))
    write("o.json", text_of(profile("A100", kind="other")))
    assert line in says(make, NODES + JOB.format(fields))


# -- logs

LOG = "submit_s,duration_s,gpus,gpu_type\n0,100,2,A100\n10,100,4,h100\n20,300,16,A100\n"


def test_jobs_of_a_log_are_of_the_kinds_that_were_profiled(make, write):
    write("log.csv", LOG)
    write("h.json", text_of(profile()))
    write("a.json", text_of(profile("A100", {1: 300.0, 2: 180.0, 4: 120.0}, gpu_w=250.0)))
    types = "gpu_types: {H100: {profile: h.json}, A100: {profile: [a.json]}}\n"
    made = make(NODES + types + "workload: {source: csv, path: log.csv}")
    table = made.table
    assert set(table.kinds) == {"mine"}
    rows = table.configs(0)
    here = dict(
        zip(zip(table.config_type[rows], table.config_gpus[rows], strict=True), table.config_time_s[rows], strict=True)
    )
    assert here[1, 2] == pytest.approx(100)  # as logged, on A100
    assert here[0, 2] == pytest.approx(100 / 3)  # measured: three times as fast
    assert here[0, 4] == pytest.approx(100 / 4.5)
    assert set(table.config_gpu_w) == {400.0, 250.0}
    assert "speed of H100 as measured by commonwatt profile of mine" in made.sentence


def test_jobs_of_counts_that_were_not_measured_are_of_published_kinds(make, write):
    write("log.csv", LOG)
    write("h.json", text_of(profile()))
    write("a.json", text_of(profile("A100", {4: 120.0})))
    types = "gpu_types: {H100: {profile: h.json}, A100: {profile: a.json}}\n"
    kinds = make(NODES + types + "workload: {source: csv, path: log.csv, profiles: law}").table.kinds
    assert kinds[0] in LAW.kinds
    assert kinds[1] == "mine"
    assert kinds[2] in LAW.kinds


def test_where_a_type_has_no_profile_other_kinds_are_drawn_too():
    specs = {"H100": GpuTypeSpec(profile="h"), "X": GpuTypeSpec(speed=2, relative_to="H100")}
    found, _ = profiles_for(LAW, specs, ("H100", "A100", "X"), ["A100"], None, {"H100": [profile()]})
    assert (found.kinds, found.preferred) == (("mine", *LAW.kinds), ())
    assert found.speed("mine", "A100", 1) is None
    assert found.speed("mine", "X", 2) == pytest.approx(2 / 60)
    assert found.speed("bert", "H100", 1) == pytest.approx(1.9 * LAW.speed("bert", "A100", 1), rel=0.01)
    assert found.gpu_w("mine", "H100") == 400


def test_a_cluster_of_one_profiled_type():
    found, logged = profiles_for(
        LAW, {"B900": GpuTypeSpec(profile="p")}, ("B900",), [""], None, {"B900": [profile("b900")]}
    )
    assert (found.preferred, logged) == (("mine",), "B900")
    assert found.speed("mine", "b900", 4) == pytest.approx(1 / 40)


def test_profiles_that_do_not_belong():
    specs = {"H100": GpuTypeSpec(profile="p")}
    line = says(profiles_for, LAW, specs, ("H100", "A100"), [], None, {"H100": [profile("A100")]})
    assert line == "field 'gpu_types.H100.profile': got 'one of A100', expected a profile of H100"
    line = says(profiles_for, LAW, specs, ("H100", "A100"), [], None, {"H100": [profile(kind="bert")]})
    assert line.startswith("field 'gpu_types.H100.profile': got 'bert', expected a kind of its own")


# -- submit


def test_submit_takes_times_from_profiles(write):
    from commonwatt.cli.submit import job_of

    path = write("h.json", text_of(profile(epochs_s={2: 60.0, 4: 40.0})))
    flags = {"profiles": (path,), "epochs": 10}
    job = job_of(None, flags, ["python", "train.py"])
    assert job.times_s == {"H100": {2: 600.0, 4: 400.0}}
    assert (job.kind, job.gpus, job.epochs) == ("mine", 2, 10)
    assert job_of(None, flags | {"gpus": "4", "kind": "k"}, ["x"]).kind == "k"
    assert "field '--epochs': expected the number of epochs" in says(job_of, None, {"profiles": (path,)}, ["x"])
    file = write("j.yaml", "{name: j, command: x, times_s: {A100: [1]}}")
    assert "expected times_s or --profile, not both" in says(job_of, file, flags, None)
    assert times_of(read_profiles([path]), 10).kind == "mine"
