"""The API in a process of its own: what it knows equals what the controller knows, and either may die."""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import ssl
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")
trustme = pytest.importorskip("trustme")

from commonwatt.controlplane.feed import Counters, Replica, TickCounts, changes  # noqa: E402
from commonwatt.controlplane.snapshot import Snapshot, SnapshotJob, SnapshotNode  # noqa: E402
from commonwatt.controlplane.wiring import read_config  # noqa: E402
from commonwatt.model.errors import EngineError  # noqa: E402
from commonwatt.service.own_process import has_own_process  # noqa: E402
from commonwatt.store.records import JobStatus, parts_of, unpacked  # noqa: E402
from tests.controlplane.chaos import config_in, store_of, witness  # noqa: E402
from tests.engines.waiting import until  # noqa: E402

EMPTY = Snapshot(0.0, "live", "local")


def node(name: str, held: int) -> SnapshotNode:
    return SnapshotNode(name, "V100", 4, 4, held, "on", drained=False, jobs=(), power_w=100.0)


def a_job(number: int, done: float) -> SnapshotJob:
    return SnapshotJob(
        number,
        f"job{number}",
        "ada",
        0.0,
        10,
        "running",
        held=False,
        nodes=("n",),
        gpus=1,
        done_epochs=done,
        kept_epochs=0.0,
        reason=None,
        sentence=None,
        expected_start_s=None,
        expected_end_s=None,
    )


@st.composite
def histories(draw):
    """Snapshots one after the other, as a controller makes them: what has not changed are the same objects."""
    found, now = [], EMPTY
    for k in range(draw(st.integers(1, 6))):
        jobs = dict(now.jobs)
        for number in draw(st.sets(st.integers(0, 600), max_size=5)):
            jobs[number] = a_job(number, float(k))
        if draw(st.booleans()):  # many: more than one message
            jobs |= {number: a_job(number, 0.5) for number in range(510)}
        for number in draw(st.sets(st.sampled_from(sorted(jobs) or [0]), max_size=5)):
            jobs.pop(number, None)
        nodes = now.nodes
        if draw(st.booleans()):
            nodes = tuple(node(f"n{i}", draw(st.integers(0, 2))) for i in range(draw(st.integers(0, 4))))
        now = replace(now, time_s=float(k), jobs=jobs, rows={}, nodes=nodes, healthy=draw(st.booleans()), ticks=k)
        found.append(now)
        if draw(st.booleans()):
            found.append(now)  # nothing has changed meanwhile
    return found


@pytest.mark.long
@given(histories())
def test_what_is_put_together_is_what_there_is(history):
    replica, before, counts = Replica(EMPTY), EMPTY, Counters()
    for after in history:
        counts.error(EngineError("no"))
        had = replica.snapshot()
        for message in changes(before, after, counts.counts()):
            replica.apply(pickle.loads(pickle.dumps(message)))
        seen = replica.snapshot()
        assert replace(seen, jobs=dict(seen.jobs), rows=dict(seen.rows)) == after
        assert replica.counts().errors == counts.counts().errors
        for number, job in seen.jobs.items():
            if after.jobs[number] is before.jobs.get(number):
                assert parts_of(seen.jobs)[number] is parts_of(had.jobs)[number]
                assert job == had.jobs[number]
        if after is before:
            assert seen is had
        before = after


def test_only_what_has_changed_is_sent():
    first = replace(EMPTY, jobs={k: a_job(k, 0.0) for k in range(1000)}, nodes=(node("a", 0), node("b", 0)))
    then = replace(first, jobs=first.jobs | {7: a_job(7, 1.0)}, nodes=(node("a", 0), node("b", 1)))
    sent = list(changes(first, then, TickCounts()))
    entries = [[(number, unpacked(one)) for number, one in message.entries] for message in sent[:-1]]
    assert entries == [[(7, then.jobs[7])], [(1, then.nodes[1])]]
    assert len(list(changes(EMPTY, first, TickCounts()))) == 4  # jobs in two parts


def test_a_controller_that_is_silent_is_said_to_fail_until_it_is_heard():
    now_s = [0.0]
    replica = Replica(EMPTY, lambda: now_s[0])
    good = replace(EMPTY, healthy=True)
    for message in changes(EMPTY, good, TickCounts()):
        replica.apply(message)
    now_s[0] = 14.0
    assert replica.snapshot().healthy
    assert replica.alive()
    now_s[0] = 16.0
    failing = replica.snapshot()
    assert (failing.healthy, failing.trouble) == (False, "the controller's process does not answer")
    assert replica.snapshot() is failing
    assert not replica.alive()
    for message in changes(good, replace(good, time_s=5.0), TickCounts()):
        replica.apply(message)
    assert replica.snapshot().healthy
    for message in changes(good, replace(good, healthy=False, trouble="the engine does not answer"), TickCounts()):
        replica.apply(message)
    assert replica.alive()


def test_large_clusters_have_it_unless_they_say_otherwise(tmp_path):
    for wanted, nodes, own in ((None, 999, False), (None, 1000, True), (True, 1, True), (False, 5000, False)):
        server = {} if wanted is None else {"own_process": wanted}
        config = read_config(config_in(tmp_path, live={"server": server}))
        assert has_own_process(config, nodes) is own


