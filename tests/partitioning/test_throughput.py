"""Section 3.3, definition by definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.model.errors import InputError
from commonwatt.model.partition_file import PartitionFile
from commonwatt.partitioning import _schedule as tp
from commonwatt.partitioning._schedule import Pe


def test_apparent_throughput_is_what_counts():
    fast, wide = Pe(200, (1.0,)), Pe(100, (2.0,))
    assert fast.throughput(0) == wide.throughput(0) == 200
    assert tp.parallel_throughput([fast, wide], 0) == 400
    assert tp.average_parallel_frequency([fast, wide], 0) == 200
    assert tp.speedup([fast], 0, 0.7, 100) == tp.speedup([wide], 0, 0.7, 100) == pytest.approx(2)


@given(st.floats(0.01, 1), st.floats(0.01, 0.99))
def test_theorem_3_3_12_a_pe_more_can_hurt(f, ratio):
    slow, fast = Pe(100 * ratio, (1.0,)), Pe(100, (1.0,))
    both, alone = tp.speedup([slow, fast], 0, f, 100), tp.speedup([fast], 0, f, 100)
    if abs(f - (1 - ratio)) > 1e-9:
        assert (both >= alone) == (f >= 1 - ratio)


def test_serial_work_on_the_fastest_pe_never_suffers_from_a_pe_more():
    slow, fast = Pe(10, (1.0,)), Pe(100, (1.0,))
    assert tp.serial_speedup([slow, fast], 0, 0.2, 100, fast) > tp.speedup([fast], 0, 0.2, 100)


def test_speedup_of_like_pes_is_amdahls():
    cluster = [Pe(80, (0.5,))] * 8
    assert tp.speedup(cluster, 0, 0.9, 100) == pytest.approx(0.4 * 8 / (8 * 0.1 + 0.9))
    assert tp.speedup(cluster, 0, 0.9, 100, share=0.5) > 0.5 * 0.4  # overstated below one PE
    with pytest.raises(InputError):
        tp.parallel_throughput([], 0)


def file(**more):
    return PartitionFile.model_validate(
        {
            "tenants": [{"name": "a"}, {"name": "b"}],
            "configurations": [
                {
                    "name": "c", "parallel_fraction": [[0.9, 0.8], [0.7, 1.0]], "retiring_rate": [[1, 2], [0.5, 1]],
                    "core_clusters": [
                        {"cores": 2, "threads": 4, "frequency_mhz": 80}, {"cores": 8, "frequency_mhz": 120},
                    ],
                }
            ],
        }
        | more
    )  # fmt: skip


def test_what_a_pe_is_stands_in_the_file():
    cores, threads = file(), file(pe="core-x-thread")
    assert tp.market_of(cores, cores.configurations[0]).pe_count.tolist() == [2, 8]
    market = tp.market_of(threads, threads.configurations[0])
    assert market.pe_count.tolist() == [8, 8]
    assert market.rate == pytest.approx(np.array([[0.8, 2.4], [0.4, 1.2]]))
    assert cores.configurations[0].names() == ("core cluster 1", "core cluster 2")


def test_time_shares_are_linear():
    problem = file(shares="time")
    market = tp.market_of(problem, problem.configurations[0])
    assert market.curves.straight
    assert market.rate[0, 0] * 2 == pytest.approx(0.8 * 2 / (2 * 0.1 + 0.9))
