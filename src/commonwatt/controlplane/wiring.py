"""Builds the control plane from its configuration, for ``serve`` and ``check``."""

from __future__ import annotations

import logging
import os
import pwd
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from commonwatt.control.controller import Controller
from commonwatt.control.electricity import check_electricity
from commonwatt.control.engine import LiveEngine
from commonwatt.control.job_registry import Rules
from commonwatt.control.policy import Policy, warm_up
from commonwatt.controlplane.capacity import check_plan, live_capacity, since_s
from commonwatt.controlplane.engines import Marks, external_jobs_of, make_engine
from commonwatt.controlplane.health import HealthPoller
from commonwatt.controlplane.identity import broken_promises, check_identity, identity_checks, shared_user
from commonwatt.controlplane.intent_log import WriteAheadEngine
from commonwatt.controlplane.jobs import JobMaker, not_ours
from commonwatt.controlplane.kubernetes_events import Announcer, announcer_of
from commonwatt.controlplane.notifications import Notifier
from commonwatt.controlplane.observer import SETTING, Observer
from commonwatt.controlplane.reconciler import Reconciler
from commonwatt.controlplane.run_times import live_knowledge
from commonwatt.controlplane.savings import Estimator, plans_of
from commonwatt.controlplane.services import check_services, fleet_controller
from commonwatt.controlplane.standby import StandbyView
from commonwatt.controlplane.state import elsewhere, state_of, take_state
from commonwatt.controlplane.supervisor import Pace, SteadyClock, Supervisor
from commonwatt.controlplane.user_jobs import UserJobIntake
from commonwatt.data.files import load_yaml
from commonwatt.engines.kubernetes.connect import refuse_autoscaler
from commonwatt.engines.kubernetes.engine import KubernetesEngine
from commonwatt.engines.kubernetes.power import check_hosts
from commonwatt.engines.run_spec import Images
from commonwatt.engines.simulated.live import VirtualWork
from commonwatt.engines.slurm.node_control import check_one_state
from commonwatt.engines.state_folder import FolderLock
from commonwatt.model.errors import ArgumentError, EngineError, InputError
from commonwatt.model.jobs import JobArrays
from commonwatt.model.names import check_in_address
from commonwatt.model.nodes import Cluster
from commonwatt.model.policies import SOLVER_NAMES
from commonwatt.model.scenario import PolicySpec, Scenario
from commonwatt.model.units import DAY_S
from commonwatt.optimize import KeepGoing
from commonwatt.planning.capacity import FitCache
from commonwatt.store.api_store import ApiStore
from commonwatt.store.controller_store import ControllerStore, Tick
from commonwatt.store.database import Database, address, within_reach
from commonwatt.store.migrate import prepare
from commonwatt.store.records import RequestKind
from commonwatt.store.settings import enter_tenants

__all__ = ["Live", "open_live", "read_config"]

log = logging.getLogger("commonwatt.serve")

IDLE_S = 4.0
"""How long a transaction of ours may be silent: shorter than a lease, as a frozen controller may be in one."""


@dataclass(frozen=True)
class Live:
    """The control plane of one configuration."""

    config: Scenario
    folder: Path
    cluster: Cluster
    database: Database
    store: ApiStore
    maker: JobMaker
    supervisor: Supervisor
    estimator: Estimator
    notifier: Notifier
    announcer: Announcer | None
    misfit: Callable[[], EngineError | None]
    health: HealthPoller | None = None

    def start(self) -> None:
        """Start the controller, or stand by where another one runs on the store.

        Raises ``StoreError`` if another controller runs on the store and this one cannot stand by, ``EngineError`` if
        one uses the state folder, or a standby would use another one, and ``InputError`` if jobs of this store run from
        another state folder.
        """
        self.supervisor.start()
        if not self.supervisor.active and (error := self.misfit()) is not None:
            raise error
        self.estimator.start()
        self.notifier.start()
        for thread in (self.announcer, self.health):
            if thread is not None:
                thread.start()
        tenants = self.store.tenants()
        lines = [*broken_promises(self.config, tenants), shared_user(self.config)]
        lines += identity_checks(self.config, tenants)
        for line in {line.found: line for line in lines if line is not None}.values():
            log.warning(line.found, extra={"advice": line.advice})

    def close(self) -> None:
        """Stop the controller and close the database; jobs keep running."""
        with ExitStack() as last_first:
            last_first.callback(self.database.close)
            last_first.callback(self.supervisor.stop)
            last_first.callback(self.estimator.stop)
            last_first.callback(self.notifier.stop)
            for thread in (self.announcer, self.health):
                if thread is not None:
                    last_first.callback(thread.stop)


