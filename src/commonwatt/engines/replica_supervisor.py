"""The thread that brings model servers in line with what shared devices are to serve, and the front with both.

It loads and unloads models, sets the weights and phi of each server, writes the front's routes, and reads what the
front has counted and how long each service has had each device. A replica gets no more requests before its model is
unloaded, and none before it is loaded.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from commonwatt.control.fleet.interface import ServingState
from commonwatt.engines.model_servers import server_settings
from commonwatt.engines.shared_devices import SharedDevice, SharedDevices
from commonwatt.engines.state_folder import read_json, write_record

__all__ = ["ReplicaSupervisor"]

log = logging.getLogger("commonwatt.engines")

_PERIOD_S = 0.5
_TIMEOUT_S, _LOAD_S = 5.0, 120.0
_LONGEST_PAUSE_S = 60.0
_SILENT_S = 60.0
"""A server that has not answered for so long is replaced."""
_MOST_BYTES = 1 << 20
_ROUTES_READ_S = 0.05
"""How long requests that chose a replica by earlier routes may take to reach it."""


@dataclass
class _Server:
    """A server that answers."""

    gpu: int
    address: str
    keys: dict[str, str]
    operator_key: str
    loaded: set[str]
    applied: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)  # to load a model
    again_s: dict[str, float] = field(default_factory=dict)
    silent_s: float | None = None  # since when it does not answer


class ReplicaSupervisor:
    """Sees to the servers of shared devices in a thread of its own."""

    def __init__(self, shared: SharedDevices[Any]) -> None:
        import httpx

        self._shared = shared
        self._client = httpx.Client(timeout=_TIMEOUT_S, trust_env=False)
        self._error: type[Exception] = httpx.HTTPError
        self._servers: dict[tuple[int, int], _Server] = {}  # by GPU and attempt
        self._routes: dict[str, Any] | None = None
        self._trouble: dict[str, str] = {}
        self.state = ServingState()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replicas", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; servers go on as they are."""
        self._stopping.set()
        self._thread.join(_TIMEOUT_S)
        if not self._thread.is_alive():  # its connections are in use
            self._client.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.look()
            except Exception:  # whatever a server answers: the next look may do better
                log.exception("the supervisor of replicas failed, and goes on")
            self._stopping.wait(_PERIOD_S)

    def look(self) -> None:
        """Look at every server once, and do what is to be done."""
        with self._shared.lock:
            devices = {(d.gpu, d.attempt): d for d in self._shared.devices.values() if not d.closing}
            wanted = {key: (dict(d.milli), d.phi) for key, d in devices.items()}
        self._servers = {key: server for key, server in self._servers.items() if key in devices}
        self._write_routes(wanted)
        for key, device in devices.items():
            if key not in self._servers and (server := self._server_of(device)) is not None:
                self._servers[key] = server
        for key, server in list(self._servers.items()):
            try:
                self._bring_in_line(server, *wanted[key])
            except self._error as error:
                log.info("a model server does not answer yet", extra={"gpu": server.gpu, "cause": str(error)})
        self._write_routes(wanted)
        self._read_counts()

    def _server_of(self, device: SharedDevice[Any]) -> _Server | None:
        address, seen = device.address(), device.configuration()
        if address is None or not seen:
            return None
        keys = {tenant["name"]: tenant["key"] for tenant in seen["tenants"]}
        loaded = set()
        try:
            for name, key in keys.items():
                rows = self._ask("POST", address, "/v2/repository/index", key, {"ready": True})
                loaded |= {name for row in rows if row["name"] == name}
        except self._error:
            return None
        return _Server(device.gpu, address, keys, seen["server"]["operator_key"], loaded)

    def _bring_in_line(self, server: _Server, milli: Mapping[str, int], phi: float | None) -> None:
        for name in sorted(milli.keys() - server.loaded):
            if name in server.keys and not self._stopping.is_set() and monotonic() >= server.again_s.get(name, 0.0):
                self._load(server, name)
        settings = server_settings(self._shared.hosting, {n: p for n, p in milli.items() if n in server.keys}, phi)
        if settings["tenants"] and settings != server.applied:
            self._ask("PATCH", server.address, "/v2/commonwatt/settings", server.operator_key, settings)
            server.applied = settings
        gone = sorted(server.loaded - milli.keys())
        if gone:
            server.loaded -= set(gone)
            self._stopping.wait(_ROUTES_READ_S)  # the routes without them are written already
        for name in gone:
            path = f"/v2/repository/models/{name}/unload"
            self._client.post(f"http://{server.address}{path}", headers=_bearer(server.keys[name]), timeout=_LOAD_S)

    def _load(self, server: _Server, name: str) -> None:
        """Load a model; one that cannot be loaded is tried again later, each time after twice as long."""
        url = f"http://{server.address}/v2/repository/models/{name}/load"
        reply = self._client.post(url, headers=_bearer(server.keys[name]), timeout=_LOAD_S)
        if reply.status_code == 200:
            server.loaded.add(name)
            self._trouble.pop(name, None)
            return
        failures = server.failures[name] = server.failures.get(name, 0) + 1
        server.again_s[name] = monotonic() + min(_LONGEST_PAUSE_S, 2.0**failures)
        why = reply.text[:500]
        with suppress(ValueError, KeyError, TypeError):
            why = str(reply.json()["error"])[:500]
        if self._trouble.get(name) != why:
            self._trouble[name] = why
            log.error("a model cannot be loaded", extra={"service": name, "cause": why})

    def _write_routes(self, wanted: Mapping[tuple[int, int], tuple[Mapping[str, int], float | None]]) -> None:
        services = {}
        for service in self._shared.hosting.services:
            replicas = [
                {"address": s.address, "key": s.keys[service.name], "milli": wanted[key][0][service.name]}
                for key, s in sorted(self._servers.items())
                if service.name in s.loaded and service.name in wanted[key][0]
            ]
            services[service.name] = {"latency_s": service.latency_s, "replicas": replicas}
        routes = {"services": services, "key": self._shared.hosting.key}
        if routes != self._routes:
            write_record(self._shared.folder / "routes.json", routes)
            self._routes = routes

    def _read_counts(self) -> None:
        front, began_s, counts = None, float("nan"), self.state.counts
        with suppress(OSError, ValueError, KeyError, self._error):
            listens = read_json(self._shared.folder / "front.json", _MOST_BYTES)
            host = f"[{listens['host']}]" if ":" in listens["host"] else listens["host"]
            address = f"{host}:{listens['port']}"
            key = self._shared.hosting.key
            asked = {} if key is None else _bearer(key)
            answer = self._client.get(f"http://{address}/v2/commonwatt/services", headers=asked).json()
            front, began_s, counts = address, float(answer["began_s"]), answer["services"]
        device_s: dict[int, tuple[float, Mapping[str, float]]] = {}
        phi = {}
        for server in self._servers.values():
            server.silent_s = server.silent_s or monotonic()
            with suppress(self._error, KeyError, TypeError):
                status = self._ask("GET", server.address, "/v2/commonwatt/status", server.operator_key, None)
                had = {name: float(row["time_s"]) for name, row in status["tenants"].items()}
                device_s[server.gpu] = monotonic(), had
                phi[server.gpu], server.silent_s = float(status["phi"]), None
        for key_of, server in self._servers.items():
            if server.silent_s is not None and monotonic() - server.silent_s > _SILENT_S:
                self._shared.note_silent(*key_of)
        ready = {server.gpu: tuple(sorted(server.loaded)) for server in self._servers.values()}
        self._note_server_trouble({name for names in ready.values() for name in names})
        if front is not None:
            self._shared.front_trouble = None
        elif self._shared.front_trouble is not None:
            trouble = dict.fromkeys((service.name for service in self._shared.hosting.services), "")
            trouble = {name: self._trouble.get(name, self._shared.front_trouble) for name in trouble}
            self.state = ServingState(front, began_s, counts, ready, device_s, phi, trouble)
            return
        self.state = ServingState(front, began_s, counts, ready, device_s, phi, dict(self._trouble))

    def _note_server_trouble(self, ready: Collection[str]) -> None:
        """Say of services that nobody serves why the last server was lost; of others that is over."""
        why = self._shared.server_trouble
        for service in self._shared.hosting.services:
            if service.name in ready:
                if self._trouble.get(service.name) == why:
                    self._trouble.pop(service.name, None)
            elif why is not None:
                self._trouble.setdefault(service.name, why)

    def _ask(self, verb: str, address: str, path: str, key: str, body: Mapping[str, Any] | None) -> Any:  # noqa: ANN401
        content = None if body is None else json.dumps(body)
        reply = self._client.request(verb, f"http://{address}{path}", headers=_bearer(key), content=content)
        reply.raise_for_status()
        return reply.json()


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}
