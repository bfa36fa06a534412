"""Looks at the state folder before a controller does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from commonwatt.engines.state import used_by_another
from commonwatt.live.check_lines import failed, writable
from commonwatt.live.state import misplaced
from commonwatt.model.check_results import CheckLine
from commonwatt.model.errors import EngineError
from commonwatt.model.scenario import Scenario
from commonwatt.store.database import address
from commonwatt.store.ticks import TickStore

__all__ = ["running_jobs_elsewhere", "state_folder"]


def state_folder(config: Scenario, folder: Path, state: Path) -> CheckLine:
    """Whether *state* can be written, and no controller of another store uses it; *folder* is that of *config*."""
    what = "state folder"
    store = address(config.live.store, folder).render_as_string(hide_password=True)
    if (other := used_by_another(state, store)) is not None:
        found = f"{other.rstrip(',')} uses {state}"
        return failed(what, found, f"give each store a folder of its own: live.{config.engine}.state")
    return writable(what, state)


def running_jobs_elsewhere(config: Scenario, file: Path, store: TickStore) -> Iterator[CheckLine]:
    """Tell if jobs of the store run in another state folder than that of *config*, read from *file*."""
    try:
        error = misplaced(config, file, store)
    except EngineError as trouble:
        yield failed("running jobs", str(trouble), "give the user of this process the folder")
        return
    if error is not None:
        advice = f"put back {error.field} until these jobs have ended"
        yield failed("running jobs", str(error), advice)
