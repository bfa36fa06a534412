"""Algorithm 1 of ANDREAS, on cases worked out by hand."""

import numpy as np
import pytest

from commonwatt.model.place_file import PlaceFile
from commonwatt.placement._problem import POSTPONED, PlacementProblem
from commonwatt.placement._random_greedy import RandomGreedy, swap_chances, swap_neighbours


def place(nodes, jobs, iterations=1, seed=0, **more):
    p = PlacementProblem.of(PlaceFile.model_validate({"nodes": nodes, "jobs": jobs, **more}))
    s = RandomGreedy(iterations=iterations).solve(p, np.random.default_rng(seed)).best
    return {a.job: (a.nodes, a.gpus) for a in s.assignments(p)}, p, s


V = {"gpu_type": "V100", "idle_w": 100, "gpu_w": 100}
T = {"gpu_type": "T4", "idle_w": 20, "gpu_w": 30}


def test_pressure_is_how_late_a_job_is_at_its_fastest():
    _, p, _ = place(
        [{"name": "n", "gpus": 2, **V}],
        [{"name": "a", "due_s": 1000, "tardiness_weight": 1, "times_s": {"V100": [900, 500]}}],
        now_s=200,
    )
    assert p.pressure_s.tolist() == [200 + 500 - 1000]


def test_cheapest_configuration_that_meets_the_due_date():
    job = {"name": "a", "due_s": 2000, "tardiness_weight": 1, "times_s": {"V100": [900, 500], "T4": [1500]}}
    got, _, _ = place([{"name": "v", "gpus": 2, **V}, {"name": "t", "gpus": 1, **T}], [job])
    assert got == {"a": (("t",), 1)}  # 1500 s at 50 W is less than 900 s at 200 W


def test_a_due_date_met_to_the_second_is_not_met():
    """D*_j asks for less than the due date."""
    job = {"name": "a", "due_s": 1500, "tardiness_weight": 1, "times_s": {"V100": [900, 500], "T4": [1500]}}
    got, _, _ = place([{"name": "v", "gpus": 2, **V}, {"name": "t", "gpus": 1, **T}], [job])
    assert got == {"a": (("v",), 2)}  # of those in time, 500 s at 300 W costs less than 900 s at 200 W


def test_fastest_configuration_if_it_is_late_anyway():
    job = {"name": "a", "due_s": 100, "tardiness_weight": 1, "times_s": {"V100": [900, 850], "T4": [1500]}}
    got, _, _ = place([{"name": "v", "gpus": 2, **V}, {"name": "t", "gpus": 1, **T}], [job])
    assert got == {"a": (("v",), 2)}


def test_more_pressing_jobs_choose_first_and_the_last_one_waits():
    jobs = [
        {"name": "calm", "due_s": 9000, "tardiness_weight": 1, "times_s": {"V100": [900]}},
        {"name": "late", "due_s": 100, "tardiness_weight": 1, "times_s": {"V100": [900]}},
    ]
    got, p, s = place([{"name": "n", "gpus": 1, **V}], jobs)
    assert got == {"late": (("n",), 1)}
    assert s.choice[p.job_names.index("calm")] == POSTPONED


def test_suboptimal_configuration_if_the_best_has_no_room():
    jobs = [
        {"name": "first", "due_s": 1000, "tardiness_weight": 1, "times_s": {"T4": [950]}},
        {"name": "second", "due_s": 2000, "tardiness_weight": 1, "times_s": {"V100": [900], "T4": [1500]}},
    ]
    got, _, _ = place([{"name": "v", "gpus": 1, **V}, {"name": "t", "gpus": 1, **T}], jobs)
    assert got == {"first": (("t",), 1), "second": (("v",), 1)}


def test_a_job_with_no_room_in_time_takes_the_fastest_that_fits():
    """The step the paper leaves out."""
    jobs = [
        {"name": "first", "due_s": 950, "tardiness_weight": 1, "times_s": {"V100": [900]}},
        {"name": "second", "due_s": 1000, "tardiness_weight": 1, "times_s": {"V100": [900], "T4": [1500]}},
    ]
    got, _, _ = place([{"name": "v", "gpus": 1, **V}, {"name": "t", "gpus": 1, **T}], jobs)
    assert got == {"first": (("v",), 1), "second": (("t",), 1)}


def test_best_fit_leaves_large_holes_whole():
    jobs = [
        {"name": "a", "due_s": 110, "tardiness_weight": 1, "times_s": {"V100": [None, None, 100]}},
        {"name": "b", "due_s": 120, "tardiness_weight": 1, "times_s": {"V100": [100]}},
        {"name": "c", "due_s": 130, "tardiness_weight": 1, "times_s": {"V100": [None, None, None, 100]}},
    ]
    got, _, _ = place([{"name": "n", "count": 2, "gpus": 4, **V}], jobs)
    assert got["a"][0] == got["b"][0] != got["c"][0]


