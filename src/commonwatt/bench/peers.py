"""Peers that need the problem in their own terms: a week as a SimPy program, and NHITS of neuralforecast.

``fifo_cost`` shares no queue, ledger or objective with the controller. What it costs must be what our simulation of
``fifo`` costs, which makes it an oracle.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from commonwatt.model.demand import LEVELS, DemandSeries, QuantileForecast

if TYPE_CHECKING:
    from commonwatt.model.arrays import Floats, Ints
    from commonwatt.simulation.runner import Prepared

__all__ = ["NhitsPredictor", "fifo_cost"]


# -- weeks of jobs


class _Choice(NamedTuple):
    """A configuration of a job: so many nodes of a kind, so many GPUs on each."""

    kind: int
    nodes: int
    gpus: int
    run_s: float
    gpu_w: float
    cost: float


class _Queue:
    """First come, first served on nodes that are SimPy containers of GPUs.

    Whenever a job arrives or ends, waiting jobs are looked at in order of arrival; who does not fit is passed. A job
    takes the cheapest configuration that meets its due date, else the fastest, of those for which there is room. It
    takes the fullest nodes; of these the one that got a job last in the order of arrival. Nodes without jobs are off.
    """

    def __init__(self, env: Any, prepared: Prepared) -> None:  # noqa: ANN401
        import simpy

        self.env, self.jobs, self.specs = env, prepared.table, prepared.scenario.nodes
        electricity = prepared.scenario.electricity
        self.price_j = electricity.price_per_kwh / 3.6e6 * electricity.pue
        self.kind = [k for k, spec in enumerate(self.specs) for _ in range(spec.count)]
        sizes = [self.specs[k].gpus for k in self.kind]
        self.free = [simpy.Container(env, capacity=gpus, init=gpus) for gpus in sizes]
        self.on_since_s = [math.inf] * len(sizes)
        self.choices = [list(self._choices(j)) for j in range(len(self.jobs))]
        self.waiting: list[int] = []
        self.running: dict[int, list[int]] = {}  # nodes of each job
        self.energy_j = self.tardiness = 0.0

    def _choices(self, j: int) -> Iterator[_Choice]:
        jobs = self.jobs
        for row in range(jobs.start[j], jobs.start[j + 1]):
            gpu_type, gpus = jobs.gpu_types[jobs.config_type[row]], int(jobs.config_gpus[row])
            for k, spec in enumerate(self.specs):
                widths = range(-(-gpus // spec.gpus), min(gpus, spec.count) + 1)
                nodes = next((w for w in widths if gpus % w == 0), None)
                if spec.gpu_type != gpu_type or nodes is None:
                    continue
                run_s, own_w = float(jobs.config_time_s[row]), float(jobs.config_gpu_w[row])
                gpu_w = spec.gpu_w if math.isnan(own_w) else own_w
                watts = nodes * spec.idle_w + gpus * gpu_w
                yield _Choice(k, nodes, gpus // nodes, run_s, gpu_w, watts * run_s * self.price_j)

    def job(self, j: int) -> Generator[Any, Any, None]:
        """Arrive, and start whatever fits."""
        yield self.env.timeout(float(self.jobs.submit_s[j]))
        self.waiting.append(j)
        self._start()

    def _start(self) -> None:
        turns = count()
        last = {n: next(turns) for j in sorted(self.running) for n in self.running[j]}
        for j in sorted(self.waiting):
            left_s = float(self.jobs.due_s[j]) - self.env.now
            timely = sorted((c for c in self.choices[j] if c.run_s < left_s), key=lambda c: c.cost)
            late = sorted((c for c in self.choices[j] if c.run_s >= left_s), key=lambda c: c.run_s)
            for choice in (*timely, *late):
                there = self._room(choice, last)
                if len(there) == choice.nodes:
                    last.update((n, next(turns)) for n in there)
                    self.waiting.remove(j)
                    self._take(j, choice, there)
                    break

    def _room(self, choice: _Choice, last: dict[int, int]) -> list[int]:
        fit = [n for n, k in enumerate(self.kind) if k == choice.kind and self.free[n].level >= choice.gpus]
        return sorted(fit, key=lambda n: (self.free[n].level, -last.get(n, -1), n))[: choice.nodes]

    def _take(self, j: int, choice: _Choice, there: list[int]) -> None:
        for n in there:
            if self.free[n].level == self.free[n].capacity:
                self.on_since_s[n] = self.env.now
            self.free[n].get(choice.gpus)
        self.running[j] = there
        self.env.process(self._run(j, choice))

    def _run(self, j: int, choice: _Choice) -> Generator[Any, Any, None]:
        yield self.env.timeout(choice.run_s)
        for n in self.running.pop(j):
            self.free[n].put(choice.gpus)
            self.energy_j += choice.gpus * choice.gpu_w * choice.run_s
            if self.free[n].level == self.free[n].capacity:
                self.energy_j += self.specs[choice.kind].idle_w * (self.env.now - self.on_since_s[n])
        late_s = max(0.0, self.env.now - float(self.jobs.due_s[j]))
        self.tardiness += float(self.jobs.tardiness_weight[j]) * late_s
        self._start()


def fifo_cost(prepared: Prepared) -> float:
    """Return energy and tardiness cost of the jobs of *prepared* under first come, first served, currency.

    A price that does not change, nodes that are off without jobs and start at once, run times that are known, jobs
    that come from nowhere else: as the suite has them.
    """
    import simpy

    env = simpy.Environment()
    queue = _Queue(env, prepared)
    for j in range(len(prepared.table)):
        env.process(queue.job(j))
    env.run()
    return queue.energy_j * queue.price_j + queue.tardiness


# -- demand


class NhitsPredictor:
    """NHITS (C. Challu et al., AAAI 2023) of neuralforecast, trained once, on the CPU and one thread.

    Layers of 64 units, 256 windows a step and no scaling; all else but the quantiles is the package's default. Of the
    settings tried on the problems of the suite, its own sizes among them, these score best and take seconds.
    """

    name = "nhits"

    def __init__(self, look_back: int, horizon: int, steps: int = 300) -> None:
        self.look_back, self.horizon, self._steps = look_back, horizon, steps
        self._model: Any = None
        self._seen: list[float] = []

    def fit(self, series: DemandSeries, rng: np.random.Generator) -> None:
        """Train on *series*."""
        with _quiet():
            from neuralforecast import NeuralForecast
            from neuralforecast.losses.pytorch import MQLoss
            from neuralforecast.models import NHITS

            model = NHITS(
                h=self.horizon, input_size=self.look_back, loss=MQLoss(quantiles=LEVELS.tolist()),
                scaler_type="identity", max_steps=self._steps, mlp_units=3 * [[64, 64]], windows_batch_size=256,
                random_seed=int(rng.integers(2**31)), accelerator="cpu", devices=1, logger=False,
                enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False,
            )  # fmt: skip
            self._model = NeuralForecast(models=[model], freq=1)
            self._model.fit(_frame(series.filled()[None]))
        self._seen = series.filled()[-self.look_back :].tolist()

    def update(self, gpus: float) -> None:
        """Observe one more value, GPUs."""
        self._seen = [*self._seen, self._seen[-1] if math.isnan(gpus) else gpus][-self.look_back :]

    def predict(self) -> QuantileForecast:
        """Forecast from the values observed."""
        return QuantileForecast(LEVELS, self._forecast(np.array([self._seen]))[0])

    def predict_many(self, series: DemandSeries, origins: Ints) -> Floats:
        """Forecast from each origin. Shape [K, m, Q], GPUs."""
        windows = np.lib.stride_tricks.sliding_window_view(series.filled(), self.look_back)
        return self._forecast(windows[np.asarray(origins) - self.look_back + 1])

    def _forecast(self, windows: Floats) -> Floats:
        with _quiet():
            frame = self._model.predict(df=_frame(windows))
        columns = [name for name in frame.columns if name.startswith("NHITS")]
        values = frame[columns].to_numpy(dtype=float).reshape(len(windows), self.horizon, len(LEVELS))
        return np.maximum.accumulate(np.maximum(values, 0.0), axis=-1)


def _frame(rows: Floats) -> Any:  # noqa: ANN401
    """Return a long frame of series of equal length. Shape of *rows*: [K, T]."""
    import pandas as pd

    many, length = rows.shape
    return pd.DataFrame({
        "unique_id": np.repeat(np.arange(many), length), "ds": np.tile(np.arange(length), many), "y": rows.ravel(),
    })  # fmt: skip


@contextmanager
def _quiet() -> Iterator[None]:
    """One thread of torch, no warnings, no progress of its trainer."""
    import torch

    threads, loggers = (
        torch.get_num_threads(),
        [logging.getLogger(n) for n in ("pytorch_lightning", "lightning_fabric")],
    )
    levels = [logger.level for logger in loggers]
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
    finally:
        torch.set_num_threads(threads)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
