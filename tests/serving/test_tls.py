"""TLS of the model server, with real certificates and unmodified clients, over REST and gRPC."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress

import numpy as np
import pytest

trustme = pytest.importorskip("trustme")
httpx = pytest.importorskip("httpx")
grpc = pytest.importorskip("grpc")
rpc = pytest.importorskip("tritonclient.grpc")
pytest.importorskip("gevent")
import tritonclient.http as triton_http  # noqa: E402

from commonwatt.data.certificates import Certificates  # noqa: E402
from commonwatt.model.errors import InputError  # noqa: E402
from tests.cli.console import run  # noqa: E402
from tests.serving.fake import ANN, Served  # noqa: E402
from tests.serving.test_stopping import until  # noqa: E402

KEY = {"authorization": f"Bearer {ANN}"}
TLS = {"certificate": "cert.pem", "key": "key.pem"}


class Site:
    """A folder with a certificate, and its authority."""

    def __init__(self, folder):
        self.folder, self.ca = folder, trustme.CA()
        self.ca_file = folder / "ca.pem"
        self.ca.cert_pem.write_to_path(self.ca_file)
        self.issue()()

    def issue(self):
        """Write a new certificate without its key, and return what writes that."""
        made = self.ca.issue_cert("localhost", "127.0.0.1")
        (self.folder / "cert.pem").write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
        return lambda: made.private_key_pem.write_to_path(self.folder / "key.pem")

    def client(self, ca=None):
        """Write a client's certificate, and return the files of its chain and key."""
        made = (ca or self.ca).issue_cert("ann@example.org")
        made.cert_chain_pems[0].write_to_path(self.folder / "client.pem")
        made.private_key_pem.write_to_path(self.folder / "client.key")
        return self.folder / "client.pem", self.folder / "client.key"

    def trust(self, client=None):
        context = ssl.create_default_context(cafile=str(self.ca_file))
        if client is not None:
            context.load_cert_chain(*client)
        return context

    def start(self, **more):
        return Served(folder=self.folder, tls={**TLS, **more})


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.fixture(autouse=True)
def look_often(monkeypatch):
    watch = Certificates.watch
    monkeypatch.setattr(Certificates, "watch", lambda self: watch(self, every_s=0.05))


def at(address):
    return f"https://localhost:{address.rsplit(':', 1)[1]}"


def shown(site, address, **more):
    """Return the certificate that a server presents."""
    port = int(address.rsplit(":", 1)[1])
    context = site.trust(**more)
    context.set_alpn_protocols(["h2", "http/1.1"])
    raw = socket.create_connection(("127.0.0.1", port), timeout=60)
    with raw, context.wrap_socket(raw, server_hostname="localhost") as tls:
        return tls.getpeercert(binary_form=True)


def call(site, address, client=None):
    """Ask gRPC whether the server lives, on a connection of its own."""
    pem = [None, None] if client is None else [path.read_bytes() for path in reversed(client)]
    secret = grpc.ssl_channel_credentials(site.ca_file.read_bytes(), *pem)
    where = f"localhost:{address.rsplit(':', 1)[1]}"
    with grpc.secure_channel(where, secret, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        from tritonclient.grpc import service_pb2, service_pb2_grpc

        return (
            service_pb2_grpc.GRPCInferenceServiceStub(channel)
            .ServerLive(service_pb2.ServerLiveRequest(), timeout=60)
            .live
        )


@pytest.mark.slow
def test_tritonclient_over_tls(site):
    ones = np.ones((2, 3), np.float32)
    with site.start() as server:
        assert server.at.tls
        port = server.at.rest.rsplit(":", 1)[1]
        client = triton_http.InferenceServerClient(
            f"localhost:{port}", ssl=True, ssl_context_factory=site.trust, insecure=False
        )
        tensor = triton_http.InferInput("x", [2, 3], "FP32")
        tensor.set_data_from_numpy(ones)
        assert (client.infer("double", [tensor], headers=dict(KEY)).as_numpy("y") == 2 * ones).all()
        client.close()
        port = server.at.grpc.rsplit(":", 1)[1]
        client = rpc.InferenceServerClient(f"localhost:{port}", ssl=True, root_certificates=str(site.ca_file))
        tensor = rpc.InferInput("x", [2, 3], "FP32")
        tensor.set_data_from_numpy(ones)
        assert (client.infer("double", [tensor], headers=dict(KEY)).as_numpy("y") == 2 * ones).all()
        client.close()


@pytest.mark.slow
def test_who_does_not_trust_the_authority_or_speaks_no_tls_gets_nothing(site, no_errors_in_the_log):
    with site.start() as server:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(at(server.at.rest) + "/v2")
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://{server.at.rest}/v2")
        with grpc.insecure_channel(server.at.grpc) as channel, pytest.raises(grpc.FutureTimeoutError):
            grpc.channel_ready_future(channel).result(timeout=0.5)
        for text in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"x" * 70_000):
            with socket.create_connection(("127.0.0.1", int(server.at.rest.rsplit(":", 1)[1])), timeout=60) as raw:
                with suppress(OSError):
                    raw.sendall(text)
                with suppress(ConnectionError):
                    assert b"HTTP" not in raw.recv(1000)
        assert httpx.get(at(server.at.rest) + "/v2", verify=site.trust()).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_are_refused(site, newest):
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.load_verify_locations(site.ca_file)
    old.minimum_version, old.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, newest
    old.set_ciphers("ALL:@SECLEVEL=0")
    with site.start() as server:
        for address in (server.at.rest, server.at.grpc):
            port = int(address.rsplit(":", 1)[1])
            with (
                socket.create_connection(("127.0.0.1", port), timeout=60) as raw,
                pytest.raises((ssl.SSLError, ConnectionError)),
            ):
                old.wrap_socket(raw, server_hostname="localhost")
            assert shown(site, address)


