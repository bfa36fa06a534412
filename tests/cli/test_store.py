"""``commonwatt store`` as a user runs it."""

from __future__ import annotations

import json

import pytest

from tests.cli.console import NODES, run, write

pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")


@pytest.fixture
def config(tmp_path):
    return write(tmp_path / "site.yaml", {"nodes": NODES, "engine": "local"})


@pytest.fixture
def filled(config):
    from commonwatt.store.api_store import ApiStore
    from commonwatt.store.database import Database, address
    from commonwatt.store.migrate import prepare
    from tests.store.made import file

    database = Database(address("commonwatt.db", config.parent))
    prepare(database)
    store = ApiStore(database)
    store.add_tenant("ada", 1.0, 0.0)
    store.submit("ada", file(environment={"PASSWORD": "hush"}), 1.0)
    yield database
    database.close()


@pytest.mark.slow
def test_a_store_is_backed_up_and_restored_elsewhere(config, filled, tmp_path):
    saved = run("store", "backup", config, tmp_path / "b.gz", "--json")
    assert (saved.code, saved.err) == (0, "")
    assert saved.document["rows"]["jobs"] == 1
    assert saved.document["size_bytes"] == (tmp_path / "b.gz").stat().st_size
    (tmp_path / "other").mkdir()
    other = write(tmp_path / "other" / "site.yaml", {"nodes": NODES, "engine": "local", "live": {"store": "x.db"}})
    put = run("store", "restore", other, tmp_path / "b.gz", "--json")
    assert (put.code, put.document["rows"]) == (0, saved.document["rows"])
    looked = run("store", "check", other, "--json")
    assert (looked.code, looked.document["problems"], looked.document["jobs"]["waiting"]) == (0, [], 1)
    twice = run("store", "restore", other, tmp_path / "b.gz")
    assert (twice.code, twice.out) == (2, "")
    assert "expected an empty store" in twice.err
    assert run("store", "restore", other, tmp_path / "b.gz", "--overwrite").code == 0
    assert "hush" not in saved.out + saved.err + put.out + twice.err


@pytest.mark.slow
def test_a_restore_says_who_has_a_token_now(config, filled, tmp_path):
    from commonwatt.store.api_store import ApiStore

    store = ApiStore(filled)
    for owner, label in ((None, "first"), ("ada", "leaked")):
        store.add_token(owner, label, 1.0)
    assert run("store", "backup", config, tmp_path / "b.gz").code == 0
    store.revoke(2, 5.0)
    said = run("store", "restore", config, tmp_path / "b.gz", "--overwrite")
    assert (said.code, said.err) == (0, "")
    first, *told = said.out.splitlines()
    assert "(1 job)" in first
    assert told[:2] == ["tokens valid now: 1; what was revoked in the store before still is", "  1  (operator)  first"]
    assert told[2].endswith(f": commonwatt token revoke NUMBER --config {config}")
    for path in tmp_path.glob("commonwatt.db*"):
        path.unlink()
    anew = run("store", "restore", config, tmp_path / "b.gz", "--json").document
    assert [(token["id"], token["tenant"]) for token in anew["valid_tokens"]] == [(1, None), (2, "ada")]


def test_check_tells_what_is_wrong_and_fails(config, filled):
    assert "all is well" in run("store", "check", config).out
    with filled.transaction() as c:
        c.exec_driver_sql("UPDATE jobs SET status = 'running'")
    said = run("store", "check", config)
    assert (said.code, said.err.count("\n")) == (1, 1)
    assert said.err.endswith("commonwatt.db has problems: 1\n")
    assert "  jobs: job 1: it is running and has 0 nodes\n" in said.out
    found = run("store", "check", config, "--json")
    assert (found.code, found.document["problems"][0]["job"]) == (1, 1)
    assert isinstance(json.loads(found.out), dict)


def test_upgrade(config):
    (config.parent / "commonwatt.db").touch()
    first = run("store", "upgrade", config)
    assert (first.code, first.err) == (0, "")
    assert "empty -> revision" in first.out
    assert "already" in run("store", "upgrade", config).out
    document = run("store", "upgrade", config, "--json").document
    assert document["before"] == document["after"]


@pytest.mark.parametrize("verb", ["backup", "check", "upgrade"])
def test_a_store_that_is_not_there_is_not_made(config, verb, tmp_path):
    said = run("store", verb, config, *([tmp_path / "b.gz"] if verb == "backup" else []))
    assert (said.code, said.out) == (2, "")
    assert "expected a store that exists" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["site.yaml"]


def test_a_bad_backup_makes_no_store(config, tmp_path):
    (tmp_path / "b.gz").write_bytes(b"what?")
    said = run("store", "restore", config, tmp_path / "b.gz")
    assert said.code == 2
    assert said.err == f"error: {tmp_path}/b.gz: expected a complete file that `commonwatt store backup` wrote\n"
    assert not (tmp_path / "commonwatt.db").exists()


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("oracle://x/y", "got 'oracle://...', expected a file, or an address beginning with"),
        ("postgresql://u:$NO_SUCH_PASSWORD@h/db", "got 'NO_SUCH_PASSWORD', expected an environment variable"),
        ("mysql://u:secret@h:port/db", "got 'mysql://...', expected a file, or an address"),
        ("postgresql://u:secret@h", "got 'postgresql://...', expected a file, or an address"),
        ("sqlite://", "expected a file, or an address"),
        ("sqlite:///:memory:", "expected a file"),
    ],
)
def test_addresses_that_are_none(store, said, tmp_path):
    config = write(tmp_path / "s.yaml", {"nodes": NODES, "live": {"store": store}})
    done = run("store", "upgrade", config)
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert done.err.startswith(f"error: {config}: field 'live.store'")
    assert said in done.err
    assert "secret" not in done.err


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_said_without_its_password(tmp_path):
    pytest.importorskip("pymysql")
    pytest.importorskip("psycopg")
    for kind in ("mysql", "postgresql"):
        address = f"{kind}://u:secret@127.0.0.1:1/db"
        config = write(tmp_path / "s.yaml", {"nodes": NODES, "live": {"store": address}})
        done = run("store", "check", config)
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith("error: version: the database ")
        assert done.err.count("\n") == 1
        assert "secret" not in done.err


def test_a_folder_that_is_not_there(tmp_path):
    config = write(tmp_path / "s.yaml", {"nodes": NODES, "live": {"store": "none/x.db"}})
    done = run("store", "upgrade", config)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {config}: field 'live.store': got '{tmp_path}"[:80])
    assert done.err.endswith(", expected a store that exists\n")


def test_the_examples_in_the_help_are_real():
    for verb in ((), ("backup",), ("check",), ("restore",), ("upgrade",)):
        assert "commonwatt store" in run("store", *verb, "--help").out
