"""A linear or mixed-integer program, row by row, and its solution with HiGHS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.errors import SolverError

__all__ = ["Program", "Solution"]


@dataclass(frozen=True)
class Solution:
    """What HiGHS answered; ``x`` is ``None`` if it found nothing in its time."""

    x: Floats | None
    bound: float | None
    optimal: bool


@dataclass
class Program:
    """Minimise ``cost @ x`` over ``low <= x <= high`` and the rows added; columns in ``whole`` are integers."""

    cost: Floats
    high: Floats
    whole: Bools
    low: Floats = field(default_factory=lambda: np.zeros(0))
    _at: list[Ints] = field(default_factory=list)
    _values: list[Floats] = field(default_factory=list)
    _lower: list[float] = field(default_factory=list)
    _upper: list[float] = field(default_factory=list)

    def add(self, columns: Sequence[int] | Ints, values: Sequence[float] | Floats, lower: float, upper: float) -> None:
        """Require ``lower <= sum(values * x[columns]) <= upper``."""
        self._at.append(np.asarray(columns, dtype=np.int64))
        self._values.append(np.asarray(values, dtype=float))
        self._lower.append(lower)
        self._upper.append(upper)

    def minimise(self, *, time_limit_s: float | None = None, gap: float = 1e-9) -> Solution:
        """Solve on one thread; raises ``SolverError`` if the program has no solution or HiGHS fails."""
        import highspy

        solver = highspy.Highs()
        for name, value in (
            ("output_flag", False),
            ("threads", 1),
            ("random_seed", 0),
            ("mip_rel_gap", gap),
            ("mip_abs_gap", 0.0),
            ("mip_feasibility_tolerance", 1e-9),
            ("primal_feasibility_tolerance", 1e-9),
            ("dual_feasibility_tolerance", 1e-9),
            ("time_limit", time_limit_s if time_limit_s is not None else highspy.kHighsInf),
        ):
            solver.setOptionValue(name, value)
        solver.passModel(self._model(highspy))
        solver.run()
        status, info = solver.getModelStatus(), solver.getInfo()
        whole = bool(self.whole.any())
        if status == highspy.HighsModelStatus.kOptimal:
            least = info.mip_dual_bound if whole else info.objective_function_value
            return Solution(np.array(solver.getSolution().col_value), float(least), optimal=True)
        if status != highspy.HighsModelStatus.kTimeLimit:
            msg = f"HiGHS ended with: {solver.modelStatusToString(status)}"
            raise SolverError(msg)
        found = whole and info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        bound = info.mip_dual_bound if whole and np.isfinite(info.mip_dual_bound) else None
        return Solution(np.array(solver.getSolution().col_value) if found else None, bound, optimal=False)

    def least(self) -> float:
        """Optimum of a program without integers, by the interior point method, which is faster on large ones."""
        import highspy

        solver = highspy.Highs()
        solver.setOptionValue("output_flag", False)  # noqa: FBT003
        solver.setOptionValue("threads", 1)
        solver.setOptionValue("solver", "ipm")
        solver.passModel(self._model(highspy))
        solver.run()
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            msg = f"HiGHS ended with: {solver.modelStatusToString(solver.getModelStatus())}"
            raise SolverError(msg)
        return float(solver.getInfo().objective_function_value)

    def _model(self, highspy: Any) -> Any:  # noqa: ANN401
        model = highspy.HighsLp()
        columns, rows = len(self.cost), len(self._lower)
        model.num_col_, model.num_row_ = columns, rows
        model.col_cost_ = self.cost
        model.col_lower_ = self.low if len(self.low) else np.zeros(columns)
        model.col_upper_ = self.high
        model.row_lower_ = np.array(self._lower)
        model.row_upper_ = np.array(self._upper)
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.concatenate(([0], np.cumsum([len(c) for c in self._at]))).astype(np.int32)
        model.a_matrix_.index_ = np.concatenate(self._at or [np.zeros(0, dtype=np.int64)]).astype(np.int32)
        model.a_matrix_.value_ = np.concatenate(self._values or [np.zeros(0)])
        if self.whole.any():
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            model.integrality_ = [kinds[int(w)] for w in self.whole]
        return model
