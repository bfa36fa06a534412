"""The live control plane under load: `commonwatt serve` with a simulated engine, asked by another process.

1,000 nodes, 10,000 jobs that wait. Measured: how long ticks take while nobody asks and while the API is asked at a
fixed rate (an open loop: a request that is late counts from when it was due), how long answers take, how much memory
the server holds, and, with the local engine, how long a job takes from submission to its first instruction.

With `--own-process` the API has a process of its own: compare two runs, one after the other.

A site: `--curve --solver easy` goes through 1,000 to 10,000 nodes with ten waiting jobs each, `--mix site` asks as
dashboards and the command line do (open streams too), `--ended 100000` has so many ended jobs in the store.

A tick is what the controller decides. A cycle is all its thread does from one wait to the next: requests are read, a
decision is taken, written down, and shown. Its processor time is less disturbed by other programs than the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import httpx
import numpy as np
import yaml

from commonwatt.controlplane.reconciler import Reconciler
from commonwatt.controlplane.snapshot import SnapshotBuilder
from commonwatt.model.job_file import JobFile
from commonwatt.store import tables
from commonwatt.store.api_store import ApiStore
from commonwatt.store.controller_store import ControllerStore
from commonwatt.store.database import Database, address
from commonwatt.store.migrate import prepare

API = (  # share, method, path
    (0.30, "GET", "/api/v1/jobs?limit=50&cursor={job}"),
    (0.25, "GET", "/api/v1/jobs/{job}"),
    (0.15, "GET", "/api/v1/jobs/{job}/explain"),
    (0.10, "GET", "/api/v1/jobs/{job}/events"),
    (0.10, "GET", "/api/v1/tenants"),
    (0.05, "GET", "/healthz"),
    (0.05, "POST", "/api/v1/jobs"),
)
SITE = (  # what dashboards ask every 10 s and for a job that is clicked, and commands: jobs, nodes, explain, submit
    (0.10, "GET", "/api/v1/tenants"),
    (0.10, "GET", "/api/v1/ledger"),
    (0.10, "GET", "/api/v1/services"),
    (0.05, "GET", "/api/v1/capacity"),
    (0.05, "GET", "/api/v1/jobs/ended?limit=50"),
    (0.02, "GET", "/api/v1/samples?since=0&limit=3000"),
    (0.15, "GET", "/api/v1/jobs?limit=100&status=running&status=waiting"),
    (0.08, "GET", "/api/v1/jobs?limit=50&cursor={job}"),
    (0.10, "GET", "/api/v1/jobs/{job}"),
    (0.08, "GET", "/api/v1/jobs/{job}/explain"),
    (0.03, "GET", "/api/v1/events?limit=50&newest_first=true"),
    (0.04, "GET", "/api/v1/nodes"),
    (0.04, "GET", "/api/v1/cluster"),
    (0.03, "GET", "/healthz"),
    (0.03, "POST", "/api/v1/jobs"),
)
MIXES = {"api": API, "site": SITE}
STREAMS = {"api": 0, "site": 3}  # that are open meanwhile
CURVE = (1000, 2000, 5000, 10_000)
PARTS = (  # of a cycle: object, method
    (Reconciler, "recover"), (Reconciler, "step"), (ControllerStore, "requests"), (ControllerStore, "write"),
    (SnapshotBuilder, "apply"), (SnapshotBuilder, "snapshot"),
)  # fmt: skip


def cluster(nodes: int, solver: str, *, own_process: bool = False) -> dict[str, Any]:
    """Return a configuration with the simulated engine."""
    server = {"port": 0, "requests_per_s": 100_000, "own_process": own_process}
    return {
        "engine": "simulated",
        "live": {"store": "live.db", "server": server},
        "nodes": [
            {"name": "v", "count": nodes // 2, "gpu_type": "V100", "gpus": 4, "idle_w": 400, "gpu_w": 250},
            {"name": "t", "count": nodes - nodes // 2, "gpu_type": "T4", "gpus": 2, "idle_w": 200, "gpu_w": 65},
        ],
        "tenants": [{"name": f"t{k}", "weight": 1 + k % 3} for k in range(20)],
        "policies": [{"solver": solver}, {"solver": "fifo"}],
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
def served(
    folder: Path, config: dict[str, Any], jobs: int = 0, ended: int = 0, *, timed: bool = True
) -> Iterator[tuple[int, str, str, list[int]]]:
    """Run `commonwatt serve` in a process of its own; gives its id, address, an operator's token, and job ids.

    If *timed*, it also writes how long its parts take, and loads this module for that.
    """
    path = folder / "live.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    database = Database(address("live.db", folder))
    prepare(database)
    store, now_s = ApiStore(database), time.time()
    for tenant in config["tenants"]:
        store.add_tenant(tenant["name"], tenant["weight"], now_s)
    token = store.add_token(None, "benchmark", now_s)
    _enter_ended(database, ended, now_s)
    ids = _enter(database, jobs, now_s, first=ended + 1)
    database.close()
    command = [sys.executable, "-m", "benchmarks.live_load", "--serve", str(path)]
    if not timed:
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


def serve(file: str) -> None:
    """Run `commonwatt serve`, and write beside *file* how long each part of each cycle takes."""
    from commonwatt.cli import main as command  # the caller must not import it

    timings = (Path(file).parent / "parts").open("w", buffering=1)

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: object, **kwargs: object) -> object:
            began_s, used_s = time.perf_counter(), time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                wall_s, cpu_s = time.perf_counter() - began_s, time.thread_time() - used_s
                row = {"part": name, "at_s": time.time(), "wall_s": wall_s, "cpu_s": cpu_s}
                if threading.current_thread().name == "controller":
                    timings.write(json.dumps(row) + "\n")

        return wrapped

    for owner, name in PARTS:
        setattr(owner, name, timed(name, getattr(owner, name)))
    sys.argv = ["commonwatt", "serve", file, "--json"]
    command()


def cycles(folder: Path) -> list[dict[str, Any]]:
    """Return the cycles of the controller that had a step: when they ended, and seconds by part."""
    found: list[dict[str, Any]] = []
    now: dict[str, Any] = {}
    for line in (folder / "parts").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        part = now.setdefault(row["part"], {"wall_s": 0.0, "cpu_s": 0.0})
        for clock in part:
            part[clock] += row[clock]
        if row["part"] == "snapshot":  # the last part
            parts, now = now, {}
            if "step" in parts:
                sums = {clock: sum(part[clock] for part in parts.values()) for clock in ("wall_s", "cpu_s")}
                found.append({"at_s": row["at_s"], "parts": parts, **sums})
    return found


def _enter_ended(database: Database, jobs: int, now_s: float) -> None:
    """Write jobs down that have ended in the last 30 days."""
    done = {"status": "completed", "attempts": 1, "settled": 1, "done_epochs": 100.0, "kept_epochs": 100.0}
    files = [job(k).model_dump(mode="json") for k in range(min(jobs, 1000))]
    for first in range(0, jobs, 10_000):
        rows = []
        for k in range(first, min(jobs, first + 10_000)):
            at_s = now_s - 30 * 86400 * (1 - k / jobs) - 3600
            times = {"submit_s": at_s - 9000, "began_s": at_s - 7200, "started_s": at_s - 7200, "ended_s": at_s}
            file = files[k % 1000]
            rows.append({"name": f"old{k}", "tenant": f"t{k % 20}", "file": file, "nodes": [], **done, **times})
        with database.transaction() as c:
            c.execute(tables.jobs.insert(), rows)


def _enter(database: Database, jobs: int, now_s: float, first: int = 1) -> list[int]:
    """Write many jobs down at once, as if each had been submitted."""
    files = [job(k) for k in range(jobs)]
    rows = [
        {
            "name": file.name, "tenant": f"t{k % 20}", "file": file.model_dump(mode="json"), "status": "waiting",
            "submit_s": now_s, "due_s": now_s + (file.due_in_s or 0.0), "nodes": [],
        }
        for k, file in enumerate(files)
    ]  # fmt: skip
    ids = list(range(first, first + jobs))
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


def api_of(pid: int) -> int | None:
    """Process of the API of a server; none: it has none of its own."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    of_api = (int(child) for child in children if b"own_process" in Path(f"/proc/{child}/cmdline").read_bytes())
    return next(of_api, None)


