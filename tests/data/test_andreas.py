import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.data.generators.andreas import (
    FAMILIES,
    NODES,
    TABLE_V,
    WEIGHT_EUR_S,
    armida_scenario,
    cluster_work_s,
    generate_andreas,
    mixed_arrivals,
)
from commonwatt.data.profiles import LAW
from commonwatt.model.scenario import AndreasWorkload
from commonwatt.model.units import J_PER_KWH


def made(seed=0, **more):
    return generate_andreas(AndreasWorkload(source="andreas", **more), np.random.default_rng(seed))


def times_of(table, j):
    rows = table.configs(j)
    times = {}
    for t, g, s in zip(table.config_type[rows], table.config_gpus[rows], table.config_time_s[rows], strict=True):
        times.setdefault(table.gpu_types[t], {})[int(g)] = float(s)
    return times


@pytest.mark.parametrize(("scenario", "of_v100", "of_t4"), [(1, 2, 1), (2, 4, 2)])
def test_nodes_of_both_scenarios(scenario, of_v100, of_t4):
    nodes, table = made(nodes=10, scenario=scenario)
    assert [(n.gpu_type, n.gpus, n.count) for n in nodes] == [("V100", of_v100, 5), ("T4", of_t4, 5)]
    assert len(table) == 100  # J = 10 N
    assert {t: max(c) for t, c in times_of(table, 0).items()} == {"V100": of_v100, "T4": of_t4}


def test_odd_number_of_nodes_and_own_number_of_jobs():
    nodes, table = made(nodes=11, jobs=7)
    assert [n.count for n in nodes] == [6, 5]
    assert len(table) == 7


@pytest.mark.slow
@settings(deadline=None)
@given(st.integers(0, 50), st.integers(2, 20), st.sampled_from([1, 2]), st.floats(0.1, 3))
def test_the_offered_load_is_as_asked(seed, count, scenario, load):
    nodes, table = made(seed, nodes=count, scenario=scenario, load=load)
    total = {n.gpu_type: n.gpus * n.count for n in nodes}
    work = sum(cluster_work_s(times_of(table, j), total) for j in range(len(table)))
    assert work / table.submit_s.max() == pytest.approx(load)
    assert (np.diff(table.submit_s) >= 0).all()
    assert (table.due_s > table.submit_s).all()
    assert set(np.rint(table.tardiness_weight / WEIGHT_EUR_S)) <= {1, 2, 3, 4, 5}


def test_work_of_a_job():
    # best use: V100 at 1 GPU (10 s of GPU time), T4 at 2 (30 s): 4 V100 and 3 T4 do 4/10 + 3/30 = 0.5 jobs a second
    times = {"V100": {1: 10.0, 2: 6.0}, "T4": {1: 40.0, 2: 15.0}}
    assert cluster_work_s(times, {"V100": 4, "T4": 3}) == pytest.approx(2.0)


def test_one_job():
    _, table = made(nodes=2, jobs=1)
    assert table.submit_s.tolist() == [0.0]


def test_the_same_seed_gives_the_same_jobs():
    one, again, other = (made(s)[1] for s in (1, 1, 2))
    assert one.kinds == again.kinds
    assert np.array_equal(one.config_time_s, again.config_time_s)
    assert np.array_equal(one.submit_s, again.submit_s)
    assert one.kinds != other.kinds


def test_draws_cover_their_ranges():
    _, table = made(nodes=100)
    assert set(table.kinds) == set(FAMILIES)
    assert (table.epochs.min(), table.epochs.max()) == (60, 160)
    slack = np.array([(table.due_s[j] - table.submit_s[j]) / times_of(table, j)["V100"][1] for j in range(1000)])
    assert 1.1 <= slack.min() < 1.12
    assert 3.9 < slack.max() <= 4.0
    assert np.median(slack) == pytest.approx((1.1 * 4) ** 0.5, rel=0.1)  # log-uniform
    for family in FAMILIES.values():
        own = [j for j in range(1000) if table.kinds[j] == family.name]
        per_epoch = {round(times_of(table, j)["V100"][1] / table.epochs[j] / family.epoch_s, 6) for j in own}
        assert per_epoch == {round(part**family.batch_gain, 6) for part in (1, 2, 4)}


