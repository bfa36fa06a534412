"""``commonwatt partition`` as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.console import run, spawn, write

EXAMPLE = Path(__file__).parents[2] / "examples" / "partition.yaml"


def problem(**more):
    return {
        "tenants": [{"name": "u1", "weight": 1}, {"name": "u2", "weight": 4}],
        "configurations": [
            {
                "name": "CFG1", "pe_count": [8, 8, 16], "rate": [[1, 1, 0.5], [0.1, 0.1, 2]],
                "parallel_fraction": [[0.9, 0.9, 0.95], [0.6, 0.6, 0.7]],
            },
            {
                "name": "CFG2", "pe_count": [16, 16], "rate": [[1, 0.5], [0.1, 2]],
                "parallel_fraction": [[0.9, 0.95], [0.6, 0.7]],
            },
        ],
    } | more  # fmt: skip


def changed(**more):
    one = problem()["configurations"][0]
    return {"configurations": [one | more]}


@pytest.mark.slow
def test_it_answers_with_the_keys_of_the_contract(tmp_path):
    done = run("partition", write(tmp_path / "p.yaml", problem()), "--json")
    assert done.code == 0
    assert all(line.startswith("compil") for line in done.err.splitlines())
    answer = done.document
    assert answer["chosen"] in {"CFG1", "CFG2"}
    assert {"version", "seed", "input_digest", "enforcement", "reason", "sentence"} <= answer.keys()
    for one in answer["configurations"]:
        assert {
            "name", "prices", "shares", "utilities", "entitlement_utilities", "nash_welfare", "iterations", "residual",
            "sharing_incentive", "utilization",
        } <= one.keys()  # fmt: skip
        assert one["residual"] <= 1e-9
        assert sum(p * n for p, n in zip(one["prices"], one["pe_count"], strict=True)) == pytest.approx(1)
        assert one["nash_welfare"] == pytest.approx(one["utilities"]["u1"] * one["utilities"]["u2"])
        for c, pes in enumerate(one["pe_count"]):
            assert sum(shares[c] for shares in one["shares"].values()) == pytest.approx(pes)
        assert one["sharing_incentive"] is True
        assert [t["reason"] for t in one["tenants"]] != []
        for piece in one["schedule"]:
            assert piece["run_speedup"] == pytest.approx(piece["speedup"], rel=0.05)


def test_the_other_mechanisms(tmp_path):
    file = write(tmp_path / "p.yaml", problem())
    entitled = run("partition", file, "--mechanism", "entitlement", "--json").document["configurations"][0]
    assert entitled["shares"] == {"u1": pytest.approx([1.6, 1.6, 3.2]), "u2": pytest.approx([6.4, 6.4, 12.8])}
    assert (entitled["prices"], entitled["residual"]) == (None, None)
    assert entitled["utilities"] == pytest.approx(entitled["entitlement_utilities"])
    equal = run("partition", file, "--mechanism", "weighted-equal-speedup", "--json").document["configurations"][0]
    assert equal["utilities"]["u2"] == pytest.approx(4 * equal["utilities"]["u1"])
    assert equal["sharing_incentive"] is False
    assert {t["reason"] for t in equal["tenants"]} == {"equalised"}


@pytest.mark.parametrize("welfare", ["nash", "weighted-nash", "utilitarian", "egalitarian"])
def test_the_best_welfare_is_chosen(welfare, tmp_path):
    answer = run("partition", write(tmp_path / "p.yaml", problem()), "--welfare", welfare, "--json").document
    best = max(answer["configurations"], key=lambda one: one["welfare"])
    assert (answer["chosen"], best["rank"]) == (best["name"], 1)
    assert answer["margin"] > 0


def test_time_shares(tmp_path):
    answer = run("partition", write(tmp_path / "p.yaml", problem(shares="time")), "--json").document
    for one in answer["configurations"]:
        for piece in one["schedule"]:
            assert (piece["pes"], piece["run_speedup"]) == (0, pytest.approx(piece["speedup"], rel=0.01, abs=0.01))


def test_it_explains(tmp_path):
    done = run("partition", write(tmp_path / "p.yaml", problem()), "--explain")
    assert done.code == 0
    assert "u1: It spends" in done.out
    assert "would pay" in done.out
    assert "best Nash welfare" in done.err


@pytest.mark.slow
def test_the_example_and_its_picture(tmp_path):
    picture = tmp_path / "p.svg"
    done = run("partition", EXAMPLE, "--plot", picture, "--json")
    assert (done.code, done.err) == (0, f"written: {picture}\n")
    assert picture.read_text().lstrip().startswith("<?xml")
    assert [one["name"] for one in done.document["configurations"]] == ["CFG1", "CFG2", "CFG3"]
    assert done.document["configurations"][0]["core_clusters"][2] == "plain-4"
    plain = run("partition", EXAMPLE, "--mechanism", "entitlement", "--plot", picture)
    assert plain.code == 0
    assert run("partition", EXAMPLE, "--plot", tmp_path / "p.txt").code == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"tenants": []}, "field 'tenants'"),
        ({"configurations": []}, "field 'configurations'"),
        (
            {"tenants": [{"name": "u1", "weight": 0}, {"name": "u2"}]},
            "field 'tenants.u1.weight': got '0', expected a nu",
        ),
        ({"tenants": [{"name": "u1"}, {"name": "u1"}]}, "expected each name once"),
        ({"configurations": problem()["configurations"][:1] * 2}, "expected each name once"),
        (changed(pe_count=[]), "pe_count"),
        (changed(pe_count=[8, 0, 16]), "got '0', expected a number of PEs above 0"),
        (changed(rate=[[1, 1], [1, 1, 1]]), "got '2 numbers', expected 3, one for each core cluster"),
        (changed(rate=[[1, 1, 1]]), "got '1 rows', expected 2, one for each tenant"),
        (changed(rate=[[0, 0, 0], [1, 1, 1]]), "expected a core cluster that tenant u1 can use"),
        (changed(rate=[[-1, 0, 0], [1, 1, 1]]), "got '-1', expected a number, 0 or more"),
        (changed(rate=None), "expected pe_count and rate (or core_clusters) to be given together"),
        (changed(parallel_fraction=[[0.9, 1.2, 0.9], [0.6] * 3]), "got '1.2', expected a number from 0 to 1"),
        (changed(parallel_fraction=[[0.9, float("nan"), 0.9], [0.6] * 3]), "expected a finite number"),
        (changed(parallel_fraction=[[0.9] * 3]), "got '1 rows'"),
        (changed(core_clusters=[{"cores": 2, "frequency_mhz": 80}]), "given together"),
        ({"pe": "thread"}, "field 'pe'"),
        ({"tenant": []}, "tenant"),
    ],
)
def test_a_wrong_problem_is_one_line(wrong, said, tmp_path):
    file = write(tmp_path / "p.yaml", problem(**wrong))
    done = run("partition", file)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert str(file) in done.err
    assert done.err.count("\n") == 1


def test_no_convergence_is_an_error_with_the_residual(tmp_path):
    done = run("partition", write(tmp_path / "p.yaml", problem()), "--tolerance", "1e-300", "--iterations", "40")
    assert (done.code, done.out) == (1, "")
    assert "error: configuration CFG1: the market has not converged after" in done.err
    assert "residual" in done.err


@pytest.mark.slow
def test_help_and_options_that_are_wrong(tmp_path):
    shown = spawn("partition", "--help")
    assert (shown.code, "commonwatt partition examples/partition.yaml" in shown.out) == (0, True)
    assert "--mechanism" in shown.out
    assert run("partition").code == 2
    assert run("partition", tmp_path / "none.yaml").code == 2
    assert run("partition", EXAMPLE, "--mechanism", "lottery").code == 2
    assert run("partition", EXAMPLE, "--json").out == run("partition", "--json", EXAMPLE).out


@pytest.mark.slow
def test_a_weight_is_swept(tmp_path):
    file, picture = write(tmp_path / "p.yaml", problem()), tmp_path / "s.svg"
    done = run("partition", file, "--sweep-weight", "u2=0.25:16:4", "--plot", picture, "--json")
    assert (done.code, done.err) == (0, f"written: {picture}\n")
    answer = done.document
    assert [point["weight"] for point in answer["points"]] == pytest.approx([0.25, 1, 4, 16])
    asked = run("partition", file, "--json").document  # its weight is 4
    third = answer["points"][2]
    assert (third["chosen"], third["margin"]) == (asked["chosen"], pytest.approx(asked["margin"]))
    gained = [point["utilities"]["u2"] for point in answer["points"]]
    assert third["chosen"] in answer["sentence"]
    assert gained[-1] > gained[0]
    assert "speedup" in run("partition", file, "--sweep-weight", "u2=1:2:2").out
    for wrong in ("u2", "u2=1:2", "u2=2:1:3", "u2=0:1:3", "u2=1:2:1", "u3=1:2:3", "u2=1:2:3:4"):
        refused = run("partition", file, "--sweep-weight", wrong)
        assert (refused.code, refused.err.count("\n"), "--sweep-weight" in refused.err) == (2, 1, True)
