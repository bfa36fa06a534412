"""The control plane put together from its configuration: what ``serve`` and ``check`` use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commonwatt.control.book import Rules
from commonwatt.control.controller import Controller
from commonwatt.control.engine import LiveEngine
from commonwatt.control.policy import Policy
from commonwatt.data.files import load_yaml
from commonwatt.engines.images import Images
from commonwatt.engines.simulated.live import VirtualWork
from commonwatt.engines.slurm.power import check_one_state
from commonwatt.live.capacity import check_plan, live_capacity, since_s
from commonwatt.live.clock import SteadyClock
from commonwatt.live.durable import Durable
from commonwatt.live.engines import Marks, make_engine, others_of
from commonwatt.live.jobs import JobMaker
from commonwatt.live.keeper import Keeper, Pace
from commonwatt.live.observer import SETTING, Observer
from commonwatt.live.savings import Estimator, plans_of
from commonwatt.live.session import Session
from commonwatt.live.state import state_of, take_state
from commonwatt.model.errors import InputError
from commonwatt.model.jobs import JobTable
from commonwatt.model.names import check_in_address
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import Scenario
from commonwatt.model.units import DAY_S
from commonwatt.placement.solvers import KeepGoing
from commonwatt.simulation.capacity import Fits
from commonwatt.simulation.warm import warm_up
from commonwatt.store.database import Database, address
from commonwatt.store.entitlements import enter_tenants
from commonwatt.store.reach import within_reach
from commonwatt.store.records import RequestKind
from commonwatt.store.store import Store
from commonwatt.store.ticks import Tick, TickStore

__all__ = ["Live", "open_live", "read_config"]


@dataclass(frozen=True)
class Live:
    """The control plane of one configuration."""

    config: Scenario
    folder: Path
    cluster: Cluster
    database: Database
    store: Store
    maker: JobMaker
    keeper: Keeper
    estimator: Estimator

    def start(self) -> None:
        """Start the controller.

        Raises ``StoreError`` if another one runs on the store, ``EngineError`` if one uses the state folder, and
        ``InputError`` if jobs of this store run that belong to another state folder.
        """
        self.keeper.start()
        self.estimator.start()

    def close(self) -> None:
        """Stop the controller, leave jobs alone, close the database."""
        self.estimator.stop()
        self.keeper.stop()
        self.database.close()


def read_config(path: Path) -> Scenario:
    """Read the configuration of a control plane.

    Raises ``InputError`` on what cannot go live, ``MissingExtraError`` if its capacity plan needs a package not there.
    """
    config = load_yaml(path, Scenario)
    if not config.nodes:
        raise InputError("at least one node", file=path, field="nodes", value="none")
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
        raise InputError("tenant names that differ", file=path, field="tenants.name", value=twice[0])
    for field, every in (("tenants.name", named), ("nodes.name", cluster.names)):
        for name in every:
            try:
                check_in_address(name, field)
            except InputError as error:
                raise error.within(path) from None
    _hold_reachable(config, path)
    _check_plans(config, cluster, path)
    for field, names in _nodes_named(config).items():
        for name in names:
            if name not in cluster.names:
                raise InputError("the name of a node", file=path, field=field, value=name)
    if config.live.profiling and not len(cluster.without(config.live.profiling.nodes)):
        raise InputError("a node that is left for work", file=path, field="live.profiling.nodes", value="all of them")
    return config


def _check_plans(config: Scenario, cluster: Cluster, path: Path) -> None:
    """Raise on capacity plans that cannot work: that in force, and the baseline's, which the estimate simulates."""
    plan, compared = plans_of(config)
    where = "capacity" if config.policies[0].capacity is None else "policies.0.capacity"
    if plan is not None and config.engine == "local":
        expected = "no capacity plan: this engine does not put nodes to sleep (slurm with live.slurm.power does)"
        raise InputError(expected, file=path, field=where, value="a plan")
    try:
        if config.engine == "slurm" and config.live.slurm.power:
            check_one_state(cluster)
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
            told = error.expected if error.value is None else f"{error.expected}, not {error.value!r}"
            told = f"{told} in its {field}" if error.field else told
            raise InputError(told, file=path, field=f"{where}.forecaster", value=asked.forecaster) from None
        if field.startswith(("capacity.", "states")):
            field = f"{where}.{field.removeprefix('capacity.')}"
        raise type(error)(error.expected, file=path, field=field, value=error.value) from None


def _hold_reachable(config: Scenario, path: Path) -> None:
    """Hold that the server's address and the folders named can be such at all."""
    host = config.live.server.host
    try:
        good = host.isprintable() and bool(host.encode("idna"))
    except UnicodeError:  # a part of it is empty, or too long
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
                _hold_apart(state, str(store.database), field)
        if folder is not None:
            within_reach(Path(folder), "live.folder")
    except InputError as error:
        raise error.within(path) from None


def _hold_apart(state: Path, store: str, field: str) -> None:
    """Raise ``InputError`` naming *field* if the folder *state* would be one of the files of *store*, or in one."""
    files = {Path(f"{store}{end}").resolve() for end in ("", "-wal", "-shm", ".claim")}
    found = state.resolve()
    if not files.isdisjoint((found, *found.parents)):
        raise InputError("a folder of its own, not a file of the store (live.store)", field=field, value=state)


