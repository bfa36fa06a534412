"""Services and fractional jobs of a fleet: the part of a tick that cuts, places and slices shared GPUs.

Each tick walks once from demand to slices: requests become replicas (``sizing``), layouts are cut where that is worth
it (``layouts``), replicas and jobs are put on GPUs (``placing``), the time of each GPU is divided (``slices``). A
replica that moves is started at its new place before it leaves the old one; on MIG, where instances are in the way, it
cannot be.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from commonwatt.control.engine import NodeView
from commonwatt.control.events import Event, EventKind, EventLog
from commonwatt.control.fleet.consolidation import Consolidator
from commonwatt.control.fleet.interface import (
    Cut,
    FractionEnded,
    Host,
    Placing,
    ReplicaDemand,
    SharingEngine,
)
from commonwatt.control.fleet.layouts import PresentCut, layout_planners, most_efficient_type
from commonwatt.control.fleet.placing import OpenGpu, ResidentPlacer, UnplacedResident
from commonwatt.control.fleet.shared_gpus import Resident, SharedGpu, SharedGpus
from commonwatt.control.fleet.sizing import FleetCounters, ReplicaSizer
from commonwatt.control.fleet.slices import GpuSlicer
from commonwatt.model.arrays import Bools, Ints
from commonwatt.model.errors import SolverError
from commonwatt.model.fleet import WHOLE_MILLI, Fleet
from commonwatt.model.nodes import Cluster
from commonwatt.model.units import plural

__all__ = ["FleetManager"]

URGENT = 1.0
"""Currency for a second in which a replica has no place: more than jobs that can wait."""
STAYS_S = 3600.0
"""How long a replica counts as staying where it is placed."""
LOOKS_S = 3600.0
"""Most time between ticks while fractional jobs have not ended."""
SERVES_S = 1.0
"""Time until it is looked again whether a replica serves that takes another's place."""
RETRY_S = 300.0
"""The same while some wait for power: nodes that fall asleep leave more of it."""
PATIENCE = 10_000
"""Ticks in a row in which nothing runs and fractional jobs wait."""


