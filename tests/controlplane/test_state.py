"""Which state folder belongs to a store: one controller uses it, and running jobs are not started again beside it."""

from __future__ import annotations

import shutil
import time

import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.controlplane.preflight import all_checks
from commonwatt.controlplane.state import take_state
from commonwatt.controlplane.wiring import open_live, read_config
from commonwatt.engines.state_folder import hold, make_identity
from commonwatt.model.errors import EngineError, InputError, StoreError
from commonwatt.model.job_file import JobFile
from commonwatt.store.api_store import ApiStore
from commonwatt.store.backup import back_up, restore
from commonwatt.store.claim import claim_store
from commonwatt.store.controller_store import ControllerStore, Tick
from commonwatt.store.database import Database, address
from commonwatt.store.migrate import prepare
from commonwatt.store.records import JobStatus
from tests.controlplane.chaos import config_in


class Place:
    """A store, and configurations over it."""

    def __init__(self, folder) -> None:
        self.folder = folder
        self.database = Database(address("commonwatt.db", folder))
        prepare(self.database)
        self.store, self.ticks = ApiStore(self.database), ControllerStore(self.database)
        self.store.add_tenant("a", 1.0, 1.0)

    def run_a_job(self) -> None:
        job = self.store.submit("a", JobFile(name="j", command=("true",)), time.time())[0].id
        tick = Tick()
        tick.change(job, status=JobStatus.RUNNING)
        self.ticks.write(tick)

    def begin(self, state: str, *, engine: str = "local") -> None:
        """What a controller does first."""
        path = config_in(self.folder, engine=engine, live={engine: {"state": state}} if engine != "simulated" else {})
        held = take_state(read_config(path), path, self.ticks)
        if held is not None:
            held.release()

    @property
    def remembered(self) -> str | None:
        kept = self.store.setting("state")
        return None if kept is None else kept["path"]


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path)
    yield place
    place.database.close()


def test_a_store_remembers_its_state_folder(place):
    place.begin("one")
    assert place.store.setting("state") == {
        "engine": "local", "identity": (place.folder / "one" / "identity").read_text(),
        "path": str(place.folder / "one"),
    }  # fmt: skip
    place.begin("one")
    place.begin("two")  # nothing runs
    assert place.remembered == str(place.folder / "two")


def test_another_state_folder_is_refused_while_jobs_run_in_the_first(place):
    place.begin("one")
    place.run_a_job()
    with pytest.raises(InputError) as caught:
        place.begin("two")
    assert str(caught.value) == (
        f"{place.folder}/live.yaml: field 'live.local.state': got 'two', expected {place.folder}/one, where jobs of "
        "this store run (1); it can be changed when they have ended"
    )
    assert place.remembered == str(place.folder / "one")
    assert not (place.folder / "two").exists()
    place.begin("one")


@pytest.mark.parametrize("engine", ["slurm", "simulated"])
def test_another_engine_is_refused_while_jobs_run(place, engine):
    place.begin("one")
    place.run_a_job()
    with pytest.raises(InputError, match=f"'engine': got '{engine}', expected local, with live.local.state: .*/one"):
        place.begin("two", engine=engine)


def test_a_state_folder_that_was_moved_is_remembered_anew(place):
    place.begin("one")
    place.run_a_job()
    (place.folder / "one").rename(place.folder / "two")
    (place.folder / "one").mkdir()  # somebody else's
    make_identity(place.folder / "one", "local")
    place.begin("two")
    assert place.remembered == str(place.folder / "two")


def test_a_copy_of_a_state_folder_is_not_that_folder(place):
    place.begin("one")
    place.run_a_job()
    shutil.copytree(place.folder / "one", place.folder / "two")
    with pytest.raises(InputError, match="where jobs of this store run"):
        place.begin("two")


def test_a_state_folder_under_another_name_is_the_same(place):
    place.begin("one")
    place.run_a_job()
    (place.folder / "two").symlink_to("one")
    place.begin("two")
    assert place.remembered == str(place.folder / "two")


def test_where_the_state_folder_is_gone_its_jobs_are_lost_as_ever(place):
    place.begin("one")
    place.run_a_job()
    shutil.rmtree(place.folder / "one")
    place.begin("one")
    shutil.rmtree(place.folder / "one")
    place.begin("two")
    assert place.remembered == str(place.folder / "two")


def test_simulated_jobs_have_no_folder_to_belong_to(place):
    place.begin("one")
    place.begin("", engine="simulated")
    place.run_a_job()
    place.begin("two")
    assert place.remembered == str(place.folder / "two")


def test_a_restored_store_goes_on_with_its_state_folder(place, tmp_path):
    place.begin("one")
    place.run_a_job()
    back_up(place.database, tmp_path / "backup", "1")
    restore(place.database, tmp_path / "backup", overwrite=True)
    place.begin("one")
    assert place.remembered == str(place.folder / "one")


@pytest.mark.long
def test_a_second_controller_on_a_state_folder_is_refused_and_leaves_its_store_free(tmp_path):
    lives = [open_live(config_in(tmp_path, live={"store": f"{name}.db"})) for name in ("one", "two")]
    try:
        lives[0].start()
        with pytest.raises(EngineError, match=f"one.db, already uses the state folder {tmp_path}/state"):
            lives[1].start()
        claim_store(lives[1].database).release()
        with pytest.raises(StoreError, match="runs on the store"):
            open_live(config_in(tmp_path, live={"store": "one.db"})).start()
        lives[0].supervisor.stop()
        lives[1].start()
    finally:
        for live in lives:
            live.close()


@pytest.mark.slow
def test_check_tells_of_a_folder_another_controller_uses_and_of_jobs_that_run_elsewhere(place):
    def lines(**live) -> dict[str, tuple[str, str]]:
        path = config_in(place.folder, live=live)
        found = all_checks(read_config(path), path)
        return {
            line.what: (line.verdict, line.found) for line in found if line.what in {"state folder", "running jobs"}
        }

    place.begin("one")
    place.run_a_job()
    assert lines(local={"state": "one"}) == {"state folder": ("ok", f"{place.folder}/one can be written")}
    held = hold(place.folder / "one", str(place.database))
    assert lines(local={"state": "one"})["state folder"][0] == "ok"
    assert "with the store" in lines(local={"state": "one"}, store="other.db")["state folder"][1]
    held.release()
    verdict, found = lines(local={"state": "two"})["running jobs"]
    assert (verdict, "where jobs of this store run (1)" in found) == ("failed", True)
    assert not (place.folder / "two").exists()
