"""A control plane that is killed again and again, and jobs that notice if they run twice."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakSet

import numpy as np
import yaml

from commonwatt.controlplane.jobs import due_of
from commonwatt.controlplane.supervisor import Pace
from commonwatt.controlplane.wiring import open_live
from commonwatt.model.job_file import JobFile
from commonwatt.store.api_store import ApiStore
from commonwatt.store.database import Database, address
from commonwatt.store.migrate import prepare
from commonwatt.store.records import JobStatus, RequestKind

WITNESS = Path(__file__).with_name("witness.py")
FAST = Pace(beat_s=0.2, requests_s=0.05, pause_s=0.05, longest_pause_s=0.5)
ROUNDS = int(os.environ.get("COMMONWATT_ROUNDS", "6"))  # of servers killed; 100 of each database take 4 minutes
OPENED: WeakSet[Database] = WeakSet()
ENDED = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)


def config_in(folder: Path, **changes) -> Path:
    config = {
        "engine": "local",
        "nodes": [{"name": "n", "count": 2, "gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 200}],
        "tenants": [{"name": "a"}, {"name": "b", "weight": 2}],
        "policies": [{"solver": "random-greedy", "iterations": 20}],
        "interval_s": 0.5,
        "preemption": {"restart_s": 0},
        "live": {"local": {"grace_s": 2}, "default_time_limit_s": 5},
        **changes,
    }
    path = folder / "live.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def store_of(path: Path, url: str = "commonwatt.db", *, tenants: str = "") -> ApiStore:
    database = Database(address(url, path.parent))
    OPENED.add(database)
    prepare(database)
    store = ApiStore(database)
    for name in tenants:
        store.add_tenant(name, 1.0, 0.0)
    return store


def witness(name: str, logs: Path, seconds: float, *, epochs: int = 1, exit_code: int = 0, **more) -> JobFile:
    """A job that writes down when it begins and ends, holds a lock meanwhile, and goes on from its last epoch."""
    command = (sys.executable, "-I", str(WITNESS), str(logs / name), str(seconds), str(epochs), str(exit_code))
    return JobFile(name=name, command=command, epochs=epochs, **more)


def controller(path: Path) -> int:
    """Start a controller in a process of its own; returns its id."""
    for database in OPENED:  # a child that has them open takes their locks for its own, and SQLite's file suffers
        database.close()
    child = os.fork()
    if child:
        return child
    try:  # never back into pytest
        with Path(os.devnull).open("r+b", buffering=0) as null:
            for number in range(3):
                os.dup2(null.fileno(), number)
        live = open_live(path, pace=FAST)
        live.start()
        while True:
            time.sleep(60)
    finally:
        os._exit(1)


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@contextmanager
def running(path: Path):
    """A controller, killed at the end."""
    child = controller(path)
    try:
        yield child
    finally:
        kill(child)


def until_all_end(store: ApiStore, jobs: list[int], limit_s: float = 120.0) -> None:
    end_s = time.monotonic() + limit_s
    while True:
        rows = [store.job(job) for job in jobs]
        if all(row.status in ENDED for row in rows):
            return
        assert time.monotonic() < end_s, [(row.id, row.status, row.sentence) for row in rows if row.status not in ENDED]
        time.sleep(0.1)


def stream(path: Path, store: ApiStore, logs: Path, rounds: int, seed: int, longest_s: float = 0.5) -> list[int]:
    """Kill the controller *rounds* times, *longest_s* apart at most, while jobs come in; returns the jobs."""
    rng = np.random.default_rng(seed)
    jobs: list[int] = []
    for k in range(rounds):
        child = controller(path)
        try:
            file = witness(
                f"j{k}", logs, float(rng.uniform(0.05, 0.6)), epochs=int(rng.integers(1, 4)),
                exit_code=int(rng.random() < 0.1) * 3, gpus=int(rng.integers(1, 3)),
            )  # fmt: skip
            tenant = "ab"[int(rng.integers(2))]
            jobs.append(store.submit(tenant, file, time.time(), key=f"k{k}")[0].id)
            time.sleep(float(rng.uniform(0.0, longest_s)))
        finally:
            kill(child)
    return jobs


def restless(path: Path, store: ApiStore, logs: Path, rounds: int, seed: int) -> tuple[list[int], set[int]]:
    """Kill the controller *rounds* times while it moves, preempts and cancels jobs; returns the jobs, and those.

    Long jobs that may have one GPU or two make way for short ones that are urgent.
    """
    rng = np.random.default_rng(seed)
    jobs: list[int] = []
    cancelled: set[int] = set()
    for k in range(rounds):
        child = controller(path)
        try:
            for n, long in enumerate((True, False)):
                seconds = float(rng.uniform(1.0, 2.5) if long else rng.uniform(0.1, 0.4))
                declared = {"V100": {1: 60 * seconds, 2: 30 * seconds} if long else {1: seconds, 2: 0.8 * seconds}}
                pressing = {} if long else {"due_in_s": 0.5, "tardiness_weight": 5.0}
                more = {"gpu_counts": (1, 2), "times_s": declared, **pressing}
                file = witness(f"r{k}-{n}", logs, seconds, epochs=int(rng.integers(1, 5)), **more)
                now_s = time.time()
                jobs.append(store.submit("ab"[n], file, now_s, due_s=due_of(file, now_s))[0].id)
                time.sleep(float(rng.uniform(0.0, 0.5)))
            one = int(rng.choice(jobs[-6:]))
            match rng.integers(6):
                case 0:
                    cancelled.add(one)
                    store.ask(RequestKind.CANCEL, time.time(), job=one)
                case 1:
                    store.ask(RequestKind.HOLD, time.time(), job=one)
                    store.ask(RequestKind.RELEASE, time.time(), job=one)
        finally:
            kill(child)
    return jobs, cancelled


def problems(store: ApiStore, logs: Path, jobs: list[int]) -> list[str]:
    """Whatever was lost, done twice, or does not add up."""
    found = []
    for job in jobs:
        row = store.job(job)
        lines = (logs / row.name).with_suffix(".log").read_text().split("\n")[:-1] if row.began_s else []
        kinds = [event.kind for event in store.events(job=job)]
        ends = [kind for kind in kinds if kind in ENDED]
        wanted = JobStatus.FAILED if row.file.command[-1] != "0" else JobStatus.COMPLETED
        if row.status is not wanted:
            found.append(f"{row.name} is {row.status}, not {wanted}: {row.sentence}")
        if kinds.count("submitted") != 1 or kinds[0] != "submitted":
            found.append(f"{row.name} was not submitted first, and once: {kinds}")
        if len(ends) != 1:
            found.append(f"{row.name} ended {len(ends)} times: {kinds}")
        if sum(line.startswith("end") for line in lines) != 1:
            found.append(f"{row.name} came to its end not once: {lines}")
        if any(line.startswith("twice") for line in lines):
            found.append(f"{row.name} ran twice at once: {lines}")
    found += ledger_problems(store)
    return found


def ledger_problems(store: ApiStore) -> list[str]:
    rows = store.ledger()
    found = []
    for column in ("energy_uj", "cost_n", "gpu_us"):
        meter = sum(row[column] for row in rows if row["row"] == "meter")
        others = sum(row[column] for row in rows if row["row"] != "meter")
        if meter != others or meter <= 0:
            found.append(f"{column}: the meter says {meter}, the rows {others}")
    return found


@contextmanager
def opening(configured):
    """Yield a function that opens a live controller on the file *configured* writes; all are closed at the end."""
    planes = []

    def begin(**more):
        plane = open_live(configured(**more), pace=Pace(beat_s=0.05, requests_s=0.05))
        planes.append(plane)
        plane.supervisor.start()
        return plane

    try:
        yield begin
    finally:
        for plane in planes:
            plane.close()
