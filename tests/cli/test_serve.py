"""`commonwatt serve`, but for the server itself: what it says when it begins."""

from __future__ import annotations

import json
import logging
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")

from commonwatt.client import Client
from commonwatt.controlplane.reconciler import Reconciler
from commonwatt.model.errors import InputError
from commonwatt.model.live import LiveSpec
from commonwatt.model.timeslice_file import ModelServerSpec as TimesliceServer
from tests.cli.console import SCRIPT, run, write

NODES = [{"name": "n", "gpu_type": "V100", "gpus": 1, "idle_w": 1, "gpu_w": 1}]


@pytest.mark.slow
def test_what_only_the_controllers_thread_needs_is_not_loaded_before_the_api_answers():
    """Solvers and Numba take longer to load than all else; the API answers meanwhile."""
    heavy = {
        "numba", "scipy", "highspy", "alembic", "polars", "commonwatt.placement._solvers", "commonwatt.data.workload",
        "commonwatt.partitioning._solve", "commonwatt.mapping._solve_file", "commonwatt.simulation.run_setup",
    }  # fmt: skip
    code = (
        "import sys, commonwatt.controlplane.wiring, commonwatt.service.own_process\n"
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def document(server: subprocess.Popen[bytes], log: Path, limit_s: float = 120.0) -> bytes:
    """Return the JSON document a server prints; one that ends or hangs fails with its log and where its threads are.

    *server* was started with PYTHONFAULTHANDLER, and *log* is its standard error.
    """
    out, until_s = b"", time.monotonic() + limit_s
    while not out.endswith(b"\n}\n"):
        if not select.select([server.stdout], [], [], max(0.0, until_s - time.monotonic()))[0]:
            server.send_signal(signal.SIGABRT)
            server.wait()
            pytest.fail(f"nothing was printed for {limit_s:g} s but {out!r}; its log:\n{log.read_text()}")
        more = os.read(server.stdout.fileno(), 65_536)
        out += more or pytest.fail(f"it ended; its log:\n{log.read_text()}")
    return out


def test_a_server_that_hangs_fails_with_its_log_and_threads(tmp_path):
    hangs = "import sys, time\ndef waits_for_ever():\n  print('began', file=sys.stderr, flush=True); time.sleep(600)\n"
    command, log = [sys.executable, "-X", "faulthandler", "-c", hangs + "waits_for_ever()"], tmp_path / "log"
    with log.open("w") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as server:
        while "began" not in log.read_text():
            time.sleep(0.02)
        with pytest.raises(pytest.fail.Exception, match=r"(?s)began.*most recent call first.*waits_for_ever"):
            document(server, log, limit_s=0.1)


@pytest.fixture
def heard_at():
    """The addresses the server listened on."""
    return []


@pytest.fixture
def config(tmp_path, monkeypatch, heard_at):
    """A configuration; its server answers at once and ends."""

    def answers(app, listening, ready, _limits, **_more):
        heard_at.append(listening.getsockname()[0])
        listening.close()
        ready("http://here:1")

    monkeypatch.setattr("commonwatt.service.server.run_server", answers)
    monkeypatch.setattr("commonwatt.cli.serve._no_collection", nullcontext)
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield write(tmp_path / "live.yaml", {"engine": "simulated", "nodes": NODES, "live": {"server": {"port": 0}}})
    root.handlers[:] = before
    root.setLevel(level)
    logging.captureWarnings(capture=False)


@pytest.mark.slow
def test_logs_for_machines_hold_json_and_nothing_else(config):
    done = run("serve", config, "--log-format", "json", "--log-level", "error")
    assert (done.code, done.out) == (0, "")
    token, serving = map(json.loads, done.err.splitlines())
    assert token.keys() == {"time", "level", "logger", "event", "token"}
    assert token["token"].startswith("cw_")
    assert {name: serving[name] for name in ("event", "url", "engine", "nodes")} == {
        "event": "serving", "url": "http://here:1", "engine": "simulated", "nodes": 1
    }  # fmt: skip


@pytest.mark.slow
def test_people_are_told_in_words(config):
    done = run("serve", config, "--log-level", "error", "--json")
    token, serving = done.err.splitlines()
    assert token.startswith("the first operator's token, shown only now: cw_")
    assert serving == "serving http://here:1 (engine simulated, 1 node); stop it with Ctrl-C"
    assert done.document["url"] == "http://here:1"
    assert run("serve", config, "--log-level", "error").err.splitlines() == [serving]  # the token is shown once


@pytest.mark.slow
def test_a_configuration_may_come_from_a_pipe(config):
    """Which can be read once only: the store's password may come from a program that decrypts it."""
    absolute = {"server": {"port": 0}, "store": str(config.with_name("live.db"))}
    text = json.dumps({"engine": "simulated", "nodes": NODES, "live": absolute})
    ours, theirs = os.pipe()
    os.write(theirs, text.encode())
    os.close(theirs)
    done = run("serve", f"/dev/fd/{ours}", "--log-level", "error", "--json")
    os.close(ours)
    assert (done.code, done.document["url"]) == (0, "http://here:1"), done.err


@pytest.mark.slow
def test_where_people_reach_it_is_told(config, tmp_path):
    run("serve", config)
    server = {"port": 0, "public_url": "https://cw.example/live"}
    write(config, {"engine": "simulated", "nodes": NODES, "live": {"server": server}})
    done = run("serve", config, "--log-level", "error", "--json")
    assert done.err.startswith("serving http://here:1, for people https://cw.example/live (engine simulated")
    assert done.document["public_url"] == "https://cw.example/live"
    told = json.loads(run("serve", config, "--log-level", "error", "--log-format", "json").err)
    assert told["public_url"] == "https://cw.example/live"
    server["public_url"] = "cw.example"
    write(config, {"engine": "simulated", "nodes": NODES, "live": {"server": server}})
    done = run("check", config)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "live.server.public_url': got 'cw.example', expected a URL such as https://" in done.err


@pytest.mark.slow
def test_a_mode_that_is_given_holds_from_the_very_beginning(config, monkeypatch):
    """What is found running, and what waits, is taken up in that mode: nothing is started before a dry run."""
    begun, modes = threading.Event(), []
    recover = Reconciler.recover

    def recovering(session, mode, drained):
        modes.append(mode)
        begun.set()
        return recover(session, mode, drained)

    def serving(app, listening, ready, _limits, **_more):
        listening.close()
        assert begun.wait(120)

    monkeypatch.setattr(Reconciler, "recover", recovering)
    monkeypatch.setattr("commonwatt.service.server.run_server", serving)
    for flags in ((), ("--mode", "dry-run"), (), ("--mode", "live")):
        begun.clear()
        assert run("serve", config, "--log-level", "error", *flags).code == 0
    assert modes == ["live", "dry-run", "dry-run", "live"]


@pytest.mark.slow
def test_nobody_else_is_listened_to_unless_it_is_said(config, heard_at):
    """What is open to others by mistake is found before it is known."""
    assert [LiveSpec().server.host, TimesliceServer().host] == ["127.0.0.1", "127.0.0.1"]
    assert run("serve", config, "--log-level", "error").code == 0
    assert run("serve", config, "--log-level", "error", "--host", "0.0.0.0").code == 0
    assert heard_at == ["127.0.0.1", "0.0.0.0"]


@pytest.mark.long
def test_what_is_in_the_environment_of_a_job_is_in_no_log(tmp_path):
    """People keep passwords there: not when it runs, fails to, is cancelled or refused, and not at any level."""
    secret, there = "swordfish-of-the-job", tmp_path / "there"
    config = write(
        tmp_path / "live.yaml", {"engine": "local", "nodes": NODES, "tenants": [{"name": "a"}], "live": {"retries": 0}}
    )
    command = [SCRIPT, "serve", config, "--port", "0", "--json", "--log-level", "debug"]
    job = {"name": "j", "environment": {"SECRET": secret}, "times_s": {"V100": {1: 1}}}
    says = (sys.executable, "-I", "-c", f"import os; open({str(there)!r}, 'w').write(os.environ['SECRET'])")
    dumps = {**os.environ, "PYTHONFAULTHANDLER": "1"}  # for document()
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=dumps) as server,
    ):
        try:
            out = document(server, tmp_path / "log")
            token = re.search(r"cw_\S+[A-Za-z0-9_-]", (tmp_path / "log").read_text()).group()
            with Client(json.loads(out)["url"], token) as operator:
                tenant = operator.add_token("a", "x").token
            with Client(json.loads(out)["url"], tenant) as client:
                runs, fails, stays = (
                    client.submit({**job, "command": argv}).id
                    for argv in (says, ("/no/such/program",), ("sleep", "60"))
                )
                with pytest.raises(InputError, match="no such"):
                    client.submit({**job, "command": says, "times_s": {"no such": {1: 1}}})
                ended = client.wait(runs, poll_s=0.05).status, client.wait(fails, poll_s=0.05).status
                client.cancel(stays)
                client.wait(stays, poll_s=0.05)
        finally:
            server.terminate()
            server.wait(120)
    logged = (tmp_path / "log").read_text()
    assert (ended, there.read_text()) == (("completed", "failed"), secret)
    assert "path=/api/v1/jobs status=422" in logged
    assert secret not in logged
