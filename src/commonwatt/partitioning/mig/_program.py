"""The mixed-integer program over layouts: how many GPUs of each group take each choice, and whatever is added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from commonwatt.model.arrays import Floats
from commonwatt.model.errors import SolverError
from commonwatt.partitioning.mig._problem import MigProblem

__all__ = ["LayoutProgram", "Solved"]


@dataclass(frozen=True)
class Solved:
    """What HiGHS found; ``x`` is ``None`` if nothing is feasible or nothing was found in time."""

    x: Floats | None
    bound: float
    optimal: bool


@dataclass
class LayoutProgram:
    """Maximise ``gain @ x``: the first columns are choices of layouts, all GPUs taking one each."""

    problem: MigProblem
    gain: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    rows: list[tuple[list[int], list[float], float, float]] = field(default_factory=list)
    counts: list[list[int]] = field(default_factory=list)  # of each choice column, by class

    def __post_init__(self) -> None:
        for group in self.problem.groups:
            columns = [
                self.column(-self.problem.drain_penalty * choice.drained, 0, len(group.members), whole=True)
                for choice in group.choices
            ]
            self.counts += [choice.counts.tolist() for choice in group.choices]
            self.row(columns, [1.0] * len(columns), len(group.members), len(group.members))

    def column(self, gain: float, low: float, high: float, *, whole: bool = False) -> int:
        """Add a column and return its place."""
        for values, value in ((self.gain, gain), (self.low, low), (self.high, high)):
            values.append(float(value))
        self.whole.append(whole)
        return len(self.gain) - 1

    def row(self, columns: Sequence[int], values: Sequence[float], low: float, high: float) -> None:
        """Require ``low <= values @ x[columns] <= high``."""
        self.rows.append((list(columns), [float(v) for v in values], float(low), float(high)))

    def supply(self, prices: Floats) -> tuple[list[int], list[float]]:
        """Columns and values that add up to ``prices @ totals``, the worth of all instances."""
        values = np.array(self.counts, dtype=float) @ prices
        return list(range(len(self.counts))), values.tolist()

    def picked(self, x: Floats) -> list[list[int]]:
        """Read how many GPUs of each group take each choice."""
        numbers = np.rint(x[: len(self.counts)]).astype(int).tolist()
        found = []
        for group in self.problem.groups:
            found.append(numbers[: len(group.choices)])
            numbers = numbers[len(group.choices) :]
        return found

    def solve(self, time_limit_s: float | None = None) -> Solved:
        """Solve on one thread; raises ``SolverError`` if HiGHS fails."""
        import highspy

        solver = highspy.Highs()
        for name, value in (
            ("output_flag", False), ("threads", 1), ("random_seed", 0), ("mip_rel_gap", 1e-10), ("mip_abs_gap", 1e-10),
            ("mip_feasibility_tolerance", 1e-9), ("primal_feasibility_tolerance", 1e-9),
            ("time_limit", highspy.kHighsInf if time_limit_s is None else max(time_limit_s, 0.01)),
        ):  # fmt: skip
            solver.setOptionValue(name, value)
        solver.passModel(self._model(highspy))
        solver.run()
        status, info = solver.getModelStatus(), solver.getInfo()
        found = highspy.HighsModelStatus
        if status in (found.kInfeasible, found.kUnboundedOrInfeasible):
            return Solved(None, -np.inf, optimal=True)
        if status not in (found.kOptimal, found.kTimeLimit):
            msg = f"HiGHS ended with: {solver.modelStatusToString(status)}"
            raise SolverError(msg)
        feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        x = np.array(solver.getSolution().col_value) if feasible else None
        return Solved(x, -float(info.mip_dual_bound), optimal=status == found.kOptimal)

    def _model(self, highspy: Any) -> Any:  # noqa: ANN401
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.gain), len(self.rows)
        lp.col_cost_ = -np.array(self.gain)
        lp.col_lower_, lp.col_upper_ = np.array(self.low), np.array(self.high)
        lp.row_lower_ = np.array([row[2] for row in self.rows])
        lp.row_upper_ = np.array([row[3] for row in self.rows])
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0] + [len(row[0]) for row in self.rows]).astype(np.int32)
        lp.a_matrix_.index_ = np.concatenate([row[0] for row in self.rows]).astype(np.int32)
        lp.a_matrix_.value_ = np.concatenate([row[1] for row in self.rows])
        kind = highspy.HighsVarType
        lp.integrality_ = [kind.kInteger if w else kind.kContinuous for w in self.whole]
        return lp
