"""The engine a configuration names."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import count, islice
from pathlib import Path
from typing import Any

from commonwatt.control.engine import LiveEngine, MeterMark
from commonwatt.control.external_jobs import ExternalJob
from commonwatt.controlplane.services import hosting_of
from commonwatt.engines.kubernetes import model_servers as pod_servers
from commonwatt.engines.kubernetes.connect import api_of, open_kubernetes
from commonwatt.engines.kubernetes.engine import KubernetesEngine
from commonwatt.engines.kubernetes.settings import cluster_label
from commonwatt.engines.local.engine import LocalEngine
from commonwatt.engines.meters import Since, nvml_energy_j
from commonwatt.engines.model_servers import stop_front, stop_services
from commonwatt.engines.run_spec import Images, JobWork, mark_of
from commonwatt.engines.simulated.engine import World
from commonwatt.engines.simulated.live import VirtualWork
from commonwatt.engines.slurm import model_servers as slurm_servers
from commonwatt.engines.slurm.connect import open_slurm, slurm_of
from commonwatt.engines.slurm.snapshot import external_jobs
from commonwatt.engines.state_folder import identity_in
from commonwatt.model.errors import EngineError, InputError
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import Scenario
from commonwatt.store.controller_store import ControllerStore

__all__ = ["Marks", "external_jobs_of", "make_engine", "slots_of", "stop_services_of", "user_of", "work_of"]


class Marks:
    """How each node's meter was read last: kept in the store from one engine to the next."""

    def __init__(self, cluster: Cluster) -> None:
        self._at = {name: n for n, name in enumerate(cluster.names)}

    def stored(self, store: ControllerStore) -> Since:
        """Return the marks in the store."""
        written = store.settings().get("metered", {})
        return {self._at[name]: MeterMark(*mark[:3]) for name, mark in written.items() if name in self._at}

    def of(self, engine: LiveEngine) -> Callable[[], dict[str, Any]]:
        """Return a function that returns the current marks of *engine*, as they are written down."""
        names = list(self._at)
        return lambda: {names[n]: list(mark) for n, mark in engine.marks().items()}


def work_of(config: Scenario, store: ControllerStore) -> Callable[[str], JobWork]:
    """Return a function that returns the work of the job called ``ID-NAME``."""

    def find(name: str) -> JobWork:
        rows = store.jobs_by_id([int(name.partition("-")[0])])
        if not rows:
            msg = f"job {name}: it is not in the store"
            raise EngineError(msg)
        file = rows[0].file
        if file.workload is not None and config.engine != "kubernetes":
            msg = f"job {name} is a Job of Kubernetes, which engine {config.engine} does not run"
            raise EngineError(msg)
        return JobWork(
            command=file.command,
            folder=None if (own := file.folder or config.live.folder) is None else Path(own),
            epochs=float(file.epochs),
            environment=file.environment,
            snapshots=None if file.snapshots is None else Path(file.snapshots),
            image=file.image,
            time_limit_s=file.time_limit_s,
            mark=mark_of(rows[0].submit_s),
            output_bytes=None if config.live.output_mb is None else int(config.live.output_mb * 1e6),
            files_bytes=None if config.live.files_gb is None else int(config.live.files_gb * 1e9),
            reserve_bytes=int(config.live.reserve_mb * 1e6),
            batch=file.batch,
            partition=file.partition,
            constraint=file.constraint,
            user=user_of(config, rows[0].tenant),
            options=options_of(config, rows[0].tenant),
            cpus_per_gpu=None if file.batch else file.cpus_per_gpu,
            memory_gib_per_gpu=None if file.batch else file.memory_gib_per_gpu,
            workload=() if (of := file.workload) is None else (of.namespace, of.name, of.uid, str(of.pods or "")),
        )

    return find


def user_of(config: Scenario, tenant: str) -> str | None:
    """Return the Unix user of a tenant's jobs, ``None`` for that of this process.

    Raises ``EngineError`` for a tenant without one, where others have their own: it must not run as this process.
    """
    users = config.live.users_of(config.engine)
    if users and tenant not in users:
        msg = f"tenant {tenant} has no Unix user (live.{config.engine}.users): its jobs do not run"
        raise EngineError(msg)
    return users.get(tenant)


def options_of(config: Scenario, tenant: str) -> tuple[str, ...]:
    """Return the options of ``sbatch`` that the site sets for a tenant's jobs."""
    if config.engine != "slurm":
        return ()
    given = {"account": config.live.slurm.accounts, "qos": config.live.slurm.qos}
    return tuple(f"--{name}={of[tenant]}" for name, of in given.items() if tenant in of)


