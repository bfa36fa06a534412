"""The parallel fraction and scaling laws: exact where the law holds, honest where it does not."""

import csv

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.model.errors import InputError
from commonwatt.partitioning._scaling_laws import (
    Amdahl,
    TabulatedLaw,
    UniversalScalability,
    bootstrap,
    choose_law,
    fit_all,
    from_counters,
    from_karp_flatt,
    karp_flatt,
    least_squares,
)
from tests.partitioning.test_mig_layouts import market_data

THREADS = np.array([2.0, 3.0, 4.0, 8.0, 16.0])


@given(st.floats(0, 1))
def test_a_program_that_follows_amdahl_shows_its_fraction(fraction):
    speedups = np.array([Amdahl(fraction).speedup(n) for n in THREADS])
    for estimate in (from_karp_flatt(speedups, THREADS), least_squares(speedups, THREADS)):
        assert estimate.fraction == pytest.approx(fraction, abs=1e-9)
        assert estimate.standard_error == pytest.approx(0, abs=1e-7)
        assert estimate.misfit == pytest.approx(0, abs=1e-6)


@given(st.floats(0, 1), st.integers(2, 32))
def test_counters_of_a_program_that_follows_amdahl(fraction, p):
    """A cycle alone does one part of the work, a cycle of all threads P: 1 - F against F / P."""
    cycles = [0.0] * p
    cycles[0], cycles[-1] = 1e6 * (1 - fraction), 1e6 * fraction
    estimate = from_counters(cycles, speedup=1 / (1 - fraction + fraction / p))
    assert estimate.fraction == pytest.approx(fraction, abs=1e-12)
    assert estimate.misfit == pytest.approx(0, abs=1e-9)
    assert estimate.standard_error < 2e-3


def test_eq_4_1_and_4_3_by_hand():
    assert karp_flatt(np.array([2.0]), np.array([4.0])) == pytest.approx([2 / 3])
    # half of the cycles with one thread, half with two: s = 1 / (1/2 + 1/4), F = 2 (1 - 3/4)
    assert from_counters([50, 50]).fraction == pytest.approx(0.5)
    assert from_karp_flatt(np.array([2.0]), np.array([4.0])).standard_error is None


def test_slower_with_threads_and_faster_than_ideal_are_clipped_and_said():
    for speedup, fraction in ((0.8, 0.0), (2.5, 1.0)):
        estimate = least_squares(np.array([speedup]), np.array([2.0]))
        assert (estimate.fraction, estimate.clipped) == (fraction, True)
        assert estimate.misfit > 0.1


def test_standard_errors_cover_the_truth():
    rng, hits = np.random.default_rng(1), 0
    for _ in range(300):
        noisy = np.array([Amdahl(0.9).speedup(n) for n in THREADS]) * (1 + 0.02 * rng.standard_normal(len(THREADS)))
        estimate = least_squares(noisy, THREADS)
        hits += abs(estimate.fraction - 0.9) < 2.78 * estimate.standard_error  # Student's t, 4 degrees of freedom
    assert 0.88 < hits / 300 < 0.99


@pytest.mark.slow
def test_the_bootstrap_grows_with_the_noise_and_is_repeatable():
    def shaken(noise):
        rng = np.random.default_rng(2)
        times = [(1 / Amdahl(0.8).speedup(n)) * (1 + noise * rng.standard_normal(9)) for n in (1, 2, 4)]
        return bootstrap(times, [1, 2, 4], np.random.default_rng(0))

    assert shaken(0.0) == pytest.approx(0, abs=1e-12)
    assert shaken(0.01) < shaken(0.05)
    assert shaken(0.01) == shaken(0.01)


@given(st.floats(0, 0.5), st.floats(0, 0.05))
def test_the_universal_law_is_found(contention, coherence):
    law = UniversalScalability(contention, coherence)
    found = UniversalScalability.fit(THREADS, np.array([law.speedup(n) for n in THREADS]))
    assert [found.speedup(n) for n in THREADS] == pytest.approx([law.speedup(n) for n in THREADS], rel=1e-6)


def test_the_law_that_made_the_runs_is_chosen():
    noise = 1 + 0.002 * np.random.default_rng(0).standard_normal(len(THREADS))
    jagged = [1.9, 1.2, 3.9, 4.0, 4.1]
    for law, name in ((Amdahl(0.95), "amdahl"), (UniversalScalability(0.03, 0.01), "usl")):
        speedups = np.array([law.speedup(n) for n in THREADS]) * noise
        assert choose_law(fit_all(THREADS, speedups))[0].law.name == name
    assert {f.law.name: f.misfit for f in fit_all(THREADS, jagged)}["table"] == 0
    few, why = choose_law(fit_all([2, 4], [1.2, 3.9]))
    assert few.law.name == "table"
    assert "too few" in why


def test_a_table_claims_nothing_it_has_not_seen():
    table = TabulatedLaw.fit(np.array([4.0, 2.0]), np.array([3.0, 1.8]))
    assert [table.speedup(n) for n in (1, 2, 4)] == [1, 1.8, 3]
    assert 1.8 < table.speedup(3) < 3
    for n in (0.5, 8):
        with pytest.raises(InputError, match="from 1 to 4, as measured"):
            table.speedup(n)


@pytest.mark.parametrize(
    "wrong", [
        lambda: karp_flatt(np.array([1.0]), np.array([1.0])), lambda: karp_flatt(np.array([0.0]), np.array([2.0])),
        lambda: from_counters([1]), lambda: from_counters([0, 0]), lambda: fit_all([2, 2], [1, 1]),
    ],
)  # fmt: skip
def test_what_is_no_measurement_is_refused(wrong):
    with pytest.raises(InputError):
        wrong()


def vortex():
    """Speedups over one core with one thread, on 4C4T, 4C8T, 8C4T and 8C8T, by kernel; the large sizes."""
    with market_data("vortex_cycles.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = {}
    for row in rows:
        at = (row["kernel"], row["size"]), (int(row["cores"]), int(row["threads"]))
        found.setdefault(at[0], {})[at[1]] = int(row["cycles"])
    four = [(4, 4), (4, 8), (8, 4), (8, 8)]
    return {k: np.array([c[1, 1] / c[at] for at in four]) for k, c in found.items() if {(1, 1), *four} <= c.keys()}


@pytest.mark.data
def test_one_fraction_for_a_kernel_is_off_by_2_to_15_percent():
    pes = np.array([16.0, 32.0, 32.0, 64.0])
    misfits = {kernel: least_squares(speedups, pes).misfit for kernel, speedups in vortex().items()}
    assert len(misfits) == 8
    assert all(0.01 < misfit < 0.25 for misfit in misfits.values()), misfits
    assert 0.04 < float(np.median(list(misfits.values()))) < 0.15


@pytest.mark.data
def test_two_configurations_of_as_many_elements_differ():
    speedups = vortex()["conv3x3", "sc=1"]
    assert speedups[1:3] == pytest.approx([8.40, 11.33], abs=0.01)
