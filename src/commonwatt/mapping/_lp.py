"""The linear program behind the lower bound, solved by HiGHS."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints

__all__ = ["Relaxed", "Weights", "relaxed"]


class Weights(NamedTuple):
    """Weights of the inequalities of ``lower_bound``; ``load @ count + chain.sum() + volume`` is 1."""

    load: Floats  # [G], of each kind of sub-accelerator
    chain: Floats  # [C]
    volume: float


class Relaxed(NamedTuple):
    """A solution of the program and of its dual."""

    weights: Weights
    shares: Floats  # [J, G], of each job on each kind of sub-accelerator; rows sum to 1


def relaxed(
    latency: Floats, excess: Floats, volume: Floats, count: Ints, allowed: Bools, chains: list[Ints]
) -> Relaxed:
    """Share out jobs over the *allowed* pairs ([J, G]), and return weights for the inequalities of ``lower_bound``.

    The weights are the dual solution of: minimise z, with every job shared out over its allowed kinds of
    sub-accelerator and E the sum of all *excess*; no kind's *latency* + *count* E above *count* z, no chain's
    latency + E above z, no more *volume* than z.
    """
    import highspy

    jobs, kinds = latency.shape
    job, kind = np.nonzero(allowed)
    pairs, rows = len(job), jobs + kinds + len(chains) + 2
    member_chain = np.concatenate([np.zeros(0, dtype=np.int64), *(np.full(len(c), n) for n, c in enumerate(chains))])
    member_job = np.concatenate([np.zeros(0, dtype=np.int64), *chains])
    of_chain, pair = np.nonzero(member_job[:, None] == job)
    excess_row, volume_row = rows - 2, rows - 1
    bounded = np.concatenate([jobs + np.arange(kinds), jobs + kinds + np.arange(len(chains))])  # rows with E and z
    times = np.concatenate([count, np.ones(len(chains))])
    column = np.concatenate([np.tile(np.arange(pairs), 4), pair, np.full(len(bounded) + 1, pairs),
                             np.full(len(bounded) + 1, pairs + 1)])  # fmt: skip
    row = np.concatenate([
        job, jobs + kind, np.full(pairs, excess_row), np.full(pairs, volume_row), jobs + kinds + member_chain[of_chain],
        bounded, [excess_row], bounded, [volume_row],
    ])  # fmt: skip
    latency, excess, volume = latency[job, kind], excess[job, kind], volume[job, kind]
    value = np.concatenate([np.ones(pairs), latency, excess, volume, latency[pair], times, [-1.0], -times, [-1.0]])
    order = np.lexsort((row, column))
    model: Any = highspy.HighsLp()
    model.num_col_, model.num_row_ = pairs + 2, rows
    model.col_cost_ = np.append(np.zeros(pairs + 1), 1.0)
    model.col_lower_, model.col_upper_ = np.zeros(pairs + 2), np.full(pairs + 2, highspy.kHighsInf)
    model.row_lower_ = np.append(np.ones(jobs), np.full(rows - jobs, -highspy.kHighsInf))
    model.row_upper_ = np.append(np.ones(jobs), np.zeros(rows - jobs))
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.searchsorted(column[order], np.arange(pairs + 3)).astype(np.int32)
    model.a_matrix_.index_, model.a_matrix_.value_ = row[order].astype(np.int32), value[order].astype(np.float64)
    solver: Any = highspy.Highs()
    for name, setting in (("output_flag", False), ("threads", 1), ("random_seed", 0)):
        solver.setOptionValue(name, setting)
    solver.passModel(model)
    solver.run()
    even = 1.0 / float(count.sum() + 1)  # weights as good as any, only weaker
    anyhow = Weights(np.full(kinds, even), np.zeros(len(chains)), even)
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return Relaxed(anyhow, allowed / np.maximum(1, allowed.sum(axis=1, keepdims=True)))
    shares = np.zeros((jobs, kinds))
    shares[job, kind] = np.array(solver.getSolution().col_value)[:pairs]
    duals = np.maximum(0.0, -np.array(solver.getSolution().row_dual)[jobs:])
    load, chain, whole = duals[:kinds], duals[kinds:-2], float(duals[-1])
    total = float(load @ count + chain.sum() + whole)
    if not total > 0:  # next to one job all others count for nothing
        return Relaxed(anyhow, shares)
    return Relaxed(Weights(load / total, chain / total, whole / total), shares)
