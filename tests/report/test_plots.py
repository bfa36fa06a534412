import matplotlib as mpl
import numpy as np
import pytest

from commonwatt.model.errors import InputError
from commonwatt.model.place_file import PlaceFile
from commonwatt.placement.problem import Problem, Schedule
from commonwatt.report.plots import save_gantt, save_overview, save_schedule
from tests.report.make_records import MEDIUM, SMALL, Size, make, make_record

BEGINS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize("suffix", BEGINS)
def test_formats_and_same_bytes(tmp_path, suffix):
    result, records = make(SMALL)
    before = dict(mpl.rcParams)
    for name in ("a", "b"):
        save_overview(result, records, tmp_path / f"{name}{suffix}")
        save_gantt(records[0], tmp_path / f"{name}-gantt{suffix}")
    assert dict(mpl.rcParams) == before
    for kind in ("", "-gantt"):
        first, second = ((tmp_path / f"{name}{kind}{suffix}").read_bytes() for name in ("a", "b"))
        assert first.startswith(BEGINS[suffix])
        assert len(first) > 5000
        assert first == second


@pytest.mark.parametrize("name", ["plot.jpg", "plot", "plot.svg.gz"])
def test_other_suffixes_are_refused(tmp_path, name):
    result, records = make(SMALL, ("a",))
    with pytest.raises(InputError, match=r"\.png, \.svg, \.pdf"):
        save_overview(result, records, tmp_path / name)
    with pytest.raises(InputError, match=r"\.png, \.svg, \.pdf"):
        save_gantt(records[0], tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_upper_case_suffix(tmp_path):
    save_gantt(make_record(SMALL, "a"), tmp_path / "A.PNG")
    assert (tmp_path / "A.PNG").exists()


@pytest.mark.parametrize("size", [MEDIUM, Size(nodes=70, gpus=2, jobs=100, tenants=2, span_s=5e3, mean_run_s=2e3)])
def test_gantt_of_many_jobs_or_nodes(tmp_path, size):
    save_gantt(make_record(size, "a"), tmp_path / "gantt.png")
    assert (tmp_path / "gantt.png").stat().st_size > 10_000


def test_names_are_text(tmp_path):
    names = tuple(f"$\\frac{{{i}" for i in range(SMALL.jobs))
    result, records = make(SMALL, ("$a$_{", "b"), name=names)
    save_overview(result, records, tmp_path / "a.svg")
    save_gantt(records[0], tmp_path / "b.svg")
    assert "$a$_{" in (tmp_path / "a.svg").read_text()


def test_unknown_values(tmp_path):
    result, records = make(SMALL, ("a", "b"))
    policies = tuple(p.model_copy(update={"energy_cost": None, "total_cost": None}) for p in result.policies)
    records[0].samples.power_w[:] = np.nan
    save_overview(result.model_copy(update={"policies": policies}), records, tmp_path / "a.svg")
    assert "unknown" in (tmp_path / "a.svg").read_text()
    save_overview(result, [], tmp_path / "b.svg")


def test_schedule(tmp_path):
    nodes = [{"name": f"n{i}", "gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 200} for i in range(3)]
    times = [{"V100": [1200.0 * (i + 1)]} for i in range(7)]
    jobs = [{"name": f"$job {i}", "due_s": 3600, "tardiness_weight": 1e-3, "times_s": t} for i, t in enumerate(times)]
    problem = Problem.of(PlaceFile.model_validate({"nodes": nodes, "jobs": jobs}))
    schedule = Schedule.empty(problem)
    save_schedule(problem, schedule, tmp_path / "empty.svg")
    assert "0 of 7 jobs placed, 7 wait" in (tmp_path / "empty.svg").read_text()
    for job, node in ((0, 0), (1, 0), (2, 2)):
        schedule.choice[job] = problem.start[job]
        schedule.nodes[problem.slot_start[job]] = node
    save_schedule(problem, schedule, tmp_path / "three.svg")
    text = (tmp_path / "three.svg").read_text()
    assert "3 of 7 jobs placed, 4 wait" in text
    assert all(f"$job {i}" in text for i in range(3))
    assert "$job 3" not in text
