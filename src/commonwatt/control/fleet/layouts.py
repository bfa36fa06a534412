"""Layouts of GPUs that are cut by MIG: which services get instances of their own, and which GPUs are cut how.

The program over layouts of ``partitioning.mig`` maximises the worst ratio of what a service's instances can serve in
time to what it needs. The fewest GPUs at which that ratio is 1 are cut; services go there if that takes no more GPUs
than time-sharing would. A layout changes at once if a service lacks instances, and at most every ``relayout_s`` only to
save GPUs. An instance that is used and stays keeps its service.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from commonwatt.control.fleet.interface import Cut, Instance, ReplicaDemand
from commonwatt.control.fleet.sizing import spare_rps
from commonwatt.model.errors import InputError
from commonwatt.model.fleet import WHOLE_MILLI, Fleet, ServiceModel
from commonwatt.model.nodes import Cluster
from commonwatt.model.partition_file import MigFile, MigGpu, MigTenant
from commonwatt.partitioning import mig

__all__ = ["LayoutPlanner", "PresentCut", "check_mig", "layout_planners", "most_efficient_type"]

_SLICES = 7  # of compute, of a whole GPU
DRAIN_PENALTY = 0.03
"""What a drained instance costs, as a part of the worst ratio."""
_MOST_AT_ONCE = 8
"""GPUs that one program decides about."""


def check_mig(fleet: Fleet, cluster: Cluster) -> None:
    """Raise ``InputError`` if nodes of a type without MIG are to be cut, or a replica needs more memory than a GPU has.

    The memory of types without MIG is not known.
    """
    for kind in cluster.classes:
        memory_gb = mig.mig_memory_gb(kind.gpu_type)
        if memory_gb is None:
            if "mig" in kind.share:
                expected = f"a GPU type that supports MIG ({', '.join(mig.mig_types())}), or no mig in `share`"
                raise InputError(expected, field="nodes.gpu_type", value=kind.gpu_type)
            continue
        for service in fleet.services:
            model = service.types.get(kind.gpu_type)
            if model is not None and model.memory_gb > memory_gb:
                raise InputError(
                    f"at most the {memory_gb:g} GB of the GPU",
                    field=f"services.{service.name}.profiles.{kind.gpu_type}.memory_gb", value=f"{model.memory_gb:g}",
                )  # fmt: skip


@dataclass(frozen=True)
class PresentCut:
    """A GPU as it is cut now."""

    gpu: int
    instances: tuple[Instance, ...]


def layout_planners(fleet: Fleet, cluster: Cluster) -> dict[str, LayoutPlanner]:
    """Return a planner for each GPU type of *cluster* that may be cut."""
    cuttable = {k.gpu_type: None for k in cluster.classes if "mig" in k.share and k.gpu_type in mig.mig_types()}
    types = list(cuttable) if "mig" in fleet.sharing.modes else []
    return {t: LayoutPlanner(fleet.services, t, fleet.sharing.relayout_s) for t in types}


@dataclass
class LayoutPlanner:
    """Plans the layouts of the GPUs of one type.

    Parameters
    ----------
    services
        All services of the fleet.
    gpu_type
        A type that supports MIG.
    relayout_s
        Least time between layouts that only save GPUs.
    """

    services: Sequence[ServiceModel]
    gpu_type: str
    relayout_s: float
    _changed_s: float = -math.inf
    _speeds: dict[int, dict[str, float]] = field(default_factory=dict)
    _compute: dict[str, int] = field(default_factory=dict)

    def plan(
        self, now_s: float, demands: Mapping[int, ReplicaDemand], present: Sequence[PresentCut], more_gpus: int
    ) -> tuple[Cut, ...] | None:
        """Return the layouts from now on; ``None``: as they are.

        Parameters
        ----------
        demands
            Of the services that may be on this type, by service.
        present
            GPUs that are cut now.
        more_gpus
            GPUs that could be cut besides.
        """
        wanted = {i: demand for i, demand in demands.items() if self._useful(i)}
        if present and self._enough(wanted, present):
            if now_s - self._changed_s < self.relayout_s:
                return None
            fewest = len(present) - 1
        else:
            fewest = len(present) if present else 1
        if not wanted:
            return self._changed(now_s, ()) if present else None
        if not present and now_s - self._changed_s < self.relayout_s:
            return None
        most = min(len(present) + more_gpus, _MOST_AT_ONCE, self._worth(wanted))
        self._changed_s = now_s
        for count in range(max(1, fewest, self._least(wanted)), most + 1):
            cuts = self._solved(wanted, present, count)
            if cuts is not None and self._enough(wanted, [PresentCut(c.gpu, c.instances) for c in cuts]):
                same = [(c.gpu, c.instances) for c in cuts] == [(p.gpu, p.instances) for p in present]
                return None if same else cuts
        return () if present else None  # more than it is worth: they share in time

    def _changed(self, now_s: float, cuts: tuple[Cut, ...]) -> tuple[Cut, ...]:
        self._changed_s = now_s
        return cuts

    def _worth(self, demands: Mapping[int, ReplicaDemand]) -> int:
        """Return the GPUs that time-sharing would take, the most that are worth cutting."""
        milli = sum(d.replicas * d.milli.get(self.gpu_type, WHOLE_MILLI) for d in demands.values())
        return math.ceil(milli / WHOLE_MILLI)

    def _least(self, demands: Mapping[int, ReplicaDemand]) -> int:
        """Return a number of GPUs with fewer of which no layout is enough: their compute slices do not suffice."""
        slices = 0.0
        for i, demand in demands.items():
            rates, spare = self._rates(i), self._spare(i)
            slices += demand.rate_rps / max((rate - spare) / self._compute[p] for p, rate in rates.items())
        return math.ceil(slices / self._compute["7g"] - 1e-6)

    def _enough(self, demands: Mapping[int, ReplicaDemand], cuts: Sequence[PresentCut]) -> bool:
        """Whether every service can serve what it was sized for, in time."""
        can: dict[int, float] = {}
        for cut in cuts:
            for instance in cut.instances:
                if instance.service >= 0:
                    net = instance.rate_rps - self._spare(instance.service)
                    can[instance.service] = can.get(instance.service, 0.0) + max(0.0, net)
        return all(can.get(i, 0.0) >= demand.rate_rps * (1 - 1e-9) for i, demand in demands.items()) and all(
            i in demands for i in can
        )

    def _spare(self, service: int) -> float:
        own = self.services[service]
        return spare_rps(own, own.types[self.gpu_type], 0.0)

    def _rates(self, service: int) -> dict[str, float]:
        """Return requests per second of a service on each profile that has memory for it."""
        if service not in self._speeds:
            own = self.services[service]
            model = own.types[self.gpu_type]
            alone = MigTenant(
                name=own.name, memory_gb=model.memory_gb,
                parallel_fraction=None if model.mig_speed else model.parallel_fraction,
                speed=None if model.mig_speed is None else dict(model.mig_speed),
            )  # fmt: skip
            try:
                problem = mig.MigProblem.of(MigFile(gpus=(MigGpu(name="gpu", type=self.gpu_type),), tenants=(alone,)))
            except InputError as error:
                if error.field != f"tenants.{own.name}.memory_gb":  # which is more than any instance has
                    where = f"services.{own.name}.profiles.{self.gpu_type}.mig_speed"
                    raise InputError(error.expected, field=where, value=error.value) from None
                self._speeds[service] = {}
                return {}
            speeds = dict(zip([profile.key for _, profile in problem.classes], problem.speeds[0].tolist(), strict=True))
            self._compute |= {profile.key: profile.compute for _, profile in problem.classes}
            whole = speeds["7g"] or 1.0
            self._speeds[service] = {p: model.rate_rps * s / whole for p, s in speeds.items() if s > 0}
        return self._speeds[service]

    def _useful(self, service: int) -> bool:
        spare = self._spare(service)
        return any(rate > spare for rate in self._rates(service).values())

    def _solved(
        self, demands: Mapping[int, ReplicaDemand], present: Sequence[PresentCut], count: int
    ) -> tuple[Cut, ...] | None:
        kept = sorted(present, key=lambda cut: (-sum(i.service >= 0 for i in cut.instances), cut.gpu))[:count]
        gpus = [MigGpu(name=str(k), type=self.gpu_type, present=tuple(i.word for i in cut.instances))
                for k, cut in enumerate(kept)]  # fmt: skip
        gpus += [MigGpu(name=str(k), type=self.gpu_type) for k in range(len(kept), count)]
        tenants = []
        for i, demand in sorted(demands.items()):
            net = {p: rate - self._spare(i) for p, rate in self._rates(i).items() if rate > self._spare(i)}
            weight = max(demand.rate_rps, 1e-6) / max(net.values())
            tenants.append(MigTenant(name=str(i), weight=weight, speed=net, max_instances=self.services[i].most))
        try:
            problem = mig.MigProblem.of(MigFile(gpus=tuple(gpus), tenants=tuple(tenants), drain_penalty=DRAIN_PENALTY))
            solved = mig.solve_integer(problem, "egalitarian")
        except InputError:  # a service without an instance
            return None
        order = [int(tenant.name) for tenant in tenants]
        return self._cuts(problem, solved.picked, solved.instances.tolist(), order, kept)

    def _cuts(
        self, problem: mig.MigProblem, picked: list[list[int]], numbers: list[list[int]], order: Sequence[int],
        kept: Sequence[PresentCut],
    ) -> tuple[Cut, ...]:  # fmt: skip
        """Give services their instances, first those they are on."""
        left = {(i, problem.classes[c][1].key): n for i, row in zip(order, numbers, strict=True)
                for c, n in enumerate(row)}  # fmt: skip
        words = [[str(placed) for placed in plan.choice.layout] for plan in
                 mig.plan_gpus(problem, picked, np.zeros(problem.rates.shape))]  # fmt: skip
        before = [{i.word: i.service for i in cut.instances} for cut in kept]
        users: dict[tuple[int, str], int] = {}
        for k, old in enumerate(before):
            for word in words[k]:
                key = old.get(word, -1), word.partition("@")[0]
                if left.get(key, 0) > 0:
                    users[k, word] = key[0]
                    left[key] -= 1
        for k, layout in enumerate(words):
            for word in layout:
                profile = word.partition("@")[0]
                taker = next((i for i in order if left.get((i, profile), 0) > 0), None)
                if (k, word) not in users and taker is not None:
                    users[k, word] = taker
                    left[taker, profile] -= 1
        part_of = {profile.key: profile.compute / _SLICES for _, profile in problem.classes}
        cuts = []
        for k, layout in enumerate(words):
            instances = tuple(self._instance(word, users.get((k, word), -1), part_of) for word in layout)
            cuts.append(Cut(kept[k].gpu if k < len(kept) else -1, self.gpu_type, instances))
        return tuple(cuts)

    def _instance(self, word: str, service: int, part_of: Mapping[str, float]) -> Instance:
        profile = word.partition("@")[0]
        rate = self._rates(service).get(profile, 0.0) if service >= 0 else 0.0
        return Instance(word, service, part_of[profile], rate)


def most_efficient_type(service: ServiceModel, cluster: Cluster, types: Sequence[str]) -> str | None:
    """Return the GPU type on which a request takes least energy, idle included, if that is one of *types*."""
    idle_w = {k.gpu_type: k.idle_w / k.gpus for k in cluster.classes}
    joules = {t: (model.power_w + idle_w[t]) / model.rate_rps for t, model in service.types.items()}
    best = min(joules, key=lambda t: joules[t])
    return best if best in types else None
