"""Pools: which nodes serve whom, and the division of shared nodes against an exhaustive search."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.capacity import CapacityPlanner, ExpectedDemand, NodePowers, PoolDemand
from commonwatt.capacity._sharing import shared_out
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.demand import LEVELS
from commonwatt.model.errors import InputError
from commonwatt.model.nodes import Cluster, NodeSpec, PowerState
from commonwatt.model.pools import NO_PARTITION, Pools

OFF = PowerState(name="off", power_w=0, enter_s=60, wake_s=120)


def node(name, gpu_type="V100", gpus=4, count=1, partitions=(), **more):
    given = {"idle_w": 100, "gpu_w": 100, "states": (OFF,), **more}
    return NodeSpec(name=name, count=count, gpu_type=gpu_type, gpus=gpus, partitions=partitions, **given)


MIXED = Cluster.of(
    [
        node("a", partitions=("vision",)),
        node("b", partitions=("vision", "speech")),
        node("c", gpus=8),
        node("d", "A100"),
    ]
)


def test_the_pools_of_a_cluster():
    types = Pools.of(CapacitySpec(pools="gpu_type"), MIXED)
    assert types.names == ("V100", "A100")
    assert types.gpus(MIXED).tolist() == [16, 4]
    sizes = Pools.of(CapacitySpec(pools="node_class"), MIXED)
    assert sizes.names == ("4 x V100", "8 x V100", "4 x A100")
    partitions = Pools.of(CapacitySpec(pools="partition"), MIXED)
    assert partitions.names == ("vision", "speech", NO_PARTITION)
    # nodes in no partition run jobs of all of them
    assert partitions.reach.tolist() == [[True] * 4, [False, True, True, True], [True] * 4]
    joined = Pools.of(CapacitySpec(pools="node_class", share=(("4 x A100", "4 x V100"),)), MIXED)
    assert joined.names == ("8 x V100", "4 x A100+4 x V100")
    assert joined.gpus(MIXED).tolist() == [8, 12]
    assert len(Pools.of(CapacitySpec(), MIXED)) == 1


def test_the_pool_of_a_job():
    pools = Pools.of(CapacitySpec(pools="partition"), MIXED)
    assert [
        pools.of_job(name, klass, 1) for name, klass in (("vision", 0), ("speech,vision", 1), ("speech,vision", 0))
    ] == [0, 1, 0]
    assert [pools.of_job("", klass, 4) for klass in (0, 2)] == [0, 2]  # by the nodes it asks for
    # on nodes that its pool does not reach, a running job counts for theirs
    assert [pools.running(1, klass, whole=False) for klass in (1, 0)] == [1, 0]


def test_pools_by_the_shape_of_jobs():
    cluster = Cluster.of([node("v", gpus=8, count=2), node("one", "A100", gpus=1)])
    pools = Pools.of(CapacitySpec(pools="shape"), cluster)
    assert pools.names == ("parts of 8 x V100", "whole 8 x V100", "1 x A100")
    assert pools.whole.tolist() == [False, True, False]
    assert [pools.of_job("", klass, gpus) for klass, gpus in ((0, 4), (0, 8), (0, 16), (1, 1))] == [0, 1, 1, 2]
    # a job that asked for a whole node and runs on a part of one counts for the parts, and the other way round
    assert [pools.running(1, 0, whole=False), pools.running(0, 0, whole=True)] == [0, 1]
    share = ("whole 8 x V100", "parts of 8 x V100")
    joined = Pools.of(CapacitySpec(pools="shape", share=(share,)), cluster)
    assert joined.names == ("whole 8 x V100+parts of 8 x V100", "1 x A100")
    assert not joined.whole.any()  # no different from node_class
    with pytest.raises(InputError, match="whole 8 x V100"):
        Pools.of(CapacitySpec(pools="shape", share=(("8 x V100", "1 x A100"),)), cluster)


def test_which_pools_a_node_serves_by_who_uses_it():
    cluster = Cluster.of([node("v", gpus=8, count=5)])
    pools = Pools.of(CapacitySpec(pools="shape"), cluster)
    parts, whole = [True, False, False, False, False], [False, True, False, False, True]
    usable = np.array([8, 8, 8, 7, 7])  # two nodes with a broken GPU, one of them used by a job that has all others
    serves = pools.serving(cluster, usable, np.array([parts, whole]))
    assert serves.tolist() == [[True, False, True, True, True], [False, True, True, False, False]]


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        (CapacitySpec(pools="gpu_type", share=(("V100", "H100"),)), "H100"),
        (CapacitySpec(pools="gpu_type", share=(("V100", "V100"),)), "V100"),
        (CapacitySpec(pools="gpu_type", share=(("V100", "A100"), ("A100",))), "A100"),
    ],
)
def test_pools_that_no_node_serves_are_refused(spec, word):
    with pytest.raises(InputError, match=word):
        Pools.of(spec, MIXED)


def test_partitions_need_nodes_that_have_some():
    with pytest.raises(InputError, match="nodes with partitions"):
        Pools.of(CapacitySpec(pools="partition"), Cluster.of([node("a")]))


def least_cut(usable, reach, promised):
    """The most GPUs of the promises that nodes can meet, by max-flow min-cut: the least cut over all sets of pools."""
    pools, cuts = range(len(promised)), []
    for count in range(len(promised) + 1):
        for cut in combinations(pools, count):
            others = [p for p in pools if p not in cut]
            cuts.append(sum(promised[list(cut)]) + usable[reach[others].any(axis=0)].sum())
    return min(cuts)


@st.composite
def divisions(draw):
    pools, nodes = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    usable = np.array(draw(st.lists(st.integers(0, 8), min_size=nodes, max_size=nodes)))
    rows = st.lists(st.booleans(), min_size=nodes, max_size=nodes)
    reach = np.array(draw(st.lists(rows, min_size=pools, max_size=pools)))
    order = np.array(draw(st.permutations(range(nodes))))
    promised = np.array(draw(st.lists(st.integers(0, 20), min_size=pools, max_size=pools)))
    return usable, order, reach, promised


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(divisions())
def test_the_first_nodes_meet_as_much_of_the_promises_as_any_division_could(given_):
    """For every prefix of the ranking: GPUs that the division gives to promises, against the least cut."""
    usable, order, reach, promised = given_
    parts = shared_out(usable, order, reach, promised, lambda pool, gpus: 1.0 / (1 + gpus + pool))
    assert (parts >= 0).all()
    assert (parts[~reach] == 0).all()
    assert parts.sum(axis=0)[reach.sum(axis=0) > 1].tolist() == usable[reach.sum(axis=0) > 1].tolist()
    assert all((parts[p, reach[p] & (reach.sum(axis=0) == 1)] == usable[reach[p] & (reach.sum(axis=0) == 1)]).all()
               for p in range(len(promised)))  # fmt: skip
    for count in range(len(order) + 1):
        first = order[:count]
        assert np.minimum(parts[:, first].sum(axis=1), promised).sum() == least_cut(
            usable[first], reach[:, first], promised
        )
    whole = least_cut(usable, reach, promised)
    on = np.zeros(len(usable), dtype=bool)
    for pool in range(len(promised)):
        before = np.zeros(len(usable))
        before[order] = np.concatenate(([0], np.cumsum(parts[pool][order])[:-1]))
        on |= (parts[pool] > 0) & (before < promised[pool])
    assert least_cut(usable * on, reach, promised) == whole  # the nodes that are promised suffice


def test_a_node_of_two_pools_goes_to_the_one_that_has_no_other():
    """Nodes a (vision), b (both), 4 GPUs each; b ranks first. Vision wants 4, speech 4: b is speech's."""
    reach = np.array([[True, True], [False, True]])
    parts = shared_out(np.array([4, 4]), np.array([1, 0]), reach, np.array([4, 4]), lambda *_: 0.0)
    assert parts.tolist() == [[4, 0], [0, 4]]
    # a promise of 2 to each: node b meets both, a is not needed
    assert shared_out(np.array([4, 4]), np.array([1, 0]), reach, np.array([2, 2]), lambda *_: 0.0).tolist() == [
        [4, 2], [0, 2]
    ]  # fmt: skip


