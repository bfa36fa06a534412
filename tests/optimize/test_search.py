"""When a search stops, what it keeps, and which of equals wins."""

import numpy as np

from commonwatt.optimize import Budget, Incumbent, SearchResult, always, ranked, within


def test_ties_go_to_the_lower_index():
    assert ranked([2, 1, 2, 1]).tolist() == [1, 3, 0, 2]
    assert ranked([1, 1, 0], [5, 4, 9]).tolist() == [2, 1, 0]


def test_a_time_limit_is_by_the_clock_of_the_caller():
    now = [10.0]
    going = within(2.0, lambda: now[0])
    assert going()
    now[0] = 12.0
    assert not going()
    assert within(None, lambda: now[0]) is always


def test_the_first_of_equal_candidates_stays():
    search = Incumbent[str](Budget(10))
    for name, cost in (("a", 3.0), ("b", 2.0), ("c", 2.0), ("d", 4.0)):
        search.offer(name, cost)
    assert search.result() == SearchResult("b", 2.0, 4, ((1, 3.0), (2, 2.0)))


def test_a_search_goes_on_until_budget_time_or_target():
    for budget, stops_at in ((Budget(3), 3), (Budget(9, lambda: False), 1), (Budget(9, reached=-4.0), 4)):
        search = Incumbent[int](budget)
        while search.goes_on():
            search.offer(search.spent, -float(search.spent + 1))
        assert search.spent == stops_at


def test_searches_add_up():
    search = Incumbent[str](Budget(100))
    search.take(SearchResult("a", 5.0, 10, ((1, 9.0), (7, 5.0))))
    search.take(SearchResult("b", 4.0, 20, ((2, 6.0), (8, 4.0))))
    search.take(SearchResult("c", 4.0, 5, ((1, 4.0),)))
    assert search.result() == SearchResult("b", 4.0, 35, ((1, 9.0), (7, 5.0), (18, 4.0)))
    assert search.left == 65


def test_a_search_may_start_from_a_candidate():
    search = Incumbent(Budget(2, reached=1.0), SearchResult("start", 1.0, 50))
    assert not search.goes_on()
    assert search.result() == SearchResult("start", 1.0, 0)


def test_batches_cover_the_budget_and_stop_when_time_is_up():
    assert list(Budget(7).batches(3)) == [(0, 3), (3, 6), (6, 7)]
    assert list(Budget(7, lambda: False).batches(3)) == [(0, 3)]
    assert list(Budget(0).batches(3)) == []


def test_a_cost_that_is_no_number_of_evaluations_is_kept_as_the_first():
    search = Incumbent[str](Budget(2))
    search.offer("impossible", np.inf)
    assert search.best == "impossible"
