import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.model.nodes import Cluster, NodeSpec
from commonwatt.report.reduction import heat_map
from commonwatt.report.timeline import end_s, timeline
from commonwatt.simulation.record import Segments
from tests.report.make_records import MEDIUM, Size, make_record


def cluster_of(*gpus):
    return Cluster.of(
        NodeSpec(name=f"n{i}", gpu_type="V100", gpus=g, idle_w=100, gpu_w=200) for i, g in enumerate(gpus)
    )


def segments_of(*rows):
    job, node, gpus, from_s, to_s = np.array(rows, dtype=float).reshape(-1, 5).T
    return Segments(job.astype(int), node.astype(int), gpus.astype(int), from_s, to_s)


def test_by_hand():
    segments = segments_of((0, 0, 1, 0, 15), (1, 0, 1, 12, 18), (2, 1, 4, 5, 40))
    found = heat_map(cluster_of(2, 4), segments, np.array([0.0, 10, 20, 30]))
    assert found.share.tolist() == [
        [pytest.approx(10 / 20), pytest.approx(11 / 20), 0],
        [pytest.approx(0.5), 1, 1],
    ]
    assert found.nodes == (("n0", "n0"), ("n1", "n1"))


def test_rows_are_neighbouring_nodes_weighted_by_their_gpus():
    segments = segments_of((0, 0, 2, 0, 10), (1, 2, 8, 0, 5))
    found = heat_map(cluster_of(2, 2, 8), segments, np.array([0.0, 10]), rows=2)
    assert found.nodes == (("n0", "n1"), ("n2", "n2"))
    assert found.share[:, 0].tolist() == [0.5, 0.5]
    assert found.gpus.tolist() == [4, 8]


@pytest.mark.slow
@given(seed=st.integers(0, 1000), rows=st.integers(1, 30), columns=st.integers(1, 80))
def test_mean_is_the_utilization(seed, rows, columns):
    record = make_record(Size(nodes=11, gpus=4, jobs=60, tenants=3, span_s=5000, mean_run_s=900), "easy", seed)
    axis = timeline([record])
    found = heat_map(record.cluster, record.segments, axis.edges_s(end_s(record), columns), rows)
    assert found.share.shape[0] <= rows
    assert ((found.share >= 0) & (found.share <= 1)).all()
    weight = found.gpus[:, None] * np.diff(found.edges_s)
    assert np.average(found.share, weights=weight) == pytest.approx(record.result.gpu_utilization, rel=1e-9)


def test_bins_are_finer_before_a_long_tail():
    record = make_record(MEDIUM, "easy")
    record.jobs.ended_s[5] = 40 * 86400.0
    axis = timeline([record])
    assert axis.focused
    edges = axis.edges_s(end_s(record))
    assert len(edges) == 401
    assert (np.diff(edges) > 0).all()
    assert edges[300] == axis.focus_s


def test_nothing_ran():
    found = heat_map(cluster_of(2), segments_of(), np.array([0.0, 1.0]))
    assert found.share.tolist() == [[0.0]]