def slots_of(config: Scenario, cluster: Cluster) -> list[tuple[int, ...]]:
    """Return the GPU indices of each node of the local engine: those given, else the lowest free ones."""
    given = config.live.local.slots
    taken = {slot for own in given.values() for slot in own}
    free = (slot for slot in count() if slot not in taken)
    named = zip(cluster.names, cluster.gpus.tolist(), strict=True)
    return [tuple(given[name]) if name in given else tuple(islice(free, gpus)) for name, gpus in named]


def make_engine(
    config: Scenario, folder: Path, cluster: Cluster, store: ControllerStore, now_s: Callable[[], float]
) -> Callable[[Since], LiveEngine]:
    """Return a function that connects to the engine of *config*, continuing from the marks it gets."""
    works, images = work_of(config, store), Images(config.live.image_command)
    if config.engine == "simulated":
        preemption = config.policies[0].preemption or config.preemption
        world = World(restart_s=preemption.restart_s, lose_work=preemption.lose_work, unused_state=None)
        virtual = VirtualWork(cluster, world, now_s)
        return lambda _: virtual
    if config.engine == "local":
        spec = config.live.local
        slots = _checked(slots_of(config, cluster), cluster)
        hosting = hosting_of(config, cluster, folder)
        energy_j = nvml_energy_j(cluster, slots, now_s) if spec.meter == "nvml" else None
        return lambda since: LocalEngine(
            cluster, folder / spec.state, works, slots=slots, grace_s=spec.grace_s, images=images,
            node_energy_j=energy_j, declared_power=spec.meter == "declared", since=since, now_s=now_s,
            hosting=hosting,
        )  # fmt: skip
    if config.engine == "slurm":
        return lambda since: open_slurm(
            config.live.slurm,
            cluster,
            folder,
            works,
            images=images,
            since=since,
            now_s=now_s,
            guard=store.check_may_act,
            hosting=hosting_of(config, cluster, folder),
        )
    if config.engine == "kubernetes":
        return lambda since: open_kubernetes(
            config.live.kubernetes, cluster, folder, works, since=since, now_s=now_s, guard=store.term(),
            hosting=hosting_of(config, cluster, folder),
        )  # fmt: skip
    raise InputError("simulated, local, slurm or kubernetes", field="engine", value=config.engine)


def external_jobs_of(config: Scenario, folder: Path, engine: object) -> Callable[[], list[ExternalJob]] | None:
    """Return a function that asks the *engine* of a configuration for external jobs; ``None`` if it has none."""
    if isinstance(engine, KubernetesEngine):
        return engine.external_jobs
    if config.engine != "slurm":
        return None
    spec = config.live.slurm
    return lambda: external_jobs(slurm_of(spec), identity_in(folder / spec.state), set(spec.users.values()))


def stop_services_of(config: Scenario, folder: Path) -> int | None:
    """Stop all model servers and the front, if the engine has any; returns how many ran.

    Raises ``EngineError`` if the engine does not answer.
    """
    if config.engine == "local":
        return stop_services(folder / config.live.local.state)
    if not config.services:
        return None
    if config.engine == "slurm":
        state = folder / config.live.slurm.state
        return stop_front(state) + slurm_servers.stop_servers(slurm_of(config.live.slurm), identity_in(state))
    if config.engine == "kubernetes":
        spec = config.live.kubernetes
        state, api = folder / spec.state, api_of(spec, folder)
        with closing(api):
            namespace, label = spec.namespace or api.access.namespace, cluster_label(identity_in(state))
            return stop_front(state) + pod_servers.stop_servers(api, namespace, label)
    return None


def _checked(slots: list[tuple[int, ...]], cluster: Cluster) -> list[tuple[int, ...]]:
    """Return *slots*; raises ``InputError`` if a node has not one for each GPU, or one is given twice."""
    given = [slot for own in slots for slot in own]
    for name, gpus, own in zip(cluster.names, cluster.gpus.tolist(), slots, strict=True):
        if len(own) != gpus or min(own) < 0:
            raise InputError(f"{gpus} GPU indices, 0 or more", field=f"live.local.slots.{name}", value=list(own))
        if any(given.count(slot) > 1 for slot in own):
            raise InputError("distinct GPU indices", field=f"live.local.slots.{name}", value=list(own))
    return slots
