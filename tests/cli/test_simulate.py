"""``commonwatt simulate`` as an operator uses it."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import polars as pl
import pytest
import yaml

from tests.cli.console import job, run, scenario, write

POLICY_KEYS = {
    "energy_kwh", "energy_cost", "tardiness_cost", "total_cost", "lower_bound_cost", "late_jobs", "jobs",
    "mean_jct_s", "p95_jct_s", "makespan_s", "preemptions", "migrations", "gpu_utilization", "scheduler_s",
}  # fmt: skip
FILES = ["events.parquet", "jobs.parquet", "report.html", "result.json", "scenario.yaml"]
WORKLOADS = {
    "jobs": scenario(),
    "week": scenario(
        workload={"source": "week", "days": 0.2, "jobs_per_day": 60, "profiles": "law", "logged_gpu_type": "V100"},
        nodes=[{"name": "v", "count": 4, "gpu_type": "V100", "gpus": 8, "idle_w": 150, "gpu_w": 250}],
        policies=[{"solver": "easy"}],
    ),
    "andreas": scenario(workload={"source": "andreas", "nodes": 2, "jobs": 6}, nodes=[], policies=[{"solver": "edf"}]),
}


def without_times(document: dict) -> dict:
    for result in document.get("runs", [document]):
        for policy in result["policies"]:
            policy["scheduler_s"] = None
    return document


def listing(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def small(tmp_path):
    return write(tmp_path / "small.yaml", scenario())


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_with_the_keys_of_the_contract(name, tmp_path):
    file = write(tmp_path / "s.yaml", WORKLOADS[name])
    done = run("simulate", file, "--out", tmp_path / "out", "--json", "--jobs", 1)
    assert done.code == 0, done.err
    document = done.document
    assert document["seed"] == 0
    assert re.fullmatch(r"[0-9a-f]{64}", document["input_digest"])
    assert re.fullmatch(r"\d+\.\d+.*", document["version"])
    for policy in document["policies"]:
        assert policy.keys() >= POLICY_KEYS
        assert policy["scheduler_s"] > 0
        assert policy["jobs"] == document["jobs"] > 0
        assert policy["lower_bound_cost"] <= policy["total_cost"]
    assert without_times(document) == json.loads((tmp_path / "out" / "result.json").read_text())
    assert listing(tmp_path / "out") == FILES


@pytest.mark.slow
def test_the_scenario_left_behind_can_be_run_again(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "jobs.csv").write_text("submit_s,duration_s,gpus\n0,600,1\n60,900,2\n", encoding="utf-8")
    workload = {"source": "csv", "path": "logs/jobs.csv", "logged_gpu_type": "V100", "profiles": "law"}
    file = write(tmp_path / "s.yaml", scenario(workload=workload))
    first = run("simulate", file, "--out", tmp_path / "out" / "one", "--jobs", 1)
    assert first.code == 0, first.err
    again = run("simulate", tmp_path / "out" / "one" / "scenario.yaml", "--out", tmp_path / "two", "--jobs", 1)
    assert again.code == 0, again.err
    left = [(folder / "result.json").read_bytes() for folder in (tmp_path / "out" / "one", tmp_path / "two")]
    assert left[0] == left[1]


@pytest.mark.slow
def test_the_files_hold_what_they_say(small, tmp_path):
    run("simulate", small, "--out", tmp_path / "out", "--jobs", 1)
    events = pl.read_parquet(tmp_path / "out" / "events.parquet")
    assert events.columns == ["policy", "time_s", "kind", "job", "nodes", "gpus", "reason", "sentence", "lost_s"]
    assert events["policy"].unique(maintain_order=True).to_list() == ["random-greedy", "fifo"]
    for policy in ("random-greedy", "fifo"):
        own = events.filter(pl.col("policy") == policy)
        assert own["time_s"].is_sorted()
        for kind in ("submitted", "started", "completed"):
            assert sorted(own.filter(pl.col("kind") == kind)["job"]) == ["a", "b", "c"]
    decided = events.filter(pl.col("kind").is_in(["started", "waits", "preempted", "migrated", "resized", "resumed"]))
    assert (decided["reason"].str.len_chars() > 0).all()
    assert all(job in sentence for job, sentence in decided.select("job", "sentence").iter_rows())
    jobs = pl.read_parquet(tmp_path / "out" / "jobs.parquet")
    assert len(jobs) == 6
    assert (jobs["began_s"] >= jobs["submit_s"]).all()
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<!doctype html>" in page[:20].lower()
    assert "small" in page


@pytest.mark.slow
def test_the_scenario_as_run_runs_again_to_the_same_result(small, tmp_path):
    run("simulate", small, "--out", tmp_path / "one", "--jobs", 1)
    again = run("simulate", tmp_path / "one" / "scenario.yaml", "--out", tmp_path / "two", "--jobs", 1)
    assert again.code == 0
    for name in set(FILES) - {"report.html"}:  # which tells how long deciding took
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


@pytest.mark.slow
def test_an_existing_folder_is_refused_and_stays(small, tmp_path):
    out = tmp_path / "out"
    run("simulate", small, "--out", out, "--jobs", 1)
    before = hashlib.sha256((out / "report.html").read_bytes()).digest()
    done = run("simulate", small, "--out", out, "--seed", 1)
    assert (done.code, done.out) == (2, "")
    assert f"error: field '--out': got '{out}', expected a new or empty folder, or --overwrite" in done.err
    assert hashlib.sha256((out / "report.html").read_bytes()).digest() == before


@pytest.mark.slow
def test_overwrite_replaces_the_whole_of_an_earlier_run(small, tmp_path):
    out = tmp_path / "out"
    run("simulate", small, "--out", out, "--jobs", 1)
    assert run("simulate", small, "--out", out, "--overwrite", "--policy", "fifo", "--jobs", 1).code == 0
    assert listing(out) == FILES
    assert [p["policy"] for p in json.loads((out / "result.json").read_text())["policies"]] == ["fifo"]
    assert listing(tmp_path) == ["out", "small.yaml"]


def test_overwrite_deletes_nothing_it_did_not_write(small, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    done = run("simulate", small, "--out", tmp_path, "--overwrite")
    assert done.code == 2
    assert "an earlier run, not small.yaml" in done.err
    assert listing(tmp_path) == ["small.yaml", "thesis.txt"]


def test_an_empty_folder_is_as_good_as_none(small, tmp_path):
    (tmp_path / "out").mkdir()
    assert run("simulate", small, "--out", tmp_path / "out", "--jobs", 1).code == 0


@pytest.mark.parametrize("name", ["small.yaml", "small.yaml/out", "small.yaml/deep/out"])
def test_a_folder_that_cannot_be(name, small, tmp_path):
    done = run("simulate", small, "--out", tmp_path / name)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: field '--out': got ")
    assert done.err.count("\n") == 1
    assert listing(tmp_path) == ["small.yaml"]


@pytest.mark.slow
@pytest.mark.parametrize("earlier", [True, False])
def test_nothing_is_left_behind_when_writing_fails(earlier, small, tmp_path, monkeypatch):
    out = tmp_path / "new" / "out"
    if earlier:
        run("simulate", small, "--out", out, "--jobs", 1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def left() -> dict[Path, bytes]:
        """All files but the finished runs, with which the same command goes on."""
        files = (path for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "runs")
        return {path: path.read_bytes() for path in files}

    with monkeypatch.context() as patched:
        patched.setattr(pl.DataFrame, "write_parquet", full)
        done = run("simulate", small, "--out", out, "--overwrite", "--jobs", 1)
    assert done.code == 2
    assert "error: field '--out'" in done.err
    assert "No space left on device" in done.err
    assert left() == before
    again = run("simulate", small, "--out", out, "--jobs", 1)
    assert (again.code, "going on from there" in again.err, listing(out)) == (0, True, FILES)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "magic"), [("p.png", b"\x89PNG"), ("p.svg", b"<?xml"), ("p.PDF", b"%PDF")])
def test_plot(name, magic, small, tmp_path):
    assert run("simulate", small, "--plot", tmp_path / name, "--jobs", 1).code == 0
    assert (tmp_path / name).read_bytes().startswith(magic)


@pytest.mark.parametrize("name", ["p.gif", "p", "no/p.png", "folder.png"])
def test_a_plot_that_cannot_be_is_refused_before_anything_runs(name, small, tmp_path):
    (tmp_path / "folder.png").mkdir()
    done = run("simulate", small, "--plot", tmp_path / name)
    assert done.code == 2
    assert re.fullmatch(r"error: field '--plot': got '.*', expected a file.*\n", done.err)


def test_without_json_a_table_and_a_sentence(small):
    done = run("simulate", small, "--jobs", 1)
    assert done.code == 0
    assert "random-greedy" in done.out
    assert "fifo" in done.out
    assert "3 jobs, 2 nodes, 3 GPUs" in done.err


def test_one_policy_is_as_it_was_among_others(small):
    together = without_times(run("simulate", small, "--json", "--jobs", 1).document)
    alone = without_times(run("simulate", small, "--json", "--policy", "fifo").document)
    assert alone["policies"] == together["policies"][1:]


def test_a_policy_that_is_none_of_the_scenario(small):
    done = run("simulate", small, "--policy", "magic")
    assert done.code == 2
    expected = "expected a policy of the scenario (random-greedy, fifo)"
    assert done.err == f"error: field '--policy': got 'magic', {expected}\n"


@pytest.mark.slow
def test_a_sweep_is_the_single_runs_and_their_mean(tmp_path):
    file = write(tmp_path / "s.yaml", WORKLOADS["andreas"])
    out = ("--out", tmp_path / "out")
    sweep = without_times(run("simulate", file, "--seed", 3, "--seeds", 2, "--json", "--jobs", 1, *out).document)
    assert sweep == json.loads((tmp_path / "out" / "result.json").read_text())
    assert (sweep["seed"], len(sweep["input_digest"])) == (3, 64)
    assert sweep["seeds"] == [3, 4]
    singles = [without_times(run("simulate", file, "--seed", s, "--json", "--jobs", 1).document) for s in (3, 4)]
    assert sweep["runs"] == singles
    costs = [single["policies"][0]["total_cost"] for single in singles]
    (policy,) = sweep["policies"]
    assert costs[0] != costs[1]
    assert policy["total_cost"]["mean"] == pytest.approx(sum(costs) / 2)
    assert policy["total_cost"]["sd"] == pytest.approx(abs(costs[0] - costs[1]) / 2**0.5)


def test_a_sweep_without_json_is_a_table(tmp_path):
    done = run("simulate", write(tmp_path / "s.yaml", WORKLOADS["andreas"]), "--seeds", 2, "--jobs", 1)
    assert done.code == 0
    assert "mean of 2 seeds" in done.out


def test_json_input_gives_the_same_as_yaml(tmp_path):
    as_yaml = write(tmp_path / "s.yaml", scenario())
    as_json = write(tmp_path / "s.json", json.dumps(scenario()))
    first, second = (without_times(run("simulate", f, "--json", "--jobs", 1).document) for f in (as_yaml, as_json))
    assert first == second


def test_paths_are_relative_to_the_scenario(tmp_path):
    (tmp_path / "prices.csv").write_text("from_s,price_per_kwh,carbon_g_per_kwh\n0,0.1,100\n600,0.4,300\n")
    plain = run("simulate", write(tmp_path / "a.yaml", scenario()), "--json", "--jobs", 1).document
    priced = scenario(electricity={"series_file": "prices.csv"})
    done = run("simulate", write(tmp_path / "b.yaml", priced), "--json", "--out", tmp_path / "out", "--jobs", 1)
    policy = done.document["policies"][1]
    assert policy["energy_kwh"] == plain["policies"][1]["energy_kwh"]
    assert policy["energy_cost"] != plain["policies"][1]["energy_cost"]
    assert policy["carbon_kg"] > 0
    assert plain["policies"][1]["carbon_kg"] is None
    kept = yaml.safe_load((tmp_path / "out" / "scenario.yaml").read_text())
    assert [point["price_per_kwh"] for point in kept["electricity"]["series"]] == [0.1, 0.4]


@pytest.mark.slow
def test_text_of_users_reaches_the_report_as_text(tmp_path):
    name = "<script>alert('x')</script>"
    document = scenario(name=name, workload={"source": "jobs", "jobs": [job(name, tenant=name)]})
    file = write(tmp_path / "s.yaml", document)
    assert run("simulate", file, "--out", tmp_path / "out", "--jobs", 1).code == 0
    assert name not in (tmp_path / "out" / "report.html").read_text()