def read_config(path: Path) -> Scenario:
    """Read the configuration of a control plane.

    Raises ``InputError`` on a configuration that cannot go live, ``MissingExtraError`` if its capacity plan needs a
    package that is not installed.
    """
    config = load_yaml(path, Scenario)
    if not config.nodes:
        raise InputError("at least one node", file=path, field="nodes", value="none")
    part = next((node for node in config.nodes if node.host is not None), None)
    if part is not None and config.engine == "slurm":
        expected = "GPUs of one type on each node, as Slurm knows it: declare the type that commonwatt is to use"
        raise InputError(expected, file=path, field=f"nodes.{part.host}", value="several types")
    try:
        cluster = Cluster.of(config.nodes)
    except InputError as error:
        raise error.within(path) from None
    try:
        Images(config.live.image_command)
    except InputError as error:
        raise InputError(error.expected, file=path, field="live.image_command", value=error.value) from None
    named = [tenant.name for tenant in config.tenants]
    if twice := [name for name in named if named.count(name) > 1]:
        raise InputError("distinct tenant names", file=path, field="tenants.name", value=twice[0])
    for field, every in (("tenants.name", named), ("nodes.name", cluster.names)):
        for name in every:
            try:
                check_in_address(name, field)
            except InputError as error:
                raise error.within(path) from None
    if live_knowledge(config) is None:
        asked = config.policies[0].knowledge
        expected = (
            "predicted (from jobs that have ended; the default of `serve`) or user-limit (the time limit): what a run "
            "time will be, or that nothing is known of it, can be set in simulations only"
        )
        field = "knowledge" if asked is None else "policies.0.knowledge"
        raise InputError(expected, file=path, field=field, value=asked or config.knowledge)
    if limits := config.policies[0].power_limits:
        expected = "none: engines do not limit the power of GPUs yet, only simulations do"
        raise InputError(expected, file=path, field="policies.0.power_limits", value=list(limits))
    if config.policies[0].solver == "lucid":
        expected = "another: engines do not let jobs share GPUs, only simulations do"
        raise InputError(expected, file=path, field="policies.0.solver", value="lucid")
    try:
        check_electricity(config, cluster, now_s=SteadyClock()())
    except InputError as error:
        raise error.within(path) from None
    if config.live.advises_only(config.engine) and config.live.mode != "dry-run":
        raise InputError(_advises_only(config), file=path, field="live.mode", value=config.live.mode)
    if config.live.mode == "power" and (why := config.why_not_power_alone()) is not None:
        raise InputError(f"live or dry-run: {why}", file=path, field="live.mode", value="power")
    _check_partitions(config, cluster, path)
    _check_users(config, path)
    _check_reachable(config, path)
    check_identity(config, path)
    _check_plans(config, cluster, path)
    try:
        check_services(config, cluster, path.parent.absolute())
    except InputError as error:
        raise error.within(path) from None
    for field, names in _nodes_named(config).items():
        for name in names:
            if name not in cluster.names:
                raise InputError("the name of a node", file=path, field=field, value=name)
    if config.live.profiling and not len(cluster.without(config.live.profiling.nodes)):
        raise InputError("a node that is left for work", file=path, field="live.profiling.nodes", value="all of them")
    if config.policies[0].solver not in SOLVER_NAMES:
        Policy.of(config.policies[0])  # refuses a plugin that cannot be loaded, before anything starts
    return config


def _check_plans(config: Scenario, cluster: Cluster, path: Path) -> None:
    """Raise on capacity plans that cannot work: the one in force, and that of the baseline, which is simulated."""
    plan, compared = plans_of(config)
    where = "capacity" if config.policies[0].capacity is None else "policies.0.capacity"
    powerless = config.engine == "kubernetes" and config.live.kubernetes.power is None
    if plan is not None and (config.engine == "local" or powerless):
        needed = "live.kubernetes.power" if powerless else "slurm with live.slurm.power"
        expected = f"no capacity plan: this engine does not put nodes to sleep ({needed} does)"
        raise InputError(expected, file=path, field=where, value="a plan")
    try:
        if config.engine == "slurm" and config.live.slurm.power:
            check_one_state(cluster)
        if config.engine == "kubernetes" and config.live.kubernetes.power is not None:
            check_hosts(cluster)
        if plan is not None:
            asked = plan
            check_plan(plan, cluster, path.parent.absolute())
        if compared is not None:
            where = f"policies.{len(config.policies) - 1}.capacity"
            asked = compared
            check_plan(compared, cluster, path.parent.absolute(), knows_the_future=True)
    except InputError as error:
        field = error.field or where
        if error.file is not None:  # a fitted model's
            expected = error.expected if error.value is None else f"{error.expected}, not {error.value!r}"
            expected = f"{expected} in its {field}" if error.field else expected
            raise InputError(expected, file=path, field=f"{where}.forecaster", value=asked.forecaster) from None
        if field.startswith(("capacity.", "states")):
            field = f"{where}.{field.removeprefix('capacity.')}"
        raise type(error)(error.expected, file=path, field=field, value=error.value) from None


