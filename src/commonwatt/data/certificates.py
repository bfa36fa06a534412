"""Reads certificates and keys of servers, and takes them again when they are renewed."""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from commonwatt.model.errors import InputError
from commonwatt.model.identity import TlsSpec

__all__ = ["Certificates", "PemFiles", "tls_context", "tls_files", "trust"]

_log = logging.getLogger("commonwatt.service")


def tls_files(spec: TlsSpec, folder: Path) -> tuple[Path, ...]:
    """Return certificate, key and perhaps the clients' authority of a server in *folder*."""
    return tuple(folder / name for name in (spec.certificate, spec.key, spec.client_ca) if name is not None)


def tls_context(spec: TlsSpec, folder: Path, where: str) -> ssl.SSLContext:
    """Return the context of an HTTP server: TLS 1.2 or newer.

    Raises ``InputError`` naming the file that is wrong; *where* is the field of *spec*.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    certificate, key, *client_ca = tls_files(spec, folder)
    for name, path in (("certificate", certificate), ("key", key)):
        _read(path, f"{where}.{name}")
    trust(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, f"{where}.certificate")  # whether it holds any
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # without one, OpenSSL would ask the terminal
    except ssl.SSLError as error:
        expected = f"the private key of the first certificate in {where}.certificate"
        if error.reason != "KEY_VALUES_MISMATCH":
            expected = f"a PEM file of a private key without a passphrase ({error.reason or 'unreadable'})"
        raise InputError(expected, field=f"{where}.key", value=key) from None
    for path in client_ca:
        _read(path, f"{where}.client_ca")
        trust(context, path, f"{where}.client_ca")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def trust(context: ssl.SSLContext, path: Path, name: str) -> None:
    """Let *context* trust the certificates in *path*; raises ``InputError`` with the field *name* if it holds none."""
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        raise InputError("a PEM file of certificates", field=name, value=path) from None


def _read(path: Path, name: str) -> bytes:
    if path.exists() and not (path.is_file() or path.is_dir()):  # to read a pipe takes until somebody writes to it
        raise InputError("a PEM file that this process can read (not a regular file)", field=name, value=path)
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"a PEM file that this process can read ({why})", field=name, value=path) from None


@dataclass(frozen=True)
class PemFiles:
    """The contents of a server's files, for what does not use Python's TLS."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None


class Certificates:
    """The context of TLS connections, made again when its files have changed; each connection gets the newest.

    Raises ``InputError`` on files that cannot be used; *where* is the field of *spec*. Later such files are logged, and
    the former certificate is used until they are repaired: one that is renewed is for a moment not that of its key.
    """

    def __init__(self, spec: TlsSpec, folder: Path, where: str) -> None:
        self._spec, self._folder, self._where = spec, folder, where
        self._seen = self._look()
        self._context, self._pem = self._take()

    def __call__(self) -> ssl.SSLContext:
        """Return the context of a new connection."""
        return self._context

    def pem(self) -> PemFiles:
        """Return the contents of the files that the newest context was made of."""
        return self._pem

    def following(self) -> ssl.SSLContext:
        """Return a context for a listener that keeps one: each of its connections presents the newest certificate.

        A session that would be resumed without a client's certificate is refused once the files have changed.
        """
        context = tls_context(self._spec, self._folder, self._where)
        first = self._context

        def newest(connection: ssl.SSLObject, _name: str | None, _kept: ssl.SSLContext) -> int | None:
            if connection.session_reused and self._context is not first and self._spec.client_ca is not None:
                return ssl.ALERT_DESCRIPTION_HANDSHAKE_FAILURE
            connection.context = self._context
            return None

        context.sni_callback = newest
        if self._spec.client_ca is not None:
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        return context

    def _take(self) -> tuple[ssl.SSLContext, PemFiles]:
        context = tls_context(self._spec, self._folder, self._where)
        names = ("certificate", "key", "client_ca")
        files = zip(names, tls_files(self._spec, self._folder), strict=False)
        pem = {name: _read(path, f"{self._where}.{name}") for name, path in files}
        return context, PemFiles(pem["certificate"], pem["key"], pem.get("client_ca"))

    def _look(self) -> tuple[object, ...]:
        def one(path: Path) -> object:
            try:
                status = path.stat()
            except OSError as error:
                return error.errno
            return status.st_ino, status.st_size, status.st_mtime_ns

        return tuple(one(path) for path in tls_files(self._spec, self._folder))

    def renew(self) -> None:
        """Take the files if they have changed since."""
        seen = self._look()
        if seen == self._seen:
            return
        try:
            context, pem = self._take()
            if self._look() != seen:  # they were being written: wait for the next look
                return
            self._context, self._pem = context, pem
        except (InputError, OSError, ValueError) as error:
            _log.warning("the certificate was not renewed, and the former one is used: %s", error)
        else:
            _log.info("the certificate was renewed")
        self._seen = seen

    async def watch(self, every_s: float = 2.0) -> None:
        """Look at the files now and then, until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            self.renew()
