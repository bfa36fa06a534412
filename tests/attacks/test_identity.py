"""Jobs, strangers and second servers that try to be somebody over the socket; handshakes that never end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import pytest

pytest.importorskip("fastapi")
trustme = pytest.importorskip("trustme")

from commonwatt.client import Client  # noqa: E402
from commonwatt.model.errors import ServiceError  # noqa: E402
from tests.attacks.site import served, until  # noqa: E402
from tests.attacks.test_slow_connections import Flood, many_descriptors  # noqa: E402, F401

pytestmark = pytest.mark.slow

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run jobs as other users")
USERS = {"red": "games", "blue": "daemon"}
ATTACK = r"""
my ($path, @requests) = @ARGV;
for my $request (@requests) {
    my ($method, $what) = split / /, $request;
    my $one = IO::Socket::UNIX->new(Peer => $path) or die "$path: $!";
    my $body = $what =~ /mode/ ? '{"mode":"dry-run"}' : $what =~ /tokens/ ? '{"tenant":null}' : '{}';
    print $one "$method /api/v1$what HTTP/1.1\r\nHost: here\r\nConnection: close\r\nX-Peer-Uid: 0\r\n",
        "Content-Type: application/json\r\nContent-Length: ", length $body, "\r\n\r\n$body";
    my $status = <$one>;
    print "$request ", (split / /, $status)[1], "\n";
}
"""


@pytest.fixture
def folder():
    """A folder that everybody may pass through, as a site's is."""
    path = Path(tempfile.mkdtemp(prefix="cw-id-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def config(*grants, users=None):
    return {
        "local": {"grace_s": 0.5, "users": users or {}},
        "server": {"socket": {"path": "run/commonwatt.sock", "users": list(grants)}},
    }


def asked(site, *requests, tenant="red"):
    """Let a job make requests over the socket; returns their statuses."""
    perl = shutil.which("perl")
    assert perl is not None
    path = str(site.folder / "run" / "commonwatt.sock")
    job = site.submit(perl, "-MIO::Socket::UNIX", "-e", ATTACK, path, *requests, tenant=tenant)
    until(lambda: site.status(job) in ("completed", "failed"))
    lines = site.call("GET", f"/jobs/{job}/log").text.splitlines()
    assert len(lines) == len(requests), lines
    return {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in lines}


OPERATORS = ("POST /mode", "POST /tokens", "GET /audit", "GET /tokens")


@pytest.mark.long
@pytest.mark.skipif(shutil.which("perl") is None, reason="no perl, by which the job attacks")
def test_a_job_that_runs_as_the_user_of_the_server_is_nobody_over_the_socket(folder):
    (folder / "run").mkdir(mode=0o755)
    with served(folder, tenants=[{"name": "red"}], live=config()) as site:
        assert asked(site, "GET /whoami", *OPERATORS) == dict.fromkeys(("GET /whoami", *OPERATORS), 401)
        assert site.call("GET", "/cluster").json()["mode"] == "live"
        assert "has no role over the socket and needs a token: all jobs run as this user" in site.log.read_text()
        with Client(f"unix:{folder}/run/commonwatt.sock", retries=0) as me, pytest.raises(ServiceError, match="runs"):
            me.whoami()  # nor is the person of this name: who could tell them from a job?


@pytest.mark.long
@as_root
@pytest.mark.skipif(shutil.which("perl") is None, reason="no perl, by which the job attacks")
def test_a_job_of_a_tenants_user_is_that_tenant_or_nobody(folder):
    (folder / "run").mkdir(mode=0o755)
    tenants = [{"name": "red"}, {"name": "blue"}]
    live = config({"user": "games", "tenant": "red"}, users=USERS)
    with served(folder, tenants=tenants, live=live) as site:
        victim = site.submit("sleep", "60", tenant="blue")
        found = asked(
            site, "GET /whoami", *OPERATORS, f"GET /jobs/{victim}", f"POST /jobs/{victim}/cancel", "POST /nodes/n/drain"
        )
        assert found == {
            "GET /whoami": 200, **dict.fromkeys(OPERATORS, 403), f"GET /jobs/{victim}": 404,
            f"POST /jobs/{victim}/cancel": 404, "POST /nodes/n/drain": 403,
        }  # fmt: skip
        assert asked(site, "GET /whoami", "POST /mode", tenant="blue") == {"GET /whoami": 401, "POST /mode": 401}
        with Client(f"unix:{folder}/run/commonwatt.sock") as root:
            assert root.whoami().operator
            root.cancel(victim)
        assert site.call("GET", "/cluster").json()["mode"] == "live"


def command(folder, *options):
    return [sys.executable, "-c", "from commonwatt.cli import main; main()", "serve", str(folder / "live.yaml"),
            "--port", "0", *options]  # fmt: skip


@pytest.mark.long
def test_a_second_server_leaves_the_socket_of_the_first_alone(folder):
    (folder / "run").mkdir(mode=0o755)
    path = folder / "run" / "commonwatt.sock"
    with served(folder, engine="simulated", live=config()) as site:
        inode = path.stat().st_ino
        other = subprocess.run(command(folder), capture_output=True, text=True, timeout=120, check=False)
        assert (other.returncode, "another server uses it" in other.stderr) == (2, True), other.stderr
        assert "Traceback" not in other.stderr
        assert path.stat().st_ino == inode
        with Client(f"unix:{path}") as me:
            assert me.whoami().operator
        site.process.send_signal(signal.SIGKILL)
        site.process.wait(30)
        assert path.is_socket()  # left behind
        again = subprocess.Popen(command(folder), stderr=subprocess.DEVNULL)
        try:
            with Client(f"unix:{path}", retries=30) as me:  # refused until it has taken the socket
                assert me.whoami().operator
        finally:
            again.send_signal(signal.SIGTERM)
            again.wait(60)
        assert not path.exists()


class Handshakes(Flood):
    """Sockets that begin a handshake, and send nothing more, or a byte now and then."""

    FIRST, MORE = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"x"


@pytest.mark.long
def test_1500_handshakes_that_never_end_stop_neither_jobs_nor_the_api(tmp_path, many_descriptors, monkeypatch):  # noqa: F811
    authority = trustme.CA()
    made = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    made.private_key_pem.write_to_path(tmp_path / "key.pem")
    made.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    tls = {"server": {"tls": {"certificate": "cert.pem", "key": "key.pem"}}}
    with served(tmp_path, descriptors=1024, live=tls) as site:
        assert site.url.startswith("https://")
        first = site.submit("true")
        until(lambda: site.status(first) == "completed", 120)
        with Handshakes(site.url, 1500, every_s=10.0) as flood:
            until(lambda: flood.opened >= 1500)
            until(lambda: flood.closed_by_server >= 500)
            ids = [site.submit("true") for _ in range(10)]  # each on a connection of its own
            until(lambda: all(site.status(job) == "completed" for job in ids), 30)
            assert httpx.get(f"{site.url}/healthz", timeout=10).status_code == 200
            descriptors = len(list(Path(f"/proc/{site.process.pid}/fd").iterdir()))
            assert descriptors < 700
        log = site.log.read_text()
        assert "the controller failed" not in log
        assert "cannot be accepted" not in log
        assert "Traceback" not in log
        assert site.process.poll() is None