def _check_partitions(config: Scenario, cluster: Cluster, path: Path) -> None:
    """Raise ``InputError`` on partitions to place jobs in that no node is in, or where nothing says what others do."""
    placed = config.live.slurm.place_in
    if placed and config.engine != "slurm":
        expected = f"engine slurm, or none: of engine {config.engine}, these change nothing"
        raise InputError(expected, file=path, field="live.slurm.place_in", value=", ".join(placed))
    known = {name for kind in cluster.classes for name in kind.partitions}
    for name in placed:
        if name not in known:
            expected = "a partition that nodes are in (nodes.partitions)"
            raise InputError(expected, file=path, field="live.slurm.place_in", value=name)


def _check_users(config: Scenario, path: Path) -> None:
    """Raise ``InputError`` on Unix users of tenants that do not exist, are root, or cannot be used by this process."""
    live = config.live
    given = [(engine, users) for engine, users in (("local", live.local.users), ("slurm", live.slurm.users))]
    for engine, tenant, name in [(engine, *pair) for engine, users in given for pair in users.items()]:
        field = f"live.{engine}.users.{tenant}"
        if config.engine != engine:
            expected = f"engine {engine}, or no users: of engine {config.engine}, these change nothing"
            raise InputError(expected, file=path, field=field, value=name)
        try:
            user = pwd.getpwnam(name)
        except (KeyError, ValueError):
            raise InputError("a Unix user of this machine", file=path, field=field, value=name) from None
        if user.pw_uid == 0 or user.pw_uid == os.geteuid():
            expected = "a Unix user other than root and the one of this process: jobs are to be kept from its files"
            raise InputError(expected, file=path, field=field, value=name)
        if os.geteuid() != 0:
            raise InputError("no users, or root to start this: it changes to them", file=path, field=field, value=name)


def _check_reachable(config: Scenario, path: Path) -> None:
    """Raise ``InputError`` if the server's address or a folder cannot be valid."""
    host = config.live.server.host
    try:
        good = host.isprintable() and bool(host.encode("idna"))
    except UnicodeError:  # a label is empty or too long
        good = False
    if not good:
        raise InputError("an address or the name of a host", file=path, field="live.server.host", value=host)
    state = state_of(config, path.parent.absolute())
    folder = config.live.folder if config.engine == "local" else None
    try:
        store = address(config.live.store, path.parent.absolute())
        if state is not None:
            field = f"live.{config.engine}.state"
            within_reach(state, field)
            if store.get_backend_name() == "sqlite":
                _check_apart(state, str(store.database), field)
        if folder is not None:
            within_reach(Path(folder), "live.folder")
    except InputError as error:
        raise error.within(path) from None


def _check_apart(state: Path, store: str, field: str) -> None:
    """Raise ``InputError`` naming *field* if the folder *state* is, or is in, one of the files of *store*."""
    files = {Path(f"{store}{end}").resolve() for end in ("", "-wal", "-shm", ".claim")}
    place = state.resolve()
    if not files.isdisjoint((place, *place.parents)):
        raise InputError("a separate folder, not a file of the store (live.store)", field=field, value=state)


def _nodes_named(config: Scenario) -> dict[str, Sequence[str]]:
    profiling = config.live.profiling
    return {
        "live.local.slots": list(config.live.local.slots),
        "live.profiling.nodes": profiling.nodes if profiling else (),
    }


def _compile_solvers(spec: PolicySpec, *, predicts: bool) -> None:
    log.info("decisions begin once the solver is loaded; the first time it is compiled, which takes up to a minute")
    warm_up(spec)
    if predicts:  # other code of the solvers, which the first job with predicted run times would wait for
        warm_up(spec, certain=False)


