"""Pools: demand and promise of each, and what keeping them apart costs."""

import json

import numpy as np
import pytest

from commonwatt.forecasting import make_predictor
from commonwatt.model.errors import InputError
from commonwatt.planning.pools import load_pools, plan_pools
from commonwatt.planning.series import load_series
from commonwatt.planning.waiting import Price
from tests.cli.console import run

ROWS = 900


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """Two pools that move against each other: their sum is constant, 60 GPUs."""
    rng = np.random.default_rng(1)
    path = tmp_path_factory.mktemp("pools") / "demand.csv"
    wave = rng.integers(10, 31, ROWS)
    values = {"left": wave, "right": 60 - wave, "spare": np.full(ROWS, 8)}
    rows = [f"{60 * k},{name},{gpus[k]}" for name, gpus in values.items() for k in range(ROWS)]
    path.write_text("t_s,vc,gpus\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    rng = np.random.default_rng(2)
    path = tmp_path_factory.mktemp("pools") / "jobs.csv"
    at = np.sort(rng.integers(0, 86_400, 600))
    rows = [f"{t},{rng.integers(600, 3_600)},{rng.choice([1, 2, 8, 16])},{rng.choice(['a', 'b'])}" for t in at]
    path.write_text("submit_s,duration_s,gpus,tenant\n" + "\n".join(rows) + "\n")
    return path


def planned(pools, **more):
    return plan_pools(pools, lambda: make_predictor("last-value"), by="vc", target=0.95, **more)


@pytest.mark.slow
def test_pools_that_move_against_each_other_take_more_apart(series):
    pools = load_pools(series, "vc")
    found = planned(pools)
    apart, shared, *foresight = found.ways
    assert [pool.name for pool in found.pools] == ["left", "right", "spare"]
    assert apart.mean_gpus_on == pytest.approx(sum(pool.mean_gpus_on for pool in found.pools))
    assert shared.mean_gpus_on == 68.0  # the sum is constant
    assert apart.mean_gpus_on > 68.0
    assert found.apart_pct == pytest.approx(100 * (apart.mean_gpus_on / 68.0 - 1))
    assert [way.mean_gpus_on for way in foresight] == [68.0, 68.0]
    assert apart.all_served <= min(pool.achieved for pool in found.pools) <= apart.achieved


@pytest.mark.slow
def test_whole_nodes_cost_each_pool_its_last_one(series):
    found = planned(load_pools(series, "vc"), node_gpus=8)
    apart, shared, *foresight = found.ways
    assert shared.mean_nodes_on == 9.0  # 68 GPUs
    assert foresight[0].mean_nodes_on > foresight[1].mean_nodes_on == 9.0
    assert apart.mean_nodes_on == pytest.approx(sum(pool.mean_nodes_on for pool in found.pools))


def test_pools_that_share_their_nodes_are_one(series):
    pools = load_pools(series, "vc", together=[["left", "right"]])
    assert list(pools) == ["left+right", "spare"]
    assert set(pools["left+right"].file.series.gpus) == {60.0}
    assert planned(pools).apart_pct == 0.0


def test_the_pools_of_a_log_add_up_to_it(log):
    whole = load_series(log)
    for by, names in (("tenant", ["a", "b"]), ("shape", ["8 GPUs or more", "less than 8 GPUs"])):
        pools = load_pools(log, by, node_gpus=8)
        assert list(pools) == names
        parts = [pool.file.series.gpus for pool in pools.values()]
        assert np.sum(parts, axis=0).tolist() == whole.file.series.gpus.tolist()
        assert sum(len(pool.arrivals) for pool in pools.values()) == len(whole.arrivals)
    one = load_pools(log, "tenant", together=[["b", "a"]])["b+a"]
    assert one.arrivals.met_gpus.sum() > 0
    assert sorted(one.arrivals.gpus) == sorted(whole.arrivals.gpus)


@pytest.fixture
def uneven(tmp_path):
    """Return a file of pools a and b, with rows from and to these minutes."""

    def write(a, b):
        rows = [f"{60 * k},{name},{k % 7}" for name, span in (("a", a), ("b", b)) for k in range(*span)]
        (tmp_path / "uneven.csv").write_text("t_s,vc,gpus\n" + "\n".join(rows) + "\n")
        return tmp_path / "uneven.csv"

    return write


@pytest.mark.slow
def test_a_pool_that_ends_or_begins_apart_is_unknown_there(uneven):
    pools = load_pools(uneven((0, 3000), (100, 2900)), "vc")
    assert [(len(p.file.series), p.file.series.start_s) for p in pools.values()] == [(3000, 0.0)] * 2
    assert not np.isnan(pools["a"].file.series.gpus).any()
    assert np.flatnonzero(pools["b"].file.series.has_value).tolist() == list(range(100, 2900))
    assert (pools["b"].file.series.gpus[100], pools["b"].file.holes) == (100 % 7, 200)
    found = planned(pools)
    assert found.replayed == 3000 - 3000 * 6 // 7 - 100  # instants at which the demand of both is known


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ((0, 3000), (0, 1500), ("got 'vc=b, which ends at 89940', expected pools whose rows end at most 24 h apart "
                               "(--max-gap), as vc=a ends at 179940")),
        ((0, 3000), (1600, 3000), ("got 'vc=b, which begins at 96000', expected pools whose rows begin at most 24 h "
                                  "apart (--max-gap), as vc=a begins at 0")),
        ((0, 3000), (0, 1700), ("field '--test-from': got 'the last seventh', expected a known demand of every pool "
                               "after it: that of vc=b ends at 101940")),
    ],
)  # fmt: skip
def test_no_part_of_a_pool_is_dropped_without_a_word(uneven, a, b, said):
    outcome = run("forecast", "plan", str(uneven(a, b)), "--pools", "vc")
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err
    assert "uneven.csv: " in outcome.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--pools", "nothing"], "nothing"),
        (["--pools", "vc", "--share", "left,middle"], "--share"),
        (["--pools", "vc", "--share", "left,right", "--share", "right,spare"], "--share"),
        (["--pools", "vc", "--share", "left,left"], "--share"),
        (["--pools", "vc", "--pool-gpus", "left=64"], "no node serves right"),
        (["--pools", "vc", "--pool-gpus", "left=9", "--pool-gpus", "right=0", "--pool-gpus", "spare=8"], "s right"),
        (["--pools", "vc", "--pool-gpus", "middle=64"], "middle"),
        (["--pools", "vc", "--pool-gpus", "left=-3"], "--pool-gpus"),
        (["--pools", "vc", "--total-gpus", "64"], "--total-gpus"),
        (["--pools", "vc", "--plot", "p.png"], "--plot"),
        (["--pools", "vc", "--target", "jobs:0.98"], "a job log"),
        (["--share", "left,right"], "--pools"),
        (["--no-joint", "--model", "lightgbm", "--where", "vc=left"], "--pools"),
        (["--pools", "vc", "--joint"], "--model lightgbm"),
        (["--price-per-kwh", "0.2", "--where", "vc=left"], "--gpu-w"),
    ],
)  # fmt: skip
def test_refused_in_one_line(series, options, word):
    outcome = run("forecast", "plan", str(series), *options)
    assert (outcome.code, outcome.out) == (2, "")
    assert word in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_log_without_the_column_and_shapes_without_nodes_are_refused(log):
    with pytest.raises(InputError, match="partition of jobs"):
        load_pools(log, "partition")
    with pytest.raises(InputError, match="node-gpus"):
        load_pools(log, "shape")
    with pytest.raises(InputError, match="tenant"):
        load_pools(log, "color")