def test_gang_takes_equally_many_gpus_of_several_nodes_or_none():
    job = {"name": "g", "due_s": 1000, "tardiness_weight": 1, "times_s": {"V100": {"6": 100}}}
    got, _, _ = place([{"name": "n", "count": 3, "gpus": 4, **V}], [job])
    assert got == {"g": (("n-1", "n-2"), 6)}
    holder = {"name": "h", "due_s": 50, "tardiness_weight": 1, "times_s": {"V100": {"2": 49}}}
    got, _, _ = place([{"name": "n", "count": 2, "gpus": 4, **V}], [holder, job])
    assert "g" not in got


def test_a_running_job_stays_when_moving_gains_nothing():
    job = {
        "name": "a", "due_s": 5000, "tardiness_weight": 1, "times_s": {"V100": [900]},
        "current": {"nodes": ["n-2"], "gpus": 1, "remaining_s": 900},
    }  # fmt: skip
    got, p, s = place([{"name": "n", "count": 3, "gpus": 1, **V}], [job], iterations=200)
    assert got == {"a": (("n-2",), 1)}
    assert s.choice[0] == p.stay[0]


def test_a_newcomer_takes_free_gpus_before_those_of_a_running_job():
    jobs = [
        {"name": "new", "due_s": 100, "tardiness_weight": 1, "times_s": {"V100": [900]}},
        {
            "name": "old", "due_s": 90000, "tardiness_weight": 1, "times_s": {"V100": [1000]},
            "current": {"nodes": ["n-1"], "gpus": 1, "remaining_s": 900},
        },
    ]  # fmt: skip
    got, _, _ = place([{"name": "n", "count": 2, "gpus": 1, **V}], jobs, iterations=100)
    assert got == {"new": (("n-2",), 1), "old": (("n-1",), 1)}


def test_the_chance_of_a_swap_is_inverse_to_the_weight():
    """Half the most at the mean weight; nothing but the ratio of weights counts."""
    chance = swap_chances(np.array([0.0, 1.0, 2.0, 5.0]), 0.5)
    assert chance == pytest.approx([0.5, 1 / 3, 0.25, 1 / 7])
    assert swap_chances(np.array([0.0, 1e-6, 2e-6, 5e-6]), 0.5) == pytest.approx(chance)
    assert swap_chances(np.zeros(3), 0.5).tolist() == [0.5, 0.5, 0.5]


@pytest.mark.slow
def test_each_job_is_swapped_as_often_as_its_chance_says():
    """The last job cannot be swapped on; a job that moved on is asked again at its new place."""
    rng, chance, tries = np.random.default_rng(4), np.array([0.1, 0.4, 0.25]), 20_000
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(tries):
        order = np.arange(3)
        swap_neighbours(order, chance, rng)
        counts[tuple(order.tolist())] = counts.get(tuple(order.tolist()), 0) + 1
    a, b, _ = chance
    expected = {
        (0, 1, 2): (1 - a) * (1 - b), (0, 2, 1): (1 - a) * b, (1, 0, 2): a * (1 - a), (1, 2, 0): a * a,
    }  # fmt: skip
    assert counts.keys() == expected.keys()
    for order, p in expected.items():
        assert counts[order] == pytest.approx(tries * p, abs=5 * np.sqrt(tries * p * (1 - p)))


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second", "chance"), [(99, 1, 0.5 * 50 / 149), (1, 99, 0.5 * 50 / 51)])
def test_jobs_with_more_weight_are_swapped_less(first, second, chance):
    """One GPU; the more pressing job costs more to run. One random candidate finds that out if it swaps the two."""
    jobs = [
        {"name": "pressing", "due_s": 1000, "tardiness_weight": first, "times_s": {"V100": [900]}},
        {"name": "cheap", "due_s": 2000, "tardiness_weight": second, "times_s": {"V100": [100]}},
    ]
    raw = {"nodes": [{"name": "n", "gpus": 1, **V}], "jobs": jobs, "postponement_penalty": 0}
    p = PlacementProblem.of(PlaceFile.model_validate(raw))
    rng, tries = np.random.default_rng(7), 2000
    swapped = sum(RandomGreedy(iterations=2).solve(p, rng).best.choice[0] == POSTPONED for _ in range(tries))
    assert swapped == pytest.approx(tries * chance, abs=5 * np.sqrt(tries * chance * (1 - chance)))


def test_free_energy_and_no_weights_are_no_trouble():
    jobs = [{"name": f"j{i}", "tardiness_weight": 0, "times_s": {"V100": [100, 60]}} for i in range(3)]
    got, _, _ = place(
        [{"name": "n", "gpus": 2, "gpu_type": "V100", "idle_w": 0, "gpu_w": 0}], jobs, iterations=50,
        electricity={"price_per_kwh": 0},
    )  # fmt: skip
    assert sum(gpus for _, gpus in got.values()) == 2


def test_no_jobs():
    got, _, _ = place([{"name": "n", "gpus": 1, **V}], [])
    assert got == {}
