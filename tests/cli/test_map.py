"""``commonwatt map`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from commonwatt.cli.map.solve import ALGORITHMS, OBJECTIVES, OTHERS
from commonwatt.mapping._solve_file import ALGORITHMS as MADE
from tests.cli.console import run, spawn, write
from tests.cli.test_any_value import changed, places

EXAMPLE = Path(__file__).parents[2] / "examples" / "map.yaml"
NAN, INF = float("nan"), float("inf")


def problem(**more):
    table = {"latency_cycles": [[20, 99], [99, 10], [30, None]], "bandwidth_gbs": [[15, 1], [1, 5], [4, None]]}
    return {"system_bandwidth_gbs": 10, "table": table} | more


def table(latency, bandwidth):
    return problem(table={"latency_cycles": latency, "bandwidth_gbs": bandwidth})


def mapping(**more):
    return {"accelerator": [0, 1, 0], "priority": [0.0, 0.5, 1.0]} | more


@pytest.mark.slow
def test_evaluate_answers_with_the_keys_of_the_contract(tmp_path):
    files = write(tmp_path / "p.yaml", problem()), write(tmp_path / "m.yaml", mapping())
    done = run("map", "evaluate", *files, "--json")
    assert (done.code, done.err) == (0, "")
    answer = done.document
    assert answer["makespan_cycles"] == 65  # 20 at half speed beside job 1, 15 for the rest of job 0, 30 for job 2
    assert answer["accelerator_end_cycles"] == [65, 20]
    assert (answer["accelerator"], answer["priority"]) == ([0, 1, 0], [0, 0.5, 1])
    assert answer["bandwidth_limited_cycles"] == 35
    assert 0 < answer["lower_bound_cycles"] <= 65
    assert answer["gap"] == pytest.approx(65 / answer["lower_bound_cycles"] - 1)
    assert {"version", "seed", "input_digest", "enforcement"} <= answer.keys()
    assert [(j["start_cycles"], j["end_cycles"], j["stall_cycles"]) for j in answer["jobs"]] == [
        (0, 35, 15), (0, 20, 10), (35, 65, 0),
    ]  # fmt: skip
    assert [j["reason"] for j in answer["jobs"]] == ["fastest", "fastest", "only-choice"]
    assert [(i["to_cycles"], i["used_gbs"], i["running"]) for i in answer["timeline"]] == [
        (20, 10, [0, 1]), (35, 10, [0, None]), (65, 4, [2, None]),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_result_is_a_mapping_to_evaluate_and_to_start_from(tmp_path):
    found = run("map", EXAMPLE, "--json", "--budget", 300)
    result = tmp_path / "m.json"
    result.write_text(found.out)
    scored = run("map", "evaluate", EXAMPLE, result, "--json")
    assert scored.code == 0, scored.err
    assert scored.document["makespan_cycles"] == found.document["makespan_cycles"]
    again = tmp_path / "again.json"
    again.write_text(scored.out)
    started = run("map", EXAMPLE, "--start", again, "--budget", 50, "--json")
    assert started.code == 0, started.err
    assert started.document["makespan_cycles"] <= found.document["makespan_cycles"]


@pytest.mark.slow
@pytest.mark.parametrize("verb", [("map", "table"), ("map", "batch"), ("map", "layers")])
def test_tables_and_layers_of_results_make_problems(verb, tmp_path):
    layers = Path(__file__).parents[2] / "examples" / "map_layers.yaml"
    given = {"table": (layers,), "batch": ("--class", "recom", "--jobs", 8), "layers": ("dlrm-small",)}[verb[1]]
    made = run(*verb, *given, "--json")
    assert made.code == 0, made.err
    (tmp_path / "made.json").write_text(made.out)
    by = {"table": "made.json"} if verb[1] == "table" else {"platform": "S1", "jobs": "made.json"}
    file = write(tmp_path / "p.yaml", {"system_bandwidth_gbs": 16, **by})
    done = run("map", file, "--budget", 20, "--json")
    assert done.code == 0, done.err
    rows = made.document["jobs"] if verb[1] == "table" else made.document["layers"]
    assert len(done.document["accelerator"]) == len(rows)


@pytest.mark.slow
def test_a_mapping_is_found_and_can_be_evaluated(tmp_path):
    done = run("map", EXAMPLE, "--json", "--budget", 500)
    assert done.code == 0, done.err
    answer = done.document
    assert (answer["algorithm"], answer["evaluations"], answer["seed"]) == ("auto", 500, 0)
    assert answer["lower_bound_cycles"] <= answer["makespan_cycles"]
    assert answer["search_s"] > 0
    found = {key: answer[key] for key in ("accelerator", "priority")}
    again = run("map", "evaluate", EXAMPLE, write(tmp_path / "m.json", json.dumps(found)), "--json").document
    assert again.items() <= answer.items()


@pytest.mark.slow
def test_the_same_seed_gives_the_same_mapping():
    answers = [run("map", EXAMPLE, "--json", "--budget", 300, "--seed", seed).document for seed in (4, 4, 5)]
    for answer in answers:
        del answer["search_s"]
    assert answers[0] == answers[1] != answers[2]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm(name):
    done = run("map", EXAMPLE, "--algorithm", name, "--budget", 100, "--json")
    assert done.document["algorithm"] == name
    assert done.document["makespan_cycles"] >= 10_000


def test_the_names_are_those_of_the_package():
    assert sorted((*ALGORITHMS, *OTHERS)) == sorted(MADE)


@pytest.mark.slow
def test_options_may_stand_first_or_last():
    answers = [
        run("map", *arguments).document["makespan_cycles"]
        for arguments in (
            (EXAMPLE, "--algorithm", "heft", "--json"),
            ("--algorithm", "heft", EXAMPLE, "--json"),
            ("--json", "--algorithm=heft", EXAMPLE),
        )
    ]
    assert len(set(answers)) == 1


@pytest.mark.slow
def test_time_is_limited():
    run("map", EXAMPLE, "--budget", 1)
    done = run("map", EXAMPLE, "--budget", 1_000_000_000, "--time-limit", 0.2, "--json")
    assert done.document["search_s"] < 5
    assert 1 <= done.document["evaluations"] < 1_000_000_000


def test_what_is_told(tmp_path):
    done = run("map", EXAMPLE, "--budget", 50)
    assert "auto: 50 mappings evaluated" in done.out
    assert "sub-accelerator" in done.out
    assert "above the best possible" in done.err
    files = write(tmp_path / "p.yaml", problem()), write(tmp_path / "m.yaml", mapping())
    assert "makespan 65 cycles" in run("map", "evaluate", *files).err


@pytest.mark.slow
def test_pictures(tmp_path):
    for name in ("a.svg", "b.svg"):
        done = run("map", EXAMPLE, "--budget", 50, "--plot", tmp_path / name, "--json")
        assert (done.code, done.err) == (0, f"written: {tmp_path / name}\n")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    files = write(tmp_path / "p.yaml", problem()), write(tmp_path / "m.yaml", mapping())
    assert run("map", "evaluate", *files, "--plot", tmp_path / "c.png").code == 0
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    for wrong in (("evaluate", *files), (files[0],)):
        assert run("map", *wrong, "--plot", tmp_path / "x.txt").code == 2


PROBLEMS = [
    (table([[1, 2], [3]], [[1, 2], [3]]), "field 'table.latency_cycles.1': got '1 of them', expected 2 sub-acc"),
    (table([[1, 2], [3, 4]], [[1, 2], [3]]), "field 'table.bandwidth_gbs.1': got '1 of them'"),
    (table([[1, 2], [3, 4]], [[1, 2]]), "field 'table.bandwidth_gbs': got '1 on 2', expected 2 jobs on 2"),
    (table([[1, -2]], [[1, 1]]), "field 'table.latency_cycles.0.1': got '-2.0', expected a number above 0"),
    (table([[1, 0]], [[1, 1]]), "table.latency_cycles.0.1"),
    (table([[1, NAN]], [[1, 1]]), "field 'table.latency_cycles.0.1': got 'nan', expected a finite number"),
    (table([[1, INF]], [[1, 1]]), "table.latency_cycles.0.1"),
    (table([[1, 1]], [[1, -1]]), "field 'table.bandwidth_gbs.0.1': got '-1.0', expected a finite number, 0 or more"),
    (table([[1, 1]], [[1, NAN]]), "table.bandwidth_gbs.0.1"),
    (table([[1, 1]], [[1, None]]), "field 'table.bandwidth_gbs.0.1': got 'null'"),
    (table([[1, 1], [None, None]], [[1, 1], [1, 1]]), "field 'table.latency_cycles.1': got 'none', expected a latency"),
    (table([], []), "field 'table.latency_cycles': got '[]', expected at least 1 entry"),
    (table([[]], [[]]), "table"),
    (table([["x"]], [[1]]), "field 'table.latency_cycles.0.0': got 'x', expected a number"),
    (table([[1e300]], [[1]]), "up to 1e+15"),
    (table(3, [[1]]), "table.latency_cycles"),
    (problem(system_bandwidth_gbs=0), "field 'system_bandwidth_gbs': got '0', expected a number above 0"),
    (problem(system_bandwidth_gbs=NAN), "system_bandwidth_gbs"),
    (problem(platform="S2"), "field 'platform': expected a table, or a platform and jobs, not both"),
    (problem(jobs="batch.csv"), "field 'jobs': expected a table, or a platform and jobs, not both"),
    ({"system_bandwidth_gbs": 1}, "field 'table': expected this field to be given, or platform and jobs"),
    (problem(tabel=1), "did you mean table?"),
    (problem(objective="speed"), "field 'objective': got 'speed'"),
    (problem(objective="energy"), "field 'objective': got 'energy', expected energies with the objective energy"),
    (problem(objective="satisfaction"), "expected a target order with the objective satisfaction, as 'order'"),
    (problem(after={"2": ["0"], "0": ["2"]}), "field 'after': got '0 after 2 after 0', expected dependencies without"),
    (problem(after={1: [1]}), "got '1 after 1'"),
    (problem(after={"x": [0]}), "field 'after.x': got 'x', expected a job from 0 to 2"),
    (problem(after={"2": [0, 3]}), "field 'after.2.1': got '3', expected a job from 0 to 2"),
    (problem(names=["a", "b", "c"], after={"c": ["d"]}), "field 'after.c.0': got 'd', expected a job from 0 to 2 or"),
    (problem(names=["a", "b"]), "field 'names': got '2 of them', expected one for each of the 3 jobs"),
    (problem(names=["a", "b", "a"]), "field 'names': got 'a', expected each name once"),
    (problem(after="tenant"), "field 'after': got 'tenant', expected 'tenants'"),
    (problem(order=[0, 1]), "field 'order': got 'none for job 2', expected all 3 jobs"),
    (problem(order=[0, 1, 1]), "field 'order.2': got '1', expected each job once"),
    (problem(tenants=["a"]), "field 'tenants': got '1 of them', expected one for each of the 3 jobs"),
    (problem(tenants=["a", "b", "a"], weights={"c": 1}), "field 'weights.c': got 'c', expected a tenant of 'tenants'"),
    (problem(tenants=["a", "b", "a"], weights={"a": 0}), "field 'weights.a': got '0', expected a number above 0"),
    (problem(tail=0), "field 'tail': got '0', expected a number above 0"),
    (problem(tail=1.5), "field 'tail'"),
    (problem(target_cycles=0), "field 'target_cycles': got '0', expected a number, 1e-06 or more"),
    (problem(fixed={"accelerator": [0]}), "field 'fixed.accelerator': got '1 of them', expected one entry for each"),
    (problem(fixed={"accelerator": [2, None, None]}), "field 'fixed.accelerator.0': got '2', expected a sub-acc"),
    (problem(fixed={"accelerator": [None, None, 1]}), "field 'fixed.accelerator.2': got '1', expected a sub-acc"),
    (problem(fixed={"priority": [0, NAN, 0]}), "fixed.priority.1"),
    (problem(table={**problem()["table"], "energy_nj": [[1, 1]]}), "field 'table.energy_nj': got '1 on 2', expected 3"),
    (
        problem(table={**problem()["table"], "energy_nj": [[1, 1], [None, 1], [1, None]]}),
        "field 'table.energy_nj.1.0': got 'null', expected a finite number, 0 or more",
    ),
]
MAPPINGS = [
    (mapping(accelerator=[0, 1]), "field 'accelerator': got '2 of them', expected one entry for each of the 3 jobs"),
    (mapping(priority=[0, 1, 2, 3]), "field 'priority': got '4 of them', expected one entry for each of the 3 jobs"),
    (mapping(accelerator=[0, 1, 2]), "field 'accelerator.2': got '2', expected a sub-accelerator from 0 to 1"),
    (mapping(accelerator=[-1, 1, 0]), "field 'accelerator.0': got '-1'"),
    (mapping(accelerator=[0, 1, 1]), "field 'accelerator.2': got '1', expected a sub-accelerator job 2 can run on (0)"),
    (mapping(accelerator=[0.5, 1, 1]), "field 'accelerator.0': got '0.5', expected a whole number"),
    (mapping(accelerator=[2**70, 1, 1]), "accelerator.0"),
    (mapping(priority=[NAN, 1, 1]), "field 'priority.0': got 'nan', expected a finite number"),
    (mapping(priority=[INF, 1, 1]), "field 'priority.0'"),
    (mapping(priority=[None, 1, 1]), "field 'priority.0'"),
    ({"accelerator": [0, 1, 0]}, "field 'priority': expected this field to be given"),
]


@pytest.mark.parametrize(("wrong", "said"), PROBLEMS)
def test_a_wrong_problem_is_one_line(wrong, said, tmp_path):
    file, other = write(tmp_path / "p.yaml", wrong), write(tmp_path / "m.yaml", mapping())
    for arguments in ((file,), ("evaluate", file, other)):
        done = run("map", *arguments, "--json")
        assert (done.code, done.out) == (2, "")
        assert said in done.err
        assert str(file) in done.err
        assert done.err.count("\n") == 1


@pytest.mark.parametrize(("wrong", "said"), MAPPINGS)
def test_a_wrong_mapping_is_one_line(wrong, said, tmp_path):
    file, other = write(tmp_path / "p.yaml", problem()), write(tmp_path / "m.yaml", wrong)
    done = run("map", "evaluate", file, other)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert str(other) in done.err
    assert done.err.count("\n") == 1


GOAL = EXAMPLE.with_name("map_goal.yaml")


@pytest.mark.long
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective(objective):
    answer = run("map", GOAL, "--objective", objective, "--budget", 3000, "--json").document
    assert answer["objective"] == objective
    assert answer["energy_nj"] >= answer["least_energy_nj"] == 3240
    assert answer["target_met"] == (answer["makespan_cycles"] <= 16000)
    assert [t["tenant"] for t in answer["tenants"]] == ["vision", "language"]
    assert answer["jobs"][0]["reason"] == "fixed"
    ends = [job["end_cycles"] for job in answer["jobs"]]
    for earlier, later in ((0, 1), (1, 2), (2, 3), (4, 6), (5, 6), (6, 7)):
        assert answer["jobs"][later]["start_cycles"] >= ends[earlier]
    by_hand = {
        "latency": max(ends),
        "edp": answer["energy_nj"] * max(ends),
        "energy": answer["energy_nj"],
        "satisfaction": answer["satisfaction"],
        "completion": (2 * sum(ends[:4]) + sum(ends[4:])) / 12,
        "tail": (2 * max(ends[:4]) + max(ends[4:])) / 3,
    }
    assert answer["objective_value"] == pytest.approx(by_hand[objective])
    costs = [step["best"] for step in answer["history"]]
    assert costs == sorted(costs, reverse=True)


def test_what_is_told_of_a_goal():
    told = run("map", GOAL, "--budget", 500).err
    assert "edp: " in told
    assert "the target of the makespan is met" in told


def test_dependencies_by_number_and_by_tenant(tmp_path):
    chain = problem(tenants=["a", "b", "a"], after="tenant")
    by_number = problem(after={2: [0]})
    for given_problem in (chain, by_number):
        jobs = run("map", write(tmp_path / "p.yaml", given_problem), "--budget", 50, "--json").document["jobs"]
        assert jobs[2]["start_cycles"] >= jobs[0]["end_cycles"]


def test_a_search_starts_from_a_mapping(tmp_path):
    first = run("map", EXAMPLE, "--budget", 3000, "--json").document
    found = {key: first[key] for key in ("accelerator", "priority")}
    start = write(tmp_path / "m.json", json.dumps(found))
    again = run("map", EXAMPLE, "--start", start, "--algorithm", "gsharp", "--budget", 10, "--json").document
    assert again["makespan_cycles"] <= first["makespan_cycles"]
    wrong = write(tmp_path / "w.json", json.dumps(found | {"accelerator": [9] * 8}))
    for arguments, said in (
        (("--start", wrong), "field 'accelerator.0': got '9', expected a sub-accelerator from 0 to 2"),
        (("--start", start, "--algorithm", "heft"), "expected an algorithm that searches"),
        (("--start", tmp_path / "no.json"), "no.json"),
    ):
        done = run("map", EXAMPLE, *arguments)
        assert (done.code, done.out) == (2, "")
        assert said in done.err
        assert done.err.count("\n") == 1


def test_a_mapping_that_moves_what_is_fixed_is_refused(tmp_path):
    files = write(tmp_path / "p.yaml", problem(fixed={"accelerator": [1, None, None]}))
    done = run("map", "evaluate", files, write(tmp_path / "m.yaml", mapping()))
    assert done.code == 2
    assert "field 'accelerator.0': got '0', expected 1, as the problem's 'fixed' says" in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        (EXAMPLE, "--objective", "speed"),
        ("nowhere.yaml",), (EXAMPLE, EXAMPLE), (EXAMPLE, "--budget", 0), (EXAMPLE, "--time-limit", 0), ("evaluate",),
        (EXAMPLE, "--algorithm", "magic"), ("evaluate", EXAMPLE), (EXAMPLE, "--bugdet", 3), ("--bugdet", 3, EXAMPLE),
        ("--seed", 3), ("--json", EXAMPLE, EXAMPLE),
    ],
)  # fmt: skip
def test_a_wrong_command_is_one_line(arguments):
    done = run("map", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [(), ("--algorithm", "gsharp")])
def test_a_quick_bound_is_no_better_than_a_sharp_one(arguments):
    quick, sharp = (
        run("map", EXAMPLE, "--budget", "50", "--bound", bound, *arguments, "--json").document
        for bound in ("quick", "sharp")
    )
    assert quick["makespan_cycles"] == sharp["makespan_cycles"]
    assert 0 < quick["lower_bound_cycles"] <= sharp["lower_bound_cycles"] <= sharp["makespan_cycles"] * (1 + 1e-9)


@pytest.mark.slow
def test_help():
    whole = spawn("map", "--help")
    assert whole.code == 0
    assert "--algorithm" in whole.out
    assert "evaluate" in whole.out
    assert "commonwatt map evaluate " in run("map", "evaluate", "--help").out
    assert "--budget" in run("map", EXAMPLE, "--help").out


ODD = st.sampled_from([
    None, "", [], {}, True, 0, -1, 1.5, -0.0, 1e14, 1e308, 5e-324, 2**70, NAN, INF, "x" * 300, "1e5", [None], [[1]],
    {"a": None}, "two\nlines",
])  # fmt: skip


FULL = problem(
    objective="tail", target_cycles=99, names=["a", "b", "c"], after={"b": ["a"]}, order=["a", "b", "c"],
    tenants=["x", "y", "x"], weights={"x": 2}, tail=0.9, fixed={"accelerator": [0, None, 0], "priority": [None, 1, 0]},
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=200)
@example(path=("table", "latency_cycles", 1, 0), value=1e14)  # next to it all others round to nothing
@given(path=st.sampled_from(places(FULL)), value=ODD)
def test_any_value_anywhere(path, value, tmp_path_factory):
    """It is used, or refused in one line; never a traceback, never NaN in an answer."""
    file = tmp_path_factory.mktemp("any") / "p.json"
    file.write_text(json.dumps(changed(FULL, path, value)))
    done = run("map", file, "--budget", 20, "--json")
    if done.code == 2:
        assert done.out == ""
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1
    else:
        assert done.code == 0
        assert done.document["lower_bound_cycles"] <= done.document["makespan_cycles"]


@pytest.mark.slow
def test_a_stream_of_batches_by_schedule_files(tmp_path):
    """Each schedule is read by ``evaluate``, and by ``map --after``; times go on."""
    batch = str(EXAMPLE)
    first, second = str(tmp_path / "first.json"), str(tmp_path / "second.json")
    made = run("map", batch, "--budget", "300", "--schedule", first, "--json").document
    assert run("map", "evaluate", batch, first, "--json").document["makespan_cycles"] == made["makespan_cycles"]
    go_on = ("--after", first, "--at", "5000")
    made = run("map", batch, *go_on, "--budget", "300", "--schedule", second, "--json").document
    scored = run("map", "evaluate", batch, second, *go_on, "--json").document
    assert scored["makespan_cycles"] == made["makespan_cycles"]
    written = json.loads(Path(second).read_text())
    assert written["begin_cycles"] == 5000.0
    assert written["end_cycles"] == 5000.0 + made["makespan_cycles"]
    for wrong, message in (
        (("--after", first), "expected --at beside it"),
        (("--at", "3"), "expected --after beside it"),
        (("--after", second, "--at", "3"), "expected 5000 or more"),
        (
            ("--after", batch, "--at", "3"),
            "expected a schedule, as `commonwatt map --schedule` writes it; this is a mapping problem",
        ),
    ):
        done = run("map", batch, *wrong)
        assert (done.code, done.out) == (2, "")
        assert message in done.err


@pytest.mark.slow
def test_a_time_limit_decides_alone():
    """More than the default budget is spent, but no more than a given one."""
    batch = str(EXAMPLE)
    done = run("map", batch, "--time-limit", "1", "--json")
    assert done.document["evaluations"] > 10_000 or done.document["optimal"]
    capped = run("map", batch, "--time-limit", "60", "--budget", "200", "--json").document
    assert capped["evaluations"] <= 200
