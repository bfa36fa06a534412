import matplotlib as mpl
import numpy as np
import pytest

from commonwatt.model.errors import InputError
from commonwatt.model.place_file import PlaceFile
from commonwatt.placement._problem import PlacementProblem, Schedule
from commonwatt.report.plots import save_gantt, save_overview, save_schedule
from tests.report.make_records import MEDIUM, SMALL, Size, make, make_record

BEGINS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.long
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


@pytest.mark.slow
def test_upper_case_suffix(tmp_path):
    save_gantt(make_record(SMALL, "a"), tmp_path / "A.PNG")
    assert (tmp_path / "A.PNG").exists()


@pytest.mark.long
@pytest.mark.parametrize("size", [MEDIUM, Size(nodes=70, gpus=2, jobs=100, tenants=2, span_s=5e3, mean_run_s=2e3)])
def test_gantt_of_many_jobs_or_nodes(tmp_path, size):
    save_gantt(make_record(size, "a"), tmp_path / "gantt.png")
    assert (tmp_path / "gantt.png").stat().st_size > 10_000


@pytest.mark.slow
def test_names_are_text(tmp_path):
    names = tuple(f"$\\frac{{{i}" for i in range(SMALL.jobs))
    result, records = make(SMALL, ("$a$_{", "b"), name=names)
    save_overview(result, records, tmp_path / "a.svg")
    save_gantt(records[0], tmp_path / "b.svg")
    assert "$a$_{" in (tmp_path / "a.svg").read_text()


@pytest.mark.long
def test_unknown_values(tmp_path):
    result, records = make(SMALL, ("a", "b"))
    policies = tuple(p.model_copy(update={"energy_cost": None, "total_cost": None}) for p in result.policies)
    records[0].samples.power_w[:] = np.nan
    save_overview(result.model_copy(update={"policies": policies}), records, tmp_path / "a.svg")
    assert "unknown" in (tmp_path / "a.svg").read_text()
    save_overview(result, [], tmp_path / "b.svg")


@pytest.mark.slow
def test_schedule(tmp_path):
    nodes = [{"name": f"n{i}", "gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 200} for i in range(3)]
    times = [{"V100": [1200.0 * (i + 1)]} for i in range(7)]
    jobs = [{"name": f"$job {i}", "due_s": 3600, "tardiness_weight": 1e-3, "times_s": t} for i, t in enumerate(times)]
    problem = PlacementProblem.of(PlaceFile.model_validate({"nodes": nodes, "jobs": jobs}))
    schedule = Schedule.empty(problem)
    save_schedule(problem, schedule, tmp_path / "empty.svg")
    assert "0 of 7 jobs placed, 7 wait" in (tmp_path / "empty.svg").read_text()
    for job, node in ((0, 0), (1, 0), (2, 2)):
        schedule.choice[job] = problem.start[job]
        schedule.nodes[problem.slot_start[job]] = node
    save_schedule(problem, schedule, tmp_path / "three.svg")
    text = (tmp_path / "three.svg").read_text()
    assert "3 of 7 jobs placed, 4 wait" in text
    assert "$job 0: 20.0" in text  # run time in the bar
    assert "$job 3" in text  # named as waiting
    assert "Waiting: $job 3" in text
    assert text.count("due in") == 3 + 4


def test_schedule_marks_lateness(tmp_path):
    node = {"name": "n", "gpu_type": "V100", "gpus": 4, "idle_w": 100, "gpu_w": 200}
    jobs = [
        {"name": name, "due_s": due, "tardiness_weight": 1e-3, "times_s": {"V100": [600.0]}}
        for name, due in (("late", 300.0), ("early", 800.0), ("over", 0.0), ("never", None))
    ]
    problem = PlacementProblem.of(PlaceFile.model_validate({"nodes": [node], "jobs": jobs}))
    schedule = Schedule.empty(problem)
    schedule.choice[:] = problem.start[:-1]
    save_schedule(problem, schedule, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text().replace("\N{NO-BREAK SPACE}", " ")
    for part in ("late: 10.0 min, 5.00 min late", "early: 10.0 min, due in 13.3 min", "over: 10.0 min, 10.0 min late"):
        assert part in text
    assert "never: 10.0 min " in text
    assert "Waiting" not in text
    assert text.count("#b3261e") > 0


@pytest.mark.slow
def test_schedule_with_many_jobs(tmp_path):
    node = {"name": "n", "count": 100, "gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 200}
    jobs = [{"name": f"j{i}", "due_s": 600, "tardiness_weight": 1, "times_s": {"V100": [600.0]}} for i in range(300)]
    problem = PlacementProblem.of(PlaceFile.model_validate({"nodes": [node], "jobs": jobs}))
    schedule = Schedule.empty(problem)
    schedule.choice[:200] = problem.start[:200]
    schedule.nodes[problem.slot_start[:200]] = np.arange(200) // 2
    save_schedule(problem, schedule, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "200 of 300 jobs placed, 100 wait" in text
    assert "and 60 more" in text


def test_nothing_is_left_behind_where_a_file_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match="a file in an existing folder"):
        save_gantt(make_record(SMALL, "a"), tmp_path / "no" / "a.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match="a file, not a folder"):
        save_gantt(make_record(SMALL, "a"), tmp_path / "folder.png")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]
