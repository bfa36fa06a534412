"""The Unix socket: who the kernel says connects, what they may do, and what may be at its path."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")

from commonwatt.client import (
    Client,
    connection,
)
from commonwatt.controlplane.identity import identity_checks, peers_of
from commonwatt.controlplane.wiring import read_config
from commonwatt.model.errors import InputError, ServiceError
from commonwatt.model.scenario import Scenario
from commonwatt.service import server as serving
from commonwatt.service.app import make_app
from commonwatt.service.connections import Connections
from commonwatt.service.server import LocalSocket, bound, run_server
from tests.cli.console import run, write
from tests.service.made import NODES, StandIn, job
from tests.service.test_connections import answer, until

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")
USERS = [
    {"user": "games", "tenant": "ada"}, {"user": "daemon", "tenant": "bob", "role": "admin"},
    {"user": "man", "tenant": "ada", "role": "viewer"}, {"user": "lp", "role": "operator"},
    {"user": "mail", "tenant": "ada"}, {"user": "mail", "tenant": "bob"},
]  # fmt: skip
ASK = """
import os, socket, sys
uid, gid = int(sys.argv[3]), int(sys.argv[4])
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(gid), os.setuid(uid)  # here, as the interpreter may be out of the user's reach
one = socket.socket(socket.AF_UNIX)
one.connect(sys.argv[1])
one.sendall(sys.argv[2].encode())
found = b""
while part := one.recv(65536): found += part
sys.stdout.buffer.write(found)
"""


@pytest.fixture
def folder():
    """A folder with a short name that everybody may pass through."""
    path = Path(tempfile.mkdtemp(prefix="cw-sock-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


class Running:
    """The service on a free port and on a socket."""

    def __init__(self, service: StandIn, path: Path, monkeypatch) -> None:
        self.path, self.service, servers = path, service, []
        main_loop = serving._Server.main_loop

        async def noted(server) -> None:
            servers.append(server)
            await main_loop(server)

        monkeypatch.setattr(serving._Server, "main_loop", noted)
        self.connections = Connections(20)
        self.local, listening = LocalSocket(path), bound("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self._thread = threading.Thread(
            target=run_server, args=(make_app(service.context), listening), daemon=True,
            kwargs={"connections": self.connections, "local": self.local},
        )  # fmt: skip
        self._thread.start()
        until(lambda: servers)
        self._server = servers[0]

    def as_user(self, user: str, method: str, path: str, head: str = "") -> tuple[int, str]:
        """Make a request as *user*; returns status and body."""
        length = "" if method == "GET" else "Content-Length: 0\r\n"
        request = f"{method} /api/v1{path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n{length}{head}\r\n"
        entry = pwd.getpwnam(user)
        command = [sys.executable, "-IS", "-c", ASK, self.path, request, entry.pw_uid, entry.pw_gid]
        done = subprocess.run([str(part) for part in command], capture_output=True, check=True)
        text = done.stdout.decode()
        return int(text.split()[1]), text.partition("\r\n\r\n")[2]

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive()
        self.local.close()


@pytest.fixture
def running(folder, tmp_path, monkeypatch):
    service = StandIn(tmp_path, server={"socket": {"path": str(folder / "s"), "users": USERS}})
    for name in ("URL", "TOKEN", "TENANT"):
        monkeypatch.delenv(f"COMMONWATT_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    made = Running(service, folder / "s", monkeypatch)
    yield made
    made.close()
    service.close()


@pytest.mark.slow
def test_commands_of_the_servers_user_need_no_token(running, monkeypatch):
    url = f"unix:{running.path}"
    me = pwd.getpwuid(os.geteuid()).pw_name
    assert run("whoami", "--url", url).out == f"{me}, an operator (by this machine)\n"
    with Client(url) as client:
        assert client.whoami().model_dump() == {
            "token": None, "label": me, "tenant": None, "operator": True, "role": None, "via": "socket"
        }  # fmt: skip
        number = client.submit(job(), tenant="ada").id
        assert client.job(number).tenant == "ada"
        assert next(iter(client.audit())).actor == f"operator, socket {me}"
    with Client(url, running.service.tokens["bob"]) as client:  # a token goes before the user
        assert client.whoami().tenant == "bob"
    with Client(running.url, retries=0) as client, pytest.raises(ServiceError, match="no token"):
        client.whoami()  # over TCP the kernel says nothing
    monkeypatch.setattr(connection, "DEFAULT_SOCKET", running.path)
    assert run("whoami").out.startswith(me)
    monkeypatch.setenv("COMMONWATT_URL", f"unix:{running.path}x,unix:{running.path}")  # a standby that is away
    assert run("whoami").out.startswith(me)


def test_credentials_that_are_wrong_do_not_fall_back_on_the_user(running):
    me = pwd.getpwuid(os.geteuid()).pw_name
    for value in ("Bearer cw_" + "x" * 43, "Bearer x", "Bearer", "Basic cm9vdDo=", "", "x"):
        if os.geteuid() == 0:
            assert running.as_user(me, "GET", "/whoami", f"Authorization: {value}\r\n")[0] == 401, value
    assert running.service.tokens["ada"]
    stream = b"GET /api/v1/stream HTTP/1.1\r\nHost: here\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(str(running.path))
        one.sendall(stream)
        found = b""
        while b'"operator": true' not in found:
            found += one.recv(65_536)


@pytest.mark.slow
@as_root
def test_a_user_is_what_the_configuration_says_and_no_more(running):
    number = Client(f"unix:{running.path}").submit(job(), tenant="bob").id
    seen = {user: running.as_user(user, "GET", "/whoami") for user in ("games", "daemon", "man", "lp", "nobody", "bin")}
    assert {user: status for user, (status, _) in seen.items()} == {
        "games": 200, "daemon": 200, "man": 200, "lp": 200, "nobody": 401, "bin": 401,
    }  # fmt: skip
    assert '"tenant":"ada"' in seen["games"][1]
    assert '"role":"admin"' in seen["daemon"][1]
    assert '"operator":true' in seen["lp"][1]
    for user, path, status in (
        ("games", f"/jobs/{number}", 404), ("games", f"/jobs/{number}/cancel", 404), ("games", "/nodes/t/drain", 403),
        ("games", "/tokens", 403), ("man", f"/jobs/{number}/cancel", 403), ("daemon", "/audit", 403),
        ("daemon", f"/jobs/{number}", 200), ("lp", f"/jobs/{number}", 200), ("mail", "/whoami", 403),
    ):  # fmt: skip
        method = "POST" if path.endswith(("cancel", "drain")) else "GET"
        assert running.as_user(user, method, path)[0] == status, (user, path)
    assert '"tenant":"bob"' in running.as_user("mail", "GET", "/whoami", "Commonwatt-Tenant: bob\r\n")[1]
    assert running.as_user("games", "GET", "/whoami", "Commonwatt-Tenant: bob\r\n")[0] == 403


@pytest.mark.slow
@as_root
def test_no_header_makes_somebody_else_of_a_user(running):
    for head in (
        "X-Forwarded-For: 127.0.0.1", "Forwarded: for=127.0.0.1", "Peer-Uid: 0", "X-Peer-Uid: 0", "peer_uid: 0",
        "State: peer_uid=0", "Commonwatt-Tenant: ada", "X-Remote-User: root", "Host: 127.0.0.1",
    ):  # fmt: skip
        assert running.as_user("nobody", "GET", "/whoami", head + "\r\n")[0] in {400, 401}, head
    for head in ("X-Forwarded-For: 10.0.0.7", "Forwarded: for=10.0.0.7", "X-Real-IP: 10.0.0.7", "Via: 1.1 proxy"):
        assert running.as_user("root", "GET", "/whoami", head + "\r\n")[0] == 401, head  # a proxy is not its clients
    assert running.as_user("root", "GET", "/whoami")[0] == 200
    text = running.as_user("nobody", "GET", "/../../metrics", "")[0]
    assert text != 200  # only this machine's TCP addresses see metrics without a token
    token = f"Authorization: Bearer {running.service.tokens['ada']}\r\n"
    assert '"via":"token"' in running.as_user("nobody", "GET", "/whoami", token)[1]


def test_it_is_limited_as_other_connections_are(running):
    many = []
    for _ in range(100):
        one = socket.socket(socket.AF_UNIX)
        one.settimeout(30)
        one.connect(str(running.path))
        many.append(one)
    with Client(f"unix:{running.path}") as client:
        assert client.whoami().operator
    assert answer(many[0]) == b""
    assert len(running.connections) <= 20  # the limit that was set, not the default
    for one in many:
        one.close()


# -- what is at its path


def test_the_socket_is_open_to_all_and_goes_with_the_server(folder):
    path = folder / "s"
    one = LocalSocket(path)
    assert path.stat().st_mode & 0o777 == 0o666
    assert (folder / "s.lock").stat().st_mode & 0o777 == 0o600
    with pytest.raises(InputError, match="another server uses it; a second one here needs --socket PATH"):
        LocalSocket(path)
    assert path.is_socket()
    one.close()
    assert not path.exists()
    LocalSocket(path).close()


def test_a_socket_that_a_killed_server_left_is_replaced(folder):
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(folder / "s"))
    left.listen()
    with pytest.raises(InputError, match="something listens on it"):
        LocalSocket(folder / "s")
    left.close()
    assert (folder / "s").is_socket()
    LocalSocket(folder / "s").close()


def test_what_is_no_socket_of_ours_is_left_alone(folder):
    secret = folder / "secret"
    secret.write_text("x")
    (folder / "s").symlink_to(secret)
    (folder / "dangling").symlink_to(folder / "nothing")
    (folder / "file").write_text("mine")
    (folder / "folder").mkdir()
    (folder / "t.lock").symlink_to(secret)
    for name in ("s", "dangling", "file", "folder", "t"):
        before = (folder / name).is_symlink()
        with pytest.raises(InputError, match="a free path for a socket"):
            LocalSocket(folder / name)
        assert (folder / name).is_symlink() == before
    assert secret.read_text() == "x"
    assert (folder / "file").read_text() == "mine"
    assert not (folder / "nothing").exists()
    with pytest.raises(InputError, match="its folder: No such file"):
        LocalSocket(folder / "none" / "s")


def test_a_folder_in_which_others_may_write_is_refused(folder):
    for mode, good in ((0o777, False), (0o775, False), (0o1777, True), (0o711, True)):
        folder.chmod(mode)
        if good:
            LocalSocket(folder / "s").close()
        else:
            with pytest.raises(InputError, match="others may write to its folder"):
                LocalSocket(folder / "s")
    folder.chmod(0o755)


@as_root
def test_sockets_and_folders_of_others_are_refused(folder):
    with socket.socket(socket.AF_UNIX) as theirs:  # in a folder such as /tmp, before the server starts
        theirs.bind(str(folder / "s"))
    os.chown(folder / "s", pwd.getpwnam("games").pw_uid, -1)
    with pytest.raises(InputError, match="another user's socket"):
        LocalSocket(folder / "s")
    os.chown(folder, pwd.getpwnam("games").pw_uid, -1)
    with pytest.raises(InputError, match="belongs to another user"):
        LocalSocket(folder / "t")


# -- roles


def scenario(users=(), engine="local", local=None, **live):
    server = {"socket": {"path": "s", "users": list(users)}}
    live = {"server": server, "local": {"users": local or {}}, **live}
    tenants = [{"name": "ada"}, {"name": "bob"}]
    return Scenario.model_validate({"engine": engine, "nodes": NODES, "tenants": tenants, "live": live})


def test_whoever_runs_jobs_has_no_role(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: pwd.getpwnam("games").pw_uid)
    games = pwd.getpwnam("games").pw_uid
    found = peers_of(scenario())
    assert (set(found.grants), found.jobs_as) == ({0}, "games")
    assert "games" in next(line.found for line in identity_checks(scenario(), {"ada", "bob"}))
    for engine, own in (("simulated", True), ("slurm", False), ("kubernetes", True)):
        found = peers_of(scenario(engine=engine))
        assert (games in found.grants) == own, engine
    assert games in peers_of(scenario(engine="slurm", slurm={"read_only": True})).grants
    with pytest.raises(InputError, match="a user that no jobs run as"):
        peers_of(scenario([{"user": "games", "tenant": "ada"}]))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert 0 not in peers_of(scenario()).grants  # jobs run as root: so is every job
    assert list(peers_of(scenario(local={"ada": "games"})).grants) == [0]


def test_a_user_of_a_tenants_jobs_is_at_most_that_tenant(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    games, local = pwd.getpwnam("games").pw_uid, {"ada": "games", "bob": "daemon"}
    assert games not in peers_of(scenario(local=local)).grants  # jobs get no role by themselves
    assert games in peers_of(scenario([{"user": "games", "tenant": "ada"}], local=local)).grants
    for grant in (
        {"tenant": "bob"}, {"tenant": "ada", "role": "admin"}, {"role": "operator"}, {"role": "viewer"},
    ):  # fmt: skip
        with pytest.raises(InputError, match="viewer or member of the only tenant whose jobs run as games"):
            peers_of(scenario([{"user": "games", **grant}], local=local))
    with pytest.raises(InputError, match="the only tenant"):
        peers_of(scenario([{"user": "games", "tenant": "ada"}], local={"ada": "games", "bob": "games"}))
    with pytest.raises(InputError, match="a user other than the one that the kernel shows"):
        peers_of(scenario([{"user": "nobody", "tenant": "ada"}], local=local))
    with pytest.raises(InputError, match="a Unix user of this machine"):
        peers_of(scenario([{"user": "nobody-at-all", "tenant": "ada"}], local=local))


def test_paths_that_jobs_could_reach_are_refused(folder):
    def config(path, engine="local", **live):
        server = {"server": {"socket": {"path": path}}}
        return write(folder / "live.yaml", {"engine": engine, "nodes": NODES, "live": live | server})

    read_config(config("s"))
    (folder / "state" / "jobs").mkdir(parents=True)
    (folder / "link").symlink_to(folder / "state" / "jobs")
    for path in ("state/s", "state/jobs/s", "link/s", str(folder / "state" / "s")):
        with pytest.raises(InputError, match="outside the state folder"):
            read_config(config(path))
    mounted = {"kubernetes": {"volumes": {"/data": f"host:{folder / 'shared'}"}}}
    with pytest.raises(InputError, match="outside volume"):
        read_config(config("shared/s", "kubernetes", **mounted))
    with pytest.raises(InputError, match="at most 107 bytes"):
        read_config(config("x" * 108))
    warned = [line.found for line in identity_checks(scenario([{"user": "man", "tenant": "red"}]), {"ada", "bob"})]
    assert "roles in tenants that do not exist: red" in warned
