"""How to reach an API server: a kubeconfig, or the service account of the pod we run in."""

from __future__ import annotations

import base64
import binascii
import json
import os
import ssl
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from commonwatt.model.errors import EngineDownError, InputError

__all__ = ["Access", "access_of"]

_IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_REREAD_S = 60.0  # a projected token is replaced while it is in use
_EXEC_TIMEOUT_S = 30.0


@dataclass
class Access:
    """Address and credentials of an API server.

    Attributes
    ----------
    server
        Its URL.
    namespace
        Namespace of the context, or of the pod we run in.
    """

    server: str
    namespace: str
    context: ssl.SSLContext
    token: str | None = None
    token_file: Path | None = None
    command: Mapping[str, Any] | None = None  # a plugin that prints credentials
    folder: Path = field(default_factory=Path)
    proxy: str | None = None
    _read_s: float = -1e18
    _until_s: float = float("inf")

    def bearer(self, *, renew: bool = False) -> str | None:
        """Return the token to send, read again if it is old, or to be *renewed*.

        Raises ``EngineDownError`` if the file or the plugin has none.
        """
        now_s = time.time()
        if self.token_file is not None and (renew or now_s > self._read_s + _REREAD_S):
            try:
                self.token = self.token_file.read_text(encoding="ascii").strip()
            except (OSError, ValueError) as error:
                msg = f"the token {self.token_file} cannot be read: {error}"
                raise EngineDownError(msg) from error
            self._read_s = now_s
        elif self.command is not None and (self.token is None or renew or now_s > self._until_s - _REREAD_S):
            self.token, self._until_s = self._run_plugin(self.command)
        return self.token

    def _run_plugin(self, command: Mapping[str, Any]) -> tuple[str, float]:
        """Return the token that a credential plugin prints, and until when it is valid, seconds since 1970."""
        words = [str(command.get("command", "")), *map(str, command.get("args") or ())]
        if "/" in words[0]:
            words[0] = str(self.folder / words[0])
        version = command.get("apiVersion", "client.authentication.k8s.io/v1")
        asked = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
        try:
            own = {str(pair["name"]): str(pair["value"]) for pair in command.get("env") or ()}
            env = {**os.environ, **own, "KUBERNETES_EXEC_INFO": json.dumps(asked)}
            done = subprocess.run(  # noqa: S603
                words, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_EXEC_TIMEOUT_S
            )
            status = json.loads(done.stdout)["status"]
            until = status.get("expirationTimestamp")
            until_s = datetime.fromisoformat(until).timestamp() if until else float("inf")
            return str(status["token"]), until_s
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
            said = getattr(error, "stderr", None) or b""
            msg = f"the credential plugin {words[0]} gives no token: {said.decode(errors='replace').strip() or error!r}"
            raise EngineDownError(msg) from error


def access_of(kubeconfig: Path | None, context: str | None) -> Access:
    """Return how to reach the API server.

    Without *kubeconfig*: the service account of the pod we run in; outside of a pod, ``KUBECONFIG`` or
    ``~/.kube/config``.

    Raises
    ------
    InputError
        If the file cannot be read, or names no such context, cluster or user.
    """
    if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ and (_IN_CLUSTER / "token").exists():
        return _in_cluster()
    if kubeconfig is None:
        named = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
        kubeconfig = Path(named) if named else Path.home() / ".kube" / "config"
    return _of_file(kubeconfig, context)


def _in_cluster() -> Access:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    namespace = "default"
    with suppress(OSError):
        namespace = (_IN_CLUSTER / "namespace").read_text(encoding="utf-8").strip()
    trust = ssl.create_default_context(cafile=str(_IN_CLUSTER / "ca.crt"))
    address = f"[{host}]" if ":" in host else host
    return Access(f"https://{address}:{port}", namespace, trust, token_file=_IN_CLUSTER / "token")


def _of_file(path: Path, context: str | None) -> Access:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"a kubeconfig that can be read ({error.strerror})", field="kubeconfig", value=path) from None
    except (ValueError, yaml.YAMLError):
        raise InputError("a kubeconfig in YAML or JSON", field="kubeconfig", value=path) from None
    if not isinstance(document, dict):
        raise InputError("a kubeconfig in YAML or JSON", field="kubeconfig", value=path)
    name = context or document.get("current-context") or ""
    chosen = _named(document, "contexts", "context", name, path)
    cluster = _named(document, "clusters", "cluster", chosen.get("cluster", ""), path)
    user = _named(document, "users", "user", chosen.get("user", ""), path) if chosen.get("user") else {}
    server = str(cluster.get("server", ""))
    if not server.startswith(("https://", "http://")):
        raise InputError("a cluster with a server, https://...", file=path, field="server", value=server)
    folder = path.parent
    token_file, plugin = user.get("tokenFile"), user.get("exec")
    if plugin is not None and not isinstance(plugin, dict):
        raise InputError("a mapping with command, args, env", file=path, field="user.exec", value=plugin)
    return Access(
        server.rstrip("/"), chosen.get("namespace") or "default", _trust(cluster, user, path),
        token=user.get("token"), token_file=None if token_file is None else folder / token_file,
        command=plugin, folder=folder, proxy=cluster.get("proxy-url"),
    )  # fmt: skip


def _named(document: Mapping[str, Any], lists: str, kind: str, name: str, path: Path) -> dict[str, Any]:
    for entry in document.get(lists) or ():
        if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(kind), dict):
            definition: dict[str, Any] = entry[kind]
            return definition
    raise InputError(f"the name of one of its {lists}", file=path, field=kind, value=name or "none")


def _trust(cluster: Mapping[str, Any], user: Mapping[str, Any], path: Path) -> ssl.SSLContext:
    try:
        authority = _content(cluster, "certificate-authority", path.parent)
        context = ssl.create_default_context(cadata=None if authority is None else authority.decode("ascii"))
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        certificate = _content(user, "client-certificate", path.parent)
        key = _content(user, "client-key", path.parent)
        if certificate is not None and key is not None:
            with tempfile.TemporaryDirectory(prefix="commonwatt-") as private:  # of this user alone
                pem = Path(private) / "client.pem"
                pem.touch(mode=0o600)
                pem.write_bytes(certificate + b"\n" + key)
                context.load_cert_chain(pem)
    except (OSError, ValueError, binascii.Error) as error:
        raise InputError(f"certificates that can be read ({error})", field="kubeconfig", value=path) from None
    return context


def _content(section: Mapping[str, Any], name: str, folder: Path) -> bytes | None:
    if (encoded := section.get(f"{name}-data")) is not None:
        return base64.b64decode(encoded, validate=True)
    return None if (file := section.get(name)) is None else (folder / file).read_bytes()
