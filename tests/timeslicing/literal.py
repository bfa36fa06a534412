"""Algorithm 1 as printed, unit by unit, and problems to hold against it."""

from __future__ import annotations

from fractions import Fraction
from math import floor

from hypothesis import strategies as st

from commonwatt.timeslicing._policies import QuantumProblem


def literal(quantum, weights, costs, demands, guarantee):
    """Slices by the loop of lines 2 to 9; *costs* are powers, or ones to even out time."""
    slices = [min(g, d) for g, d in zip(guarantee, demands, strict=True)]
    energy = [s * p / w for s, p, w in zip(slices, costs, weights, strict=True)]
    remain = quantum - sum(slices)
    while remain > 0 and any(s < d for s, d in zip(slices, demands, strict=True)):
        k = min((i for i in range(len(slices)) if slices[i] < demands[i]), key=lambda i: (energy[i], i))
        slices[k] += 1
        energy[k] = slices[k] * costs[k] / weights[k]
        remain -= 1
    return slices


def shares(amounts, phi=1.0):
    """Parts of *amounts* in their sum, times phi, of numbers taken as the decimals they are written as."""
    exact = [Fraction(str(a)) for a in amounts]
    return [a * Fraction(str(phi)) / sum(exact) for a in exact]


def line_1(quantum, phi, weights):
    return [floor(share * quantum) for share in shares(weights, phi)]


tidy = st.sampled_from([1, 2, 3, 4, 8, 0.5, 1.5])
any_positive = st.floats(1e-3, 1e3).map(lambda x: float(f"{x:.6g}"))


@st.composite
def problems(draw, numbers=None, backlogged=False, most=8, longest=300):
    n = draw(st.integers(1, most))
    kind = numbers if numbers is not None else draw(st.sampled_from([tidy, any_positive]))
    several = st.lists(kind, min_size=n, max_size=n)
    quantum = draw(st.integers(1, longest))
    demand = st.none() if backlogged else st.none() | st.integers(0, quantum)
    return QuantumProblem.make(quantum, draw(several), draw(several), draw(st.lists(demand, min_size=n, max_size=n)))


phis = st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 0.7, 0.9, 1.0]) | st.floats(0, 1).map(lambda x: round(x, 4))
