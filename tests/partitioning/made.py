"""Markets for tests, and an oracle that shares no code with ours."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

from commonwatt.partitioning._market import Market
from commonwatt.partitioning._scaling_laws import Amdahl, TabulatedLaw, UniversalScalability


def random_market(rng, n, c, kind=""):
    """Letters of *kind*: w weights over six orders, z useless core clusters, l linear, m F from 0 to 1, e alike."""
    weights = 10 ** rng.uniform(-3, 3, n) if "w" in kind else rng.uniform(0.5, 5, n)
    rate = np.exp(rng.normal(0, 1, (n, c)))
    if "z" in kind:
        rate *= rng.random((n, c)) < 0.5
        rate[np.arange(n), rng.integers(0, c, n)] = 1.0
    f = rng.uniform(0.3, 0.999, (n, c))
    if "l" in kind:
        f[:] = 1.0
    if "m" in kind:
        f = rng.choice([0, 0.01, 0.5, 0.9, 0.99, 0.99999, 1], (n, c))
    if "e" in kind:
        rate[:], f[:] = rate[0], f[0]
    return Market.make(rng.integers(1, 65, c), weights, rate, f)


@st.composite
def markets(draw, largest=6):
    n, c = draw(st.integers(1, largest)), draw(st.integers(1, largest))
    fractions = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.0, 1.0))
    rates = st.one_of(st.just(0.0), st.floats(0.01, 100.0), st.floats(0.5, 2.0))
    rate = np.array([[draw(rates) for _ in range(c)] for _ in range(n)])
    for i in range(n):
        if not rate[i].any():
            rate[i, draw(st.integers(0, c - 1))] = 1.0
    f = [[draw(fractions) for _ in range(c)] for _ in range(n)]
    weights = [10 ** draw(st.floats(-3, 3)) for _ in range(n)]
    return Market.make([draw(st.integers(1, 64)) for _ in range(c)], weights, rate, f)


def fractions(market):
    """F of each tenant on each core cluster, from the curves of a market under Amdahl's law."""
    return 1.0 / (1.0 + market.curves.linear[:, :, 0])


def amdahl(rate, f, shares):
    """Speedups by eq. (3.2), written out."""
    below = shares * (1 - f) + f
    return np.divide(rate * shares, below, out=np.zeros(np.broadcast_shapes(below.shape, rate.shape)), where=below > 0)


def best_by_scipy(market, prices, i, start):
    """Utility of the best bundle tenant *i* can buy, by a general solver over parts of its budget."""
    k, f, b = market.rate[i], fractions(market)[i], market.budgets[i]
    on = (k > 0) & (prices > 0)
    k, f, p = k[on], f[on], prices[on]

    def worth(part):
        x = np.maximum(part, 0) * b / p
        return float((k * x / (x * (1 - f) + f)).sum())

    def slope(part):
        x = np.maximum(part, 0) * b / p
        return k * f / (x * (1 - f) + f) ** 2 * b / p

    scale = max(worth(np.full(len(k), 1 / len(k))), 1e-12)
    best = 0.0
    for first in (start[on] / start[on].sum(), np.full(len(k), 1 / len(k))):
        done = minimize(
            lambda y: -worth(y) / scale, first, jac=lambda y: -slope(y) / scale, method="SLSQP",
            bounds=[(0, 1)] * len(k), options={"ftol": 1e-14, "maxiter": 500},
            constraints={"type": "ineq", "fun": lambda y: 1 - y.sum(), "jac": lambda y: -np.ones(len(y))},
        )  # fmt: skip
        part = np.maximum(done.x, 0)
        best = max(best, worth(part / max(1.0, part.sum())))
    return best


