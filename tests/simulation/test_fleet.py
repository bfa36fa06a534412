"""Fleets: services, fractional jobs and training jobs on one cluster, whole runs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.control.events import EventKind
from commonwatt.control.fleet.controller import FleetController
from commonwatt.data.files import validate
from commonwatt.engines.simulated.engine import SimulatedEngine
from commonwatt.model.electricity import StepIntegral
from commonwatt.model.errors import InputError
from commonwatt.model.scenario import Scenario
from commonwatt.simulation.record import Record
from commonwatt.simulation.run_setup import PolicyRun, run_policy
from commonwatt.simulation.summary import record_of
from commonwatt.simulation.workload import prepare

NODE = {"gpu_type": "A100-80GB", "gpus": 2, "idle_w": 100, "gpu_w": 300, "share": ["mig", "time"]}
JOB = {"name": "train", "submit_s": 0, "times_s": {"A100-80GB": [1200, 700]}, "requested_gpus": 1}
TYPES = {"A100-80GB": {"speed": 1.0, "relative_to": "A100"}}


def service(name: str = "web", rps: list[float] | None = None, **more: object) -> dict:
    profile = {"request_s": 0.01, "power_w": 200}
    load = {"source": "series", "rps": rps or [20.0] * 6, "step_s": 300}
    return {"name": name, "tenant": "shop", "load": load, "latency_s": 0.3, "start_s": 0,
            "profiles": {"A100-80GB": profile}, **more}  # fmt: skip


def fraction(name: str, submit_s: float, duration_s: float, milli: int, **more: object) -> dict:
    return {"name": name, "tenant": "lab", "submit_s": submit_s, "duration_s": duration_s, "gpu_milli": milli, **more}


def scenario(**fields: object) -> dict:
    return {
        "workload": {"source": "jobs", "jobs": [JOB]}, "nodes": [{"name": "n", "count": 2, **NODE}],
        "gpu_types": TYPES, "electricity": {"pue": 1.0},
        "policies": [{"solver": "fifo"}], **fields,
    }  # fmt: skip


def run(document: dict, k: int = 0, seed: int = 0) -> tuple[PolicyRun, Record]:
    problem = prepare(validate(document, Scenario), Path(), seed)
    spec = problem.scenario.policies[k]
    done = run_policy(
        problem.scenario, spec, problem.cluster, problem.table, seed, past=problem.past,
        fleet=problem.fleets.get(spec.label),
    )  # fmt: skip
    return done, record_of(done, spec.label, problem.table, 0.0)


def kinds(record: Record) -> list[str]:
    return [kind for kind in record.events.kind if kind not in ("submitted", "waits")]


def rows(record: Record) -> dict[str, int]:
    return {row.row: row.energy_uj or 0 for row in record.result.ledger}


def plain(**sharing: object) -> dict:
    return {"interference": {"slowdown": 0.0}, "burst": 1.0, "headroom": 1.0, "modes": ["time"], **sharing}


class TestByHand:
    def test_one_fractional_job_takes_what_it_says_and_draws_its_part(self):
        # half a GPU for 1000 s: 500 GPU-seconds at 300 W
        document = scenario(
            fractional={"source": "jobs", "jobs": [fraction("f", 0, 1000, 500)]}, sharing=plain(),
            nodes=[{"name": "n", **NODE}], unused_nodes={"state": None},
        )  # fmt: skip
        done, record = run(document)
        fleet = record.result.fleet
        assert fleet is not None
        assert fleet.fractional is not None
        assert (fleet.fractional.ended, fleet.fractional.mean_wait_s, fleet.fractional.mean_stretch) == (1, 0.0, 1.0)
        # 150 W of its own and 25 W, its half of the GPU's half of the node's idle power
        assert rows(record)["fractional jobs"] == pytest.approx(175e6 * 1000, rel=1e-9)
        # training: 300 W and half of the node's 100 W, for 1200 s
        assert rows(record)["jobs"] == pytest.approx(350e6 * 1200, rel=1e-9)
        assert rows(record)["total"] == pytest.approx((100 + 300) * 1e6 * 1200 + 150e6 * 1000)
        assert isinstance(done.controller, FleetController)

    def test_two_that_fit_share_one_gpu_and_the_third_takes_another(self):
        jobs = [fraction("a", 0, 900, 600), fraction("b", 0, 900, 400), fraction("c", 0, 900, 100)]
        _, record = run(scenario(fractional={"source": "jobs", "jobs": jobs}, sharing=plain()))
        assert kinds(record).count("gpu-shared") == 2
        assert record.result.fleet is not None
        assert record.result.fleet.time_gpu_hours == pytest.approx(2 * 900 / 3600)

    def test_interference_slows_both(self):
        jobs = [fraction("a", 0, 900, 500), fraction("b", 0, 900, 500)]
        sharing = plain(interference={"slowdown": 0.2})
        _, record = run(scenario(fractional={"source": "jobs", "jobs": jobs}, sharing=sharing))
        assert record.result.fleet is not None
        assert record.result.fleet.fractional is not None
        assert record.result.fleet.fractional.mean_stretch == pytest.approx(1.1)  # half a GPU's worth beside each

    def test_a_job_may_use_what_nobody_else_does(self):
        jobs = [fraction("a", 0, 900, 250)]
        _, record = run(scenario(fractional={"source": "jobs", "jobs": jobs}, sharing=plain(burst=2.0)))
        assert record.result.fleet is not None
        assert record.result.fleet.fractional is not None
        assert record.result.fleet.fractional.mean_stretch == pytest.approx(0.5)

    def test_a_service_alone_is_as_late_as_the_law_says(self):
        # 20 requests/s on a whole GPU of 100: exp(-(100 - 20) * 0.3) are late
        _, record = run(scenario(services=[service()], sharing=plain(modes=[])))
        assert record.result.fleet is not None
        (web,) = record.result.fleet.services
        assert web.requests == pytest.approx(20 * 1800)
        assert web.late_share == pytest.approx(2.718281828**-24, rel=1e-6)
        assert web.mean_replicas == pytest.approx(1.0)
        assert web.gpu_hours == pytest.approx(0.5)
        # a fifth of the time at 200 W, and half of the node's idle power
        assert web.energy_kwh == pytest.approx((40 + 50) * 1800 / 3.6e6)

    def test_requests_without_a_replica_are_late(self):
        _, record = run(scenario(services=[service(start_s=150)], sharing=plain(modes=[])))
        assert record.result.fleet is not None
        assert record.result.fleet.late_requests == pytest.approx(20 * 150)

    def test_a_service_that_grows_gets_more_replicas_a_step_later(self):
        rps = [20.0, 20.0, 150.0, 150.0, 150.0, 20.0, 20.0, 20.0]
        _, record = run(scenario(services=[service(rps=rps)], sharing=plain(modes=[])))
        at = [time for time, kind in zip(record.events.time_s, record.events.kind, strict=True)
              if kind == "replica-started"]  # fmt: skip
        assert at == [0.0, 900.0]
        stops = [time for time, kind in zip(record.events.time_s, record.events.kind, strict=True)
                 if kind == "replica-stopped"]  # fmt: skip
        assert stops == [1800.0, 2400.0]

    def test_of_a_service_that_shrinks_the_replica_that_has_a_gpu_alone_goes(self):
        # web and text fill a GPU each; web needs two as text shrinks, so its second joins text; then web needs one
        web = service(rps=[60.0, 60.0, 110.0, 110.0, 30.0, 30.0, 30.0, 30.0])
        text = service("text", [60.0, 60.0, 20.0, 20.0, 20.0, 20.0, 20.0, 20.0])
        _, record = run(scenario(services=[web, text], sharing=plain(), nodes=[{"name": "n", **NODE}]))
        started = [time for time, kind in zip(record.events.time_s, record.events.kind, strict=True)
                   if kind == "started"]  # fmt: skip
        assert started == [1500.0]

    def test_small_services_are_cut_by_mig_where_that_saves_a_gpu(self):
        profile = {"A100-80GB": {"request_s": 0.01, "power_w": 200, "parallel_fraction": 0.9}}
        services = [service(f"s{i}", [55.0] * 6, profiles=profile) for i in range(3)]
        _, record = run(scenario(services=services, sharing=plain(modes=["mig", "time"])))
        fleet = record.result.fleet
        assert fleet is not None
        assert fleet.layouts >= 1
        assert fleet.mig_gpu_hours == pytest.approx(0.5)
        assert all(own.met_share is not None and own.met_share > 0.9 for own in fleet.services)
        _, without = run(scenario(services=services, sharing=plain(modes=["time"])))
        assert without.result.fleet is not None
        assert without.result.fleet.time_gpu_hours + without.result.fleet.whole_gpu_hours > 0.5

    def test_a_training_job_makes_room_for_a_service(self):
        jobs = [{**JOB, "name": f"j{i}", "epochs": 12} for i in range(2)]
        document = scenario(
            workload={"source": "jobs", "jobs": jobs}, nodes=[{"name": "n", **NODE}], sharing=plain(modes=[]),
            services=[service(rps=[20.0, 20.0, 150.0, 150.0, 20.0, 20.0])],
        )  # fmt: skip
        document["services"][0]["replicas"] = {"min": 1, "max": 2}
        _, record = run(document)
        assert record.result.fleet is not None
        assert record.result.fleet.made_room == 1
        assert record.result.preemptions == 1
        assert all(ended > 0 for ended in record.jobs.ended_s)
        _, kept = run({**document, "preemption": {"allowed": False}})
        assert kept.result.preemptions == 0
        assert kept.result.fleet is not None
        assert kept.result.fleet.unplaced_s > 0

    def test_a_service_takes_the_part_of_a_best_effort_job(self):
        jobs = [fraction("be", 0, 3000, 500, qos="BE")]
        rps = [20.0, 20.0, 60.0, 60.0, 60.0, 60.0]
        document = scenario(
            nodes=[{"name": "n", **NODE}], services=[service(rps=rps)],
            fractional={"source": "jobs", "jobs": jobs}, sharing=plain(quantum_s=0.01),
        )  # fmt: skip
        _, record = run(document)
        assert "fraction-stopped" in kinds(record)
        assert record.result.fleet is not None
        assert record.result.fleet.fractional is not None
        assert record.result.fleet.fractional.ended == 1

    @pytest.mark.slow
    def test_mapping_decides_how_fast_a_network_is(self):
        nodes = [{"name": "n", **NODE}, {"name": "s", "gpu_type": "S2", "gpus": 1, "idle_w": 10, "gpu_w": 10,
                                        "platform": "S2", "share": ["time"]}]  # fmt: skip
        camera = service("camera", [10.0] * 3, profiles={"S2": {"networks": ["resnet18"]}})
        gpu_hours = {}
        for mapping in ("auto", "fcfs-rr"):
            _, record = run(scenario(nodes=nodes, services=[camera], sharing=plain(mapping=mapping)))
            assert record.result.fleet is not None
            gpu_hours[mapping] = record.result.fleet.services[0].gpu_hours
        assert gpu_hours["auto"] < gpu_hours["fcfs-rr"]


class TestLost:
    def test_an_outage_loses_no_job_and_no_joule(self):
        jobs = [fraction("a", 0, 1500, 500), fraction("b", 0, 1500, 500)]
        document = scenario(
            services=[service()], fractional={"source": "jobs", "jobs": jobs}, sharing=plain(),
            nodes=[{"name": "n", "count": 2, **NODE}], outages=[{"node": "n-1", "from_s": 400, "to_s": 1000}],
        )  # fmt: skip
        done, record = run(document)
        assert record.result.fleet is not None
        assert record.result.fleet.fractional is not None
        assert record.result.fleet.fractional.ended == 2
        assert done.controller.ledger.total() == done.controller.ledger.meter


FOREVER = {"half_life_s": 1e15}


class TestUsageOfTenants:
    """Services and fractional jobs count for the decayed use of their tenants."""

    def test_a_service_a_fractional_job_and_a_job_count_with_the_gpus_they_have(self):
        document = scenario(
            services=[service()], fractional={"source": "jobs", "jobs": [fraction("f", 0, 1000, 500)]},
            sharing=plain(modes=[], headroom=1.0), policies=[{"solver": "fair-share", **FOREVER}],
        )  # fmt: skip
        done, record = run(document)
        assert isinstance(done.controller, FleetController)
        usage = done.controller.usage()[1]
        (web,) = record.result.fleet.services
        assert usage == pytest.approx({"shop": 3600 * web.gpu_hours, "lab": 1000, "default": 1200})  # whole GPUs each
        assert usage["shop"] == pytest.approx(1800)

    @pytest.mark.slow
    def test_gpus_that_are_shared_count_by_the_weight_of_their_type(self):
        def used(weight):
            document = scenario(
                services=[service()], fractional={"source": "jobs", "jobs": [fraction("f", 0, 1000, 500)]},
                sharing=plain(headroom=1.0), policies=[{"solver": "fair-share", **FOREVER}],
                nodes=[{"name": "n", "count": 2, **NODE, "share_weight": weight}],
            )  # fmt: skip
            return run(document)[0].controller.usage()[1]

        assert used(2.5) == pytest.approx({tenant: 2.5 * gpu_s for tenant, gpu_s in used(1.0).items()})

    def test_use_of_services_halves_with_the_half_life(self):
        document = scenario(
            services=[service()], sharing=plain(modes=[]), policies=[{"solver": "fair-share", "half_life_s": 600}]
        )
        done, _ = run(document)
        assert isinstance(done.controller, FleetController)
        # one GPU for 1800 s: at least the integral, at most what six steps of 300 s add up to
        most = sum(300 * 0.5 ** (300 * k / 600) for k in range(6))
        assert 600 / math.log(2) * (1 - 0.5**3) <= done.controller.usage()[1]["shop"] <= most * (1 + 1e-9)

    @pytest.mark.parametrize("policy", [{"solver": "fair-share"}, {"solver": "lookahead", "fairness": {"phi": 1.0}}])
    def test_the_tenant_whose_service_has_had_gpus_comes_last(self, policy):
        jobs = [
            {**JOB, "name": "long", "tenant": "other", "submit_s": 0, "times_s": {"A100-80GB": [1000]}},
            {**JOB, "name": "of-the-shop", "tenant": "shop", "submit_s": 600, "times_s": {"A100-80GB": [500]}},
            {**JOB, "name": "of-the-lab", "tenant": "lab", "submit_s": 700, "times_s": {"A100-80GB": [500]}},
        ]  # fmt: skip
        document = scenario(
            nodes=[{"name": "n", **NODE}], services=[service()], sharing=plain(modes=[]),
            workload={"source": "jobs", "jobs": jobs}, preemption={"allowed": False}, policies=[policy],
        )  # fmt: skip
        _, record = run(document)
        began_s = dict(zip(record.jobs.name, record.jobs.began_s.tolist(), strict=True))
        assert began_s["of-the-lab"] < began_s["of-the-shop"]  # which was submitted earlier


@st.composite
def fleets(draw: st.DrawFn) -> dict:
    count = draw(st.integers(0, 3))
    services = [
        service(
            f"s{i}", draw(st.lists(st.floats(0, 250), min_size=2, max_size=6)),
            latency_s=draw(st.sampled_from([0.1, 0.5])), start_s=draw(st.sampled_from([0, 45.5])),
            replicas={"min": draw(st.integers(1, 2)), "max": 4},
            profiles={"A100-80GB": {
                "request_s": draw(st.sampled_from([0.002, 0.01, 0.03])), "memory_gb": draw(st.sampled_from([4, 30])),
                "parallel_fraction": draw(st.sampled_from([0.8, 0.99])),
            }},
        )
        for i in range(count)
    ]  # fmt: skip
    jobs = [
        fraction(
            f"f{i}", draw(st.integers(0, 20)) * 61.5, draw(st.integers(1, 20)) * 77.7, draw(st.integers(1, 1000)),
            qos=draw(st.sampled_from(["LS", "BE"])),
        )
        for i in range(draw(st.integers(0 if count else 1, 6)))
    ]  # fmt: skip
    training = [{**JOB, "name": f"j{i}", "submit_s": i * 333.3, "epochs": draw(st.sampled_from([1, 5]))}
                for i in range(draw(st.integers(1, 4)))]  # fmt: skip
    outage = {"node": "n-1", "from_s": 333.0, "to_s": 890.5}
    document = scenario(
        workload={"source": "jobs", "jobs": training}, services=services,
        nodes=[{"name": "n", "count": 2, **NODE, "states": [{"name": "off", "enter_s": 10, "wake_s": 31}]}],
        outages=draw(st.sampled_from([[], [outage]])),
        sharing={
            "modes": draw(st.sampled_from([[], ["time"], ["mig", "time"]])),
            "slices": draw(st.sampled_from(["etf", "tf", "ef", "equal"])), "phi": draw(st.sampled_from([0.0, 0.7])),
            "burst": draw(st.sampled_from([1.0, 3.0])), "relayout_s": draw(st.sampled_from([0.0, 600.0])),
        },
        policies=[{
            "solver": draw(st.sampled_from(["fifo", "random-greedy", "easy"])), "iterations": 20,
            "capacity": draw(st.sampled_from([None, {"policy": "last-value", "step_s": 300}])), **FOREVER,
        }],
    )  # fmt: skip
    if jobs:
        document["fractional"] = {"source": "jobs", "jobs": jobs}
    return document


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(fleets())
def test_what_holds_of_every_fleet(document):
    holds(document)


def holds(document: dict) -> tuple[PolicyRun, Record]:
    """Run a fleet and check what holds of every one."""
    seen: list[str] = []
    original = FleetController.tick

    def checked(self: FleetController, now_s: float) -> None:
        original(self, now_s)
        gpus = self.manager.gpus
        for gpu in gpus.gpus.values():
            residents = gpus.on(gpu)
            if sum(r.milli for r in residents) > 1000:
                seen.append(f"{now_s}: {residents} have reserved more than a GPU")
            if sum(r.busy for r in residents) > 1 + 1e-9:
                seen.append(f"{now_s}: {residents} use more than a GPU")
        held = self.registry.allocated_gpus + self.manager.shared_gpus()
        if (held > self.cluster.gpus).any():
            seen.append(f"{now_s}: {held} GPUs are held")

    FleetController.tick = checked  # type: ignore[method-assign]
    try:
        done, record = run(document)
    finally:
        FleetController.tick = original  # type: ignore[method-assign]
    assert seen == []
    # energy: every row is somebody's or idle, and together they are the meter
    controller = done.controller
    assert isinstance(controller, FleetController)
    assert controller.ledger.total() == controller.ledger.meter
    fleet = record.result.fleet
    assert fleet is not None
    owned = sum(tenant.energy_kwh or 0 for tenant in fleet.tenants) + fleet.idle_kwh
    assert owned == pytest.approx(record.result.energy_kwh or 0)
    accounts = [*controller.manager.gpus.service_accounts.values(), *controller.manager.gpus.job_accounts.values()]
    shared = sum(controller.ledger.overhead[row].energy_uj or 0 for row in ("services", "fractional jobs"))
    assert sum(account.energy_uj or 0 for account in accounts) == shared
    usage = controller.usage()[1]  # of "default" by training jobs, of the others by what shares GPUs
    used_s = usage.get("shop", 0.0) + usage.get("lab", 0.0)
    charged_s = sum(account.gpu_us for account in accounts) * 1e-6
    starts = sum(kind in (EventKind.REPLICA_STARTED, EventKind.FRACTION_STARTED) for kind in record.events.kind)
    waking_s = starts * (10 + 31)  # at most a GPU each, reserved while its node goes to sleep and wakes
    assert charged_s - 1e-3 <= used_s <= charged_s + waking_s + 1e-3
    # nothing is lost: jobs end, requests are counted
    assert fleet.fractional is None or fleet.fractional.ended == fleet.fractional.jobs
    for own, spec in zip(fleet.services, controller.manager.fleet.services, strict=True):
        assert own.requests == pytest.approx(spec.load.rps.sum() * spec.load.step_s)
        assert 0 <= own.late_requests <= own.requests * (1 + 1e-9)
    assert not controller.manager.gpus.gpus
    assert not any(kind == EventKind.FAILED for kind in record.events.kind)
    return done, record


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(fleets())
def test_the_same_input_and_seed_give_the_same_bytes(document):
    (_, first), (_, second) = run(document), run(document)
    without_time = {"scheduler_s": None}
    assert first.result.model_copy(update=without_time) == second.result.model_copy(update=without_time)
    assert first.events.sentence == second.events.sentence


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"services": [service(profiles={"T4": {"request_s": 0.1}})]}, "services.web.profiles"),
        (
            {"services": [service(profiles={"A100-80GB": {"networks": ["resnet50"]}})]},
            "services.web.profiles.A100-80GB.networks",
        ),
        ({"services": [service(profiles={"A100-80GB": {"request_s": 0.1, "floor_s": 0.4}})]}, "services.web.latency_s"),
        ({"services": [service(latency_s=0.2, profiles={"A100-80GB": {"request_s": 0.1}})]}, "services.web.latency_s"),
        (
            {"services": [service(profiles={"A100-80GB": {"request_s": 0.01, "memory_gb": 80.5}})]},
            "services.web.profiles.A100-80GB.memory_gb",
        ),
        (
            {"services": [service(profiles={"A100-80GB": {"request_s": 0.1, "mig_speed": {"7g": 1.0, "1g": -1.0}}})]},
            "services.web.profiles.A100-80GB.mig_speed.1g",
        ),
        (
            {"services": [service(profiles={"A100-80GB": {"request_s": 0.1, "mig_speed": {"7g": 1.0, "9g": 2.0}}})]},
            "services.web.profiles.A100-80GB.mig_speed",
        ),
        ({"services": [service(), service()]}, "services"),
        ({"services": [service()], "policies": [{"solver": "las"}]}, "policies.las.solver"),
        (
            {
                "fractional": {"source": "jobs", "jobs": [fraction("f", 0, 10, 900)]},
                "electricity": {"power_cap_w": 390},
                "nodes": [{"name": "n", **NODE}, {**NODE, "name": "old", "gpu_type": "P100", "gpu_w": 99, "share": []}],
                "workload": {"source": "jobs", "jobs": [{"name": "j", "submit_s": 0, "times_s": {"P100": [9]}}]},
            },
            "electricity.power_cap_w",
        ),
        ({"services": [service()], "nodes": [{"name": "n", **NODE, "platform": "S9"}]}, "nodes.platform"),
        (
            {
                "services": [service()],
                "nodes": [{"name": "n", **NODE}, {"name": "old", **NODE, "gpu_type": "P100", "share": ["mig"]}],
            },
            "nodes.gpu_type",
        ),
        (
            {"fractional": {"source": "jobs", "jobs": [fraction("f", 0, 10, 10)]},
             "nodes": [{"name": "n", **NODE, "share": []}]},
            "nodes.share",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(fields, field):
    with pytest.raises(InputError) as refused:
        run(scenario(**fields))
    assert field in str(refused.value)


class Trace:
    """Power of a simulated cluster from moment to moment, as its meters see it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pieces: list[tuple[float, float, float]] = []  # from, to, watts

        def moved(engine: SimulatedEngine, now_s: float) -> None:
            before_s = engine.__dict__.get("now_s", now_s)
            if now_s > before_s:
                self.pieces.append((before_s, now_s, engine.power_w()))
            engine.__dict__["now_s"] = now_s

        now_s = property(lambda engine: engine.__dict__["now_s"], moved)
        monkeypatch.setattr(SimulatedEngine, "now_s", now_s, raising=False)

    def above(self, done: PolicyRun) -> list[tuple[float, float, float]]:
        """Return when more was drawn than the cap allows, with the watts."""
        cap_w = done.controller.tariff.cap_w
        assert cap_w is not None
        return [
            (begin_s, end_s, drawn_w)
            for from_s, to_s, drawn_w in self.pieces
            for begin_s, end_s, most_w in zip(*edges(cap_w, from_s, to_s), strict=True)
            if drawn_w > most_w + 1e-6
        ]