def resident_mb(pid: int) -> tuple[float, float]:
    """Memory now and at most."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    now, most = (float(re.findall(rf"{name}:\s+(\d+) kB", text)[0]) for name in ("VmRSS", "VmHWM"))
    return now / 1000, most / 1000


def proportional_mb(*pids: int) -> float:
    """Memory of processes now: what several of them share counts once."""
    texts = (Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8") for pid in pids)
    return sum(float(re.findall(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)[0]) for text in texts) / 1000


def cpu_s(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def age_s(pid: int) -> float:
    """Seconds since a process was started."""
    ticks = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")


async def generate(url: str, token: str, rate: float, seconds: float, ids: list[int], mix: str) -> dict[str, Any]:
    """Ask at a fixed rate; returns latencies from when each request was due, by kind."""
    rng, requests = np.random.default_rng(1), MIXES[mix]
    kinds = rng.choice(len(requests), size=int(rate * seconds), p=[share for share, _, _ in requests])
    found: dict[str, list[float]] = {}
    statuses: dict[str, int] = {}
    timeout, connector = aiohttp.ClientTimeout(60), aiohttp.TCPConnector(limit=200)
    async with aiohttp.ClientSession(url, headers=_with(token), connector=connector, timeout=timeout) as client:

        async def ask(number: int, kind: int, due_s: float) -> None:
            _, method, path = requests[kind]
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

        async def listen() -> None:
            forever = aiohttp.ClientTimeout(None)
            async with client.get("/api/v1/stream", timeout=forever) as answer:
                async for _ in answer.content.iter_any():
                    pass

        async with client.get("/healthz") as answer:
            await answer.read()
        streams = [asyncio.create_task(listen()) for _ in range(STREAMS[mix])]
        await asyncio.sleep(5.0 if streams else 0.0)  # for the whole board, which comes first
        began, tasks = time.perf_counter() + 0.1, []
        for number, kind in enumerate(kinds):
            due_s = began + number / rate
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            tasks.append(asyncio.create_task(ask(number, int(kind), due_s)))
        await asyncio.gather(*tasks)
        taken_s = time.perf_counter() - began
        for stream in streams:
            stream.cancel()
    return {"latencies_s": found, "statuses": statuses, "seconds": taken_s}


def under_load(options: argparse.Namespace, nodes: int, waiting: int) -> dict[str, Any]:
    """Measure the plane with the simulated engine."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        # Those that find GPUs run; so many more that the wanted number still waits.
        config = cluster(nodes, options.solver, own_process=options.own_process)
        jobs = waiting + round(nodes * 2.2)
        with served(folder, config, jobs, options.ended) as (pid, url, token, ids):
            began_s = time.monotonic()
            while time.monotonic() < began_s + 600:
                path = f"{url}/api/v1/cluster?nodes=false"
                board = httpx.get(path, headers=_with(token), timeout=120).json()
                if board["running"] and board["waiting"]:
                    break
                time.sleep(0.2)
            time.sleep(2.0)
            first = ticks(url, token, 0.0)
            quiet_s = time.time()
            time.sleep(options.quiet)
            loaded_s = time.time()
            command = [
                sys.executable, "-m", "benchmarks.live_load", "--generate", url, "--rate", str(options.rate),
                "--seconds", str(options.seconds), "--mix", options.mix,
            ]  # fmt: skip
            api = api_of(pid)
            before_s, api_before_s = cpu_s(pid), 0.0 if api is None else cpu_s(api)
            done = subprocess.run(
                command, input=json.dumps({"token": token, "ids": ids}), capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise SystemExit(done.stderr)
            asked, used_s = json.loads(done.stdout), cpu_s(pid) - before_s
            during = ticks(url, token, loaded_s)
            quiet = [t for t in ticks(url, token, quiet_s) if t not in during]
            now_mb, most_mb = resident_mb(pid)
            api_mb = 0.0 if api is None else resident_mb(api)[1]
            both_mb = proportional_mb(pid, *(() if api is None else (api,)))
            api_used_s = 0.0 if api is None else cpu_s(api) - api_before_s
            all_cycles = cycles(folder)
            board = httpx.get(path, headers=_with(token), timeout=120).json()
    everything = np.concatenate([np.array(times) for times in asked["latencies_s"].values()])
    later = all_cycles[1:]
    return {
        "nodes": nodes, "solver": options.solver, "ended": options.ended, "running": board["running"],
        "waiting": board["waiting"], "first_tick_s": max(first, default=None), "first_cycle": all_cycles[0],
        "quiet_ticks_s": _summary(quiet), "loaded_ticks_s": _summary(during),
        "quiet_cycles": _cycles([c for c in later if quiet_s <= c["at_s"] < loaded_s]),
        "loaded_cycles": _cycles([c for c in later if c["at_s"] >= loaded_s]),
        "memory_mb": now_mb, "peak_memory_mb": most_mb, "api_peak_memory_mb": api_mb, "proportional_mb": both_mb,
        "api_cpu_s": api_used_s,
        "mix": options.mix, "rate": options.rate,
        "requests": len(everything), "statuses": asked["statuses"], "seconds": asked["seconds"], "cpu_s": used_s,
        "latency_ms": _quantiles(everything),
        "by_route_ms": {route: _quantiles(np.array(times)) for route, times in sorted(asked["latencies_s"].items())},
    }  # fmt: skip


def start(options: argparse.Namespace) -> dict[str, Any]:
    """Measure how long `serve` takes from its start to an answering API, with and without jobs that have ended."""
    found: dict[str, Any] = {}
    config = cluster(10, options.solver, own_process=options.own_process)
    for ended in (0, options.ended):
        with (
            TemporaryDirectory() as name,
            served(Path(name), config, 20, ended, timed=False) as (pid, url, token, _),
        ):
            answers_s = age_s(pid)
            while not httpx.get(f"{url}/api/v1/cluster", headers=_with(token), timeout=60).json()["ticks"]:
                time.sleep(0.02)
            decided_s, api = age_s(pid), api_of(pid)
            used_s = cpu_s(pid) + (0.0 if api is None else cpu_s(api))
            found[str(ended)] = {"answers_s": answers_s, "decided_s": decided_s, "cpu_s": used_s}
    return found


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


def _cycles(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarize cycles: clock and processor time, and mean processor time of each part."""
    own = {clock: _summary([cycle[clock] for cycle in found]) for clock in ("wall_s", "cpu_s")}
    names = sorted({name for cycle in found for name in cycle["parts"]})
    none = {"cpu_s": 0.0}
    return own | {
        "parts_cpu_s": {
            name: sum(c["parts"].get(name, none)["cpu_s"] for c in found) / len(found) for name in names
        }
    }  # fmt: skip


def _quantiles(values: np.ndarray) -> dict[str, float]:
    return {f"p{q}": float(1e3 * np.quantile(values, q / 100)) for q in (50, 95, 99)} | {
        "largest": float(1e3 * values.max())
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=10_000, help="that wait")
    parser.add_argument(
        "--curve", action="store_true", help="1,000, 2,000, 5,000 and 10,000 nodes, ten waiting jobs each"
    )
    parser.add_argument("--solver", default="random-greedy")
    parser.add_argument("--own-process", action="store_true", help="the API in a process of its own")
    parser.add_argument("--ended", type=int, default=0, help="jobs in the store that have ended")
    parser.add_argument("--mix", choices=MIXES, default="api", help="of requests")
    parser.add_argument("--rate", type=float, default=200.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=30.0, help="of requests")
    parser.add_argument("--quiet", type=float, default=20.0, help="seconds without requests before")
    parser.add_argument("--starts", type=int, default=20, help="jobs started on the local engine; 0: none")
    parser.add_argument("--generate", help=argparse.SUPPRESS)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    if options.generate:
        given = json.load(sys.stdin)
        asked = generate(
            options.generate, given["token"], options.rate, options.seconds, given["ids"], options.mix
        )  # fmt: skip
        print(json.dumps(asyncio.run(asked)))
        return
    answer: dict[str, Any] = {"cores": os.cpu_count(), "loads": []}
    for nodes in CURVE if options.curve else (options.nodes,):
        load = under_load(options, nodes, 10 * nodes if options.curve else options.jobs)
        answer["loads"].append(load)
        if not options.json:
            _print(load)
    if options.ended:
        answer["begin"] = start(options)
    if options.starts:
        answer["start"] = first_instruction(options.starts)
    if options.json:
        print(json.dumps(answer))
        return
    for ended, row in answer.get("begin", {}).items():
        print(
            f"start with {int(ended):,} ended jobs: " + ", ".join(f"{name} {value:.2f}" for name, value in row.items())
        )
    if options.starts:
        print(f"local engine, submission to first instruction, s: {answer['start']['delay_s']}")


def _print(load: dict[str, Any]) -> None:
    print(f"{load['nodes']:,} nodes, {load['solver']}, {load['running']:,} jobs run, {load['waiting']:,} wait")
    first = load["first_cycle"]
    print(f"first tick {load['first_tick_s']:.2f} s; cycle {first['wall_s']:.2f} s, {first['cpu_s']:.2f} s of CPU: ")
    print("  " + ", ".join(f"{name} {part['cpu_s']:.2f}" for name, part in first["parts"].items()))
    for what in ("quiet", "loaded"):
        print(f"{what} ticks, s: {_few(load[f'{what}_ticks_s'])}")
        rows = load[f"{what}_cycles"]
        print(f"{what} cycles, s: {_few(rows['wall_s'])}; of CPU: {_few(rows['cpu_s'])}")
        print("  mean of CPU: " + ", ".join(f"{name} {spent_s:.3f}" for name, spent_s in rows["parts_cpu_s"].items()))
    own = f", and the API's process {load['api_peak_memory_mb']:.0f}" if load["api_peak_memory_mb"] else ""
    print(
        f"memory, MB: {load['memory_mb']:.0f} (at most {load['peak_memory_mb']:.0f}{own}), "
        f"together {load['proportional_mb']:.0f}"
    )
    print(f"API, mix {load['mix']}, {load['rate']:g}/s, {load['requests']} requests; ms from when due:")
    print(f"  answers by status: {load['statuses']}")
    print(f"  the server used {load['cpu_s']:.1f} s of CPU, its ticks included, in {load['seconds']:.1f} s")
    if own:
        print(f"  and the API's process {load['api_cpu_s']:.1f} s")
    for route, row in [("all", load["latency_ms"]), *load["by_route_ms"].items()]:
        print(f"  {route:60s} " + "  ".join(f"{name} {value:8.1f}" for name, value in row.items()), flush=True)


def _few(row: dict[str, float | int | None]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in row.items() if value is not None)


if __name__ == "__main__":
    main()
