"""Same input and seed, same bytes: in another process, with another hash seed, with more workers."""

from __future__ import annotations

import pytest
import yaml

from tests.cli.console import run, scenario, spawn, write

SAME = ["result.json", "events.parquet", "jobs.parquet", "scenario.yaml"]


def crowded() -> dict:
    """Tenants, types and jobs enough for an order by hash to show."""
    base = {"V100": 900, "T4": 2000, "P100": 1400}
    jobs = [
        {
            "name": f"job-{i}", "tenant": f"t{i % 5}", "submit_s": 100 * (i // 4), "due_s": 100 * (i // 4) + 1500,
            "tardiness_weight": 0.001 * (1 + i % 3), "epochs": 5, "requested_gpus": 1 + i % 2,
            "times_s": {kind: [t + 10 * i, 0.6 * t + 5 * i] for kind, t in base.items()},
        }
        for i in range(24)
    ]  # fmt: skip
    nodes = [
        {"name": kind, "count": 2, "gpu_type": kind, "gpus": 2, "idle_w": 100, "gpu_w": w}
        for kind, w in (("V100", 250), ("T4", 70), ("P100", 180))
    ]
    policies = [{"solver": s} for s in ("random-greedy", "lookahead", "fair-share")]
    policies[0]["iterations"] = 60
    return scenario(
        workload={"source": "jobs", "jobs": jobs}, nodes=nodes, policies=policies, runtime_error=0.2,
        tenants=[{"name": "t3", "weight": 2}], outages=[{"node": "T4-1", "from_s": 500, "to_s": 900}],
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same scenario twice: hash seeds 1 and 2, one worker and two, started from different folders."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "elsewhere").mkdir()
    file = write(folder / "s.yaml", crowded())
    for name, jobs, where in (("one", 1, folder), ("two", 2, folder / "elsewhere")):
        seed = str(len(name) + jobs)
        done = spawn("simulate", file, "--out", folder / name, "--jobs", jobs, cwd=where, PYTHONHASHSEED=seed)
        assert done.code == 0, done.err
    return folder


@pytest.mark.long
@pytest.mark.parametrize("name", SAME)
def test_bytes_are_the_same_in_another_process_with_more_workers(name, runs):
    assert (runs / "one" / name).read_bytes() == (runs / "two" / name).read_bytes()


@pytest.mark.slow
def test_another_seed_is_another_run(tmp_path):
    file = write(tmp_path / "s.yaml", crowded())
    only = ("--policy", "random-greedy", "--json")
    first, second = (run("simulate", file, "--seed", seed, *only).document for seed in (0, 1))
    assert (first["seed"], second["seed"]) == (0, 1)
    assert first["policies"][0]["energy_kwh"] != second["policies"][0]["energy_kwh"]


CHANGES = {
    "a time": lambda d: d["workload"]["jobs"][0]["times_s"]["V100"].__setitem__(0, 901),
    "a name": lambda d: d["workload"]["jobs"][0].update(name="other"),
    "a tenant": lambda d: d["workload"]["jobs"][0].update(tenant="other"),
    "a due date": lambda d: d["workload"]["jobs"][0].update(due_s=99999),
    "a wish": lambda d: d["workload"]["jobs"][0].update(requested_gpus=0),
    "a node": lambda d: d["nodes"][0].update(idle_w=101),
    "the price": lambda d: d.update(electricity={"price_per_kwh": 0.2}),
    "a policy": lambda d: d["policies"][0].update(iterations=61),
    "an outage": lambda d: d["outages"][0].update(to_s=901),
}


def digest(document: dict, folder) -> str:
    from pathlib import Path

    from commonwatt.data.files import load_yaml
    from commonwatt.model.scenario import Scenario
    from commonwatt.simulation.workload import prepare

    return prepare(load_yaml(write(folder / "s.yaml", document), Scenario), Path(folder), 0).digest()


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_the_digest_changes_with_the_input(change, tmp_path):
    document = crowded()
    before = digest(document, tmp_path)
    CHANGES[change](document)
    assert digest(document, tmp_path) != before


def test_the_digest_changes_with_the_log_and_the_prices_a_scenario_names(tmp_path):
    log = "job,tenant,submit_s,duration_s,gpus,gpu_type\na,t,0,600,1,V100\n"
    workload = {"source": "csv", "path": "log.csv", "profiles": "law", "logged_gpu_type": "V100"}
    document = scenario(workload=workload, electricity={"series_file": "prices.csv"})
    seen = set()
    for last, price in (("b,t,60,600,1,V100\n", 0.1), ("b,t,60,601,1,V100\n", 0.1), ("b,t,60,600,1,V100\n", 0.2)):
        (tmp_path / "log.csv").write_text(log + last)
        (tmp_path / "prices.csv").write_text(f"from_s,price_per_kwh\n0,{price}\n60,1\n")
        seen.add(digest(document, tmp_path))
    assert len(seen) == 3


def test_the_digest_does_not_change_with_comments_and_order_of_fields(tmp_path):
    document = crowded()
    before = digest(document, tmp_path)
    turned = yaml.safe_dump(dict(reversed(document.items())), sort_keys=False)
    assert digest("# the same\n" + turned, tmp_path) == before
