"""Problems with scaling laws as a user runs them, from a measurement to the shares."""

from __future__ import annotations

import json

import pytest

from commonwatt.cli.partition.divide import characterize
from commonwatt.data.partition import load_partition
from tests.cli.console import run, write
from tests.cli.partition_console import call

TABLE = {"law": "table", "pes": [2, 4, 8], "speedups": [1.8, 3.0, 2.5]}
USL = {"law": "usl", "contention": 0.05, "coherence": 0.01}


def problem(**more):
    return {
        "tenants": [{"name": "u1", "law": "mine"}, {"name": "u2", "weight": 2}],
        "laws": {"mine": TABLE},
        "configurations": [
            {
                "name": "c", "pe_count": [8, 4], "rate": [[1, 2], [1, 1]],
                "laws": [[None, None], [USL, {"law": "linear"}]],
            }
        ],
    } | more  # fmt: skip


@pytest.mark.slow
def test_other_laws_are_divided_like_amdahls(tmp_path):
    answer = run("partition", write(tmp_path / "p.yaml", problem()), "--json").document
    (one,) = answer["configurations"]
    assert one["residual"] <= 1e-9
    assert one["sharing_incentive"] is True
    first, second = one["tenants"]
    assert (first["laws"], second["laws"]) == (["table", "table"], ["usl", "amdahl"])
    assert all(use["to_pes"] - use["from_pes"] >= 1 for use in first["between"])
    assert {use["lifted"] for use in first["between"]} <= {True}
    assert first["below_one_pe"] == []
    assert {piece["turn_pes"] for piece in one["schedule"]} <= {1, 2}
    for mechanism in ("entitlement", "weighted-equal-speedup"):
        assert run("partition", tmp_path / "p.yaml", "--mechanism", mechanism, "--json").code == 0
    by_time = run("partition", write(tmp_path / "t.yaml", problem(shares="time")), "--json").document
    assert by_time["configurations"][0]["residual"] <= 1e-9
    told = run("partition", tmp_path / "p.yaml", "--explain", "--plot", tmp_path / "p.svg")
    assert (told.code, "would pay" in told.out) == (0, True)


@pytest.mark.slow
def test_what_was_characterized_is_divided(tmp_path):
    """characterize --out, its file named in the problem, partition."""
    rows = "".join(f"a,{n},{100 / (n / (1 + 0.05 * (n - 1) + 0.02 * n * (n - 1)))}\n" for n in (1, 2, 4, 8, 16))
    rows += "".join(f"b,{n},{100 * (0.1 + 0.9 / n)}\n" for n in (1, 2, 4, 8))
    rows += "c,1,10\nc,2,9\nc,4,2\n"
    (tmp_path / "runs.csv").write_text("kernel,threads,seconds\n" + rows)
    done = call(characterize, "--from", tmp_path / "runs.csv", "--out", tmp_path / "scaling.json", "--json")
    assert [kernel["chosen"] for kernel in done.document["kernels"]] == ["usl", "amdahl", "table"]
    laws = {name: {"law": "characterized", "file": "scaling.json", "kernel": name} for name in "abc"}
    file = write(
        tmp_path / "p.yaml",
        {
            "tenants": [{"name": name, "law": name} for name in "abc"], "laws": laws,
            "configurations": [{"name": "x", "pe_count": [8], "rate": [[1], [1], [1]]}],
        },
    )  # fmt: skip
    read = load_partition(file)
    assert read.laws["a"].coherence == pytest.approx(0.02)
    assert read.laws["b"].parallel_fraction == pytest.approx(0.9)
    assert read.laws["c"].speedups == pytest.approx((10 / 9, 5))
    (one,) = run("partition", file, "--json").document["configurations"]
    assert one["residual"] <= 1e-9
    assert [tenant["laws"] for tenant in one["tenants"]] == [["usl"], ["amdahl"], ["table"]]
    found = json.loads((tmp_path / "scaling.json").read_text())["kernels"][0]["law"]
    assert found == {"law": "usl", "contention": pytest.approx(0.05), "coherence": pytest.approx(0.02)}


def laws(first):
    return {"configurations": [problem()["configurations"][0] | {"laws": [[first, None], [USL, USL]]}]}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"laws": {}}, "got 'mine', expected the name of one of laws (there is none)"),
        (laws("theirs"), "got 'theirs', expected the name of one of laws (mine)"),
        (laws({"law": "amdahl"}), "got 'none', expected a value for the law amdahl"),
        (laws({"law": "amdahl", "parallel_fraction": 2}), "parallel_fraction"),
        (laws(USL | {"parallel_fraction": 0.5}), "expected none for the law usl"),
        (laws(TABLE | {"speedups": [1.8]}), "expected 3, one for each of pes"),
        (laws(TABLE | {"pes": [2, 2, 8]}), "expected 1 or more, each once"),
        (laws(TABLE | {"speedups": [1.8, 0, 2]}), "got '0', expected a speedup over one PE"),
        (laws(TABLE | {"pes": [1], "speedups": [1]}), "expected a speedup at more than one PE"),
        (laws({"law": "gustafson"}), "law"),
        (laws({"law": "characterized", "file": "none.json"}), "expected an existing file"),
        ({"tenants": [{"name": "u1"}, {"name": "u2"}]}, "parallel_fraction': got 'none', expected it to be given"),
        ({"tenants": [{"name": "u1", "law": "x"}, {"name": "u2"}]}, "got 'x', expected the name of one of laws (mine)"),
        ({"below_one_pe": "half"}, "below_one_pe"),
    ],
)
def test_a_wrong_law_is_one_line(wrong, said, tmp_path):
    done = run("partition", write(tmp_path / "p.yaml", problem(**wrong)))
    assert (done.code, done.out) == (2, ""), done.err
    assert said in done.err
    assert done.err.count("\n") == 1


def test_a_file_that_is_no_characterization_is_one_line(tmp_path):
    (tmp_path / "s.json").write_text("{}")
    wrong = laws({"law": "characterized", "file": "s.json"})
    done = run("partition", write(tmp_path / "p.yaml", problem(**wrong)))
    assert (done.code, "s.json: expected a result that partition characterize wrote" in done.err) == (2, True)
    (tmp_path / "r.csv").write_text("threads,seconds\n1,2\n2,1\n")
    call(characterize, "--from", tmp_path / "r.csv", "--out", tmp_path / "s.json")
    wrong = laws({"law": "characterized", "file": "s.json", "kernel": "other"})
    done = run("partition", write(tmp_path / "p.yaml", problem(**wrong)))
    assert (done.code, "kernel: one of r in s.json" in done.err) == (2, True)


def test_below_one_pe_can_be_honest(tmp_path):
    """Four serial tenants on two PEs: printed, each runs at full speed on half a PE; honest, at half speed."""
    file = {
        "tenants": [{"name": name} for name in "abcd"],
        "configurations": [{"name": "x", "pe_count": [2], "rate": [[1]] * 4, "parallel_fraction": [[0.0]] * 4}],
    }
    printed = run("partition", write(tmp_path / "p.yaml", file), "--json").document["configurations"][0]
    honest = run("partition", write(tmp_path / "h.yaml", file | {"below_one_pe": "linear"}), "--json")
    honest = honest.document["configurations"][0]
    assert printed["utilities"]["a"] == pytest.approx(1, rel=1e-5)
    assert honest["utilities"]["a"] == pytest.approx(0.5)
    assert (printed["tenants"][0]["below_one_pe"], honest["tenants"][0]["below_one_pe"]) == (["core cluster 1"], [])
    assert [piece["run_speedup"] for piece in honest["schedule"]] == pytest.approx([0.5] * 4)