def edges(cap_w: StepIntegral, from_s: float, to_s: float) -> tuple[list[float], list[float], list[float]]:
    times, values = cap_w.pieces(from_s, to_s)
    return times[:-1].tolist(), times[1:].tolist(), values.tolist()


def reported(record: Record) -> list[tuple[float, float]]:
    """Return from when to when events say that services alone exceed the cap."""
    spans, since_s = [], math.inf
    for at_s, kind, text in zip(record.events.time_s, record.events.kind, record.events.sentence, strict=True):
        if kind in ("over-cap", "within-cap"):
            spans += [(since_s, at_s)] if since_s < at_s else []
            since_s = at_s if kind == "over-cap" and "alone" in text else math.inf
    return [*spans, (since_s, math.inf)]


class TestUnderACap:
    """Node: 100 W idle and 300 W for each of two busy GPUs; a busy replica takes 200 W of its GPU."""

    def capped(self, cap_w: float, **fields: object) -> dict:
        return scenario(nodes=[{"name": "n", **NODE}], unused_nodes={"state": None},
                        electricity={"pue": 1.0, "power_cap_w": cap_w}, sharing=plain(modes=[]), **fields)  # fmt: skip

    def events(self, record: Record) -> list[tuple[float, str, str]]:
        return list(zip(record.events.time_s, record.events.sentence, record.events.kind, strict=True))

    def test_a_job_starts_only_within_what_a_service_may_draw(self):
        # the replica may draw 200 W beside 100 W idle: 300 W more fit under 600 W, not under 590 W
        for cap_w, began_s in ((600, 0.0), (590, 1800.0)):
            _, record = run(self.capped(cap_w, services=[service()]))
            assert record.jobs.began_s.tolist() == [began_s], cap_w
            waits = [text for _, text, kind in self.events(record) if kind == "waits"]
            sentence = "train waits: with 1 GPU more, the nodes would draw more than their power cap allows"
            why = f"{sentence}, of which services and fractional jobs draw 40 W"
            assert waits == [why][: began_s > 0]

    def test_services_come_before_jobs_where_their_load_rises(self):
        # 20 requests/s take 40 W, later 150 take two replicas: 200 W reserved of each, 300 W drawn
        rps = [20.0, 20.0, 150.0, 150.0, 150.0, 20.0, 20.0, 20.0]
        document = self.capped(600, services=[service(rps=rps, replicas={"min": 1, "max": 1})])
        document["workload"] = {"source": "jobs", "jobs": [{**JOB, "epochs": 12}]}
        document["electricity"] = {"pue": 1.0, "series": [
            {"from_s": 0, "price_per_kwh": 0.1, "power_cap_w": 600}, {"from_s": 50000, "price_per_kwh": 0.1},
        ]}  # fmt: skip
        _, record = run(document)
        assert record.result.preemptions == 0  # what it had reserved was enough
        grown = service(rps=rps, replicas={"min": 1, "max": 1}, profiles={"A100-80GB": {"request_s": 0.005}})
        _, record = run({**document, "services": [grown], "sharing": plain(modes=["time"])})
        assert record.result.fleet is not None
        cap = record.result.fleet.power_cap
        assert cap is not None
        assert (cap.stopped_jobs, record.result.preemptions, cap.over_s) == (1, 1, 0.0)
        assert cap.most_w <= 600
        stopped = [text for _, text, kind in self.events(record) if kind == "preempted"]
        assert "draw more than their power cap allows, of which services and fractional jobs draw" in stopped[0]

    def test_services_above_the_cap_are_served_and_that_is_said(self, monkeypatch):
        trace = Trace(monkeypatch)
        rps = [20.0, 20.0, 150.0, 150.0, 150.0, 20.0, 20.0, 20.0]
        document = self.capped(450, services=[service(rps=rps)])
        document["sharing"] = plain(modes=[], headroom=1.0)
        document["workload"] = {"source": "jobs", "jobs": [{**JOB, "submit_s": 3000}]}
        document["electricity"]["power_cap_w"] = 400
        document["services"][0]["profiles"]["A100-80GB"]["power_w"] = 300
        done, record = run(document)
        assert record.result.fleet is not None
        cap = record.result.fleet.power_cap
        # from 900 s on two replicas serve 150 requests/s: 100 + 1.5 * 300 W
        assert trace.above(done) == [(900.0, 1200.0, pytest.approx(550.0)), (1200.0, 1500.0, pytest.approx(550.0))]
        assert cap is not None
        assert (cap.over_s, cap.over_beside_jobs_s, cap.most_over_w) == (600.0, 0.0, pytest.approx(150.0))
        said = [text for _, text, kind in self.events(record) if kind.endswith("-cap")]
        assert said == [
            "the nodes draw 150 W more than their power cap of 400 W: services alone do, and no job is left to stop",
            "the nodes draw no more than their power cap again",
        ]

    def test_jobs_that_may_not_be_stopped_are_not_and_that_is_said(self):
        document = self.capped(600, services=[service(rps=[20.0, 20.0, 150.0, 150.0], profiles={
            "A100-80GB": {"request_s": 0.005}})], preemption={"allowed": False})  # fmt: skip
        document["workload"] = {"source": "jobs", "jobs": [{**JOB, "epochs": 3}]}
        _, record = run({**document, "sharing": plain(modes=["time"])})
        assert record.result.fleet is not None
        cap = record.result.fleet.power_cap
        assert cap is not None
        assert record.result.preemptions == 0
        assert (cap.over_s, cap.over_beside_jobs_s > 0) == (0.0, True)

    def test_a_fractional_job_waits_for_power_and_starts_when_there_is(self):
        # 300 W of a training job, 100 W idle: half a GPU, 150 W, fits under 550 W only
        jobs = [fraction("f", 100, 1000, 500)]
        for cap_w, wait_s in ((550, 0.0), (540, 1100.0)):
            document = self.capped(cap_w, fractional={"source": "jobs", "jobs": jobs})
            _, record = run({**document, "sharing": plain()})
            assert record.result.fleet is not None
            assert record.result.fleet.fractional is not None
            assert record.result.fleet.fractional.mean_wait_s == pytest.approx(wait_s), cap_w
            assert record.result.fleet.fractional.ended == 1

    def test_best_effort_goes_first_then_jobs_then_other_fractional_jobs(self):
        rps = [10.0, 10.0, 60.0, 60.0, 110.0, 110.0, 180.0, 180.0, 180.0]  # drawn one step later: 300, 550, 900 W
        web = service(rps=rps, profiles={"A100-80GB": {"request_s": 0.005, "power_w": 1000}}, replicas={"max": 1})
        jobs = [fraction("be", 0, 9000, 1000, qos="BE"), fraction("ls", 0, 9000, 1000)]
        document = self.capped(1110, services=[web], fractional={"source": "jobs", "jobs": jobs})
        document |= {"sharing": plain(quantum_s=0.001), "nodes": [{"name": "n", **NODE, "gpus": 4}]}
        document["workload"] = {"source": "jobs", "jobs": [{**JOB, "times_s": {"A100-80GB": [9000]}}]}
        _, record = run(document)
        stops = [
            (at_s, text.split()[0]) for at_s, text, kind in self.events(record)
            if kind in ("preempted", "fraction-stopped")
        ]  # fmt: skip
        assert stops == [(900.0, "be:"), (1500.0, "train"), (2100.0, "ls:")]
        assert record.result.fleet is not None
        assert record.result.fleet.power_cap is not None
        assert record.result.fleet.power_cap.over_s == 0
        assert record.result.fleet.fractional is not None
        assert record.result.fleet.fractional.ended == 2