def _nodes_named(config: Scenario) -> dict[str, Sequence[str]]:
    profiling = config.live.profiling
    return {
        "live.local.slots": list(config.live.local.slots),
        "live.profiling.nodes": profiling.nodes if profiling else (),
    }


def open_live(
    path: Path, *, seed: int = 0, pace: Pace | None = None, clock: SteadyClock | None = None,
    settled: Callable[[], None] = lambda: None, mode: str | None = None,
) -> Live:  # fmt: skip
    """Open store and engine of the configuration *path*; its controller is there, but not started.

    *settled* is called once it has begun and decided for the first time (``Keeper``). With *mode* it begins in that
    one (``live`` or ``dry-run``), whatever it was in last.

    Raises
    ------
    InputError
        For whatever is wrong in the configuration.
    MissingExtraError
        If a package its capacity plan needs is not installed.
    StoreError
        If the database does not answer.
    """
    config, folder = read_config(path), path.parent.absolute()
    spec = config.policies[0]
    if (plan := plans_of(config)[0]) is not None:  # no more is kept
        plan = plan.model_copy(update={"history_days": min(plan.history_days, config.live.keep_days)})
    if plan is not None and config.engine == "slurm" and not config.live.slurm.power:
        expected = "true: a capacity plan is asked for, and without it no node is put to sleep"
        raise InputError(expected, file=path, field="live.slurm.power", value=config.live.slurm.power)
    cluster = Cluster.of(config.nodes)
    database = Database(address(config.live.store, folder))
    database.prepare()
    store, ticks = Store(database), TickStore(database)
    clock = clock or SteadyClock()
    maker = JobMaker(
        cluster.without(config.live.profiling.nodes if config.live.profiling else ()), config.live.default_time_limit_s
    )
    warm_up(spec)
    engine_of = make_engine(config, folder, cluster, ticks, clock)
    marks, fits = Marks(cluster), Fits()

    def controller(durable: Durable) -> Controller:
        samples = [] if plan is None else store.samples(since_s(plan, clock()), limit=1_000_000)
        return Controller(
            capacity=None if plan is None else live_capacity(plan, cluster, samples, folder, seed, clock(), fits),
            cluster=cluster, engine=durable, policy=Policy.of(spec), rules=rules_of(config),
            tariff=config.electricity.tariff(), rng=np.random.default_rng([seed, 1]), now_s=clock(),
            tenant_weights=store.tenants(), stopwatch=stopwatch(config.live.decision_limit_s),
        )  # fmt: skip

    def session(engine: LiveEngine) -> Session:
        retries = config.live.retries
        return Session(
            ticks, engine, maker, controller, clock, retries, _admission(engine), marks.of(engine),
            config.live.profiling, observer(),
        )  # fmt: skip

    def observer() -> Observer | None:
        others = others_of(config, folder)
        if others is None:
            return None
        return Observer(
            others=others, cluster=cluster, policy=Policy.of(spec), rules=rules_of(config),
            tariff=config.electricity.tariff(), rng=np.random.default_rng([seed, 2]),
            default_limit_s=config.live.default_time_limit_s, stopwatch=stopwatch(config.live.decision_limit_s),
            kept={row["id"]: row for row in store.setting(SETTING, ())},
        )  # fmt: skip

    def claimed() -> None:
        enter_tenants(database, {t.name: t.weight for t in config.tenants}, clock())
        if mode is not None:
            _begin_in(mode, ticks)

    estimator = Estimator(config, store, maker, clock, seed=seed, folder=folder)
    keeper = Keeper(
        ticks, lambda: engine_of(marks.kept(ticks)), session,
        engine_name=config.engine, mode=mode or config.live.mode, clock=clock, pace=pace, saved=estimator.saved,
        keep_s=config.live.keep_days * DAY_S, settled=settled, hold=lambda: take_state(config, path, ticks),
        claimed=claimed,
    )  # fmt: skip
    return Live(config, folder, cluster, database, store, maker, keeper, estimator)


def _begin_in(mode: str, ticks: TickStore) -> None:
    """Have the store say *mode*, and nobody ask for another: what is found running is taken up in that mode already."""
    asked = [request.id for request in ticks.requests() if request.kind is RequestKind.MODE]
    ticks.write(Tick(settings={"mode": mode}, requests=asked))


def rules_of(config: Scenario) -> Rules:
    """Return the rules of the configuration's first policy."""
    return Rules(
        interval_s=config.interval_s,
        postponement_penalty=config.postponement_penalty,
        restart_s=config.preemption.restart_s,
        preempt=config.preemption.allowed,
        half_life_s=config.policies[0].half_life_s,
    )


def _admission(engine: LiveEngine) -> Callable[[JobTable, int], None]:
    return engine.add if isinstance(engine, VirtualWork) else lambda *_: None


def stopwatch(limit_s: float) -> Callable[[], KeepGoing]:
    """Return what a controller begins before each decision: it says to go on for *limit_s*."""
    from time import monotonic

    def begin() -> KeepGoing:
        until_s = monotonic() + limit_s
        return lambda: monotonic() < until_s

    return begin
