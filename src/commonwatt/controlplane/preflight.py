"""Checks whether a control plane can run here, before it does.

Nothing is changed: a store that does not exist is not made, one that does is only read.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Generator, Iterator
from pathlib import Path

from commonwatt import __version__
from commonwatt.controlplane.health import HostNames, judge, read_health
from commonwatt.controlplane.identity import broken_promises, identity_checks, peers_of
from commonwatt.controlplane.jobs import JobMaker
from commonwatt.controlplane.preflight_engines import (
    engine_checks,
    failed,
    fine,
    running_jobs_elsewhere,
    warning,
    writable,
)
from commonwatt.data.certificates import tls_files
from commonwatt.model.admin_results import CheckLine
from commonwatt.model.errors import CommonwattError, InputError, JobNeverFitsError, StoreError
from commonwatt.model.nodes import Cluster
from commonwatt.model.scenario import Scenario
from commonwatt.model.units import plural
from commonwatt.store.api_store import ApiStore
from commonwatt.store.claim import claimed
from commonwatt.store.controller_store import ControllerStore
from commonwatt.store.database import Database, address
from commonwatt.store.migrate import head, revision
from commonwatt.store.records import ACTIVE

__all__ = ["all_checks"]

_LEAST_FREE_BYTES = 1 << 30
_MOST_JOBS = 5_000
_SILENT_S = 60.0
_EARLIEST_S = 1_767_225_600.0  # 2026: before this version was written


def all_checks(config: Scenario, path: Path) -> Iterator[CheckLine]:
    """Check everything the configuration *config*, read from *path*, needs; yields one line for each check."""
    folder = path.parent.absolute()
    cluster = Cluster.of(config.nodes)
    yield _configuration(config, cluster)
    yield from _secrets(config, path)
    running = yield from _store(config, path)
    yield from engine_checks(config, cluster, folder)
    yield from _gpu_health(config, cluster)
    yield from _server(config, running=running)
    yield from _identity(config, folder)
    yield from _clock()


def _configuration(config: Scenario, cluster: Cluster) -> CheckLine:
    types = ", ".join(cluster.gpu_types)
    finding = (
        f"engine {config.engine}, mode {config.live.mode}, policy {config.policies[0].label}; "
        f"{plural(len(cluster), 'node')}, {plural(cluster.total_gpus, 'GPU')} ({types}); commonwatt {__version__}"
    )
    return fine("configuration", finding)


def _secrets(config: Scenario, path: Path) -> Iterator[CheckLine]:
    text = config.live.store
    password = address(text, path.parent.absolute()).password if "://" in text and "$" not in text else None
    if password and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        advice = f"chmod 600 {path}, or write ${{NAME}} and set that variable where the server runs"
        yield warning("secrets", "the file has a password and other users may read it", advice)


def _store(config: Scenario, path: Path) -> Generator[CheckLine, None, bool]:
    """Check the store; returns whether a controller runs on it."""
    what, url = "store", address(config.live.store, path.parent.absolute())
    if url.get_backend_name() == "sqlite":
        file = Path(str(url.database))
        if not file.parent.exists():
            yield failed(what, f"the folder {file.parent} does not exist", "make it, or correct live.store")
            return False
        line = writable(what, file.parent)
        if line.verdict == "failed":
            yield line
            return False
        free = shutil.disk_usage(file.parent).free
        if free < _LEAST_FREE_BYTES:
            yield warning("disk", f"{free / 1e6:.0f} MB are free where the store is", "make room, or move the store")
        if not file.exists():
            yield fine(what, f"{file} will be created at first start")
            yield from _nobody_yet(config)
            return False
        if not os.access(file, os.R_OK | os.W_OK):
            yield failed(what, f"no permission to read and write {file}", "give it to the user of this process")
            return False
    database = Database(url, patience_s=5.0)
    try:
        return (yield from _opened(config, path, database))
    except StoreError as error:
        yield failed(what, str(error), "start the database, or correct live.store")
    except CommonwattError as error:
        yield failed(what, str(error), "see docs/how-to/operations.md")
    finally:
        database.close()
    return False


def _opened(config: Scenario, path: Path, database: Database) -> Generator[CheckLine, None, bool]:
    what = "store"
    with database.reading(what="version") as c:
        store_revision, newest = revision(c), head()
    if store_revision is None:
        yield fine(what, f"{database} is empty: tables will be made at the first start")
        yield from _nobody_yet(config)
        return False
    if store_revision != newest:
        advice = "run `commonwatt store upgrade CONFIG`, after a backup; a newer store needs a newer commonwatt"
        yield failed(what, f"{database} has revision {store_revision}, this version needs {newest}", advice)
        return False
    store, controller_store = ApiStore(database), ControllerStore(database)
    counts = store.counts()
    active = counts["waiting"] + counts["running"]
    yield fine(what, f"{database}, revision {store_revision}, {plural(sum(counts.values()), 'job')}, {active} active")
    beat = controller_store.settings().get("controller", {}).get("time_s")
    now_s = time.time()
    if beat is not None and beat > now_s + _SILENT_S:
        advice = "set the clock; times of waiting and running would be wrong until it has caught up"
        yield warning("clock", f"a controller ran {beat - now_s:.0f} s in the future of this clock", advice)
    running = beat is not None and abs(now_s - beat) < _SILENT_S and claimed(database)
    if running:
        yield fine("controller", f"one runs on this store, last seen {max(0.0, now_s - beat):.0f} s ago")
    yield from running_jobs_elsewhere(config, path, controller_store)
    yield from _without_nodes(store, config)
    yield from _people(store, config)
    return running


def _without_nodes(store: ApiStore, config: Scenario) -> Iterator[CheckLine]:
    """Warn of queued jobs that this configuration has no nodes for: they fail once it is served."""
    maker, lost = JobMaker.of(config, Cluster.of(config.nodes)), []
    for row in store.jobs(status=tuple(ACTIVE), limit=_MOST_JOBS):
        try:
            maker.check(row.file, anew=False)
        except (InputError, JobNeverFitsError) as error:
            lost.append((row.id, error))
    if lost:
        numbers = ", ".join(str(number) for number, _ in lost[:5]) + ("" if len(lost) <= 5 else ", ...")
        finding = f"{plural(len(lost), 'active job')} ({numbers}) cannot run with these nodes: {lost[0][1]}"
        advice = "they fail once this is served: see `nodes`, their features and partitions"
        yield warning("active jobs", finding, advice)


def _nobody_yet(config: Scenario) -> Iterator[CheckLine]:
    if not config.tenants:
        yield warning("tenants", "none", "name them under `tenants`; without one no job can be submitted")
    yield from broken_promises(config, {tenant.name: tenant.weight for tenant in config.tenants})


def _people(store: ApiStore, config: Scenario) -> Iterator[CheckLine]:
    tenants = set(store.tenants()) | {tenant.name for tenant in config.tenants}
    now_s = time.time()
    valid = [t for t in store.tokens() if t["revoked_s"] is None and (t["expires_s"] is None or t["expires_s"] > now_s)]
    if tenants:
        yield from broken_promises(config, {t.name: t.weight for t in config.tenants} | store.tenants())
    else:
        yield from _nobody_yet(config)
    without = sorted(tenants - {token["tenant"] for token in valid if token["tenant"] is not None})
    if not any(token["tenant"] is None and token["role"] is None for token in valid):  # viewers can repair nothing
        yield warning("tokens", "no operator has one", "the next start of `commonwatt serve` shows one")
    elif without:
        advice = "commonwatt token add --tenant NAME"
        yield warning("tokens", f"tenants without one: {', '.join(without[:10])}", advice)
    else:
        yield fine("tokens", f"{len(valid)} valid, for operators and {plural(len(tenants), 'tenant')}")


def _gpu_health(config: Scenario, cluster: Cluster) -> Iterator[CheckLine]:
    """Check which nodes have metrics of their GPUs; without them, no fault drains a node."""
    what, rule = "gpu health", config.live.health
    if rule is None:
        return
    hosts = HostNames.of(cluster.names)
    try:
        answer = read_health(rule, hosts)
    except CommonwattError as error:
        advice = "start Prometheus, or correct live.health.prometheus; until it answers, no fault drains a node"
        yield warning(what, str(error), advice)
        return
    read = {node for node, *_ in answer.readings}
    without = [host for host in hosts.nodes if host not in read]
    others = sorted(name for name in answer.others if name is not None)
    finding = f"{rule.prometheus} answers, with GPU metrics of {len(read)} of {plural(len(hosts.nodes), 'node')}"
    if others:
        finding += f"; those of others are ignored ({', '.join(others[:5])}{', ...' if len(others) > 5 else ''})"
    if without:
        named = f"{', '.join(without[:10])}{', ...' if len(without) > 10 else ''}"
        advice = f"run DCGM's exporter there and scrape it; label {rule.node_label} must have the node's name"
        yield warning(what, f"{finding}; none of {named}", advice)
    else:
        yield fine(what, finding)
    faults = sorted(judge(answer.readings, rule, {}, 0.0).faults.items())
    if faults:
        named = "; ".join(f"{node}: {fault.sentence}" for (node, *_), fault in faults[:5])
        advice = "these drain their nodes once; where they are old, restart the exporter first, which forgets them"
        yield warning(what, f"{plural(len(faults), 'fault')}: {named}{'; ...' if len(faults) > 5 else ''}", advice)
    missing = [metric for metric in rule.metrics if read and metric not in {metric for *_, metric in answer.readings}]
    if missing:
        advice = "add them to the exporter's list of counters, or do not ask for them in live.health"
        yield warning(what, f"no node has {', '.join(missing)}", advice)


def _server(config: Scenario, *, running: bool) -> Iterator[CheckLine]:
    server = config.live.server
    yield from _port(server.host, server.port, "port", "live.server.port", running=running, tls=server.tls is not None)
    if config.services:
        front = config.live.services
        yield from _port(front.host, front.port, "port of services", "live.services.port", running=running)


def _port(
    host: str, port: int, what: str, field: str, *, running: bool, tls: bool = False
) -> Iterator[CheckLine]:  # fmt: skip
    where = f"{host}:{port}"
    try:
        family, kind, _, _, address_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address_)
    except OSError as error:
        if running:
            yield fine(what, f"{where} is taken, probably by the running controller")
        elif field == "live.services.port":
            advice = "nothing to do if it is the front of these services, which go on without `serve`"
            yield warning(what, f"{where}: {error.strerror or error}", advice)
        else:
            yield failed(what, f"{where}: {error.strerror or error}", f"choose another {field}, or free it")
        return
    yield fine(what, f"{where} is free")
    if not tls and not ipaddress.ip_address(str(address_[0]).partition("%")[0]).is_loopback:
        advice = "set live.server.tls, or listen on 127.0.0.1 behind a proxy with TLS: tokens would cross the network"
        yield warning("network", f"{host} can be reached from other machines", advice)


def _identity(config: Scenario, folder: Path) -> Iterator[CheckLine]:
    """Check certificates and roles; ``read_config`` has refused files and users that cannot work."""
    server = config.live.server
    if server.tls is not None:
        certificate, key = tls_files(server.tls, folder)[:2]
        yield fine("tls", f"{certificate} with its key; TLS 1.2 and 1.3")
        if key.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH | stat.S_IWGRP | stat.S_IWOTH):
            yield warning("tls", f"other users may read or change {key}", f"chmod 600 {key}")
    if server.socket is not None:
        named = ", ".join(sorted(peers_of(config).names.values())) or "nobody"
        yield fine("socket", f"{folder / server.socket.path}, without a token for {named}")
    if server.oidc is not None:
        yield fine("oidc", f"{server.oidc.issuer}, {plural(len(server.oidc.groups), 'role')} by group")
    yield from identity_checks(config, {tenant.name for tenant in config.tenants})


def _clock() -> Iterator[CheckLine]:
    now_s, zone = time.time(), time.strftime("%Z")
    shown = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(now_s)) + " UTC"
    if now_s < _EARLIEST_S:
        yield failed("clock", f"it is {shown} by this machine", "set the clock, and synchronise it by NTP")
        return
    synchronised = _ntp()
    if synchronised is False:
        yield warning("clock", f"{shown}, not synchronised", "synchronise the clock by NTP (systemd-timesyncd, chrony)")
    else:
        ntp = "synchronised" if synchronised else "clock synchronisation: unknown"
        yield fine("clock", f"{shown} (local zone {zone}), {ntp}; due dates without a zone are UTC")


def _ntp() -> bool | None:
    """Whether the clock is synchronised; ``None``: unknown."""
    program = shutil.which("timedatectl")
    if program is None:
        return None
    try:
        command = [program, "show", "-p", "NTPSynchronized", "--value"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {"yes": True, "no": False}.get(done.stdout.strip())
