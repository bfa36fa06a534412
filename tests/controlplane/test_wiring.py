"""What opening a control plane writes, and when."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

from commonwatt.control.engine import MeterMark
from commonwatt.controlplane.engines import Marks
from commonwatt.controlplane.supervisor import SteadyClock
from commonwatt.controlplane.wiring import open_live, read_config, rules_of
from commonwatt.engines.simulated.live import VirtualWork
from commonwatt.model.errors import InputError, StoreError
from commonwatt.model.job_file import JobFile
from commonwatt.store.claim import claim_store
from commonwatt.store.controller_store import ControllerStore
from commonwatt.store.records import RequestKind
from commonwatt.testing.engine_contract import contract_cluster
from tests.cli.console import run
from tests.controlplane.chaos import config_in, store_of


def _served(path):
    """Serve a configuration for a moment; returns the weights of tenants."""
    live = open_live(path)
    try:
        live.start()
        return live.store.tenants()
    finally:
        live.close()


def test_the_first_policy_overrides_preemption(tmp_path):
    scenario = {"preemption": {"restart_s": 50}}
    plain = rules_of(read_config(config_in(tmp_path, engine="simulated", **scenario)))
    assert (plain.preempt, plain.restart_s) == (True, 50)
    own = [{"solver": "easy", "preemption": {"allowed": False, "restart_s": 7}}]
    rules = rules_of(read_config(config_in(tmp_path, engine="simulated", policies=own, **scenario)))
    assert (rules.preempt, rules.restart_s) == (False, 7)


@pytest.mark.long
def test_jobs_are_accepted_while_solvers_are_still_compiled(tmp_path, monkeypatch):
    """Which takes a while at the first start, and happens in the controller's thread."""
    compiled, begun = threading.Event(), threading.Event()
    ways = []

    def warm_up(spec, *, certain=True):
        ways.append(certain)
        begun.set()
        assert compiled.wait(120)

    monkeypatch.setattr("commonwatt.controlplane.wiring.warm_up", warm_up)
    live = open_live(config_in(tmp_path, engine="simulated", tenants=[{"name": "a"}]))
    try:
        live.start()
        assert begun.wait(120)
        file = JobFile.model_validate({"name": "j", "command": ["true"], "times_s": {"V100": [0.1]}})
        row, _ = live.store.submit("a", file, time.time())
        assert live.store.job(row.id).status == "waiting"
        assert not live.supervisor.snapshot().healthy
        compiled.set()
        end_s = time.monotonic() + 120
        while live.store.job(row.id).status != "completed" and time.monotonic() < end_s:
            time.sleep(0.02)
        assert live.store.job(row.id).status == "completed"
        assert ways == [True, False]  # run times are predicted live: both are compiled before the first decision
    finally:
        compiled.set()
        live.close()


@pytest.mark.long
def test_the_store_is_given_up_even_where_the_engine_cannot_be_closed(tmp_path, monkeypatch):
    path = config_in(tmp_path, engine="simulated")
    live = open_live(path)
    live.start()
    end_s = time.monotonic() + 120
    while not live.supervisor.snapshot().healthy and time.monotonic() < end_s:
        time.sleep(0.02)

    def broken(engine):
        raise OSError("no more")

    with monkeypatch.context() as patch:
        patch.setattr(VirtualWork, "close", broken)
        with pytest.raises(OSError, match="no more"):
            live.close()
    with claim_store(store_of(path).database):
        pass  # nobody has it any more


@pytest.mark.long
def test_one_that_is_refused_writes_no_tenants(tmp_path):
    path = config_in(tmp_path, engine="simulated", tenants=[{"name": "a", "weight": 5}])
    store = store_of(path)
    with claim_store(store.database):
        with pytest.raises(StoreError, match="already runs on the store"):
            _served(path)
        assert store.tenants() == {}
    assert _served(path) == {"a": 5.0}


@pytest.mark.long
def test_a_weight_that_was_set_stays_until_the_configuration_is_changed(tmp_path):
    path = config_in(tmp_path, engine="simulated", tenants=[{"name": "a", "weight": 5}])
    assert _served(path) == {"a": 5.0}
    store_of(path).add_tenant("a", 2.0, 1.0)
    assert _served(path) == {"a": 2.0}
    path = config_in(tmp_path, engine="simulated", tenants=[{"name": "a", "weight": 6}])
    assert _served(path) == {"a": 6.0}


