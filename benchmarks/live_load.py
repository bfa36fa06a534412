"""The live control plane under load: `commonwatt serve` with a simulated engine, asked by another process.

1,000 nodes, 10,000 jobs that wait. Measured: how long ticks take while nobody asks and while the API is asked at a
fixed rate (an open loop: a request that is late counts from when it was due), how long answers take, how much memory
the server holds, and, with the local engine, how long a job takes from submission to its first instruction.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import httpx
import numpy as np
import yaml

from commonwatt.model.job_file import JobFile
from commonwatt.store import tables
from commonwatt.store.api_store import ApiStore
from commonwatt.store.database import Database, address
from commonwatt.store.migrate import prepare

REQUESTS = (  # share, method, path
    (0.30, "GET", "/api/v1/jobs?limit=50&cursor={job}"),
    (0.25, "GET", "/api/v1/jobs/{job}"),
    (0.15, "GET", "/api/v1/jobs/{job}/explain"),
    (0.10, "GET", "/api/v1/jobs/{job}/events"),
    (0.10, "GET", "/api/v1/tenants"),
    (0.05, "GET", "/healthz"),
    (0.05, "POST", "/api/v1/jobs"),
)


def cluster(nodes: int) -> dict[str, Any]:
    """Return a configuration with the simulated engine."""
    return {
        "engine": "simulated",
        "live": {"store": "live.db", "server": {"port": 0, "requests_per_s": 100_000}},
        "nodes": [
            {"name": "v", "count": nodes // 2, "gpu_type": "V100", "gpus": 4, "idle_w": 400, "gpu_w": 250},
            {"name": "t", "count": nodes - nodes // 2, "gpu_type": "T4", "gpus": 2, "idle_w": 200, "gpu_w": 65},
        ],
        "tenants": [{"name": f"t{k}", "weight": 1 + k % 3} for k in range(20)],
        "policies": [{"solver": "random-greedy"}, {"solver": "fifo"}],
    }


def job(k: int) -> JobFile:
    """Return a job of some hours, malleable as the Philly ones of the demo are."""
    rng = np.random.default_rng(k)
    hours = float(rng.uniform(2, 20))
    gpus = int(rng.choice([1, 1, 2, 4]))
    times = {
        kind: {g: 3600 * hours * slow / g**0.85 for g in (1, 2, 4) if g <= most}
        for kind, slow, most in (("V100", 1.0, 4), ("T4", 2.5, 2))
    }
    return JobFile.model_validate(
        {
            "name": f"job{k}", "command": ["true"], "epochs": 100, "gpus": min(gpus, 2), "times_s": times,
            "due_in_s": 3600 * hours * float(rng.uniform(2, 20)),
            "tardiness_weight": float(rng.choice([1e-4, 2e-4, 5e-4])),
        }
    )  # fmt: skip


@contextmanager
def served(folder: Path, config: dict[str, Any], jobs: int = 0) -> Iterator[tuple[int, str, str, list[int]]]:
    """Run `commonwatt serve` in a process of its own; gives its id, address, an operator's token, and job ids."""
    path = folder / "live.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    database = Database(address("live.db", folder))
    prepare(database)
    store, now_s = ApiStore(database), time.time()
    for tenant in config["tenants"]:
        store.add_tenant(tenant["name"], tenant["weight"], now_s)
    token = store.add_token(None, "benchmark", now_s)
    ids = _enter(database, jobs, now_s)
    database.close()
    command = [sys.executable, "-c", "from commonwatt.cli import main; main()", "serve", str(path), "--json"]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            lines = []
            while (line := process.stdout.readline()) and line.rstrip() != "}":
                lines.append(line)
            if not lines:
                raise SystemExit((folder / "log").read_text())
            yield process.pid, json.loads("".join([*lines, "}"]))["url"], token, ids
        finally:
            process.terminate()


