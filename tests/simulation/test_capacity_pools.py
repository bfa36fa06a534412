"""Pools, power budgets and the price of delay of a scenario: from the file to the result and the page."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.cli.console import run, scenario, write

EXAMPLES = Path(__file__).parents[2] / "examples"
STATES = [{"name": "sleep", "power_w": 60, "enter_s": 10, "wake_s": 50, "wake_j": 1000}]
POLICIES = {
    "apart": {"policy": "last-value", "pools": "gpu_type"},
    "shared": {"policy": "last-value", "pools": "gpu_type", "share": [["V100", "A100"]]},
    "one": {"policy": "last-value"},
    "partitions": {"policy": "foresight", "pools": "partition"},
    "priced": {"forecaster": "last-value", "history_days": 0.6, "delay_price": 2, "pools": "gpu_type"},
    "budget": {"policy": "last-value", "pools": "gpu_type", "power_kw": 4.5},
}


def nodes(name, gpu_type, partitions, count=3):
    given = {"name": name, "count": count, "gpu_type": gpu_type, "gpus": 4, "idle_w": 400, "gpu_w": 250}
    return {**given, "partitions": partitions, "states": STATES}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Two thirds of a day of short jobs, the last 40 minutes of which are simulated."""
    path, rng = tmp_path_factory.mktemp("log") / "jobs.csv", np.random.default_rng(3)
    kinds, partitions = ["V100", "A100"], ["x", "y"]
    rows = [
        f"{at},{rng.integers(300, 1500)},{rng.choice([1, 2, 4])},{rng.choice(kinds)},{rng.choice(partitions)}"
        for at in np.sort(rng.integers(0, 57_600, 200))
    ]
    path.write_text("submit_s,duration_s,gpus,gpu_type,partition\n" + "\n".join(rows) + "\n")
    return path


def planned(log, plans, **more):
    return scenario(**{
        "workload": {"source": "csv", "path": str(log), "begin": "55200", "days": 0.028, "profiles": "law"},
        "nodes": [nodes("v", "V100", ["x", "y"]), nodes("a", "A100", ["x"]), nodes("b", "A100", ["y"], 2)],
        "policies": [{"solver": "easy", "name": name, "capacity": plan} for name, plan in plans.items()],
        **more,
    })  # fmt: skip


@pytest.fixture(scope="module")
def outcome(tmp_path_factory, log):
    folder = tmp_path_factory.mktemp("pools")
    done = run(
        "simulate", write(folder / "s.yaml", planned(log, POLICIES)), "--out", folder / "out", "--json", "--jobs", 1
    )
    assert done.code == 0, done.err
    policies = {policy["policy"]: policy for policy in done.document["policies"]}
    return policies, (folder / "out" / "report.html").read_text()


@pytest.mark.slow
def test_pools_add_up_to_the_cluster(outcome):
    policies = outcome[0]
    apart = policies["apart"]["capacity"]["pools"]
    assert [(pool["name"], pool["gpus"]) for pool in apart] == [("V100", 12), ("A100", 20)]
    for name, count in (("apart", policies["apart"]["jobs"]), ("partitions", policies["partitions"]["jobs"])):
        assert sum(pool["jobs"] for pool in policies[name]["capacity"]["pools"]) == count
    for name in ("apart", "priced", "budget"):
        plan = policies[name]["capacity"]
        assert sum(pool["jobs_delayed"] for pool in plan["pools"]) == plan["jobs_delayed"]
        assert max(pool["fallback_plans"] for pool in plan["pools"]) <= plan["fallback_plans"]
        assert min(pool["slots_served"] for pool in plan["pools"]) >= plan["slots_served"]
    assert [(pool["name"], pool["gpus"]) for pool in policies["partitions"]["capacity"]["pools"]] == [
        ("x", 24), ("y", 20)
    ]  # fmt: skip
    assert {pool["promise"] for pool in apart} == {None}


