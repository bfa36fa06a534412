"""``deploy/nginx.conf`` in a real nginx: TLS in front of the service, and nothing that it would lose."""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")

from commonwatt.client import Client  # noqa: E402
from commonwatt.model.errors import InputError, ServiceError  # noqa: E402
from commonwatt.model.job_file import JobFile  # noqa: E402
from tests.cli.console import run  # noqa: E402
from tests.client.conftest import served  # noqa: E402, F401
from tests.engines.waiting import until  # noqa: E402
from tests.machine import lacking, which  # noqa: E402

pytestmark = pytest.mark.slow

CONF = Path(__file__).parents[2] / "deploy" / "nginx.conf"
NAME = "commonwatt.example.org"
MAIN = """
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  {temporary}
{site}
}}
"""
KINDS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    if (openssl := which("nginx", "openssl")) is None:
        lacking("nginx", "no openssl on PATH")
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", f"/CN={NAME}", "-addext",
         f"subjectAltName=DNS:{NAME},DNS:localhost", "-keyout", folder / "privkey.pem",
         "-out", folder / "fullchain.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def proxy(served, certificate, tmp_path_factory):  # noqa: F811
    """Ports for plain and for TLS."""
    path = os.environ.get("PATH", "") + os.pathsep + "/usr/sbin"
    if (nginx := which("nginx", "nginx", path=path)) is None:
        lacking("nginx", "no nginx on PATH")
    folder, plain, tls = tmp_path_factory.mktemp("nginx"), free_port(), free_port()
    site = CONF.read_text()
    for before, after in {
        "127.0.0.1:8470": served.url.removeprefix("http://"),
        "listen 80;": f"listen 127.0.0.1:{plain};",
        "listen 443 ssl http2;": f"listen 127.0.0.1:{tls} ssl http2;",
        "/etc/ssl/commonwatt": str(certificate),
    }.items():
        assert site.count(before) >= 1, before
        site = site.replace(before, after)
    temporary = "\n  ".join(f"{kind}_temp_path {folder}/{kind};" for kind in KINDS)
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder, site=site, temporary=temporary))
    process = subprocess.Popen([nginx, "-p", str(folder), "-c", str(folder / "nginx.conf")], stderr=subprocess.PIPE)

    def answers():
        assert process.poll() is None, process.stderr.read().decode()
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", tls)) == 0

    until(answers)
    yield plain, tls
    process.terminate()
    process.wait(30)
    process.stderr.close()


@pytest.fixture
def https(proxy, certificate, served, monkeypatch, tmp_path):  # noqa: F811
    url = f"https://localhost:{proxy[1]}"
    monkeypatch.setenv("COMMONWATT_URL", url)
    monkeypatch.setenv("COMMONWATT_TOKEN", served.service.tokens["ada"])
    monkeypatch.setenv("COMMONWATT_CA_FILE", str(certificate / "fullchain.pem"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return url


def trusting(certificate):
    return ssl.create_default_context(cafile=str(certificate / "fullchain.pem"))


def test_commands_and_clients_speak_tls(https):
    with Client() as ada:
        submitted = ada.submit(JobFile(name="tls", command=("true",)))
        assert ada.job(submitted.id).name == "tls"
    done = run("jobs", "--json")
    assert done.code == 0, done.err
    assert "tls" in [job["name"] for job in done.document["jobs"]]


def test_a_certificate_that_nobody_trusts_is_refused(https, monkeypatch, tmp_path):
    monkeypatch.delenv("COMMONWATT_CA_FILE")
    with Client(retries=0) as ada, pytest.raises(ServiceError, match="CERTIFICATE_VERIFY_FAILED"):
        ada.cluster()
    monkeypatch.setenv("COMMONWATT_CA_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(InputError, match=r"ca_file.*a PEM file of certificates"):
        Client()


def test_the_authority_may_be_in_the_file(https, monkeypatch, certificate, tmp_path):
    token = os.environ["COMMONWATT_TOKEN"]
    for name in ("URL", "TOKEN", "CA_FILE"):
        monkeypatch.delenv(f"COMMONWATT_{name}")
    file = tmp_path / "commonwatt" / "client.yaml"
    file.parent.mkdir()
    file.write_text(f"url: {https}\ntoken: {token}\nca_file: {certificate / 'fullchain.pem'}\n")
    file.chmod(0o600)
    with Client() as ada:
        assert ada.cluster().engine == "simulated"


def test_plain_requests_are_sent_to_tls(proxy):
    answer = httpx.get(f"http://127.0.0.1:{proxy[0]}/api/v1/jobs?limit=3", headers={"Host": NAME})
    assert (answer.status_code, answer.headers["location"]) == (308, f"https://{NAME}/api/v1/jobs?limit=3")


def test_strangers_see_no_metrics_through_it(https, certificate):
    answer = httpx.get(f"{https}/metrics", verify=trusting(certificate))
    assert answer.status_code in {401, 403}
    assert answer.headers["strict-transport-security"] == "max-age=31536000"


def test_events_are_passed_on_at_once(https, certificate):
    token = {"Authorization": f"Bearer {os.environ['COMMONWATT_TOKEN']}"}
    with httpx.stream("GET", f"{https}/api/v1/stream", headers=token, verify=trusting(certificate)) as answer:
        assert answer.status_code == 200
        first = next(answer.iter_lines())  # while the stream stays open
        assert re.match(r"(:|event|data|id|retry)", first)


def test_a_body_that_is_too_large_never_reaches_the_service(https, certificate):
    token = {"Authorization": f"Bearer {os.environ['COMMONWATT_TOKEN']}"}
    answer = httpx.post(f"{https}/api/v1/jobs", content=b"x" * 3_000_000, headers=token, verify=trusting(certificate))
    assert answer.status_code == 413


def test_slow_clients_hold_nobody_up(https, proxy, certificate):
    slow = []
    try:
        for _ in range(200):
            one = socket.create_connection(("127.0.0.1", proxy[1]))
            slow.append(one)
            one.send(b"\x16")  # the first byte of a handshake
        began_s = time.monotonic()
        with Client() as ada:
            ada.cluster()
        assert time.monotonic() - began_s < 30
    finally:
        for one in slow:
            one.close()