def _enter(database: Database, jobs: int, now_s: float) -> list[int]:
    """Write many jobs down at once, as if each had been submitted."""
    files = [job(k) for k in range(jobs)]
    rows = [
        {
            "name": file.name, "tenant": f"t{k % 20}", "file": file.model_dump(mode="json"), "status": "waiting",
            "submit_s": now_s, "due_s": now_s + (file.due_in_s or 0.0), "nodes": [],
        }
        for k, file in enumerate(files)
    ]  # fmt: skip
    ids = list(range(1, jobs + 1))
    if rows:
        with database.transaction() as c:
            c.execute(tables.jobs.insert(), rows)
            c.execute(tables.requests.insert(), [{"kind": "submit", "job": k, "at_s": now_s} for k in ids])
    return ids


def ticks(url: str, token: str, since_s: float) -> list[float]:
    """Durations of ticks."""
    rows = httpx.get(
        f"{url}/api/v1/samples", params={"since": since_s, "limit": 1000}, headers=_with(token), timeout=60
    ).json()["samples"]
    return [row["tick_s"] for row in rows]


def resident_mb(pid: int) -> tuple[float, float]:
    """Memory now and at most."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    now, most = (float(re.findall(rf"{name}:\s+(\d+) kB", text)[0]) for name in ("VmRSS", "VmHWM"))
    return now / 1000, most / 1000


def cpu_s(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def generate(url: str, token: str, rate: float, seconds: float, ids: list[int]) -> dict[str, Any]:
    """Ask at a fixed rate; returns latencies from when each request was due, by kind."""
    rng = np.random.default_rng(1)
    kinds = rng.choice(len(REQUESTS), size=int(rate * seconds), p=[share for share, _, _ in REQUESTS])
    found: dict[str, list[float]] = {}
    statuses: dict[str, int] = {}
    timeout, connector = aiohttp.ClientTimeout(60), aiohttp.TCPConnector(limit=200)
    async with aiohttp.ClientSession(url, headers=_with(token), connector=connector, timeout=timeout) as client:

        async def ask(number: int, kind: int, due_s: float) -> None:
            _, method, path = REQUESTS[kind]
            target = path.format(job=ids[int(rng.integers(len(ids)))])
            body = job(10**6 + number).model_dump(mode="json", exclude_none=True) if method == "POST" else None
            try:
                async with client.request(
                    method, target, params={"tenant": "t1"} if body else None, json=body
                ) as answer:
                    await answer.read()
                status = str(answer.status)
            except (aiohttp.ClientError, TimeoutError) as error:
                status = type(error).__name__
            found.setdefault(f"{method} {path}", []).append(time.perf_counter() - due_s)
            statuses[status] = statuses.get(status, 0) + 1

        async with client.get("/healthz") as answer:
            await answer.read()
        began, tasks = time.perf_counter() + 0.1, []
        for number, kind in enumerate(kinds):
            due_s = began + number / rate
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            tasks.append(asyncio.create_task(ask(number, int(kind), due_s)))
        await asyncio.gather(*tasks)
        taken_s = time.perf_counter() - began
    return {"latencies_s": found, "statuses": statuses, "seconds": taken_s}


def under_load(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the plane with the simulated engine."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        # Those that find GPUs run; so many more that the wanted number still waits.
        config, begun_s = cluster(options.nodes), time.time()
        jobs = options.jobs + round(options.nodes * 2.2)
        with served(folder, config, jobs) as (pid, url, token, ids):
            until = time.monotonic() + 600
            while time.monotonic() < until:
                board = httpx.get(f"{url}/api/v1/cluster", headers=_with(token), timeout=120).json()
                if board["running"] and board["waiting"]:
                    break
                time.sleep(0.5)
            first = ticks(url, token, begun_s - 10)
            quiet_s = time.time()
            time.sleep(options.quiet)
            loaded_s = time.time()
            command = [
                sys.executable, "-m", "benchmarks.live_load", "--generate", url, "--rate", str(options.rate),
                "--seconds", str(options.seconds),
            ]  # fmt: skip
            before_s = cpu_s(pid)
            done = subprocess.run(
                command, input=json.dumps({"token": token, "ids": ids}), capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise SystemExit(done.stderr)
            asked, used_s = json.loads(done.stdout), cpu_s(pid) - before_s
            during = ticks(url, token, loaded_s)
            quiet = [t for t in ticks(url, token, quiet_s) if t not in during]
            now_mb, most_mb = resident_mb(pid)
    everything = np.concatenate([np.array(times) for times in asked["latencies_s"].values()])
    return {
        "nodes": options.nodes, "running": board["running"], "waiting": board["waiting"],
        "first_tick_s": max(first, default=None), "quiet_ticks_s": _summary(quiet), "loaded_ticks_s": _summary(during),
        "memory_mb": now_mb, "peak_memory_mb": most_mb, "rate": options.rate, "requests": len(everything),
        "statuses": asked["statuses"], "seconds": asked["seconds"], "cpu_s": used_s,
        "latency_ms": _quantiles(everything),
        "by_route_ms": {route: _quantiles(np.array(times)) for route, times in sorted(asked["latencies_s"].items())},
    }  # fmt: skip


def first_instruction(number: int) -> dict[str, Any]:
    """Measure submission to first instruction on the local engine, one job after the other."""
    config = {
        "engine": "local", "live": {"store": "live.db", "server": {"port": 0}},
        "nodes": [{"name": "n", "gpu_type": "V100", "gpus": 4, "idle_w": 1, "gpu_w": 1}],
        "tenants": [{"name": "t0", "weight": 1}], "policies": [{"solver": "random-greedy"}],
    }  # fmt: skip
    delays = []
    with TemporaryDirectory() as name, served(Path(name), config) as (_, url, token, _):
        for k in range(number):
            mark = Path(name) / f"mark{k}"
            began = time.time()
            body = {"name": f"m{k}", "command": ["touch", str(mark)], "time_limit_s": 60}
            answer = httpx.post(
                f"{url}/api/v1/jobs", params={"tenant": "t0"}, json=body, headers=_with(token), timeout=60
            )
            answer.raise_for_status()
            until = time.monotonic() + 120
            while not mark.exists() and time.monotonic() < until:
                time.sleep(0.005)
            delays.append(mark.stat().st_mtime - began)
            time.sleep(0.3)
    return {"jobs": number, "delay_s": _summary(delays)}


def _with(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _summary(values: list[float]) -> dict[str, float | int | None]:
    found = np.array(values)
    return {
        "number": len(values), "median": float(np.median(found)) if len(found) else None,
        "largest": float(found.max()) if len(found) else None,
    }  # fmt: skip


def _quantiles(values: np.ndarray) -> dict[str, float]:
    return {f"p{q}": float(1e3 * np.quantile(values, q / 100)) for q in (50, 95, 99)} | {
        "largest": float(1e3 * values.max())
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=10_000, help="that wait")
    parser.add_argument("--rate", type=float, default=200.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=30.0, help="of requests")
    parser.add_argument("--quiet", type=float, default=20.0, help="seconds without requests before")
    parser.add_argument("--starts", type=int, default=20, help="jobs started on the local engine")
    parser.add_argument("--generate", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.generate:
        given = json.load(sys.stdin)
        asked = generate(options.generate, given["token"], options.rate, options.seconds, given["ids"])
        print(json.dumps(asyncio.run(asked)))
        return
    answer = {"cores": os.cpu_count(), "load": under_load(options), "start": first_instruction(options.starts)}
    if options.json:
        print(json.dumps(answer))
        return
    load, start = answer["load"], answer["start"]
    print(f"{load['nodes']} nodes, {load['running']} jobs run, {load['waiting']} wait; {answer['cores']} cores")
    for what in ("quiet_ticks_s", "loaded_ticks_s"):
        print(f"{what:15s} {load[what]}")
    print(f"first tick, s   {load['first_tick_s']}")
    print(f"memory, MB      {load['memory_mb']:.0f} (at most {load['peak_memory_mb']:.0f})")
    print(f"API at {load['rate']:g}/s, {load['requests']} requests, {load['statuses']}; ms from when due:")
    print(f"  the server used {load['cpu_s']:.1f} s of CPU, its ticks included, in {load['seconds']:.1f} s")
    for route, row in [("all", load["latency_ms"]), *load["by_route_ms"].items()]:
        print(f"  {route:35s} " + "  ".join(f"{name} {value:8.1f}" for name, value in row.items()))
    print(f"local engine, submission to first instruction, s: {start['delay_s']}")


if __name__ == "__main__":
    main()
