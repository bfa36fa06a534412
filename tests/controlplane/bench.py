"""A control plane that is driven by hand: virtual work, a clock that stands, a store in a file."""

from __future__ import annotations

from pathlib import Path

from commonwatt.control.engine import Stop
from commonwatt.controlplane.jobs import due_of
from commonwatt.controlplane.supervisor import Pace, SteadyClock, Supervisor
from commonwatt.controlplane.wiring import open_live
from commonwatt.engines.simulated.engine import World
from commonwatt.engines.simulated.live import VirtualWork
from commonwatt.model.errors import EngineError
from commonwatt.model.job_file import JobFile
from commonwatt.store.records import JobRow, JobStatus, RequestKind
from tests.controlplane.chaos import config_in

__all__ = ["Bench", "Hand", "ended_kinds", "node"]

ENDED = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)


class Hand:
    """A clock that is moved by hand."""

    def __init__(self, time_s: float = 1_800_000_000.0) -> None:
        self.time_s = time_s

    def __call__(self) -> float:
        return self.time_s


class Bench:
    """The control plane of a configuration, one look at a time."""

    work = VirtualWork

    def __init__(self, folder: Path, **changes) -> None:
        self.folder, self.hand = folder, Hand()
        self.clock = SteadyClock(self.hand, self.hand)
        given = {"engine": "simulated", "policies": [{"solver": "random-greedy", "iterations": 20}], "interval_s": 50}
        self.path = config_in(folder, **{**given, **changes})
        self.virtual: VirtualWork | None = None
        self.open()

    def open(self) -> None:
        """Open it (again), as another process would, but for the virtual work, which goes on."""
        self.live = live = open_live(self.path, clock=self.clock)
        self.supervisor: Supervisor = live.supervisor
        self.supervisor._claimed()
        self.supervisor._pace = Pace(beat_s=10.0, requests_s=0.0, rest=0.0)
        self.engine = self.virtual or self.work(live.cluster, World(unused_state=None), self.clock)
        self.virtual = self.engine
        self.supervisor._make_engine = lambda: self.engine
        self.engine.wait = lambda seconds, waker=-1: None
        self.begin()

    def begin(self) -> None:
        """A new session from what is written down."""
        self.reconciler, self.builder = self.supervisor._begin()

    def close(self) -> None:
        self.live.database.close()

    def look(self) -> None:
        """One round of the controller."""
        self.supervisor._go_on(self.reconciler, self.builder)

    def settle(self, rounds: int = 3) -> None:
        for _ in range(rounds):
            self.look()

    def submit(self, seconds: float = 100.0, *, gpus: int = 1, epochs: int = 10, tenant: str = "a", **more) -> int:
        times = more.pop("times_s", {"V100": {gpus: seconds}})
        file = JobFile(name="j", command=("true",), epochs=epochs, gpus=gpus, times_s=times, **more)
        now_s = self.clock()
        return self.live.store.submit(tenant, file, now_s, due_s=due_of(file, now_s))[0].id

    def ask(self, kind: RequestKind, **more) -> None:
        self.live.store.ask(kind, self.clock(), **more)

    def advance(self, seconds: float) -> None:
        self.hand.time_s += seconds

    def cannot_stop(self, job: int) -> None:
        """Have the engine refuse to stop a job, as if it hung in a driver."""
        apply = self.engine.apply

        def refuse(commands):
            if Stop(job) in commands:
                msg = "its processes do not end, even killed"
                raise EngineError(msg)
            return apply(commands)

        self.engine.apply = refuse

    def row(self, job: int) -> JobRow:
        return self.live.store.job(job)

    def status(self, job: int) -> JobStatus:
        return self.row(job).status

    def kinds(self, job: int) -> list[str]:
        return [event.kind for event in self.live.store.events(job=job)]

    def snapshot(self):
        return self.supervisor.snapshot()


def ended_kinds(kinds: list[str]) -> list[str]:
    return [kind for kind in kinds if kind in ENDED]


def node(name: str, gpu_type: str = "V100", **more) -> dict:
    return {"name": name, "gpu_type": gpu_type, "gpus": 2, "idle_w": 100, "gpu_w": 200, **more}
