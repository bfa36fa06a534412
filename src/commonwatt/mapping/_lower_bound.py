"""A certified lower bound: no mapping of the batch can end earlier.

Let B be the system bandwidth, and of job j on sub-accelerator a let ``l`` be the latency, ``x = r / B`` the request
in units of B, ``v = l x`` the volume in cycles of the whole bandwidth, and ``e = l max(0, x - 1)`` the *excess*: by
so much the job takes longer than its latency even if it runs alone.

**Facts.** Take any mapping, of makespan M. By the clock tau of ``decoder``, M is the integral of max(1, X) over tau,
where X is the sum of x over the running jobs. (1) At every moment ``max(1, X) >= 1 + sum of max(0, x - 1)`` over
running jobs: if no x is above 1 that is plain; else X is at least the sum of those that are, which is their number
plus their excesses. Integrated: M is at least tau's length plus E, the sum of e over *all* jobs, wherever they run.
Jobs that request more than there is hold up all others. (2) tau is as long as the latencies of all jobs of one sub-
accelerator together, and as those of any chain of jobs that come one after the other; a single job is a chain. (3)
max(1, X) >= X: M is at least the sum of v over all jobs.

**Weights.** For any weights ``u[a], q[c], w >= 0`` of sub-accelerators, chains and volume that sum to 1, adding up
gives

    M >= sum over jobs of (u[a] + sum of q[c] over its chains) l + (sum of u and q) e + w v,   each at the job's own a,

and so at least the sum over jobs of the least such term over all a. *Every* choice of weights certifies a bound; the
linear program only finds good ones, and its rounding errors cannot make the bound wrong.

**Thresholds.** On a a job takes at least ``p = l max(1, x)``. If M < t, no job is where its p is t or more. So if the
weights' bound over the pairs with p < t is t or more, or some job has no such pair, then M >= t. Bisection over the
values of p finds such a t. The weights' bound over the pairs with p <= t then holds too: it is below the next value
of p, and either M is not, or M uses only such pairs.

**Pigeonhole.** Among any k A + 1 jobs some k + 1 share one of the A sub-accelerators, which is busy for the sum of
the k + 1 least of their shortest times, or longer. The k A + 1 jobs with the longest shortest times are tried for
each k.

**Chains** in the linear program are the longest one by shortest times and the jobs of the longest shortest times.
Every chain also takes at least the sum of its shortest times.

The bound is the largest of all this, less one part in 1e12 for rounding, here and in the evaluator.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from commonwatt.mapping._problem import MappingProblem
from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.errors import SolverError
from commonwatt.optimize import Program, ranked

__all__ = ["Relaxed", "Weights", "lower_bound", "pigeonhole", "relaxed", "shared_out", "simple_bound", "weighted_bound"]


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
    jobs, kinds = latency.shape
    job, kind = np.nonzero(allowed)
    latency, excess, volume = latency[job, kind], excess[job, kind], volume[job, kind]
    program = Program()
    pair = program.columns(np.zeros(len(job)))
    all_excess, longest = program.columns([0.0, 1.0])
    program.rows(job, pair, 1.0, np.ones(jobs), 1.0)
    _limits(program, kind, pair, latency, count.astype(float), all_excess, longest)
    member_chain = np.concatenate([np.zeros(0, dtype=np.int64), *(np.full(len(c), n) for n, c in enumerate(chains))])
    member_job = np.concatenate([np.zeros(0, dtype=np.int64), *chains])
    member, at = np.nonzero(member_job[:, None] == job)
    _limits(program, member_chain[member], pair[at], latency[at], np.ones(len(chains)), all_excess, longest)
    program.row(np.append(pair, all_excess), np.append(excess, -1.0), -np.inf, 0.0)
    program.row(np.append(pair, longest), np.append(volume, -1.0), -np.inf, 0.0)
    even = 1.0 / float(count.sum() + 1)  # weights as good as any, only weaker
    anyhow = Weights(np.full(kinds, even), np.zeros(len(chains)), even)
    try:
        solution = program.minimise(tolerance=1e-7)
    except SolverError:
        solution = None
    if solution is None or solution.x is None:
        return Relaxed(anyhow, allowed / np.maximum(1, allowed.sum(axis=1, keepdims=True)))
    shares = np.zeros((jobs, kinds))
    shares[job, kind] = solution.x[pair]
    duals = np.maximum(0.0, -solution.duals[jobs:])
    load, chain, whole = duals[:kinds], duals[kinds:-2], float(duals[-1])
    total = float(load @ count + chain.sum() + whole)
    if not total > 0:  # next to one job all others count for nothing
        return Relaxed(anyhow, shares)
    return Relaxed(Weights(load / total, chain / total, whole / total), shares)


def _limits(
    program: Program, row: Ints, pair: Ints, time: Floats, times: Floats, all_excess: int, longest: int
) -> None:
    """Add rows: the *time* of the pairs of each, plus *times* all excess, is at most *times* the longest."""
    rows = np.arange(len(times))
    each = np.ones(len(times), dtype=np.int64)
    program.rows(
        np.concatenate([row, rows, rows]), np.concatenate([pair, all_excess * each, longest * each]),
        np.concatenate([time, times, -times]), np.full(len(times), -np.inf), 0.0,
    )  # fmt: skip


ROUNDING = 1e-12
SINGLE_JOBS = 20
"""Jobs that are looked at on their own."""


class _Kinds(NamedTuple):
    """The problem with equal sub-accelerators as one kind, requests in units of the system bandwidth."""

    latency: Floats  # [J, G]
    request: Floats  # [J, G]
    copies: Ints  # [G]
    kind: Ints  # [A]
    chains: list[Ints]

    @classmethod
    def of(cls, problem: MappingProblem) -> _Kinds:
        table = np.vstack([problem.latency, problem.bandwidth])
        kinds, kind, count = np.unique(table, axis=1, return_inverse=True, return_counts=True)
        latency, request = kinds[: len(problem)], kinds[len(problem) :] / problem.system_bandwidth
        return cls(latency, request, count, kind.ravel(), _chains(problem))

    def solved(self, longest: float) -> tuple[float, Relaxed]:
        """Return the weights' bound over the pairs that take no longer than *longest* alone, and the solution."""
        allowed = self.alone <= longest
        scaled = np.where(allowed, self.latency, 0.0) / longest
        excess = scaled * np.maximum(0.0, self.request - 1.0)
        relaxation = relaxed(scaled, excess, scaled * self.request, self.copies, allowed, self.chains)
        bound = weighted_bound(self.latency, self.request, allowed, self.copies, self.chains, relaxation.weights)
        return bound, relaxation

    @property
    def alone(self) -> Floats:
        return self.latency * np.maximum(1.0, self.request)


