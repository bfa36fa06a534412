"""``commonwatt map`` with other algorithms and with what another batch taught, as a user runs it."""

from __future__ import annotations

import json
import sys

import pytest

from tests.cli.console import run, write
from tests.cli.test_map import EXAMPLE, problem


def test_the_exact_search_says_that_it_proved_it(tmp_path):
    file = write(tmp_path / "p.yaml", problem())
    answer = run("map", file, "--algorithm", "exact", "--json").document
    assert (answer["algorithm"], answer["optimal"]) == ("exact", True)
    assert "proven optimal" in " ".join(run("map", file, "--algorithm", "exact").out.split())
    found = run("map", file, "--json").document
    assert found["optimal"] == (found["makespan_cycles"] <= found["lower_bound_cycles"] * (1 + 1e-6))
    refused = run("map", file, "--algorithm", "exact", "--objective", "completion")
    assert (refused.code, refused.out) == (2, "")
    assert "got 'completion', expected latency, for an exact search" in refused.err


def test_a_method_of_an_extra(tmp_path, monkeypatch):
    file = write(tmp_path / "p.yaml", problem())
    monkeypatch.setitem(sys.modules, "nevergrad", None)
    done = run("map", file, "--algorithm", "de")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1] == "error: nevergrad is not installed; run: pip install 'commonwatt[search]'"
    assert run("map", file, "--algorithm", "standard-ga", "--budget", 100, "--json").document["evaluations"] == 100


@pytest.mark.long
@pytest.mark.slow
def test_what_is_learnt_is_saved_and_used(tmp_path):
    learnt = tmp_path / "learnt.json"
    first = run("map", EXAMPLE, "--budget", 500, "--save-transfer", learnt, "--json").document
    assert json.loads(learnt.read_text())["stretch"] >= 1
    answer = run("map", EXAMPLE, "--transfer", learnt, "--json").document
    assert (answer["algorithm"], answer["evaluations"]) == ("transfer", 1)
    assert answer["makespan_cycles"] == pytest.approx(first["makespan_cycles"])
    tuned = run("map", EXAMPLE, "--transfer", learnt, "--epochs", 2, "--match", "rank", "--json").document
    assert tuned["evaluations"] == 200


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--epochs", "1"), "error: field '--epochs': got '1', expected --transfer beside it"),
        (("--match", "rank"), "expected --transfer beside it"),
        (("--transfer", "{file}", "--algorithm", "heft"), "expected no algorithm beside --transfer"),
        (("--transfer", "{file}", "--start", "{file}"), "expected no mapping to start from beside --transfer"),
        (("--transfer", "{file}"), "expected 2 sub-accelerators, as the problem has"),
    ],
)
def test_what_does_not_go_together_is_one_line(options, said, tmp_path):
    learnt = tmp_path / "learnt.json"
    run("map", EXAMPLE, "--algorithm", "heft", "--save-transfer", learnt)
    done = run("map", write(tmp_path / "p.yaml", problem()), *(o.format(file=learnt) for o in options))
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"accelerator": [0, 9]}, "accelerator"), ({"accelerator": [0]}, "one entry for each of the 2 jobs"),
        ({"stretch": -1}, "stretch"), ({"latency_cycles": [[1.0], [2.0, 3.0]]}, "latency_cycles"),
        ({"priority": [0.0, float("nan")]}, "priority"),
    ],
)  # fmt: skip
def test_a_broken_transfer_is_one_line(change, said, tmp_path):
    table = {"latency_cycles": [[4.0, 5.0], [2.0, 3.0]], "bandwidth_gbs": [[1.0, 1.0], [1.0, 1.0]]}
    file = write(tmp_path / "t.yaml", {"accelerator": [0, 1], "priority": [0.0, 1.0], "stretch": 1.5} | table | change)
    done = run("map", write(tmp_path / "p.yaml", problem()), "--transfer", file)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert str(file) in done.err
    assert done.err.count("\n") == 1
