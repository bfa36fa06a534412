"""``commonwatt partition mig`` as a user runs it."""

from pathlib import Path

import pytest
import yaml

from commonwatt.cli.partition.mig import mig
from tests.cli.console import write
from tests.cli.partition_console import call
from tests.partitioning.mig_made import document, tenant

EXAMPLE = Path(__file__).parents[2] / "examples" / "mig.yaml"


def test_the_example_has_an_answer_in_both_modes():
    done = call(mig, EXAMPLE, "--json")
    assert done.code == 0
    assert all(line.startswith("compil") for line in done.err.splitlines())
    answer = done.document
    assert {"version", "seed", "input_digest", "enforcement", "chosen", "other"} <= answer.keys()
    assert answer["enforcement"] == "MIG"
    chosen, other = answer["chosen"], answer["other"]
    assert (chosen["mode"], other["mode"], chosen["optimal"], other["optimal"]) == ("market", "integer", True, True)
    assert chosen["residual"] < 1e-9
    assert chosen["welfare"] >= other["welfare"] - 1e-6
    assert answer["market_advantage"] >= 0
    assert {t["name"] for t in chosen["tenants"]} == {"chat", "search", "vision", "batch"}
    assert all(t["reason"] and t["sentence"] for t in (*chosen["tenants"], *chosen["gpus"]))
    assert sum(t["spent"] for t in chosen["tenants"]) <= 1 + 1e-9
    for gpu in chosen["gpus"]:
        assert all(sum(u["share"] for u in i["users"]) <= 1 + 1e-9 for i in gpu["instances"])


@pytest.mark.slow
def test_whole_instances_have_one_user_each_and_no_prices():
    answer = call(mig, EXAMPLE, "--mode", "integer", "--json").document["chosen"]
    assert answer["prices"] == []
    assert answer["residual"] is None
    users = [[u["share"] for u in i["users"]] for g in answer["gpus"] for i in g["instances"]]
    assert all(shares in ([], [1.0]) for shares in users)


@pytest.mark.parametrize("welfare", ["utilitarian", "egalitarian"])
def test_other_welfares(welfare):
    assert call(mig, EXAMPLE, "--welfare", welfare, "--json").document["welfare_kind"] == welfare


@pytest.mark.slow
def test_the_table_says_what_is_decided():
    done = call(mig, EXAMPLE)
    assert done.code == 0
    assert "prices:" in done.err
    assert "the best of all layouts" in done.err
    assert "must drain" in done.err


def test_layouts_are_written_for_mig_parted_and_read_back_as_present(tmp_path):
    file, parted = write(tmp_path / "p.yaml", document(2, 3)), tmp_path / "parted.yaml"
    first = call(mig, file, "--write", parted, "--json").document["chosen"]
    assert first["drained"] is None
    entries = yaml.safe_load(parted.read_text())["mig-configs"]["commonwatt"]
    assert sorted(n for entry in entries for n in entry["devices"]) == [0, 1]
    again = call(mig, file, "--present", parted, "--json").document["chosen"]
    assert again["drained"] == 0
    assert {g["reason"] for g in again["gpus"]} == {"unchanged"}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_drawing(suffix, tmp_path):
    fields = document(2, 9, profiles="all")
    done = call(mig, write(tmp_path / "p.yaml", fields), "--plot", tmp_path / f"m{suffix}")
    assert done.code == 0
    assert (tmp_path / f"m{suffix}").stat().st_size > 1000
    assert call(mig, write(tmp_path / "p.yaml", fields), "--plot", tmp_path / "m.txt").code == 2


@pytest.mark.slow
def test_a_result_is_read_back_as_present(tmp_path):
    """By the names of the GPUs: their order in the problem does not matter."""
    fields = document(2, 3)
    fields["gpus"][0]["present"] = ["1g@0", "3g@4"]
    first = call(mig, write(tmp_path / "p.yaml", fields), "--json")
    result = write(tmp_path / "m.json", first.out)
    fields["gpus"] = [{"name": gpu["name"], "type": gpu["type"]} for gpu in reversed(fields["gpus"])]
    again = call(mig, write(tmp_path / "q.yaml", fields), "--present", result, "--json").document["chosen"]
    assert again["drained"] == 0
    assert {g["reason"] for g in again["gpus"]} == {"unchanged"}
    cut = {g["name"]: [(i["profile"], i["start"]) for i in g["instances"]] for g in first.document["chosen"]["gpus"]}
    assert {g["name"]: [(i["profile"], i["start"]) for i in g["instances"]] for g in again["gpus"]} == cut
    named = call(mig, tmp_path / "q.yaml", "--present", result, "--present-config", "x")
    assert (named.code, "expected a file of mig-parted beside it" in named.err) == (2, True)
    more = document(3, 3) | {"tenants": fields["tenants"]}
    extended = call(mig, write(tmp_path / "r.yaml", more), "--present", result, "--json").document["chosen"]
    assert [g["drained"] is None for g in extended["gpus"]] == [g["name"] not in cut for g in extended["gpus"]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda gpu: gpu.update(name="g7"), "field 'chosen.gpus': got 'g7', expected one of"),
        (lambda gpu: gpu.update(type="A100-80GB"), "type': got 'A100-80GB', expected H100-80GB, as in the problem"),
        (lambda gpu: gpu["instances"].append(gpu["instances"][0]), "expected free memory slices"),
        (lambda gpu: gpu.pop("instances"), "field 'chosen.gpus.g0.instances'"),
    ],
)
def test_a_result_that_does_not_fit_the_problem_is_one_line(change, said, tmp_path):
    file = write(tmp_path / "p.yaml", document(1, 2))
    result = call(mig, file, "--json").document
    change(result["chosen"]["gpus"][0])
    path = write(tmp_path / "m.json", result)
    done = call(mig, file, "--present", path)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert str(path) in done.err
    assert done.err.count("\n") == 1