def lower_bound(problem: MappingProblem) -> float:
    """Return the bound, in cycles."""
    kinds, shortest = _Kinds.of(problem), problem.alone.min(axis=1)
    values = np.unique(kinds.alone[np.isfinite(kinds.alone)])
    longest = float(problem.goal.precedence.earliest(shortest).max())
    low = _threshold(kinds, values, int(np.searchsorted(values, shortest.max())))
    bound = kinds.solved(values[low])[0]
    return max(float(values[low]), bound, pigeonhole(problem), longest) * (1 - ROUNDING)


def _threshold(kinds: _Kinds, values: Floats, low: int) -> int:
    """Return the first k, from *low* on, for which the bound over the pairs up to values[k] is below the next value.

    The bound falls with k. What all pairs give is a bound for every k, which makes for a good start; the rest is
    bisection by growing steps, as what is looked for is near.
    """

    def passed(k: int) -> bool:
        return bool(kinds.solved(values[k])[0] * (1 - ROUNDING) >= values[k + 1])

    high, step = len(values) - 1, 1
    whole = kinds.solved(values[high])[0] * (1 - ROUNDING)
    low = max(low, min(high, int(np.searchsorted(values, whole, side="right")) - 1))
    while low < high:
        middle = min(low + step - 1, high - 1)
        if passed(middle):
            low, step = middle + 1, 2 * step
        else:
            high, step = middle, max(1, (middle - low) // 2)
    return low


def shared_out(problem: MappingProblem, longest: float) -> Floats:
    """Return the part of each job that the linear program puts on each sub-accelerator. Shape [J, A].

    It only sees pairs that take no longer than *longest* alone, which must leave every job a place.
    """
    kinds = _Kinds.of(problem)
    shares = kinds.solved(longest)[1].shares / kinds.copies
    return np.ascontiguousarray(shares[:, kinds.kind])


def _chains(problem: MappingProblem) -> list[Ints]:
    """Return the longest chain of jobs, if any come after others, and the longest jobs, each by itself."""
    shortest = problem.alone.min(axis=1)
    single = ranked(-shortest)[:SINGLE_JOBS]
    chains = [single[k : k + 1] for k in range(len(single))]
    graph = problem.goal.precedence
    if graph:
        upward = graph.upward(shortest)
        chain = [int(np.argmax(upward))]
        while later := graph.after(chain[-1]):
            chain.append(max(later, key=lambda j: upward[j]))
        chains.append(np.array(chain))
    return chains


def weighted_bound(
    latency: Floats, request: Floats, allowed: Bools, count: Ints, chains: list[Ints], weights: Weights
) -> float:
    """Return the bound that weights certify over the *allowed* pairs, whatever sum the weights have.

    *latency* and *request*, in units of the system bandwidth, are those of each kind of sub-accelerator ([J, G]), of
    which there are *count* ([G]).
    """
    own = np.zeros(len(latency))
    for chain, weight in zip(chains, weights.chain, strict=True):
        own[chain] += weight
    whole = float(weights.load @ count + weights.chain.sum())
    each = weights.load + own[:, None] + whole * np.maximum(0.0, request - 1.0) + weights.volume * request
    terms = np.where(allowed, np.where(allowed, latency, 0.0) * each, np.inf)
    return float(terms.min(axis=1).sum() / (whole + weights.volume))


def pigeonhole(problem: MappingProblem) -> float:
    """Return the bound of jobs that must share a sub-accelerator."""
    longest = np.sort(problem.alone.min(axis=1))[::-1]
    best = float(longest[0])
    for k in range(1, (len(longest) - 1) // problem.accelerators + 1):
        among = longest[: k * problem.accelerators + 1]
        best = max(best, float(among[-(k + 1) :].sum()))
    return best


def simple_bound(problem: MappingProblem) -> float:
    """Return the bound published with the reference data: longest job, mean load, volume; each at its best."""
    shortest = problem.latency.min(axis=1)
    volume = problem.volume.min(axis=1).sum() / problem.system_bandwidth
    return float(max(shortest.max(), shortest.sum() / problem.accelerators, volume))
