"""Workloads on a simulated device: shares, loads, departures, and what a configuration gets wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.data.tx2 import TX2_ROWS, read_tx2_kernels, tx2_profile
from commonwatt.devices.profiles import check_fits, load_profile, point_at
from commonwatt.devices.run import LoadGenerator, measure, run, summarise
from commonwatt.model.errors import DeviceError, InputError
from commonwatt.timeslicing._policies import QuantumProblem, make_policy
from tests.devices.made import MS, opened, rng, simulated

A = ("A", "resnet50", 1300)
B = ("B", "resnet50", 114)


def result(config, seed=0):
    session = opened(config)
    return summarise(session, run(session, np.random.default_rng(seed)), seed)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["etf", "tf", "ef", "etf-energy"])
@pytest.mark.parametrize("phi", [0.0, 0.5, 0.7, 1.0])
def test_shares_are_those_of_the_plan(policy, phi):
    got = result(simulated(A, B, policy=policy, phi=phi, duration_s=60))
    slices = make_policy(policy, phi).slices(QuantumProblem.make(10**9, [1, 1], [4.261, 0.541]))
    for tenant, planned in zip(got.tenants, slices / 10**9, strict=True):
        assert tenant.planned_time_share == pytest.approx(planned, abs=1e-6)
        assert tenant.time_share == pytest.approx(planned, abs=0.01)
        assert tenant.energy_share == pytest.approx(tenant.planned_energy_share, abs=0.01)
    assert got.meter_j == pytest.approx(sum(t.energy_j for t in got.tenants) + got.idle.energy_j)


@pytest.mark.slow
def test_throughput_is_time_over_service_time():
    got = result(simulated(A, B, policy="tf", duration_s=100))
    for tenant, us in zip(got.tenants, (57005, 491684), strict=True):
        assert tenant.requests * us * 1e-6 == pytest.approx(tenant.time_s, abs=us * 1e-6)


def test_a_device_with_little_to_do_idles_and_answers_at_once():
    load = {"load": {"kind": "periodic", "interval_s": 1.0}}
    got = result(simulated((*A, load), device={"kind": "simulated", "idle_w": 2.0}))
    (tenant,) = got.tenants
    assert tenant.requests == 20
    assert tenant.latency_p99_s == pytest.approx(0.057005)
    assert got.idle.time_s == pytest.approx(20 - 20 * 0.057005, abs=1e-3)
    assert got.idle.energy_j == pytest.approx(2 * got.idle.time_s)
    assert got.system_fairness is None


@pytest.mark.long
def test_poisson_arrivals_come_at_their_rate_and_repeat_with_the_seed():
    load = {"load": {"kind": "poisson", "rate_per_s": 5.0}}
    config = simulated((*A, load), duration_s=400)
    one, two, other = result(config), result(config), result(config, seed=1)
    assert one == two
    assert one.tenants[0].requests != other.tenants[0].requests
    assert one.tenants[0].requests == pytest.approx(2000, abs=150)


@pytest.mark.slow
def test_a_queue_that_is_full_refuses():
    load = {"load": {"kind": "periodic", "interval_s": 0.01}, "queue_limit": 4}
    got = result(simulated((*A, load)))
    (tenant,) = got.tenants
    assert tenant.refused + tenant.requests == pytest.approx(2000, abs=15)
    assert tenant.latency_p99_s <= 6 * 0.0571


@pytest.mark.slow
def test_tenants_come_and_go():
    config = simulated(A, ("B", "resnet50", 1300, {"from_s": 10, "until_s": 20}), duration_s=30, policy="tf")
    got = result(config)
    a, b = got.tenants
    assert b.time_s == pytest.approx(5, abs=0.3)
    assert a.time_s == pytest.approx(25, abs=0.3)
    assert (a.planned_time_share, b.planned_time_share) == (
        pytest.approx(25 / 30, abs=0.01),
        pytest.approx(1 / 6, abs=0.01),
    )
    assert got.idle.time_s == 0


@pytest.mark.slow
def test_fifo_promises_nothing_and_follows_arrivals():
    got = result(simulated(A, B, policy="fifo", duration_s=100))
    assert got.tenants[0].planned_time_share is None
    assert got.tenants[0].requests == pytest.approx(got.tenants[1].requests, abs=2)


@pytest.mark.slow
def test_queues_of_one_tenant_share_its_time():
    got = result(simulated(("A", "resnet50", 1300, {"queues": 3}), B, policy="tf", duration_s=60))
    assert got.tenants[0].time_share == pytest.approx(0.5, abs=0.02)


@pytest.mark.slow
def test_weights_and_stated_powers():
    config = simulated(
        ("A", "resnet18", 1300, {"weight": 2, "power_w": 8.0}), ("B", "resnet18", 1300, {"power_w": 4.0}),
        policy="ef", duration_s=60,
    )  # fmt: skip
    a, b = result(config).tenants
    assert a.energy_j == pytest.approx(2 * b.energy_j, rel=0.02)
    assert (a.power_w, a.power_source) == (8.0, "stated")


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["backlogged", "periodic", "poisson"]), min_size=1, max_size=4), st.integers(0, 99))
def test_load_arrives_in_order_and_stops(kinds, seed):
    loads = {
        "backlogged": {"kind": "backlogged"}, "periodic": {"kind": "periodic", "interval_s": 0.3},
        "poisson": {"kind": "poisson", "rate_per_s": 3.0},
    }  # fmt: skip
    tenants = [
        (str(i), "resnet18", 1300, {"load": loads[kind], "from_s": i, "until_s": i + 3}) for i, kind in enumerate(kinds)
    ]
    config = simulated(*tenants)
    seen = []
    generator = LoadGenerator(
        config.tenants, lambda name, _: seen.append((now, name)), 5 * 10**9, np.random.default_rng(seed)
    )
    for now in range(0, 6 * 10**9, 50 * MS):
        generator.arrive(now)
        coming = generator.next_ns()
        assert coming is None or coming > now
    for at, name in seen:
        assert int(name) <= at / 1e9 <= min(5, int(name) + 3) + 0.05
    assert {name for _, name in seen} == set(map(str, range(len(kinds)))) or "poisson" in kinds


def test_the_typed_in_profiles_are_as_published():
    assert len(TX2_ROWS) * len(TX2_ROWS["resnet50"]) == 26
    best = min(TX2_ROWS["resnet50"], key=lambda row: row[1] * row[2])
    assert best[0] == 726.75
    powers = [row[2] for row in TX2_ROWS["resnet50"]]
    assert powers[-1] / powers[0] == pytest.approx(7.9, abs=0.05)


def test_a_clock_is_looked_up_as_papers_write_it():
    profile = tx2_profile("resnet50", kernels=False)
    assert point_at(profile, 1300).power_w == 4.261
    assert point_at(profile, None).clock_mhz == 1300.5
    with pytest.raises(InputError, match=r"got '1250', expected a clock in the profile of resnet50 .114.75, "):
        point_at(profile, 1250)


@pytest.mark.data
def test_kernels_sum_to_the_model():
    from commonwatt.data.third_party import find

    if find("tx2_profiles/resnet50_profile.json") is None:
        pytest.skip("the published TX2 profiles are not at hand")
    for model in TX2_ROWS:
        for point in tx2_profile(model).points:
            assert sum(k.time_s for k in point.kernels) == pytest.approx(point.time_s, rel=1e-4)
            energy = sum(k.time_s * k.power_w for k in point.kernels)
            assert energy == pytest.approx(point.time_s * point.power_w, rel=2e-3)


def test_a_published_profile_that_is_none(tmp_path):
    file = tmp_path / "x.json"
    for text in ("{}", "[]", '{"kernel_profile": {}}', '{"kernel_profile": {"a": {}}}', "nonsense"):
        file.write_text(text)
        with pytest.raises(InputError, match="exec_time"):
            read_tx2_kernels(file)


def test_profiles_by_name_and_file(tmp_path):
    profile = load_profile("tx2-resnet18")
    file = tmp_path / "mine.json"
    file.write_text(profile.model_dump_json())
    assert load_profile(str(file)) == profile
    with pytest.raises(InputError, match="tx2-resnet18"):
        load_profile("tx2-vgg")


def test_a_profile_of_another_model_or_device_is_refused():
    profile = tx2_profile("resnet18", kernels=False)
    with pytest.raises(InputError, match=r"file.json.*'device': got 'NVIDIA Jetson TX2'"):
        check_fits(profile, "file.json", "abc", "some GPU")
    with pytest.raises(InputError, match="model_digest"):
        check_fits(profile.model_copy(update={"model_digest": "x" * 64}), "file.json", "abc", "NVIDIA Jetson TX2")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"clock_mhz": 1250}, "tenants.A.clock_mhz"),
        ({"models": [{"name": "m", "profile": "vgg"}]}, "tenants.A.models.m.profile"),
    ],
)
def test_what_is_wrong_is_named(wrong, said):
    with pytest.raises(InputError, match=said):
        opened(simulated((*A, wrong)))


def test_one_run_from_configuration_to_result():
    config = simulated(A, B, duration_s=2)
    heard = []
    got = measure(config, __import__("pathlib").Path(), 0, heard.append)
    assert got.duration_s == pytest.approx(2, abs=0.5)  # what runs at the end runs to the end of its step
    assert heard == sorted(heard)
    assert len(got.timeline) > 10
    assert got.scheduling_share is None
    assert rng().random() == rng().random()


def test_a_device_that_disappears_ends_a_run_with_its_name(monkeypatch):
    session = opened(simulated(A, B))
    work, steps = session.device.work, []

    def failing(time_ns, power_w):
        steps.append(time_ns)
        if len(steps) > 5:
            raise DeviceError("TX2: it fell off the bus")
        work(time_ns, power_w)

    monkeypatch.setattr(session.device, "work", failing)
    with pytest.raises(DeviceError, match="TX2: it fell off the bus"):
        run(session, rng())
