"""Eq. (1) of ANDREAS, by hand."""

import numpy as np
import pytest
from hypothesis import given

from commonwatt.model.errors import SolverError
from commonwatt.model.place_file import PlaceFile
from commonwatt.placement._objective import check, objective
from commonwatt.placement._problem import PlacementProblem, Schedule
from tests.placement.brute_force import worth_in_words
from tests.strategies import problems

MONEY = 0.172 * 1.33 / 3.6e6  # EUR per joule


def problem() -> PlacementProblem:
    return PlacementProblem.of(
        PlaceFile.model_validate(
            {
                "now_s": 50,
                "nodes": [{"name": "n1", "gpu_type": "V100", "gpus": 2, "idle_w": 150, "gpu_w": 250}],
                "jobs": [
                    {"name": "short", "due_s": 1000, "tardiness_weight": 0.001, "times_s": {"V100": [1200, 700]}},
                    {"name": "long", "due_s": 9000, "tardiness_weight": 0.002, "times_s": {"V100": [4000, 2500]}},
                    {"name": "late", "due_s": 100, "tardiness_weight": 0.005, "times_s": {"V100": [300, None]}},
                ],
            }
        )
    )


def schedule(p: PlacementProblem, rows: list[int]) -> Schedule:
    s = Schedule.empty(p)
    s.choice[:] = rows
    for j, row in enumerate(rows):
        if row >= 0:
            s.nodes[p.slot_start[j]] = 0
    return s


def test_first_ending_job_alone_is_charged():
    p = problem()
    worth = objective(p, schedule(p, [0, 2, -1]))
    assert worth.first_ending == pytest.approx(1200 * (150 + 250) * MONEY)
    assert worth.tardiness == pytest.approx(0.001 * (50 + 1200 - 1000))
    assert worth.postponement == pytest.approx(100 * 0.005 * (50 + 300 + 300 - 100))
    assert worth.total == pytest.approx(worth.tardiness + worth.postponement + worth.first_ending)


def test_a_job_on_two_gpus_is_charged_the_power_of_two():
    p = problem()
    worth = objective(p, schedule(p, [1, -1, -1]))
    assert worth.first_ending == pytest.approx(700 * (150 + 2 * 250) * MONEY)
    assert worth.tardiness == 0


def test_worst_case_of_a_postponed_job_is_its_slowest_configuration():
    p = problem()
    worth = objective(p, Schedule.empty(p))
    expected = 100 * (0.001 * (50 + 300 + 1200 - 1000) + 0.002 * 0 + 0.005 * (50 + 300 + 300 - 100))
    assert worth.total == pytest.approx(expected)


def test_a_missing_count_is_no_configuration():
    p = problem()
    assert p.start.tolist() == [0, 2, 4, 5]


def test_ties_go_to_the_job_listed_first():
    p = PlacementProblem.of(
        PlaceFile.model_validate(
            {
                "nodes": [{"name": "n1", "gpu_type": "V100", "gpus": 3, "idle_w": 100, "gpu_w": 100}],
                "jobs": [
                    {"name": "a", "tardiness_weight": 0, "times_s": {"V100": [None, 1000]}},
                    {"name": "b", "tardiness_weight": 0, "times_s": {"V100": [1000]}},
                ],
            }
        )
    )
    assert objective(p, schedule(p, [0, 1])).first_ending == pytest.approx(1000 * 300 * MONEY)


@pytest.mark.slow
@given(problems())
def test_equals_the_definition_in_words_on_empty_and_unchanged(p):
    for s in (Schedule.empty(p), Schedule.unchanged(p)):
        check(p, s)
        assert objective(p, s).total == pytest.approx(worth_in_words(p, s), rel=1e-12, abs=1e-15)


def test_check_refuses_what_cannot_be_done():
    p = problem()
    for rows, message in (
        ([1, 2, -1], "3 of its 2 GPUs"),
        ([2, -1, -1], "configuration of another job"),
    ):
        with pytest.raises(SolverError, match=message):
            check(p, schedule(p, rows))
    s = schedule(p, [0, -1, -1])
    s.nodes[:] = -1
    with pytest.raises(SolverError, match="different nodes"):
        check(p, s)


@pytest.mark.slow
@given(problems())
def test_scaling_all_money_scales_the_objective(p):
    factor = 7.5
    scaled = PlacementProblem(
        **{
            **{k: getattr(p, k) for k in p.__dataclass_fields__},
            "weight": p.weight * factor,
            "node_cost": p.node_cost * factor,
        }
    )
    s = Schedule.unchanged(p)
    assert objective(scaled, s).total == pytest.approx(factor * objective(p, s).total, rel=1e-12)
    assert np.array_equal(scaled.pressure_s, p.pressure_s)
