"""A workload run on a shared device for a while (``commonwatt timeslice run``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from commonwatt.devices.base import Tensor, example_input
from commonwatt.devices.driver import Request
from commonwatt.devices.load import LoadGenerator
from commonwatt.devices.session import Session
from commonwatt.timeslicing.tasks import Task

__all__ = ["RunRecord", "Sample", "run"]

SAMPLES = 200
"""Moments of a run that are kept for pictures."""


@dataclass(frozen=True)
class Sample:
    """What tenants had used by some moment, in the order of the configuration."""

    time_ns: int
    used_ns: tuple[int, ...]
    used_j: tuple[float, ...]


@dataclass
class RunRecord:
    """What happened."""

    duration_ns: int = 0
    latencies_ns: dict[str, list[int]] = field(default_factory=dict)  # of requests that ended, by tenant
    refused: dict[str, int] = field(default_factory=dict)  # queue full
    failed: dict[str, int] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)


class _Run:
    def __init__(self, session: Session, end_ns: int, rng: np.random.Generator) -> None:
        self.session = session
        self.driver = session.driver
        self.record = RunRecord(
            latencies_ns={name: [] for name in session.tenants},
            refused=dict.fromkeys(session.tenants, 0),
            failed=dict.fromkeys(session.tenants, 0),
        )
        self._inputs: dict[tuple[str, str], dict[str, Tensor]] = {
            key: {spec.name: example_input(spec, rng) for spec in loaded.model.inputs}
            for key, loaded in session.loaded.items()
        }
        self._turn = dict.fromkeys(session.tenants, 0)
        self._start_ns = session.clock.now_ns()
        tenants = tuple(session.config.tenants)
        self.load = LoadGenerator(tenants, self._submit, end_ns, rng)

    def _submit(self, name: str, queue: int) -> None:
        models = self.session.tenants[name].models
        spec = models[self._turn[name] % len(models)]
        self._turn[name] += 1
        loaded = self.session.loaded[name, spec.name]
        request = Request(loaded.model, loaded.powers, self._inputs[name, spec.name], self._ended)
        tenant = self.driver.scheduler.tenants[name]
        task = Task(tenant, queue, request, self.session.clock.now_ns())
        if not self.driver.scheduler.submit(task):
            self.record.refused[name] += 1

    def _ended(self, task: Task) -> None:
        name = task.tenant.name
        request: Request = task.work
        if request.error is not None:
            raise request.error
        self.record.latencies_ns[name].append(request.ended_ns - task.submitted_ns)
        self.load.ended(name, task.queue, request.ended_ns - self._start_ns)

    def sample(self, now_ns: int) -> None:
        tenants = self.driver.scheduler.tenants.values()
        self.record.samples.append(
            Sample(now_ns, tuple(t.time_ns for t in tenants), tuple(t.energy_j for t in tenants))
        )


def run(session: Session, rng: np.random.Generator, heard: Callable[[float], None] = lambda _: None) -> RunRecord:
    """Run the load of all tenants for the configured time; *heard* is told how far it is, in seconds.

    A request under way at the end is left unfinished; what its steps took is accounted for.
    Raises what a request raises: a run is no server, its inputs are its own.
    """
    clock, driver = session.clock, session.driver
    start_ns = clock.now_ns()
    length_ns = round(session.config.duration_s * 1e9)
    state = _Run(session, length_ns, rng)
    driver.restart()
    next_sample_ns = 0
    while (now_ns := clock.now_ns() - start_ns) < length_ns:
        state.load.arrive(now_ns)
        if now_ns >= next_sample_ns:
            state.sample(now_ns)
            heard(now_ns * 1e-9)
            next_sample_ns += length_ns // SAMPLES + 1
        if not driver.step():
            arrival_ns = state.load.next_ns()
            clock.wait_until(start_ns + min(length_ns, length_ns if arrival_ns is None else arrival_ns))
    driver.settle()
    driver.scheduler.book()
    state.record.duration_ns = clock.now_ns() - start_ns
    state.sample(state.record.duration_ns)
    return state.record
