"""Small programs whose optimum is known by hand, and every way HiGHS can end."""

import numpy as np
import pytest

from commonwatt.model.errors import SolverError
from commonwatt.optimize import Program


def knapsack(*, whole: bool) -> Program:
    """Worth 5, 4 and 3 for weights 3, 2 and 2; at most 4."""
    program = Program()
    columns = program.columns([-5.0, -4.0, -3.0], high=1.0, whole=whole)
    program.row(columns, [3.0, 2.0, 2.0], -np.inf, 4.0)
    return program


def test_the_optimum_of_a_linear_program_and_its_dual():
    found = knapsack(whole=False).minimise()
    assert found.status == "optimal"
    assert found.x == pytest.approx([2 / 3, 1, 0])
    assert found.bound == pytest.approx(-22 / 3)
    assert found.duals == pytest.approx([-5 / 3])
    assert knapsack(whole=False).minimise(method="ipm").bound == pytest.approx(-22 / 3)


def test_the_optimum_with_whole_numbers():
    found = knapsack(whole=True).minimise()
    assert (found.status, found.x.tolist()) == ("optimal", [0, 1, 1])
    assert found.bound == pytest.approx(-7)
    assert not len(found.duals)


def test_a_block_of_rows_is_the_same_as_its_rows_one_by_one():
    made = np.random.default_rng(0)
    cost, table, least = made.uniform(1, 2, 6), made.uniform(0, 1, (4, 6)), made.uniform(1, 2, 4)
    one, block = Program(), Program()
    for each in cost:
        one.columns(each)
    for values, low in zip(table, least, strict=True):
        one.row(np.arange(6), values, low, np.inf)
    columns = block.columns(cost)
    row, column = np.nonzero(table)
    assert block.rows(row, columns[column], table[row, column], least, np.inf).tolist() == [0, 1, 2, 3]
    assert one.minimise().x.tolist() == block.minimise().x.tolist()
    assert (table @ block.minimise().x >= least - 1e-8).all()


def test_a_program_without_a_feasible_point_says_so():
    for whole in (False, True):
        program = Program()
        program.row(program.columns(1.0, high=1.0, whole=whole), 2.0, 3.0, 3.0)
        found = program.minimise()
        assert (found.status, found.x, found.bound) == ("infeasible", None, np.inf)


@pytest.mark.parametrize(("low", "status"), [(None, "optimal"), (0.0, "optimal"), (1.0, "infeasible")])
def test_a_program_without_columns(low, status):
    program = Program()
    program.columns(np.zeros(0), whole=True)
    if low is not None:
        program.row(np.zeros(0), np.zeros(0), low, 2.0)
    found = program.minimise()
    assert found.status == status
    assert (found.bound, None if found.x is None else found.x.tolist()) == (
        (0.0, []) if status == "optimal" else (np.inf, None)
    )


def test_an_unbounded_program_is_an_error():
    program = Program()
    program.row(program.columns([-1.0, 0.0]), [1.0, -1.0], -np.inf, 1.0)
    with pytest.raises(SolverError, match="HiGHS ended with"):
        program.minimise()


def test_when_time_is_up_the_bound_still_holds():
    made = np.random.default_rng(1)
    program, worth = Program(), made.integers(10, 100, 60).astype(float)
    columns = program.columns(-worth, high=1.0, whole=True)
    for _ in range(60):
        program.row(columns, made.integers(1, 100, 60), -np.inf, 1000.0)
    found = program.minimise(time_limit_s=0.05)
    assert found.status == "time-limit"
    assert found.bound < 0
    assert found.x is None or -worth @ found.x >= found.bound - 1e-6


def test_a_program_whose_presolve_fails_is_solved_without_it(monkeypatch):
    import highspy

    class Failing(highspy.Highs):
        """Ends as HiGHS does on some programs unless presolve is off."""

        def getModelStatus(self):  # noqa: N802 - HiGHS's name
            _, presolve = self.getOptionValue("presolve")
            return super().getModelStatus() if presolve == "off" else highspy.HighsModelStatus.kSolveError

    monkeypatch.setattr(highspy, "Highs", Failing)
    assert knapsack(whole=True).minimise().bound == pytest.approx(-7)
