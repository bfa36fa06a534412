"""A linear or mixed-integer program, column by column and row by row, and its solution with HiGHS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import SolverError

__all__ = ["Program", "Solution"]

_ENDINGS = {
    "kOptimal": "optimal", "kTimeLimit": "time-limit", "kSolutionLimit": "node-limit", "kInfeasible": "infeasible",
    "kUnboundedOrInfeasible": "infeasible",
}  # fmt: skip


@dataclass(frozen=True)
class Solution:
    """What HiGHS returned.

    Attributes
    ----------
    status
        How it ended.
    x
        Value of each column, ``None`` if there is no feasible point or none was found in time.
    bound
        No feasible point costs less: infinite if there is none, minus infinity if nothing is proven.
    duals
        Change of the optimum with each row's bound; empty for programs with integers. Shape [rows].
    """

    status: Literal["optimal", "time-limit", "node-limit", "infeasible"]
    x: Floats | None
    bound: float
    duals: Floats


class Program:
    """Minimise ``cost @ x`` within the bounds of columns and rows."""

    def __init__(self) -> None:
        self._columns: list[Floats] = []  # blocks of cost, low, high, whole: [4, n]
        self._bounds: list[Floats] = []  # blocks of low, high: [2, n]
        self._entries: list[tuple[Ints, Ints, Floats]] = []  # blocks of row, column, value
        self._sizes = [0, 0]

    def columns(
        self, cost: ArrayLike, *, low: ArrayLike = 0.0, high: ArrayLike = np.inf, whole: ArrayLike = False
    ) -> Ints:
        """Add a column for each entry of *cost*, ``low <= x <= high``, integer where *whole*; return their places."""
        block = np.array(np.broadcast_arrays(np.atleast_1d(cost), low, high, whole), dtype=np.float64)
        self._columns.append(block)
        return self._add(0, block.shape[1])

    def row(self, columns: ArrayLike, values: ArrayLike, low: float, high: float) -> int:
        """Require ``low <= values @ x[columns] <= high``; return the row's place."""
        column = np.atleast_1d(np.asarray(columns, dtype=np.int64))
        return int(self.rows(np.zeros(len(column), dtype=np.int64), column, values, low, high)[0])

    def rows(self, row: Ints, column: Ints, value: ArrayLike, low: ArrayLike, high: ArrayLike) -> Ints:
        """Add a row for each entry of *low* and *high*; return their places.

        Parameters
        ----------
        row, column, value
            The coefficients: *row* counts from 0 within the rows added. Shape [E] each.
        """
        bounds = np.array(np.broadcast_arrays(np.atleast_1d(low), high), dtype=np.float64)
        self._entries.append((row + self._sizes[1], column, np.broadcast_to(np.asarray(value, float), column.shape)))
        self._bounds.append(bounds)
        return self._add(1, bounds.shape[1])

    def _add(self, axis: int, count: int) -> Ints:
        first = self._sizes[axis]
        self._sizes[axis] += count
        return np.arange(first, first + count)

    def minimise(
        self, *, time_limit_s: float | None = None, gap: float = 1e-9, tolerance: float = 1e-9,
        method: Literal["choose", "ipm", "centre"] = "choose", most_nodes: int | None = None, relaxed: bool = False,
    ) -> Solution:  # fmt: skip
        """Solve on one thread.

        Parameters
        ----------
        time_limit_s
            Stop after so long with the best point and bound so far. HiGHS reads the clock itself.
        gap
            Relative gap at which a program with integers counts as solved.
        tolerance
            How far a bound of a column, row or reduced cost may be missed.
        method
            ``ipm`` is faster on large programs without integers. ``centre`` ends near the middle of all optima, where
            the others end in a corner; it is exact to about 1e-6, and its duals are not used.
        most_nodes
            Stop after so many nodes of the tree with the best point and bound so far.
        relaxed
            Whether no column has to be integer.

        Raises
        ------
        SolverError
            If the program is unbounded or HiGHS fails.
        """
        import highspy

        if self._sizes[0] == 0:  # HiGHS calls it empty
            low, high = np.hstack([np.zeros((2, 0)), *self._bounds])
            if (low > tolerance).any() or (high < -tolerance).any():
                return Solution("infeasible", None, np.inf, np.zeros(0))
            return Solution("optimal", np.zeros(0), 0.0, np.zeros(self._sizes[1]))
        solver = highspy.Highs()
        for name, value in (
            ("output_flag", False), ("threads", 1), ("random_seed", 0),
            ("solver", "ipm" if method == "centre" else method),
            ("run_crossover", "off" if method == "centre" else "on"),
            ("mip_rel_gap", gap), ("mip_abs_gap", 0.0), ("mip_feasibility_tolerance", tolerance),
            ("primal_feasibility_tolerance", tolerance), ("dual_feasibility_tolerance", tolerance),
            ("time_limit", highspy.kHighsInf if time_limit_s is None else max(time_limit_s, 0.01)),
            ("mip_max_nodes", highspy.kHighsIInf if most_nodes is None else most_nodes),
        ):  # fmt: skip
            solver.setOptionValue(name, value)
        model, is_mixed = self._model(highspy, relaxed=relaxed)
        presolves = ["choose", "off"]  # HiGHS's presolve fails on a few small programs that it solves without
        if method == "centre":
            presolves, tolerance = ["off"], max(tolerance, 1e-7)
            for name in ("primal_feasibility_tolerance", "dual_feasibility_tolerance", "ipm_optimality_tolerance"):
                solver.setOptionValue(name, tolerance)
        for presolve in presolves:
            solver.setOptionValue("presolve", presolve)
            solver.passModel(model)
            solver.run()
            if solver.getModelStatus() != highspy.HighsModelStatus.kSolveError:
                break
        status, info, solution = solver.getModelStatus(), solver.getInfo(), solver.getSolution()
        ending: Any = _ENDINGS.get(status.name)
        if method == "centre" and ending != "optimal":
            return self.minimise(
                time_limit_s=time_limit_s, gap=gap, tolerance=tolerance, most_nodes=most_nodes, relaxed=relaxed
            )
        if ending is None:
            msg = f"HiGHS ended with: {solver.modelStatusToString(status)}"
            raise SolverError(msg)
        if ending == "infeasible":
            return Solution(ending, None, np.inf, np.zeros(0))
        proven = -np.inf if ending in ("time-limit", "node-limit") else float(info.objective_function_value)
        bound = float(info.mip_dual_bound) if is_mixed else proven
        feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        x = np.array(solution.col_value) if feasible else None
        return Solution(ending, x, bound, np.zeros(0) if is_mixed else np.array(solution.row_dual))

    def _model(self, highspy: Any, *, relaxed: bool) -> tuple[Any, bool]:  # noqa: ANN401
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = self._sizes
        cost, low, high, whole = np.hstack([np.zeros((4, 0)), *self._columns])
        model.col_cost_, model.col_lower_, model.col_upper_ = cost, low, high
        model.row_lower_, model.row_upper_ = np.hstack([np.zeros((2, 0)), *self._bounds])
        nothing = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))
        row, column, value = (np.concatenate(part) for part in zip(nothing, *self._entries, strict=True))
        order = np.argsort(row, kind="stable")
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.searchsorted(row[order], np.arange(self._sizes[1] + 1)).astype(np.int32)
        model.a_matrix_.index_, model.a_matrix_.value_ = column[order].astype(np.int32), value[order]
        is_mixed = bool(whole.any()) and not relaxed
        if is_mixed:
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            model.integrality_ = [kinds[int(w)] for w in whole]
        return model, is_mixed