def wrong(**fields):
    return document() | fields


GPU = {"name": "g", "type": "H100-80GB"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (wrong(gpus=[GPU | {"present": ["3g@0", "2g@2"]}]), "got '3g@0, 2g@2', expected free memory slices"),
        (wrong(gpus=[GPU | {"present": ["9g@0"]}]), "gpus.g.present': got '9g', expected one of the profiles"),
        (wrong(gpus=[GPU | {"type": "T4"}]), "gpus.g.type': got 'T4', expected one of A100-40GB"),
        (wrong(gpus=[GPU, GPU]), "expected each name once"),
        (wrong(gpus=[]), "field 'gpus'"),
        (wrong(tenants=[tenant(), tenant()]), "expected each name once"),
        (wrong(tenants=[tenant(memory_gb=90)]), "tenants.a.memory_gb': got '90', expected at most the memory"),
        (wrong(tenants=[tenant(parallel_fraction=1.2)]), "parallel_fraction': got '1.2', expected a number, 1 or less"),
        (wrong(tenants=[tenant(parallel_fraction=-0.1)]), "tenants.a.parallel_fraction"),
        (wrong(tenants=[tenant(weight=0)]), "tenants.a.weight': got '0', expected a number above 0"),
        (wrong(tenants=[{"name": "a"}]), "expected either parallel_fraction or speed"),
        (wrong(tenants=[tenant(speed={"1g": 1}, parallel_fraction=0.5)]), "got 'both'"),
        (wrong(tenants=[tenant(speed={"5g": 1})]), "tenants.a.speed': got '5g', expected a profile of these GPUs"),
        (wrong(tenants=[tenant(speed={"1g": -1})]), "speed.1g': got '-1.0', expected a number, 0 or more"),
        (wrong(tenants=[tenant(speed={"1g": 1}, memory_gb=20)]), "expected a speed above 0 on a profile with 20 GB"),
        (wrong(tenants=[tenant(max_instances=0)]), "tenants.a.max_instances"),
    ],
)  # fmt: skip
def test_a_wrong_problem_is_one_line(fields, said, tmp_path):
    file = write(tmp_path / "p.yaml", fields)
    done = call(mig, file, "--json")
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert str(file) in done.err
    assert done.err.count("\n") == 1


def test_a_tenant_is_told_what_more_would_cost_and_what_is_left_of_its_budget(tmp_path):
    tenants = [tenant("one", weight=9, max_instances=1), tenant("two")]
    answer = call(mig, write(tmp_path / "p.yaml", document(2) | {"tenants": tenants}), "--json").document["chosen"]
    one, two = answer["tenants"]
    assert one["reason"] == "at-limit"
    kept = 1 - one["spent"] / one["weight"]
    assert kept > 0.1
    assert f"{kept:.0%} of its budget is left over" in one["sentence"]
    assert two["spent"] == pytest.approx(two["weight"], rel=1e-9)
    assert "its next purchase would be a " in two["sentence"]


@pytest.mark.long
def test_too_many_gpus_to_list_are_refused_but_for_nash(tmp_path):
    file = write(tmp_path / "p.yaml", document(30, 2))
    refused = call(mig, file, "--welfare", "utilitarian")
    assert refused.code == 2
    assert "field '--welfare'" in refused.err
    assert "expected nash, as these GPUs can be cut into more than" in refused.err


def test_more_tenants_than_instances_are_refused_in_whole_instances_only(tmp_path):
    file = write(tmp_path / "p.yaml", document(1, 9))
    refused = call(mig, file, "--mode", "integer")
    assert refused.code == 2
    assert "no layout of the 1 GPU has one when 7 other tenants have theirs" in refused.err
    answer = call(mig, file, "--json").document
    assert answer["other"] is None
    assert "a whole instance" in answer["other_refusal"]


def test_a_present_configuration_must_be_possible(tmp_path):
    file = write(tmp_path / "p.yaml", document(1, 1))
    entries = [{"devices": "all", "mig-enabled": True, "mig-devices": {"4g.40gb": 2}}]
    parted = write(tmp_path / "c.yaml", {"version": "v1", "mig-configs": {"bad": entries, "good": entries}})
    done = call(mig, file, "--present", parted, "--present-config", "bad")
    assert done.code == 2
    assert f"{parted}: field 'mig-configs.bad (GPU 0)': got '4g.40gb, 4g.40gb'" in done.err
    assert "name one of bad, good" in call(mig, file, "--present", parted).err
    assert call(mig, file, "--present-config", "bad").code == 2
