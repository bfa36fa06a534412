"""Devices shared in time by replicas of services: a model server on each, and one front before all of them.

Each server (``commonwatt timeslice serve``) and the front are processes under runners of their own, which outlive the
controller. What is to run is on disk before it does, so that the next engine finds it, and starts nothing twice::

    STATE/services/shared.json          shared devices: node, slot, run, and what they are to serve
    STATE/services/routes.json          where the front finds replicas; front.json: where it listens
    STATE/services/runs/GPU-ATTEMPT/    a server's run, as of a job; server.yaml: its configuration
    STATE/services/front/0-ATTEMPT/     the front's
    STATE/services/measured/            cuts and times of the models, as first measured

A thread of its own (``ReplicaSupervisor``) talks to the servers, as loading a model takes a while. The front runs
beside the controller; how a server is started on a node is the engine's affair (``ModelServers``).
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic

from commonwatt.control.engine import Holder
from commonwatt.control.fleet.interface import DeviceShares, GpuLost, SharedChange, handle_of
from commonwatt.engines.local.folder import RunFolder
from commonwatt.engines.local.run import LocalRun
from commonwatt.engines.model_servers import Hosting, ModelServers, RunT, ServerRun, runs_in, stop_local
from commonwatt.engines.run_spec import RunSpec
from commonwatt.engines.state_folder import fence_in, read_json, write_record
from commonwatt.model.errors import EngineDownError, EngineError
from commonwatt.model.nodes import Cluster

__all__ = ["SharedDevice", "SharedDevices"]

log = logging.getLogger("commonwatt.engines")

_GRACE_S = 8.0
"""Time for a server to answer what it has accepted."""
_LEAST_WINDOW_S = 0.5
"""Shorter times are not measured: servers tell what they have done when a step of a model ends."""
_QUICK_S = 30.0
"""A server that is lost within so long counts as failed: the next on its node waits longer each time."""
_LONGEST_BACKOFF_S = 60.0
_OUTPUT_BYTES = 10_000_000
_MOST_BYTES = 1 << 20
_KEPT_RUNS = 20
_ADDRESS = re.compile(rb'"rest": "([^"]+)"')


@dataclass
class SharedDevice(Generic[RunT]):
    """A device, and what it is to serve.

    Attributes
    ----------
    slot
        Its GPU index; ``None``: none is free yet.
    attempt
        Number of its server's run.
    milli
        Reserved thousandths of each service by name.
    not_before_s
        When its server may start.
    busy
        Part of its time that each service had when it was measured last; ``None``: it was not measured yet.
    """

    gpu: int
    node: int
    slot: int | None
    attempt: int
    since_s: float
    power_w: float = 0.0
    milli: dict[str, int] = field(default_factory=dict)
    phi: float | None = None
    not_before_s: float = 0.0
    run: RunT | None = None
    closing: bool = False
    busy: dict[str, float] | None = None
    _measured: tuple[float, Mapping[str, float]] | None = None

    def measure(self, at_s: float, device_s: Mapping[str, float], power_w: Mapping[str, float]) -> None:
        """Take what each service has had of the device until *at_s*, and the power of the device while it has it."""
        if self._measured is None or any(device_s.get(name, 0.0) < had for name, had in self._measured[1].items()):
            self._measured = at_s, dict(device_s)
            return
        since_s, before = self._measured
        if at_s - since_s < _LEAST_WINDOW_S:
            return
        had = {name: (time_s - before.get(name, 0.0)) / (at_s - since_s) for name, time_s in device_s.items()}
        self.busy = {name: min(1.0, part) for name, part in had.items()}
        self.power_w = sum(part * power_w.get(name, 0.0) for name, part in self.busy.items())
        self._measured = at_s, dict(device_s)

    @property
    def holder(self) -> Holder:
        """Return it as one that holds a GPU of its node."""
        return Holder(handle_of(self.gpu), 1, self.power_w, self.since_s)

    def address(self) -> str | None:
        """Return where its server listens; ``None``: it does not yet."""
        if self.run is None:
            return None
        with suppress(OSError):
            match = _ADDRESS.search((self.run.folder.path / "output.log").read_bytes()[:_MOST_BYTES])
            return None if match is None else match[1].decode()
        return None

    def configuration(self) -> dict[str, Any]:
        """Return the configuration of its server; empty if it cannot be read."""
        if self.run is None:
            return {}
        with suppress(OSError, ValueError, TypeError):
            return dict(read_json(self.run.folder.path / "server.yaml", _MOST_BYTES))
        return {}


class SharedDevices(Generic[RunT]):
    """All shared devices of an engine, and the front.

    Parameters
    ----------
    cluster, state
        As of the engine.
    hosting
        What they are shared for.
    slots
        Slots of each node.
    servers
        How model servers are run.
    now_s
        The time.
    """

    def __init__(
        self, cluster: Cluster, state: Path, hosting: Hosting, slots: Sequence[Sequence[int]],
        servers: ModelServers[RunT], now_s: Callable[[], float],
    ) -> None:  # fmt: skip
        self._slots = slots
        self._cluster, self.hosting, self._servers, self._now_s = cluster, hosting, servers, now_s
        self._state, self.folder = state, state / "services"
        self._measured = (self.folder / "measured").absolute()
        self._fence = fence_in(state)
        self.lock = threading.RLock()  # of the devices
        self.devices: dict[int, SharedDevice[RunT]] = {}
        self._changes: list[SharedChange] = []
        self._failures: dict[int, int] = {}  # in a row, by node
        self._again_s: dict[int, float] = {}  # when the next server of a node may start
        self._silent: set[tuple[int, int]] = set()  # servers that do not answer, by GPU and attempt
        self.server_trouble: str | None = None
        self._front: LocalRun | None = None
        self._front_failures, self._front_again_s = 0, 0.0
        self.front_trouble: str | None = None
        for folder in (self.folder, self.folder / "runs", self.folder / "front"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    # -- what survives a controller

    def attach(self) -> None:
        """Take over the devices of an earlier engine."""
        at = {name: n for n, name in enumerate(self._cluster.names)}
        with suppress(OSError, ValueError, KeyError, TypeError):
            record = read_json(self.folder / "shared.json", _MOST_BYTES)
            for row in record["devices"]:
                node = at.get(row["node"], -1)
                if node >= 0:
                    own = {key: row[key] for key in ("gpu", "slot", "attempt", "since_s", "power_w", "milli", "phi")}
                    self.devices[row["gpu"]] = SharedDevice(node=node, **own)
        for device in self.devices.values():
            folder = RunFolder(self._run_path(device))
            with suppress(EngineError):  # a damaged record is none: its server is lost
                if (folder.path / "run.json").exists():
                    device.run = self._servers.adopt(folder, folder.spec().placed(self._cluster.names))
        fronts = runs_in(self.folder / "front")
        if fronts and fronts[-1][0].end() is None:
            self._front = LocalRun(*fronts[-1])

    def stop_unwanted(self) -> None:
        """Stop servers of an earlier engine that the configuration does not want so any more; devices are lost then."""
        run_folders = {device.run.folder.path for device in self.devices.values() if device.run is not None}
        for folder, spec in runs_in(self.folder / "runs"):
            if folder.path not in run_folders and folder.end() is None:
                self._servers.give_up(folder, spec)  # its node is not in the configuration (any more)
        for device in list(self.devices.values()):
            if device.run is not None and device.run.folder.end() is None and not self._fits(device):
                self._servers.stop(device.run)
                device.run = None
                self._lose(
                    device, "its place or its services are not those of the configuration any more", failed=False
                )
        if self._front is not None and self._front.spec.command != self._front_command():
            stop_local(self._front)  # it listens elsewhere than it should now
            self._front = None
        self._remove_old()

    def there(self) -> dict[int, tuple[int, float]]:
        """Return the node of each shared device, and when it could first be used."""
        return {gpu: (device.node, device.since_s) for gpu, device in self.devices.items()}

    def spans(self) -> list[tuple[float, float, RunSpec]]:
        """Return the runs of devices with their starts and ends, as of ``catch_up``: who held GPUs meanwhile."""
        spans = []
        for device in self.devices.values():
            if device.run is not None:
                end, own = device.run.folder.end(), replace(device.run.spec, handle=handle_of(device.gpu))
                ended_s = float("inf") if end is None else end.timely(own, self._now_s()).at_s
                spans.append((device.since_s, ended_s, replace(own, gpu_w=device.power_w)))
        return spans

    def _fits(self, device: SharedDevice[RunT]) -> bool:
        seen, gpu_type = device.configuration(), self._type(device.node)
        if not seen or device.slot not in self._slots[device.node] or device.run is None:
            return False
        if (device.run.spec.command[0], device.run.spec.image) != (self.hosting.python, self.hosting.image):
            return False
        keys = {tenant["name"]: tenant["key"] for tenant in seen["tenants"]}
        try:
            own, host = seen["server"]["operator_key"], seen["server"]["host"]
            wanted = self.hosting.server(gpu_type, keys, own, self._measured, host)
        except KeyError:
            return False
        return {**seen, "phi": 0, "policy": ""} == {**json.loads(json.dumps(wanted)), "phi": 0, "policy": ""}

    def _write(self) -> None:
        """Write down what is to run; raises ``EngineDownError``."""
        rows = [
            {
                "gpu": d.gpu, "node": self._cluster.names[d.node], "slot": d.slot, "attempt": d.attempt,
                "since_s": d.since_s, "power_w": d.power_w, "milli": d.milli, "phi": d.phi,
            }
            for d in self.devices.values()
        ]  # fmt: skip
        try:
            write_record(self.folder / "shared.json", {"devices": rows})
        except OSError as error:
            msg = f"shared devices cannot be written down: {error}"
            raise EngineDownError(msg) from error

    # -- what the controller asks

    def open(self, gpu: int, node: int) -> float:
        """Share a GPU of *node*: its server starts as soon as a slot is free; returns when that may be."""
        now_s = self._now_s()
        begins_s = max(now_s, self._again_s.get(node, now_s))
        with self.lock:
            free = self._servers.free_slots(node)
            slot = free[0] if free else None
            attempt = self._next_attempt(gpu)
            device = SharedDevice[RunT](gpu, node, slot, attempt, now_s, not_before_s=begins_s)
            self.devices[gpu] = device
            self._write()
        self.launch_due()
        return begins_s

    def resting(self) -> list[int]:
        """Return the nodes whose servers have failed lately, and are not started again for a while."""
        now_s = self._now_s()
        return [node for node, again_s in self._again_s.items() if again_s > now_s]

    def note_silent(self, gpu: int, attempt: int) -> None:
        """A server has not answered for a long time: it is to be replaced."""
        self._silent.add((gpu, attempt))

    def close(self, gpu: int) -> None:
        """Stop a device's server, which answers what it has accepted, and give its GPU back."""
        with self.lock:
            device = self.devices[gpu]
            device.closing, device.milli = True, {}
        over = device.run is None or self._servers.stop(device.run)
        with self.lock:
            del self.devices[gpu]
            self._changes = [c for c in self._changes if not (isinstance(c, GpuLost) and c.gpu == gpu)]
            self._write()
        if device.run is not None and over:
            shutil.rmtree(device.run.folder.path, ignore_errors=True)
        self._remove_old()

    def share(self, gpu: int, power_w: float, shares: DeviceShares) -> None:
        """Set what a device serves and how its time is divided; its supervisor sees to it."""
        names = [service.name for service in self.hosting.services]
        milli = {names[i]: parts for i, parts in sorted(shares.milli.items())}
        with self.lock:
            device = self.devices.get(gpu)
            if device is None:  # lost meanwhile, as the next poll reports
                return
            changed = (device.milli, device.phi) != (milli, shares.phi)
            device.milli, device.phi = milli, shares.phi
            if device.busy is None:  # else it is measured
                changed |= abs(device.power_w - power_w) > 1e-9
                device.power_w = power_w
            if changed:
                self._write()

    def measure(self, n: int, device_s: Mapping[int, tuple[float, Mapping[str, float]]]) -> None:
        """Take what was measured on the devices of node *n*, by GPU: until when, and the time of each service."""
        powers_w = {s.name: s.power_w.get(self._type(n), 0.0) for s in self.hosting.services}
        for device in self.devices.values():
            if device.node == n and device.gpu in device_s:
                device.measure(*device_s[device.gpu], powers_w)

    def busy(self, gpu: int) -> dict[int, float] | None:
        """Return the part of a device's time that each service had when it was measured last."""
        device = self.devices.get(gpu)
        if device is None or device.busy is None:
            return None
        return {i: device.busy.get(service.name, 0.0) for i, service in enumerate(self.hosting.services)}

    def holders(self, n: int) -> list[Holder]:
        """Return the shared devices of node *n* as holders of its GPUs."""
        return [device.holder for device in self.devices.values() if device.node == n]

    def taken(self, n: int) -> set[int]:
        """Return the slots of node *n* that shared devices have."""
        return {d.slot for d in self.devices.values() if d.node == n and d.slot is not None}

    def waiting(self, n: int) -> int:
        """Return how many devices of node *n* wait for a slot."""
        return sum(d.node == n and d.slot is None for d in self.devices.values())

    def without_run(self, n: int) -> int:
        """Return how many devices of node *n* wait for their server to be started."""
        return sum(d.node == n and d.run is None and not d.closing for d in self.devices.values())

    def runs(self) -> list[RunT]:
        """Return the servers that are to run."""
        return [d.run for d in self.devices.values() if d.run is not None and not d.closing]

    @property
    def front(self) -> LocalRun | None:
        """The front; ``None``: it does not run."""
        return self._front

    def poll(self) -> list[SharedDevice[RunT]]:
        """Look for servers that have ended, which are reported, and start what is due; returns those lost."""
        lost = []
        for device in list(self.devices.values()):
            if device.run is None:
                continue
            if (device.gpu, device.attempt) in self._silent and not device.closing:
                self._servers.stop(device.run)
                device.run = None
                self._lose(device, "its model server did not answer any more")
                lost.append(device)
            elif (end := self._servers.ended(device.run)) is not None:
                said = "" if end.stopped else last_line(device.run)
                cause = f"its model server ended: {end.cause}{said and f': {said}'}"
                self._lose(device, cause, end.timely(device.run.spec, self._now_s()).at_s)
                lost.append(device)
            elif self._failures.get(device.node) and self._lasted(device):
                self._failures.pop(device.node)
        self._silent &= {(device.gpu, device.attempt) for device in self.devices.values()}
        self.launch_due()
        return lost

    def has_news(self) -> bool:
        """Whether there is anything to report."""
        return bool(self._changes)

    def take_changes(self) -> list[SharedChange]:
        """Return what changed since it was asked last."""
        changes, self._changes = self._changes, []
        with self.lock:
            for change in changes:
                if isinstance(change, GpuLost):
                    self.devices.pop(change.gpu, None)
            if changes:
                self._write()
        return changes

    def forget_runs(self) -> None:
        """Stop watching the front and all servers that are processes of this machine; they go on."""
        for run in [*self.runs(), self._front]:
            if isinstance(run, LocalRun):
                run.unwatch()

    # -- processes

    def _lasted(self, device: SharedDevice[RunT]) -> bool:
        """Whether a server has served for a while."""
        ran = device.run is not None and device.address() is not None
        return ran and device.run is not None and self._now_s() - device.run.spec.started_s >= _QUICK_S

    def _lose(
        self, device: SharedDevice[RunT], cause: str, at_s: float | None = None, *, failed: bool = True
    ) -> None:  # fmt: skip
        now_s = self._now_s()
        log.warning("a shared device lost its model server", extra={"gpu": device.gpu, "cause": cause})
        if failed:
            failures = 1 if self._lasted(device) else self._failures.get(device.node, 0) + 1
            self._failures[device.node] = failures
            self._again_s[device.node] = now_s + min(_LONGEST_BACKOFF_S, 2.0**failures)
            self.server_trouble = f"GPU {device.gpu} of node {self._cluster.names[device.node]}: {cause}"
        with self.lock:
            device.closing = True
            if device.run is not None:
                self._servers.release(device.run)
                device.run = None
        self._changes.append(GpuLost(device.gpu, now_s if at_s is None else at_s, cause))

    def launch_due(self) -> None:
        """Start the servers of devices that have a slot, and are due."""
        now_s = self._now_s()
        for device in list(self.devices.values()):
            if device.run is not None or device.closing or device.not_before_s > now_s:
                continue
            with self.lock:
                if device.slot is None:
                    free = self._servers.free_slots(device.node)
                    if not free:
                        continue
                    device.slot = free[0]
                    self._write()
                self._launch(device)

    def _launch(self, device: SharedDevice[RunT]) -> None:
        assert device.slot is not None
        keys = {service.name: secrets.token_urlsafe(24) for service in self.hosting.services}
        host = self._servers.host(device.node)
        document = self.hosting.server(self._type(device.node), keys, secrets.token_urlsafe(24), self._measured, host)
        path = self._run_path(device)
        code = "from commonwatt.cli import main; main()"
        command = (self.hosting.python, "-c", code, "timeslice", "serve", str(path / "server.yaml"), "--json")
        handle = self._servers.first_handle + device.gpu
        spec = self._spec(handle, device.attempt, f"services-{device.gpu}", command, path)
        spec = replace(
            spec, nodes=(device.node,), gpus_per_node=1, slots=((device.slot,),),
            node_names=(self._cluster.names[device.node],), look_s=self._servers.look_s, echo=self._servers.echo,
            image=self.hosting.image, environment={**spec.environment, **self._servers.environment(device.slot)},
        )  # fmt: skip
        folder = RunFolder.create(self.folder / "runs", spec)
        try:
            write_record(path / "server.yaml", document)
        except OSError as error:
            msg = f"start a model server: its configuration cannot be written: {error}"
            raise EngineDownError(msg) from error
        device.run = self._servers.start(folder, spec)

    def _run_path(self, device: SharedDevice[RunT]) -> Path:
        return self.folder / "runs" / f"{self._servers.first_handle + device.gpu}-{device.attempt}"

    def _spec(self, handle: int, attempt: int, name: str, command: tuple[str, ...], path: Path) -> RunSpec:
        return RunSpec(
            handle=handle, attempt=attempt, name=name, nodes=(), gpus_per_node=0, slots=(), started_s=self._now_s(),
            base_epochs=0.0, command=command, folder=str(self.folder),
            environment={"COMMONWATT_PROGRESS": str(path / "progress"), "PYTHONUNBUFFERED": "1"}, grace_s=_GRACE_S,
            output_bytes=_OUTPUT_BYTES, fence=self._fence[0] if self._fence else "",
            fence_file=str(self._fence[1]) if self._fence else None,
        )  # fmt: skip

    def _front_command(self) -> tuple[str, ...]:
        module = "commonwatt.serving.replica_front"
        return sys.executable, "-m", module, str(self.folder), self.hosting.host, str(self.hosting.port)

    def tend_front(self) -> None:
        """Start the front unless it runs; one that does not stay waits longer each time."""
        now_s = self._now_s()
        if self._front is not None and self._front.glance() is not None:
            self.front_trouble = f"the front of services ended: {last_line(self._front)}"
            log.warning("the front of services ended", extra={"cause": last_line(self._front)})
            quick = now_s - self._front.spec.started_s < _QUICK_S
            self._front_failures = self._front_failures + 1 if quick else 0
            self._front_again_s = now_s + min(_LONGEST_BACKOFF_S, 2.0**self._front_failures)
            self._front.close()
            self._front = None
        if self._front is None and now_s >= self._front_again_s and (self.folder / "routes.json").exists():
            with suppress(OSError):
                (self.folder / "front.json").unlink()
            attempt = _next_number(self.folder / "front", 0)
            path = self.folder / "front" / f"0-{attempt}"
            spec = self._spec(0, attempt, "front", self._front_command(), path)
            self._front = LocalRun(RunFolder.create(self.folder / "front", spec), spec)
            self._front.launch()

    def _type(self, n: int) -> str:
        return self._cluster.classes[self._cluster.klass[n]].gpu_type

    def _next_attempt(self, gpu: int) -> int:
        return _next_number(self.folder / "runs", self._servers.first_handle + gpu)

    def _remove_old(self) -> None:
        """Delete the records of servers and fronts that ended long ago."""
        for which in ("runs", "front"):
            over = [folder.path for folder, _ in runs_in(self.folder / which) if folder.end() is not None]
            for path in sorted(over, key=lambda path: path.stat().st_mtime)[:-_KEPT_RUNS]:
                shutil.rmtree(path, ignore_errors=True)


def _next_number(folder: Path, handle: int) -> int:
    """Return the number of the next run of a *handle* whose records are in *folder*, damaged ones included."""
    names = (path.name.partition("-") for path in folder.glob(f"{handle}-*"))
    return 1 + max((int(attempt) for _, _, attempt in names if attempt.isdigit()), default=0)


def last_line(run: ServerRun) -> str:
    """Return the last line a process has printed; how it ended if there is none."""
    with suppress(OSError):
        lines = (run.folder.path / "output.log").read_bytes()[-4096:].decode("utf-8", "replace").split("\n")
        if printed := [line.strip() for line in lines if line.strip()]:
            return printed[-1][:300]
    end = run.folder.end()
    return "" if end is None else end.cause
