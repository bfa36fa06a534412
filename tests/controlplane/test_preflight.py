"""`commonwatt check`: what is wrong is found before anything runs, and nothing is changed by looking."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

import sqlalchemy as sa

from commonwatt.controlplane import preflight as checks
from commonwatt.controlplane.preflight_engines import GpusHere, engine_checks, gpus_here
from commonwatt.controlplane.wiring import open_live
from commonwatt.model.errors import InputError
from commonwatt.model.job_file import JobFile
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import Scenario
from commonwatt.store.api_store import ApiStore
from commonwatt.store.claim import claim_store
from commonwatt.store.controller_store import ControllerStore, Tick
from commonwatt.store.database import Database, address
from commonwatt.store.migrate import VERSION_TABLE, prepare
from tests.cli.console import run, write

NODES = [{"name": "n", "count": 2, "gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 50}]


def config(**live) -> dict:
    return {
        "engine": "local", "nodes": NODES, "tenants": [{"name": "ada"}],
        "live": {"store": "live.db", "server": {"port": 0}, "image_command": [sys.executable, "{image}", "{command}"]}
        | live,
    }  # fmt: skip


def check(folder, document=None):
    """Run the command; its exit code, and lines by what they are about."""
    done = run("check", write(folder / "live.yaml", config() if document is None else document), "--json")
    lines = done.document["checks"]
    worst = {"failed": 2, "warning": 1, "ok": 0}
    assert done.document["verdict"] == max((line["verdict"] for line in lines), key=worst.__getitem__)
    assert done.code == (1 if done.document["verdict"] == "failed" else 0)
    assert all(line["advice"] for line in lines if line["verdict"] != "ok")
    return {line["what"]: line for line in lines}


@pytest.fixture
def store(tmp_path):
    """A store as a first start leaves it."""
    database = Database(address("live.db", tmp_path))
    prepare(database)
    made = ApiStore(database)
    made.add_tenant("ada", 1.0, 1.0)
    yield made
    database.close()


def test_before_the_first_start_all_is_well_and_nothing_is_made(tmp_path):
    lines = check(tmp_path)
    assert {line["verdict"] for line in lines.values()} <= {"ok", "warning"}
    assert lines["store"]["found"].endswith("live.db will be created at first start")
    assert "will be made" in lines["state folder"]["found"]
    assert [path.name for path in tmp_path.iterdir()] == ["live.yaml"]


def refused(path):
    """What `serve` says of a configuration it does not run."""
    with pytest.raises(InputError) as caught:
        open_live(path)
    return str(caught.value)


def test_a_store_in_a_folder_that_is_not_there(tmp_path):
    line = check(tmp_path, config(store="data/live.db"))["store"]
    assert (line["verdict"], line["found"]) == ("failed", f"the folder {tmp_path}/data does not exist")
    told = refused(tmp_path / "live.yaml")
    assert told.startswith("field 'live.store': got ")
    assert told.endswith("expected a file in an existing folder")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("given", [["docker"], ["docker", "{command}"], ["docker", "{image}", "{command}", "{gpus}"]])
def test_a_command_for_images_that_serve_would_refuse(tmp_path, given):
    path = write(tmp_path / "live.yaml", config(image_command=given))
    done = run("check", path)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"error: {refused(path)}\n"
    assert done.err.startswith(f"error: {path}: field 'live.image_command': got '")


@pytest.mark.parametrize("slots", [{"n-1": [0, 1], "n-2": [1, 2]}, {"n-1": [-1, 0], "n-2": [1, 2]}])
def test_slots_that_serve_would_refuse(tmp_path, slots):
    assert check(tmp_path, config(local={"slots": slots}))["GPUs"]["verdict"] == "failed"
    assert "live.local.slots" in refused(tmp_path / "live.yaml")


def test_for_people_a_line_each_and_what_to_do(tmp_path):
    done = run("check", write(tmp_path / "live.yaml", config(local={"meter": "none"})))
    assert done.code == 0
    assert "warning  power readings: none: energy and cost will be unknown\n" in done.out
    assert "         -> set live.local.meter to declared or nvml\n" in done.out


def test_looking_changes_nothing(tmp_path, store):
    claim_store(store.database).release()
    just_now = {"controller": {"time_s": time.time(), "pid": 1}}  # it was killed
    ControllerStore(store.database).write(Tick(settings=just_now))
    with store.database.reading() as c:
        before = {t: c.execute(sa.text(f"SELECT * FROM {t}")).all() for t in ("settings", "tokens", "jobs", "audit")}
    assert "controller" not in check(tmp_path)
    with store.database.reading() as c:
        after = {t: c.execute(sa.text(f"SELECT * FROM {t}")).all() for t in before}
    assert before == after


def test_jobs_that_a_changed_configuration_has_no_nodes_for_are_named(tmp_path, store):
    for gpus in (2, 1):
        file = JobFile(name="j", command=("true",), gpus=gpus, gpu_type="V100")
        store.submit("ada", file, 1.0)
    assert "active jobs" not in check(tmp_path)
    line = check(tmp_path, config() | {"nodes": [NODES[0] | {"gpus": 1, "count": 1}]})["active jobs"]
    assert line["verdict"] == "warning"
    assert line["found"].startswith("1 active job (1) cannot run with these nodes: ")


def test_a_configuration_that_is_wrong_is_code_2(tmp_path):
    path = write(tmp_path / "live.yaml", config() | {"nodes": []})
    for flag in ((), ("--json",)):
        done = run("check", path, *flag)
        assert (done.code, done.out) == (2, "")
        assert "at least one node" in done.err
    assert run("check", tmp_path / "none.yaml").code == 2
    unset = run("check", write(path, config(store="postgresql://a:${NOT_SET_AT_ALL}@h/d")))
    assert unset.code == 2
    assert "an environment variable that is set" in unset.err


LONG = "x" * 300


@pytest.mark.parametrize(
    ("live", "field", "value"),
    [
        ({"server": {"host": "a..b"}}, "live.server.host", "a..b"),
        ({"server": {"host": f"{'a' * 64}.example"}}, "live.server.host", f"{'a' * 64}.example"),
        ({"server": {"host": "a\nb"}}, "live.server.host", "a\nb"),
        ({"store": "mysql+pymysql://u:geheim@db:33o6/cw"}, "live.store", "mysql+pymysql://..."),
        ({"store": "://x"}, "live.store", "://..."),
        ({"store": f"{LONG}.db"}, "live.store", None),
        ({"store": f"sqlite:///{LONG}.db"}, "live.store", None),
        ({"store": f"{LONG}/live.db"}, "live.store", None),
        ({"store": "l\0.db"}, "live.store", None),
        ({"store": "shut/live.db"}, "live.store", "FOLDER/shut/live.db"),
        ({"local": {"state": LONG}}, "live.local.state", None),
        ({"local": {"state": "s\0"}}, "live.local.state", None),
        ({"local": {"state": "shut/state"}}, "live.local.state", "FOLDER/shut/state"),
        ({"folder": f"/{LONG}"}, "live.folder", None),
        ({"folder": "/x\0"}, "live.folder", None),
        ({"folder": "FOLDER/shut/jobs"}, "live.folder", "FOLDER/shut/jobs"),
    ],
)
def test_what_can_be_no_path_and_no_host_is_told_in_a_line(tmp_path, monkeypatch, live, field, value):
    """By `check` as by `serve`; folder `shut` may not be entered, whoever runs this."""
    stat = checks.Path.stat

    def looked_at(path, **options):
        if tmp_path / "shut" in path.parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    (tmp_path / "shut").mkdir()
    document = json.loads(json.dumps(config(**live)).replace("FOLDER", str(tmp_path)))
    path = write(tmp_path / "live.yaml", document)
    monkeypatch.setattr(checks.Path, "stat", looked_at)
    commands = [("check",), ("serve",)]
    if field == "live.store":
        commands += [("store", "backup", path, tmp_path / "backup.jsonl.gz"), ("token", "list", "--config", path)]
    for command in commands:
        done = run(*command, *([path] if len(command) == 1 else []))
        assert (done.code, done.out) == (2, "" if command != ("check",) else done.out), done.err
        told = done.err.splitlines()[-1]
        assert told.startswith(f"error: {path}: field '{field}': "), told
        assert "expected" in told
        if value is not None:
            assert value.replace("FOLDER", str(tmp_path)).split("\n")[0][:70] in told
        assert "geheim" not in done.err
    assert not (tmp_path / "backup.jsonl.gz").exists()


def test_tokens(tmp_path, store):
    assert check(tmp_path)["tokens"]["found"] == "no operator has one"
    store.add_token(None, "op", 1.0)
    assert check(tmp_path)["tokens"]["found"] == "tenants without one: ada"
    token = store.add_token("ada", "a", 1.0)
    assert check(tmp_path)["tokens"]["verdict"] == "ok"
    store.revoke(store.owner(token).token, 2.0)
    assert check(tmp_path)["tokens"]["verdict"] == "warning"


def test_without_tenants_nobody_can_submit(tmp_path):
    assert check(tmp_path, config() | {"tenants": []})["tenants"]["verdict"] == "warning"


def test_a_store_of_another_version(tmp_path, store):
    with store.database.transaction() as c:
        c.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '0000'"))
    line = check(tmp_path)["store"]
    assert line["verdict"] == "failed"
    assert "store upgrade" in line["advice"]


def test_a_database_that_is_not_there(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    for backend in ("postgresql", "mysql"):
        pytest.importorskip({"postgresql": "psycopg", "mysql": "pymysql"}[backend])
        lines = check(tmp_path, config(store=f"{backend}://app:geheim@127.0.0.1:{port}/app"))
        assert lines["store"]["verdict"] == "failed"
        assert "geheim" not in json.dumps(lines)


@pytest.mark.slow
def test_a_file_that_is_no_database(tmp_path):
    (tmp_path / "live.db").write_bytes(b"this is no database at all" * 100)
    assert check(tmp_path)["store"]["verdict"] == "failed"


def test_a_password_others_may_read(tmp_path):
    pytest.importorskip("psycopg")
    document = config(store="postgresql://app:geheim@127.0.0.1:1/app")
    path = write(tmp_path / "live.yaml", document)
    path.chmod(0o644)
    assert check(tmp_path, document)["secrets"]["verdict"] == "warning"
    path.chmod(0o600)
    assert "secrets" not in check(tmp_path, document)


@pytest.mark.slow
def test_a_controller_that_runs_is_no_failure(tmp_path, store):
    ControllerStore(store.database).write(Tick(settings={"controller": {"time_s": time.time(), "pid": 1}}))
    with socket.socket() as s, claim_store(store.database):
        s.bind(("127.0.0.1", 0))
        s.listen()
        taken = config(server={"port": s.getsockname()[1]})
        lines = check(tmp_path, taken)
        assert lines["controller"]["verdict"] == "ok"
        assert lines["port"]["verdict"] == "ok"
        ControllerStore(store.database).write(Tick(settings={"controller": {"time_s": 1.0, "pid": 1}}))
        assert check(tmp_path, taken)["port"]["verdict"] == "failed"


def test_a_clock_that_jumped_back(tmp_path, store):
    ControllerStore(store.database).write(Tick(settings={"controller": {"time_s": time.time() + 3600, "pid": 1}}))
    path = write(tmp_path / "live.yaml", config())
    done = run("check", path, "--json")
    told = next(line for line in done.document["checks"] if line["what"] == "clock")
    assert (told["verdict"], "in the future of this clock" in told["found"]) == ("warning", True)
    assert done.code == 0  # `serve` runs, so the unit must start it


def test_a_clock_that_was_never_set(tmp_path, monkeypatch):
    monkeypatch.setattr(checks.time, "time", lambda: 1000.0)
    assert check(tmp_path)["clock"]["verdict"] == "failed"


def test_a_clock_nobody_keeps(tmp_path, monkeypatch):
    for synchronised, verdict in ((True, "ok"), (None, "ok"), (False, "warning")):
        monkeypatch.setattr(checks, "_ntp", lambda told=synchronised: told)
        assert check(tmp_path)["clock"]["verdict"] == verdict


def test_addresses(tmp_path):
    assert check(tmp_path, config(server={"host": "0.0.0.0", "port": 0}))["network"]["verdict"] == "warning"
    assert check(tmp_path, config(server={"host": "192.0.2.1", "port": 0}))["port"]["verdict"] == "failed"
    assert check(tmp_path, config(server={"host": "no.such.host.invalid"}))["port"]["verdict"] == "failed"


def test_folders(tmp_path):
    (tmp_path / "file").write_text("x")
    lines = check(tmp_path, config(local={"state": "file/state"}, folder=str(tmp_path / "none")))
    assert lines["state folder"]["verdict"] == lines["working folder"]["verdict"] == "failed"
    assert check(tmp_path, config(folder=str(tmp_path)))["working folder"]["verdict"] == "ok"
    assert check(tmp_path, config(store="file/live.db"))["store"]["verdict"] == "failed"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folders_of_others(tmp_path):
    assert check(tmp_path, config(local={"state": "/proc/state"}))["state folder"]["verdict"] == "failed"


def test_images(tmp_path):
    assert check(tmp_path)["images"]["verdict"] == "ok"
    document = config(image_command=["no-such-runtime", "{image}", "{command}"])
    assert check(tmp_path, document)["images"]["verdict"] == "warning"


def test_the_simulated_engine_runs_nothing(tmp_path):
    assert check(tmp_path, config() | {"engine": "simulated"})["engine"]["verdict"] == "warning"


def seen(gpus, **local):
    """Verdicts on the declared 2 x 2 GPUs, with *gpus* here."""
    scenario = Scenario.model_validate(config(local=local))
    lines = engine_checks(scenario, Cluster.of(scenario.nodes), checks.Path("/tmp"), lambda: gpus)
    return {line.what: (line.verdict, line.found) for line in lines}


FOUR = GpusHere(("V100",) * 4, (True,) * 4)


@pytest.mark.parametrize(
    ("gpus", "local", "verdict", "part"),
    [
        (FOUR, {}, "ok", "4 here (V100), all declared"),
        (GpusHere(("V100",) * 3, (True,) * 3), {}, "failed", "slots [3] are declared"),
        (GpusHere(("V100",) * 6, (True,) * 6), {}, "warning", "2 of them not declared"),
        (GpusHere(()), {}, "ok", "only limit how many jobs run"),
        (GpusHere(None, trouble="no NVML"), {}, "ok", "no NVML"),
        (FOUR, {"slots": {"n-1": [0, 1], "n-2": [1, 2]}}, "failed", "slot 1 belongs to n-1 and to n-2"),
        (FOUR, {"slots": {"n-1": [0, 0], "n-2": [1, 2]}}, "failed", "2 GPUs and 1 different slot"),
        (FOUR, {"slots": {"n-1": [-1, 0], "n-2": [1, 2]}}, "failed", "n-1 has a number below 0"),
        (FOUR, {"slots": {"n-1": [2, 3], "n-2": [0, 1]}}, "ok", "all declared"),
        (FOUR, {"slots": {"n-1": [2, 7], "n-2": [0, 1]}}, "failed", "slots [7] are declared"),
    ],
)
def test_gpus_here_and_declared(gpus, local, verdict, part):
    got, found = seen(gpus, **local)["GPUs"]
    assert (got, part in found) == (verdict, True), found


@pytest.mark.parametrize(
    ("gpus", "meter", "verdict"),
    [
        (FOUR, "nvml", "ok"), (FOUR, "declared", "ok"), (FOUR, "none", "warning"),
        (GpusHere(("V100", "P100"), (True, False)), "nvml", "failed"), (GpusHere(()), "nvml", "failed"),
        (GpusHere(None, trouble="no NVML"), "nvml", "failed"), (GpusHere(None), "declared", "ok"),
    ],
)  # fmt: skip
def test_power_readings(gpus, meter, verdict):
    assert seen(gpus, meter=meter)["power readings"][0] == verdict


class FakeNvmlError(Exception):
    pass


def fake_nvml(fails=""):
    """As nvidia-ml-py, with two GPUs, of which the second has no energy counter."""

    def answer(name, value):
        if fails == name:
            raise FakeNvmlError(name)
        return value

    return SimpleNamespace(
        NVMLError=FakeNvmlError,
        nvmlInit=lambda: answer("init", None),
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: answer("count", 2),
        nvmlDeviceGetHandleByIndex=lambda index: f"handle {index}",
        nvmlDeviceGetName=lambda handle: b"Tesla V100" if handle == "handle 1" else "Tesla V100",
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: answer(fails or handle.replace("handle 1", ""), 1),
    )


def test_nvml(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    assert gpus_here() == GpusHere(("Tesla V100", "Tesla V100"), (True, False))
    for fails in ("init", "count"):
        monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(fails))
        assert gpus_here().names is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "commonwatt[gpu]" in gpus_here().trouble