@st.composite
def capped_fleets(draw: st.DrawFn) -> dict:
    document = draw(fleets())
    document["nodes"][0]["gpus"] = 3
    watts = draw(st.lists(st.sampled_from([300.0, 640.0, 900.0, 1200.0]), min_size=0, max_size=3))
    caps_w = [*watts, draw(st.sampled_from([1000.0, 1250.0]))]  # in the end there is power for each of them alone
    steps = [{"from_s": 700.0 * k, "price_per_kwh": 0.1, "power_cap_w": cap_w} for k, cap_w in enumerate(caps_w)]
    document["electricity"] = {"pue": 1.0, "series": steps}
    document["preemption"] = {"allowed": draw(st.sampled_from([True, True, False]))}
    policy = document["policies"][0]
    if policy["capacity"] is not None and draw(st.booleans()):
        policy["capacity"] = {**policy["capacity"], "power_kw": draw(st.sampled_from([1.0, 1.25]))}
        if draw(st.booleans()):
            document["electricity"] = {"pue": 1.0}
    if policy["capacity"] is not None and draw(st.booleans()):
        old = {"name": "old", **NODE, "gpu_type": "P100", "idle_w": 60, "gpu_w": 150, "share": ["time"]}
        document["nodes"] = [*document["nodes"], {**old, "states": document["nodes"][0]["states"]}]
        policy["capacity"] = {**policy["capacity"], "pools": "gpu_type"}
    if draw(st.booleans()):
        policy["rounds"] = {"length_s": 400.0}
    return document


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(capped_fleets())
def test_no_fleet_draws_more_than_its_cap_unless_services_alone_do(document):
    with pytest.MonkeyPatch.context() as patch:
        trace = Trace(patch)
        done, record = holds(document)
    assert record.result.fleet is not None
    cap = record.result.fleet.power_cap
    assert cap is not None
    above, spans = trace.above(done), reported(record)
    if document["preemption"]["allowed"]:
        assert cap.over_beside_jobs_s == 0
        for begin_s, end_s, drawn_w in above:
            assert any(from_s <= begin_s and end_s <= to_s for from_s, to_s in spans), (begin_s, end_s, drawn_w)
    above_s = sum(end_s - begin_s for begin_s, end_s, _ in above)
    assert above_s <= cap.over_s + cap.over_beside_jobs_s + 1e-6
    if not document["services"]:
        assert not above
    for sample in done.controller.samples:
        assert sample.wanted_by_pool is None or sum(sample.wanted_by_pool.values()) == sample.wanted_gpus