@pytest.mark.slow
def test_a_renewed_certificate_is_taken_without_a_restart(site, caplog):
    with site.start() as server:
        kept = httpx.Client(verify=site.trust())
        assert kept.get(at(server.at.rest) + "/v2").status_code == 200
        first = shown(site, server.at.rest)
        assert shown(site, server.at.grpc) == first
        write_key = site.issue()
        until(lambda: "was not renewed" in caplog.text)
        assert shown(site, server.at.rest) == shown(site, server.at.grpc) == first
        write_key()
        until(lambda: shown(site, server.at.rest) != first)
        until(lambda: shown(site, server.at.grpc) == shown(site, server.at.rest))
        assert call(site, server.at.grpc)
        assert kept.get(at(server.at.rest) + "/v2").status_code == 200  # a connection that was open stays
        kept.close()


@pytest.mark.slow
def test_without_a_certificate_of_its_authority_no_client_connects(site):
    with site.start(client_ca="ca.pem") as server:
        url = at(server.at.rest) + "/v2"
        with pytest.raises(httpx.HTTPError):
            httpx.get(url, verify=site.trust())
        with pytest.raises(grpc.RpcError):
            call(site, server.at.grpc)
        other = site.client(trustme.CA())
        with pytest.raises(httpx.HTTPError):
            httpx.get(url, verify=site.trust(other))
        with pytest.raises(grpc.RpcError):
            call(site, server.at.grpc, other)
        own = site.client()
        assert httpx.get(url, verify=site.trust(own)).status_code == 200
        assert call(site, server.at.grpc, own)


@pytest.mark.slow
def test_clients_of_a_former_authority_are_refused_once_it_is_replaced(site, caplog):
    caplog.set_level("INFO")
    (site.folder / "clients.pem").write_bytes(site.ca_file.read_bytes())
    with site.start(client_ca="clients.pem") as server:
        url, former = at(server.at.rest) + "/v2", site.trust(site.client())
        with httpx.Client(verify=former) as client:
            assert client.get(url).status_code == 200
        session = resumable(former, server.at.rest)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(site.folder / "clients.pem")
        until(lambda: "the certificate was renewed" in caplog.text)
        with pytest.raises(httpx.HTTPError):
            httpx.get(url, verify=former)
        with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
            resumable(former, server.at.rest, session)
        with pytest.raises(grpc.RpcError):
            call(site, server.at.grpc, (site.folder / "client.pem", site.folder / "client.key"))
        new = site.client(authority)
        assert httpx.get(url, verify=site.trust(new)).status_code == 200
        assert call(site, server.at.grpc, new)


def resumable(context, address, session=None):
    """Ask once over TLS 1.2, and return a session that a client would resume."""
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    port = int(address.rsplit(":", 1)[1])
    raw = socket.create_connection(("127.0.0.1", port), timeout=60)
    with raw, context.wrap_socket(raw, server_hostname="localhost", session=session) as tls:
        tls.sendall(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        if not tls.recv(100).startswith(b"HTTP/1.1 200"):
            raise EOFError
        return tls.session


@pytest.mark.slow
def test_it_stops_while_handshakes_are_open(site):
    with site.start() as server:
        port = int(server.at.rest.rsplit(":", 1)[1])
        held = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(3)]
        server.soon(server.stop.set)
        server.end()
        for one in held:
            one.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "field", "expected"),
    [
        ("cert.pem", None, "certificate", "No such file"), ("key.pem", None, "key", "No such file"),
        ("cert.pem", b"hello", "certificate", "a PEM file of certificates"),
        ("key.pem", "of another", "key", "the first certificate in"),
        ("key.pem", b"", "key", "without a passphrase"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_used_are_named(site, name, content, field, expected):
    (site.folder / name).unlink()
    if content == "of another":
        content = site.ca.issue_cert("a.example").private_key_pem.bytes()
    if content is not None:
        (site.folder / name).write_bytes(content)
    with pytest.raises(InputError, match=expected) as refused, site.start():
        pass
    assert refused.value.field == f"server.tls.{field}"
    file = site.folder / "shared.yaml"
    file.write_text(
        "device: {kind: cpu}\ntenants: [{name: a, models: [{name: m, path: none.onnx}]}]\n"
        "server: {tls: {certificate: cert.pem, key: key.pem}}\n"
    )
    done = run("timeslice", "serve", file, "--check")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"server.tls.{field}" in done.err
    assert expected in done.err


def test_options_need_each_other(site):
    file = site.folder / "shared.yaml"
    file.write_text("device: {kind: cpu}\ntenants: [{name: a, models: [{name: m, path: none.onnx}]}]\n")
    for given, missing in (("--tls-key", "--tls-certificate"), ("--tls-certificate", "--tls-key")):
        done = run("timeslice", "serve", file, "--check", given, site.folder / "key.pem")
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert missing in done.err
    done = run(
        "timeslice", "serve", file, "--check", "--tls-certificate", site.ca_file, "--tls-key", site.folder / "key.pem"
    )
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "server.tls.key" in done.err
