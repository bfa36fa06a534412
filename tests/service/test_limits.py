"""What a job file may hold when it comes in; what was accepted before there were limits is still read."""

from __future__ import annotations

import pytest

from commonwatt.controlplane.jobs import JobMaker
from commonwatt.model.job_file import JobFile
from commonwatt.model.nodes import Cluster
from tests.service.made import job

COUNTS = "GPU counts from 1 to 1024"
SECONDS = "a number of seconds from 1e-06 to 1e+12"
ONCE = "each GPU type once (upper and lower case are equal)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "field", "value", "expected"),
    [
        ({"times_s": {"V100": {"2000000000000": 1}}}, "times_s.V100", "2000000000000", COUNTS),
        ({"times_s": {"V100": {"0": 1}}}, "times_s.V100", "0", COUNTS),
        ({"times_s": {"V100": [1.0] * 1025}}, "times_s.V100", "1,025 times", "times for 1 to 1024 GPUs"),
        ({"times_s": {"V100": [None] * 1025}}, "times_s.V100", "1,025 times", "times for 1 to 1024 GPUs"),
        ({"times_s": {"V100": [1], "H100": []}}, "times_s", "H100", "a GPU type of the cluster (V100, T4)"),
        ({"times_s": {"V100": {"1": 10}, "v100": {"1": 20}}}, "times_s", "v100", ONCE),
        ({"gpu_types": ["T4", "V100", "t4"]}, "gpu_types", "t4", ONCE),
        ({"gpu_types": ["V100"] * 60_000}, "gpu_types", "V100", ONCE),
        ({"gpu_counts": [1, 2, 1]}, "gpu_counts", "1", "each GPU count once"),
        ({"command": ["true", *[""] * 300_000]}, "command", "300001 arguments", "at most 4096 arguments"),
        ({"due": f"2101-01-01T00:00:00.{'0' * 500}"}, "due", "520 characters", "at most 64 characters"),
        ({"times_s": {"V100": [1e-320]}}, "times_s.V100[1 GPU]", "1e-320", SECONDS),
        ({"times_s": {"V100": {"2": 1e14}}}, "times_s.V100[2 GPUs]", "100000000000000.0", SECONDS),
        ({"time_limit_s": 1e-7}, "time_limit_s", "1e-07", SECONDS),
        ({"time_limit_s": 1e14}, "time_limit_s", "100000000000000.0", SECONDS),
        ({"image": "a b"}, "image", "a b", "the name of an image, without blanks and not beginning with '-'"),
        ({"image": "a\nb"}, "image", "a\nb", "the name of an image, without blanks and not beginning with '-'"),
        ({"times_s": {"V100": [1, 2]}, "gpu_types": ["T4"]}, "times_s", "V100: 1, 2 GPUs",
         "a time that gpu_types allow"),
        ({"times_s": {"V100": [1], "T4": {"1": 2}}, "gpu_types": ["T4"], "gpu_counts": [2]}, "times_s",
         "V100: 1 GPU; T4: 1 GPU", "a time that gpu_types and gpu_counts allow"),
    ],
)  # fmt: skip
def test_what_is_too_much_is_refused(as_, service, more, field, value, expected):
    done = as_("ada").post("/jobs", json=job(**more)).json()
    assert (done["status"], done["field"], done["value"], done["expected"]) == (422, field, value, expected)
    assert service.store.jobs() == []


def test_so_many_configurations_and_no_more(as_, monkeypatch):
    monkeypatch.setattr("commonwatt.service.admission.MOST_CONFIGURATIONS", 3)
    ada = as_("ada")
    done = ada.post("/jobs", json=job(gpu_counts=[1, 2, 3])).json()  # three of V100, one of T4
    assert (done["status"], done["field"], done["value"]) == (422, "gpu_counts", "4 configurations")
    done = ada.post("/jobs", json=job(times_s={"V100": [4, 3, 2, 1]})).json()
    assert (done["field"], done["expected"]) == ("times_s", "at most 3, over all GPU types")
    assert ada.post("/jobs", json=job(gpu_counts=[1, 2, 64])).status_code == 201  # what no node has does not count


@pytest.mark.parametrize(
    "more",
    [
        {"times_s": {"V100": {"1": 1e-6, "1024": 1e12}, "T4": [1.0] * 1024}, "time_limit_s": 1e12},
        {"gpu_types": ["T4", "V100"], "gpu_counts": [1, 2, 1024]},
        {"command": ["true"] + ["x"] * 4095, "due": "2101-01-01T08:00:00.123456789+01:00"},
        {"image": "docker://nvcr.io/nvidia/pytorch:24.01-py3"},
    ],
)
def test_what_is_not_too_much_is_accepted(as_, more):
    done = as_("ada").post("/jobs", json=job(**more))
    assert done.status_code == 201, done.text


@pytest.mark.parametrize(
    ("more", "warnings"),
    [
        (
            {"gpu_types": ["V100", "T4"]},
            ["gpu_types: times_s has no time for T4, so the job will not run there"],
        ),
        ({"gpu_type": "t4"}, ["gpu_type: times_s has no time for t4, so the job will not run there"]),
        ({"gpu_counts": [1, 4]}, ["gpu_counts: times_s has no time for GPU counts 4, so the job will not run on them"]),
        ({"gpu_types": ["v100"], "gpu_counts": [2]}, []),
    ],
)
def test_what_gets_nothing_beside_declared_times_is_said(as_, more, warnings):
    done = as_("ada").post("/jobs", json=job(times_s={"V100": [20, 10]}, **more)).json()
    assert done["warnings"] == warnings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "configurations"),
    [
        ({"times_s": {"V100": {2_000_000_000_000: 1.0, 1: 1.0}}}, {("V100", 1)}),
        ({"times_s": {"V100": {1: 1.0}, "v100": {2: 1.0}}}, {("V100", 2)}),
        ({"times_s": {"V100": [1e-320]}, "time_limit_s": 1e300}, {("V100", 1)}),
        ({"gpu_types": ["V100"] * 60_000, "gpu_counts": [1, 1, 2]}, {("V100", 1), ("V100", 2)}),
        ({"times_s": {"V100": [1.0]}, "gpu_types": ["T4"]}, {("T4", 1)}),
        ({"image": "a b"}, {("V100", 1), ("T4", 1)}),
    ],
)
def test_what_was_accepted_before_is_still_read(service, more, configurations):
    maker = JobMaker(Cluster.of(service.config.nodes), 60.0)
    number = service.store.submit("ada", JobFile(name="old", command="true", **more), 1.0)[0].id
    row = service.store.job(number)
    figures = maker.check(row.file, anew=False)
    assert {(figure.gpu_type, figure.gpus) for figure in figures} == configurations
    assert len(figures) == len(configurations)
    assert maker.make(row, figures).times_s.keys() == {gpu_type for gpu_type, _ in configurations}
