"""What each row of a study may change: the conservative one nothing that owners of jobs asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.data.files import validate
from commonwatt.model.errors import InputError
from commonwatt.model.study_file import STEPS, StudyFile
from commonwatt.studies.rows import rows_of, scenario_of

NODES = [{"name": "v", "gpu_type": "V100", "gpus": 4, "idle_w": 300, "gpu_w": 250}]


def study(**fields):
    return validate({"workload": {"source": "slurm", "path": "jobs.txt"}, "nodes": NODES, **fields}, StudyFile)


def scenarios(file, *, names_types=True):
    return [
        (row, scenario_of(file, row, file.workload, names_types=names_types, knowledge="user-limit"))
        for row in rows_of(file)
    ]


orders = st.permutations(STEPS).flatmap(lambda steps: st.integers(0, len(steps)).map(lambda n: steps[:n]))


def whole(steps):
    """With planning, which some steps need."""
    return steps if "planning" in steps else ["planning", *steps]


@pytest.mark.slow
@given(orders.map(whole))
def test_the_headline_never_contains_a_relaxation(steps):
    rows = scenarios(study(steps=steps))
    (base,) = [scenario for row, scenario in rows if row.kind == "baseline"]
    (ours,) = [scenario for row, scenario in rows if row.kind == "ours"]
    for scenario in (base, ours):
        assert not scenario.workload.malleable
        assert not scenario.workload.other_types
        assert scenario.workload.due_dates == "none"
        assert not scenario.preemption.allowed
        assert scenario.unused_nodes.state is None
    assert ours.policies[0].solver == "lookahead"
    assert base.model_copy(update={"policies": ()}) == ours.model_copy(update={"policies": ()})


@pytest.mark.slow
@given(orders.map(whole))
def test_each_step_adds_its_own_relaxation_and_no_other(steps):
    switches = {
        "thrifty-type": lambda s: s.workload.other_types,
        "planning": lambda s: s.policies[0].solver == "lookahead",
        "consolidation": lambda s: s.policies[0].idle_power == "counted",
        "switching-off": lambda s: s.unused_nodes.state == "off",
        "resizing": lambda s: s.workload.malleable,
        "preemption": lambda s: s.preemption.allowed,
    }
    rows = scenarios(study(steps=steps))
    for row, scenario in rows:
        if row.kind == "alternative":
            continue
        assert {name for name, on in switches.items() if on(scenario)} == row.taken - {"price"}
    cumulative = [row.taken for row, _ in rows if row.kind == "step"]
    assert [len(taken) for taken in cumulative] == list(range(1, len(steps) + 1))
    for row, _ in rows:
        if row.kind == "alone":
            assert row.taken - row.against == {row.step}


def test_rows_are_compared_over_the_same_jobs():
    workloads = {
        scenario.workload.model_copy(update={"malleable": True, "other_types": True}).model_dump_json()
        for _, scenario in scenarios(study())
    }
    assert len(workloads) == 1


def test_a_job_may_get_any_type_where_the_log_names_none():
    assert all(scenario.workload.other_types for _, scenario in scenarios(study(), names_types=False))


def test_a_price_that_does_not_change_makes_no_other_row():
    rows = scenarios(study())
    price = {row.kind: scenario for row, scenario in rows if row.step == "price"}
    before = [scenario for row, scenario in rows if row.step == "preemption" and row.kind == "step"]
    assert price["step"] == before[0]
    series = [{"from_s": 0, "price_per_kwh": 0.1}, {"from_s": 3600, "price_per_kwh": 0.4}]
    rows = scenarios(study(electricity={"series": series}))
    prices = {(row.step, row.kind): scenario.policies[0].price for row, scenario in rows}
    assert prices["price", "step"] == "series"
    assert prices["preemption", "step"] == "mean"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"steps": ["planning", "planning"]}, "each step once"),
        ({"steps": ["resizing"]}, "planning too"),
        ({"alternatives": [{"solver": "easy", "name": "as today"}]}, "distinct names"),
        ({"ours": {"solver": "lookahead", "unused_nodes": {"state": "off"}}}, "the study sets them"),
        ({"weeks": 0}, "1 or more"),
        ({"workload": {"source": "andreas"}}, "source"),
    ],
)
def test_what_is_wrong_in_a_study_file_is_said(fields, said):
    with pytest.raises(InputError, match=said):
        study(**fields)
