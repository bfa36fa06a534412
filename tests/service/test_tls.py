"""TLS of the service itself, with real certificates: versions, renewal, clients' certificates, open handshakes."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

import pytest

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")
trustme = pytest.importorskip("trustme")

import uvicorn  # noqa: E402

from commonwatt.client import Client  # noqa: E402
from commonwatt.controlplane.wiring import read_config  # noqa: E402
from commonwatt.data.certificates import Certificates, tls_context  # noqa: E402
from commonwatt.model.errors import InputError, ServiceError  # noqa: E402
from commonwatt.model.identity import TlsSpec  # noqa: E402
from commonwatt.service import server as serving  # noqa: E402
from commonwatt.service.connections import ACCEPTED_AT_ONCE, Connections  # noqa: E402
from commonwatt.service.server import bound  # noqa: E402
from tests.cli.console import run, write  # noqa: E402
from tests.service.made import NODES  # noqa: E402
from tests.service.test_connections import HEAD, answer, until  # noqa: E402

SPEC = TlsSpec(certificate="cert.pem", key="key.pem")


class Site:
    """A folder with a certificate, and its authority."""

    def __init__(self, folder) -> None:
        self.folder, self.ca = folder, trustme.CA()
        self.ca_file = folder / "ca.pem"
        self.ca.cert_pem.write_to_path(self.ca_file)
        self.issue()

    def issue(self, names=("localhost", "127.0.0.1"), ca=None) -> None:
        made = (ca or self.ca).issue_cert(*names)
        made.private_key_pem.write_to_path(self.folder / "key.pem")
        (self.folder / "cert.pem").write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca_file))

    def client_pem(self, ca=None):
        made, path = (ca or self.ca).issue_cert("ann@example.org"), self.folder / "client.pem"
        made.private_key_and_cert_chain_pem.write_to_path(path)
        return path


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


class Running:
    """The service with TLS on a free port."""

    def __init__(self, app, certificates, connections) -> None:
        self.certificates, self.connections, listening = certificates, connections, bound("127.0.0.1", 0)
        connections.tls = certificates
        self.address = listening.getsockname()
        self.url = f"https://localhost:{self.address[1]}"
        config = uvicorn.Config(
            app, log_config=None, lifespan="off", http=connections.protocol, ws="none", backlog=ACCEPTED_AT_ONCE
        )
        self._server = serving._Server(config, connections, lambda: None, certificates)
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._server.serve(sockets=[listening])), daemon=True
        )
        self._thread.start()
        until(lambda: self._server.started)

    def open(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=30)

    def get(self, trust, path="/healthz") -> int:
        return httpx.get(self.url + path, verify=trust, timeout=30).status_code

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def start(app, site, monkeypatch):
    made = []
    watch, look = Connections.watch, Certificates.watch
    monkeypatch.setattr(Connections, "watch", lambda self: watch(self, every_s=0.05))
    monkeypatch.setattr(Certificates, "watch", lambda self: look(self, every_s=0.05))

    def run(most=50, spec=SPEC, **limits) -> Running:
        made.append(Running(app, Certificates(spec, site.folder, "live.server.tls"), Connections(most, **limits)))
        return made[-1]

    yield run
    for one in made:
        one.close()


@pytest.mark.long
def test_requests_and_streams_over_tls(start, site, service):
    running = start()
    assert running.get(site.trust()) == 200
    with httpx.Client(verify=site.trust()) as client:  # many requests on one connection
        for _ in range(50):
            assert client.get(f"{running.url}/static/plotly.js").status_code == 200
        headers = {"Authorization": f"Bearer {service.tokens['ada']}"}
        with client.stream("GET", f"{running.url}/api/v1/stream", headers=headers) as stream:
            assert next(stream.iter_lines())
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(running.url)


@pytest.mark.slow
def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered(start, site):
    running = start()
    for _ in range(30):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = site.trust().wrap_bio(incoming, outgoing, server_hostname="localhost")
        with running.open() as raw:
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    raw.sendall(outgoing.read())
                    incoming.write(raw.recv(65_536))
            tls.write(HEAD)
            raw.sendall(outgoing.read())  # one packet: Finished, and the request
            found = b""
            while b"200 OK" not in found:
                incoming.write(raw.recv(65_536))
                with suppress(ssl.SSLWantReadError):
                    found += tls.read(65_536)


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_are_refused(start, site, newest):
    running, old = start(), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.load_verify_locations(site.ca_file)
    old.minimum_version, old.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, newest
    old.set_ciphers("ALL:@SECLEVEL=0")
    with running.open() as raw, pytest.raises((ssl.SSLError, ConnectionError)):
        old.wrap_socket(raw, server_hostname="localhost")
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        trust = site.trust()
        trust.minimum_version = trust.maximum_version = version
        assert running.get(trust) == 200


@pytest.mark.slow
def test_a_renewed_certificate_is_taken_without_a_restart(start, site, caplog):
    running = start()
    kept = httpx.Client(verify=site.trust())
    assert kept.get(f"{running.url}/healthz").status_code == 200

    def shown() -> bytes:
        with site.trust().wrap_socket(running.open(), server_hostname="localhost") as one:
            return one.getpeercert(binary_form=True)

    first = shown()
    key = (site.folder / "key.pem").read_bytes()
    site.issue()
    renewed = (site.folder / "key.pem").read_bytes()
    (site.folder / "key.pem").write_bytes(key)  # for a moment, not that of the certificate
    until(lambda: "was not renewed" in caplog.text)
    assert shown() == first
    (site.folder / "key.pem").write_bytes(renewed)
    until(lambda: shown() != first)
    (site.folder / "cert.pem").unlink()
    until(lambda: caplog.text.count("was not renewed") >= 2)
    assert running.get(site.trust()) == 200
    assert kept.get(f"{running.url}/healthz").status_code == 200  # a connection that was open stays
    kept.close()


@pytest.mark.slow
def test_handshakes_that_never_end_take_no_place(start, site):
    running = start(most=10, head_s=30.0)
    before = len(list(Path("/proc/self/fd").iterdir()))
    silent = []
    for number in range(200):
        one = running.open()
        with suppress(OSError):
            one.sendall((b"", b"\x16", b"\x16\x03\x01\x02\x00\x01")[number % 3])
        silent.append(one)
    for _ in range(10):
        assert running.get(site.trust()) == 200
        assert len(running.connections) <= 10
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 200 + 10 + ACCEPTED_AT_ONCE  # theirs, and few of ours
    for one in silent:
        one.close()


@pytest.mark.long
def test_a_handshake_has_the_time_of_a_head(start, site):
    running = start(head_s=0.3)
    for first in (b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"):
        one = running.open()
        one.sendall(first)
        assert answer(one) == b""
    until(lambda: len(running.connections) == 0)
    shaken = site.trust().wrap_socket(running.open(), server_hostname="localhost")  # and then says nothing
    assert shaken.recv(10) == b""
    shaken.close()
    slow = site.trust().wrap_socket(running.open(), server_hostname="localhost")
    slow.sendall(b"GET / HTTP/1.1\r\nX: ")
    assert slow.recv(20).startswith(b"HTTP/1.1 408 ")
    slow.close()
    until(lambda: len(running.connections) == 0)


def test_who_speaks_no_tls_is_sent_away(start, site, caplog):
    running = start()
    for text in (HEAD, b"\x00" * 100, b"\x16\x03\x01\xff\xff" + b"x" * 70_000):
        one = running.open()
        with suppress(OSError):
            one.sendall(text)
        assert b"HTTP" not in answer(one)
    until(lambda: len(running.connections) == 0)
    assert running.get(site.trust()) == 200
    assert "Traceback" not in caplog.text


@pytest.mark.slow
def test_it_ends_while_handshakes_are_open(start):
    running = start()
    held = [running.open() for _ in range(5)]
    until(lambda: len(running.connections) == 5)
    running.close()
    for one in held:
        one.close()


def test_without_a_certificate_of_its_authority_no_client_connects(start, site, service, monkeypatch, tmp_path):
    running = start(spec=SPEC.model_copy(update={"client_ca": "ca.pem"}))
    for name, value in {"URL": running.url, "TOKEN": service.tokens["ada"], "CA_FILE": site.ca_file}.items():
        monkeypatch.setenv(f"COMMONWATT_{name}", str(value))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    with Client(retries=0) as stranger, pytest.raises(ServiceError):
        stranger.whoami()
    monkeypatch.setenv("COMMONWATT_CERT_FILE", str(site.client_pem(trustme.CA())))
    with Client(retries=0) as other, pytest.raises(ServiceError):
        other.whoami()
    monkeypatch.setenv("COMMONWATT_CERT_FILE", str(site.client_pem()))
    with Client(retries=0) as ann:
        assert ann.whoami().tenant == "ada"  # by the token: the certificate only lets it connect
    monkeypatch.setenv("COMMONWATT_CERT_FILE", str(site.ca_file))
    with pytest.raises(InputError, match="cert_file"):
        Client()


@pytest.mark.slow
def test_the_command_line_trusts_an_authority_of_its_own(start, site, service, monkeypatch, tmp_path):
    running = start()
    monkeypatch.setenv("COMMONWATT_URL", running.url)
    monkeypatch.setenv("COMMONWATT_TOKEN", service.tokens["ada"])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    assert run("jobs", "--ca", site.ca_file).code == 0
    missing = run("jobs", "--ca", tmp_path / "none.pem")
    assert (missing.code, "a PEM file of certificates" in missing.err) == (2, True)
    monkeypatch.setenv("COMMONWATT_CA_FILE", str(site.ca_file))
    assert run("whoami").out == "of ada, a member of tenant ada (by token 1)\n"


@pytest.mark.slow
def test_a_token_over_plain_http_is_warned_of(monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for url, warned in (
        ("http://gpus.example.org", True), ("http://127.0.0.1:8470", False), ("https://gpus.example.org", False),
        ("http://localhost", False), ("unix:/run/x.sock", False), ("https://a.example.org,http://10.0.0.7", True),
    ):  # fmt: skip
        caplog.clear()
        Client(url, "cw_" + "x" * 30).close()
        assert ("unencrypted" in caplog.text) == warned, url
    caplog.clear()
    monkeypatch.delenv("COMMONWATT_TOKEN", raising=False)
    Client("http://gpus.example.org").close()  # without a token there is none to see
    assert caplog.text == ""


@pytest.mark.slow
def test_files_that_cannot_be_used_are_named(site, tmp_path):
    good = tls_context(SPEC, tmp_path, "live.server.tls")
    assert good.minimum_version == ssl.TLSVersion.TLSv1_2
    key, cert = (tmp_path / "key.pem").read_bytes(), (tmp_path / "cert.pem").read_bytes()
    other = trustme.CA().issue_cert("localhost").private_key_pem.bytes()
    from cryptography.hazmat.primitives import serialization as pem

    locked = pem.load_pem_private_key(key, None).private_bytes(
        pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.BestAvailableEncryption(b"secret")
    )
    (tmp_path / "folder").mkdir()
    for field, files, expected in (
        ("certificate", {"cert.pem": None}, "No such file"), ("key", {"key.pem": None}, "No such file"),
        ("certificate", {"cert.pem": b"hello"}, "a PEM file of certificates"),
        ("certificate", {"cert.pem": key}, "a PEM file of certificates"),
        ("key", {"key.pem": other}, "the private key of the first certificate"),
        ("key", {"key.pem": locked}, "without a passphrase"), ("key", {"key.pem": b""}, "without a passphrase"),
        ("key", {"key.pem": cert}, "without a passphrase"),
    ):  # fmt: skip
        (tmp_path / "key.pem").write_bytes(key)
        (tmp_path / "cert.pem").write_bytes(cert)
        for name, content in files.items():
            (tmp_path / name).unlink()
            if content is not None:
                (tmp_path / name).write_bytes(content)
        config = {"engine": "simulated", "nodes": NODES, "live": {"server": {"tls": SPEC.model_dump()}}}
        with pytest.raises(InputError, match=expected) as refused:
            read_config(write(tmp_path / "live.yaml", config))
        assert refused.value.field == f"live.server.tls.{field}", files
        done = run("serve", tmp_path / "live.yaml")
        assert (done.code, done.err.count("\n")) == (2, 1)
    (tmp_path / "key.pem").write_bytes(key)
    os.mkfifo(tmp_path / "pipe")  # nobody writes to it
    for name, expected in (
        ("folder", "Is a directory"), ("key.pem", "a PEM file of certificates"), ("pipe", "not a regular file"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=expected):
            tls_context(SPEC.model_copy(update={"client_ca": name}), tmp_path, "live.server.tls")


def test_check_tells_of_all_that_identifies_people(site, tmp_path):
    (tmp_path / "key.pem").chmod(0o644)
    server = {
        "port": 0, "tls": SPEC.model_dump(exclude_none=True), "socket": {"path": "s"},
        "oidc": {"issuer": "https://sso.example.org", "audience": "x", "groups": [{"group": "g", "tenant": "gone"}]},
    }  # fmt: skip
    config = {"engine": "simulated", "nodes": NODES, "tenants": [{"name": "ada"}], "live": {"server": server}}
    said = run("check", write(tmp_path / "live.yaml", config)).out
    for line in (
        "tls: ", "other users may read or change", "socket: ", "oidc: https://sso.example.org, 1 role by group",
        "roles in tenants that do not exist: gone",
    ):  # fmt: skip
        assert line in said