@pytest.mark.slow
def test_pools_that_share_all_their_nodes_are_no_pools_to_the_bit(outcome):
    shared, one = (json.dumps({**outcome[0][name], "policy": "", "scheduler_s": 0}) for name in ("shared", "one"))
    assert shared == one
    assert outcome[0]["one"]["capacity"]["pools"] == []


@pytest.mark.slow
def test_a_price_of_delay_chooses_a_promise_for_each_pool(outcome):
    plan = outcome[0]["priced"]["capacity"]
    assert all(pool["promise"].startswith("jobs:0.") for pool in plan["pools"])
    assert all(pool["mean_promised_gpus"] >= pool["mean_wanted_gpus"] - 1 for pool in plan["pools"])


@pytest.mark.slow
def test_a_power_budget_lets_jobs_wait_and_the_report_says_who(outcome):
    policies, page = outcome
    budget = policies["budget"]["capacity"]["budget"]
    assert budget["power_kw"] == 4.5
    assert budget["jobs_delayed"] > 0
    assert budget["mean_delay_s"] > 0
    assert f"{budget['jobs_delayed']} jobs waited for power" in budget["sentence"]
    assert policies["apart"]["capacity"]["budget"] is None
    assert f"budget: {budget['sentence']}" in page
    pools = page[page.index("<caption>Pools</caption>") :].partition("</table>")[0]
    assert pools.count(">V100<") == pools.count(">A100<") == 3  # a row for each plan with pools by type


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"pools": "tenant"}, ("capacity.pools", "partition")),
        ({"policy": "last-value", "share": [["V100", "A100"]]}, ("share", "none without pools")),
        ({"policy": "last-value", "pools": "gpu_type", "share": [["V100", "H100"]]}, ("capacity.share", "H100")),
        ({"policy": "last-value", "power_kw": 0.479}, ("capacity.power_kw", "0.48 kW or more")),
        ({"policy": "last-value", "power_kw": 1.5}, ("capacity.power_kw", "to run alone")),
        ({"policy": "last-value", "power_kw": 0}, ("power_kw",)),
        ({"policy": "last-value", "delay_price": 1}, ("delay_price", "promises nothing")),
        ({"delay_price": 1, "target": 0.9}, ("delay_price", "one of them")),
        ({"pools": "gpu_type", "history_days": 0.1}, ("of pool", "capacity.forecaster")),
    ],
)
def test_refused_in_one_line(tmp_path, log, plan, words):
    done = run("simulate", write(tmp_path / "s.yaml", planned(log, {"p": plan})), "--out", tmp_path / "out")
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    for word in words:
        assert word in done.err
    assert not (tmp_path / "out").exists()


def test_partitions_name_no_pools_where_no_node_is_in_one(tmp_path, log):
    plain = [{**nodes("v", "V100", []), "count": 4}, {**nodes("a", "A100", []), "count": 4}]
    given = planned(log, {"p": {"policy": "last-value", "pools": "partition"}}, nodes=plain)
    done = run("simulate", write(tmp_path / "s.yaml", given), "--out", tmp_path / "out")
    assert done.code == 2
    assert "nodes with partitions" in done.err


@pytest.mark.slow
def test_a_budget_leaves_nodes_that_wake_alone(tmp_path):
    """Pools by shape that share their nodes' power: a node that wakes for one is not needed when the budget binds."""
    example = yaml.safe_load((EXAMPLES / "pools.yaml").read_text())
    example["policies"] = [
        {"solver": "easy", "name": by, "capacity": {"policy": "last-value", "pools": by, "power_kw": 3.5}}
        for by in ("shape", "node_class")
    ]
    done = run("simulate", write(tmp_path / "s.yaml", example), "--json", "--jobs", 1)
    assert done.code == 0, done.err
    shape, node_class = done.document["policies"]
    assert [pool["name"] for pool in shape["capacity"]["pools"]] == ["parts of 4 x A100", "whole 4 x A100"]
    assert [pool["jobs"] for pool in shape["capacity"]["pools"]] == [2, 4]
    assert shape["capacity"]["budget"]["jobs_delayed"] > 0
    assert not node_class["capacity"]["pools"]  # one class
