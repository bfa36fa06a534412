"""The state folder of the engine: one controller at a time uses it, and the store records which folder it was."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from commonwatt.engines.local.folder import USERS
from commonwatt.engines.state_folder import FolderLock, hold, identity_in, make_identity, set_fence
from commonwatt.model.errors import EngineError, InputError
from commonwatt.model.live import KubernetesSpec, LocalSpec, SlurmSpec
from commonwatt.model.scenario import Scenario
from commonwatt.store.controller_store import ControllerStore, Tick
from commonwatt.store.records import JobStatus

__all__ = ["elsewhere", "misplaced", "output_of", "own_settings", "state_of", "take_state"]

log = logging.getLogger("commonwatt.state")

_SETTING = "state"


def state_of(config: Scenario, folder: Path) -> Path | None:
    """Return the state folder of *config*, a file in *folder*; ``None`` for an engine that has none."""
    own = own_settings(config)
    return None if own is None else (folder / own.state).absolute()


def output_of(state: Path, job: int, attempt: int) -> tuple[Path, int | None]:
    """Return the file of a run's output, and the number of the user whose file it must be; ``None``: ours."""
    apart = state / USERS / f"{job}-{attempt}"
    try:
        return apart / "output.log", apart.stat().st_uid
    except OSError:
        return state / "runs" / apart.name / "output.log", None


def own_settings(config: Scenario) -> LocalSpec | SlurmSpec | KubernetesSpec | None:
    """Return the settings of the engine of *config*; ``None`` for one that has no state folder."""
    match config.engine:
        case "local":
            return config.live.local
        case "slurm":
            return config.live.slurm
        case "kubernetes":
            return config.live.kubernetes
    return None


def take_state(config: Scenario, file: Path, store: ControllerStore, *, takes_over: bool = False) -> FolderLock | None:
    """Lock the state folder of *config*, read from *file*, and record it in *store*.

    Where another controller may only be frozen, runs that it orders and that have not begun do not begin any more. With
    *takes_over*, a standby takes the place of another controller.

    Raises
    ------
    EngineError
        If another controller uses it, it cannot be used at all, or a standby would use another folder.
    InputError
        If jobs of this store run from another state folder that still exists: they would be started a second time.
    """
    if (error := misplaced(config, file, store)) is not None:
        raise error
    if takes_over and (gone := elsewhere(config, file, store)) is not None:
        raise gone
    path = state_of(config, file.parent.absolute())
    leased = store.claim is not None and store.database.backend != "sqlite"
    claimed = store.check_may_act if leased else None
    lock = None if path is None else hold(path, str(store.database), claimed=claimed)
    try:
        if path is not None and store.claim is not None:
            set_fence(path, anew=store.claim.settle_s > 0)
        _record(config, path, store)
    except BaseException:
        if lock is not None:
            lock.release()
        raise
    return lock


def elsewhere(config: Scenario, file: Path, store: ControllerStore) -> EngineError | None:
    """Return an error if the state folder of *store* is not that of *config*, read from *file*, on this machine."""
    kept, path = store.settings().get(_SETTING), state_of(config, file.parent.absolute())
    if kept is None or path is None or identity_in(path) == kept["identity"]:
        return None
    msg = (
        f"{path} is not the state folder of the jobs in this store ({kept['path']}, engine {kept['engine']}): a "
        "standby needs the same folder, for engine local on the same machine"
    )
    return EngineError(msg)


def _record(config: Scenario, path: Path | None, store: ControllerStore) -> None:
    own = None if path is None else {"engine": config.engine, "identity": _identity(config, path), "path": str(path)}
    kept = store.settings().get(_SETTING)
    if kept == own:
        return
    if kept is not None and (own is None or own["identity"] != kept["identity"]) and _running(store):
        log.warning("the state folder of running jobs is gone: they are started again", extra={"folder": kept["path"]})
    store.write(Tick(settings={_SETTING: own}))


def misplaced(config: Scenario, file: Path, store: ControllerStore) -> InputError | None:
    """Return an error if jobs of *store* run from another state folder than that of *config*, read from *file*.

    Changes nothing. Raises ``EngineError`` if that cannot be determined, ``StoreError``.
    """
    kept, path = store.settings().get(_SETTING), state_of(config, file.parent.absolute())
    if (
        kept is None
        or kept["path"] == str(path)
        or not (running := _running(store))
        or not _exists_elsewhere(kept, path)
    ):
        return None
    why = f"where jobs of this store run ({running}); it can be changed when they have ended"
    if config.engine != kept["engine"]:
        expected = f"{kept['engine']}, with live.{kept['engine']}.state: {kept['path']}, {why}"
        return InputError(expected, file=file, field="engine", value=config.engine)
    own = own_settings(config)
    value = None if own is None else own.state
    return InputError(f"{kept['path']}, {why}", file=file, field=f"live.{config.engine}.state", value=value)


def _running(store: ControllerStore) -> int:
    return sum(row.status is JobStatus.RUNNING for row in store.active_jobs())


def _identity(config: Scenario, path: Path) -> str:
    try:
        return make_identity(path, getattr(own_settings(config), "cluster_id", config.engine))
    except OSError as error:
        msg = f"the state folder {path} cannot be used: {error.strerror or error}"
        raise EngineError(msg) from error


def _exists_elsewhere(kept: dict[str, Any], path: Path | None) -> bool:
    """Whether the recorded folder is still where it was, and is not *path* under another name."""
    old = Path(kept["path"])
    return identity_in(old) == kept["identity"] and not (path is not None and _same(old, path))


def _same(one: Path, other: Path) -> bool:
    return other.exists() and one.samefile(other)
