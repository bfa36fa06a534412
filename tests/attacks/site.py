"""A control plane as a site runs it: ``commonwatt serve`` in a process of its own, with a limit of descriptors."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from commonwatt.store.api_store import ApiStore
from commonwatt.store.database import Database, address

__all__ = ["Site", "served", "until"]

NODES = [{"name": "n", "gpu_type": "V100", "gpus": 8, "idle_w": 100, "gpu_w": 100}]


def until(condition: Callable[[], Any], limit_s: float = 180.0, every_s: float = 0.05) -> Any:
    """Return the first true value of *condition*; fails after *limit_s*."""
    end_s = time.monotonic() + limit_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end_s, f"not within {limit_s:g} s"
        time.sleep(every_s)


@dataclass
class Site:
    """A server that runs."""

    url: str
    folder: Path
    process: subprocess.Popen[bytes]
    store: ApiStore
    log: Path
    operator: str

    def token(self, tenant: str | None) -> str:
        return self.store.add_token(tenant, "of the test", time.time())

    def call(self, method: str, path: str, token: str | None = None, timeout_s: float = 30.0, **more: Any) -> Any:
        headers = {"Authorization": f"Bearer {token or self.operator}"} | more.pop("headers", {})
        return httpx.request(method, f"{self.url}/api/v1{path}", headers=headers, timeout=timeout_s, **more)

    def submit(self, *command: str, tenant: str = "default", **more: Any) -> int:
        body = {"name": "job", "command": list(command), **more}
        answer = self.call("POST", f"/jobs?tenant={tenant}", json=body)
        assert answer.status_code == 201, answer.text
        return int(answer.json()["id"])

    def status(self, job: int) -> str:
        row = self.store.job(job)
        assert row is not None
        return str(row.status)


@contextmanager
def served(folder: Path, *, descriptors: int | None = None, **config: Any) -> Iterator[Site]:
    """Run ``serve`` on a free port until the block ends."""
    live = {"store": "live.db", "local": {"grace_s": 0.5}} | config.pop("live", {})
    live["server"] = {"port": 0} | live.get("server", {})
    document = {"engine": "local", "nodes": NODES, "tenants": [{"name": "default"}]} | config | {"live": live}
    path = folder / "live.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")

    command = ["serve", str(path), "--json", "--log-format", "json"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", "from commonwatt.cli import main; main()", *command],
            stdout=subprocess.PIPE, stderr=log, env=os.environ | {"PYTHONUNBUFFERED": ""},  # as for most users
        )  # fmt: skip
    if descriptors is not None:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (descriptors, descriptors))
    out = b""
    assert process.stdout is not None
    while not out.endswith(b"\n}\n"):
        more = os.read(process.stdout.fileno(), 65_536)
        assert more, (folder / "log").read_text()
        out += more
    database = Database(address(live["store"], folder))
    store = ApiStore(database)
    operator = store.add_token(None, "operator of the test", time.time())
    site = Site(json.loads(out)["url"], folder, process, store, folder / "log", operator)
    try:
        yield site
    finally:
        for job in store.jobs(status=("waiting", "running")):
            site.call("POST", f"/jobs/{job.id}/cancel")
        end_s = time.monotonic() + 10
        while store.jobs(status=("waiting", "running")) and time.monotonic() < end_s:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        database.close()