def test_families_follow_the_law():
    family = FAMILIES["EfficientNet"]
    assert family.time_s("V100", 1, 10, 4096) == pytest.approx(420)
    assert family.time_s("V100", 2, 10, 4096) == pytest.approx(420 / 2**0.57)
    assert family.time_s("T4", 1, 10, 4096) == pytest.approx(420 * 1.52 / 0.77)
    assert family.time_s("V100", 1, 10, 2048) == pytest.approx(420 * 2**0.2)
    assert all(LAW.speed(f.like, t, 1) for f in FAMILIES.values() for t in ("V100", "T4"))


def test_lateness_costs_more_than_any_nodes_energy():
    """The paper assumes that a job is never made late to save energy."""
    for scenario in (1, 2):
        for node in made(scenario=scenario)[0]:
            energy_eur_s = (node.idle_w + node.gpus * node.gpu_w) / J_PER_KWH * 0.172 * 1.33
            assert energy_eur_s < WEIGHT_EUR_S


def test_mixed_arrivals_come_in_phases():
    times = mixed_arrivals(50_000, np.random.default_rng(0))
    gaps = np.diff(times, prepend=0.0)
    assert (gaps > 0).all()
    assert gaps.mean() == pytest.approx(1, rel=0.03)
    assert gaps.std() / gaps.mean() > 1.2  # 1 if Poisson
    counts = np.bincount((times // 5).astype(int))
    assert counts.var() / counts.mean() > 1.5  # 1 if Poisson


@settings(deadline=None)
@given(st.integers(0, 200), st.integers(1, 400))
def test_mixed_arrivals_never_run_out_of_phases(seed, count):
    times = mixed_arrivals(count, np.random.default_rng(seed))
    assert len(times) == count
    assert times[0] > 0
    assert (np.diff(times) > 0).all()


def test_armida_is_the_papers():
    scenario = armida_scenario()
    assert [(n.name, n.gpu_type, n.gpus) for n in scenario.nodes] == [
        ("armida-05", "V100", 1), ("armida-06", "V100", 2), ("armida-07", "T4", 1),
    ]  # fmt: skip
    assert (scenario.interval_s, scenario.postponement_penalty) == (300, 100)
    assert (scenario.electricity.price_per_kwh, scenario.electricity.pue) == (0.172, 1.33)
    jobs = scenario.workload.jobs
    assert [j.name for j in jobs] == ["J6", "J9", "J10", "J7", "J8", "J1", "J2", "J3"]
    assert [j.submit_s for j in jobs] == [1200.0 * k for k in range(8)]
    assert [j.epochs for j in jobs] == [80, 160, 80, 160, 160, 60, 60, 60]
    assert [round(j.tardiness_weight / WEIGHT_EUR_S) for j in jobs] == [4, 2, 3, 3, 3, 5, 2, 1]
    assert [j.due_s - j.submit_s for j in jobs] == [3600, 2600, 7600, 17600, 7600, 5600, 12600, 11600]


def test_armida_due_dates_can_only_count_from_submission():
    assert any(row.due_after_s < row.submit_s for row in TABLE_V)
    for job, row in zip(armida_scenario().workload.jobs, TABLE_V, strict=True):
        assert job.times_s["V100"][1] < row.due_after_s  # each in time alone on one V100
    j6 = armida_scenario().workload.jobs[0]
    assert 2400 < j6.times_s["V100"][1] < 3600  # still runs when J10 joins it, and is in time


def test_armida_cost_is_of_the_papers_order():
    """One V100 each, three nodes on for 15,000 s: within a tenth of what the paper measured."""
    jobs = armida_scenario().workload.jobs
    gpu_j = sum(j.times_s["V100"][1] for j in jobs) * NODES[0].gpu_w
    node_j = sum(n.idle_w for n in NODES) * 15_000
    assert (gpu_j + node_j) / J_PER_KWH * 0.172 * 1.33 == pytest.approx(0.95111, rel=0.1)
