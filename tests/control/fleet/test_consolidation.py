"""Leaving GPUs that few replicas share: when, where to, and never beyond what replicas have needed of late."""

from __future__ import annotations

from pathlib import Path

import yaml
from hypothesis import given
from hypothesis import strategies as st

import commonwatt as cw
from commonwatt.control.fleet.consolidation import Consolidator, Move, SharedRoom
from commonwatt.control.fleet.interface import ReplicaDemand

HOUR_S = 3600.0


def demand(service: int, milli: int, replicas: int = 1, **types: int) -> ReplicaDemand:
    return ReplicaDemand(service, 1.0, replicas, {"A100": milli, **types})


def known(**milli: int) -> Consolidator:
    """Services that have needed so much for an hour and a half."""
    consolidator = Consolidator(HOUR_S)
    for at_s in (0.0, 0.5 * HOUR_S, 1.5 * HOUR_S):
        consolidator.note(at_s, {int(name[1:]): demand(int(name[1:]), own) for name, own in milli.items()})
    return consolidator


def room(gpu: int, *replicas: tuple[int, int], others_milli: int = 0, gpu_type: str = "A100") -> SharedRoom:
    return SharedRoom(gpu, gpu_type, tuple((100 * gpu + s, s, milli) for s, milli in replicas), others_milli)


NOW_S = 1.5 * HOUR_S


def test_the_least_used_gpu_is_left_for_the_fullest_with_room():
    rooms = [room(0, (0, 200)), room(1, (1, 500)), room(2, (2, 700)), room(3, (3, 900))]
    assert known(s0=200, s1=500, s2=700, s3=900).moves(NOW_S, rooms) == [Move(0, 2)]


def test_all_replicas_of_a_gpu_go_or_none():
    rooms = [room(0, (0, 200), (1, 300)), room(1, (2, 750))]
    assert known(s0=200, s1=300, s2=750).moves(NOW_S, rooms) == []
    rooms.append(room(2, (3, 700)))
    assert known(s0=200, s1=300, s2=750, s3=700).moves(NOW_S, rooms) == [Move(1, 2), Move(0, 1)]


def test_not_before_it_has_fitted_for_the_whole_window():
    consolidator = Consolidator(HOUR_S)
    rooms = [room(0, (0, 200)), room(1, (1, 500))]
    consolidator.note(0.0, {0: demand(0, 600), 1: demand(1, 500)})
    assert consolidator.moves(0.0, rooms) == []
    consolidator.note(600.0, {0: demand(0, 200), 1: demand(1, 500)})
    consolidator.note(HOUR_S, {0: demand(0, 200), 1: demand(1, 500)})
    assert consolidator.moves(HOUR_S, rooms) == [], "600 were needed in the last hour"
    consolidator.note(HOUR_S + 600.0, {0: demand(0, 200), 1: demand(1, 500)})
    assert consolidator.moves(HOUR_S + 600.0, rooms) == [Move(0, 1)]


def test_what_those_there_have_needed_is_left_to_them():
    consolidator = Consolidator(HOUR_S)
    for at_s, there in ((0.0, 500), (HOUR_S, 900), (1.5 * HOUR_S, 500)):
        consolidator.note(at_s, {0: demand(0, 200), 1: demand(1, there)})
    assert consolidator.moves(NOW_S, [room(0, (0, 200)), room(1, (1, 500))]) == []


def test_a_service_that_has_had_more_replicas_stays():
    consolidator = Consolidator(HOUR_S)
    for at_s, replicas in ((0.0, 2), (HOUR_S, 2), (1.5 * HOUR_S, 1)):
        consolidator.note(at_s, {0: demand(0, 200, replicas)})
    assert consolidator.moves(NOW_S, [room(0, (0, 200)), room(1, others_milli=700)]) == []


def test_replicas_of_one_service_stay_apart_and_fractional_jobs_keep_their_gpu():
    assert known(s0=200).moves(NOW_S, [room(0, (0, 200)), room(1, (0, 200))]) == []
    assert known(s0=200).moves(NOW_S, [room(0, (0, 200)), room(1, others_milli=300)]) == [Move(0, 1)]
    assert known(s0=200).moves(NOW_S, [room(0, (0, 200), others_milli=100), room(1, others_milli=300)]) == []


