import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.report.timeline import node_rows, to_bars
from tests.report.make_records import SMALL, Size, make_record
from tests.report.test_heatmap import segments_of


def lanes_of(bars, segment):
    return sorted(
        lane
        for first, length in zip(bars.lane[bars.segment == segment], bars.lanes[bars.segment == segment], strict=True)
        for lane in range(first, first + length)
    )


@pytest.mark.slow
@given(seed=st.integers(0, 1000))
def test_no_lane_is_used_twice_at_a_time(seed):
    record = make_record(Size(nodes=4, gpus=4, jobs=60, tenants=3, span_s=3000, mean_run_s=900), "easy", seed)
    segments = record.segments
    bars = to_bars(record.cluster.gpus, segments)
    lanes = [lanes_of(bars, i) for i in range(len(segments.job))]
    assert [len(found) for found in lanes] == segments.gpus.tolist()
    assert max(max(found) for found in lanes) < 4
    for i in range(len(lanes)):
        for k in range(i):
            together = segments.from_s[i] < segments.to_s[k] - 1e-3 and segments.from_s[k] < segments.to_s[i] - 1e-3
            if segments.node[i] == segments.node[k] and together:
                assert not set(lanes[i]) & set(lanes[k])


def test_neighbours_if_there_are_else_several_bars():
    segments = segments_of((0, 0, 1, 0, 9), (1, 0, 1, 0.1, 2), (2, 0, 1, 0.2, 9), (3, 0, 1, 0.3, 2), (4, 0, 2, 3, 5))
    bars = to_bars(np.array([4]), segments)
    assert lanes_of(bars, 4) == [1, 3]
    assert (bars.segment == 4).sum() == 2


def test_more_than_fits_is_drawn_all_the_same():
    segments = segments_of((0, 0, 2, 0, 9), (1, 0, 2, 5, 7), (2, 0, 5, 10, 12))
    bars = to_bars(np.array([2]), segments)
    assert [lanes_of(bars, i) for i in range(3)] == [[0, 1]] * 3


def test_rows_do_not_overlap():
    tops, bottoms = node_rows(np.array([4, 1, 8]))
    assert (bottoms - tops).tolist() == [4, 1, 8]
    assert (tops[1:] > bottoms[:-1]).all()


def test_no_segments():
    record = make_record(SMALL, "easy")
    assert len(to_bars(record.cluster.gpus, segments_of()).segment) == 0