class Serving:
    """``commonwatt serve`` in a process of its own, whose API has another."""

    def __init__(self, folder: Path, path: Path, before: str = "") -> None:
        self._log = (folder / "log").open("a")
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"{before}\nfrom commonwatt.cli import main; main()", "serve", str(path), "--json"],
            stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip
        lines = []
        while (line := self.process.stdout.readline()) and line.rstrip() != "}":
            lines.append(line)
        assert lines, (folder / "log").read_text()
        self.url = json.loads("".join([*lines, "}"]))["url"]

    def api(self) -> int | None:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        of_api = [int(child) for child in children if b"own_process" in Path(f"/proc/{child}/cmdline").read_bytes()]
        return next(iter(of_api), None)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self._log.close()


@contextmanager
def serving(folder: Path, path: Path, before: str = ""):
    running = Serving(folder, path, before)
    try:
        yield running
    finally:
        running.close()


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").is_success
    except httpx.TransportError:  # the connection was of the one that was killed
        return False


@pytest.mark.long
def test_a_killed_api_comes_back_at_its_address_and_the_controller_goes_on(tmp_path):
    path = config_in(tmp_path, live={"server": {"port": 0, "own_process": True}, "local": {"grace_s": 2}})
    store = store_of(path, tenants="ab")
    token = {"Authorization": f"Bearer {store.add_token(None, 'o', time.time())}"}

    def status(job: int) -> JobStatus:
        return store.job(job).status

    with serving(tmp_path, path) as running:
        first = running.api()
        assert first is not None
        with httpx.Client(base_url=running.url, headers=token, timeout=60) as client:
            body = {"name": "x", "command": ["sleep", "600"], "time_limit_s": 3600}
            job = client.post("/api/v1/jobs", params={"tenant": "a"}, json=body).json()["id"]
            until(lambda: client.get(f"/api/v1/jobs/{job}").json()["status"] == "running")
            held = client.get("/api/v1/cluster").json()["nodes"]
            assert sum(one["held_gpus"] for one in held) == 1

            os.kill(first, signal.SIGSTOP)  # it answers nobody, and jobs begin and end
            short = store.submit("b", witness("short", tmp_path, 0.1), time.time())[0].id
            until(lambda: status(short) is JobStatus.COMPLETED)
            os.kill(first, signal.SIGKILL)
            answer = httpx.get(f"{running.url}/healthz", timeout=60)  # it waits for the next one
            assert (answer.status_code, answer.json()["status"]) == (200, "ok")
            assert running.api() not in (None, first)
            listed = client.get("/api/v1/jobs", params={"status": "running"}).json()["jobs"]
            assert [one["id"] for one in listed] == [job]
            assert client.post(f"/api/v1/jobs/{job}/cancel").status_code < 300
            until(lambda: status(job) is JobStatus.CANCELLED)

        second = running.api()
        running.process.terminate()
        assert running.process.wait(60) == 0
        assert is_gone(second)

    with serving(tmp_path, path) as running:
        api = running.api()
        os.kill(api, signal.SIGSTOP)  # it hears nothing
        running.process.kill()
        running.process.wait()
        until(lambda: is_gone(api))  # another controller could listen there


@pytest.mark.long
def test_a_controller_without_descriptors_goes_on_and_has_an_api_again(tmp_path):
    path = config_in(tmp_path, engine="simulated", live={"server": {"port": 0, "own_process": True}})
    with serving(tmp_path, path) as running:
        pid = running.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
        os.kill(running.api(), signal.SIGKILL)
        until(lambda: "Too many open files" in (tmp_path / "log").read_text())
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        answer = httpx.get(f"{running.url}/healthz", timeout=60)
        assert answer.status_code in (200, 503)
        running.process.terminate()
        assert running.process.wait(60) == 0


@pytest.mark.long
def test_an_api_that_hangs_is_replaced(tmp_path):
    path = config_in(tmp_path, engine="simulated", live={"server": {"port": 0, "own_process": True}})
    sooner = "import commonwatt.service.own_process as one; one._HUNG_S = 20.0"
    with serving(tmp_path, path, sooner) as running:
        first = running.api()
        os.kill(first, signal.SIGSTOP)
        assert httpx.get(f"{running.url}/healthz", timeout=120).is_success
        assert running.api() not in (None, first)
        assert "the API hangs, and is ended" in (tmp_path / "log").read_text()


@pytest.mark.long
def test_tls_and_the_unix_socket_are_served_by_it_too(tmp_path):
    ca = trustme.CA()
    made = ca.issue_cert("localhost", "127.0.0.1")
    made.private_key_pem.write_to_path(tmp_path / "key.pem")
    (tmp_path / "cert.pem").write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    server = {
        "port": 0, "own_process": True, "tls": {"certificate": "cert.pem", "key": "key.pem"},
        "socket": {"path": str(tmp_path / "api.sock")},
    }  # fmt: skip
    path = config_in(tmp_path, engine="simulated", live={"server": server})  # no job runs as the user of this test
    with serving(tmp_path, path) as running:
        over_tls = httpx.Client(
            base_url=running.url, verify=ssl.create_default_context(cafile=str(tmp_path / "ca.pem")), timeout=60
        )
        local = httpx.Client(
            base_url="http://local", transport=httpx.HTTPTransport(uds=str(tmp_path / "api.sock")), timeout=60
        )
        with over_tls, local:
            for _ in range(2):
                until(lambda: over_tls.get("/healthz").json()["status"] == "ok")  # a busy machine is behind for a while
                assert local.get("/api/v1/cluster").json()["nodes"]  # no token: the kernel says who asks
                os.kill(running.api(), signal.SIGKILL)
                until(lambda: answers(over_tls))
        running.process.terminate()
        assert running.process.wait(60) == 0
    assert not (tmp_path / "api.sock").exists()
