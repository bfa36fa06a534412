"""Multipliers for the lower bound, from a linear program solved by HiGHS."""

from __future__ import annotations

from typing import Any

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints

__all__ = ["multipliers"]


def multipliers(load: Floats, volume: Floats, count: Ints, allowed: Bools) -> tuple[Floats, float]:
    """Return a weight for the load of each kind of sub-accelerator and one for the volume, which sum to 1.

    They are the dual solution of: minimise z, with every job shared out over its *allowed* kinds ([J, G]),
    no kind's *load* above z times its *count*, and no more *volume* than z.
    """
    import highspy

    jobs, kinds = load.shape
    job, kind = np.nonzero(allowed)
    columns, rows = len(job) + 1, jobs + kinds + 1
    model: Any = highspy.HighsLp()
    model.num_col_, model.num_row_ = columns, rows
    model.col_cost_ = np.append(np.zeros(columns - 1), 1.0)
    model.col_lower_, model.col_upper_ = np.zeros(columns), np.full(columns, highspy.kHighsInf)
    model.row_lower_ = np.append(np.ones(jobs), np.full(kinds + 1, -highspy.kHighsInf))
    model.row_upper_ = np.append(np.ones(jobs), np.zeros(kinds + 1))
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    index = np.stack([job, jobs + kind, np.full(len(job), rows - 1)], axis=1).ravel()
    value = np.stack([np.ones(len(job)), load[job, kind], volume[job, kind]], axis=1).ravel()
    model.a_matrix_.start_ = np.append(3 * np.arange(columns), 3 * len(job) + kinds + 1).astype(np.int32)
    model.a_matrix_.index_ = np.append(index, np.arange(jobs, rows)).astype(np.int32)
    model.a_matrix_.value_ = np.append(value, np.append(-count, -1.0))
    solver: Any = highspy.Highs()
    for name, setting in (("output_flag", False), ("threads", 1), ("random_seed", 0)):
        solver.setOptionValue(name, setting)
    solver.passModel(model)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return np.full(kinds, 1.0 / (count.sum() + 1)), 1.0 / float(count.sum() + 1)  # as good as any, only weaker
    duals = np.maximum(0.0, -np.array(solver.getSolution().row_dual)[jobs:])
    whole = float(duals[:-1] @ count + duals[-1])
    return duals[:-1] / whole, float(duals[-1]) / whole