class FleetManager:
    """Owns the services and fractional jobs of one run."""

    def __init__(
        self, fleet: Fleet, cluster: Cluster, engine: SharingEngine, placer: ResidentPlacer, log: EventLog,
        rng: np.random.Generator, restart_s: float, host: Host,
    ) -> None:  # fmt: skip
        self.fleet, self.cluster, self.log = fleet, cluster, log
        self._engine, self._placer, self._rng, self._restart_s, self._host = engine, placer, rng, restart_s, host
        self.gpus = SharedGpus(cluster)
        self.counters = FleetCounters(fleet)
        spec = fleet.sharing
        self._shares_time = "time" in spec.modes
        self._sizer = ReplicaSizer(
            shared=self._shares_time, quantum_s=spec.quantum_s, headroom=spec.headroom, slowdown=fleet.slowdown
        )
        self._consolidator = Consolidator(spec.relayout_s)
        self._slicer = GpuSlicer(fleet, cluster, self.gpus)
        self._layouts = layout_planners(fleet, cluster)
        self._type_of = {
            i: most_efficient_type(own, cluster, list(self._layouts)) for i, own in enumerate(fleet.services)
        }
        self._waiting: list[int] = []  # fractional jobs
        self._arrived = 0
        self._ends_s = max((service.load.end_s for service in fleet.services), default=0.0)
        self._tenants = tuple(dict.fromkeys([s.tenant for s in fleet.services] + [j.tenant for j in fleet.jobs]))
        self._room: tuple[int, int] = (-1, -1)
        self._wait_for_power = False  # some fractional job does
        self._dirty: set[int] = set()
        self._stuck = 0
        self._last_s = 0.0
        self._sized_s = -1.0
        self._demands: dict[int, ReplicaDemand] = {}
        self._lacks: dict[int, int] = {}  # replicas without a place, by service

    # -- what the controller asks

    def next_s(self, now_s: float) -> float | None:
        """When something is due; ``None``: nothing is, any more."""
        times = [t for s in self.fleet.services if (t := s.load.next_s(now_s)) is not None and t > now_s]
        if self._arrived < len(self.fleet.jobs):
            times.append(max(now_s, self.fleet.jobs[self._arrived].submit_s))
        for resident in self.gpus.residents.values():
            times += [t for t in (resident.ready_s, resident.until_s) if now_s < t < math.inf]
        if len(self.counters.ended_s) < self._arrived:  # the engine reports ends, but somebody has to wait for them
            times.append(now_s + (RETRY_S if self._wait_for_power else LOOKS_S))
        return min(times, default=None)

    def shared_gpus(self) -> Ints:
        """Return the GPUs of each node that are shared. Shape [N]."""
        counts = np.zeros(len(self.cluster), dtype=np.int64)
        for gpu in self.gpus.gpus.values():
            counts[gpu.node] += 1
        return counts

    def reserved_gpus(self) -> dict[str, float]:
        """Return the GPUs that services and fractional jobs have reserved, as they count in shares, by tenant."""
        by_tenant: dict[str, float] = {}
        for one in self.gpus.residents.values():
            owner = self.fleet.services[one.service] if one.service >= 0 else self.fleet.jobs[one.job]
            kind = self.cluster.classes[self.cluster.klass[self.gpus.gpus[one.gpu].node]]
            by_tenant[owner.tenant] = by_tenant.get(owner.tenant, 0) + one.milli * kind.share_weight
        return {tenant: milli / WHOLE_MILLI for tenant, milli in by_tenant.items()}

    def wanted_gpus(self) -> int:
        """Return the shared GPUs, and those that replicas and jobs without a place would take."""
        return len(self.gpus.gpus) + math.ceil(int(self.unplaced_milli().sum()) / WHOLE_MILLI)

    def unplaced_milli(self) -> Ints:
        """Return what replicas and jobs without a place would take of a class each could be on, in 1/1000 GPU. [K]."""
        milli = np.zeros(len(self.cluster.classes), dtype=np.int64)
        first = {kind.gpu_type: k for k, kind in reversed([*enumerate(self.cluster.classes)])}
        runs = [k for k, kind in enumerate(self.cluster.classes) if self.fleet.sharing.runs_fractions(kind)]
        milli[runs[:1]] += sum(self.fleet.jobs[j].gpu_milli for j in self._waiting)
        for service, count in self._lacks.items():
            sizes = self._demands[service].milli
            at = min(sizes, key=lambda gpu_type: sizes[gpu_type], default="")
            milli[first.get(at, 0)] += count * sizes.get(at, WHOLE_MILLI)
        return milli

    @property
    def phi(self) -> float:
        """The stated part of the time-fair share that is guaranteed on shared GPUs."""
        return self._slicer.sharing.phi

    def set_phi(self, phi: float) -> None:
        """Guarantee this part of the time-fair share, effective at the next tick."""
        self._slicer.sharing = self._slicer.sharing.model_copy(update={"phi": phi})
        self._dirty |= self.gpus.gpus.keys()

    def demand_of(self, service: int) -> ReplicaDemand | None:
        """Return what a service needs, by the last sizing; ``None``: nothing, or it was not sized yet."""
        return self._demands.get(service)

    # -- the tick

    def expect(self, now_s: float) -> None:
        """Size services before the first plan of capacity, which would let the nodes they need sleep."""
        if self._sized_s < 0 and not self.gpus.gpus and self._size(now_s):
            self._lacks = {i: demand.replicas for i, demand in self._demands.items()}
            self._sized_s = -1.0  # `tick` sizes them again, and sees to them

    def tick(self, now_s: float) -> None:
        """Bring everything up to date at *now_s*."""
        self.observe(now_s)
        while self._arrived < len(self.fleet.jobs) and self.fleet.jobs[self._arrived].submit_s <= now_s:
            self._waiting.append(self._arrived)
            self._arrived += 1
        self._look_for_progress()
        sized = self._size(now_s)
        self._leave_on_time(now_s)
        if sized:
            self._cut(now_s)
            self._fit(now_s)
            self._consolidate(now_s)
        self._place(now_s)
        self._return_empty(now_s)
        self._slice(now_s, everything=sized)

    def observe(self, now_s: float) -> None:
        """Account for everything up to *now_s*, and take note of what has ended or was lost."""
        self._host.charge()
        self.counters.settle(self._last_s, now_s, self.gpus, self._lacks)
        self._absorb()
        self._last_s = now_s

    def _look_for_progress(self) -> None:
        """Raise ``SolverError`` if fractional jobs wait, and nothing has happened for a long time that could help."""
        idle = self._waiting and not self.gpus.residents and not self._host.whole_gpus().any()
        self._stuck = self._stuck + 1 if idle else 0
        if self._stuck > PATIENCE:
            waiting = plural(len(self._waiting), "waiting fractional job")
            msg = f"no tick starts any of {waiting}; the first is {self.fleet.jobs[self._waiting[0]].name}"
            raise SolverError(msg)

    def _absorb(self) -> None:
        for change in self._engine.poll_shared():
            if isinstance(change, FractionEnded):
                resident = next(r for r in self.gpus.residents.values() if r.job == change.job)
                self._say(change.at_s, EventKind.FRACTION_ENDED, resident, f"{self._name(resident)} has ended")
                self._remove(resident)
                self.counters.ended(change.job, change.at_s)
                continue
            gpu = self.gpus.gpus[change.gpu]
            for resident in self.gpus.on(gpu):
                self._remove(resident)
                if resident.job >= 0:
                    self._requeue(resident.job)
            self._event(change.at_s, EventKind.GPU_LOST, gpu, change.cause)
            del self.gpus.gpus[change.gpu]
            self._dirty.discard(change.gpu)
            self._sized_s = -1.0

    def _requeue(self, job: int) -> None:
        self.counters.stops += 1
        self._waiting = sorted([*self._waiting, job])

    def _size(self, now_s: float) -> bool:
        """Size all services if a step of requests has begun; returns whether."""
        due = [s.load.next_s(self._sized_s) for s in self.fleet.services] if self._sized_s >= 0 else [now_s]
        if not self.fleet.services or min((t for t in due if t is not None), default=math.inf) > now_s + 1e-9:
            return False
        self._sized_s = now_s
        self._demands = {
            i: self._sizer.demand(i, service, now_s)
            for i, service in enumerate(self.fleet.services)
            if now_s < service.load.end_s - 1e-9
        }
        self._consolidator.note(now_s, self._demands)
        return True

    def _leave_on_time(self, now_s: float) -> None:
        """Let replicas go whose place others have taken, once these really serve."""
        for resident in [r for r in self.gpus.residents.values() if r.until_s <= now_s]:
            stay = [r for r in self.gpus.of_service(resident.service) if r.until_s == math.inf]
            if stay and all(r.ready_s > now_s or self._engine.serves(r.gpu, r.service) for r in stay):
                self._stop_replica(resident, now_s, "another replica has taken its place")
            else:
                resident.until_s = now_s + SERVES_S if stay else math.inf

    # -- layouts

    def _cut(self, now_s: float) -> None:
        for gpu_type, planner in self._layouts.items():
            demands = {i: d for i, d in self._demands.items() if self._type_of[i] == gpu_type}
            present = [
                PresentCut(gpu.gpu, self.gpus.instances(gpu))
                for gpu in self.gpus.gpus.values()
                if gpu.cut and gpu.gpu_type == gpu_type and not self.gpus.is_draining(gpu)
            ]
            free = self._free_gpus(gpu_type, "mig")
            cuts = planner.plan(now_s, demands, present, sum(free.values()))
            if cuts is not None:
                self._carry_out(cuts, gpu_type, {p.gpu for p in present}, now_s)

    def _free(self) -> tuple[NodeView, Ints]:
        """Return the nodes, and the GPUs of each that nobody has and may be shared now. Shape [N]."""
        view = self._host.node_view()
        free = np.maximum(0, view.usable_gpus - self._host.whole_gpus() - self.shared_gpus())
        free[list(self._engine.resting())] = 0
        return view, free

    def _free_gpus(self, gpu_type: str, mode: str) -> dict[int, int]:
        """Return the free GPUs of each node of a type that may be shared in this way: on first, the fullest first."""
        view, free = self._free()
        order = np.lexsort((np.arange(len(free)), free, view.power_state >= 0))
        by_node = {}
        for n in order.tolist():
            kind = self.cluster.classes[self.cluster.klass[n]]
            if free[n] > 0 and kind.gpu_type == gpu_type and mode in kind.share:
                by_node[n] = int(free[n])
        return by_node

    def _carry_out(self, cuts: Sequence[Cut], gpu_type: str, present: set[int], now_s: float) -> None:
        """Cut GPUs, and let those that are cut no more be left as soon as their replicas serve elsewhere."""
        ready_s = now_s
        for cut in cuts:
            ready_s = max(ready_s, self._cut_gpu(cut, gpu_type, now_s))
        for number in sorted(present - {cut.gpu for cut in cuts}):
            for resident in self.gpus.on(self.gpus.gpus[number]):
                moves = any(i.service == resident.service for cut in cuts for i in cut.instances)
                if moves:
                    resident.until_s = ready_s
                    self.counters.moved(resident.service)
                # else `_fit` sees to replicas elsewhere, and takes this one off then
            self.gpus.gpus[number].words = ()

    def _cut_gpu(self, cut: Cut, gpu_type: str, now_s: float) -> float:
        """Cut one GPU; returns when its new replicas serve."""
        spec, gpu = self.fleet.sharing, self.gpus.gpus.get(cut.gpu)
        if gpu is None:
            node = next(iter(self._free_gpus(gpu_type, "mig")))
            gpu = self._open(node, cut=True)
        old = {r.instance: r for r in self.gpus.on(gpu)}
        wanted = {i.word: i for i in cut.instances if i.service >= 0}
        for word, resident in old.items():
            if word not in wanted or wanted[word].service != resident.service:
                self.counters.drained += 1
                self._stop_replica(resident, now_s, f"instance {word} drains")
        changed = set(gpu.words) != {i.word for i in cut.instances}
        gpu.words = tuple(i.word for i in cut.instances)
        created_s = max(now_s, gpu.ready_s) + (spec.drain_s if changed else 0.0)
        ready_s = now_s
        for word, instance in wanted.items():
            if word in old and old[word].key in self.gpus.residents:
                continue
            service = self.fleet.services[instance.service]
            milli = int(instance.part * WHOLE_MILLI)
            resident = self.gpus.enter(gpu.gpu, milli, created_s + service.start_s, service=instance.service)
            resident.instance, resident.rate_rps = word, instance.rate_rps
            ready_s = max(ready_s, resident.ready_s)
            self._say(now_s, EventKind.REPLICA_STARTED, resident, f"{service.name} has instance {word}")
        if changed:
            self.counters.layouts += 1
            layout = " + ".join(word.partition("@")[0] for word in gpu.words)
            self._event(now_s, EventKind.GPU_CUT, gpu, f"cut into {layout} for the requests of services")
        self._dirty.add(gpu.gpu)
        return ready_s

    # -- replicas

    def _fit(self, now_s: float) -> None:
        """Bring the replicas of each service to the number and size it needs."""
        self._lacks = {}
        for i, service in enumerate(self.fleet.services):
            own = [r for r in self.gpus.of_service(i) if r.until_s == math.inf]
            demand = self._demands.get(i)
            if demand is None:
                for resident in list(self.gpus.of_service(i)):
                    self._stop_replica(resident, now_s, f"{service.name} has no more requests")
                continue
            on_mig = [r for r in own if r.instance and self.gpus.gpus[r.gpu].words]
            stranded = [r for r in own if r.instance and not self.gpus.gpus[r.gpu].words]
            others = [r for r in own if not r.instance]
            if on_mig:
                serves_s = max(r.ready_s for r in on_mig)
                for resident in others:
                    self._supersede(resident, serves_s, now_s)
                continue
            if len(others) > demand.replicas:  # those alone on a GPU go first: others may then have it
                others.sort(key=lambda r: (r.ready_s > now_s, len(self.gpus.on(self.gpus.gpus[r.gpu])) == 1))
            for resident in others[demand.replicas :]:
                self._stop_replica(resident, now_s, f"{service.name} needs {plural(demand.replicas, 'replica')}")
            short = sum(not self._resize(r, demand, now_s) for r in others[: demand.replicas])
            lacking = max(0, demand.replicas - len(others)) + short
            if lacking:
                self._lacks[i] = lacking
            elif stranded:
                serves_s = max(r.ready_s for r in others)
                for resident in stranded:
                    self._supersede(resident, serves_s, now_s)

    def _supersede(self, resident: Resident, serves_s: float, now_s: float) -> None:
        """Let a replica go once those that take its place serve."""
        resident.until_s = serves_s
        self.counters.moved(resident.service)
        if serves_s <= now_s:
            self._stop_replica(resident, now_s, "other replicas have taken its place")

    def _resize(self, resident: Resident, demand: ReplicaDemand, now_s: float) -> bool:
        """Reserve what a replica needs now; returns whether its GPU has room, else it keeps what there is."""
        gpu = self.gpus.gpus[resident.gpu]
        wanted = demand.milli.get(gpu.gpu_type)
        if wanted is None:  # a whole one is not enough any more
            return False
        lacking = wanted - resident.milli - self.gpus.free_milli(gpu)
        for other in sorted(self.gpus.on(gpu), key=lambda r: -r.key) if lacking > 0 else ():
            if lacking > 0 and other.job >= 0 and self.fleet.jobs[other.job].qos == "BE":
                lacking -= other.milli
                self._stop_fraction(other, now_s, "a service beside it needs its part")
        milli = min(wanted, resident.milli + self.gpus.free_milli(gpu))
        if milli != resident.milli:
            resident.milli = milli
            self._dirty.add(gpu.gpu)
        return milli >= wanted

    def _consolidate(self, now_s: float) -> None:
        """Move replicas off GPUs that can be left, unless some lack a place: these need the room."""
        shared = [gpu for gpu in self.gpus.gpus.values() if not gpu.cut and not self._lacks]
        for move in self._consolidator.moves(now_s, [self.gpus.room(gpu, now_s) for gpu in shared]):
            old, target = self.gpus.residents[move.replica], self.gpus.gpus[move.gpu]
            service, milli = self.fleet.services[old.service], self._demands[old.service].milli[target.gpu_type]
            ready_s = max(now_s, target.ready_s) + service.start_s
            new = self.gpus.enter(move.gpu, milli, ready_s, service=old.service)
            new.rate_rps, old.until_s = service.types[target.gpu_type].rate_rps, new.ready_s
            self.counters.moved(old.service)
            self._dirty.add(move.gpu)
            self._say(now_s, EventKind.REPLICA_STARTED, new, f"{service.name} moves here, and leaves another GPU")

    # -- placement

    def _place(self, now_s: float) -> None:
        candidates = self._candidates(now_s)
        if not candidates or not self._has_more_room(candidates):
            return
        self._wait_for_power = False
        placed = self._placed(candidates, now_s)
        urgent = [c for c in candidates if c.weight > 0 and c.resident not in placed]
        for candidate in urgent if self.fleet.sharing.preempt else ():
            shared = min(candidate.milli.values(), default=WHOLE_MILLI) < WHOLE_MILLI
            if candidate.resident not in placed and self._host.make_room(tuple(candidate.milli), shared, now_s):
                self.counters.made_room += 1
                placed |= self._placed([c for c in urgent if c.resident not in placed], now_s)
        left = [c for c in candidates if c.resident not in placed]
        self._waiting = [c.resident for c in left if c.resident >= 0]
        self._lacks = dict(Counter(self._service_of(c.resident) for c in left if c.resident < 0))
        self._room = self._room_now()

    def _has_more_room(self, candidates: Sequence[UnplacedResident]) -> bool:
        """Whether placement could find more than the last time it left somebody waiting."""
        fresh = any(c.submit_s >= self._last_s for c in candidates)
        milli, whole = self._room_now()
        return fresh or milli > self._room[0] or whole > self._room[1] or self._wait_for_power

    def _room_now(self) -> tuple[int, int]:
        _, free = self._free()
        return sum(self.gpus.free_milli(gpu) for gpu in self.gpus.gpus.values()), int(free.sum())

    def _candidates(self, now_s: float) -> list[UnplacedResident]:
        """Return replicas without a place, numbered below 0 by service, then fractional jobs in order of submission."""
        candidates = []
        for i, count in sorted(self._lacks.items()):
            service, demand = self.fleet.services[i], self._demands[i]
            power_w = {t: model.power_w for t, model in service.types.items()}
            for k in range(count):
                number, tenant = -1 - i - k * len(self.fleet.services), self._tenants.index(service.tenant)
                candidates.append(UnplacedResident(number, tenant, now_s, demand.milli, STAYS_S, power_w, URGENT))
        types = sorted({k.gpu_type for k in self.cluster.classes if self.fleet.sharing.runs_fractions(k)})
        for j in self._waiting:
            job = self.fleet.jobs[j]
            sizes = dict.fromkeys(types, job.gpu_milli if self._shares_time else WHOLE_MILLI)
            tenant = self._tenants.index(job.tenant)
            candidates.append(UnplacedResident(j, tenant, job.submit_s, sizes, job.duration_s, {}, 0.0))
        return candidates

    def _service_of(self, resident: int) -> int:
        return (-1 - resident) % len(self.fleet.services)

    def _placed(self, candidates: Sequence[UnplacedResident], now_s: float) -> set[int]:
        """Place *candidates*; a fractional job without power where it is placed is placed on nodes of another kind."""
        placed: set[int] = set()
        short = np.zeros(len(self.cluster), dtype=bool)
        while left := [c for c in candidates if c.resident not in placed]:
            view, free = self._free()
            free[short] = 0
            on: Bools = view.power_state < 0
            shared = [
                OpenGpu(g.gpu, g.node, self.gpus.free_milli(g))
                for g in self.gpus.gpus.values() if not g.cut and not short[g.node]
            ]  # fmt: skip
            placings = self._placer.place(now_s, left, shared, free, on, view.wait_s.tolist(), self._tenants, self._rng)
            done, lacking = self._enter_all(placings, now_s)
            placed |= done
            if not lacking:
                break
            self._wait_for_power = True
            for node in lacking:
                short |= (self.cluster.klass == self.cluster.klass[node]) & (on == on[node])
        return placed

    def _enter_all(self, placings: Sequence[Placing], now_s: float) -> tuple[set[int], set[int]]:
        """Put residents where they are placed; returns those, and the nodes that lack power for a fractional job."""
        opened: dict[int, int] = {}  # GPUs opened for this, by the number they were placed under
        placed, lacking = set(), set()
        for placing in placings:
            number = placing.gpu
            if placing.resident >= 0 and not self._has_power(placing, now_s):
                lacking.add(placing.node)
                continue
            placed.add(placing.resident)
            if number < 0:
                if number not in opened:
                    opened[number] = self._open(placing.node, cut=False).gpu
                    self._event(now_s, EventKind.GPU_SHARED, self.gpus.gpus[opened[number]], "taken from whole jobs")
                number = opened[number]
            self._enter(placing, number, now_s)
        return placed, lacking

    def _has_power(self, placing: Placing, now_s: float) -> bool:
        """Whether a fractional job stays below the power cap where it is placed, until its end."""
        job = placing.resident
        left_w = self._host.power_left_w(placing.node, now_s, self.fleet.jobs[job].duration_s)
        return self._slicer.job_w(job, placing.node) <= left_w + 1e-6

    def _open(self, node: int, *, cut: bool) -> SharedGpu:
        number = self.gpus.next_gpu
        ready_s = self._engine.open_gpu(number, node)
        kind = self.cluster.classes[self.cluster.klass[node]]
        return self.gpus.open(node, kind.gpu_type, ready_s, cut=cut)

    def _enter(self, placing: Placing, number: int, now_s: float) -> None:
        gpu = self.gpus.gpus[number]
        begins_s = max(now_s, gpu.ready_s)
        self._dirty.add(number)
        if placing.resident >= 0:
            job = self.fleet.jobs[placing.resident]
            again = placing.resident in self.counters.began_s
            begins_s += self._restart_s if again else 0.0
            resident = self.gpus.enter(number, placing.milli, begins_s, job=placing.resident)
            self._engine.start_fraction(placing.resident, number, job.work_gpu_s, begins_s)
            self.counters.began_s.setdefault(placing.resident, now_s)
            what = f"{job.name} has {placing.milli / WHOLE_MILLI:g} of a GPU"
            self._say(now_s, EventKind.FRACTION_STARTED, resident, what)
            return
        index = self._service_of(placing.resident)
        service = self.fleet.services[index]
        resident = self.gpus.enter(number, placing.milli, begins_s + service.start_s, service=index)
        resident.rate_rps = service.types[gpu.gpu_type].rate_rps
        what = f"{service.name} has {placing.milli / WHOLE_MILLI:g} of a GPU"
        self._say(now_s, EventKind.REPLICA_STARTED, resident, what)
        old = [r for r in self.gpus.of_service(index) if r.until_s == math.inf and r.key != resident.key]
        if len(old) >= self._demands[index].replicas:  # it takes the place of one whose GPU has no room
            narrow = min((r for r in old if not r.instance), key=self._has_of_need, default=None)
            if narrow is not None:
                narrow.until_s = resident.ready_s
                self.counters.moved(index)

    def _has_of_need(self, resident: Resident) -> float:
        """Return what a replica has reserved over what it needs."""
        wanted = self._demands[resident.service].milli.get(self.gpus.gpus[resident.gpu].gpu_type)
        return 0.0 if wanted is None else resident.milli / wanted

    # -- leaving

    def _remove(self, resident: Resident) -> None:
        self._dirty.add(resident.gpu)
        self.gpus.leave(resident.key)

    def _stop_replica(self, resident: Resident, now_s: float, why: str) -> None:
        self._say(now_s, EventKind.REPLICA_STOPPED, resident, f"{self._name(resident)}: {why}")
        self._remove(resident)

    def _stop_fraction(self, resident: Resident, now_s: float, why: str) -> None:
        self._engine.stop_fraction(resident.job)
        self._say(now_s, EventKind.FRACTION_STOPPED, resident, f"{self._name(resident)}: {why}")
        self._remove(resident)
        self._requeue(resident.job)

    def stop_for_power(self, now_s: float, *, best_effort: bool) -> bool:
        """Stop the fractional job that came last, one of class BE if so asked for; returns whether there was one."""
        own = [r for r in self.gpus.residents.values() if r.job >= 0]
        own = [r for r in own if not best_effort or self.fleet.jobs[r.job].qos == "BE"]
        if not own:
            return False
        self._stop_fraction(max(own, key=lambda r: r.key), now_s, "the power cap leaves it none")
        self.counters.cap.stopped_fractions += 1
        self._wait_for_power = True
        self._return_empty(now_s)
        self._slice(now_s, everything=False)
        return True

    def spare_w(self) -> float:
        """Return how much more shared GPUs would draw if all on them used what they may, W."""
        return self._slicer.spare_w()

    def _return_empty(self, now_s: float) -> None:
        empty = [gpu for gpu in self.gpus.gpus.values() if not gpu.residents]
        for gpu in empty:
            self._engine.close_gpu(gpu.gpu)
            self._event(now_s, EventKind.GPU_RETURNED, gpu, "nothing runs on it any more")
        if empty:
            self._host.charge()
        for gpu in empty:
            del self.gpus.gpus[gpu.gpu]
            self._dirty.discard(gpu.gpu)

    def _slice(self, now_s: float, *, everything: bool) -> None:
        """Divide the time of each GPU on which something has changed, and set speeds and powers by it."""
        ready = [r for r in self.gpus.residents.values() if r.ready_s == now_s]
        numbers = sorted(self.gpus.gpus if everything or ready else self._dirty & self.gpus.gpus.keys())
        loads = {i: service.load.at(now_s) for i, service in enumerate(self.fleet.services)}
        touched = {r.service for n in numbers for r in self.gpus.on(self.gpus.gpus[n]) if r.service >= 0}
        if touched:  # requests are spread anew over all replicas of a service
            numbers = sorted({r.gpu for r in self.gpus.residents.values() if r.service in touched} | set(numbers))
        sliced = self._slicer.slice(numbers, loads, now_s)
        for number, work in sliced.items():
            self._engine.share_gpu(number, work.power_w, work.speeds, self.gpus.shares(self.gpus.gpus[number]))
        self._host.charge()
        for number, work in sliced.items():
            self.gpus.weigh(self.gpus.gpus[number], work.power_of)
        self._dirty.clear()

    def weigh_measured(self) -> None:
        """Divide what shared GPUs were charged by the time each service has had, where the engine measures it."""
        if self._engine.capabilities.measures_shared:
            self.gpus.weigh_measured(self.fleet.services, self._engine.busy)

    def finish(self, now_s: float) -> None:
        """Count what happened since the last tick."""
        self.counters.settle(self._last_s, now_s, self.gpus, self._lacks)
        self._last_s = now_s

    # -- the log

    def _name(self, resident: Resident) -> str:
        if resident.service >= 0:
            return self.fleet.services[resident.service].name
        return self.fleet.jobs[resident.job].name

    def _say(self, at_s: float, kind: EventKind, resident: Resident, text: str) -> None:
        self.log.append(Event(at_s, kind, -1, (self.gpus.gpus[resident.gpu].node,), 0, str(kind), text))

    def _event(self, at_s: float, kind: EventKind, gpu: SharedGpu, text: str) -> None:
        self.log.append(Event(at_s, kind, -1, (gpu.node,), 1, str(kind), text))