def open_live(
    path: Path, *, seed: int = 0, pace: Pace | None = None, clock: SteadyClock | None = None,
    mode: str | None = None, standby: bool = True,
) -> Live:  # fmt: skip
    """Open the store and the engine of the configuration *path*; the controller is made, but not started.

    With *mode* it begins in that mode (``live``, ``power`` or ``dry-run``), whatever mode it was in last. With
    *standby* it waits where another controller runs on the store, if its database is a server.

    Raises
    ------
    InputError
        For an invalid configuration.
    MissingExtraError, PluginError
        If a package its capacity plan needs is not installed, or its solver is a plugin that cannot be loaded.
    StoreError
        If the database does not answer.
    """
    config, folder = read_config(path), path.parent.absolute()
    mode = _mode_of(config, path, mode)
    spec = config.policies[0]
    if (plan := plans_of(config)[0]) is not None:  # no longer history is kept
        plan = plan.model_copy(update={"history_days": min(plan.history_days, config.live.keep_days)})
    if plan is not None and config.engine == "slurm" and not config.live.slurm.power:
        expected = "true: a capacity plan is configured, and without it no node is put to sleep"
        raise InputError(expected, file=path, field="live.slurm.power", value=config.live.slurm.power)
    if config.engine == "kubernetes":
        try:
            refuse_autoscaler(config.live.kubernetes, folder)
        except InputError as error:
            raise error.within(path) from None
    cluster = Cluster.of(config.nodes)
    database = Database(address(config.live.store, folder), idle_s=IDLE_S)
    prepare(database)
    store, controller_store = ApiStore(database), ControllerStore(database)
    clock = clock or SteadyClock()
    maker = JobMaker.of(config, cluster)
    engine_of = make_engine(config, folder, cluster, controller_store, clock)
    marks, fits = Marks(cluster), FitCache()

    def controller(engine: WriteAheadEngine) -> Controller:
        samples = [] if plan is None else store.samples(since_s(plan, clock()), limit=1_000_000)
        tariff = config.electricity.tariff()
        made = None if plan is None else live_capacity(plan, cluster, samples, folder, seed, clock(), fits, tariff)
        make = Controller if not config.services else fleet_controller(config, cluster, folder)
        return make(
            capacity=made,
            cluster=cluster, engine=engine, policy=Policy.of(spec, live=True), rules=rules_of(config), tariff=tariff,
            rng=np.random.default_rng([seed, 1]), now_s=clock(), tenant_weights=store.tenants(),
            stopwatch=stopwatch(config.live.decision_limit_s),
        )  # fmt: skip

    health = HealthPoller.of(config.live.health, cluster.names, clock, lambda: supervisor.active)
    predicts = live_knowledge(config) == "predicted"
    warm = partial(_compile_solvers, spec, predicts=predicts)

    def reconciler(engine: LiveEngine) -> Reconciler:
        warm()  # once, in the controller's thread: the API answers meanwhile, and accepts jobs
        retries = config.live.retries
        return Reconciler(
            controller_store, engine, maker, controller, clock, retries, _admission(engine), marks.of(engine),
            config.live.profiling, _observer(config, cluster, folder, store, seed, engine),
            predicts=predicts, live=config.live,
            guard=controller_store.check_may_act, advises=config.live.advises_only(config.engine),
            intake=_intake(config, engine, store, controller_store, maker), health=health,
            not_ours=[cluster.names.index(name) for name in not_ours(config, cluster)],
        )  # fmt: skip

    def claimed() -> None:
        prepare(database)  # it may have been upgraded while this one stood by
        enter_tenants(database, {t.name: t.weight for t in config.tenants}, clock())
        if not supervisor.alive:  # not when it takes over
            _begin_in(mode, config.live.mode, controller_store)

    def folder_lock() -> FolderLock | None:
        return take_state(config, path, controller_store, takes_over=supervisor.alive)

    view = None
    if standby and database.backend != "sqlite":
        view = StandbyView(store, controller_store, cluster, config.engine, warm)
    estimator = Estimator(config, store, maker, clock, seed=seed, folder=folder, active=lambda: supervisor.active)
    supervisor = Supervisor(
        controller_store, lambda: engine_of(marks.stored(controller_store)), reconciler,
        engine_name=config.engine, mode=mode or config.live.mode, clock=clock, pace=pace, saved=estimator.saved,
        keep_s=config.live.keep_days * DAY_S, hold=folder_lock, claimed=claimed, standby=view,
    )  # fmt: skip
    notifier = Notifier(
        config.live.notify, store, clock, lambda: supervisor.active, public_url=config.live.server.public_url
    )
    return Live(
        config, folder, cluster, database, store, maker, supervisor, estimator, notifier,
        announcer_of(config, folder, store, supervisor, controller_store.term, clock),
        lambda: elsewhere(config, path, controller_store), health,
    )  # fmt: skip