@pytest.mark.parametrize("name", ["team/a", "/", "..", "a\nb", "x" * 129])
def test_names_no_address_can_hold_are_refused(tmp_path, name):
    node = {"name": name, "gpu_type": "V", "gpus": 1, "idle_w": 1, "gpu_w": 1}
    for field, given in (("tenants.name", {"tenants": [{"name": name}]}), ("nodes.name", {"nodes": [node]})):
        path = config_in(tmp_path, engine="simulated", **given)
        with pytest.raises(InputError, match="without '/' and control characters") as refused:
            read_config(path)
        assert (refused.value.file, refused.value.field, refused.value.value) == (path, field, name)


def test_power_limits_are_for_simulations(tmp_path):
    limited = {"policies": [{"solver": "lookahead", "power_limits": [0.7]}], "workload": {"source": "week"}}
    with pytest.raises(InputError, match="engines do not limit the power of GPUs yet") as refused:
        read_config(config_in(tmp_path, engine="simulated", **limited))
    assert refused.value.field == "policies.0.power_limits"


def test_shared_gpus_are_for_simulations(tmp_path):
    packed = {"policies": [{"solver": "lucid"}], "workload": {"source": "week"}}
    with pytest.raises(InputError, match="engines do not let jobs share GPUs") as refused:
        read_config(config_in(tmp_path, engine="simulated", **packed))
    assert refused.value.field == "policies.0.solver"


def test_names_an_address_can_hold(tmp_path):
    path = config_in(
        tmp_path, engine="simulated", tenants=[{"name": name} for name in ("a b%c", "...", "é?#", "x" * 128)]
    )
    assert len(read_config(path).tenants) == 4


def test_two_nodes_of_one_name_are_told_with_their_file(tmp_path):
    node = {"name": "n", "gpu_type": "V", "gpus": 1, "idle_w": 1, "gpu_w": 1}
    path = config_in(tmp_path, engine="simulated", nodes=[node, node])
    with pytest.raises(InputError, match="distinct node names") as refused:
        read_config(path)
    assert (refused.value.file, refused.value.field, refused.value.value) == (path, "nodes.name", "n")


@pytest.mark.parametrize("engine", ["local", "slurm"])
@pytest.mark.parametrize("state", ["live.db", "x/../live.db", "live.db/state", "live.db-wal", "live.db.claim", "link"])
def test_a_state_folder_that_is_a_file_of_the_store_is_refused_by_check_and_serve(tmp_path, engine, state):
    (tmp_path / "link").symlink_to("live.db")
    path = config_in(tmp_path, engine=engine, live={"store": "live.db", engine: {"state": state}})
    for command in ("check", "serve"):
        done = run(command, path)
        assert (done.code, done.out) == (2, "")
        assert f"{path}: field 'live.{engine}.state': got " in done.err
        assert "a separate folder, not a file of the store" in done.err
    read_config(config_in(tmp_path, engine=engine, live={"store": "live.db", engine: {"state": "live.db.d"}}))


@pytest.mark.slow
def test_a_mode_that_is_given_outdoes_what_was_asked_for_before(tmp_path):
    path = config_in(tmp_path, engine="simulated")
    store = store_of(path)
    store.ask(RequestKind.MODE, 1.0, value="live")  # of a controller that ended before it took note
    live = open_live(path, mode="dry-run")
    try:
        live.start()
        assert store.setting("mode") == "dry-run"
        assert ControllerStore(store.database).requests() == []
    finally:
        live.close()
    assert store.setting("mode") == "dry-run"


def test_the_engine_goes_by_the_clock_of_the_controller(tmp_path):
    """Which no setting of the machine's clock turns back."""
    for engine in ("local", "slurm"):
        folder = tmp_path / engine
        folder.mkdir()
        clock = SteadyClock(lambda: 2_000_000_000.0, lambda: 0.0)
        live = open_live(config_in(folder, engine=engine), clock=clock)
        try:
            marks = live.supervisor._make_engine().marks()
            assert {mark.read_s for mark in marks.values()} == {2_000_000_000.0}
        finally:
            live.close()


def test_marks_are_kept_in_the_store_also_those_of_a_version_that_knew_nothing_of_sleep():
    marks, engine = Marks(contract_cluster()), SimpleNamespace(marks=lambda: {1: MeterMark(7.0, None, asleep=True)})
    store = SimpleNamespace(
        settings=lambda: {"metered": {**marks.of(engine)(), "n-1": [5.0, 3.0], "gone": [1.0, None]}}
    )
    assert marks.stored(store) == {0: MeterMark(5.0, 3.0), 1: MeterMark(7.0, None, asleep=True)}