class TestPools:
    """Two nodes of 2 A100, where a service is, and one of 2 P100 for jobs."""

    def two_types(self, policy: str = "last-value", **capacity: object) -> dict:
        off = [{"name": "off", "power_w": 0, "enter_s": 10, "wake_s": 30}]
        old = {"name": "old", **NODE, "gpu_type": "P100", "share": ["time"], "states": off}
        return scenario(
            workload={"source": "jobs", "jobs": [
                {"name": f"j{i}", "submit_s": 700 * i, "times_s": {"P100": [600]}} for i in range(3)]},
            nodes=[{"name": "n", "count": 2, **NODE, "states": off}, old], sharing=plain(modes=["time"]),
            services=[service(rps=[20.0] * 4 + [150.0] * 4 + [20.0] * 4)],
            fractional={"source": "jobs", "jobs": [fraction("f", 100, 900, 400)]},
            policies=[{"solver": "fifo", "capacity": {
                "policy": policy, "pools": "gpu_type", "step_s": 300, **capacity}}],
        )  # fmt: skip

    def test_shared_gpus_count_in_the_pool_of_their_nodes(self):
        done, record = run(self.two_types())
        by_pool = [sample.wanted_by_pool or {} for sample in done.controller.samples]
        assert all(sum(own.values()) == s.wanted_gpus for own, s in zip(by_pool, done.controller.samples, strict=True))
        assert max(own["A100-80GB"] for own in by_pool) >= 2  # two replicas
        assert record.result.capacity is not None
        pools = {pool.name: pool for pool in record.result.capacity.pools}
        assert pools["A100-80GB"].mean_wanted_gpus > 1
        assert pools["P100"].mean_wanted_gpus < 1
        assert done.controller.ledger.total() == done.controller.ledger.meter

    @pytest.mark.parametrize("policy", ["always-on", "foresight"])
    def test_other_plans_count_them_too(self, policy):
        _, record = run(self.two_types(policy))
        assert record.result.capacity is not None
        assert {pool.name for pool in record.result.capacity.pools} == {"A100-80GB", "P100"}

    @pytest.mark.parametrize(("power_kw", "began_s"), [(1.3, 600.0), (2.1, 100.0)])
    def test_within_a_power_budget_fractional_jobs_wake_no_node_beyond_it(self, power_kw, began_s):
        # a node counts 700 W with its GPUs busy, and one of each type is on: for the service, and for a job of 600 s
        document = self.two_types(power_kw=power_kw)
        document["services"] = [service(rps=[20.0] * 12)]
        document["workload"]["jobs"] = document["workload"]["jobs"][:1]
        document["fractional"]["jobs"] = [fraction(f"f{i}", 100, 600, 1000) for i in range(3)]
        done, record = run(document)
        assert isinstance(done.controller, FleetController)
        assert done.controller.manager.counters.began_s == {0: 100.0, 1: 100.0, 2: began_s}
        assert record.result.fleet is not None
        cap = record.result.fleet.power_cap
        assert cap is not None
        assert (cap.over_s, cap.most_w <= 1000 * power_kw) == (0, True)
