"""What the decisions of a fleet hand on, by hand: sizes, latency, slices, layouts, placings."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.control.fleet.interface import ReplicaDemand
from commonwatt.control.fleet.layouts import LayoutPlanner, PresentCut
from commonwatt.control.fleet.placing import OpenGpu, ResidentPlacer, UnplacedResident
from commonwatt.control.fleet.sizing import ReplicaSizer, late_share, spare_rps
from commonwatt.control.fleet.slices import Sharer, slices_of
from commonwatt.control.policy import Policy
from commonwatt.model.electricity import Electricity
from commonwatt.model.fleet import ModelOnType, RequestLoad, ServiceModel, SharingSpec
from commonwatt.model.nodes import Cluster, NodeSpec
from commonwatt.model.scenario import PolicySpec

SHARED = ReplicaSizer(shared=True, quantum_s=0.0, headroom=1.0, slowdown=0.0)
WHOLE = ReplicaSizer(shared=False, quantum_s=0.0, headroom=1.0, slowdown=0.0)


def service(
    rps: float = 10.0, *, rate: float = 100.0, latency_s: float = 0.1, most: int = 8, **model: object
) -> ServiceModel:
    types = {"A100-80GB": ModelOnType(rate, 0.0, 200.0, **model)}  # type: ignore[arg-type]
    load = RequestLoad(np.full(12, rps), 300.0)
    return ServiceModel("s", "t", load, types, latency_s, 0.95, 1, most, 30.0)


class TestSizing:
    def test_the_spare_rate_is_that_of_the_exponential_tail(self):
        own = service(latency_s=0.1)
        assert spare_rps(own, own.types["A100-80GB"], 0.0) == pytest.approx(math.log(20) / 0.1)
        assert spare_rps(own, own.types["A100-80GB"], 0.1) == math.inf

    def test_a_replica_of_just_that_rate_has_just_the_allowed_late_share(self):
        own = service()
        model = own.types["A100-80GB"]
        assert late_share(own, model, 10.0 + math.log(20) / 0.1, 10.0, 0.0) == pytest.approx(0.05)
        assert late_share(own, model, 10.0, 10.0, 0.0) == 1.0

    def test_one_replica_of_the_needed_part(self):
        # 10 requests/s and ln(20)/0.1 = 29.96 to spare: 39.96 of the 100 a whole GPU does
        assert SHARED.demand(0, service(10.0), 0.0) == ReplicaDemand(0, 10.0, 1, {"A100-80GB": 400})

    def test_more_replicas_where_one_gpu_is_not_enough(self):
        # 150 / r + 29.96 <= 100 from r = 3 on; each then needs 79.96
        assert SHARED.demand(0, service(150.0), 0.0) == ReplicaDemand(0, 150.0, 3, {"A100-80GB": 800})

    def test_whole_gpus_where_none_may_be_shared(self):
        assert WHOLE.demand(0, service(10.0), 0.0).milli == {"A100-80GB": 1000}

    def test_interference_is_paid_for_in_advance(self):
        sizer = ReplicaSizer(shared=True, quantum_s=0.0, headroom=1.0, slowdown=0.5)
        milli = sizer.demand(0, service(10.0), 0.0).milli["A100-80GB"]
        part = milli / 1000
        assert part * 100 / (1 + 0.5 * (1 - part)) >= 39.95

    def test_what_no_number_of_replicas_can_serve_has_most_of_them_whole(self):
        demand = SHARED.demand(0, service(5000.0, most=4), 0.0)
        assert (demand.replicas, demand.milli) == (4, {"A100-80GB": 1000})

    @given(st.floats(0.1, 60), st.floats(60, 400), st.floats(0.05, 2.0), st.floats(0, 1))
    def test_a_sized_replica_meets_its_target_beside_a_full_gpu(self, rps, rate, latency_s, slowdown):
        own = service(rps, rate=rate, latency_s=latency_s)
        sizer = ReplicaSizer(shared=True, quantum_s=0.01, headroom=1.0, slowdown=slowdown)
        demand = sizer.demand(0, own, 0.0)
        milli = demand.milli["A100-80GB"]
        if milli == 1000 and sizer.milli(own, own.types["A100-80GB"], rps / demand.replicas) is None:
            return  # nothing is enough
        part = milli / 1000
        served = part * rate / (1 + slowdown * (1 - part))
        wait_s = 0.0 if milli == 1000 else 0.01
        assert late_share(own, own.types["A100-80GB"], served, rps / demand.replicas, wait_s) <= 0.05 + 1e-6


class TestSlices:
    def test_reserved_parts_if_nobody_can_use_more(self):
        slices = slices_of([Sharer(300, 300, 100), Sharer(500, 500, 300)], SharingSpec())
        assert slices.parts.tolist() == [0.3, 0.5]

    def test_phi_is_raised_until_a_service_has_what_it_needs(self):
        # weights 500 and 500, powers 300 and 100: at phi 0 time goes by energy, 1 : 3
        sharers = [Sharer(500, 1000, 300, needs=0.5), Sharer(500, 1000, 100)]
        raised = slices_of(sharers, SharingSpec(phi=0.0))
        assert raised.parts[0] >= 0.5
        assert raised.phi is not None
        assert raised.phi > 0
        free = slices_of([Sharer(500, 1000, 300), Sharer(500, 1000, 100)], SharingSpec(phi=0.0))
        assert free.phi == 0.0
        assert free.parts.tolist() == pytest.approx([0.25, 0.75], abs=1e-4)

    def test_equal_slices_do_not_ask_what_is_reserved(self):
        sharers = [Sharer(900, 900, 100, needs=0.9), Sharer(100, 1000, 100)]
        assert slices_of(sharers, SharingSpec(slices="equal")).parts.tolist() == pytest.approx([0.5, 0.5])

    @pytest.mark.slow
    @given(
        st.lists(st.tuples(st.integers(1, 1000), st.floats(1, 10), st.floats(0, 500)), min_size=1, max_size=6),
        st.floats(0, 1),
    )
    def test_never_more_than_the_gpu(self, drawn, phi):
        total = sum(milli for milli, _, _ in drawn)
        sharers = [
            Sharer(max(1, milli * 1000 // max(total, 1000)), min(1000, int(milli * burst)) or 1, power)
            for milli, burst, power in drawn
        ]
        parts = slices_of(sharers, SharingSpec(phi=phi)).parts
        assert parts.sum() <= 1 + 1e-9
        assert all(part <= sharer.most_milli / 1000 + 1e-9 for part, sharer in zip(parts, sharers, strict=True))


class TestLayouts:
    @staticmethod
    def demands(*rates: float) -> tuple[list[ServiceModel], dict[int, ReplicaDemand]]:
        services = [service(rate, rate=100.0, latency_s=0.5, parallel_fraction=0.9) for rate in rates]
        return services, {i: SHARED.demand(i, s, 0.0) for i, s in enumerate(services)}

    def test_small_services_are_cut_into_one_gpu_where_they_would_fill_two(self):
        services, demands = self.demands(40.0, 40.0, 40.0)
        cuts = LayoutPlanner(services, "A100-80GB", 3600.0).plan(0.0, demands, [], 4)
        assert cuts is not None
        assert len(cuts) == 1
        rate = {i: sum(x.rate_rps for x in cuts[0].instances if x.service == i) for i in range(3)}
        assert all(rate[i] >= 40.0 for i in range(3))

    def test_one_that_is_small_has_a_gpu_to_itself_as_parts_are_rounded_up(self):
        services, demands = self.demands(5.0)
        assert demands[0].milli["A100-80GB"] < 200
        (cut,) = LayoutPlanner(services, "A100-80GB", 3600.0).plan(0.0, demands, [], 4) or ()
        assert {instance.service for instance in cut.instances} == {0}

    def test_one_with_more_memory_than_an_instance_shares_in_time(self):
        services = [service(5.0, memory_gb=100.0)]
        demands = {0: SHARED.demand(0, services[0], 0.0)}
        assert LayoutPlanner(services, "A100-80GB", 3600.0).plan(0.0, demands, [], 4) is None

    @pytest.mark.slow
    @given(st.lists(st.floats(1.0, 400.0), min_size=1, max_size=4))
    @settings(max_examples=25)
    def test_fewer_gpus_than_the_least_are_never_enough(self, rates):
        services, demands = self.demands(*rates)
        planner = LayoutPlanner(services, "A100-80GB", 3600.0)
        least = planner._least(demands)
        for count in range(1, min(4, least)):
            cuts = planner._solved(demands, [], count)
            assert cuts is None or not planner._enough(demands, [PresentCut(c.gpu, c.instances) for c in cuts])
        assert least >= 1

    def test_a_layout_that_is_enough_stays(self):
        services, demands = self.demands(40.0, 40.0, 40.0)
        planner = LayoutPlanner(services, "A100-80GB", 3600.0)
        cuts = planner.plan(0.0, demands, [], 4)
        assert cuts is not None
        present = [PresentCut(k, cut.instances) for k, cut in enumerate(cuts)]
        assert planner.plan(300.0, demands, present, 3) is None

    def test_more_requests_get_more_at_once_and_keep_what_is_used(self):
        services, demands = self.demands(40.0, 40.0, 40.0)
        planner = LayoutPlanner(services, "A100-80GB", 3600.0)
        first = planner.plan(0.0, demands, [], 4)
        assert first is not None
        more = {i: SHARED.demand(i, service(300.0, latency_s=0.5, parallel_fraction=0.9), 0.0) for i in demands}
        second = planner.plan(300.0, more, [PresentCut(7, first[0].instances)], 4)
        assert second is not None
        assert len(second) > 1
        assert any(cut.gpu == 7 for cut in second)

    def test_a_service_that_has_ended_gives_its_instances_back(self):
        services, demands = self.demands(40.0, 40.0, 40.0)
        planner = LayoutPlanner(services, "A100-80GB", 0.0)
        first = planner.plan(0.0, demands, [], 4)
        assert first is not None
        assert planner.plan(300.0, {}, [PresentCut(0, first[0].instances)], 4) == ()


class TestPlacing:
    CLUSTER = Cluster.of(
        [
            NodeSpec(name="a", gpu_type="A", gpus=2, idle_w=100, gpu_w=100, share=("time",)),
            NodeSpec(name="b", gpu_type="B", gpus=1, idle_w=100, gpu_w=100),
        ]
    )

    def place(
        self, waiting: list[UnplacedResident], shared: list[OpenGpu], free: tuple[int, int]
    ) -> list[tuple[int, int, int]]:
        placer = ResidentPlacer(self.CLUSTER, Policy.of(PolicySpec(solver="fifo")), Electricity().tariff())
        found = placer.place(
            0.0, waiting, shared, np.array(free), np.array([True, True]), [0.0, 0.0], ("t",), np.random.default_rng(0)
        )
        return [(p.resident, p.gpu, p.node) for p in found]

    @staticmethod
    def candidate(resident: int, milli: int, gpu_type: str = "A") -> UnplacedResident:
        return UnplacedResident(resident, 0, float(resident), {gpu_type: milli}, 600.0, {}, 0.0)

    def test_a_gpu_that_is_shared_comes_first(self):
        assert self.place([self.candidate(0, 300)], [OpenGpu(5, 0, 400)], (1, 1)) == [(0, 5, 0)]

    def test_what_does_not_fit_gets_one_more_gpu(self):
        (placed,) = self.place([self.candidate(0, 500)], [OpenGpu(5, 0, 400)], (1, 1))
        assert placed[1] < 0
        assert placed[2] == 0

    def test_two_can_share_one_that_is_opened_for_them(self):
        placed = self.place([self.candidate(0, 500), self.candidate(1, 500)], [], (1, 0))
        assert len(placed) == 2
        assert placed[0][1:] == placed[1][1:]

    def test_no_part_of_a_gpu_on_a_node_that_does_not_share(self):
        assert self.place([self.candidate(0, 500, "B")], [], (0, 1)) == []
        assert self.place([self.candidate(0, 1000, "B")], [], (0, 1)) == [(0, -1, 1)]
