"""``commonwatt place`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from commonwatt.cli.place import SOLVERS
from commonwatt.placement._solvers import SOLVERS as KNOWN
from tests.cli.console import job, problem, run, write

EXAMPLE = Path(__file__).parents[2] / "examples" / "place.yaml"
KEYS = {
    "solver", "objective", "tardiness_cost", "postponement_cost", "first_ending_cost", "assignments", "postponed",
    "iterations", "solve_s", "version", "seed", "input_digest", "decisions", "enforcement",
}  # fmt: skip


def worth(raw: dict, document: dict) -> float:
    """Objective (1) of a result, from the file and the paper alone; for one-node jobs that do not run yet."""
    now, price = raw.get("now_s", 0.0), raw["electricity"]["price_per_kwh"] * raw["electricity"]["pue"] / 3.6e6
    jobs, nodes = {j["name"]: j for j in raw["jobs"]}, {n["name"]: n for n in raw["nodes"]}
    total, first = 0.0, {}
    for a in document["assignments"]:
        j, node = jobs[a["job"]], nodes[a["node"]]
        time_s = j["times_s"][node["gpu_type"]][a["gpus"] - 1]
        total += j["tardiness_weight"] * max(0.0, now + time_s - j["due_s"])
        cost = time_s * (node["idle_w"] + a["gpus"] * node["gpu_w"]) * price
        first[a["node"]] = min(first.get(a["node"], (1e300, 0.0)), (time_s, cost))
    for name in document["postponed"]:
        j = jobs[name]
        slowest = max(t for row in j["times_s"].values() for t in row)
        total += (
            raw["postponement_penalty"]
            * j["tardiness_weight"]
            * max(0.0, now + raw["interval_s"] + slowest - j["due_s"])
        )
    return total + sum(cost for _, cost in first.values())


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_example_under_every_solver(solver):
    done = run("place", EXAMPLE, "--solver", solver, "--iterations", 50, "--json")
    assert done.code == 0, done.err
    document = done.document
    assert document.keys() >= KEYS
    assert document["solver"] == solver
    parts = document["tardiness_cost"] + document["postponement_cost"] + document["first_ending_cost"]
    assert document["objective"] == pytest.approx(parts)
    jobs = {j["name"] for j in yaml.safe_load(EXAMPLE.read_text())["jobs"]}
    placed = [a["job"] for a in document["assignments"]]
    assert sorted(placed + document["postponed"]) == sorted(jobs)
    assert {d["job"] for d in document["decisions"]} == jobs
    assert all(d["reason"] and d["job"] in d["sentence"] for d in document["decisions"])
    free = {"v1": 2, "t1": 1}
    for a in document["assignments"]:
        free[a["node"]] -= a["gpus"]
    assert min(free.values()) >= 0


@pytest.mark.long
@pytest.mark.parametrize("solver", ["best", "random-greedy", "exact", "fifo", "easy"])
def test_the_objective_is_the_one_of_the_design(solver, tmp_path):
    raw = yaml.safe_load(EXAMPLE.read_text())
    del raw["jobs"][0]["current"]
    document = run("place", write(tmp_path / "p.yaml", raw), "--solver", solver, "--json").document
    assert document["objective"] == pytest.approx(worth(raw, document))


@pytest.mark.slow
def test_exact_proves_it_and_nobody_is_better():
    exact = run("place", EXAMPLE, "--solver", "exact", "--json").document
    assert exact["optimal"] is True
    assert exact["bound"] == pytest.approx(exact["objective"], rel=1e-6)
    for solver in SOLVERS:
        other = run("place", EXAMPLE, "--solver", solver, "--iterations", 20, "--json").document
        assert other["objective"] >= exact["objective"] - 1e-9
        if solver not in ("best", "exact"):
            assert other["optimal"] is None
            assert other["bound"] is None


def test_solvers_of_the_command_are_those_there_are():
    assert sorted(SOLVERS) == sorted([*KNOWN, "best"])


def test_only_best_and_exact_use_every_node(tmp_path):
    raw = yaml.safe_load(EXAMPLE.read_text()) | {"use_every_node": True}
    file = write(tmp_path / "p.yaml", raw)
    best, exact = (run("place", file, "--solver", solver, "--json").document for solver in ("best", "exact"))
    assert best["objective"] == pytest.approx(exact["objective"])
    assert {a["node"] for a in best["assignments"]} == {node["name"] for node in raw["nodes"]}
    done = run("place", file, "--solver", "random-greedy")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "p.yaml: field 'use_every_node': got 'True', expected false, as only solvers best and exact" in done.err


def test_json_input_gives_the_same_as_yaml(tmp_path):
    files = write(tmp_path / "p.yaml", problem()), write(tmp_path / "p.json", json.dumps(problem()))
    first, second = (run("place", file, "--json").document for file in files)
    assert first | {"solve_s": 0} == second | {"solve_s": 0}


def test_the_digest_is_that_of_the_problem(tmp_path):
    documents = [problem(), problem(now_s=0), problem(now_s=1)]
    digests = [
        run("place", write(tmp_path / f"{i}.yaml", d), "--json").document["input_digest"]
        for i, d in enumerate(documents)
    ]
    assert digests[0] == digests[1] != digests[2]


def test_without_json_every_job_has_its_line(tmp_path):
    done = run("place", write(tmp_path / "p.yaml", problem()))
    assert done.code == 0
    assert "objective" in done.out
    assert "tardiness" in done.err


def test_no_jobs_at_all(tmp_path):
    for solver in SOLVERS:
        document = run("place", write(tmp_path / "p.yaml", problem(jobs=[])), "--solver", solver, "--json").document
        assert (document["objective"], document["assignments"], document["postponed"]) == (0, [], [])


def test_a_gang_and_the_job_that_waits_for_it(tmp_path):
    nodes = [{"name": "v", "count": 2, "gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 100}]
    jobs = [
        job("gang", due_s=10, tardiness_weight=1, times_s={"V100": {4: 900}}),
        job("small", due_s=9000, tardiness_weight=0.001, times_s={"V100": [900]}),
    ]
    document = run("place", write(tmp_path / "p.yaml", {"nodes": nodes, "jobs": jobs}), "--json").document
    (gang,) = document["assignments"]
    assert (gang["node"], gang["nodes"], gang["gpus"]) == ("v-1", ["v-1", "v-2"], 4)
    assert document["postponed"] == ["small"]


@pytest.mark.parametrize("name", ["p.gif", "no/p.png"])
def test_a_plot_that_cannot_be(name, tmp_path):
    done = run("place", EXAMPLE, "--plot", tmp_path / name)
    assert done.code == 2
    assert done.err.startswith("error: field '--plot': got ")


@pytest.mark.slow
def test_plot(tmp_path):
    assert run("place", EXAMPLE, "--plot", tmp_path / "p.svg").code == 0
    assert (tmp_path / "p.svg").read_bytes().startswith(b"<?xml")


def test_a_cap_is_refused_as_no_plan_keeps_it(tmp_path):
    file = {
        "nodes": [{"name": "a", "gpu_type": "A100", "gpus": 4, "idle_w": 500, "gpu_w": 350}],
        "electricity": {"price_per_kwh": 0.1, "power_cap_w": 900},
        "jobs": [{"name": "j", "tardiness_weight": 1, "times_s": {"A100": [3600]}}],
    }
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(file))
    done = run("place", tmp_path / "p.yaml")
    assert (done.code, done.out) == (2, "")
    assert "electricity.power_cap_w" in done.err
    assert "got 900, expected none" in done.err or "got '900', expected none" in done.err