@st.composite
def whole_divisions(draw):
    """Nodes of 8 GPUs that serve jobs of parts, of whole nodes, or either; promises of whole nodes are multiples."""
    nodes = draw(st.integers(1, 7))
    either = draw(
        st.lists(st.sampled_from([(True, False), (False, True), (True, True)]), min_size=nodes, max_size=nodes)
    )
    promised = np.array([draw(st.integers(0, 40)), 8 * draw(st.integers(0, 5))])
    return np.full(nodes, 8), np.array(draw(st.permutations(range(nodes)))), np.array(either).T, promised


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(whole_divisions())
def test_nodes_that_are_not_divided_meet_as_much_as_any_way_of_giving_them(given_):
    """Every way of giving nodes that serve both pools to one of them, by brute force."""
    usable, order, reach, promised = given_
    both = np.flatnonzero(reach.all(axis=0))
    parts = shared_out(usable, order, reach, promised, lambda pool, gpus: 1.0 / (1 + gpus + pool),
                       np.array([False, True]))  # fmt: skip
    assert ((parts == 0) | (parts == usable)).all()
    assert (parts.sum(axis=0) == usable).all()
    assert (parts[~reach] == 0).all()
    most = max(
        np.minimum(
            [sum(usable[n] for n in range(len(usable)) if (n in both and (n in mine) != bool(p)) or
                 (n not in both and reach[p, n])) for p in range(2)], promised
        ).sum()
        for count in range(len(both) + 1) for mine in combinations(both.tolist(), count)
    )  # fmt: skip
    assert np.minimum(parts.sum(axis=1), promised).sum() == most