def test_only_to_a_type_it_has_a_profile_for_and_by_what_it_needs_there():
    consolidator = Consolidator(HOUR_S)
    for at_s in (0.0, NOW_S):
        consolidator.note(at_s, {0: demand(0, 200), 1: ReplicaDemand(1, 1.0, 1, {"A100": 150, "V100": 450})})
    rooms = [room(0, (0, 200)), room(1, (1, 550), gpu_type="V100")]
    assert consolidator.moves(NOW_S, rooms) == [Move(101, 0)]
    rooms = [room(0, (0, 900)), room(1, (1, 550), gpu_type="V100")]
    assert consolidator.moves(NOW_S, rooms) == [], "the one has no profile for a V100, the other no room on the A100"


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 600)), max_size=3), min_size=1, max_size=8),
    st.dictionaries(st.integers(0, 9), st.integers(1, 600)),
    st.lists(st.integers(0, 300), min_size=8, max_size=8),
)
def test_no_gpu_is_promised_beyond_one_and_what_is_left_is_empty(gpus, needs, others):
    rooms, taken = [], {}
    for n, own in enumerate(gpus):
        replicas, left = {}, 1000 - others[n]
        for service, milli in own:
            if milli <= left and service not in replicas:
                replicas[service], left = milli, left - milli
        rooms.append(room(n, *replicas.items(), others_milli=others[n]))
    consolidator = Consolidator(HOUR_S)
    for at_s in (0.0, NOW_S):
        consolidator.note(at_s, {service: demand(service, milli) for service, milli in needs.items()})
    moves = consolidator.moves(NOW_S, rooms)
    at = {key: (r.gpu, service, milli) for r in rooms for key, service, milli in r.replicas}
    assert len({move.replica for move in moves}) == len(moves)
    left = {at[move.replica][0] for move in moves}
    assert not left & {move.gpu for move in moves}
    for r in rooms:
        stay = [(s, m) for key, s, m in r.replicas if key not in {move.replica for move in moves}]
        come = [at[move.replica][1] for move in moves if move.gpu == r.gpu]
        assert not stay or r.gpu not in left
        assert len({*come, *(s for s, _ in stay)}) == len(come) + len(stay)
        if come:
            taken = r.others_milli + sum(max(m, needs.get(s, m)) for s, m in stay) + sum(needs[s] for s in come)
            assert taken <= 1000


def two_services(folder: Path) -> Path:
    """Two services that need a GPU each in the first hour, and a tenth of one from then on."""

    def service(name: str) -> dict:
        return {
            "name": name, "tenant": "a", "latency_s": 0.5, "start_s": 10, "replicas": {"max": 1},
            "load": {"source": "series", "rps": [60.0] * 12 + [1.0] * 84, "step_s": 300},
            "profiles": {"V100": {"request_s": 0.01, "power_w": 150}},
        }  # fmt: skip

    config = {
        "engine": "simulated", "tenants": [{"name": "a"}],
        "nodes": [{"name": "n", "gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 200, "share": ["time"]}],
        "services": [service("one"), service("two")], "sharing": {"modes": ["time"], "relayout_s": 1800},
        "workload": {
            "source": "jobs", "jobs": [{"name": "train", "tenant": "a", "submit_s": 600, "times_s": {"V100": [1800]}}],
        },
        "policies": [{"solver": "lookahead"}],
    }  # fmt: skip
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def test_a_job_that_waits_gets_the_gpu_that_services_do_not_need_any_more(tmp_path):
    (policy,) = cw.simulate(two_services(tmp_path)).policies
    assert 5400 - 600 <= policy.mean_wait_s <= 5400
    assert sum(service.moves for service in policy.fleet.services) == 1


def test_a_replica_stays_until_the_one_that_takes_its_place_really_serves(tmp_path, monkeypatch):
    began_s = []

    def serves(engine, gpu, service):
        began_s.append(engine.now_s)
        return engine.now_s >= 9000.0  # until then the model is not loaded there

    monkeypatch.setattr("commonwatt.engines.simulated.shared_gpus.SharingCluster.serves", serves)
    (policy,) = cw.simulate(two_services(tmp_path)).policies
    assert 9000 - 600 <= policy.mean_wait_s <= 9000 - 600 + 60
    assert min(began_s) < 6000
