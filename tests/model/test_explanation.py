"""The end of a running job is said as surely as it is known."""

import json
from dataclasses import asdict

import pytest

from commonwatt.model.explanation import PlacementExplanation, Reason
from commonwatt.model.scenario import Scenario
from commonwatt.simulation.runner import run_seeds
from commonwatt.simulation.workload import prepare


@pytest.mark.parametrize(
    ("spare_s", "by_limit", "said"),
    [
        (7200.0, None, "it ends 2.0 h before its due date"),
        (7200.0, True, "it ends by its time limit, 2.0 h before its due date at the latest"),
        (-7200.0, True, "it ends by its time limit, 2.0 h after its due date at the latest"),
        (7200.0, False, "it is expected to end 2.0 h before its due date"),
        (None, True, "it has no due date"),
    ],
)
def test_an_end_is_said_as_surely_as_it_is_known(spare_s, by_limit, said):
    why = PlacementExplanation(Reason.KEPT, "a", ("n",), 1, spare_s=spare_s, by_limit=by_limit)
    assert why.sentence.endswith(f"; {said}")
    assert PlacementExplanation.of({"reason": "kept", "job": "a", "by_limit": by_limit}).by_limit is by_limit


def test_facts_are_what_differs_from_the_defaults_and_make_the_same_explanation():
    plain = PlacementExplanation(Reason.NO_ROOM, "a", gpus=2)
    assert plain.facts() == {"reason": Reason.NO_ROOM, "job": "a", "gpus": 2}
    told = PlacementExplanation(
        Reason.DISPLACED, "a", ("n",), cost=0.0, alternative_fits=False, takers=("b",), by_limit=False,
        due_at_submission=True,
    )  # fmt: skip
    assert told.facts().keys() == {
        "reason", "job", "nodes", "cost", "alternative_fits", "takers", "by_limit", "due_at_submission",
    }  # fmt: skip
    for why in (plain, told):
        stored = json.loads(json.dumps(why.facts()))
        assert PlacementExplanation.of(stored) == PlacementExplanation.of(json.loads(json.dumps(asdict(why)))) == why


def test_only_a_known_lateness_is_certain():
    waits = PlacementExplanation(Reason.NO_ROOM, "a", gpus=1, spare_s=-60.0)
    assert "it will be late by 60 s" in waits.sentence
    unknown = PlacementExplanation(Reason.NO_ROOM, "a", gpus=1, spare_s=-60.0, by_limit=True)
    assert "it is expected to be late by 60 s" in unknown.sentence


@pytest.mark.parametrize(
    ("knowledge", "said"),
    [
        ("oracle", ["it ends 50 min before", "it ends 50 min before"]),
        ("user-limit", ["it ends by its time limit", "it is expected to end"]),
        ("predicted", ["it is expected to run", "it is expected to run"]),
        ("none", ["it is expected to run", "it is expected to run"]),
    ],
)
def test_a_simulation_says_no_more_than_its_scheduler_knows(tmp_path, knowledge, said):
    job = {"tenant": "t", "submit_s": 0, "due_s": 3600, "tardiness_weight": 1e-4, "epochs": 6, "requested_gpus": 1}
    job["times_s"] = {"V100": {1: 600}}
    jobs = [{"name": "limited", "time_limit_s": 1800, **job}, {"name": "unlimited", **job}]
    scenario = Scenario.model_validate({
        "name": "s", "knowledge": knowledge, "policies": [{"solver": "easy"}],
        "nodes": [{"name": "v", "gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 250}],
        "workload": {"source": "jobs", "jobs": jobs},
    })  # fmt: skip
    _, (record,) = run_seeds([prepare(scenario, tmp_path, 0)])
    started = [s for s, kind in zip(record.events.sentence, record.events.kind, strict=True) if kind == "started"]
    assert len(started) == 2
    for sentence, part in zip(started, said, strict=True):
        assert part in sentence