class Fixed:
    """Expects a distribution of demand, and promises its .9 quantile."""

    steps = 5

    def __init__(self, mean: float) -> None:
        self.mean = mean

    def ahead(self, wanted_gpus, now_s, arrivals=None, due=None) -> ExpectedDemand:
        quantiles = np.repeat([self.mean * (0.5 + LEVELS)], 5, axis=0)
        return ExpectedDemand(np.full(5, round(1.4 * self.mean)), LEVELS, quantiles)

    def missed(self, steps: int) -> None:
        pass


def powers(cluster, states, busy=()):
    used = np.zeros(len(cluster), dtype=bool)
    used[list(busy)] = True
    asleep = np.array(states) >= 0
    return NodePowers(cluster.gpus, np.array(states), np.where(asleep, 120.0, 0.0), used)


def test_each_pool_keeps_its_own_nodes_on_and_one_pool_any():
    """Two V100 and two A100 nodes of 4 GPUs, all on. Wanted are 4 of A100."""
    cluster = Cluster.of([node("v", count=2), node("a", "A100", count=2)])
    now = powers(cluster, [-1] * 4)

    def slept(spec, forecasters, demands):
        return [n for n, state in CapacityPlanner(cluster, forecasters, spec).plan(0.0, now, demands).changes if state]

    assert slept(CapacitySpec(), Fixed(2.6), [PoolDemand(0, 4)]) == [1, 2, 3]  # whichever
    apart = CapacitySpec(pools="gpu_type")
    assert slept(apart, [Fixed(0.0), Fixed(2.6)], [PoolDemand(0, 0), PoolDemand(0, 4)]) == [0, 1, 3]


def test_free_gpus_on_two_nodes_do_not_serve_a_job_that_needs_one():
    """Three nodes of 8 GPUs, 4 used on each of two. A job of 8 waits: one pool sees 8 free GPUs, shapes see none."""
    cluster = Cluster.of([node("v", gpus=8, count=4)])
    now = powers(cluster, [-1, -1, -1, 0], busy=(0, 1))

    def plan(by, demands, uses=None):
        means = [0.0] * len(demands)
        return CapacityPlanner(cluster, [Fixed(mean) for mean in means], CapacitySpec(pools=by)).plan(
            0.0, now, demands, uses=uses
        )

    assert plan(None, [PoolDemand(16, 16)]).changes == ((2, "off"),)
    uses = np.array([[True, True, False, False], [False] * 4])
    promised = plan("shape", [PoolDemand(8, 8), PoolDemand(8, 8)], uses)
    assert promised.changes == ()
    assert promised.served == (True, True)
    two = plan("shape", [PoolDemand(8, 8), PoolDemand(16, 16)], uses)
    assert two.changes == ((3, None),)
    assert two.served == (True, False)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    mean=st.floats(0, 30), states=st.lists(st.sampled_from([-1, 0]), min_size=6, max_size=6),
    busy=st.sets(st.integers(0, 5)), floor=st.integers(0, 12),
)  # fmt: skip
def test_one_pool_is_what_no_pools_are_to_the_bit(mean, states, busy, floor):
    cluster = Cluster.of([node("n", count=6)])
    now = powers(cluster, [-1 if n in busy else state for n, state in enumerate(states)], busy)
    demand = [PoolDemand(4 * len(busy), 4 * len(busy) + 3)]
    plans = []
    for by in (None, "gpu_type", "node_class"):
        planner = CapacityPlanner(cluster, [Fixed(mean)], CapacitySpec(pools=by, floor_gpus=floor))
        plans.append(planner.plan(0.0, now, demand))
        need = planner._ranked(0.0, now, demand, plans[-1].expected, (), plans[-1].reach).need
        assert need.probability.tobytes() == Fixed(mean).ahead(0, 0).probability(_before(now)).tobytes()
    assert plans[0].changes == plans[1].changes == plans[2].changes


def _before(now):
    order = np.lexsort((np.arange(6), now.wait_s, now.power_state >= 0, ~now.busy))
    before = np.empty(6)
    before[order] = np.concatenate(([0], np.cumsum(now.usable_gpus[order])[:-1]))
    return before