def eisenberg_gale(market):
    """Prices of a linear market by its convex program, in the logarithms of prices, with scipy."""
    k, b, pes = market.rate, market.budgets, market.pe_count
    n, c = k.shape
    logs = np.log(np.where(k > 0, k, 1e-300))
    i, j = np.nonzero(k > 0)
    rows = np.zeros((len(i), c + n))
    rows[np.arange(len(i)), j] = 1
    rows[np.arange(len(i)), c + i] = 1  # q_c + v_i >= log k_ic

    def value(z):
        return float(pes @ np.exp(z[:c]) + b @ z[c:])

    start_q = np.log(np.full(c, 1 / pes.sum()))
    start = np.concatenate([start_q, (logs - start_q).max(axis=1) + 0.1])
    done = minimize(
        value, start, jac=lambda z: np.concatenate([pes * np.exp(z[:c]), b]), method="SLSQP",
        constraints={"type": "ineq", "fun": lambda z: rows @ z - logs[i, j], "jac": lambda z: rows},
        options={"ftol": 1e-15, "maxiter": 2000},
    )  # fmt: skip
    return np.exp(done.x[:c])


def random_law(rng, kinds):
    """Letters of *kinds*: a Amdahl, l linear, u USL, t table (some with dents and peaks)."""
    kind = rng.choice(list(kinds))
    if kind in "al":
        return Amdahl(1.0 if kind == "l" else float(rng.choice([0.0, 0.5, 0.9, 0.99, rng.uniform()])))
    if kind == "u":
        return UniversalScalability(float(rng.uniform(0, 0.6)), float(rng.choice([0.0, rng.uniform(0, 0.2)])))
    pes = np.array([2.0, 4.0, 8.0, 16.0][: rng.integers(1, 5)])
    steps = rng.uniform(-0.3, 1.2, len(pes)) * np.diff(np.concatenate([[1.0], pes]))
    return TabulatedLaw.fit(pes, np.maximum(1.0 + np.cumsum(steps), 0.1))


def random_laws(rng, n, c, kinds, *, wide=False, useless=0.0, honest=False):
    """Return a market of random laws, and the laws; *wide*: weights over six orders."""
    weights = 10 ** rng.uniform(-3, 3, n) if wide else rng.uniform(0.5, 5, n)
    rate = np.exp(rng.normal(0, 1, (n, c))) * (rng.random((n, c)) >= useless)
    rate[np.arange(n), rng.integers(0, c, n)] = 1.0
    laws = [[random_law(rng, kinds) for _ in range(c)] for _ in range(n)]
    market = Market.make(rng.integers(1, 65, c), weights, rate, np.ones((n, c)))
    return market.under(laws, linear_below_one=honest), laws


def best_by_program(market, laws, prices, i, *, honest=True, grid=400):
    """Utility of the best bundle tenant *i* can buy, by a linear program over the points where its laws are known.

    A table is known at its points, another law at whole PEs and on a grid between (*honest*: from one PE on). The
    tenant takes turns between points; nothing of ours is used but the laws' own ``speedup``.
    """
    worth, cost, of = [], [], []
    for c, law in enumerate(laws[i]):
        k, pes = market.rate[i, c], market.pe_count[c]
        if k == 0:
            continue
        if isinstance(law, TabulatedLaw):
            points = law.threads
        else:
            first = 1.0 if honest or law.name == "usl" else 1e-4
            points = np.unique(np.concatenate([np.geomspace(first, max(2 * pes, 2.0), grid), [1.0]]))
            points = np.unique(np.concatenate([points, np.arange(1.0, 2 * pes)]))
        worth += [k * law.speedup(float(x)) for x in points]
        cost += [prices[c] * x for x in points]
        of += [c] * len(points)
    rows = np.zeros((len(market.pe_count) + 1, len(worth)))
    rows[np.array(of), np.arange(len(of))] = 1.0
    rows[-1] = np.array(cost) / market.budgets[i]
    done = linprog(-np.array(worth), A_ub=rows, b_ub=np.ones(len(rows)), bounds=(0, 1), method="highs")
    return -done.fun