def _mode_of(config: Scenario, path: Path, mode: str | None) -> str | None:
    """Return the mode to begin in, whatever the store says; ``None``: that of the store. Raises ``ArgumentError``."""
    if mode == "power" and (why := config.why_not_power_alone()) is not None:
        raise ArgumentError(f"live or dry-run: {why}", file=path, field="mode", value=mode)
    if not config.live.advises_only(config.engine):
        return mode
    if mode not in {None, "dry-run"}:
        raise ArgumentError(_advises_only(config), file=path, field="mode", value=mode)
    return "dry-run"


def _intake(
    config: Scenario, engine: LiveEngine, store: ApiStore, controller_store: ControllerStore, maker: JobMaker
) -> UserJobIntake | None:
    """Return what takes over the Jobs of users; ``None`` for an engine that has none."""
    if not isinstance(engine, KubernetesEngine) or config.live.kubernetes.read_only:
        return None
    spec = config.live.kubernetes
    return UserJobIntake(engine, store, controller_store, maker, spec.jobs, spec.priority_classes)


def _observer(
    config: Scenario, cluster: Cluster, folder: Path, store: ApiStore, seed: int, engine: LiveEngine
) -> Observer | None:
    """Return what watches jobs of others; ``None`` for an engine that has none."""
    external_jobs = external_jobs_of(config, folder, engine)
    if external_jobs is None:
        return None
    return Observer(
        external_jobs=external_jobs, cluster=cluster, policy=Policy.of(config.policies[0], live=True),
        rules=rules_of(config), tariff=config.electricity.tariff(), rng=np.random.default_rng([seed, 2]),
        default_limit_s=config.live.default_time_limit_s, stopwatch=stopwatch(config.live.decision_limit_s),
        ended={row["id"]: row for row in store.setting(SETTING, ())}, live_too=bool(not_ours(config, cluster)),
    )  # fmt: skip


def _advises_only(config: Scenario) -> str:
    return f"dry-run, as live.{config.engine}.read_only is set"


def _begin_in(mode: str | None, configured: str, controller_store: ControllerStore) -> None:
    """Set the mode in the store: *mode* if it is given, else the one *configured*, if it is another than last time.

    Requests for another are dropped: running jobs are taken over in that mode already.
    """
    settings = controller_store.settings()
    before = settings.get(_CONFIGURED)
    changed = before not in {None, configured}
    chosen = mode or (configured if changed else None)
    if chosen is None:
        if before is None:
            controller_store.write(Tick(settings={_CONFIGURED: configured}))
        if (kept := settings.get("mode", configured)) != configured:
            log.warning("the mode is the last one, not that of the configuration: %s", kept, extra={"mode": kept})
        return
    asked = [request.id for request in controller_store.requests() if request.kind is RequestKind.MODE]
    controller_store.write(Tick(settings={"mode": chosen, _CONFIGURED: configured}, requests=asked))


_CONFIGURED = "configured_mode"
"""Setting of the store: the mode of the configuration that was served last."""


def rules_of(config: Scenario) -> Rules:
    """Return the rules of the configuration's first policy."""
    preemption = config.policies[0].preemption or config.preemption
    rounds = config.policies[0].rounds or config.rounds
    return Rules(
        interval_s=config.interval_s if rounds is None else rounds.length_s,
        postponement_penalty=config.postponement_penalty,
        restart_s=preemption.restart_s,
        preempt=preemption.allowed,
        half_life_s=config.policies[0].half_life_s,
        round_s=None if rounds is None else rounds.length_s,
        first_start=preemption.first_start,
    )


def _admission(engine: LiveEngine) -> Callable[[JobArrays, int], None]:
    return engine.add if isinstance(engine, VirtualWork) else lambda *_: None


def stopwatch(limit_s: float) -> Callable[[], KeepGoing]:
    """Return a function that starts a stopwatch before each decision: it lets the decision take *limit_s*."""
    from time import monotonic

    def begin() -> KeepGoing:
        until_s = monotonic() + limit_s
        return lambda: monotonic() < until_s

    return begin