@pytest.mark.slow
def test_the_document_and_the_text(series):
    options = ["forecast", "plan", str(series), "--pools", "vc", "--node-gpus", "8", "--gpu-w", "50"]
    document = json.loads(run(*options, "--json").out)
    assert [way["name"] for way in document["ways"]][:2] == ["apart", "shared"]
    assert document["ways"][1]["energy_kwh"] == pytest.approx(document["ways"][1]["gpu_hours"] * 0.05)
    text = run(*options, "--price-per-kwh", "0.2").out
    assert f"the pools take {document['apart_pct']:.1f}% more than one pool of all nodes" in text


def test_a_budget_is_not_given_to_every_pool_as_a_whole(series):
    for price in (Price(300.0, limit_w=9_000.0), Price(300.0, 0.2, delay_per_gpu_h=1.0)):
        with pytest.raises(InputError, match="with pools"):
            planned(load_pools(series, "vc"), price=price)


@pytest.mark.slow
def test_lightgbm_is_fitted_to_all_pools_unless_told_otherwise(series):
    pytest.importorskip("lightgbm")
    pools = load_pools(series, "vc")

    def boosted(some, **more):
        def made():
            return make_predictor(
                "lightgbm", horizon=1, levels=(0.5, 0.95), trees=5, parameters={"min_data_in_leaf": 20}
            )

        return plan_pools(some, made, by="vc", target=0.95, **more)

    joint, alone = boosted(pools), boosted(pools, joint=False)
    assert (joint.joint, alone.joint, planned(pools).joint) == (True, False, False)
    assert joint.pools != alone.pools
    assert joint.ways[1] == alone.ways[1]  # one pool of all nodes
    backwards = boosted(dict(reversed(pools.items())))
    assert {pool.name: pool for pool in backwards.pools} == {pool.name: pool for pool in joint.pools}
    one = {"left": pools["left"]}
    assert boosted(one) == boosted(one, joint=False)
