"""Any value in any place of a file: it is used, or refused in one line; never a traceback, never NaN in an answer."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.data.files import validate
from commonwatt.model.errors import InputError
from commonwatt.model.scenario import Scenario
from commonwatt.simulation.workload import prepare
from tests.cli.console import problem, run, scenario

MANY = settings(deadline=None, max_examples=150)
ODD = st.sampled_from([
    None, "", [], {}, True, 0, -1, 1.5, -0.0, 1e14, 1e308, -1e308, 5e-324, 2**63, 2**70, float("nan"), float("inf"),
    "x" * 300, "1e5", "v", "two\nlines", [None], [[1]], {"a": None}, {"1": 2}, "\u202e", "-",
])  # fmt: skip


def full_problem() -> dict:
    document = problem(
        now_s=0, interval_s=300, postponement_penalty=10, electricity={"price_per_kwh": 0.1, "pue": 1.2},
        tenants=[{"name": "default", "weight": 2, "usage_gpu_s": 5}],
    )  # fmt: skip
    document["jobs"][0] |= {
        "current": {"nodes": ["v"], "gpus": 1, "remaining_s": 500}, "gpu_w": {"V100": 20}, "time_limit_s": 100,
        "requested_gpus": 1, "requested_gpu_type": "V100", "tenant": "default", "submit_s": 0,
    }  # fmt: skip
    return document


def full_scenario() -> dict:
    return scenario(
        electricity={"series": [{"from_s": 0, "price_per_kwh": 1, "carbon_g_per_kwh": 3}], "pue": 1.1},
        outages=[{"node": "v", "from_s": 1, "to_s": 2}], unused_nodes={"state": "off", "after_s": 1},
        preemption={"restart_s": 1}, runtime_error=0.1, interval_s=300, tenants=[{"name": "x", "weight": 2}],
    )  # fmt: skip


def places(part: object, path: tuple = ()) -> list[tuple]:
    below = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    return ([path] if path else []) + [place for key, value in below for place in places(value, (*path, key))]


def changed(document: dict, path: tuple, value: object) -> dict:
    part = document = copy.deepcopy(document)
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    return document


@pytest.mark.slow
@MANY
@given(
    path=st.sampled_from(places(full_problem())), value=ODD, solver=st.sampled_from(["random-greedy", "easy", "exact"])
)
def test_place(path, value, solver, tmp_path_factory):
    file = tmp_path_factory.mktemp("any") / "p.json"
    file.write_text(json.dumps(changed(full_problem(), path, value)))
    done = run("place", file, "--solver", solver, "--iterations", 5, "--json")
    if done.code == 2:
        assert done.out == ""
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1
        assert len(done.err) < 1200
    else:
        assert done.code == 0
        assert "NaN" not in done.out
        assert done.document["objective"] >= 0


@pytest.mark.slow
@MANY
@given(path=st.sampled_from(places(full_scenario())), value=ODD)
def test_simulate_up_to_the_first_run(path, value):
    try:
        ready = prepare(validate(changed(full_scenario(), path, value), Scenario, "s.yaml"), Path(), 0)
    except InputError as error:
        line = str(error.within("s.yaml"))
    else:
        assert ready.lower_bound() >= 0
        assert len(ready.digest()) == 64
        return
    assert re.fullmatch(r"s\.yaml: [^\n]*expected [^\n]+", line)


PARTITION = [(("partition",), "partition"), (("partition",), "laws"), (("partition", "mig"), "mig")]


@pytest.mark.long
@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(drawn=st.data())
@pytest.mark.parametrize(("verb", "name"), PARTITION)
def test_partition(verb, name, drawn, tmp_path_factory):
    """A market that is not solved ends with exit code 1 and says so."""
    document = yaml.safe_load((Path(__file__).parents[2] / "examples" / f"{name}.yaml").read_text(encoding="utf-8"))
    path, value = drawn.draw(st.sampled_from(places(document))), drawn.draw(ODD)
    file = tmp_path_factory.mktemp("any") / "p.json"
    file.write_text(json.dumps(changed(document, path, value)))
    done = run(*verb, file, "--json")
    if done.code:
        assert done.code in {1, 2}
        assert done.out == ""
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1
    else:
        assert "NaN" not in done.out
        assert "Infinity" not in done.out
